"""Record the graphs that a program builds, and the gradients that it takes and applies."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import UNKNOWN_TENSOR, GradientCall, producer_of
from placement_checks.core.program import AppliedGradient, Gradient, Step
from placement_checks.tf.keras import optimizer_variables
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import afterwards, all_patched, patched
from placement_checks.tf.process_state import close_graph, open_graph_count

_APPLY = (
    Patch.V1_APPLY,
    Patch.KERAS_3_APPLY,
    Patch.KERAS_2_APPLY,
    Patch.KERAS_2_LEGACY_APPLY,
    Patch.TF_KERAS_APPLY,
    Patch.TF_KERAS_LEGACY_APPLY,
)


@dataclass
class GradientRequest:
    """The arguments of a call that takes gradients, as the program gives them.

    Attributes:
        targets, sources: the objectives and the sources; lists, nested structures or single ones.
        weights: ``grad_ys`` or ``output_gradients``; None for ones.
        stopped: ``stop_gradients``; None for no tensors.
        is_of_function: whether TensorFlow differentiates the body of a function.
    """

    targets: Any
    sources: Any
    weights: Any = None
    stopped: Any = None
    is_of_function: bool = False


class RecordedCall(NamedTuple):
    """One call that takes gradients in a graph.

    Attributes:
        call: the call in the names of its graph, without its ops. Variables of eager code have no
            name there.
        sources, stopped: the tensors and variables that the call names.
        built: the ops that the call built, as ranges of op numbers.
    """

    call: GradientCall
    sources: Sequence[Any]
    stopped: Sequence[Any]
    built: Sequence[tuple[int, int]]


class _Taking(NamedTuple):
    """A thread that takes gradients: the ops built so far, and the number of the next op."""

    built: list[tuple[int, int]]
    start: int


class GradientNotes:
    """The gradients that are taken in one graph while a program builds it.

    A gradient function may take gradients itself; only the outermost call is recorded. Where
    TensorFlow takes gradients to differentiate the body of a function, only the ops are recorded.

    Attributes:
        calls: the calls, in the order of their ends.
    """

    def __init__(self, active: set[int] | None = None) -> None:
        """Create empty notes; all graphs share ``active``, the threads that take gradients."""
        self.calls: list[RecordedCall] = []
        self._active = set() if active is None else active
        self._built: list[tuple[int, int]] = []  # ranges of op numbers
        self._taking: dict[int, _Taking] = {}  # by thread

    @property
    def has_any(self) -> bool:
        """Whether any gradient was taken."""
        return bool(self._built)

    @property
    def is_taking(self) -> bool:
        """Whether this thread is taking gradients in this graph."""
        return threading.get_ident() in self._taking

    @property
    def objectives(self) -> Sequence[str]:
        """The tensors whose gradients were taken, in the order of the calls."""
        names = (name for each in self.calls for name in each.call.objectives)
        return [name for name in names if name != UNKNOWN_TENSOR]

    @property
    def by_source(self) -> Iterator[tuple[Any, str]]:
        """The variables and tensors that have a gradient, each with an op of the gradient."""
        for each in self.calls:
            for source, tensors in zip(each.sources, each.call.gradients, strict=True):
                if tensors:
                    yield source, producer_of(tensors[0])

    def finished_calls(self, graph_def: Any) -> Sequence[GradientCall]:
        """The calls with their ops; ``graph_def`` is the complete graph."""
        nodes = graph_def.node
        return [
            each.call._replace(
                ops=frozenset(node.name for start, end in each.built for node in nodes[start:end])
            )
            for each in self.calls
        ]

    def live_ops(self, graph: tf.Graph) -> set[tf.Operation]:
        """The ops of the recorded graph that were built while gradients were taken."""
        ops = graph.get_operations()
        return {op for start, end in self._built for op in ops[start:end]}

    def record(self, graph: tf.Graph, request: GradientRequest, take: Callable[[], Any]) -> Any:
        """Call ``take``, record the ops that it adds to the graph, and return its gradients."""
        if self.is_taking:
            return take()
        thread = threading.get_ident()
        is_outermost = thread not in self._active
        self._active.add(thread)
        self._taking[thread] = _Taking([], graph.version)  # the number of ops in the graph
        gradients: Any = None
        try:
            gradients = take()
            return gradients
        finally:
            built, start = self._taking.pop(thread)
            self._add(built, start, graph)
            if is_outermost:
                self._active.remove(thread)
                if not request.is_of_function:
                    self.calls.append(_recorded(graph, request, gradients, built))

    @contextlib.contextmanager
    def paused(self, graph: tf.Graph) -> Iterator[None]:
        """Exclude ops that other threads build while this thread waits for these threads."""
        thread = threading.get_ident()
        built, start = self._taking[thread]
        self._add(built, start, graph)
        try:
            yield
        finally:
            self._taking[thread] = _Taking(built, graph.version)

    def including(self, graph: tf.Graph, build: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``build`` to record its ops, although another thread calls it during `paused`."""
        built = self._taking[threading.get_ident()].built

        def build_backward(*args: Any, **kwargs: Any) -> Any:
            start = graph.version
            try:
                return build(*args, **kwargs)
            finally:
                self._add(built, start, graph)

        return cast(Callable[..., Any], tf.autograph.experimental.do_not_convert(build_backward))

    def _add(self, built: list[tuple[int, int]], start: int, graph: tf.Graph) -> None:
        """Record that a call has built all ops from number ``start`` on."""
        for ranges in (built, self._built):
            ranges.append((start, graph.version))


def _recorded(
    graph: tf.Graph, request: GradientRequest, gradients: Any, built: Sequence[tuple[int, int]]
) -> RecordedCall:
    """Name the tensors of a call; ``gradients`` is None if the call failed."""
    targets, sources = tf.nest.flatten(request.targets), tf.nest.flatten(request.sources)
    weights = [] if request.weights is None else tf.nest.flatten(request.weights)
    stopped = [] if request.stopped is None else tf.nest.flatten(request.stopped)
    of_sources = zip_longest(sources, tf.nest.flatten(gradients)[: len(sources)])
    call = GradientCall(
        objectives=[_tensor_name(graph, target) for target in targets],
        weights=[
            "" if weight is None else _tensor_name(graph, weight)
            for _, weight in zip_longest(targets, weights[: len(targets)])
        ],
        sources=[_source_name(source) for source in sources],
        gradients=[_gradient_names(graph, gradient) for _, gradient in of_sources],
        stopped=[_source_name(source) for source in stopped],
    )
    return RecordedCall(call, sources, stopped, built)


def _tensor_name(graph: tf.Graph, tensor: Any) -> str:
    """The name of a tensor of a graph; `UNKNOWN_TENSOR` for anything else."""
    return str(tensor.name) if getattr(tensor, "graph", None) is graph else UNKNOWN_TENSOR


def _source_name(source: Any) -> str:
    """The name of a variable's op or of a tensor; `UNKNOWN_TENSOR` for anything else."""
    if tf.is_symbolic_tensor(source) and source.op.type not in VARIABLES:
        return str(source.name)
    try:
        return variable_op_name(source) or UNKNOWN_TENSOR
    except AttributeError:  # a `tf.RaggedTensor`, for example
        return UNKNOWN_TENSOR


def _gradient_names(graph: tf.Graph, gradient: Any) -> Sequence[str]:
    """The tensors of a gradient; empty if there is no path from the objectives to its source."""
    is_sliced = isinstance(gradient, tf.IndexedSlices)
    parts = (gradient.values, gradient.indices) if is_sliced else (gradient,)
    if not is_sliced and not tf.is_symbolic_tensor(gradient):
        parts = tf.nest.flatten(gradient, expand_composites=True)
    names = [_tensor_name(graph, part) for part in parts]
    return () if names[0] == UNKNOWN_TENSOR else tuple(names)


@contextlib.contextmanager
def record_gradients() -> Iterator[Mapping[tf.Graph, GradientNotes]]:
    """Record the gradients that `tf.gradients`, optimizers and tapes take, by graph."""
    notes: defaultdict[tf.Graph, GradientNotes] = defaultdict(partial(GradientNotes, set[int]()))

    def recording(take: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(take)

        def record(*args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly():
                return take(*args, **kwargs)
            graph = tf.compat.v1.get_default_graph()
            given = parameters.bind(*args, **kwargs).arguments
            request = GradientRequest(
                given["ys"],
                given["xs"],
                given.get("grad_ys"),
                given.get("stop_gradients"),
                given.get("src_graph") not in (None, graph),
            )
            return notes[graph].record(graph, request, partial(take, *args, **kwargs))

        return record

    def recording_tape(gradient: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(gradient)

        def record(*args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly():
                return gradient(*args, **kwargs)
            graph = tf.compat.v1.get_default_graph()
            given = parameters.bind(*args, **kwargs)
            arguments = given.arguments
            request = GradientRequest(arguments["target"], arguments["sources"])

            def take() -> Any:
                weights = arguments.get("output_gradients")
                if weights is not None:
                    # The tape would convert numbers to tensors whose names are unknown.
                    request.weights = tf.nest.map_structure(_as_tensor, weights)
                    arguments["output_gradients"] = request.weights
                return gradient(*given.args, **given.kwargs)

            return notes[graph].record(graph, request, take)

        return record

    def recording_merge(merge: Callable[..., Any]) -> Callable[..., Any]:
        # Each replica has a thread. A gradient function that merges values of all replicas waits
        # for the other threads, which build their forward pass meanwhile.
        def merge_call(self: Any, merge_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            if graph not in notes or not notes[graph].is_taking:
                return merge(self, merge_fn, *args, **kwargs)
            build = notes[graph].including(graph, merge_fn)
            with notes[graph].paused(graph):
                return merge(self, build, *args, **kwargs)

        return merge_call

    with (
        patched(Patch.GRADIENTS, recording),
        patched(Patch.TAPE, recording_tape),
        patched(Patch.MERGE_CALL, recording_merge),
    ):
        yield notes


def _as_tensor(weight: Any) -> Any:
    """Convert a number, an array, a variable or an eager tensor to a tensor of the graph."""
    is_composite = isinstance(weight, tf.IndexedSlices | tf.RaggedTensor | tf.SparseTensor)
    if weight is None or is_composite or tf.is_symbolic_tensor(weight):
        return weight
    return tf.convert_to_tensor(weight)


class OptimizerCall(NamedTuple):
    """One gradient that an optimizer received."""

    gradient: Any  # a tensor, `tf.IndexedSlices`, or a strategy's value for several replicas
    variable: Any  # the TensorFlow or Keras variable; None if the gradient is only declared
    name: str  # the name of the variable's op; `""` for a variable of eager code
    optimizer: str  # the class name of the optimizer; `""` if the gradient is only declared


@contextlib.contextmanager
def record_applied() -> Iterator[list[OptimizerCall]]:
    """Record the gradients that optimizers of `tf.compat.v1.train` and of Keras receive.

    The list grows while the block runs.
    """
    applied: list[OptimizerCall] = []
    patches = {
        patch: partial(_recording_apply, separate=patch is Patch.KERAS_3_APPLY, applied=applied)
        for patch in _APPLY
        if patch.is_loaded
    }
    with all_patched(patches):
        yield applied


def _recording_apply(
    original: Callable[..., Any], *, separate: bool, applied: list[OptimizerCall]
) -> Callable[..., Any]:
    """Wrap an optimizer's method: record the gradients that it receives.

    Keras 3 passes gradients and variables in two lists (``separate``), other optimizers get pairs.
    """

    def apply(self: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = list(gradients)
        pairs = gradients
        if separate:
            named: Any = args[0] if args else kwargs.get("trainable_variables")
            variables = optimizer_variables(self) if named is None else named
            pairs = list(zip(gradients, variables, strict=False))
        is_eager = tf.compat.v1.executing_eagerly_outside_functions()
        applied.extend(
            OptimizerCall(
                gradient,
                variable,
                "" if is_eager else variable_op_name(variable),
                type(self).__name__,
            )
            for gradient, variable in pairs
        )
        return original(self, gradients, *args, **kwargs)

    return apply


def applied_in_graph(
    calls: Iterable[OptimizerCall], graph: tf.Graph, reduced: Callable[[Any], Any]
) -> list[AppliedGradient]:
    """The gradients that are applied in a graph, or in the bodies of its functions.

    Args:
        calls: the calls of optimizers.
        graph: the graph.
        reduced: returns the result of reducing a tensor over replicas. An optimizer under a
            strategy receives the gradient of one replica, and applies the sum over all replicas.
    """
    return [
        AppliedGradient(
            _gradient_tensors(graph, call.gradient, reduced),
            call.name,
            call.optimizer,
            home is not graph,
        )
        for call in calls
        if call.name
        and ((home := getattr(call.gradient, "graph", graph)) is graph or not is_top_level(home))
    ]


def _gradient_tensors(
    graph: tf.Graph, gradient: Any, reduced: Callable[[Any], Any]
) -> Gradient | None:
    """The tensors of an applied gradient; None if the graph itself does not contain them."""
    sliced = isinstance(gradient, tf.IndexedSlices)
    parts = (gradient.values, gradient.indices) if sliced else (gradient,)
    if any(getattr(part, "graph", None) is not graph for part in parts):
        return None
    return Gradient(*(reduced(part).name for part in parts))


def replace_declared(
    calls: Iterable[OptimizerCall], pairs: Any, program: str
) -> Iterable[OptimizerCall]:
    """Replace gradients of optimizer calls with the gradients that the program declares.

    Raises:
        InputError: the declared gradients are not pairs of a gradient and its variable.
    """
    by_variable = {call.name: call for call in calls}
    try:
        for gradient, variable in pairs:
            name = variable_op_name(variable)
            called = by_variable.get(name, OptimizerCall(None, None, name, ""))
            by_variable[name] = called._replace(gradient=gradient)
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            program,
            f"its gradients are {pairs!r:.80}",
            "return pairs of a gradient and its variable: [(gradient, variable), …]",
        ) from None
    return by_variable.values()


def variable_op_name(variable: Any) -> str:
    """The name of the op that holds a variable of TensorFlow or Keras.

    ``""`` for an eager variable, such as a variable that a module creates during its import.
    """
    inner = getattr(variable, "value", None)
    if inner is not None and not callable(inner):  # a Keras 3 variable contains a variable
        variable = inner
    handle = getattr(variable, "handle", None)
    holder = variable if handle is None else handle
    is_eager = isinstance(holder, tf.Tensor) and not tf.is_symbolic_tensor(holder)
    return "" if is_eager else str(holder.op.name)


def is_top_level(graph: tf.Graph) -> bool:
    """Whether a graph is not the body of a function."""
    return type(graph) is tf.Graph


@contextlib.contextmanager
def record_graphs() -> Iterator[list[tf.Graph]]:
    """Record the graphs that this block creates, except bodies of functions.

    On exit, graphs that the block left open are closed, such as the graph of an open session.
    """
    created: list[tf.Graph] = []
    open_before = open_graph_count()

    def note(graph: tf.Graph, *_: Any) -> None:
        if is_top_level(graph):
            created.append(graph)

    with patched(Patch.NEW_GRAPH, afterwards(note)):
        try:
            yield created
        finally:
            while open_graph_count() > open_before:
                close_graph()


def select_graph(default: tf.Graph, created: Sequence[tf.Graph], returned: object) -> tf.Graph:
    """Choose the program's graph.

    The objects that the builder returned decide. If they belong to no graph, the default graph is
    chosen. If the default graph is empty, the last graph with ops that the builder created is
    chosen.
    """
    named = [graph for graph in _graphs_of(returned) if graph is default or graph in created]
    if named:
        return default if default in named else named[0]
    if default.get_operations():
        return default
    return next((graph for graph in reversed(created) if graph.get_operations()), default)


def _graphs_of(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _graphs_of(item)
    elif isinstance(value, Mapping):
        yield from _graphs_of(list(value.values()))
    elif isinstance(value, Step):
        yield from _graphs_of([value.train_op, value.loss, value.inputs, value.gradients])
    elif isinstance(value, tf.Graph):
        yield value
    elif isinstance(graph := getattr(value, "graph", None), tf.Graph):
        yield graph
