"""Record the graphs that a program builds, and the gradients that it takes and applies."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.program import AppliedGradient, Gradient, Step
from placement_checks.tf.keras import optimizer_variables
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import all_patched, patched
from placement_checks.tf.process_state import close_graph, open_graph_count

_APPLY = (
    Patch.V1_APPLY,
    Patch.KERAS_3_APPLY,
    Patch.KERAS_2_APPLY,
    Patch.KERAS_2_LEGACY_APPLY,
    Patch.TF_KERAS_APPLY,
    Patch.TF_KERAS_LEGACY_APPLY,
)


class GradientNotes:
    """The gradients that are taken in one graph while a program builds it.

    Attributes:
        objectives: the names of tensors whose gradients were taken, in the order of the calls.
        gradients: the ops that compute the gradients of each objective, by the objective's name.
        by_variable: the ops of the gradients with respect to a variable or another tensor, by the
            name of the op of the variable or tensor.
        by_source: the same in a function, as pairs: a variable or tensor, and the op of a gradient
            with respect to it.
    """

    def __init__(self) -> None:
        self.objectives: list[str] = []
        self.gradients: defaultdict[str, list[str]] = defaultdict(list)
        self.by_variable: defaultdict[str, list[str]] = defaultdict(list)
        self.by_source: list[tuple[Any, str]] = []
        self._built: list[tuple[int, int]] = []  # ranges of op numbers
        # For each thread that takes gradients: the first op number that is not in `_built` yet.
        # A gradient function may take gradients itself; only the outermost call is recorded.
        self._began: dict[int, int] = {}

    @property
    def has_any(self) -> bool:
        """Whether any gradient was taken."""
        return bool(self._built)

    @property
    def is_taking(self) -> bool:
        """Whether this thread is taking gradients."""
        return threading.get_ident() in self._began

    def ops(self, graph_def: Any) -> frozenset[str]:
        """The names of the ops that were built while gradients were taken."""
        return frozenset(
            node.name for start, end in self._built for node in graph_def.node[start:end]
        )

    def live_ops(self, graph: tf.Graph) -> set[tf.Operation]:
        """The ops of the recorded graph that were built while gradients were taken."""
        ops = graph.get_operations()
        return {op for start, end in self._built for op in ops[start:end]}

    def record(self, graph: tf.Graph, targets: Any, sources: Any, take: Callable[[], Any]) -> Any:
        """Call ``take``, record the ops that it adds to the graph, and return its gradients."""
        if self.is_taking:
            return take()
        thread = threading.get_ident()
        self._began[thread] = graph.version  # the number of ops in the graph
        objectives = [
            target.name
            for target in tf.nest.flatten(targets)
            if getattr(target, "graph", None) is graph
        ]
        try:
            gradients = take()
            ops = self._record_sources(graph, sources, gradients)
            for objective in objectives:
                self.gradients[objective] += ops
            return gradients
        finally:
            self._built.append((self._began.pop(thread), graph.version))
            self.objectives += objectives

    @contextlib.contextmanager
    def paused(self, graph: tf.Graph) -> Iterator[None]:
        """Exclude ops that other threads build while this thread waits for these threads."""
        thread = threading.get_ident()
        self._built.append((self._began[thread], graph.version))
        try:
            yield
        finally:
            self._began[thread] = graph.version

    def including(self, graph: tf.Graph, build: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``build`` to record its ops, although another thread calls it during `paused`."""

        def build_backward(*args: Any, **kwargs: Any) -> Any:
            start = graph.version
            try:
                return build(*args, **kwargs)
            finally:
                self._built.append((start, graph.version))

        return cast(Callable[..., Any], tf.autograph.experimental.do_not_convert(build_backward))

    def _record_sources(self, graph: tf.Graph, sources: Any, gradients: Any) -> list[str]:
        """Record gradients by their sources; a gradient is None if there is no path to its source.

        Returns:
            The names of the ops that compute the gradients.
        """
        ops: list[str] = []
        pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=False)
        for source, gradient in pairs:
            values = getattr(gradient, "values", gradient)  # of `tf.IndexedSlices`
            if getattr(values, "graph", None) is graph:
                ops.append(values.op.name)
                if is_top_level(graph):
                    self.by_variable[variable_op_name(source)].append(values.op.name)
                else:  # variables of eager code have no ops
                    self.by_source.append((source, values.op.name))
        return ops


@contextlib.contextmanager
def record_gradients() -> Iterator[Mapping[tf.Graph, GradientNotes]]:
    """Record the gradients that `tf.gradients`, optimizers and tapes take, by graph."""
    notes: defaultdict[tf.Graph, GradientNotes] = defaultdict(GradientNotes)

    def recording(take: Callable[..., Any]) -> Callable[..., Any]:
        def record(targets: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            take_these = partial(take, targets, sources, *args, **kwargs)
            if tf.executing_eagerly():
                return take_these()
            graph = tf.compat.v1.get_default_graph()
            return notes[graph].record(graph, targets, sources, take_these)

        return record

    def recording_tape(gradient: Callable[..., Any]) -> Callable[..., Any]:
        # The parameters have TensorFlow's names, since programs may pass them by keyword.
        def record(
            self: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
        ) -> Any:
            return recording(partial(gradient, self))(target, sources, *args, **kwargs)

        return record

    def recording_merge(merge: Callable[..., Any]) -> Callable[..., Any]:
        # Each replica has a thread. A gradient function that merges values of all replicas waits
        # for the other threads, which build their forward pass meanwhile.
        def merge_call(self: Any, merge_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            if graph not in notes or not notes[graph].is_taking:
                return merge(self, merge_fn, *args, **kwargs)
            with notes[graph].paused(graph):
                return merge(self, notes[graph].including(graph, merge_fn), *args, **kwargs)

        return merge_call

    with (
        patched(Patch.GRADIENTS, recording),
        patched(Patch.TAPE, recording_tape),
        patched(Patch.MERGE_CALL, recording_merge),
    ):
        yield notes


class OptimizerCall(NamedTuple):
    """One gradient that an optimizer received.

    Attributes:
        gradient: a tensor, `tf.IndexedSlices`, or a strategy's value for several replicas.
        variable: the TensorFlow or Keras variable; None if the gradient is only declared.
        name: the name of the variable's op; ``""`` for a variable of eager code.
        optimizer: the class name of the optimizer; ``""`` if the gradient is only declared.
    """

    gradient: Any
    variable: Any
    name: str
    optimizer: str


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

    def recording(make: Callable[..., None]) -> Callable[..., None]:
        def init(self: tf.Graph, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            if is_top_level(self):
                created.append(self)

        return init

    with patched(Patch.NEW_GRAPH, recording):
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
