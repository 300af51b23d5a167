"""Finds what ``tf.contrib`` and ``tensorflow.examples`` had, where it is today.

Where the parts of ``tf.contrib`` are today.

A place is a module, or what an attribute of one leads to: ``tf.`` stands for `tf.compat.v1`,
``python.`` for ``tensorflow.python``; others are packages of their own.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, Final

from placement_checks.tf import tensorflow_1
from placement_checks.tf1 import lazy_modules
from placement_checks.tf1.lazy_modules import NotInstalled, OnDemand, Used, attribute_of
from placement_checks.util.imports import module_or_none

# The packages of tf.contrib 1.15. Those without a place can be imported, as many programs import
# what they use only with some option, but nothing is found in them.
_NAMES = """
    all_reduce autograph batching bayesflow bigtable boosted_trees checkpoint cloud
    cluster_resolver coder compiler constrained_optimization copy_graph crf cudnn_rnn data
    decision_trees deprecated distribute distributions eager estimator factorization
    feature_column ffmpeg framework fused_conv gan graph_editor grid_rnn hadoop hooks ignite image
    input_pipeline integrate kafka keras kernel_methods kinesis labeled_tensor layers learn
    legacy_seq2seq libsvm linalg linear_optimizer lookup losses memory_stats metrics
    mixed_precision model_pruning mpi_collectives nccl nn opt optimizer_v2 periodic_resample
    predictor proto quantization quantize rate receptive_field recurrent reduce_slice_ops
    remote_fused_graph resampler rnn rpc saved_model seq2seq session_bundle signal slim solvers
    sparsemax specs staging stat_summarizer stateless summary tensor_forest tensorboard tensorrt
    testing text tfprof timeseries tpu training util
"""
PACKAGES = frozenset(_NAMES.split())

# By package, in the order in which its attributes are looked up.
PLACES = {
    "all_reduce": ("python.distribute.v1.all_reduce",),
    "autograph": ("tf.autograph",),
    "checkpoint": ("tf.train",),
    "cluster_resolver": ("tf.distribute.cluster_resolver",),
    "compiler": ("tf.xla.experimental",),
    "data": ("tf.data.experimental", "tf.data"),
    "distribute": ("tf.distribute", "tf.distribute.experimental"),
    "distributions": ("tf.distributions",),
    "eager": ("tf",),
    "estimator": ("tf.estimator",),
    "feature_column": ("tf.feature_column",),
    "framework": ("tf_slim", "tf_slim.ops.framework_ops", "tf.train", "tf", "tf.debugging"),
    "keras": ("tf.keras",),
    "layers": ("tf_slim.layers", "tf_slim", "tf.feature_column"),
    "linalg": ("tf.linalg",),
    "lookup": ("tf.lookup", "python.ops.lookup_ops"),
    "losses": ("tf_slim.losses", "tf.losses"),
    "metrics": ("tf_slim.metrics", "tf.metrics"),
    "mixed_precision": ("tf.mixed_precision", "tf.train"),
    "nccl": ("python.ops.nccl_ops",),
    "nn": ("tf.nn",),
    "quantization": ("tf.quantization",),
    "rnn": ("tf.nn.rnn_cell", "tf.nn"),
    "saved_model": ("tf.saved_model",),
    "signal": ("tf.signal",),
    "slim": ("tf_slim",),
    "staging": ("python.ops.data_flow_ops",),
    "stateless": ("tf.random",),
    "summary": ("python.ops.summary_ops_v2",),
    "training": ("tf_slim.training", "tf_slim.training.training", "tf_slim.training.evaluation"),
    "util": ("python.framework.tensor_util",),
}

_SHIMS = "placement_checks.tf1.shims"

# Modules of tf.contrib that have another name today, by package and own name.
RENAMED = {
    "compiler.jit": f"{_SHIMS}.jit",
    "compiler.xla": "tf.xla.experimental",
    "framework.checkpoint_utils": "python.training.checkpoint_utils",
    "data.batching": f"{_SHIMS}.functions",
    "framework.nest": "python.util.nest",
    "graph_editor.select": f"{_SHIMS}.functions",
    "learn.mnist": f"{_SHIMS}.mnist",
    "memory_stats.memory_stats_ops": f"{_SHIMS}.functions",
    "seq2seq.basic_decoder": f"{_SHIMS}.decoders",
    "seq2seq.decoder": f"{_SHIMS}.decoders",
    "seq2seq.helper": f"{_SHIMS}.decoding_helpers",
    "seq2seq.loss": f"{_SHIMS}.functions",
    "training.device_setter": f"{_SHIMS}.load_balancing",
    "training.hparam": f"{_SHIMS}.hparams",
    "metrics.set_ops": "tf.sets",
    "tensorboard.projector": "tensorboard.plugins.projector",
    "tutorials.input_data": f"{_SHIMS}.mnist",
}

# Folders between a package and its modules, beside those that are named as the package.
FOLDERS = frozenset({"datasets", "mnist", "ops", "plugins", "python"})

# The packages of tensorflow.python that modules of tf.contrib have moved to.
MOVED_TO = ("ops", "framework", "training", "util")

# Names that are nowhere else, by package.
SHIMS = {
    "data.batch_and_drop_remainder": f"{_SHIMS}.functions.batch_and_drop_remainder",
    "graph_editor.get_backward_walk_ops": f"{_SHIMS}.functions.get_backward_walk_ops",
    "learn.ModeKeys": f"{_SHIMS}.functions.ModeKeys",
    "memory_stats.BytesInUse": f"{_SHIMS}.functions.no_memory_statistics",
    "memory_stats.BytesLimit": f"{_SHIMS}.functions.no_memory_statistics",
    "memory_stats.MaxBytesInUse": f"{_SHIMS}.functions.no_memory_statistics",
    "seq2seq.BasicDecoder": f"{_SHIMS}.decoders.BasicDecoder",
    "seq2seq.BasicDecoderOutput": f"{_SHIMS}.decoders.BasicDecoderOutput",
    "seq2seq.Decoder": f"{_SHIMS}.decoders.Decoder",
    "seq2seq.GreedyEmbeddingHelper": f"{_SHIMS}.decoding_helpers.GreedyEmbeddingHelper",
    "seq2seq.Helper": f"{_SHIMS}.decoding_helpers.Helper",
    "seq2seq.SampleEmbeddingHelper": f"{_SHIMS}.decoding_helpers.SampleEmbeddingHelper",
    "seq2seq.TrainingHelper": f"{_SHIMS}.decoding_helpers.TrainingHelper",
    "seq2seq.dynamic_decode": f"{_SHIMS}.decoders.dynamic_decode",
    "seq2seq.sequence_loss": f"{_SHIMS}.functions.sequence_loss",
    "seq2seq.tile_batch": f"{_SHIMS}.decoders.tile_batch",
    "training.GreedyLoadBalancingStrategy": f"{_SHIMS}.load_balancing.GreedyLoadBalancingStrategy",
    "training.HParams": f"{_SHIMS}.hparams.HParams",
    "training.byte_size_load_fn": f"{_SHIMS}.load_balancing.byte_size_load_fn",
}


Path = tuple[str, ...]
_ROOTS = {"contrib": PACKAGES, "examples": frozenset({"tutorials"})}
_NOTHING: Final = object()


class Contrib:
    """What stands below one of the roots, by its path from there.

    The path of ``tensorflow.contrib.layers.python.layers.initializers`` is all that follows
    ``tensorflow``. A module has the attributes of the modules that are named as it is, and of all
    places of its package. A function or class comes before a module of the same name, as a package
    of version 1 such as ``framework.python.ops`` takes ``arg_scope`` out of its own module
    ``arg_scope``.
    """

    def __init__(self, of_tensorflow: Callable[[str], Any], used: Used) -> None:
        """Begin.

        Args:
            of_tensorflow: finds an attribute of the `tensorflow` that the program has, or raises
                an `AttributeError`.
            used: what was found and what was not is noted there.
        """
        self._whole = OnDemand("tf", of_tensorflow)
        self._used = used
        self._place = cache(self._find_place)
        self._named = cache(lambda path: list(self._find_named(path)))

    @staticmethod
    def has_root(name: str) -> bool:
        """Whether a name directly below ``tensorflow`` is a root."""
        return name in _ROOTS

    def is_module(self, path: Path) -> bool:
        """Whether there is a module of this path."""
        root, *rest = path
        if len(rest) < 2:
            return not rest or (rest[0] in _ROOTS[root] and self._is_installed(rest[0]))
        return rest[-1] in FOLDERS or rest[-1] == rest[0] or bool(self._named(path))

    def find(self, path: Path, name: str) -> Any:
        """An attribute of a module.

        Raises:
            AttributeError: it is nowhere.
            NotInstalled: what may have it is not installed.
        """
        whole = (*path, name)
        value = self._value(path, name)
        if value is not _NOTHING and not isinstance(value, ModuleType):
            self._used.found.add(_written(whole))
            return value
        if self.is_module(whole):
            return importlib.import_module(".".join(["tensorflow", *whole]))
        raise AttributeError(self.refusal(whole))

    def refusal(self, path: Path) -> str:
        """Note that nothing of this path was found, and say so.

        Raises:
            NotInstalled: what may have it is not installed.
        """
        name = _written(path)
        needs_slim = any(_is_of_slim(place) for place in PLACES.get(path[1], ()))
        if needs_slim and not lazy_modules.is_installed():
            raise NotInstalled(name, lazy_modules.PACKAGE)
        return self._used.refusal(name)

    def _is_installed(self, package: str) -> bool:
        """True, or an error that says what to install: a program asks for this one at once."""
        if PLACES.get(package) == (lazy_modules.PACKAGE,) and not lazy_modules.is_installed():
            raise NotInstalled(f"tf.contrib.{package}", lazy_modules.PACKAGE)
        return True

    def _value(self, path: Path, name: str) -> Any:
        if len(path) < 2:
            return _NOTHING
        if shim := SHIMS.get(f"{path[1]}.{name}"):
            return _attribute(shim)
        values = [getattr(module, name, _NOTHING) for module in self._modules(path)]
        found = [value for value in values if value is not _NOTHING]
        own = [value for value in found if not isinstance(value, ModuleType)]
        return next(iter([*own, *found]), _NOTHING)

    def _modules(self, path: Path) -> Iterator[Any]:
        """Where the attributes of a module are looked up."""
        if len(path) > 2:
            yield from self._named(path)
        for place in PLACES.get(path[1], ()):
            if (module := self._place(place)) is not None:
                yield module

    def _find_named(self, path: Path) -> Iterator[Any]:
        """The modules of today that are named as one within a package."""
        package, own = path[1], path[-1]
        if place := RENAMED.get(f"{package}.{own}"):
            yield self._place(place)
            return
        for place in PLACES.get(package, ()):
            module = getattr(self._place(place), own, None)
            if isinstance(module, ModuleType):
                yield module
        yield from lazy_modules.modules_named(own, package)
        for folder in MOVED_TO:
            module = tensorflow_1.internal_module(f"{folder}.{own}")
            if module is not None:
                yield module

    def _find_place(self, place: str) -> Any:
        """What a place of `contrib_places` is; None where this TensorFlow does not have it."""
        first, *rest = place.split(".")
        if first == "python":
            return tensorflow_1.internal_module(".".join(rest))
        if first == "tf":
            with contextlib.suppress(AttributeError):
                return attribute_of(self._whole, rest)
            return None
        if _is_of_slim(place) and not lazy_modules.is_installed():
            return None
        return module_or_none(place)


def _written(path: Path) -> str:
    return ".".join(("tf", *path))


def _is_of_slim(place: str) -> bool:
    return place.split(".")[0] == lazy_modules.PACKAGE


def _attribute(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
