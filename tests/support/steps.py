"""Small training programs without TensorFlow, which NumPy can run.

A `Program` records the ops that TensorFlow would build for the same code: op types, inputs,
attributes, static shapes and constants. So it has a placement, and `Program.run` computes the
values of its variables after one step::

    program = Program()
    x, y = program.placeholder("x", (None, 3)), program.placeholder("y", (None,))
    w = program.variable("w", (3,))
    loss = mean(square(total(x * w.read(), 1) - y))
    program.train(w.descend(0.1, program.gradient(loss, w)))

Gradients are central differences of the loss. One op stands for all backward ops of a gradient,
since the terms of a step do not read backward ops.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placement_checks.core.devices import Device
from placement_checks.core.placement import (
    TRAINABLE,
    Details,
    GradientCall,
    Op,
    Placement,
    StepOps,
    Tensor,
    producer_of,
)
from placement_checks.core.variables import Variable, Variables
from placement_checks.step.comparison import StepEquality, compare_steps

Array = npt.NDArray[Any]
# The rows of one placeholder in the two runs that show which extents are static.
_SAMPLE_ROWS = (24, 48)
_SAMPLE_VALUE = 0.5
_STEP_OF_DIFFERENCES = 1e-5
_GRADIENT = "AddN"  # TensorFlow adds up the gradients of all reads of a variable
_WITHOUT_VALUE = frozenset(
    {"VarHandleOp", "NoOp", "IteratorV2", "Stage", "FIFOQueueV2", "TextLineReaderV2"}
)
_OTHER_GRADIENT = "_gradient_op_type"
_WITHOUT_GRADIENT = frozenset(
    {"StopGradient", "OneHot", "Greater", "Less", "Shape", "Size", "OnesLike", "ZerosLike"}
)


class StepOp(NamedTuple):
    """One op.

    Attributes:
        type: TensorFlow's op type.
        inputs: as in a GraphDef.
        attributes: the attributes that define what it computes.
        value: the value of a constant.
        device: the requested device.
    """

    type: str
    inputs: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = {}
    value: Array | None = None
    device: str = "/cpu:0"


class Taken(NamedTuple):
    """A gradient.

    Attributes:
        loss: the loss.
        variable: the variable, or a read of it.
        weight: the weight of the loss, or ``""``.
        lookup: the lookup of rows, for the gradients of these rows alone, or ``""``.
    """

    loss: str
    variable: str
    weight: str = ""
    lookup: str = ""


def _tensor_name(source: str) -> str:
    """A tensor's name with the number of the output, also for the first output."""
    return source if ":" in source else f"{source}:0"


# --- what each op type computes ---


def _axes(x: Array, axes: Array) -> tuple[int, ...]:
    return tuple(int(axis) % x.ndim for axis in np.atleast_1d(axes)) if x.ndim else ()


def _mean(x: Array, axis: tuple[int, ...], *, keepdims: bool) -> Array:
    """A mean; for integers, without the remainder."""
    made = np.asarray(x.mean(axis, keepdims=keepdims))
    return made if x.dtype.kind == "f" else np.trunc(made).astype(x.dtype)


def _reduction(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def run(attributes: Mapping[str, Any], x: Array, axes: Array) -> Any:
        return reduce(x, axis=_axes(x, axes), keepdims=attributes.get("keep_dims", False))

    return run


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _attributes, *operands: function(*operands)


def _matrix_product(attributes: Mapping[str, Any], one: Array, other: Array) -> Array:
    one = one.swapaxes(-1, -2) if attributes.get("transpose_a") else one
    other = other.swapaxes(-1, -2) if attributes.get("transpose_b") else other
    return np.asarray(np.matmul(one, other))


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _cross_entropy(logits: Array, labels: Array) -> list[Array]:
    softmax = _softmax(logits)
    return [-(labels * np.log(softmax)).sum(-1), softmax - labels]


def _strided_slice(
    attributes: Mapping[str, Any], x: Array, begin: Array, end: Array, stride: Array
) -> Array:
    index: list[Any] = []
    for i, (low, high, step) in enumerate(zip(begin, end, stride, strict=True)):
        bit = 1 << i
        if attributes.get("new_axis_mask", 0) & bit:
            index.append(None)
            continue
        if attributes.get("ellipsis_mask", 0) & bit:
            index.append(...)
            continue
        if attributes.get("shrink_axis_mask", 0) & bit:
            index.append(int(low))
            continue
        first = None if attributes.get("begin_mask", 0) & bit else int(low)
        last = None if attributes.get("end_mask", 0) & bit else int(high)
        index.append(slice(first, last, int(step)))
    return np.asarray(x[tuple(index)])


def _slice(_: Mapping[str, Any], x: Array, begin: Array, size: Array) -> Array:
    bounds = zip(begin, size, x.shape, strict=True)
    return np.asarray(x[tuple(slice(b, n if s == -1 else b + s) for b, s, n in bounds)])


def _split(attributes: Mapping[str, Any], axis: Array, x: Array) -> list[Array]:
    return list(np.split(x, attributes["num_split"], int(axis)))  # equal parts only


def _split_by_sizes(_: Mapping[str, Any], x: Array, sizes: Array, axis: Array) -> list[Array]:
    sizes = np.where(sizes == -1, x.shape[int(axis)] - sizes[sizes != -1].sum(), sizes)
    if sum(sizes) != x.shape[int(axis)]:
        raise ValueError(f"sizes {sizes} of {x.shape}")
    return list(np.split(x, np.cumsum(sizes)[:-1], int(axis)))


def _unpack(attributes: Mapping[str, Any], x: Array) -> list[Array]:
    return list(np.moveaxis(x, attributes["axis"], 0))


def _one_hot(
    attributes: Mapping[str, Any], x: Array, depth: Array, on: Array, off: Array
) -> Array:
    made = np.where(x[..., None] == np.arange(int(depth)), on, off)
    return np.moveaxis(made, -1, attributes.get("axis", -1))


def _gather(attributes: Mapping[str, Any], x: Array, indices: Array, axis: Array) -> Array:
    if attributes.get("batch_dims"):  # of two matrices
        return np.take_along_axis(x, indices, int(axis))
    return np.take(x, indices, int(axis))


def _select(condition: Array, yes: Array, no: Array) -> Array:
    """A choice of elements, or of rows."""
    is_of_rows = condition.ndim == 1 < yes.ndim
    return np.where(
        condition.reshape(-1, *[1] * (yes.ndim - 1)) if is_of_rows else condition, yes, no
    )


def _reverse_sequence(attributes: Mapping[str, Any], x: Array, lengths: Array) -> Array:
    """The first elements of each sequence in reverse order."""
    axes = attributes["batch_dim"], attributes["seq_dim"]
    sequences = np.moveaxis(x, axes, (0, 1))
    made = [np.concatenate([s[:n][::-1], s[n:]]) for s, n in zip(sequences, lengths, strict=True)]
    return np.moveaxis(np.stack(made), (0, 1), axes)


def _segment_sum(_: Mapping[str, Any], x: Array, segments: Array, count: Array) -> Array:
    made = np.zeros((int(count), *x.shape[1:]))
    np.add.at(made, segments, x[: len(segments)])  # a wrong program may have fewer segments
    return made


def _batch_norm(
    attributes: Mapping[str, Any],
    x: Array,
    scale: Array,
    offset: Array,
    center: Array,
    spread: Array,
) -> list[Array]:
    if attributes["is_training"]:
        center, spread = x.mean((0, 1, 2)), x.var((0, 1, 2))
    made = (x - center) / np.sqrt(spread + 1e-3) * scale + offset
    return [made, center, spread, center, spread, center]


def _contrast(images: Array, factor: Array) -> Array:
    means: Array = images.mean((-3, -2), keepdims=True)
    return (images - means) * factor + means


def _random_normal(attributes: Mapping[str, Any], shape: Array) -> Array:
    """Equal numbers for equal seeds, and others in every run without a seed."""
    return np.random.default_rng(attributes.get("seed2")).normal(size=tuple(shape))


COMPUTES: dict[str, Callable[..., Any]] = {
    "Identity": _elementwise(lambda x: x),
    "PlaceholderWithDefault": _elementwise(lambda x: x),
    "StopGradient": _elementwise(lambda x: x),
    "Add": _elementwise(np.add),
    "AddV2": _elementwise(np.add),
    "AddN": _elementwise(lambda *operands: sum(operands)),
    "BiasAdd": _elementwise(np.add),
    "Div": lambda _, x, y: x / y if x.dtype.kind == "f" else np.trunc(x / y).astype(x.dtype),
    "TruncateDiv": lambda _, x, y: np.trunc(x / y).astype(x.dtype),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "RealDiv": _elementwise(np.divide),
    "DivNoNan": _elementwise(lambda x, y: x / y),
    "FloorDiv": _elementwise(np.floor_divide),
    "FloorMod": _elementwise(np.mod),
    "Ceil": _elementwise(np.ceil),
    "Neg": _elementwise(np.negative),
    "Square": _elementwise(np.square),
    "SquaredDifference": _elementwise(lambda x, y: (x - y) ** 2),
    "Maximum": _elementwise(np.maximum),
    "Minimum": _elementwise(np.minimum),
    "Greater": _elementwise(np.greater),
    "Less": _elementwise(np.less),
    "Select": _elementwise(_select),
    "SelectV2": _elementwise(np.where),
    "Abs": _elementwise(np.abs),
    "Exp": _elementwise(np.exp),
    "Log": _elementwise(np.log),
    "Log1p": _elementwise(np.log1p),
    "Sqrt": _elementwise(np.sqrt),
    "Rsqrt": _elementwise(lambda x: 1 / np.sqrt(x)),
    "Sign": _elementwise(np.sign),
    "Tanh": _elementwise(np.tanh),
    "Sin": _elementwise(np.sin),
    "Relu": _elementwise(lambda x: np.maximum(x, 0.0)),
    "Elu": _elementwise(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "Sigmoid": _elementwise(lambda x: 1 / (1 + np.exp(-x))),
    "Softplus": _elementwise(lambda x: np.log1p(np.exp(x))),
    "Pow": _elementwise(np.power),
    "ZerosLike": _elementwise(np.zeros_like),
    "OnesLike": _elementwise(np.ones_like),
    "Softmax": _elementwise(_softmax),
    "LogSoftmax": _elementwise(lambda x: np.log(_softmax(x))),
    "SoftmaxCrossEntropyWithLogits": _elementwise(_cross_entropy),
    "L2Loss": _elementwise(lambda x: (x**2).sum() / 2),
    **dict.fromkeys(["MatMul", "BatchMatMulV2"], _matrix_product),
    "Sum": _reduction(np.sum),
    "Mean": _reduction(_mean),
    "Where": _elementwise(np.argwhere),
    "ArgMax": lambda _, x, axis: np.argmax(x, int(axis)),
    "All": _reduction(np.all),
    "EuclideanNorm": _reduction(lambda x, **keys: np.sqrt((x**2).sum(**keys))),
    "Max": _reduction(np.max),
    "Min": _reduction(np.min),
    "Prod": _reduction(np.prod),
    "Shape": _elementwise(lambda x: np.array(x.shape, np.int32)),
    "Size": _elementwise(lambda x: np.array(x.size, np.int32)),
    "Cast": lambda attributes, x: x.astype(attributes["DstT"].replace("float32", "float64")),
    "Reshape": _elementwise(lambda x, shape: x.reshape(tuple(int(dim) for dim in shape))),
    "ExpandDims": _elementwise(lambda x, axis: np.expand_dims(x, int(axis))),
    "Squeeze": lambda attributes, x: np.squeeze(x, tuple(attributes["squeeze_dims"])),
    "Transpose": _elementwise(lambda x, order: np.transpose(x, order)),
    "Tile": _elementwise(lambda x, times: np.tile(x, times)),
    "Fill": _elementwise(lambda shape, x: np.full(shape, x)),
    "Range": _elementwise(lambda start, limit, step: np.arange(start, limit, step)),
    "RandomShuffle": _elementwise(np.flip),
    "Pack": lambda attributes, *operands: np.stack(operands, attributes["axis"]),
    "Unpack": _unpack,
    "ConcatV2": _elementwise(lambda *operands: np.concatenate(operands[:-1], int(operands[-1]))),
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "Split": _split,
    "SplitV": _split_by_sizes,
    "DynamicPartition": lambda attributes, x, numbers: [
        x[numbers == number] for number in range(attributes["num_partitions"])
    ],
    "MirrorPad": lambda attributes, x, pads: np.pad(x, pads, attributes["mode"].lower()),
    "GatherV2": _gather,
    "OneHot": _one_hot,
    "Cumsum": _elementwise(lambda x, axis: np.cumsum(x, int(axis))),
    "Cumprod": _elementwise(lambda x, axis: np.cumprod(x, int(axis))),
    "Pad": _elementwise(np.pad),
    "PadV2": _elementwise(lambda x, pads, value: np.pad(x, pads, constant_values=value)),
    "BroadcastTo": _elementwise(lambda x, shape: np.broadcast_to(x, tuple(shape))),
    "Roll": _elementwise(lambda x, shift, axis: np.roll(x, int(shift), int(axis))),
    "ReverseSequence": _reverse_sequence,
    "Einsum": lambda attributes, *x: np.einsum(attributes["equation"], *x),
    "ReverseV2": _elementwise(lambda x, axes: np.flip(x, tuple(axes))),
    **dict.fromkeys(["RandomStandardNormal", "TruncatedNormal"], _random_normal),
    "StatelessMultinomial": _elementwise(lambda x, n, _seed: np.zeros((len(x), int(n)), int)),
    "StatelessRandomGammaV2": _elementwise(lambda shape, _seed, _: np.ones(tuple(shape))),
    "UniformCandidateSampler": lambda attributes, _: [
        *(np.ones(shape) for shape in ([attributes["num_sampled"]], [1], [1]))
    ],
    # For shapes alone: ops of other devices, branches of TensorFlow 1, and unknown functions.
    "Switch": _elementwise(lambda x, _: [x, x]),
    "If": _elementwise(lambda condition, *sides: [np.where(condition, *sides)] if sides else []),
    "Unique": _elementwise(lambda x: list(np.unique(x, return_inverse=True))),
    "UnsortedSegmentSum": _segment_sum,
    "CollectiveReduce": _elementwise(lambda x: x),
    "CollectiveGather": _elementwise(lambda x: x),
    "Merge": _elementwise(lambda *operands: [operands[0], np.array(0)]),
    "PyFunc": _elementwise(lambda x: x),
    "Case": _elementwise(lambda _, x: x),
    "AdjustContrastv2": _elementwise(_contrast),
    "FusedBatchNormV3": _batch_norm,
    "MatrixBandPart": _elementwise(lambda x, lower, upper: np.triu(np.tril(x, upper), -lower)),
}


def _adam(
    values: Sequence[Array], powers: Sequence[Array], numbers: Sequence[Array], gradient: Array
) -> list[Array]:
    variable, mean, square = values
    rate, beta, other, epsilon = numbers
    mean = beta * mean + (1 - beta) * gradient
    square = other * square + (1 - other) * gradient**2
    rate = rate * np.sqrt(1 - powers[1]) / (1 - powers[0])
    return [variable - rate * mean / (np.sqrt(square) + epsilon), mean, square]


def _scattered(old: Array, indices: Array, values: Array) -> list[Array]:
    made = old.copy()
    np.subtract.at(made, indices, values)
    return [made]


def _adagrad(old: Array, squares: Array, rate: Array, rows: Array, at: Array) -> list[Array]:
    made, squares = old.copy(), squares.copy()
    for index, row in zip(at, rows, strict=True):
        squares[index] += row**2
        made[index] -= rate * row / np.sqrt(squares[index])
    return [made, squares]


# For each type of update, how many of the inputs it changes, and their new values.
UPDATES: dict[str, tuple[int, Callable[..., Any]]] = {
    "AssignVariableOp": (1, lambda _, _old, value: [value]),
    "AssignAddVariableOp": (1, lambda _, old, value: [old + value]),
    "AssignSubVariableOp": (1, lambda _, old, value: [old - value]),
    "ResourceApplyGradientDescent": (1, lambda _, old, rate, grad: [old - rate * grad]),
    "ResourceScatterAdd": (1, lambda _, old, at, values: _scattered(old, at, -values)),
    "ResourceScatterSub": (1, lambda _, *x: _scattered(*x)),
    "ResourceSparseApplyAdagrad": (2, lambda _, *x: _adagrad(*x)),
    "ResourceApplyMomentum": (
        2,
        lambda _, old, moment, rate, grad, momentum: [
            old - rate * (momentum * moment + grad),
            momentum * moment + grad,
        ],
    ),
    "ResourceApplyAdam": (
        3,
        lambda _, *x: _adam(x[:3], x[3:5], x[5:9], x[9]),
    ),
}


# --- programs ---


class _Facts(Details):
    """The details of the ops of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def outputs(self, op: str) -> Sequence[Tensor]:
        """The outputs with the extents that are equal in both runs with samples."""
        return self._program.outputs(op)

    def attributes(self, op: str) -> Mapping[str, Any]:
        """The attributes."""
        attributes = self._program.ops[op].attributes
        return {key: value for key, value in attributes.items() if key != _OTHER_GRADIENT}

    def custom_gradient(self, op: str) -> str:
        """The gradient function in place of the one of the op's type; no run uses it."""
        return str(self._program.ops[op].attributes.get(_OTHER_GRADIENT, ""))

    def value(self, op: str) -> tuple[Any, ...] | None:
        """The dtype, shape and elements of a constant."""
        value = self._program.ops[op].value
        if value is None:
            return None
        dtype = "float32" if value.dtype == np.float64 else str(value.dtype)
        return dtype, value.shape, *value.ravel().tolist()


@dataclass(eq=False)
class Program:
    """A training program.

    Attributes:
        ops: the ops by name, in the order of building.
        gradients: the gradients, by the op that stands for their backward ops.
        fed: the input and the tower of each placeholder; None for all rows of the input.
        variables: the shape of each variable.
        constants: the known values of scalar variables that no op changes.
        roots: the ops that a step runs.
        drawn: the inputs and the tower of each element of a pipeline.
        callers: the branch or loop whose body has an op.
        results: the tensors that the bodies of each branch or loop return.
        loop_variables: for ops of loops, the loop variables by the number of the input.
        sides: the condition of an op in a branch, and for which value it runs.
        indices: the indices of gradients of looked-up rows.
    """

    ops: dict[str, StepOp] = field(default_factory=dict)
    gradients: dict[str, Taken] = field(default_factory=dict)
    fed: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    variables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)
    roots: tuple[str, ...] = ()
    drawn: dict[str, tuple[Mapping[str, Sequence[int | None]], int | None]] = field(
        default_factory=dict
    )
    callers: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    loop_variables: dict[str, dict[int, str]] = field(default_factory=dict)
    sides: dict[str, tuple[str, bool]] = field(default_factory=dict)
    indices: dict[str, str] = field(default_factory=dict)
    _sample_runs: list[_Run] = field(default_factory=list)
    _scopes: list[str] = field(default_factory=list)
    _device: str = "/cpu:0"
    _awaited: list[str] = field(default_factory=list)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """A name scope."""
        self._scopes.append(name)
        yield
        self._scopes.pop()

    @contextmanager
    def tower(self, number: int) -> Iterator[None]:
        """The name scope and the GPU of a tower."""
        self._device = f"/gpu:{number}"
        with self.scope(f"tower_{number}"):
            yield
        self._device = "/cpu:0"

    @contextmanager
    def after(self, *values: Value) -> Iterator[None]:
        """Ops that wait for other ops, as in ``tf.control_dependencies``."""
        before = self._awaited
        self._awaited = [*before, *(f"^{each.op}" for each in values)]
        yield
        self._awaited = before

    def add(
        self,
        type_: str,
        *inputs: Any,
        name: str = "",
        value: Array | None = None,
        **attributes: Any,
    ) -> Value:
        """Add an op; numbers and lists among the inputs become constants."""
        tensors = [self.tensor(each) for each in inputs]
        names = tuple(each.name for each in tensors)
        made = self._add(name or type_, StepOp(type_, names, attributes, value))
        variables = {i: each.loop_variable for i, each in enumerate(tensors) if each.loop_variable}
        if variables:
            self.loop_variables[made.op] = variables
        return made

    def _free_name(self, name: str) -> str:
        base = "/".join([*self._scopes, name])
        unique, number = base, 0
        while unique in self.ops:
            number += 1
            unique = f"{base}_{number}"
        return unique

    def _add(self, name: str, op: StepOp) -> Value:
        unique = self._free_name(name)
        awaits = () if op.type in ("VarHandleOp", "Placeholder") else tuple(self._awaited)
        self.ops[unique] = op._replace(inputs=(*op.inputs, *awaits), device=self._device)
        return Value(self, unique)

    def tensor(self, value: Any) -> Value:
        """A tensor, or a constant with a value."""
        if isinstance(value, Value):
            return value
        array = np.asarray(value)
        if array.dtype.kind == "f":  # as a constant of float32 in the graph
            array = array.astype(np.float32).astype(np.float64)
        elif array.dtype == np.int64:
            array = array.astype(np.int32)
        return self._add("Const", StepOp("Const", value=array))

    def placeholder(
        self, name: str, shape: Sequence[int | None], tower: int | None = None
    ) -> Value:
        """An input: all rows, or a tower's rows. An unknown first extent is the number of rows."""
        dims = tuple(-1 if dim is None else dim for dim in shape)
        made = self._add(name, StepOp("Placeholder", attributes={"shape": dims}))
        self.fed[made.op] = name, tower
        return made

    def iterator(self, dataset: Value | None = None, **attributes: Any) -> Value:
        """The iterator of a pipeline."""
        made = self._add("IteratorV2", StepOp("IteratorV2", (), attributes))
        if dataset is not None:
            self.add("MakeIterator", dataset, made)
        return made

    def draw(
        self,
        iterator: Value | None,
        shapes: Mapping[str, Sequence[int | None]],
        tower: int | None = None,
        type_: str = "IteratorGetNext",
        **attributes: Any,
    ) -> list[Value]:
        """The next element of an iterator, queue or staging area: all rows, or a tower's rows."""
        made = self.add(type_, *([] if iterator is None else [iterator]), **attributes)
        self.drawn[made.op] = shapes, tower
        return _all_outputs(made, len(shapes))

    # --- branches and loops ---

    @contextmanager
    def _body(self, call: str, suffix: str) -> Iterator[None]:
        before, scopes = set(self.ops), self._scopes
        self._scopes = [call, suffix]
        yield
        self._scopes = scopes
        for op in self.ops.keys() - before - self.callers.keys():
            self.callers[op] = call

    def branch(
        self, condition: Value, yes: Callable[[], Value | None], no: Callable[[], Value | None]
    ) -> Value:
        """The result of one of two functions, which may also update variables."""
        call, results = self._free_name("If"), []
        for side, function in ((True, yes), (False, no)):
            before = set(self.ops)
            with self._body(call, "then" if side else "else"):
                results.append(function())
            self.sides |= dict.fromkeys(self.ops.keys() - before, (condition.name, side))
        values = [each for each in results if each is not None]
        made = self.add("If" if values else "NoOp", condition, *values, name="If")
        self.ops[made.op] = self.ops[made.op]._replace(type="If")
        self.results[made.op] = {
            suffix: () if each is None else (each.name,)
            for suffix, each in zip(("/then", "/else"), results, strict=True)
        }
        return made

    def loop(
        self,
        goes_on: Callable[..., Value],
        body: Callable[..., Sequence[Value]],
        initial: Sequence[Value],
        captured: Sequence[Value] = (),
    ) -> list[Value]:
        """The loop variables after a loop whose body reads captured tensors, too."""
        call = self._free_name("While")
        names = [f"{call}:{i}" if i else call for i in range(len(initial) + len(captured))]
        variables = [
            Value(self, each.name, name) for each, name in zip(initial, names, strict=False)
        ]
        with self._body(call, "cond"):
            condition = goes_on(*variables)
        with self._body(call, "body"):
            results = [each.loop_variable or each.name for each in body(*variables)]
        self.results[call] = {
            "/cond": (condition.name,),
            "/body": (*results, *names[len(initial) :]),
        }
        inputs = [*initial, *captured]
        made = self.add("While", *inputs, functions=self._digest(call, [x.name for x in inputs]))
        return _all_outputs(made, len(initial))

    def _digest(self, call: str, inputs: Sequence[str]) -> str:
        """The ops in the bodies of a call, without names from outside."""
        outside = {name: f"input {i}" for i, name in enumerate(inputs)}
        ops = {name: self.ops[name] for name in self.ops if self.callers.get(name) == call}
        named = {
            name.removeprefix(call): op._replace(
                inputs=tuple(outside.get(each, each.removeprefix(call)) for each in op.inputs)
            )
            for name, op in ops.items()
        }
        return str(named)

    def placeholder_with_default(self, default: Value) -> Value:
        """An input that is not fed, and has its default value."""
        return self.add("PlaceholderWithDefault", default)

    def variable(self, name: str, shape: Sequence[int] = (), *, is_trained: bool = True) -> Handle:
        """A variable."""
        handle = self._add(name, StepOp("VarHandleOp", attributes={"shared_name": name}))
        self.variables[handle.op] = tuple(shape)
        for run in self._sample_runs:
            run.values[handle.op] = np.full(shape, _SAMPLE_VALUE)
        if is_trained:
            self.trained.append(handle.op)
        return Handle(self, handle.op)

    def constant(self, name: str, value: float) -> Value:
        """The value of a scalar variable that no op changes."""
        variable = self.variable(name, is_trained=False)
        self.constants[variable.op] = value
        return variable.read()

    def gradient(self, loss: Value, variable: Value, weight: Value | None = None) -> Value:
        """The gradient of a scalar loss, or of its product with a weight that is no variable's.

        It is taken with respect to a variable, or to one read of a variable.
        """
        inputs = (loss.name,) if weight is None else (loss.name, weight.name)
        taken = Taken(loss.name, variable.op, "" if weight is None else weight.name)
        scopes, self._scopes = self._scopes, ["gradients", *self._scopes]
        made = self._add(f"{variable.op}_grad", StepOp(_GRADIENT, inputs))
        self._scopes = scopes
        self.gradients[made.op] = taken
        return made

    def gradient_of_rows(self, loss: Value, lookup: Value) -> tuple[Value, Value]:
        """The gradient of looked-up rows of a variable, and their indices."""
        read, indices = self.ops[lookup.op].inputs[:2]
        scopes, self._scopes = self._scopes, ["gradients", *self._scopes]
        made = self._add("rows_grad", StepOp(_GRADIENT, (loss.name, lookup.name)))
        at = reshape(Value(self, indices), [-1])
        self._scopes = scopes
        variable = self.ops[producer_of(read)].inputs[0]
        self.gradients[made.op] = Taken(loss.name, variable, "", lookup.op)
        self.indices[made.op] = at.name
        return made, at

    def gradient_of_tensor(self, loss: Value, tensor: Value) -> Value:
        """The gradient of a loss with respect to a tensor on its way."""
        scopes, self._scopes = self._scopes, ["gradients", *self._scopes]
        made = self._add("tensor_grad", StepOp(_GRADIENT, (loss.name, tensor.name)))
        self._scopes = scopes
        self.gradients[made.op] = Taken(loss.name, tensor.op, "", tensor.op)
        return made

    def depends(self, value: Value, variable: Handle) -> bool:
        """Whether there is a path for gradients from a tensor to the reads of a variable."""
        stack, seen = [value.op], set()
        while stack:
            name = stack.pop()
            op = self.ops[name]
            if op.type == "ReadVariableOp" and op.inputs[0] == variable.op:
                return True
            if name not in seen and op.type not in _WITHOUT_GRADIENT:
                seen.add(name)
                stack += [each.partition(":")[0] for each in op.inputs if each[0] != "^"]
        return False

    def train(self, *updates: Value) -> None:
        """Declare the updates of a step."""
        with self.after(*updates):
            self.roots = (self._add("train", StepOp("NoOp")).op,)

    # --- the placement ---

    def placement(self) -> Placement:
        """The placement, without assigned devices."""
        variables = [Variable(name, "float32", shape) for name, shape in self.variables.items()]
        return Placement(
            "program",
            {
                name: Op(
                    name,
                    op.type,
                    Device.parse(op.device),
                    op.inputs,
                    caller=self.callers.get(name, ""),
                )
                for name, op in self.ops.items()
            },
            Variables(variables),
            {TRAINABLE: tuple(self.trained)},
            step=StepOps(train_op=self.roots, constants=self.constants).with_gradients(
                self.calls()
            ),
            results=self.results,
            loop_variables=self.loop_variables,
            details=_Facts(self),
        )

    def calls(self) -> list[GradientCall]:
        """The gradients as calls of ``tf.gradients``, one for each variable."""
        return [
            GradientCall(
                (_tensor_name(taken.loss),),
                (taken.weight and _tensor_name(taken.weight),),
                (self._source(taken.variable),),
                ((f"{name}:0", *map(_tensor_name, filter(None, [self.indices.get(name)]))),),
                ops=frozenset([name]),
            )
            for name, taken in self.gradients.items()
        ]

    def _source(self, name: str) -> str:
        return name if name in self.variables else _tensor_name(name)

    def outputs(self, op: str) -> Sequence[Tensor]:
        """The outputs of an op, with their static shapes."""
        if self.handle(op) in self.variables:
            return [Tensor("resource", ())] * (1 if op in self.variables else 2)
        pairs = [run.outputs(op) for run in self._samples()]
        found = []
        for one, other in zip(*pairs, strict=True):
            dims = zip(one.shape, other.shape, strict=True)
            shape = tuple(dim if dim == second else None for dim, second in dims)
            dtype = "float32" if one.dtype == np.float64 else str(one.dtype)
            found.append(Tensor(dtype, shape))
        return found

    def handle(self, source: str) -> str:
        """A tensor, or the variable whose handle a branch of TensorFlow 1 gets from it."""
        op = self.ops[producer_of(source)]
        return op.inputs[0] if op.type == "Switch" else source

    def _samples(self) -> Sequence[_Run]:
        """Two runs with different numbers of rows, of the ops that exist so far."""
        if not self._sample_runs:
            values = {
                name: np.full(shape, _SAMPLE_VALUE) for name, shape in self.variables.items()
            }
            self._sample_runs += [_Run(self, rows, values) for rows in _SAMPLE_ROWS]
        return self._sample_runs

    # --- runs ---

    def batch(self, rows: int, rng: np.random.Generator) -> dict[str, Array]:
        """Random rows for each input."""
        shapes = {key: self.ops[name].attributes["shape"] for name, (key, _) in self.fed.items()}
        for drawn, _ in self.drawn.values():
            shapes |= drawn
        return {key: rng.normal(size=(rows, *shape[1:])) for key, shape in shapes.items()}

    def run(
        self,
        batch: Mapping[str, Array],
        values: Mapping[str, Array],
        rows: Sequence[int] = (),
        schedule: random.Random | None = None,
    ) -> dict[str, Array]:
        """The values of the variables after one step.

        Args:
            batch: all rows of each input.
            values: the values of the variables before the step.
            rows: the number of rows of each tower, for placeholders of towers.
            schedule: draws the order of ops that do not wait for each other; by default they run
                in the order of building.
        """
        ends = np.cumsum([0, *rows])
        fed = {
            name: batch[key] if tower is None else batch[key][ends[tower] : ends[tower + 1]]
            for name, (key, tower) in self.fed.items()
        }
        drawn = {
            name: [
                batch[key] if tower is None else batch[key][ends[tower] : ends[tower + 1]]
                for key in shapes
            ]
            for name, (shapes, tower) in self.drawn.items()
        }
        run = _Run(self, fed | drawn, {name: values[name] for name in self.variables})
        for op in self._order(schedule):
            run.execute(op)
        return run.values

    def used_ops(self) -> set[str]:
        """The ops that a step runs."""
        reached, stack = set(), list(self.roots)
        while stack:
            name = stack.pop()
            if name not in reached:
                reached.add(name)
                stack += map(producer_of, self.ops[name].inputs)
                if self.ops[name].type == "If":
                    stack += [op for op, call in self.callers.items() if call == name]
        return reached

    def _order(self, schedule: random.Random | None) -> list[str]:
        reached = self.used_ops()
        order = [name for name in self.ops if name in reached]
        if schedule is None:
            return order
        waiting = {name: {producer_of(each) for each in self.ops[name].inputs} for name in order}
        for name in waiting.keys() & self.sides.keys():
            waiting[name].add(producer_of(self.sides[name][0]))
        readers = defaultdict(list)
        for name, sources in waiting.items():
            for source in sources:
                readers[source].append(name)
        late = {name: schedule.random() for name in order}
        ready, found = [name for name in order if not waiting[name]], []
        while ready:
            name = min(ready, key=late.__getitem__)
            ready.remove(name)
            found.append(name)
            for reader in readers[name]:
                waiting[reader].discard(name)
                if not waiting[reader]:
                    ready.append(reader)
        return found


class _Run:
    """One run of a program; with a number of rows instead of inputs, for shapes alone."""

    def __init__(
        self, program: Program, fed: Mapping[str, Any] | int, values: Mapping[str, Array]
    ) -> None:
        self.program, self.fed, self.values = program, fed, dict(values)
        self._outputs: dict[str, list[Array]] = {}
        self._seen: dict[str, Array] = {}  # by each read

    def execute(self, name: str) -> None:
        """Run an op whose inputs were run."""
        self._outputs[name] = self._compute(name, self._value, self._seen)

    def outputs(self, name: str) -> list[Array]:
        """The outputs of an op, of a run that changes no variables."""
        if name not in self._outputs:
            for source in self.program.ops[name].inputs:
                self.outputs(producer_of(source))
            self.execute(name)
        return self._outputs[name]

    def _value(self, source: str) -> Array:
        name, _, output = source.partition(":")
        return self._outputs[name][int(output or 0)]

    def _compute(
        self, name: str, value: Callable[[str], Array], seen: dict[str, Array]
    ) -> list[Array]:
        program, op = self.program, self.program.ops[name]
        variables = {} if isinstance(self.fed, int) else program.loop_variables.get(name, {})
        data = [
            variables.get(i, each) for i, each in enumerate(op.inputs) if not each.startswith("^")
        ]
        if name in program.drawn:
            if not isinstance(self.fed, int):
                return list(self.fed[name])
            shapes = program.drawn[name][0].values()
            return [np.full([dim or self.fed for dim in shape], 0.5) for shape in shapes]
        if op.type == "While":
            return self._loop(name, value)
        if name in program.gradients:
            return [self._gradient(program.gradients[name])]
        if op.type == "Const":
            return [np.asarray(op.value)]
        if op.type == "Placeholder":
            if isinstance(self.fed, int):
                dims = op.attributes["shape"]
                return [np.full([self.fed if dim == -1 else dim for dim in dims], 0.5)]
            return [self.fed[name]]
        if op.type in _WITHOUT_VALUE or program.handle(name) in program.variables:
            return []
        if op.type == "ReadVariableOp":
            seen[name] = self.values[data[0]]
            return [seen[name]]
        if op.type in UPDATES:
            count, update = UPDATES[op.type]
            data = [program.handle(each) for each in data]
            operands = [
                self.values[each] if each in program.variables else value(each) for each in data
            ]
            made = update(op.attributes, *operands)
            condition, side = program.sides.get(name, ("", True))
            is_run = not condition or bool(value(condition)) is side
            if not isinstance(self.fed, int) and is_run:
                for variable, new in zip(data[:count], made, strict=True):
                    self.values[variable] = np.broadcast_to(new, program.variables[variable])
            return []
        made = COMPUTES[op.type](op.attributes, *map(value, data))
        return made if isinstance(made, list) else [np.asarray(made)]

    def _loop(self, name: str, outer: Callable[[str], Array]) -> list[Array]:
        program = self.program
        results = program.results[name]
        names = [f"{name}:{i}" if i else name for i in range(len(results["/body"]))]
        initial = map(outer, program.ops[name].inputs)
        state = dict(zip(names, initial, strict=True))
        while not isinstance(self.fed, int):
            value = self._iteration(name, state, outer)
            if not value(results["/cond"][0]):
                break
            state = {key: value(each) for key, each in zip(names, results["/body"], strict=True)}
        return list(state.values())

    def _iteration(
        self, loop: str, state: Mapping[str, Array], outer: Callable[[str], Array]
    ) -> Callable[[str], Array]:
        made: dict[str, list[Array]] = {}

        def value(source: str) -> Array:
            op, _, output = source.partition(":")
            if source in state:
                return state[source]
            return made[op][int(output or 0)] if op in made else outer(source)

        for op in self.program.ops:
            if self.program.callers.get(op) == loop:
                made[op] = self._compute(op, value, {})
        return value

    def _gradient(self, taken: Taken) -> Array:
        program = self.program
        op = program.ops[taken.variable]
        if taken.lookup:
            shape = self._outputs[taken.lookup][0].shape
        else:
            shape = program.variables[op.inputs[0] if op.inputs else taken.variable]
        if isinstance(self.fed, int):
            return np.zeros(shape)
        gradient, affected = np.zeros(shape), self._affected(taken)
        for index in np.ndindex(*shape):
            ends = []
            for sign in (1, -1):
                change = np.zeros(shape)
                change[index] = sign * _STEP_OF_DIFFERENCES
                ends.append(self._loss_after(taken, affected, change))
            gradient[index] = (ends[0] - ends[1]) / (2 * _STEP_OF_DIFFERENCES)
        return gradient * (self._value(taken.weight) if taken.weight else 1.0)

    def _loss_after(self, taken: Taken, affected: Sequence[str], change: Array) -> float:
        """The loss if the reads of a variable that it depends on would yield a changed value."""
        changed: dict[str, list[Array]] = {}

        def value(source: str) -> Array:
            name, _, output = source.partition(":")
            return changed.get(name, self._outputs[name])[int(output or 0)]

        for name in affected:
            if name == taken.lookup:
                changed[name] = [self._outputs[name][0] + change]
            elif self.program.ops[name].type == "ReadVariableOp":
                changed[name] = [self._seen[name] + change]
            else:
                changed[name] = self._compute(name, value, {})
        return float(value(taken.loss).sum())

    def _affected(self, taken: Taken) -> list[str]:
        """The ops on the paths of a gradient, in order."""
        program = self.program
        found: dict[str, bool] = {}
        for name, op in program.ops.items():
            if taken.lookup and name == taken.lookup:
                found[name] = True
            elif op.type == "ReadVariableOp":
                found[name] = not taken.lookup and taken.variable in (name, op.inputs[0])
            elif op.type != "StopGradient" and name not in program.gradients:
                found[name] = any(found.get(each.partition(":")[0]) for each in op.inputs)
            if name == producer_of(taken.loss):
                break
        needed, stack = set(), [producer_of(taken.loss)]
        while stack:
            name = stack.pop()
            if found.get(name) and name not in needed:
                needed.add(name)
                stack += [each.partition(":")[0] for each in program.ops[name].inputs]
        return [name for name in program.ops if name in needed]


# --- tensors and variables ---


@dataclass(eq=False)
class Value:
    """A tensor: an output of an op.

    In a loop, a loop variable has the name of its initial value, and a name of its own.
    """

    program: Program
    name: str
    loop_variable: str = ""

    @property
    def op(self) -> str:
        """The op that yields it."""
        return producer_of(self.name)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The static shape."""
        output = int(self.name.partition(":")[2] or 0)
        return self.program.outputs(self.op)[output].shape or ()

    @property
    def sample(self) -> Array:
        """The value in a run with samples as inputs."""
        output = int(self.name.partition(":")[2] or 0)
        return self.program._samples()[0].outputs(self.op)[output]

    def __add__(self, other: Any) -> Value:
        return self.program.add("AddV2", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.program.add("AddV2", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.program.add("Sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.program.add("Sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.program.add("Mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.program.add("Mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.program.add("RealDiv", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.program.add("RealDiv", other, self)

    def __floordiv__(self, other: Any) -> Value:
        return self.program.add("FloorDiv", self, other)

    def __neg__(self) -> Value:
        return self.program.add("Neg", self)

    def __matmul__(self, other: Any) -> Value:
        return self.program.add("MatMul", self, other)

    def __getitem__(self, index: Any) -> Value:
        """Slices of the first axis, or an element of it: ``x[a:b]``, ``x[i::n]``, ``x[0]``."""
        program = self.program
        if not isinstance(index, slice):
            bounds = [index], [index + 1], [1]
            return program.add("StridedSlice", self, *bounds, shrink_axis_mask=1)
        begin_mask, end_mask = int(index.start is None), int(index.stop is None)
        rows = [0 if each is None else each for each in (index.start, index.stop)]
        ends = [
            program.add("Pack", each, axis=0) if isinstance(each, Value) else [each]
            for each in rows
        ]
        step = [index.step or 1]
        return program.add(
            "StridedSlice", self, *ends, step, begin_mask=begin_mask, end_mask=end_mask
        )


class Handle(Value):
    """A variable."""

    def read(self) -> Value:
        """The value at this place of the program."""
        return self.program.add("ReadVariableOp", self, name=f"{self.name}/read")

    def descend(self, rate: Any, gradient: Value) -> Value:
        """Subtract the gradient times the rate."""
        return self.program.add("ResourceApplyGradientDescent", self, rate, gradient)

    def apply_momentum(
        self, moment: Handle, rate: Any, gradient: Value, momentum: float = 0.9
    ) -> Value:
        """Update the variable and its moment."""
        operands = moment, rate, gradient, momentum
        return self.program.add("ResourceApplyMomentum", self, *operands)

    def apply_adam(
        self, slots: tuple[Handle, Handle], powers: tuple[Handle, Handle], rate: Any, grad: Value
    ) -> Value:
        """Update the variable and its two moments, given the powers of the two betas."""
        operands = *slots, *(power.read() for power in powers), rate, 0.9, 0.999, 1e-7, grad
        return self.program.add("ResourceApplyAdam", self, *operands)

    def assign(self, value: Any) -> Value:
        """Assign a value."""
        return self.program.add("AssignVariableOp", self, value)

    def assign_sub(self, value: Any) -> Value:
        """Subtract a value."""
        return self.program.add("AssignSubVariableOp", self, value)

    def assign_add(self, value: Any) -> Value:
        """Add a value."""
        return self.program.add("AssignAddVariableOp", self, value)


# --- functions of tensors ---


def apply(type_: str, *values: Any, **attributes: Any) -> Value:
    """An op on tensors and numbers."""
    program = next(each.program for each in values if isinstance(each, Value))
    return program.add(type_, *values, **attributes)


def _reduced(type_: str, value: Value, axes: Sequence[int] | int | None, keeps: bool) -> Value:
    axes = list(range(len(value.shape))) if axes is None else axes
    return apply(type_, value, np.array(axes, np.int32), keep_dims=keeps)


def total(value: Value, axes: Sequence[int] | int | None = None, *, keeps: bool = False) -> Value:
    """The sum over axes, by default over all of them."""
    return _reduced("Sum", value, axes, keeps)


def mean(value: Value, axes: Sequence[int] | int | None = None, *, keeps: bool = False) -> Value:
    """The mean over axes, by default over all of them."""
    return _reduced("Mean", value, axes, keeps)


def largest(
    value: Value, axes: Sequence[int] | int | None = None, *, keeps: bool = False
) -> Value:
    """The maximum over axes, by default over all of them."""
    return _reduced("Max", value, axes, keeps)


def square(value: Value) -> Value:
    """The squares of all elements."""
    return apply("Square", value)


def relu(value: Value) -> Value:
    """The positive parts of all elements."""
    return apply("Relu", value)


def add_n(values: Sequence[Value]) -> Value:
    """The sum of tensors."""
    return apply("AddN", *values)


def stack(values: Sequence[Any], axis: int = 0) -> Value:
    """Tensors along a new axis."""
    return apply("Pack", *values, axis=axis)


def concat(values: Sequence[Value], axis: int = 0) -> Value:
    """Tensors along an axis."""
    return apply("ConcatV2", *values, axis)


def split(value: Value, count: int, axis: int = 0) -> list[Value]:
    """Equal parts along an axis."""
    made = apply("Split", np.array(axis, np.int32), value, num_split=count)
    return _all_outputs(made, count)


def split_by_sizes(value: Value, sizes: Any, count: int, axis: int = 0) -> list[Value]:
    """Parts of given sizes along an axis."""
    return _all_outputs(apply("SplitV", value, sizes, np.array(axis, np.int32)), count)


def unstack(value: Value, count: int, axis: int = 0) -> list[Value]:
    """The elements of an axis."""
    return _all_outputs(apply("Unpack", value, axis=axis), count)


def partition(value: Value, numbers: Value, count: int) -> list[Value]:
    """The rows of each number."""
    made = apply("DynamicPartition", value, numbers, num_partitions=count)
    return _all_outputs(made, count)


def _all_outputs(value: Value, count: int) -> list[Value]:
    return [Value(value.program, f"{value.op}:{i}" if i else value.op) for i in range(count)]


def rows_of(value: Value) -> Value:
    """The number of rows, as an integer."""
    return apply("Shape", value)[0]


def to_float(value: Value) -> Value:
    """Numbers as floating-point numbers."""
    return apply("Cast", value, DstT="float32")


def stop_gradient(value: Value) -> Value:
    """A value that is a constant for gradients."""
    return apply("StopGradient", value)


def reshape(value: Value, shape: Any) -> Value:
    """Another shape; elements of the shape may be tensors."""
    if isinstance(shape, (list, tuple)) and any(isinstance(each, Value) for each in shape):
        shape = stack(list(shape))
    return apply(
        "Reshape", value, np.array(shape, np.int32) if not isinstance(shape, Value) else shape
    )


# --- comparisons ---


def compare(towers: Program, one_gpu: Program) -> StepEquality:
    """The comparison of two programs."""
    found = compare_steps(towers.placement(), one_gpu.placement())
    assert isinstance(found, StepEquality), found
    return found


def differences(
    towers: Program,
    one_gpu: Program,
    equality: StepEquality,
    rows: Sequence[int],
    seed: int,
) -> dict[str, float]:
    """How much the variables of two programs differ after a step on random rows.

    Args:
        towers: the program for several GPUs.
        one_gpu: the program for one GPU, or another program for several GPUs.
        equality: their comparison, which knows the copies of each variable.
        rows: the number of rows of each tower.
        seed: of rows, of values of variables, and of the order of independent ops.

    Returns:
        For each variable that was compared, the greatest difference, as a fraction of the greatest
        change of the variable.
    """
    rng = np.random.default_rng(seed)
    batch = one_gpu.batch(sum(rows), rng)
    values = {
        # Slots may be squares, or powers of a rate, which lie between 0 and 1.
        name: rng.normal(size=shape) if name in one_gpu.trained else rng.uniform(0.1, 0.9, shape)
        for name, shape in one_gpu.variables.items()
    }
    is_one = not any(tower for _, tower in (*one_gpu.fed.values(), *one_gpu.drawn.values()))
    after = one_gpu.run(batch, values, (sum(rows),) if is_one else rows)
    named = {copy: name for name, copies in equality.copies.items() for copy in copies}
    starts = {name: values[named.get(name, name)] for name in towers.variables}
    found: dict[str, float] = {}
    finals = [
        towers.run(batch, starts, rows),
        towers.run(batch, starts, rows, random.Random(seed)),
    ]
    for name, copies in equality.copies.items():
        scale = 1e-6 + max(np.abs(after[name] - values[name]).max(initial=0), 0)
        changes = [np.abs(final[copy] - after[name]).max() for final in finals for copy in copies]
        found[name] = float(max(changes) / scale)
    return found
