"""Messages for errors of TensorFlow about the scope of a strategy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from placement_checks.capture.eager.errors import explain_scope_error
from placement_checks.capture.eager.variables import RecordedVariable
from placement_checks.core.errors import InputError


class Mirrored:
    def __init__(self, replicas: int = 2) -> None:
        self.num_replicas_in_sync = replicas


def made(name: str, *, trainable: bool = True, strategy: object = None) -> RecordedVariable:
    variable = SimpleNamespace(
        name=f"{name}:0",
        trainable=trainable,
        dtype=SimpleNamespace(is_floating=True),
        _distribute_strategy=strategy,
    )
    return RecordedVariable(variable, "/device:CPU:0", [])


def explained(error: Exception, *variables: RecordedVariable, replicas: int = 2) -> InputError:
    """The explained error of a program with a strategy and some variables."""
    notes: Any = SimpleNamespace(
        strategies=[Mirrored(replicas)], variables=SimpleNamespace(all=lambda: iter(variables))
    )
    failed = InputError("train.py", "it raised it", "look there", details=f"  line 1\n{error}")
    failed.__context__ = error
    return explain_scope_error(failed, notes, None)


def in_a_library(raises: Callable[[], object]) -> AssertionError:
    """An assertion error without a message, raised in the file of a library."""
    with pytest.raises(AssertionError) as raised:
        raises()
    return raised.value


@pytest.mark.parametrize(
    "message",
    [
        "Variable (<…>) was not created in the distribution strategy scope of (<…>)",
        "`colocate_vars_with` must only be passed a variable created in this "
        "tf.distribute.Strategy.scope(), not: <…>",
        'Need to be inside "with strategy.scope()" for <…>',
        "Mixing different tf.distribute.Strategy objects: <…> is not <…>",
    ],
)
def test_variables_outside_the_scope_are_named(message: str) -> None:
    error = explained(ValueError(message), made("w"), made("b"), made("n", strategy=object()))

    assert error.message == (
        "it created w and b outside of the scope of its Mirrored, and TensorFlow refuses to train "
        "with them (ValueError)"
    )
    assert (
        error.fix
        == "create the model, its optimizer and its metrics under `with strategy.scope():`"
    )
    assert error.details == "  line 1"


def test_some_of_many_variables_are_named() -> None:
    error = explained(RuntimeError("with strategy.scope()"), *map(made, "abcde"))

    assert "it created a, b, c and 2 more outside" in error.message


def test_trained_variables_are_named_first() -> None:
    error = explained(
        RuntimeError("with strategy.scope()"), made("step", trainable=False), made("w")
    )

    assert "it created w outside" in error.message
    alone = explained(RuntimeError("with strategy.scope()"), made("step", trainable=False))
    assert "it created step outside of the scope of its Mirrored, and TensorFlow refuses to train "
    assert alone.message.endswith("with it (RuntimeError)")


@pytest.mark.parametrize(
    ("error", "variables", "replicas"),
    [
        (ValueError("shapes do not match"), [made("w")], 2),
        (RuntimeError("with strategy.scope()"), [], 2),
        (RuntimeError("with strategy.scope()"), [made("w", strategy=object())], 2),
        (RuntimeError("with strategy.scope()"), [made("w")], 1),
        (AssertionError("w is not small"), [made("w")], 2),
    ],
)
def test_other_errors_are_unchanged(
    error: Exception, variables: list[RecordedVariable], replicas: int
) -> None:
    assert explained(error, *variables, replicas=replicas).message == "it raised it"


def test_a_user_assertion_is_unchanged() -> None:
    def fails() -> None:
        raise AssertionError

    assert explained(in_a_library(fails), made("w")).message == "it raised it"


def test_an_empty_assertion_of_a_library_is_about_the_scope() -> None:
    source = compile("raise AssertionError", pytest.__file__, "exec")

    assert (
        "it created w outside" in explained(in_a_library(lambda: exec(source)), made("w")).message
    )


@pytest.mark.parametrize(
    ("file", "end", "known"),
    [(pytest.__file__, "", True), (__file__, "", False), (pytest.__file__, " too few", False)],
)
def test_an_assertion_in_a_traced_function(file: str, end: str, known: bool) -> None:
    frames = (
        f'    File "train.py", line 9, in step  *\n    File "{file}", line 134, in update  **\n'
    )
    traced = AssertionError(f"in user code:\n\n{frames}\n    AssertionError:{end}")

    assert ("it created w outside" in explained(traced, made("w")).message) is known
