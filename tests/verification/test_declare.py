"""The current state of a program, declared as intended."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from rules.towers.test_trainables_trained import unused
from support.graphs import op, placement
from support.towers import gradient, host, mixed_losses, on, program, variable

from placement_checks import Finding, Placement, Report, Verdict, verify
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.core.settings import Settings
from placement_checks.verification import declare
from placement_checks.verification.declare import Declaration, declarations, declared_text
from placement_checks.verification.policy import valid_policy

Policies = Mapping[str, Mapping[str, Any]]
NO_POLICY = "cannot be declared as intended"


def report_of(graph: Evidence | Placement, policy: Policies | None = None) -> Report:
    """In a handwritten program no op is marked as following a variable."""
    return verify(graph, [policy or {}], without=["no-fallback"])


def fields_of(graph: Placement, policy: Policies | None = None) -> Policies:
    """The fields of each rule that would be declared."""
    declared = declarations(report_of(graph, policy))
    return {each.rule: each.fields for each in declared}


def on_gpu(*names: str, gpu: int = 0) -> Placement:
    """A program with these variables on a GPU."""
    places = [variable(name, at=f"GPU:{gpu}") for name in names]
    return program(*places, variables=("a", "b", "c"))


def test_one_device_of_all_variables() -> None:
    graph = on_gpu("a", "b", "c", "step", gpu=1)

    assert fields_of(graph) == {"variables-on-host": {"device": "/gpu:1"}}


def test_names_if_other_variables_are_on_the_host() -> None:
    assert fields_of(on_gpu("a")) == {"variables-on-host": {"allow": ["a"]}}


def test_allowed_objects_stay_allowed() -> None:
    policy = {"variables-on-host": {"allow": ["a"]}}

    assert fields_of(on_gpu("a", "b"), policy) == {"variables-on-host": {"allow": ["a", "b"]}}


def test_the_policy_of_the_program_itself_is_kept() -> None:
    policy = valid_policy({"variables-on-host": {"allow": ["a"]}})
    evidence = Evidence(on_gpu("a", "b"), settings=Settings(policy=policy))

    (declared,) = declarations(report_of(evidence))

    assert declared.fields == {"allow": ["a", "b"]}


def test_a_device_of_a_cluster_is_written_in_full() -> None:
    ops = [variable(name, at="/job:ps/task:1/device:GPU:0") for name in ("w", "step")]
    device = "/job:ps/replica:0/task:1/device:GPU:0"

    declared = fields_of(program(*ops, machine="ps*2: gpu*1; localhost*1: gpu*2"))

    assert declared["variables-on-host"] == {"device": device}


def test_the_device_of_averaged_gradients() -> None:
    assert fields_of(program(on(1, "sum/w", "AddN", *program().ops["sum/w"].inputs))) == {
        "averaging-on-host": {"device": "/gpu:1"}
    }


def test_an_idle_gpu() -> None:
    assert fields_of(program(machine="gpu*4")) == {
        "no-idle-device": {"allow": ["/device:GPU:2", "/device:GPU:3"]}
    }


def test_a_session_that_takes_all_memory() -> None:
    session = {"gpu_options": {"allow_growth": False}}

    assert fields_of(program(step={"session": session})) == {"session-memory": {"fraction": 1.0}}


@pytest.mark.parametrize("frozen", [(), ("a",)])
def test_variables_that_no_step_trains(frozen: Sequence[str]) -> None:
    graph = program(
        host("train", "NoOp", "^update/w", "^step/add"),
        host("update/head", "NoOp"),
        variables=["w", "head"],
        collections={TRAINABLE: ["w", "head"], GLOBAL: ["w", "head", "step"]},
        outputs={gradient(i, "head"): (4,) for i in (0, 1)},
    )
    policy = {"trainables-trained": {"frozen": list(frozen)}}

    declared = {each.rule: each.fields for each in declarations(report_of(graph, policy))}

    assert declared == {"trainables-trained": {"frozen": [*frozen, "head"]}}


def test_a_doubt_is_declared_like_a_finding() -> None:
    evidence = Evidence.wrap(unused("a", "b", "c"))
    judged = verify(evidence, only=["trainables-trained"])
    (declared,) = declarations(judged)

    assert [verdict.state for verdict in judged.verdicts] == ["doubtful"]
    assert declared.fields == {"frozen": ["b", "c"]}
    policy = {"trainables-trained": declared.fields}
    assert verify(evidence, [policy], only=["trainables-trained"]).count("kept") == 1


def test_memory_for_other_programs_cannot_be_declared() -> None:
    policy = {"session-memory": {"others": [{"allow_growth": False}]}}
    graph = program(step={"session": {"gpu_options": {"allow_growth": True}}})

    (declared,) = declarations(report_of(graph, policy))

    assert (declared.fields, declared.meaning) == ({}, "no field of the rule declares this")


def test_a_budget_is_the_present_number_of_copies() -> None:
    graph = program(outputs={f"tower_{i}/w/read": (8, 4) for i in (0, 1)})
    policy = {"transfer-budget": {"bytes": 1, "copies": 100}}

    (fields,) = fields_of(graph, policy).values()

    assert fields["copies"] == 100
    assert fields["bytes"] >= 256
    assert report_of(graph, {"transfer-budget": fields}).count("broken") == 0


def test_losses_that_depend_on_other_towers() -> None:
    assert fields_of(mixed_losses())["losses-apart"] == {"allow": ["tower_1/loss"]}


def test_all_objects_of_a_known_behavior(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a/moving_mean", "b/moving_mean"]
    graph = program(*(variable(name) for name in names))
    found = Finding(names[0], "", "requested", "", "", known="Keras 3", others=(names[1],))
    verdict = Verdict("replicas-in-sync", "broken", "requested", None, [found])
    declared = Verdict("replicas-in-sync", "kept", "requested")
    monkeypatch.setattr(declare, "_judge", lambda *given: declared if given[-1] else verdict)

    (declaration,) = declarations(Report(Evidence.wrap(graph), [verdict]))

    assert declaration.fields == {"allow": names}


def test_an_op_that_fell_back() -> None:
    fell = op("sound", "Decode", "/gpu:0", "CPU:0", fallback_reason="no GPU kernel")

    (declared,) = declarations(verify(placement(fell), only=["no-fallback"]))

    assert (declared.rule, declared.fields) == ("no-fallback", {"allow": ["sound"]})


@pytest.mark.parametrize("rule", ["one-update", "every-tower-counts"])
def test_wrong_training_cannot_be_declared(rule: str) -> None:
    twice = host("again/w", "ResourceApplyGradientDescent", "w", "rate", "mean/w")
    lost = host("mean/w", "Mul", program().ops["sum/w"].inputs[0], "share")
    train = host("train", "NoOp", "^update/w", "^again/w", "^step/add")
    graph = program(twice, train) if rule == "one-update" else program(lost)

    declared = {each.rule: each for each in declarations(report_of(graph))}

    assert declared[rule].fields == {}
    assert declared[rule].meaning == NO_POLICY


def test_consequences_of_allowed_objects_are_allowed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If variables are allowed, findings on their slots remain."""

    def judged(_evidence: Evidence, _rule: str, fields: Any) -> Verdict:
        found = ["w/slot"] if "w/slot" not in fields["allow"] else []
        return verdict_on("names-portable", *found)

    monkeypatch.setattr(declare, "_judge", judged)
    report = Report(Evidence(program()), [verdict_on("names-portable", "w")])

    (declared,) = declarations(report)

    assert declared.fields == {"allow": ["w", "w/slot"]}
    assert declared.findings == 1


def verdict_on(rule: str, *objects: str) -> Verdict:
    findings = [Finding(name, "", "requested", "", "") for name in objects]
    return Verdict(rule, "broken" if findings else "kept", "requested", None, findings)


def text_of(*declared: Declaration, gpus: int | None = None, programs: int = 1) -> str:
    report = Report(Evidence(program()), [])
    return declared_text([("train.py:build", report, Settings(gpus), declared)] * programs)


ON_GPU = Declaration("variables-on-host", {"device": "/gpu:0"}, 4, "they are meant to be there")
WRONG = Declaration("one-update", {}, 2, NO_POLICY)


def test_the_lines_of_one_program() -> None:
    assert text_of(ON_GPU, WRONG).partition("\n\n")[2] == (
        "# variables-on-host, 4 findings: they are meant to be there\n"
        "[tool.placement_checks.policy.variables-on-host]\n"
        'device = "/gpu:0"\n'
        "\n"
        "# cannot be declared as intended: one-update, 2 findings in train.py:build\n"
    )


def test_several_programs_have_an_entry_each() -> None:
    document = tomllib.loads(text_of(ON_GPU, WRONG, gpus=4, programs=2))

    assert (
        document["tool"]["placement_checks"]["programs"]
        == [
            {
                "target": "train.py:build",
                "gpus": 4,
                "policy": {"variables-on-host": {"device": "/gpu:0"}},
            }
        ]
        * 2
    )


@pytest.mark.parametrize(
    "value",
    [1.0, 3, "/gpu:0", ["a"], [f"tower_*/{'x' * 40}_{i}" for i in range(9)], 'a"\\b', "é\x07"],
)
def test_values_are_read_back(value: object) -> None:
    text = text_of(Declaration("no-fallback", {"allow": value}, 1, "it is so"))

    policy = tomllib.loads(text)["tool"]["placement_checks"]["policy"]
    assert policy == {"no-fallback": {"allow": value}}


def test_no_line_is_long() -> None:
    names = [f"tower_{i}/{'x' * 40}" for i in range(9)]
    text = text_of(Declaration("no-fallback", {"allow": names}, 9, "word " * 60))

    assert max(map(len, text.splitlines())) <= 99
