"""Runs a program as one rank with the stand-in for Horovod, and records its collectives."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import tensorflow as tf

from placement_checks.core.op_types import CONST, OVERWRITES, RANDOM, VARIABLES
from placement_checks.core.placement import producer_of
from placement_checks.core.ranks import BROADCAST, Rank, RankRecord
from placement_checks.core.user_code import calling_frames
from placement_checks.horovod.collectives import Process, digest, kind_of, run_as
from placement_checks.horovod.file_writes import record_file_writes
from placement_checks.tf.eager import without_conversion
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import patched
from placement_checks.util.imports import Others, Redirector, created_module, without_modules
from placement_checks.util.walks import walk

_tf1 = tf.compat.v1
_PACKAGE = "horovod"
_MPI = "mpi4py"  # without mpirun, each process would be the only rank
_ROOM = "placement_checks.horovod"
# For each module of Horovod: the modules of the stand-in that define its names.
_MODULES = {
    "horovod.tensorflow": ("ranks", "mpi_ops", "broadcasts", "tensorflow"),
    "horovod.tensorflow.compression": ("gradients",),
    "horovod.tensorflow.elastic": ("elastic",),
    "horovod.tensorflow.mpi_ops": ("ranks", "mpi_ops"),
    "horovod.tensorflow.keras": ("ranks", "keras"),
    "horovod.tensorflow.keras.callbacks": ("callbacks",),
    "horovod.tensorflow.keras.elastic": ("elastic",),
    "horovod.keras": ("ranks", "keras"),
    "horovod.keras.callbacks": ("callbacks",),
    "horovod.keras.elastic": ("elastic",),
}
# Horovod does not import these modules when their package is imported.
_IMPORTED_ALONE = ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras")
_OTHERS = {
    "horovod.torch": "it is Horovod for PyTorch, and this command checks TensorFlow",
    "horovod.mxnet": "it is Horovod for MXNet, and this command checks TensorFlow",
    "horovod.spark": "check the function that it runs on each rank",
    "horovod.ray": "check the function that it runs on each rank",
}
VERSION = "0.28.1"


class RankWatch:
    """Records the collectives and broadcasts of a program that runs as one rank."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._collectives: list[str] = []
        self._broadcast: set[str] = set()
        self._sessions: dict[tf.Graph, Any] = {}
        self._execute: Callable[..., list[Any]] | None = None

    def wrap_run(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """Wrap the method that every session run calls, to note the collectives of a run."""
        self._execute = original

        def run(session: Any, handle: Any, targets: Any, fetches: Any, *rest: Any) -> list[Any]:
            result = original(session, handle, targets, fetches, *rest)
            self._sessions[session.graph] = session
            self._note_run([*targets, *fetches])
            return result

        return run

    def _note_run(self, fetched: Sequence[Any]) -> None:
        def before(op: tf.Operation) -> list[tf.Operation]:
            return [*(tensor.op for tensor in op.inputs), *op.control_inputs]

        ran = set()
        writes: defaultdict[str, list[tf.Operation]] = defaultdict(list)
        for op in walk((getattr(item, "op", item) for item in fetched), before):
            if kind := kind_of(op):
                ran.add(op.name)
                if kind.startswith(BROADCAST) and not any(map(_is_assigned, op.outputs)):
                    self._process.receives = True
            elif op.type in OVERWRITES:
                writes[producer_of(op.inputs[0].name)].append(op)
        for variable, ops in writes.items():
            # Another write, such as an initializer, must come before the broadcast.
            others = set(itertools.filterfalse(self._assigns_equal_value, ops))
            sent = [op for op in ops if op not in others]
            if any(others.issubset(walk([op], before)) for op in sent):
                self._broadcast.add(variable)
            else:
                self._broadcast.discard(variable)
        self._collectives += sorted(ran)
        self._process.frames.update(dict.fromkeys([*ran, *writes], calling_frames()))

    def _assigns_equal_value(self, write: tf.Operation) -> bool:
        """Whether an op assigns a broadcast value, or one that is made of broadcast variables."""
        if _assigns_broadcast(write):
            return True
        behind = [*walk([write.inputs[1].op], lambda op: [tensor.op for tensor in op.inputs])]
        sources = [op for op in behind if not op.inputs]
        variables = [op for op in sources if op.type in VARIABLES]
        return (
            bool(variables)
            and all(op.name in self._broadcast or op.type == CONST for op in sources)
            and not any(op.type in RANDOM for op in behind)
        )

    def record(
        self,
        graph: tf.Graph | None,
        values: Mapping[str, Any],
        gpus: Sequence[int] | None,
    ) -> RankRecord:
        """Return the record of the rank. The variables of ``graph`` are read.

        Args:
            graph: the graph of the step of a TensorFlow 1 program; None for eager code.
            values: the values of the trainable variables of eager code before the step, by name;
                empty if the program may still broadcast them after the step.
            gpus: the GPUs that the program made visible; None if it sees all.
        """
        starts: Mapping[str, str] = {name: digest(value) for name, value in values.items()}
        if graph is not None:
            starts = self._starts(graph)
        if self._process.broadcasts_later or self._process.receives:
            starts = {}
        # The variables have other names in the graph of the step, so their values are compared.
        sent = {known or digest(each.numpy()) for each, known in self._process.broadcast}
        broadcast = {name for name, value in starts.items() if value in sent}
        return RankRecord(
            self._process.rank,
            [*self._process.collectives, *self._collectives],
            frozenset(self._broadcast | broadcast),
            starts,
            gpus,
            list(dict.fromkeys(self._process.writes)),
            self._process.frames,
        )

    def _starts(self, graph: tf.Graph) -> Mapping[str, str]:
        """Digests of the variables that no later broadcast assigns."""
        session, execute = self._sessions.get(graph), self._execute
        if session is None or execute is None:
            return {}
        ran = set(self._collectives)
        later = {
            producer_of(op.inputs[0].name)
            for op in graph.get_operations()
            if op.type in OVERWRITES and _assigns_broadcast(op) and op.inputs[1].op.name not in ran
        }
        digests: dict[str, str] = {}
        for variable in graph.get_collection(_tf1.GraphKeys.GLOBAL_VARIABLES):
            name = producer_of(variable.name)
            if name in later:
                continue
            read = graph.as_graph_element(variable)
            with contextlib.suppress(tf.errors.OpError):  # the variable is not initialized
                (value,) = execute(session, None, [], [read], {}, None, None)
                digests[name] = digest(value)
        return digests


def _is_assigned(tensor: tf.Tensor) -> bool:
    return any(each.type in OVERWRITES for each in tensor.consumers())


def _assigns_broadcast(write: tf.Operation) -> bool:
    """Whether an op assigns the result of a broadcast."""
    return kind_of(write.inputs[1].op).startswith(BROADCAST)


@contextlib.contextmanager
def stand_in_for_horovod() -> Iterator[RankWatch]:
    """Let ``import horovod`` import the stand-in in this block; the environment names the rank."""
    process = Process(Rank.from_environment(os.environ))
    watch = RankWatch(process)
    hidden = [name for name in sys.modules if name.partition(".")[0] in (_PACKAGE, _MPI)]
    assert not hidden  # this process has imported nothing of the program
    with (
        without_modules(lambda name: name.partition(".")[0] == _PACKAGE),
        Redirector(_find_spec),
        run_as(process),
        patched(Patch.RUN, watch.wrap_run),
        record_file_writes(process.writes),
        without_conversion(_ROOM),  # which takes 1.7 CPU seconds and changes nothing
    ):
        yield watch


def _find_spec(name: str, _others: Others) -> ModuleSpec | None:
    """The spec of a module of the stand-in; None if it is not in the package ``horovod``.

    Raises:
        ModuleNotFoundError: the stand-in lacks the module.
    """
    package = name.partition(".")[0]
    if package == _MPI:
        raise ModuleNotFoundError(
            f"--horovod does not support {name}: use hvd.rank() and the collectives of hvd",
            name=name,
        )
    if package != _PACKAGE:
        return None
    if name != _PACKAGE and name not in _MODULES:
        reason = _OTHERS.get(".".join(name.split(".")[:2]))
        reason = reason or "it is not a part of the stand-in; docs/horovod.md lists its names"
        raise ModuleNotFoundError(f"--horovod does not support {name}: {reason}", name=name)
    return created_module(name, partial(_create_module, name), _import_submodules)


def _create_module(name: str) -> ModuleType:
    module = ModuleType(name)
    if name == _PACKAGE:
        module.__dict__["__version__"] = VERSION
        return module
    for source in _MODULES[name]:
        names = vars(importlib.import_module(f"{_ROOM}.{source}")).items()
        own = {name: value for name, value in names if not name.startswith("__")}
        module.__dict__.update(own)
    module.__dict__["__getattr__"] = partial(_missing_attribute, name)
    return module


def _import_submodules(module: ModuleType) -> None:
    """Import the submodules that Horovod's module imports itself."""
    for name in _MODULES:
        if name.rpartition(".")[0] == module.__name__ and name not in _IMPORTED_ALONE:
            importlib.import_module(name)


def _missing_attribute(module: str, name: str) -> None:
    """Raise an error for a name that a module of the stand-in lacks.

    Names that begin with an underscore get Python's message, because Python itself looks them up.
    """
    message = f"module '{module}' has no attribute '{name}'"
    if not name.startswith("_"):
        message += " in the stand-in of --horovod: docs/horovod.md lists its names"
    raise AttributeError(message)
