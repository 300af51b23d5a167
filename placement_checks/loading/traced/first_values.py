"""The values that the variables of a step have before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from placement_checks.core.program import InitialState
from placement_checks.loading.traced.variables import NotedVariable


def values_before(variables: Mapping[str, NotedVariable]) -> InitialState:
    """The first values of the variables of a step, and which are copies.

    Args:
        variables: by name.
    """
    first = {
        id(noted.of): name
        for name, noted in variables.items()
        if noted.of is not None and not noted.replica
    }
    mirrors = {
        name: first[id(noted.of)]
        for name, noted in variables.items()
        if noted.replica and id(noted.of) in first
    }
    unsynchronised = frozenset(
        name for name, noted in variables.items() if noted.is_brought_together
    )
    values = {
        name: value for name, noted in variables.items() if (value := _value(noted)) is not None
    }
    for copy, of in mirrors.items():
        if copy not in values and of in values:
            values[copy] = values[of]
    return InitialState(values=values, mirrors=mirrors, unsynchronised=unsynchronised)


def _value(noted: NotedVariable) -> Any:
    """The value of a variable before the step; None where only the step can tell."""
    # To read one without a value may yield an empty array, and no error.
    if noted.variable.is_initialized():
        return np.array(noted.variable.read_value())
    return noted.first_value
