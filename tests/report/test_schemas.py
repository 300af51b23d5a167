"""The schemas match the documents, and are strict. The tests of the command check its output."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.graphs import placement
from support.outcomes import since_as, written_as
from support.reports import broken, finding, report, since
from support.schemas import valid, validator
from support.timings import loop, timing
from support.towers import host, on, program

from placement_checks import Device, Verdict
from placement_checks.analysis.step.transfers import copies, sent_tensors
from placement_checks.core.baseline import Change, Copies, Crossing, Difference
from placement_checks.core.checkup import Check, Checkup
from placement_checks.core.errors import InputError
from placement_checks.core.timing import Simulated
from placement_checks.logs import Log, Record
from placement_checks.report.commands import doctor, log, place
from placement_checks.report.commands import time as timing_report
from placement_checks.report.common import baseline
from placement_checks.report.common.json import to_json
from placement_checks.report.schemas import NAMES, schema
from placement_checks.testing.report_contents import JudgedTest, document

ERROR = InputError("b.py", "is not there", "name another", is_predicate=True)
DIFFERENT = Difference(
    "placements/q.txt",
    "q",
    9,
    [Change("ops", "input", "/cpu:0", "/gpu:0", ["x"], "1 op: Mul x", "q.py:1", ["no-fallback"])],
    [Change("tower", "tower 2", "", "/gpu:2")],
    [Change("variable", "variable w", "/cpu:0", "", ["w"])],
    [Crossing("/cpu:0", "/gpu:0", Copies(0, 0, 0), Copies(1, 8, 1))],
    ["a note"],
)
CPU = Device.parse("/cpu:0")


def verify_documents() -> Iterator[str]:
    figure = {"variable": "w", "state": "differs", "ratio": 2.0, "error": 9e6, "limit": None}
    copied = {"from": "/cpu:0", "to": "/gpu:0", "copies": 2, "bytes": 9, "unknown": 0}
    full = report(
        broken("a", finding("w", path=("x",), device_line="a.py:1"), finding("v", frames=())),
        broken("gradients-equal", finding("w", evidence="executed"), figures=[figure]),
        Verdict("transfer-budget", "not-checked", None, "no budget", figures=[copied]),
        Verdict("shards-balanced", "kept", "assigned", note="n", figures=[
            {"task": "/job:ps/task:0", "variables": 1, "bytes": 4}
        ]),
        Verdict("ours", "kept", "configuration", figures=[{"anything": []}]),
    )  # fmt: skip
    yield written_as("json", full, report(program="q"))
    yield written_as("json", replace(report(program="q"), baseline=DIFFERENT))
    yield written_as("json", full, errors=[ERROR, ERROR])
    yield written_as("json", errors=[ERROR])
    yield written_as("json")
    test = ("test_it.py::test", JudgedTest("passed", [full]))
    yield to_json(document([test]))
    yield to_json(document([test], [ERROR, ERROR]))
    yield to_json(document([], [ERROR]))


def time_documents() -> Iterator[str]:
    measured = timing(
        loop(1.02, 1.03), single=loop(1.0, 1.0), towers=loop(0.5, 0.6),
        contention=loop(1.1, 1.1), simulated=Simulated(0.9, 0.45), overlap=0.97,
    )  # fmt: skip
    yield timing_report.render_json([measured, timing(2.0)])


def diff_documents() -> Iterator[str]:
    yield baseline.render_json(DIFFERENT)
    yield since_as("json", since())


def log_documents() -> Iterator[str]:
    counts = {Record("x", "Add", str(CPU)): 2, Record(None, None, ""): 1}
    yield log.render_json(Log("a.log", counts, records=3, torn=1))
    yield log.render_json(Log("a.log", {}, records=0))


def place_documents() -> Iterator[str]:
    outputs = {"tower_0/w/read": (4,)}
    graph = program(host("x", "Placeholder"), on(0, "tower_0/x", "Add", "x"), outputs=outputs)
    yield "\n".join(place.render_json(graph, sent_tensors(graph, copies(graph))))
    yield "\n".join(place.render_json(placement(machine=None, placer=None), []))


def doctor_documents() -> Iterator[str]:
    checks = [
        Check("placer", "ok", "started"),
        Check("isolation", "limited", "no network namespace", "allow user namespaces"),
    ]
    yield doctor.render_json(Checkup(checks))


DOCUMENTS: dict[str, Callable[[], Iterator[str]]] = {
    "verify": verify_documents,
    "place": place_documents,
    "time": time_documents,
    "diff": diff_documents,
    "log": log_documents,
    "doctor": doctor_documents,
    "error": lambda: iter([written_as("json", errors=[ERROR])]),
}
EVERY = [(name, text) for name, documents in DOCUMENTS.items() for text in documents()]


@pytest.mark.parametrize("name", NAMES)
def test_each_schema_is_valid(name: str) -> None:
    document = json.loads(schema(name))

    Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert name in DOCUMENTS


@pytest.mark.parametrize(("name", "text"), EVERY)
def test_documents_match_their_schemas(name: str, text: str) -> None:
    assert "schema" in valid(name, text)


def changed(document: Any) -> Iterator[tuple[str, Any]]:
    """The document with another key in each of its objects, and with each of its keys left out."""
    for path in _objects(document, ()):
        if path and path[-1] == "anything":
            continue
        copied = copy.deepcopy(document)
        _at(copied, path)["unknown key"] = 1
        yield f"{path} with another key", copied
        for key in _at(document, path):
            copied = copy.deepcopy(document)
            del _at(copied, path)[key]
            yield f"{path} without {key}", copied


def _objects(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        if isinstance(child, (dict, list)):
            yield from _objects(child, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


# Optional keys, and figures of an installed rule.
MAY_BE_LEFT_OUT = (
    "without figures",
    "without baseline",
    "without error",
    "without errors",
    "without programs",
)
OF_OTHERS = "'rules', 4, 'figures', 0"


@pytest.mark.parametrize(("name", "text"), EVERY)
def test_keys_may_not_be_added_or_left_out(name: str, text: str) -> None:
    accepted = [
        what
        for what, document in changed(json.loads(text))
        if validator(name).is_valid(document)
        and OF_OTHERS not in what
        and not what.endswith(MAY_BE_LEFT_OUT)
    ]

    assert accepted == []
