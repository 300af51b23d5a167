from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.graphs import op, placement
from support.measurements import measurement
from support.reports import below_the_table, broken, finding, report, written

from placement_checks import Verdict, verify
from placement_checks.core.evidence import Evidence
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.results import Report
from placement_checks.report.text.writer import run_conditions
from placement_checks.util.text import plural


def test_report_of_one_program() -> None:
    graph = placement(
        op("w", "VarHandleOp", "/gpu:0", "GPU:0"),
        op("a", "MatMul", "/gpu:0", "GPU:0", "w"),
        lines={"w": "main.py:9"},
        machine="gpu*1",
    )
    known = Evidence(graph, single_gpu=Missing("the builder has no argument num_gpus"))
    rules = ["placeable", "no-fallback", "variables-on-host", "variables-shared", "no-idle-device"]

    assert written(verify(known, only=rules)) == (
        "train.py:build on gpu*1 (TensorFlow's placer, devices that need not exist, strict)\n"
        "\n"
        "  BROKEN       variables-on-host\n"
        "  KEPT         placeable, no-fallback, no-idle-device\n"
        "  NOT CHECKED  variables-shared (--all shows why)\n"
        "\n"
        "variables-on-host: 1 finding\n"
        "  main.py:9: variable w sits on /device:GPU:0, not on /device:CPU:0; "
        "it requests /device:GPU:0\n"
        "    fix: create it under `with tf.device('/cpu:0'):`; a device function must return "
        "this device for VarHandleOp too, not\n"
        "        only for Variable and VariableV2\n"
        "\n"
        "1 program, rules: 3 kept, 1 broken, 1 not checked.\n"
    )


def test_all_shows_the_objectives() -> None:
    figures: list[Mapping[str, Any]] = [
        {"variables": ["w", "v"], "objective": "2 mean", "expected": "mean"},
        {"variables": ["u"], "objective": "mean on part 1 of 2", "expected": None},
    ]
    verdict = Verdict("gradients-averaged", "kept", "requested", note="3 variables")
    program = report(replace(verdict, figures=figures))

    assert below_the_table(written(program, everything=True))[:3] == [
        "loss terms that the updates minimize",
        "  w and v: 2 mean; on one GPU: mean",
        "  u: mean on part 1 of 2; on one GPU: not known",
    ]
    assert "minimize" not in written(program)


@pytest.mark.parametrize(
    ("conditions", "headline"),
    [
        ({}, "p on gpu*2 (TensorFlow's placer, devices that need not exist, strict)"),
        (
            {"placer": "session", "soft": True},
            "p on gpu*2 (TensorFlow's placer, the devices of a running cluster, soft)",
        ),
        ({"placer": "log"}, "p on gpu*2 (a placement log)"),
        ({"placer": None}, "p on gpu*2, not placed"),
        ({"machine": None}, "p"),
    ],
)
def test_headline_has_the_conditions(conditions: Mapping[str, Any], headline: str) -> None:
    graph = placement(program="p", **conditions)
    assert written(Report(Evidence(graph), [])).splitlines()[0] == headline


def test_counts_of_all_programs() -> None:
    kept = Report(Evidence(placement(program="p")), [Verdict("placeable", "kept", "assigned")])
    broken = Report(
        Evidence(placement(program="q")),
        [Verdict("placeable", "broken", "assigned", None, [finding("w")])],
    )
    text = written(kept, broken)
    assert text.index("p on") < text.index("q on") < text.index("placeable: 1 finding")
    assert text.endswith("2 programs, rules: 1 kept, 1 broken, 0 not checked.\n")


def test_nothing_to_report() -> None:
    assert written() == "0 programs, rules: 0 kept, 0 broken, 0 not checked.\n"


def test_markup_of_names_is_left_alone() -> None:
    graph = placement(program="[red]p[/red]")
    assert "[red]p[/red]" in written(Report(Evidence(graph), []))


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 findings"), (1, "1 finding"), (2, "2 findings")]
)
def test_the_text_of_counts(number: int, text: str) -> None:
    assert plural(number, "finding") == text


def verdicts(rules: int, groups: int) -> list[Verdict]:
    """A number of broken rules, each with a number of groups of findings."""
    return [
        broken(
            f"rule-{rule}",
            *(
                finding(f"v{n}_{copy}", group_key=n, consequence="It is slow.")
                for n in range(groups)
                for copy in range(3)
            ),
            note="word " * 60,
        )
        for rule in range(rules)
    ]


@pytest.mark.parametrize("groups", [1, 50])
@pytest.mark.parametrize("rules", [1, 4, 23])
def test_a_report_has_at_most_60_lines(rules: int, groups: int) -> None:
    text = written(report(*verdicts(rules, groups)))
    everything = written(report(*verdicts(rules, groups)), everything=True)

    assert text.count("\n") <= 57  # what to do next takes three
    assert max(map(len, (text + everything).split("\n"))) <= 130
    assert everything.count("likewise 2 more") == rules * groups
    words = " ".join(text.split())
    assert all(f"rule-{rule}: {groups * 3} findings" in words for rule in range(rules))
    if rules * groups > 5:
        assert "--all shows them" in text
    assert "--all" not in everything


def test_the_first_group_of_each_rule_comes_first() -> None:
    text = below_the_table(written(report(*verdicts(3, 50))))

    assert [line for line in text if line.startswith("rule-")] == [
        "rule-0: 150 findings",
        "rule-1: 150 findings",
        "rule-2: 150 findings",
    ]
    assert sum("likewise" in line for line in text) >= 4


def test_training_comes_before_layout_and_always_in_full() -> None:
    """Where the layout has far more findings than there are lines."""
    layout = [
        broken(f"slow-{rule}", *(finding(f"v{n}", group_key=n) for n in range(40)))
        for rule in range(20)
    ]
    wrong = [
        broken(
            f"wrong-{rule}",
            *(
                finding(f"w{n}", group_key=n, consequence=f"wrong {n}", impact=Impact.TRAINING)
                for n in range(40)
            ),
        )
        for rule in range(14)
    ]
    stops = broken("stops", finding("s", impact=Impact.EXECUTION))

    text = written(report(*layout, *wrong, stops))
    findings = below_the_table(text)

    assert [line for line in findings if line.endswith((" finding", " findings"))] == [
        "stops: 1 finding",
        *(f"wrong-{rule}: 40 findings" for rule in range(14)),
    ]
    assert findings.count("    wrong 0") == 14
    assert findings.count("    fix: pin it") == 15
    assert findings[-2].startswith("    ")
    assert "slow-0: 40 findings, slow-1: 40 findings" in text
    names = " ".join(text.split("\n\n")[1].split())
    assert names.startswith("BROKEN stops, wrong-0,")
    assert names.index("wrong-13") < names.index("slow-0")


def test_findings_of_one_rule_are_ordered_by_impact() -> None:
    mixed = broken(
        "replicas-in-sync",
        finding("w", group_key="drifts", impact=Impact.TRAINING),
        finding("s", group_key="stops", impact=Impact.EXECUTION),
    )

    assert below_the_table(written(report(mixed)))[1:3] == [
        "  a.py:1: s is [on a GPU]",
        "  a.py:1: w is [on a GPU]",
    ]


def test_consequences_take_one_line() -> None:
    program = report(
        broken("variables-shared", finding("w")),
        broken("names-portable", *[finding("w", follows="variables-shared")] * 64, note="9 named"),
    )

    everything = written(program, everything=True)
    assert (
        "  BROKEN       names-portable    9 named; follows from variables-shared\n" in everything
    )
    assert below_the_table(written(program)) == [
        "variables-shared: 1 finding",
        "  a.py:1: w is [on a GPU]",
        "    fix: pin it",
        "",
        "names-portable: 64 findings follow from variables-shared (--all shows them)",
        "",
    ]
    assert below_the_table(everything)[4:] == [
        "names-portable: 64 findings follow from variables-shared",
        "  a.py:1: w is [on a GPU]",
        "      likewise 63 more",
        "    fix: pin it",
        "",
    ]


def test_rules_not_checked_for_one_reason_share_a_line() -> None:
    def open_rule(rule: str, reason: str, note: str | None = None) -> Verdict:
        return Verdict(rule, "not-checked", None, reason, note=note)

    text = written(
        report(
            open_rule("a", "no reference"),
            Verdict("b", "kept", None, note="2 towers"),
            open_rule("c", "no reference"),
            open_rule("d", "no reference", "but this"),
        )
    )
    assert text.split("\n")[2:5] == [
        "  NOT CHECKED  a, c: no reference",
        "  KEPT         b  2 towers",
        "  NOT CHECKED  d  no reference; but this",
    ]


def test_details_of_kept_rules_are_cut_or_omitted() -> None:
    kept = Verdict("placeable", "kept", None, note="word " * 60)

    assert written(report(kept)).count("word") == 38
    assert written(report(kept), everything=True).count("word") == 60
    program = report(kept, broken("no-fallback", finding("w")))
    assert "word" not in written(program)
    assert written(program, everything=True).count("word") == 60


def test_the_fix_of_an_unchecked_rule_is_never_cut() -> None:
    reason = "word " * 60
    fix = "write " * 30 + "this"
    lone = Verdict("placeable", "not-checked", None, f"{reason}; {fix} (--option)", fix=fix)

    text = written(report(replace(lone, note="note " * 60)))
    assert text.count("word") == 38
    assert "word …\n" in text
    assert (text.count("write"), text.count("this")) == (30, 1)
    assert "note" not in text

    short = replace(lone, reason=f"reason; {fix}")
    assert " …" not in written(report(short)), "no line is cut if the reason fits"


def test_several_programs_have_a_grid_before_them() -> None:
    one, two = report(broken("a", finding("w"))), report(Verdict("a", "kept", None), program="q")

    assert written(one, two).startswith("┌ a\n│ ┌ kept\n│ │ ┌ not checked\n1 0 0  p\n. 1 0  q\n")
    assert "┌" not in written(one)


def figures(number: int) -> list[dict[str, Any]]:
    return [
        {"variable": f"v{n}", "state": "differs", "ratio": n, "error": 9e6, "limit": 9e3}
        for n in range(number)
    ]


def test_the_picture_comes_after_the_first_group() -> None:
    drawn = broken("gradients-equal", finding("w"), figures=figures(3))
    text = below_the_table(written(report(drawn)))

    assert text[:5] == [
        "gradients-equal: 1 finding",
        "  a.py:1: w is [on a GPU]",
        "    fix: pin it",
        "",
        "gradients-equal, in eps of the largest value",
    ]
    kept = Verdict("weights-equal", "kept", "executed", figures=figures(3))
    assert below_the_table(written(report(kept)))[0] == (
        "weights-equal, in eps of the largest value"
    )


def test_a_picture_that_does_not_fit_is_omitted() -> None:
    kept = [Verdict(f"rule-{n}", "kept", "executed", figures=figures(8)) for n in range(9)]

    text = written(report(*kept))

    assert 0 < text.count("in eps of the largest value") < len(kept)
    assert "0 findings" not in text


def test_notes_of_a_program_are_cut() -> None:
    evidence = Evidence(placement(program="p"), Missing("a graph"))
    program = Report(evidence, [])
    many = [f"note {number}" for number in range(40)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evidence, "notes", many)
        brief, everything = written(program), written(program, everything=True)
    assert brief.split("\n")[1:8] == [*many[:6], "… (--all shows all notes)"]
    assert all(f"{note}\n" in everything for note in many)


def test_a_program_that_is_its_own_reference_is_named_once() -> None:
    measured = measurement(devices="simulated", reference="train.py --dir=/data")

    assert run_conditions(measured, "train.py --dir=/data") == (
        "compared with the same program for one GPU, on CPU devices in place of GPUs"
    )
    assert run_conditions(measured, "towers.py") == (
        "compared with train.py --dir=/data, on CPU devices in place of GPUs"
    )
