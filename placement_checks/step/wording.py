"""Ops of terms in the words of messages. No other module names an op of a term."""

from __future__ import annotations

from collections.abc import Mapping

from placement_checks.step.kinds import Cause, Origin

# Ops that TensorFlow does not have. A test checks that none is missing.
WORDS: Mapping[str, str] = {
    "AlongUnknownAxis": "an op along an unknown axis",
    "Backward": "the gradient",
    "BiasAddOfChannels": "a bias of channels",
    "Chosen": "a choice of values",
    "Conditional": "a choice of values",
    "CustomGradient": "a custom gradient",
    "Dim": "a number of rows or columns",
    "ExpectedCount": "the expected count of a sampled class",
    "Feed": "an input",
    "FloatToInt": "a conversion to integers",
    "Grad": "the gradient",
    "Leaf": "an input",
    "LoopVariable": "a loop variable",
    "Masked": "a selection of rows by a mask",
    "MeanOf": "a mean over rows",
    "One": "a number",
    "PartOf": "a part of a tensor",
    "Place": "a tensor that is joined with others",
    "Random": "a random tensor",
    "Rows": "the number of rows",
    "RowsOf": "the number of rows",
    "Slices": "a sum of rows with equal indices",
    "SmallPart": "a small part of the old value",
    "StridedSliceOf": "a slice with bounds that are no known fractions of an axis",
    "Total": "a sum of several terms",
    "Unknown": "a value that cannot be followed",
    "Var": "a variable",
}
_NAMED = {"Feed": "the input", "Leaf": "the input", "Var": "the variable"}


def in_words(op: str, origin: Origin | None, noun: str = "an op of type") -> str:
    """An op of a term as the subject of a sentence.

    Args:
        op: the op.
        origin: the op of the graph that it comes from; its type is named if it is known.
        noun: the words before a type of TensorFlow.
    """
    if op in _NAMED and origin:
        return f"{_NAMED[op]} {origin.op}"
    return WORDS.get(op) or f"{noun} {origin.type if origin and origin.type else op}"


def cause_in_words(cause: Cause) -> str:
    """A cause as a sentence."""
    return f"{in_words(cause.op, cause.origin)} {cause.text}" if cause.op else cause.text
