"""Messages name no op that only terms have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorflow.python.framework import op_def_registry

from placement_checks.step import wording
from placement_checks.step.kinds import Cause, Origin
from placement_checks.step.op_types import OP_TYPES
from placement_checks.step.wording import WORDS, cause_in_words, in_words

STEP = Path(wording.__file__).parent
# Functions that make a term, or the reason of one, from the name of an op.
MAKERS = {"atom", "build", "_atom", "_new_atom", "Cause"}


def made_ops() -> Iterator[str]:
    """The ops of all terms, as far as the code names them."""
    yield from OP_TYPES
    for path in STEP.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if isinstance(first, ast.Starred) and isinstance(first.value, ast.Tuple):
                first = first.value.elts[0]
            if name in MAKERS and isinstance(first, ast.Constant) and first.value:
                yield str(first.value)


def is_of_tensorflow(op: str) -> bool:
    return any(op_def_registry.get(f"{prefix}{op}") for prefix in ("", "Resource"))


@pytest.mark.smoke
def test_each_op_that_tensorflow_lacks_has_words() -> None:
    ops = set(made_ops())

    assert {"Leaf", "Total", "StridedSliceOf"} <= ops
    assert {op for op in ops if not is_of_tensorflow(op)} == set(WORDS)


def test_an_op_is_named_by_its_type_in_the_graph() -> None:
    """Terms of many op types are products."""
    origin = Origin(0, "tower_0/L2Loss", "L2Loss")

    assert in_words("Mul", origin) == "an op of type L2Loss"
    assert in_words("Mul", None) == "an op of type Mul"
    assert in_words("Mul", origin, "a result of") == "a result of L2Loss"
    assert in_words("Slices", origin) == WORDS["Slices"]
    assert in_words("Leaf", Origin(0, "x", "Placeholder")) == "the input x"
    assert cause_in_words(Cause("Mul", "combines rows", origin)) == (
        "an op of type L2Loss combines rows"
    )
