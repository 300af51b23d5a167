from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import pytest
from support.graphs import op, placement

from placement_checks import (
    RULES,
    Finding,
    Placement,
    Verdict,
    assert_no_fallback,
    assert_no_idle_device,
    assert_placeable,
    assert_rules,
    assert_variables_on_host,
    assert_variables_shared,
)
from placement_checks.core.errors import ConfigError, PlacementError, UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Refusal
from placement_checks.core.settings import Policy, Settings
from placement_checks.rules.registry import NAMES
from placement_checks.testing import assertions, checking, running_test
from placement_checks.testing.running_test import RunningTest

ALL = [
    assert_placeable,
    assert_no_fallback,
    assert_variables_on_host,
    assert_variables_shared,
    assert_no_idle_device,
]


@pytest.fixture
def sound() -> Placement:
    """Two towers that share a variable on the host."""
    return placement(
        op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
        op("tower_0", "MatMul", "/gpu:0", "GPU:0", "w"),
        op("tower_1", "MatMul", "/gpu:1", "GPU:1", "w"),
    )


@pytest.fixture
def unsound() -> Placement:
    """Breaks every rule, with every second op."""
    return placement(
        op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
        op("tower_0", "MatMul", "/gpu:0", "GPU:0", "w"),
        op("w_1", "VarHandleOp", "/gpu:1", "GPU:0"),
        op(
            "tower_1", "MatMul", "/gpu:1", "CPU:0", "w_1", fallback_reason="no kernel takes string"
        ),
        lines={"w_1": "main.py:9"},
        refusals=[Refusal("w_1", "no such device")],
    )


@pytest.mark.parametrize("assertion", [*ALL, assert_rules])
def test_passes_on_a_sound_placement(assertion: Callable[..., Any], sound: Placement) -> None:
    assert assertion(sound) is None


@pytest.mark.parametrize(
    ("assertion", "rule", "fixed"),
    [
        (assert_placeable, "placeable", "w_1"),
        (assert_no_fallback, "no-fallback", "tower_1"),
        (assert_variables_on_host, "variables-on-host", "w_1"),
        (assert_variables_shared, "variables-shared", "w_1"),
        (assert_no_idle_device, "no-idle-device", "/device:GPU:1"),
    ],
)
def test_fails_with_the_reported_object(
    assertion: Callable[..., Any], rule: str, fixed: str, unsound: Placement
) -> None:
    with pytest.raises(AssertionError) as caught:
        assertion(unsound)
    headline, finding, *_ = str(caught.value).splitlines()
    assert headline == f"{rule} is broken by train.py:build on gpu*2: 1 finding"
    assert fixed in finding


def test_message_has_source_line_path_and_fix(unsound: Placement) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_variables_shared(unsound)
    assert str(caught.value) == (
        "variables-shared is broken by train.py:build on gpu*2: 1 finding\n"
        "  main.py:9: the tower on /device:GPU:1 reads w_1, but the tower on /device:GPU:0 "
        "reads w: they are trained separately\n"
        "    each tower learns only from its own part of each batch; evaluation and export use "
        "the weights of one tower\n"
        "    fix: in the model use tf.compat.v1.get_variable instead of tf.Variable, and "
        "variable_scope instead of name_scope,\n"
        "        and build each tower under "
        "`with tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), reuse=i > 0):`"
    )


@pytest.mark.parametrize(
    ("assertion", "parameters"),
    [
        (assert_no_fallback, {"allow": ("tower_1",)}),
        (assert_variables_on_host, {"device": ("/cpu:0", "/gpu:0")}),
        (assert_variables_on_host, {"allow": ("w_1",)}),
        (assert_variables_shared, {"allow": ("w_*",)}),
        (assert_no_idle_device, {"allow": ("/gpu:1",)}),
    ],
)
def test_parameters_allow_the_reported_object(
    assertion: Callable[..., Any], parameters: Mapping[str, Sequence[str]], unsound: Placement
) -> None:
    assert assertion(unsound, **parameters) is None


def test_an_invalid_device_is_refused(sound: Placement) -> None:
    with pytest.raises(ConfigError, match="'host' is not part of a device name"):
        assert_variables_on_host(sound, "host")


def test_all_broken_rules_are_in_one_message(unsound: Placement) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_rules(unsound)
    headlines = [text.splitlines()[0] for text in str(caught.value).split("\n\n")]
    assert [text.split()[0] for text in headlines] == [
        "placeable",
        "variables-shared",
        "no-fallback",
        "no-idle-device",
        "variables-on-host",  # follows from placeable
    ]


def test_unnamed_rules_are_not_asserted(unsound: Placement) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_rules(unsound, "no-fallback", "no-idle-device")
    assert str(caught.value).count("is broken by") == 2


def test_rules_apply_the_policy_of_the_program() -> None:
    on_gpu = [
        op("w", "VarHandleOp", "/gpu:0", "GPU:0"),
        op("tower", "MatMul", "/gpu:0", "GPU:0", "w"),
    ]
    with pytest.raises(AssertionError, match="variables-on-host is broken"):
        assert_rules(placement(*on_gpu, machine="gpu*1"))
    settings = Settings(policy=Policy({"variables-on-host": {"device": "/gpu:0"}}))
    assert_rules(Evidence(placement(*on_gpu, machine="gpu*1"), settings=settings))


def test_rules_refuse_names_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="did you mean"):
        assert_rules(placement(op("a", "NoOp")), "no-fallbacks")


@pytest.mark.parametrize(
    ("assertion", "reason"),
    [
        (assert_no_fallback, "no-fallback could not be checked on train.py:build: no op requests"),
        (assert_variables_shared, "variables-shared could not be checked on train.py:build: the"),
        (
            lambda bare: assert_rules(bare, "placeable", "variables-on-host"),
            "variables-on-host could not be checked on train.py:build: the graph has no variables",
        ),
    ],
)
def test_fails_if_nothing_was_checked(assertion: Callable[..., Any], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        assertion(placement(op("a", "NoOp", "", "CPU:0")))


def test_unnamed_rules_need_not_be_checked() -> None:
    assert_rules(placement(op("a", "MatMul", "/gpu:0", "GPU:0"), machine="gpu*1"))


@pytest.mark.parametrize("assertion", [*ALL[:3], assert_no_idle_device, assert_rules])
def test_skips_without_a_placer(assertion: Callable[..., Any]) -> None:
    unplaced = placement(
        op("a", "MatMul", "/gpu:0"), placer=None, assigned=Missing("no wheel for this")
    )
    with pytest.raises(pytest.skip.Exception, match=r"could not be checked on .*: no wheel"):
        assertion(unplaced)


def test_fails_if_the_placer_refuses() -> None:
    """If the program itself is the reason for a missing answer, the test is not skipped."""
    refused = placement(
        op("a", "MatMul", "/gpu:0"),
        assigned=Missing("the placer refused the graph"),
        refusals=[Refusal("a", "no such device")],
    )
    with pytest.raises((AssertionError, pytest.skip.Exception), match="the placer refused") as no:
        assert_no_fallback(refused)
    assert no.type is AssertionError
    with pytest.raises(AssertionError, match="a cannot be placed: no such device"):
        assert_placeable(refused)


@pytest.mark.parametrize(
    ("assertion", "rules"),
    [
        (assert_no_fallback, ["no-fallback"]),
        (
            lambda placement: assert_rules(placement, "placeable", "no-fallback"),
            ["placeable", "no-fallback"],
        ),
    ],
)
@pytest.mark.parametrize("case", ["sound", "unsound"])
def test_every_verdict_is_recorded(
    assertion: Callable[..., Any],
    rules: Sequence[str],
    case: str,
    request: pytest.FixtureRequest,
) -> None:
    recorded = []
    asserted = request.getfixturevalue(case)
    test = RunningTest(record=lambda *call: recorded.append(call))
    with (
        running_test.run_as(test),
        nullcontext() if case == "sound" else pytest.raises(AssertionError),
    ):
        assertion(asserted)
    assert [(evidence, verdict.rule) for evidence, verdict in recorded] == [
        (Evidence(asserted), rule) for rule in rules
    ]


def test_a_missing_placer_does_not_hide_a_broken_rule() -> None:
    graph = placement(
        op("v", "VarHandleOp"),
        op("w", "VarHandleOp"),
        op("one", "MatMul", "/gpu:0", "", "v"),
        op("two", "MatMul", "/gpu:1", "", "w"),
        placer=None,
        assigned=Missing("no wheel"),
    )

    with pytest.raises(AssertionError, match="variables-shared is broken"):
        assert_rules(graph, "placeable", "variables-shared")


def failing(monkeypatch: pytest.MonkeyPatch, rule: str, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(RULES[rule], "check", fail)


@pytest.mark.parametrize("error", [RuntimeError("a fault"), MemoryError(), RecursionError("deep")])
def test_a_failing_rule_is_an_error(
    monkeypatch: pytest.MonkeyPatch, sound: Placement, error: Exception
) -> None:
    failing(monkeypatch, "placeable", error)

    for assertion in (assert_rules, assert_placeable):
        with pytest.raises(PlacementError) as raised:
            assertion(sound)
        assert raised.value.message == (
            f"placeable could not be checked: {type(error).__name__}"
            + (f": {error}" if str(error) else "")
        )
        assert raised.value.__cause__ is error
    assert_rules(sound, "no-fallback")


def test_a_failing_rule_is_an_error_without_a_placer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, "placeable", RuntimeError("a fault"))

    with pytest.raises(PlacementError, match="a fault"):
        assert_placeable(placement(op("w", "VarHandleOp"), assigned=Missing("there is no placer")))


def test_broken_rules_are_notes_of_another_rules_error(
    monkeypatch: pytest.MonkeyPatch, unsound: Placement
) -> None:
    failing(monkeypatch, "placeable", RuntimeError("a fault"))
    failing(monkeypatch, "no-fallback", RuntimeError("another"))

    with pytest.raises(PlacementError, match="placeable could not be checked") as raised:
        assert_rules(unsound)

    first, *others = raised.value.__notes__
    assert first.startswith("train.py:build: no-fallback could not be checked: ")
    assert {note.partition(" is broken by")[0] for note in others} >= {"variables-on-host"}


@pytest.fixture
def doubled() -> Placement:
    """Two towers with variables of their own, which are named after them."""
    return placement(
        *(
            op(f"tower_{tower}/{name}", "VarHandleOp", "/cpu:0", "CPU:0")
            for tower in range(2)
            for name in "stuvwxyz"
        ),
        *(
            op(
                f"tower_{tower}/matmul_{name}", "MatMul", f"/gpu:{tower}", f"GPU:{tower}",
                f"tower_{tower}/{name}",
            )
            for name in "stuvwxyz"
            for tower in range(2)
        ),
    )  # fmt: skip


def test_a_consequence_names_its_cause_only(doubled: Placement) -> None:
    own = Finding("w", "VarHandleOp", "requested", "w is doubled", "share it")
    follows = replace(own, follows="variables-shared")
    verdicts = [
        Verdict("variables-shared", "broken", "requested", findings=[own]),
        Verdict("names-portable", "broken", "requested", findings=[follows] * 3),
    ]

    first, second = checking.messages(Evidence(doubled), verdicts)

    assert "w is doubled" in first
    assert second == (
        "names-portable is broken by train.py:build on gpu*2: 3 findings, which follow from "
        "variables-shared (pytest -vv shows them)"
    )


def test_a_rule_counts_its_root_causes_as_the_report_does(doubled: Placement) -> None:
    own = Finding("w", "VarHandleOp", "requested", "w is named after a tower", "rename it")
    follows = replace(own, message="v is named after a tower", follows="variables-shared")
    both = Verdict("names-portable", "broken", "requested", findings=[own, own, follows])

    (message,) = checking.messages(Evidence(doubled), [both])

    headline, *lines = message.splitlines()
    assert headline == (
        "names-portable is broken by train.py:build on gpu*2: 2 findings; 1 finding, which "
        "follows from variables-shared (pytest -vv shows them)"
    )
    assert any("w is named" in line for line in lines)
    assert not any("v is named" in line for line in lines)


def test_many_findings_are_shortened_unless_verbose(
    doubled: Placement,
) -> None:
    with pytest.raises(AssertionError) as brief:
        assert_variables_shared(doubled)
    with (
        running_test.run_as(RunningTest(all_findings=True)),
        pytest.raises(AssertionError) as everything,
    ):
        assert_variables_shared(doubled)

    assert str(brief.value).count("\n") <= 45
    assert all(f"tower_1/{name}" in str(everything.value) for name in "stuvwxyz")


def assertion_of(rule: str) -> Callable[..., None]:
    assertion: Callable[..., None] = getattr(assertions, f"assert_{rule.replace('-', '_')}")
    return assertion


def program_of(rule: str) -> Mapping[str, str]:
    """The parameters that stand for the program, with their types."""
    if RULES[rule].kind == "executed":
        return {
            "towers": "TargetLike", "single": "TargetLike", "batch": "Batch", "gpus": "int"
        }  # fmt: skip
    return {"evidence": "Evidence | Placement"}


@pytest.mark.parametrize("name", NAMES)
def test_an_assertion_passes_all_its_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[Any] = []
    for check in ("check_rule", "check_run"):
        monkeypatch.setattr(
            assertions, check, lambda *values, **keys: passed.extend((values, keys))
        )
    program = {each: f"the {each}" for each in program_of(name)}
    values = {field.name: f"the {field.name}" for field in fields(RULES[name])}

    assertion_of(name)(**program, **values)

    assert passed == [
        (program["evidence"], name) if len(program) == 1 else (name, *program.values()),
        values,
    ]
