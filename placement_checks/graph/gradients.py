"""Notes, while a program builds, what it takes gradients of and which ops this adds.

Records, while a program builds, the gradients that its optimisers are called with.

Which graph a builder built: the default one, or one that it made itself.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.program import AppliedGradient, Gradient, Step
from placement_checks.tf.graphs import around_gradients
from placement_checks.tf.keras import trained_by
from placement_checks.tf.patching import patched
from placement_checks.tf.process_state import close_graph, open_graphs


def is_top_level(graph: tf.Graph) -> bool:
    """Whether it is a graph by itself, and not the body of a function."""
    return type(graph) is tf.Graph


@contextlib.contextmanager
def record_graphs() -> Iterator[list[tf.Graph]]:
    """The graphs that are made in this block, without the bodies of functions.

    Those that are the default one when it ends, such as that of a session which stays open, are so
    no longer.
    """
    made: list[tf.Graph] = []
    opened = open_graphs()

    def recording(make: Callable[..., None]) -> Callable[..., None]:
        def init(self: tf.Graph, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            if is_top_level(self):
                made.append(self)

        return init

    with patched(tf.Graph, "__init__", recording):
        try:
            yield made
        finally:
            while open_graphs() > opened:
                close_graph()


def select_graph(default: tf.Graph, made: Sequence[tf.Graph], returned: object) -> tf.Graph:
    """The graph that is the program.

    It is the one of what the builder returned. If that names none, it is the default graph, or
    the last one that the builder made if it built nothing into the default graph.
    """
    named = [graph for graph in _graphs_of(returned) if graph is default or graph in made]
    if named:
        return default if default in named else named[0]
    if default.get_operations():
        return default
    return next((graph for graph in reversed(made) if graph.get_operations()), default)


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


_KERAS = ("keras", "tf_keras")


class Call(NamedTuple):
    """What an optimiser was called with.

    Attributes:
        gradient: the tensor, the slices or what a strategy makes of several.
        variable: that of TensorFlow or Keras; None where a program only declares it.
        name: that of its op; ``""`` for a variable of eager code, which has none.
        optimizer: the class of the optimiser; ``""`` where a gradient is only declared.
    """

    gradient: Any
    variable: Any
    name: str
    optimizer: str


def in_graph(calls: Iterable[Call], graph: tf.Graph) -> list[AppliedGradient]:
    """The gradients that are applied in a graph, or in the bodies of its functions."""
    return [
        AppliedGradient(
            _tensors(graph, call.gradient), call.name, call.optimizer, home is not graph
        )
        for call in calls
        if call.name
        and ((home := getattr(call.gradient, "graph", graph)) is graph or not is_top_level(home))
    ]


def with_declared(calls: Iterable[Call], pairs: Any, program: str) -> Iterable[Call]:
    """The calls of optimisers, in which what a program itself declares takes precedence.

    Raises:
        InputError: what it declares are not pairs of a gradient and its variable.
    """
    by_variable = {call.name: call for call in calls}
    try:
        for gradient, variable in pairs:
            name = op_name(variable)
            called = by_variable.get(name, Call(None, None, name, ""))
            by_variable[name] = called._replace(gradient=gradient)
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            program,
            f"its gradients are {pairs!r:.80}",
            "return pairs of a gradient and its variable: [(gradient, variable), …]",
        ) from None
    return by_variable.values()


def _tensors(graph: tf.Graph, gradient: Any) -> Gradient | None:
    """The tensors of a gradient by name; None where they are not in this graph itself."""
    sliced = isinstance(gradient, tf.IndexedSlices)
    parts = (gradient.values, gradient.indices) if sliced else (gradient,)
    if any(getattr(part, "graph", None) is not graph for part in parts):
        return None
    return Gradient(*(part.name for part in parts))


def op_name(variable: Any) -> str:
    """The name of the op that holds a variable, of TensorFlow or of Keras.

    ``""`` for one that eager code made, as a module's variable may be that a graph is built with.
    """
    inner = getattr(variable, "value", None)
    if inner is not None and not callable(inner):  # Keras 3 has a variable in a variable
        variable = inner
    handle = getattr(variable, "handle", None)
    holder = variable if handle is None else handle
    return "" if _is_eager(holder) else str(holder.op.name)


def _is_eager(holder: Any) -> bool:
    return isinstance(holder, tf.Tensor) and not tf.is_symbolic_tensor(holder)


@contextlib.contextmanager
def record_applied() -> Iterator[list[Call]]:
    """Record the gradients that optimisers of `tf.compat.v1.train` and of Keras are called with.

    The list grows while the block runs; the optimisers are as they were when it ends.
    """
    applied: list[Call] = []
    patched: list[tuple[type, str, Any]] = []
    try:
        for optimizer in (tf.compat.v1.train.Optimizer, *_keras_optimizers()):
            # Keras 3 has apply, which its apply_gradients calls.
            name = "apply" if hasattr(optimizer, "apply") else "apply_gradients"
            patched.append((optimizer, name, optimizer.__dict__.get(name)))
            setattr(
                optimizer, name, _recording(getattr(optimizer, name), name == "apply", applied)
            )
        yield applied
    finally:
        for optimizer, name, original in patched:
            if original is None:
                delattr(optimizer, name)
            else:
                setattr(optimizer, name, original)


def _recording(
    original: Callable[..., Any], separate: bool, applied: list[Call]
) -> Callable[..., Any]:
    """``original``, an optimiser's method, that records the gradients it is given.

    Keras 3 gives gradients and variables in two lists, ``separate``; the others give pairs.
    """

    def apply(self: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = list(gradients)
        pairs = gradients
        if separate:
            named: Any = args[0] if args else kwargs.get("trainable_variables")
            variables = trained_by(self) if named is None else named
            pairs = list(zip(gradients, variables, strict=False))
        applied.extend(
            Call(gradient, variable, _applied_to(variable), type(self).__name__)
            for gradient, variable in pairs
        )
        return original(self, gradients, *args, **kwargs)

    return apply


def _applied_to(variable: Any) -> str:
    """The name of the op of a variable; ``""`` in a function that eager code calls."""
    is_eager = tf.compat.v1.executing_eagerly_outside_functions()
    return "" if is_eager else op_name(variable)


def _keras_optimizers() -> Iterator[type]:
    for name in _KERAS:
        keras = sys.modules.get(name)
        optimizers = getattr(keras, "optimizers", None)
        if optimizers is not None:
            yield optimizers.Optimizer
            if not hasattr(optimizers.Optimizer, "apply"):  # Keras 2 keeps the earlier ones too
                yield optimizers.legacy.Optimizer


class GradientNotes:
    """The gradients that are taken in one graph while a program builds.

    Attributes:
        objectives: the tensors that gradients were taken of, by name, in the order of the calls.
        gradients: the ops that yield the gradients of each objective, by the objective's name.
        taken: the ops that yield the gradients by each variable or tensor, by its op's name.
        by_source: in a function, pairs of a variable or tensor, and the op of a gradient by it.
    """

    def __init__(self) -> None:
        self.objectives: list[str] = []
        self.gradients: defaultdict[str, list[str]] = defaultdict(list)
        self.taken: defaultdict[str, list[str]] = defaultdict(list)
        self.by_source: list[tuple[Any, str]] = []
        self._built: list[tuple[int, int]] = []
        # By the threads that take gradients, where what each has built last begins; gradients of
        # a part are taken within those of the whole.
        self._began: dict[int, int] = {}

    @property
    def has_any(self) -> bool:
        """Whether any gradient was taken."""
        return bool(self._built)

    @property
    def is_taking(self) -> bool:
        """Whether this thread takes gradients, within which others are taken of a part."""
        return threading.get_ident() in self._began

    def ops(self, graph_def: Any) -> frozenset[str]:
        """The names of the ops that were built while gradients were taken."""
        return frozenset(
            node.name for start, end in self._built for node in graph_def.node[start:end]
        )

    def live_ops(self, graph: tf.Graph) -> set[tf.Operation]:
        """The ops themselves, in the graph that was noted."""
        ops = graph.get_operations()
        return {op for start, end in self._built for op in ops[start:end]}

    def recorded(
        self, graph: tf.Graph, targets: Any, sources: Any, take: Callable[[], Any]
    ) -> Any:
        """What ``take`` returns, with notes of what it adds to the graph."""
        if self.is_taking:
            return take()
        thread = threading.get_ident()
        self._began[thread] = graph.version  # the number of its ops
        objectives = [
            target.name
            for target in tf.nest.flatten(targets)
            if getattr(target, "graph", None) is graph
        ]
        try:
            gradients = take()
            ops = self._note_taken(graph, sources, gradients)
            for objective in objectives:
                self.gradients[objective] += ops
            return gradients
        finally:
            self._built.append((self._began.pop(thread), graph.version))
            self.objectives += objectives

    @contextlib.contextmanager
    def waiting(self, graph: tf.Graph) -> Iterator[None]:
        """While this thread, which takes gradients, waits for others that build in the graph."""
        thread = threading.get_ident()
        self._built.append((self._began[thread], graph.version))
        try:
            yield
        finally:
            self._began[thread] = graph.version

    def noted(self, graph: tf.Graph, build: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which is called for threads that take gradients and wait for it."""

        def build_backward(*args: Any, **kwargs: Any) -> Any:
            start = graph.version
            try:
                return build(*args, **kwargs)
            finally:
                self._built.append((start, graph.version))

        return cast(Callable[..., Any], tf.autograph.experimental.do_not_convert(build_backward))

    def _note_taken(self, graph: tf.Graph, sources: Any, gradients: Any) -> list[str]:
        """Note the gradients of a call, as many as its sources; None where there is none.

        Returns:
            The names of the ops that yield them.
        """
        ops: list[str] = []
        pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=False)
        for source, gradient in pairs:
            values = getattr(gradient, "values", gradient)  # of rows, their values
            if getattr(values, "graph", None) is graph:
                ops.append(values.op.name)
                if is_top_level(graph):
                    self.taken[op_name(source)].append(values.op.name)
                else:  # eager code's variables have no ops
                    self.by_source.append((source, values.op.name))
        return ops


@contextlib.contextmanager
def record_gradients() -> Iterator[Mapping[tf.Graph, GradientNotes]]:
    """Note the gradients that are taken in each graph, by `tf.gradients`, optimisers and tapes."""
    notes: defaultdict[tf.Graph, GradientNotes] = defaultdict(GradientNotes)

    def recording(take: Callable[..., Any]) -> Callable[..., Any]:
        def taken(targets: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            take_these = partial(take, targets, sources, *args, **kwargs)
            if tf.executing_eagerly():
                return take_these()
            graph = tf.compat.v1.get_default_graph()
            return notes[graph].recorded(graph, targets, sources, take_these)

        return taken

    def of_tape(gradient: Callable[..., Any]) -> Callable[..., Any]:
        # Programs may name its arguments.
        def taken(
            self: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
        ) -> Any:
            return recording(partial(gradient, self))(target, sources, *args, **kwargs)

        return taken

    def of_replica(merge: Callable[..., Any]) -> Callable[..., Any]:
        # Each replica has a thread. One that brings values of all together within its gradients
        # waits until the others are there, which build their forward pass meanwhile.
        def merge_call(self: Any, merge_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            if graph not in notes or not notes[graph].is_taking:
                return merge(self, merge_fn, *args, **kwargs)
            with notes[graph].waiting(graph):
                return merge(self, notes[graph].noted(graph, merge_fn), *args, **kwargs)

        return merge_call

    with (
        around_gradients(recording),
        patched(tf.GradientTape, "gradient", of_tape),
        patched(tf.distribute.ReplicaContext, "merge_call", of_replica),
    ):
        yield notes
