# ruff: noqa: ARG005 - builders here build nothing, so they use no argument
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from support.builders import script

from placement_checks import Program, Step
from placement_checks.core.errors import InputError
from placement_checks.core.program import CapturedProgram, ProgramGraph
from placement_checks.core.target import Arguments, Target


class Builder:
    def __call__(self, num_gpus: int = 2) -> None:
        pass


@pytest.mark.parametrize(
    ("returned", "step"),
    [
        (None, Step()),
        (Step(loss=1), Step(loss=1)),
        ({"train_op": "t", "loss": "l"}, Step("t", "l")),
        ({"loss": "l", "global_step": 3, 7: 8}, Step(loss="l")),
        ({}, Step()),
    ],
)
def test_step_of(returned: Mapping[str | int, str | int] | Step | None, step: Step) -> None:
    assert Step.from_result(returned, "p") == step


def test_an_op_is_its_own_train_op() -> None:
    train_op = SimpleNamespace(name="train", graph=object())
    assert Step.from_result(train_op, "p") == Step(train_op=train_op)


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (3, "3"),
        ([], "[]"),
        ("x" * 99, f"'{'x' * 59}… (str)"),
        ((None, None), "(None, None)"),
        (iter([]), "<list_iterator object>"),  # without its address, which changes
    ],
)
def test_other_return_values_are_refused(returned: Any, shown: str) -> None:
    with pytest.raises(InputError) as caught:
        Step.from_result(returned, "train.py:build")
    assert str(caught.value) == (
        f"train.py:build: the builder returned {shown}, which does not describe a step; "
        "return nothing, the train op, or a mapping such as {'train_op': …, 'loss': …}"
    )


@pytest.mark.parametrize("policy", [3, ["no-fallback"], {"no-fallback": ["Print"]}])
def test_step_with_a_malformed_policy(
    policy: int | Sequence[str] | Mapping[str, Sequence[str]],
) -> None:
    with pytest.raises(InputError) as caught:
        Step.from_result({"policy": policy}, "train.py:build")
    assert str(caught.value) == (
        f"train.py:build: its policy is {policy!r}; "
        "write it like {'variables-on-host': {'device': '/gpu:0'}}"
    )


@pytest.mark.parametrize(
    ("config", "soft"),
    [
        (None, False),
        ({}, False),
        ({"allow_soft_placement": True}, True),
        (SimpleNamespace(allow_soft_placement=True), True),
        (SimpleNamespace(allow_soft_placement=False), False),
        (SimpleNamespace(), False),
    ],
)
def test_soft_placement_follows_the_session_configuration(config: Any, soft: bool) -> None:
    assert Step(config=config).soft is soft


def build_towers(num_gpus: int) -> None:
    pass


def test_the_name_and_path_of_a_function() -> None:
    program = Program.from_function(build_towers)
    assert program == Program("build_towers", build_towers, Path(__file__).resolve().parent)


@pytest.mark.parametrize(
    ("build", "name"), [(Builder(), "Builder"), (partial(build_towers, 2), "partial")]
)
def test_a_callable_has_no_directory(build: Callable[..., Any] | Builder, name: str) -> None:
    program = Program.from_function(build)
    assert (program.name, program.folder) == (name, None)


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (lambda: None, {}),
        (lambda num_gpus: None, {"num_gpus": 4}),
        (lambda *, num_gpus=2: None, {"num_gpus": 4}),
        (lambda **options: None, {"num_gpus": 4}),
        (lambda *num_gpus: None, {}),
        (lambda batch=32: None, {}),
        (lambda num_gpus=2, /: None, {}),
        (Builder(), {"num_gpus": 4}),
        (partial(build_towers, 2), {}),
        (partial(build_towers, num_gpus=2), {"num_gpus": 4}),
        (dict, {}),
    ],
)
def test_num_gpus_is_passed_if_the_builder_takes_it(
    build: Callable[..., Any] | type[Any] | Builder, arguments: Mapping[str, int]
) -> None:
    program = Program("p", build)
    assert program.takes_num_gpus == bool(arguments)
    assert program.arguments(4) == arguments


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda images, num_gpus: None, "'images'"),
        (lambda images, *, labels, batch=1: None, "'images' and 'labels'"),
        (lambda num_gpus, /: None, "'num_gpus'"),
    ],
)
def test_a_builder_with_more_parameters_is_refused(build: Callable[..., Any], wanted: str) -> None:
    with pytest.raises(InputError) as caught:
        Program("train.py:build", build).arguments(2)
    assert str(caught.value) == (
        f"train.py:build: the builder requires {wanted}, which the target lacks; "
        "give it a default, or wrap it in a function that takes at most num_gpus"
    )


def given_by(arguments: Mapping[str, str]) -> Target:
    """A target with these arguments."""
    return Target("function", "t.py:f", "t.py", "f", Arguments(tuple(arguments.items())))


@pytest.mark.parametrize(
    ("build", "given", "arguments"),
    [
        (lambda depth: None, {"depth": "50"}, {"depth": 50}),
        (lambda depth, num_gpus=2: None, {"depth": "50"}, {"depth": 50, "num_gpus": 4}),
        (lambda n, num_gpus=2: None, {"n": "{gpus}"}, {"n": 4}),
        (lambda num_gpus: None, {"num_gpus": "{gpus}"}, {"num_gpus": 4}),
        (lambda num_gpus: None, {"num_gpus": "3"}, {"num_gpus": 3}),
        (lambda **options: None, {"n": "{gpus}"}, {"n": 4}),
    ],
)
def test_num_gpus_is_passed_unless_the_target_fixes_it(
    build: Callable[..., Any], given: Mapping[str, str], arguments: Mapping[str, Any]
) -> None:
    program = Program("p", build, target=given_by(given))
    assert program.arguments(4) == arguments
    assert program.takes_num_gpus == (4 in arguments.values())


def test_given_arguments_are_part_of_a_programs_identity() -> None:
    program, other, alike = (
        Program("p", build_towers, target=given_by({"deep": text})) for text in ("1", "True", "1")
    )
    assert program.is_same(alike)
    assert not program.is_same(other)


def test_a_builder_with_required_arguments_gets_a_fix() -> None:
    def build(depth: int, rate: float, num_gpus: int) -> None:
        pass

    target = given_by({"rate": "0.1"})
    with pytest.raises(InputError) as caught:
        Program("train.py:build(rate=0.1)", build, function=build, target=target).arguments(2)
    assert str(caught.value) == (
        "train.py:build(rate=0.1): the builder requires 'depth', which the target lacks; "
        "add (depth=…) to the function's name, or give it a default"
    )


@pytest.mark.parametrize(
    ("build", "name", "fix"),
    [
        (
            lambda depth, num_gpus: None,
            "deph",
            "did you mean 'depth'? it takes depth and num_gpus",
        ),
        (lambda depth, /, rate: None, "depth", "it takes rate"),
        (lambda *depth: None, "depth", "it takes no arguments by name"),
    ],
)
def test_an_unknown_argument(build: Callable[..., Any], name: str, fix: str) -> None:
    program = Program("train.py:build", build, target=given_by({name: "1"}))
    with pytest.raises(InputError) as caught:
        program.check_given()
    assert str(caught.value) == f"train.py:build: the function takes no '{name}'; {fix}"


@pytest.mark.parametrize("build", [lambda a=1: None, lambda **options: None, partial(dict, a=2)])
def test_a_known_argument(build: Callable[..., Any]) -> None:
    Program("p", build, target=given_by({"a": "1"})).check_given()


def test_messages_leave_out_command_line_arguments() -> None:
    train = script("train.py", ("--depth=50", "--model_dir=/tmp/model"))
    captured = CapturedProgram(name=train.name, program=train, gpus=2, source=Mock(ProgramGraph))

    assert captured.name == "train.py --depth=50 --model_dir=/tmp/model"
    assert captured.short_name == "train.py"
    function = replace(captured, name="train.py:build", program=Program("train.py:build", print))
    assert function.short_name == "train.py:build"
