"""The ``tensorflow`` module for programs of TensorFlow 1."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from placement_checks.tf1.contrib import Contrib
from placement_checks.tf1.lazy_modules import LazyModule, UsedNames, attribute_of

VERSION = "1.15.5"
NAME = "tensorflow"


class StandIn:
    """`tf.compat.v1` with the name, the version and the submodules of TensorFlow 1."""

    def __init__(self, tensorflow: ModuleType, used: UsedNames) -> None:
        """Create the module.

        Args:
            tensorflow: TensorFlow 2.
            used: records the names that programs use.
        """
        self._v1: Any = tensorflow.compat.v1
        self._used = used
        # Directories contain TensorFlow's own code, such as ``tensorflow.python``.
        root = Path(str(tensorflow.__file__)).parent
        self.directories = frozenset(path.name for path in root.iterdir() if path.is_dir())
        self.contrib = Contrib(self.find, used)
        self._others = {
            # The ``compat`` of tf.compat.v1 has another tf.compat.v1, with other functions.
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

    def submodule(self, path: Sequence[str]) -> ModuleType | None:
        """A submodule, such as ``gfile`` or ``compat.v1.nn``; None if it is missing.

        Python cannot import it by this name: TensorFlow's own name for it is
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
