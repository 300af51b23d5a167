"""The values that the variables of a step have before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from placement_checks.core.program import InitialState
from placement_checks.loading.tf_internals.traced_functions import lifted
from placement_checks.loading.traced.variables import NotedVariable

# The scopes of a step name devices that a session of its own need not have.
_ON_ANY_DEVICE = tf.compat.v1.ConfigProto(allow_soft_placement=True)


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
    values = {**_of_functions(variables), **_of_variables(variables)}
    for copy, of in mirrors.items():
        if copy not in values and of in values:
            values[copy] = values[of]
    return InitialState(values=values, mirrors=mirrors, unsynchronised=unsynchronised)


def _of_variables(variables: Mapping[str, NotedVariable]) -> dict[str, Any]:
    """The values of those that have one."""
    # To read one without a value may yield an empty array, and no error.
    return {
        name: np.array(noted.variable.read_value())
        for name, noted in variables.items()
        if noted.variable.is_initialized()
    }


def _of_functions(variables: Mapping[str, NotedVariable]) -> dict[str, Any]:
    """What the step gives those that it makes, where that hangs on nothing which it is given."""
    with tf.Graph().as_default() as graph:
        first = {
            name: value
            for name, noted in variables.items()
            if noted.first_value is not None
            and (value := lifted(noted.first_value, graph)) is not None
        }
        if not first:
            return {}
        with tf.compat.v1.Session(config=_ON_ANY_DEVICE) as session:
            return dict(session.run(first))
