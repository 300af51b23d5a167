"""Findings on sums over replicas in a branch, where nothing gives them a key.

In a function a key is a placeholder, which a call of the function feeds; a call in a branch of
another function does not (cross_device_utils.py, ``_next_instance_key``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placement_checks.analysis.replicas import replicas
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.keras_parts import FIT
from placement_checks.core.op_types import COLLECTIVE_GATHER, COLLECTIVE_REDUCE
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import is_among
from placement_checks.rules.known_keras import KERAS, known, some

_KEYED = frozenset({COLLECTIVE_REDUCE, COLLECTIVE_GATHER})
_ENDS = "it ends as it begins: InvalidArgumentError, You must feed a value for placeholder tensor"


def sums_without_key(
    placement: Placement, strategy: Strategy, allow: Sequence[str]
) -> Iterator[Finding]:
    """That sums over replicas cannot run, in the first call of the step or in any.

    Args:
        placement: of the step.
        strategy: what it adds up for.
        allow: names, or patterns of them, of which nothing is said.
    """
    made = [
        name
        for name in strategy.made_in_step
        if not strategy.is_later_copy(name) and not is_among(name, allow)
    ]
    if made and any(analyse(placement).flow.having(_KEYED.__contains__)):
        yield _in_first_call(placement, strategy, made)
        return
    sums = [name for name in replicas(placement).sums_without_key if not is_among(name, allow)]
    if sums:
        yield _in_loop(placement, strategy, sums)


def _in_first_call(placement: Placement, strategy: Strategy, made: Sequence[str]) -> Finding:
    """TensorFlow makes the variables in one branch, and takes the step without in the other."""
    return known(
        placement,
        made,
        "the first step makes variables, and TensorFlow takes it in a branch, where it gives the "
        f"sums over replicas no key: {some(made)}",
        _ENDS,
        "make them before, under the scope: layers with model.build(...), slots with "
        f"optimizer.build(model.trainable_variables){_other_sums(strategy)}",
        expected="variables that are there before the first step",
        found="variables that the first step makes",
        library="TensorFlow",
    )


def _in_loop(placement: Placement, strategy: Strategy, sums: Sequence[str]) -> Finding:
    in_fit = FIT in placement.details.parts_of_keras(sums[0])
    takes = f"fit of {KERAS} takes" if in_fit else "the program takes"
    other = ", or steps_per_execution=1" if in_fit else ""
    return known(
        placement,
        sums,
        f"{takes} several steps in a call, and TensorFlow gives the sums over replicas in them no "
        f"key: {some(sums)}",
        _ENDS,
        f"{_BY_HIERARCHY.format(strategy.name)}{other}",
        expected="sums that run",
        found="sums whose key is a placeholder that nothing feeds",
        library=KERAS if in_fit else "TensorFlow",
    )


_BY_HIERARCHY = "tf.distribute.{}(cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())"


def _other_sums(strategy: Strategy) -> str:
    """Sums without keys, as an alternative, where a strategy lets its user choose them."""
    return "" if strategy.is_of_workers else f", or {_BY_HIERARCHY.format(strategy.name)}"
