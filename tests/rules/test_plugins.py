"""Rules of other distributions: an invalid one is reported, and the others are judged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from support.distributions import OPS_ON, installed
from support.graphs import op, placement
from support.verdicts import of_rules

from placement_checks import RULES, verify
from placement_checks.core.errors import ConfigError
from placement_checks.rules import entry_points
from placement_checks.rules.plugins import load
from placement_checks.rules.registry import NAMES

GRAPH = placement(op("a", "MatMul", "", "GPU:1"), op("b", "MatMul", "", "GPU:0"))


class Install(Protocol):
    def __call__(self, name: str, rules: dict[str, str], **modules: str) -> None: ...


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install distributions in a directory on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    monkeypatch.delitem(sys.modules, "ours", raising=False)
    yield lambda name, rules, **modules: installed(tmp_path, name, rules, **modules)
    forget()


def forget() -> None:
    entry_points.discover.cache_clear()
    load.cache_clear()


def test_a_rule_of_another_distribution_is_listed_last_and_judged(install: Install) -> None:
    install("our-rules", {"ops-on": "ours_1:OpsOn"}, ours_1=OPS_ON)

    assert list(RULES) == [*NAMES, "ops-on"]
    assert len(RULES) == len(NAMES) + 1
    assert RULES["ops-on"].explanation().startswith("Every op of one type is on one device.")
    report = verify(GRAPH)
    (verdict,) = of_rules(report, "ops-on")
    assert (verdict.rule, verdict.state) == ("ops-on", "broken")
    assert [finding.object for finding in verdict.findings] == ["a"]
    (other,) = verify(GRAPH, [{"ops-on": {"device": "/gpu:*"}}], only=["ops-on"]).verdicts
    assert other.state == "kept"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"typ": "Add"}, "ops-on.typ is not a known field; did you mean 'type'?"),
        ({"strict": "yes"}, "ops-on.strict: 'yes' does not fit; give true or false"),
    ],
)
def test_its_fields_are_checked(install: Install, policy: dict[str, object], message: str) -> None:
    install("our-rules", {"ops-on": "ours_2:OpsOn"}, ours_2=OPS_ON)

    with pytest.raises(ConfigError) as raised:
        verify(GRAPH, [{"ops-on": policy}])
    assert str(raised.value) == message


HEAD = """
from dataclasses import dataclass, field
from typing import ClassVar
from placement_checks import Rule

class Base(Rule):
    def check(self, evidence):
        return self.verdict([])
"""
WRONG = {
    "import os.nothing": "ours:Found cannot be imported: ModuleNotFoundError: No module named "
    "'os.nothing'; 'os' is not a package; fix the import",
    "raise SystemExit(3)": "ours:Found cannot be imported: SystemExit: 3; fix the import",
    "raise KeyError": "ours:Found cannot be imported: KeyError: ; fix the import",
    "Other = 1": "ours:Found cannot be imported: AttributeError: module 'ours' has no attribute "
    "'Found'; fix the import",
    "Found = print": "ours:Found is not a rule; derive it from placement_checks.Rule",
    "class Found: pass": "ours:Found is not a rule; derive it from placement_checks.Rule",
    "class Found(Rule): pass": "ours:Found does not implement check; add check(self, evidence), "
    "which returns a Verdict",
    "class Found(Base): pass": "ours:Found has the name None, but its entry point is named "
    "'found-it'; use one name for both, of lowercase letters, digits and hyphens",
    "class Found(Base): name = 'found'": "ours:Found has the name 'found', but its entry point is "
    "named 'found-it'; use one name for both, of lowercase letters, digits and hyphens",
    "class Found(Base): name = 'found-it'": "ours:Found has the invalid kind None; set kind to "
    "'requested' or 'assigned' or 'executed' or 'configuration'",
    "class Found(Base):\n    name, kind = 'found-it', 'assigned'\n    limit: int = 3": "ours:Found"
    " has the annotation limit, but no field of that name; decorate it with "
    "@dataclass(frozen=True)",
    "@dataclass(frozen=True)\nclass Found(Base):\n    name, kind = 'found-it', 'assigned'\n"
    "    limit: int": "ours:Found has no default for its field limit; add one",
    "@dataclass(frozen=True)\nclass Found(Base):\n    name, kind = 'found-it', 'assigned'\n"
    "    limit: 'Nothing' = 1": "ours:Found has a field whose type cannot be resolved: "
    "name 'Nothing' is not defined; import the type",
}
SOUND = (
    "class Found(Base):\n    name: ClassVar[str] = 'found-it'\n    kind = 'assigned'",
    "@dataclass(frozen=True)\nclass Found(Base):\n    name, kind = 'found-it', 'assigned'\n"
    "    allow: tuple[str, ...] = field(default_factory=tuple)",
)


@pytest.mark.parametrize("source", WRONG)
def test_an_invalid_rule_is_not_checked_and_its_distribution_is_named(
    install: Install, source: str
) -> None:
    install("our-rules", {"found-it": "ours:Found"}, ours=HEAD + source)

    report = verify(GRAPH, [{"found-it": {"limit": 3}}], only=["placeable", "found-it"])

    sound, broken = report.verdicts
    assert (sound.rule, sound.state) == ("placeable", "kept")
    assert (broken.rule, broken.state) == ("found-it", "not-checked")
    message, _, fix = WRONG[source].rpartition("; ")
    (error,) = report.errors
    assert str(error) == (
        f"our-rules: found-it could not be checked: {message}; {fix}, uninstall "
        "our-rules, or skip it: --without 'found-it'"
    )
    assert error.kind == "config"
    assert report.status() == 2
    with pytest.raises(ConfigError, match="our-rules: ours:Found"):
        RULES["found-it"].explanation()


@pytest.mark.parametrize("source", SOUND)
def test_valid_rules_in_other_spellings(install: Install, source: str) -> None:
    install("our-rules", {"found-it": "ours:Found"}, ours=HEAD + source)

    assert verify(GRAPH, only=["found-it"]).verdicts[0].state == "kept"


def test_a_duplicate_name_is_reported_and_the_first_rule_is_loaded(install: Install) -> None:
    install("a-rules", {"ops-on": "ours_3:OpsOn"}, ours_3=OPS_ON)
    install("b-rules", {"ops-on": "nothing:OpsOn", "placeable": "nothing:Placeable"})

    report = verify(GRAPH, only=["placeable", "ops-on", "ops-on (b-rules)", "placeable (b-rules)"])

    assert [(verdict.rule, verdict.state) for verdict in report.verdicts] == [
        ("ops-on", "broken"),
        ("placeable", "kept"),
        ("ops-on (b-rules)", "not-checked"),
        ("placeable (b-rules)", "not-checked"),
    ]
    assert [str(error) for error in report.errors] == [
        "b-rules: ops-on (b-rules) could not be checked: nothing:OpsOn has the name ops-on of "
        "another rule; rename it, uninstall b-rules, or skip it: --without 'ops-on (b-rules)'",
        "b-rules: placeable (b-rules) could not be checked: nothing:Placeable has the name "
        "placeable of another rule; rename it, uninstall b-rules, or skip it: --without "
        "'placeable (b-rules)'",
    ]


def test_rules_of_this_package_are_found_without_a_search_for_plugins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry_points, "entry_points", None)
    forget()

    assert RULES["placeable"].name == "placeable"
    assert "no-fallback" in RULES
    with pytest.raises(TypeError):
        list(RULES)


def test_the_example_of_the_documentation(install: Install) -> None:
    page = Path(__file__).parents[2] / "docs" / "own_rules.md"
    source = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    install("our-rules", {"embeddings-on-gpu": "documented:EmbeddingsOnGpu"}, documented=source)
    graph = placement(
        op("embedding/table", "VarHandleOp", "", "CPU:0"),
        op("fc/w", "VarHandleOp", "", "CPU:0"),
        lines={"embedding/table": "model.py:3"},
    )

    (verdict,) = verify(graph, only=["embeddings-on-gpu"]).verdicts

    (finding,) = verdict.findings
    assert (finding.object, finding.message, finding.where) == (
        "embedding/table",
        "embedding embedding/table is on /device:CPU:0",
        "model.py:3",
    )
    policy = {"embeddings-on-gpu": {"scope": "fc/"}}
    assert (
        verify(graph, [policy], only=["embeddings-on-gpu"]).verdicts[0].findings[0].object
        == "fc/w"
    )
