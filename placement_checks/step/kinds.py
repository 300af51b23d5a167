"""The vocabulary of terms: their numbers, how they depend on rows, and their shapes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, NewType

Form = NewType("Form", int)
AtomId = NewType("AtomId", int)

# A tensor atom, or `ONE`, and scalar atoms with their powers.
Monomial = tuple[AtomId, tuple[tuple[AtomId, int], ...]]

ONE = AtomId(0)
NUMBER: Monomial = (ONE, ())  # the monomial of plain numbers


class Kind(Enum):
    """How an atom depends on the rows of a part."""

    CONSTANT = auto()  # not at all
    ROWS = auto()  # one entry for each row, on an axis, each computed from its own row
    SUM = auto()  # additive: on two parts together, it is the sum of its values on each
    MEAN = auto()  # a sum divided by the number of rows; only of monomials
    STATISTIC = auto()  # a statistic of a part's rows, accepted for all rows
    JOINT = auto()  # in another way
    UNKNOWN = auto()  # its op type is unknown


class Origin(NamedTuple):
    """The op that a term comes from: the number of the program, the op's name and its type."""

    program: int
    op: str
    type: str


class Cause(NamedTuple):
    """Why a term is neither rows nor a sum over rows.

    Attributes:
        op: the op type that made it so.
        text: the reason, as a predicate of the op.
        origin: the op.
        is_known: whether the op is understood; if not, the term may still be a sum over rows.
    """

    op: str
    text: str
    origin: Origin | None = None
    is_known: bool = True


class Status(NamedTuple):
    """The kind of a term with respect to a part.

    Attributes:
        kind: the kind.
        axis: the axis of the rows; None without such an axis.
        cause: the reason, if the kind is joint or unknown.
    """

    kind: Kind
    axis: int | None = None
    cause: Cause | None = None


CONSTANT = Status(Kind.CONSTANT)


@dataclass(frozen=True)
class RowExtent:
    """An extent that is a multiple of the number of rows of the finest part.

    Attributes:
        times: the multiple; None if it is unknown.
    """

    times: int | None = 1


ROWS = RowExtent()
Dim = int | RowExtent | None
Shape = tuple[Dim, ...] | None


def joined_status(one: Status, other: Status) -> Status:
    """The status of the sum of two tensors."""
    kinds = {one.kind, other.kind}
    if Kind.STATISTIC in kinds and kinds <= _WITH_STATISTICS:
        if Kind.ROWS in kinds:
            return Status(Kind.ROWS, one.axis if one.kind is Kind.ROWS else other.axis)
        return Status(Kind.STATISTIC)
    if kinds == {Kind.CONSTANT, Kind.SUM}:
        return Status(Kind.JOINT)  # the constant would be added once for each part
    if Kind.CONSTANT in kinds:
        return other if one.kind is Kind.CONSTANT else one
    if one.kind is other.kind and one.axis == other.axis:
        return one
    return Status(
        Kind.JOINT, one.axis if one.axis is not None else other.axis, one.cause or other.cause
    )


# Atoms that depend on a tensor's shape alone.
OF_SHAPES = frozenset({"Dim", "Rows", "RowsOf"})
_WITH_STATISTICS = frozenset({Kind.STATISTIC, Kind.MEAN, Kind.ROWS, Kind.CONSTANT})


def broadcast_extent(shape: Shape, axis: int, rank: int) -> Dim:
    """The extent of an operand at an axis of the result; 1 without such an axis, 0 if unknown."""
    if shape is None:
        return 0
    at = axis - (rank - len(shape))
    if at >= len(shape):  # the rank of the result is unknown
        return 0
    return 1 if at < 0 else shape[at]


def broadcast_dim(one: Dim, other: Dim) -> Dim:
    """The extent of two operands at one axis."""
    if one == 1 or isinstance(other, RowExtent):
        return other
    return one if one is not None or other == 1 else other


def has_shape(shape: Shape, whole: tuple[Dim, ...]) -> bool:
    """Whether a summand has the shape of the sum, so that it is not broadcast."""
    return (
        shape is not None
        and len(shape) == len(whole)
        and not any(one == 1 != other for one, other in zip(shape, whole, strict=True))
    )
