"""The most useful edit or command after a report."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.towers import on, program, variable

from placement_checks import Finding, Program, Report, Verdict, verify
from placement_checks.core.errors import UsageError
from placement_checks.core.evidence import NO_REFERENCE, Evidence
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Placement
from placement_checks.core.program import CapturedProgram
from placement_checks.core.settings import Policy, Settings
from placement_checks.verification.judging import in_order
from placement_checks.verification.next_step import next_step

FIX = "return it from the function"
NO_STEP = f"the train op is unknown; {FIX}"


def finding(object: str, *frames: str, **more: Any) -> Finding:
    return Finding(object, "MatMul", "requested", "", "", frames=frames, **more)


def broken(rule: str, *findings: Finding) -> Verdict:
    return Verdict(rule, "broken", "requested", None, findings)


def kept(rule: str) -> Verdict:
    return Verdict(rule, "kept", "requested")


def unchecked(rule: str, reason: str, **more: Any) -> Verdict:
    return Verdict(rule, "not-checked", None, reason, **more)


def report(*verdicts: Verdict, graph: Placement | None = None, **evidence: Any) -> Report:
    given = {"reference": Missing("it was not asked for"), **evidence}
    return Report(Evidence(graph or program(), **given), in_order(verdicts))


def test_the_line_of_the_only_finding() -> None:
    judged = report(kept("placeable"), broken("one-update", finding("w", "a.py:1", "b.py:2")))

    assert next_step([judged]) == "next: edit b.py:2, which breaks one-update (1 finding)"


def test_a_line_of_a_finding_comes_before_a_caller_that_all_share() -> None:
    findings = [finding(name, "main.py:1", "main.py:7", f"net.py:{name}") for name in "123"]

    assert next_step([report(broken("variables-shared", *findings))]) == (
        "next: edit net.py:1, the first of 3 lines that break variables-shared (3 findings)"
    )


def test_the_training_comes_before_the_layout_however_many_findings_that_has() -> None:
    layout = [finding(str(n), "a.py:4", impact=Impact.LAYOUT) for n in range(9)]
    training = finding("loss", "a.py:6", impact=Impact.TRAINING)
    verdicts = [
        broken("variables-on-host", *layout),
        broken("names-portable", *layout),
        broken("losses-apart", training),
    ]

    assert next_step([report(*verdicts)]) == (
        "next: edit a.py:6, which breaks losses-apart (1 finding)"
    )


def test_what_stops_the_program_comes_before_the_training() -> None:
    training = [finding(str(n), "a.py:4", impact=Impact.TRAINING) for n in range(9)]
    stops = finding("loss", "a.py:6", impact=Impact.EXECUTION)

    assert next_step([report(broken("one-update", *training), broken("placeable", stops))]) == (
        "next: edit a.py:6, which breaks placeable (1 finding)"
    )


def test_the_line_with_most_findings_on_training() -> None:
    """Consequences count; findings on the layout do not, even on the same line."""
    layout = [finding(str(n), "a.py:4", impact=Impact.LAYOUT) for n in range(9)]
    update = finding("v", "a.py:4", impact=Impact.TRAINING)
    counts = finding("w", "a.py:6", impact=Impact.TRAINING)
    gradient = finding("w", "a.py:8", impact=Impact.TRAINING, follows="every-tower-counts")
    verdicts = [
        broken("variables-on-host", *layout),
        broken("one-update", update),
        broken("every-tower-counts", counts),
        broken("gradients-equal", gradient),
    ]

    assert next_step([report(*verdicts)]) == (
        "next: edit a.py:6, which breaks every-tower-counts and 1 more rule (2 findings)"
    )
    assert next_step([report(*verdicts[:2])]) == (
        "next: edit a.py:4, which breaks one-update (1 finding)"
    )


def test_the_most_severe_finding_of_a_rule_has_the_line() -> None:
    training = [finding(str(n), "a.py:4", impact=Impact.TRAINING) for n in range(9)]
    stops = finding("sum", "a.py:6", impact=Impact.EXECUTION, group_key="stops")

    assert next_step([report(broken("replicas-in-sync", *training, stops))]) == (
        "next: edit a.py:6, which breaks replicas-in-sync (10 findings)"
    )


def test_consequences_count_with_their_cause() -> None:
    shared = broken("variables-shared", finding("w", "a.py:4"))
    names = broken("names-portable", finding("w", "a.py:9", follows="variables-shared"))
    update = broken("one-update", finding("v", "a.py:6"))

    assert next_step([report(update, names, shared)]) == (
        "next: edit a.py:4, which breaks variables-shared and 1 more rule (2 findings)"
    )


def test_the_step_is_the_first_root_cause_of_the_report() -> None:
    """Neither the number of its findings nor other rules on its line count."""
    rules = ("no-fallback", "variables-on-host", "slots-with-variables")
    verdicts = [broken(rule, finding("w", "a.py:4")) for rule in rules]
    many = broken("one-update", *(finding(str(i), "a.py:6") for i in range(9)))

    assert next_step([report(*verdicts, many)]) == (
        "next: edit a.py:4, which breaks no-fallback (1 finding)"
    )
    assert next_step([report(many, *verdicts)]) == (
        "next: edit a.py:6, which breaks one-update (9 findings)"
    )


def test_the_deciding_scope_precedes_lines_of_several_ops() -> None:
    findings = [
        finding(name, f"a.py:{n}", device_line="a.py:2", is_of_scope=True)
        for n, name in enumerate("abc", 4)
    ]

    assert next_step([report(broken("no-fallback", *findings, finding("d", "a.py:4")))]) == (
        "next: edit a.py:2, which breaks no-fallback (4 findings)"
    )


def test_a_scope_that_decided_for_few_ops_does_not() -> None:
    findings = [finding("a", "a.py:4", device_line="a.py:2"), finding("b", "a.py:4")]

    assert next_step([report(broken("no-fallback", *findings))]) == (
        "next: edit a.py:4, which breaks no-fallback (2 findings)"
    )


def test_lines_without_a_common_caller() -> None:
    findings = [finding("a", "a.py:4"), finding("b", "a.py:5"), finding("c")]

    assert next_step([report(broken("names-portable", *findings[:2]))]) == (
        "next: edit a.py:4, the first of 2 lines that break names-portable (2 findings)"
    )


def test_some_findings_without_lines() -> None:
    findings = [finding("c"), finding("a", "a.py:4")]

    assert next_step([report(broken("names-portable", *findings))]) == (
        "next: edit a.py:4, which breaks names-portable (2 findings)"
    )


def test_the_common_caller_is_the_only_line() -> None:
    findings = [finding("a", "a.py:4"), finding("b", "a.py:4", "b.py:2")]

    assert next_step([report(broken("names-portable", *findings))]) == (
        "next: edit a.py:4, which breaks names-portable (2 findings)"
    )


def test_no_line_is_known() -> None:
    idle = broken("no-idle-device", finding("/device:GPU:1"))
    memory = broken("session-memory", finding("gpu_options"), finding("/device:GPU:0"))

    assert next_step([report(idle, memory)]) == (
        "next: for an example with its fix, run placement-checks explain no-idle-device"
    )


def test_a_short_common_fix() -> None:
    fixed = [replace(finding(name), fix="write /gpu:1") for name in "ab"]

    assert next_step([report(broken("no-idle-device", *fixed))]) == (
        "next: write /gpu:1, for no-idle-device (2 findings)"
    )


def test_findings_in_a_library_are_fixed_or_declared() -> None:
    known = replace(finding("bn/moving_mean"), fix="long", known="Keras 3")

    assert next_step([report(broken("replicas-in-sync", known))]) == (
        "next: apply the workaround of replicas-in-sync, or declare it: --declare prints how"
    )


TAKES_ALL = {"gpu_options": {"allow_growth": False}}


def test_session_memory_may_be_intended() -> None:
    assert next_step([judged(program(step={"session": TAKES_ALL}), "session-memory")]) == (
        "next: set config.gpu_options.allow_growth = True, or per_process_gpu_memory_fraction to "
        "at most 0.95, for session-memory (1 finding); or, if that is intended: "
        "--set session-memory.fraction=1.0"
    )


def test_one_line_in_several_programs() -> None:
    verdict = broken("one-update", finding("w", "a.py:4"))

    assert next_step([report(verdict), report(kept("placeable")), report(verdict)]) == (
        "next: edit a.py:4, which breaks one-update (2 findings in train.py:build and 1 more "
        "program)"
    )


def judged(graph: Placement, rule: str) -> Report:
    return verify(replace(Evidence.wrap(graph)), only=[rule])


def test_a_policy_that_fits() -> None:
    places = [variable(name, at="GPU:0") for name in ("w", "step")]
    lines = {"w": "a.py:3", "step": "a.py:3"}

    assert next_step([judged(program(*places, lines=lines), "variables-on-host")]) == (
        "next: edit a.py:3, which breaks variables-on-host (2 findings); or, if that is intended: "
        "--set variables-on-host.device=/gpu:0"
    )


def test_no_policy_fits_variables_on_several_gpus() -> None:
    places = [variable("w", at="GPU:0"), variable("step", at="GPU:1")]

    step = next_step([judged(program(*places, lines={"w": "a.py:3"}), "variables-on-host")])

    assert step == "next: edit a.py:3, which breaks variables-on-host (2 findings)"


def test_averaging_on_a_gpu_may_be_intended() -> None:
    joins = on(1, "sum/w", "AddN", *program().ops["sum/w"].inputs)
    graph = program(joins, lines={"sum/w": "a.py:3"})

    assert next_step([judged(graph, "averaging-on-host")]) == (
        "next: edit a.py:3, which breaks averaging-on-host (1 finding); or, if that is intended: "
        "--set averaging-on-host.device=/gpu:1"
    )


NOT_COMPARED = (kept("placeable"), unchecked("gradients-equal", "no reference is given"))


def built(build: Any, name: str = "train.py:build") -> CapturedProgram:
    graph: Any = None
    return CapturedProgram(name=name, program=Program(name, build), gpus=2, source=graph)


def test_a_function_that_takes_the_number_of_gpus_is_its_own_reference() -> None:
    def build(num_gpus: int) -> None: ...

    sound = report(*NOT_COMPARED, program=built(build), reference=NO_REFERENCE)

    assert next_step([sound]) == (
        "next: compare numbers, with the same function built for one GPU: "
        "--reference train.py:build"
    )


def test_another_function_is_the_reference_of_one_that_does_not() -> None:
    sound = report(*NOT_COMPARED, program=built(lambda: None), reference=NO_REFERENCE)

    assert next_step([sound]) == (
        "next: compare numbers, with a function that builds the same for one GPU: "
        "--reference train.py:FUNCTION"
    )


def test_the_reference_of_a_function_that_trains_trains_too() -> None:
    sound = report(
        *NOT_COMPARED,
        graph=program(step={"traced": True}),
        program=built(lambda: None),
        reference=NO_REFERENCE,
    )

    assert next_step([sound]) == (
        "next: compare numbers, with a function that trains the same for one GPU: "
        "--reference train.py:FUNCTION"
    )


@pytest.mark.parametrize(
    "evidence",
    [{"program": built(lambda: None)}, {"reference": NO_REFERENCE}],
    ids=["compared already", "no function"],
)
def test_nothing_to_compare(evidence: Any) -> None:
    assert next_step([report(*NOT_COMPARED, **evidence)]) is None


def test_unselected_rules_on_numbers() -> None:
    sound = report(kept("placeable"), program=built(lambda: None), reference=NO_REFERENCE)

    assert next_step([sound]) is None


def test_the_most_commonly_missing_evidence_comes_first() -> None:
    def build(num_gpus: int) -> None: ...

    few = [unchecked(rule, NO_STEP, fix=FIX) for rule in ("one-update", "update-ops-run")]
    sound = report(*few, *NOT_COMPARED, program=built(build), reference=NO_REFERENCE)

    assert next_step([sound]) == f"next: 2 rules could not be checked: {NO_STEP}"
    assert next_step([sound, sound]) == (
        f"next: 2 rules could not be checked in train.py:build and 1 more program: {NO_STEP}"
    )


def test_one_rule_of_several_programs_is_not_many() -> None:
    sound = report(kept("placeable"), unchecked("one-update", NO_STEP, fix=FIX))

    assert next_step([sound, sound, sound]) is None


@pytest.mark.parametrize(
    "verdicts",
    [
        [unchecked("one-update", NO_STEP, fix=FIX)],
        [
            unchecked(rule, "there is one tower; so", one_tower=True, fix="so")
            for rule in ("a", "b")
        ],
        [unchecked(rule, "no op updates statistics") for rule in ("a", "b")],
    ],
    ids=["one rule", "one tower", "nothing to do about it"],
)
def test_verdicts_that_need_no_check(verdicts: Sequence[Verdict]) -> None:
    assert next_step([report(*verdicts, kept("placeable"))]) is None


def test_correct_programs_are_added_to_the_configuration() -> None:
    sound, program = report(kept("placeable")), ("train.py:build", Settings())
    step, both = next_step([sound], [program]), next_step([sound] * 2, [program] * 2)

    assert step is not None
    assert both is not None
    assert step == "next: add it to pyproject.toml:"
    assert step.to_paste == ("[tool.placement_checks]", 'programs = ["train.py:build"]')
    assert both == "next: add them to pyproject.toml:"
    assert both.to_paste[1] == 'programs = ["train.py:build", "train.py:build"]'
    assert next_step([sound]) is None
    assert next_step([report(unchecked("placeable", "it is so"))], [program]) is None


def test_the_settings_of_a_program_are_added_to_the_configuration() -> None:
    settings = Settings(
        gpus=4,
        soft=False,
        args=("--rows={gpus}",),
        v1=True,
        let={"FLAGS.n": "3"},
        policy=Policy({"variables-on-host": {"device": "/gpu:0"}}),
    )

    step = next_step([report(kept("placeable"))], [("train.py", settings)])

    assert step is not None
    pasted = tomllib.loads("\n".join(step.to_paste))
    (entry,) = pasted["tool"]["placement_checks"]["programs"]
    assert entry == {
        "target": "train.py",
        "gpus": 4,
        "soft": False,
        "policy": {"variables-on-host": {"device": "/gpu:0"}},
        "args": ["--rows={gpus}"],
        "v1": True,
        "let": {"FLAGS.n": "3"},
    }


def test_declared_programs_need_no_further_evidence() -> None:
    few = [unchecked(rule, NO_STEP, fix=FIX) for rule in ("one-update", "update-ops-run")]
    sound = report(*few, kept("placeable"))

    assert next_step([sound]) is not None
    assert next_step([sound], are_declared=True) is None
    wrong = report(broken("one-update", finding("w", "a.py:4")))
    assert next_step([wrong], are_declared=True) == next_step([wrong])


def test_errors_come_first() -> None:
    fault = replace(unchecked("placeable", "x"), error=UsageError("", "x"))

    assert next_step([report(fault, broken("one-update", finding("w", "a.py:1")))]) is None
    assert next_step([]) is None
