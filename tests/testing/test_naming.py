from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tensorflow as tf
from support.graphs import op, placement

from placement_checks.core.evidence import Evidence
from placement_checks.testing.program_names import program_name
from placement_checks.verification.placing import requested


def build(_width: int = 1) -> None:
    tf.constant(1.0)


class Builder:
    def __call__(self) -> None:
        build()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (build, "build"),
        (partial(build, 2), "build"),
        (partial(partial(build), _width=3), "build"),
        (Builder(), "Builder"),
    ],
)
def test_a_function_is_named_with_its_module(given: Callable[..., Any], name: str) -> None:
    assert program_name(requested(given)) == f"{__name__}:{name}"


def test_names_with_a_file_are_unchanged() -> None:
    assert program_name(requested(f"{__file__}:build")) == f"{__file__}:build"
    assert program_name(Evidence(placement(op("w", "VarHandleOp"), program="a"))) == "a"
    assert program_name(requested(tf.Graph())) == "the graph"
