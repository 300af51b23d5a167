"""How op types act on rows: the kind of a result, given the kinds of the operands.

Each function is the rule of one or more lines of the table `step.op_types`. A joint result without
a cause gets the op itself as its cause.
"""

from __future__ import annotations

from placement_checks.step.kinds import (
    CONSTANT,
    Dim,
    Kind,
    RowExtent,
    Status,
    broadcast_extent,
    joined_status,
)
from placement_checks.step.terms import Assumption, Call, RowRule

_JOINT = Status(Kind.JOINT)
_SUM = Status(Kind.SUM)


def _kinds(call: Call) -> list[Kind]:
    return [status.kind for status in call.statuses]


def _rows(axis: int | None) -> Status:
    return Status(Kind.ROWS, axis)


def _joint(axis: int | None) -> Status:
    return Status(Kind.JOINT, axis)


def _axis_of(call: Call) -> int | None:
    """The axis of the first operand with rows."""
    return next((status.axis for status in call.statuses if status.axis is not None), None)


def elementwise(call: Call) -> Status:
    """One element from one element of each operand, with broadcasting."""
    found = call.statuses[0]
    for status in call.statuses[1:]:
        found = joined_status(found, status)
    if found.kind is Kind.CONSTANT:
        return CONSTANT
    if found.kind is not Kind.ROWS or found.axis is None:
        return Status(Kind.JOINT, found.axis, found.cause)
    rank = len(call.shape or ())
    for operand, status in zip(call.operands, call.statuses, strict=True):
        if status.kind is Kind.CONSTANT:
            extent = broadcast_extent(call.terms.shape(operand), found.axis, rank)
            if extent not in (1, None):  # another constant for each row
                return _joint(found.axis)
    return found


def linear_elementwise(call: Call) -> Status:
    """Element by element, and linear in the first operand: a sum over rows stays a sum."""
    first, *others = _kinds(call)
    if first is Kind.SUM and all(kind is Kind.CONSTANT for kind in others):
        return _SUM
    return elementwise(call)


def product(call: Call) -> Status:
    """A product: a sum over rows times a constant is a sum."""
    if set(_kinds(call)) == {Kind.SUM, Kind.CONSTANT}:
        return _SUM
    return elementwise(call)


def quotient(call: Call) -> Status:
    """A quotient: a sum over rows divided by a constant is a sum."""
    if _kinds(call) == [Kind.SUM, Kind.CONSTANT]:
        return _SUM
    return elementwise(call)


def on_axis_0(*which: int) -> RowRule:
    """Rows on axis 0 of some operands and of the result; no other operand may depend on rows."""

    def rule(call: Call) -> Status:
        depends = any(kind is not Kind.CONSTANT for kind in _kinds(call))
        for number, (kind, axis, cause) in enumerate(call.statuses):
            if number not in which:
                if kind is not Kind.CONSTANT:
                    has_rows = axis is None and call.statuses[which[0]].axis == 0
                    return Status(Kind.JOINT, 0 if has_rows else None, cause)
                continue
            shape = call.terms.shape(call.operands[number])
            is_per_row = (
                kind is Kind.CONSTANT
                and depends
                and broadcast_extent(shape, 0, len(shape or ())) != 1
            )
            if is_per_row or kind not in (Kind.ROWS, Kind.CONSTANT) or (axis or 0) != 0:
                return _joint(axis)
        return _rows(0) if depends else CONSTANT

    return rule


def last_axis(call: Call) -> Status:
    """Along the last axis, as softmax."""
    found = elementwise(call)
    is_last = found.axis is None or found.axis >= call.rank(0) - 1  # also if the rank is unknown
    return _joint(found.axis) if found.kind is Kind.ROWS and is_last else found


def inner_axes(count: int) -> RowRule:
    """Along some of the last axes of the first operand, such as matrices or images."""

    def rule(call: Call) -> Status:
        first, *others = call.statuses
        if any(status.kind is not Kind.CONSTANT for status in others):
            return _JOINT
        is_outer = first.axis is not None and first.axis < call.rank(0) - count
        if first.kind is Kind.CONSTANT or (first.kind is Kind.ROWS and is_outer):
            return first
        return Status(Kind.JOINT, first.axis if is_outer else None, first.cause)

    return rule


def mixing(call: Call) -> Status:
    """Every element of the result may depend on every row."""
    if all(kind is Kind.CONSTANT for kind in _kinds(call)):
        return CONSTANT
    return _joint(_axis_of(call))


def scattered(call: Call) -> Status:
    """A sum of rows with equal indices: each row is added once."""
    are_rows = all(status[:2] == (Kind.ROWS, 0) for status in call.statuses)
    return _SUM if are_rows else mixing(call)


def total(call: Call) -> Status:
    """A sum over axes. Attributes: the axes or None, and whether they stay with extent 1."""
    return _reduced(call, is_sum=True)


def reduction(call: Call) -> Status:
    """Another reduction over axes, such as a maximum; attributes as for `total`."""
    return _reduced(call, is_sum=False)


def _reduced(call: Call, *, is_sum: bool) -> Status:
    kind, axis, _ = call.statuses[0]
    axes, keeps = call.attrs
    if kind is Kind.CONSTANT or (kind is Kind.SUM and is_sum):
        return Status(kind)
    if axis is None or axes is None:
        return _JOINT
    if axis in axes:
        return _SUM if kind is Kind.ROWS and is_sum else _JOINT
    left = axis if keeps else axis - sum(each < axis for each in axes)
    return _rows(left) if kind is Kind.ROWS else _joint(left)


def matrix_product(call: Call) -> Status:
    """A product of (batches of) matrices. Attributes: which of the two are transposed."""
    transposed = call.attrs
    one, other = call.statuses
    kinds = {one.kind, other.kind}
    if kinds == {Kind.CONSTANT}:
        return CONSTANT
    if kinds == {Kind.SUM, Kind.CONSTANT}:
        return _SUM
    ranks = call.rank(0), call.rank(1)
    rank = len(call.shape) if call.shape is not None else max(ranks)
    # The axes that are summed over.
    inner = ranks[0] - 1 - transposed[0], ranks[1] - 2 + transposed[1]
    if one.kind is other.kind is Kind.ROWS:
        if (one.axis, other.axis) == inner:
            return _SUM  # a sum of products over the rows
        if one.axis == other.axis and ranks[0] == ranks[1] and (one.axis or 0) < ranks[0] - 2:
            return _rows(one.axis)  # a product of two matrices for each row
        return _JOINT
    for number, (status, constant) in enumerate(((one, other), (other, one))):
        if status.axis is None or status.axis == inner[number]:
            continue
        if constant.axis is not None:
            return _JOINT
        is_outer = status.axis < ranks[number] - 2
        shift = rank - ranks[number] if is_outer else 0
        at = status.axis + shift if is_outer else rank - 2 + number
        if constant.kind is not Kind.CONSTANT:  # such as weights that were moved by gradients
            return Status(Kind.JOINT, at, constant.cause)
        if is_outer:
            shape = call.terms.shape(call.operands[1 - number])
            if broadcast_extent(shape, at, rank) != 1:
                return _joint(at)  # another matrix for each row
        return Status(status.kind, at, status.cause)
    return _JOINT


def reshape(call: Call) -> Status:
    """Another shape with the same elements. Attributes: the shape, with the extent of the rows."""
    kind, axis, cause = call.statuses[0]
    if kind in (Kind.CONSTANT, Kind.SUM):
        return Status(kind)
    after = call.attrs[0]
    at = None if after is None else _row_axis(after)
    if axis is None or call.terms.shape(call.operands[0]) is None or at is None:
        return _JOINT
    return Status(kind, at, cause)


def _row_axis(shape: tuple[Dim, ...]) -> int | None:
    return next((i for i, dim in enumerate(shape) if isinstance(dim, RowExtent)), None)


def transpose(call: Call) -> Status:
    """Attributes: the order of the axes, or None."""
    kind, axis, cause = call.statuses[0]
    order = call.attrs[0]
    if kind in (Kind.CONSTANT, Kind.SUM):
        return Status(kind)
    if axis is None or order is None:
        return _JOINT
    return Status(kind, list(order).index(axis), cause)


def join(call: Call) -> Status:
    """A concatenation along another axis than the rows. Attributes: the axis."""
    found, axis = _alike(call), call.attrs[0]
    if found is not None and found.axis != axis:
        return found
    return _joint(axis if any(status.axis == axis for status in call.statuses) else None)


def stack(call: Call) -> Status:
    """Tensors along a new axis. Attributes: the axis."""
    found = _alike(call)
    if found is None or found.axis is None:
        return found or _JOINT
    return found._replace(axis=found.axis + (call.attrs[0] <= found.axis))


def _alike(call: Call) -> Status | None:
    """The status of several constants, of several sums, or of rows on the same axis."""
    kinds = set(_kinds(call))
    if kinds == {Kind.CONSTANT} or kinds == {Kind.SUM}:
        return Status(kinds.pop())
    axes = {status.axis for status in call.statuses if status.axis is not None}
    if kinds <= {Kind.ROWS, Kind.JOINT} and len(axes) == 1:
        return _rows(axes.pop()) if kinds == {Kind.ROWS} else _joint(axes.pop())
    return None


def placed(call: Call) -> Status:
    """A tensor among zeros along an axis. Attributes: axis, begin, extent of the result."""
    status = call.statuses[0]
    return _JOINT if status.axis == call.attrs[0] else status


def sliced(call: Call) -> Status:
    """A slice, or copies, along an axis: of columns they are rows; of rows they are not.

    Attributes: the axis first.
    """
    status = call.statuses[0]
    if status.kind in (Kind.ROWS, Kind.JOINT) and status.axis in (None, call.attrs[0]):
        return _JOINT
    if any(kind is not Kind.CONSTANT for kind in _kinds(call)[1:]):
        return _JOINT
    return status


def changed_along(call: Call) -> Status:
    """As `sliced`, for ops that are not linear."""
    found = sliced(call)
    if found.kind in (Kind.CONSTANT, Kind.ROWS):
        return found
    return Status(Kind.JOINT, found.axis, found.cause)


def reversed_sequences(call: Call) -> Status:
    """Sequences of the given lengths, one for each row. Attributes: those of the op."""
    attributes = dict(call.attrs)
    found = on_axis_0(0, 1)(call)
    is_by_row = attributes.get("batch_dim", "0") == "0"
    return found if is_by_row or found.kind is Kind.CONSTANT else _JOINT


def lookup(call: Call) -> Status:
    """Rows of a table by indices. Attributes: the axis, and the batch dimensions."""
    table, indices = call.statuses[:2]
    axis, batch = call.attrs
    if table.kind is indices.kind is Kind.CONSTANT:
        return CONSTANT
    if table.kind is Kind.CONSTANT and indices.axis is not None:
        if indices.kind in (Kind.ROWS, Kind.JOINT) and not batch:
            return Status(indices.kind, indices.axis + axis, indices.cause)
        return _JOINT
    if table.kind is indices.kind is Kind.ROWS:
        if table.axis == indices.axis and (table.axis or 0) < batch:
            return table
        return _JOINT
    is_other_axis = table.axis is not None and table.axis != axis
    if table.kind is Kind.ROWS and indices.kind is Kind.CONSTANT and not batch and is_other_axis:
        shift = call.rank(1) - 1 if (table.axis or 0) > axis else 0
        return _rows((table.axis or 0) + shift)
    return _JOINT


def masked(call: Call) -> Status:
    """The rows for which a mask is true. Attributes: the axis of the rows."""
    table, mask = call.statuses
    if table.kind is mask.kind is Kind.CONSTANT:
        return CONSTANT
    if table.kind is mask.kind is Kind.ROWS and (table.axis, mask.axis) == (call.attrs[0], 0):
        return table
    return _JOINT


def one_hot(call: Call) -> Status:
    """A vector for each index. Attributes: the axis of the vectors."""
    kind, axis, cause = call.statuses[0]
    if any(each is not Kind.CONSTANT for each in _kinds(call)[1:]):
        return _JOINT
    if kind is Kind.ROWS and axis is not None:
        at = call.attrs[0] if call.attrs and isinstance(call.attrs[0], int) else -1
        return _rows(axis + (0 <= at <= axis))
    return CONSTANT if kind is Kind.CONSTANT else Status(Kind.JOINT, axis, cause)


def fill(call: Call) -> Status:
    """Equal elements; the shape, the first operand, may contain the number of rows."""
    at = _row_axis(call.shape or ())
    if at is not None and call.statuses[1].kind is Kind.CONSTANT:
        return _rows(at)
    return CONSTANT if set(_kinds(call)) == {Kind.CONSTANT} else _JOINT


def batch_norm(call: Call) -> Status:
    """Fused batch normalization. Attributes: whether in training, and the number of the output."""
    in_training, output = call.attrs[:2]
    first, *others = call.statuses
    others_constant = all(status.kind is Kind.CONSTANT for status in others)
    if others_constant and first.kind is Kind.CONSTANT:
        return CONSTANT
    if others_constant and first.kind is Kind.ROWS and (first.axis or 0) == 0:
        if not in_training:
            return first if output == 0 else CONSTANT
        if call.terms.own_statistics:
            call.terms.assumed.add(Assumption.OWN_STATISTICS)
            return first if output == 0 else Status(Kind.STATISTIC)
    return _joint(0 if output == 0 else None)


def einsum(call: Call) -> Status:
    """Products along named axes. Attributes: the equation.

    A letter of rows that stays is an axis of rows; one that goes is a sum over the rows.
    """
    inputs, _, output = call.attrs[0].partition("->")
    letters = inputs.split(",")
    kinds = _kinds(call)
    if set(kinds) == {Kind.CONSTANT}:
        return CONSTANT
    dependent = [kind for kind in kinds if kind is not Kind.CONSTANT]
    if dependent == [Kind.SUM]:
        return _SUM
    if any(kind is not Kind.ROWS for kind in dependent) or "." in inputs:
        return _JOINT
    of_rows = {
        names[status.axis]
        for names, status in zip(letters, call.statuses, strict=True)
        if status.kind is Kind.ROWS and status.axis is not None
    }
    letter = of_rows.pop()
    if of_rows or any(
        names.count(letter) != (status.kind is Kind.ROWS)
        for names, status in zip(letters, call.statuses, strict=True)
    ):
        return _JOINT
    return _rows(output.index(letter)) if letter in output else _SUM


def gradient(call: Call) -> Status:
    """The gradient of a sum of terms, the first operand, with respect to the second operand.

    Attributes: ``("values",)`` for the gradients of looked-up rows, without their indices.
    """
    loss, source = call.statuses
    if source.kind is Kind.CONSTANT and loss.kind is Kind.CONSTANT:
        return CONSTANT
    is_sum = loss.kind in (Kind.SUM, Kind.ROWS)
    if source.kind is Kind.CONSTANT:
        if call.attrs[:1] == ("values",):
            return _rows(0) if is_sum else Status(Kind.JOINT, None, loss.cause)
        return _SUM if is_sum else Status(Kind.JOINT, None, loss.cause)
    if source.kind is Kind.ROWS and is_sum:
        return _rows(source.axis)
    return Status(Kind.JOINT, source.axis, loss.cause or source.cause)


def list_of_tensors(call: Call) -> Status:
    """A list, or an element of one, with tensors added; the axis of the rows is an element's."""
    found: Status | None = None
    for operand, status in zip(call.operands, call.statuses, strict=True):
        is_index = call.terms.shape(operand) == ()
        if is_index and status.kind is not Kind.CONSTANT:
            return _JOINT
        if not is_index:
            found = status if found is None else joined_status(found, status)
    return found or CONSTANT


def list_from_tensor(call: Call) -> Status:
    """A list of the slices of a tensor along axis 0."""
    status = call.statuses[0]
    if status.axis is None:
        return status
    return _JOINT if status.axis == 0 else status._replace(axis=status.axis - 1)


def stacked_list(call: Call) -> Status:
    """The elements of a list along a new axis 0."""
    status = call.statuses[0]
    return status if status.axis is None else status._replace(axis=status.axis + 1)
