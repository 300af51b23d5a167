"""Find the names of ``tf.contrib`` and ``tensorflow.examples`` in today's packages.

The tables map packages, modules and names to locations. A location is the dotted path of a module
or of a module's attribute: ``tf.…`` is below `tf.compat.v1`, ``python.…`` below
``tensorflow.python``, and any other path begins with a top-level package.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, Final

from placement_checks.tf.patching import internal_module, module_or_none
from placement_checks.tf1 import lazy_modules
from placement_checks.tf1.lazy_modules import LazyModule, NotInstalled, UsedNames, attribute_of

# The packages of tf.contrib 1.15. Packages without a location can be imported, but have no names:
# many programs import packages that they use only with some option.
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

# Locations by package, in the order of lookup.
LOCATIONS = {
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

# Modules of tf.contrib that have a different name today, by package and old name.
RENAMED = {
    "compiler.jit": f"{_SHIMS}.functions",
    "compiler.xla": "tf.xla.experimental",
    "framework.checkpoint_utils": "python.training.checkpoint_utils",
    "data.batching": f"{_SHIMS}.functions",
    "framework.nest": "python.util.nest",
    "graph_editor.select": f"{_SHIMS}.functions",
    "learn.mnist": f"{_SHIMS}.mnist",
    "memory_stats.memory_stats_ops": f"{_SHIMS}.functions",
    "seq2seq.basic_decoder": f"{_SHIMS}.seq2seq",
    "seq2seq.decoder": f"{_SHIMS}.seq2seq",
    "seq2seq.helper": f"{_SHIMS}.seq2seq",
    "seq2seq.loss": f"{_SHIMS}.functions",
    "training.device_setter": f"{_SHIMS}.functions",
    "training.hparam": f"{_SHIMS}.hparams",
    "metrics.set_ops": "tf.sets",
    "tensorboard.projector": "tensorboard.plugins.projector",
    "tutorials.input_data": f"{_SHIMS}.mnist",
}

# Directories between a package and its modules; a directory may also be named like the package.
DIRECTORIES = frozenset({"datasets", "mnist", "ops", "plugins", "python"})

# Packages of tensorflow.python that contain former modules of tf.contrib.
MOVED_TO = ("ops", "framework", "training", "util")

# Names with a replacement in this package only: module of `shims`, package, names.
_REPLACED = (
    ("functions", "data", "batch_and_drop_remainder"),
    ("functions", "graph_editor", "get_backward_walk_ops"),
    ("functions", "learn", "ModeKeys"),
    ("functions", "memory_stats", "BytesInUse BytesLimit MaxBytesInUse"),
    ("functions", "seq2seq", "sequence_loss"),
    ("functions", "training", "GreedyLoadBalancingStrategy byte_size_load_fn"),
    ("hparams", "training", "HParams"),
    ("seq2seq", "seq2seq", "BasicDecoder BasicDecoderOutput Decoder GreedyEmbeddingHelper Helper"),
    ("seq2seq", "seq2seq", "SampleEmbeddingHelper TrainingHelper dynamic_decode tile_batch"),
)
# Their locations, by package and name.
SHIMS = {
    f"{package}.{name}": f"{_SHIMS}.{module}.{name}"
    for module, package, names in _REPLACED
    for name in names.split()
}

Path = tuple[str, ...]
_ROOTS = {"contrib": PACKAGES, "examples": frozenset({"tutorials"})}
_NOTHING: Final = object()


class Contrib:
    """Looks up modules and attributes below ``tensorflow.contrib`` and ``tensorflow.examples``.

    A path is a tuple of the names after ``tensorflow``. A module has the attributes of today's
    modules with the same name, and of all locations of its package. A function or class takes
    precedence over a module of the same name, because packages of version 1 such as
    ``framework.python.ops`` import ``arg_scope`` from their module ``arg_scope``.
    """

    def __init__(self, find_in_tensorflow: Callable[[str], Any], used: UsedNames) -> None:
        """Create the lookup; ``find_in_tensorflow`` finds an attribute of the program's module."""
        self._tensorflow = LazyModule("tf", find_in_tensorflow)
        self._used = used
        self._locate = cache(self._find_location)
        self._same_named = cache(lambda path: list(self._find_same_named(path)))

    @staticmethod
    def has_root(name: str) -> bool:
        """Whether a name directly below ``tensorflow`` is looked up by this class."""
        return name in _ROOTS

    def is_module(self, path: Path) -> bool:
        """Whether a module with this path exists."""
        root, *rest = path
        if len(rest) < 2:
            return not rest or (rest[0] in _ROOTS[root] and self._is_installed(rest[0]))
        return rest[-1] in DIRECTORIES or rest[-1] == rest[0] or bool(self._same_named(path))

    def find(self, path: Path, name: str) -> Any:
        """Find an attribute of a module.

        Raises:
            AttributeError: the attribute has no replacement.
            NotInstalled: a package that may have the attribute is not installed.
        """
        full_path = (*path, name)
        value = self._value(path, name)
        if value is not _NOTHING and not isinstance(value, ModuleType):
            self._used.found.add(_dotted(full_path))
            return value
        if self.is_module(full_path):
            return importlib.import_module(".".join(["tensorflow", *full_path]))
        raise AttributeError(self.refusal(full_path))

    def refusal(self, path: Path) -> str:
        """Record that a path has no replacement, and return the error message.

        Raises:
            NotInstalled: a package that may have a replacement is not installed.
        """
        name = _dotted(path)
        needs_slim = any(_is_in_slim(location) for location in LOCATIONS.get(path[1], ()))
        if needs_slim and not lazy_modules.has_tf_slim():
            raise NotInstalled(name, lazy_modules.TF_SLIM)
        return self._used.refusal(name)

    def _is_installed(self, package: str) -> bool:
        """Return True, or raise `NotInstalled` if the only location of a package is missing."""
        if LOCATIONS.get(package) == (lazy_modules.TF_SLIM,) and not lazy_modules.has_tf_slim():
            raise NotInstalled(f"tf.contrib.{package}", lazy_modules.TF_SLIM)
        return True

    def _value(self, path: Path, name: str) -> Any:
        if len(path) < 2:
            return _NOTHING
        if shim := SHIMS.get(f"{path[1]}.{name}"):
            return pkgutil.resolve_name(shim)
        values = [getattr(module, name, _NOTHING) for module in self._modules(path)]
        found = [value for value in values if value is not _NOTHING]
        own = [value for value in found if not isinstance(value, ModuleType)]
        return next(iter([*own, *found]), _NOTHING)

    def _modules(self, path: Path) -> Iterator[Any]:
        """The modules to search for the attributes of a module, in order."""
        if len(path) > 2:
            yield from self._same_named(path)
        for location in LOCATIONS.get(path[1], ()):
            if (module := self._locate(location)) is not None:
                yield module

    def _find_same_named(self, path: Path) -> Iterator[Any]:
        """Today's modules with the same name as a module in a package."""
        package, own = path[1], path[-1]
        if location := RENAMED.get(f"{package}.{own}"):
            yield self._locate(location)
            return
        for location in LOCATIONS.get(package, ()):
            module = getattr(self._locate(location), own, None)
            if isinstance(module, ModuleType):
                yield module
        yield from lazy_modules.tf_slim_modules(own, package)
        for parent in MOVED_TO:
            module = internal_module(f"{parent}.{own}")
            if module is not None:
                yield module

    def _find_location(self, location: str) -> Any:
        """The object at a location; None if it does not exist in this TensorFlow."""
        first, *rest = location.split(".")
        if first == "python":
            return internal_module(".".join(rest))
        if first == "tf":
            with contextlib.suppress(AttributeError):
                return attribute_of(self._tensorflow, rest)
            return None
        if _is_in_slim(location) and not lazy_modules.has_tf_slim():
            return None
        return module_or_none(location)


def _dotted(path: Path) -> str:
    return ".".join(("tf", *path))


def _is_in_slim(location: str) -> bool:
    return location.split(".")[0] == lazy_modules.TF_SLIM
