"""The ``tensorflow`` module for programs of TensorFlow 1.

Programs get this module from ``import tensorflow``. Libraries get the installed TensorFlow.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import patched
from placement_checks.tf1.contrib import Contrib
from placement_checks.tf1.lazy_modules import LazyModule, UsedNames, attribute_of
from placement_checks.util.imports import Others, Redirector, created_module, without_modules

VERSION = "1.15.5"
NAME = "tensorflow"


class StandIn:
    """`tf.compat.v1` with the name, the version and the submodules of TensorFlow 1."""

    def __init__(self, tensorflow: ModuleType, used: UsedNames) -> None:
        self._v1: Any = tensorflow.compat.v1
        self._used = used
        # Directories contain TensorFlow's own code, such as ``tensorflow.python``.
        root = Path(str(tensorflow.__file__)).parent
        self.directories = frozenset(path.name for path in root.iterdir() if path.is_dir())
        self.contrib = Contrib(self.find, used)
        self._others = {
            # `tf.compat.v1.compat.v1` is a different module, with different functions.
            "compat": tensorflow.compat,
            "version": LazyModule(f"{NAME}.version", self._version_attribute),
            "VERSION": VERSION,
        }
        self.module = LazyModule(NAME, self._attribute, lambda: dir(self._v1))
        for name in ("__file__", "__path__", "__spec__", "__doc__", "__git_version__"):
            setattr(self.module, name, getattr(tensorflow, name, None))
        self.module.__version__ = VERSION

    def find(self, name: str) -> Any:
        """Find an attribute of the module.

        Raises:
            AttributeError: the attribute is missing.
        """
        if name in self._others:
            return self._others[name]
        if not self.contrib.has_root(name):
            with contextlib.suppress(AttributeError):
                return getattr(self._v1, name)
            if name not in self.directories:
                raise AttributeError(name)
        return importlib.import_module(f"{NAME}.{name}")

    def is_own(self, name: str) -> bool:
        """Whether a module is below ``tensorflow``, but not in one of its directories."""
        first, *rest = name.split(".")
        return first == NAME and bool(rest) and rest[0] not in self.directories

    def find_spec(self, name: str, _others: Others) -> ModuleSpec | None:
        """The spec of a submodule, such as ``tensorflow.contrib.slim``; None for other modules.

        Raises:
            ModuleNotFoundError: a module below ``tensorflow.contrib`` is missing.
        """
        if not self.is_own(name):
            return None
        path = tuple(name.split(".")[1:])
        if not self.contrib.has_root(path[0]):
            module = self._submodule(path)
            return None if module is None else created_module(name, lambda: module)
        if not self.contrib.is_module(path):
            # The error names the parent. With the module's own name, ``from package import name``
            # would replace the message by "cannot import name".
            raise ModuleNotFoundError(self.contrib.refusal(path), name=name.rpartition(".")[0])
        return created_module(
            name, lambda: LazyModule(name, lambda attribute: self.contrib.find(path, attribute))
        )

    def _submodule(self, path: Sequence[str]) -> ModuleType | None:
        """A submodule, such as ``gfile`` or ``compat.v1.nn``; None if it is missing.

        Python cannot import the submodule by this name, because its name in TensorFlow is
        ``tensorflow._api.v2.compat.v1.nn``. A second import would create a copy without patches.
        """
        first, *rest = path
        try:
            module = attribute_of(self.find(first), rest)
        except AttributeError:
            return None
        return module if isinstance(module, ModuleType) else None

    def _attribute(self, name: str) -> Any:
        try:
            return self.find(name)
        except AttributeError:
            raise AttributeError(self._used.refusal(f"tf.{name}")) from None

    def _version_attribute(self, name: str) -> Any:
        return VERSION if name == "VERSION" else getattr(self._v1.version, name)


# Top-level packages that expect TensorFlow 2 from ``import tensorflow``, or name the version.
VERSION_2_PACKAGES = frozenset(
    {
        "keras",
        "placement_checks",
        "tensorboard",
        "tensorflow",
        "tensorflow_datasets",
        "tensorflow_estimator",
        "tensorflow_hub",
        "tensorflow_probability",
        "tf_keras",
        "tf_slim",
    }
)


@contextlib.contextmanager
def import_stand_in(stand_in: StandIn, tensorflow: ModuleType) -> Iterator[None]:
    """Make ``tensorflow`` the stand-in for all code except `VERSION_2_PACKAGES`, in this block.

    Python calls `builtins.__import__` for each import statement, with the globals of the importing
    module. These packages get ``tensorflow``, which is TensorFlow 2.
    """

    def wrap_import(original: Callable[..., Any]) -> Callable[..., Any]:
        def import_for(
            name: str,
            globals: Mapping[str, Any] | None = None,
            locals: Mapping[str, Any] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> Any:
            first, *rest = name.split(".")
            if first != NAME or level or not _expects_version_2(globals):
                return original(name, globals, locals, fromlist or (), level)
            if rest and not stand_in.is_own(name):
                module = original(name, globals, locals, fromlist or (), level)
                return module if fromlist else tensorflow
            return attribute_of(tensorflow, rest) if fromlist else tensorflow

        return import_for

    before = sys.modules[NAME]
    with without_modules(stand_in.is_own):
        sys.modules[NAME] = stand_in.module  # without an entry, a thread would import it again
        try:
            with Redirector(stand_in.find_spec), patched(Patch.IMPORT, wrap_import):
                yield
        finally:
            sys.modules[NAME] = before
            _bind_directories(stand_in, tensorflow)


def _bind_directories(stand_in: StandIn, tensorflow: ModuleType) -> None:
    """Bind subpackages of TensorFlow 2 that were first imported in the block."""
    for directory in stand_in.directories - vars(tensorflow).keys():
        if module := sys.modules.get(f"{NAME}.{directory}"):
            setattr(tensorflow, directory, module)


def _expects_version_2(importer: Mapping[str, Any] | None) -> bool:
    """Whether an import statement belongs to a package that expects TensorFlow 2."""
    if not importer:
        return False
    # A module run by ``python -m`` is named ``__main__``; only its package identifies it.
    module = importer.get("__package__") or importer.get("__name__") or ""
    return module.partition(".")[0] in VERSION_2_PACKAGES
