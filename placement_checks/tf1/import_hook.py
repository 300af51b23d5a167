"""Lets ``import tensorflow`` of a program give the stand-in, and ours what is installed."""

from __future__ import annotations

import builtins
import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from placement_checks.tf1.lazy_modules import OnDemand, attribute_of, other_modules
from placement_checks.tf1.stand_in import NAME, StandIn

# Whose code means TensorFlow 2 by ``tensorflow``, or names the version: by its outermost package.
MEAN_VERSION_2 = frozenset(
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
def importing(stand_in: StandIn, tensorflow: ModuleType) -> Iterator[None]:
    """In this block ``tensorflow`` is the stand-in, but for the code of `MEAN_VERSION_2`.

    Python asks `builtins.__import__` for each import statement, with the globals of the module
    that the statement is in.

    Args:
        stand_in: what programs get.
        tensorflow: TensorFlow 2.
    """
    finder = _Finder(stand_in)
    original = builtins.__import__

    def import_for(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        first, *rest = name.split(".")
        if first != NAME or level or not _means_version_2(globals):
            return original(name, globals, locals, fromlist or (), level)
        if rest and not finder.is_own(name):
            module = original(name, globals, locals, fromlist or (), level)
            return module if fromlist else tensorflow
        return attribute_of(tensorflow, rest) if fromlist else tensorflow

    before = sys.modules[NAME]
    with other_modules(finder.is_own):
        sys.modules[NAME] = stand_in.module  # never without one: a thread would import it again
        sys.meta_path.insert(0, finder)
        builtins.__import__ = import_for
        try:
            yield
        finally:
            if builtins.__import__ is import_for:
                builtins.__import__ = original
            sys.meta_path.remove(finder)
            sys.modules[NAME] = before
            _bind_folders(stand_in, tensorflow)


def _bind_folders(stand_in: StandIn, tensorflow: ModuleType) -> None:
    """Let TensorFlow 2 have those of its folders that were first imported in the block."""
    for folder in stand_in.folders - vars(tensorflow).keys():
        if module := sys.modules.get(f"{NAME}.{folder}"):
            setattr(tensorflow, folder, module)


def _means_version_2(importer: Mapping[str, Any] | None) -> bool:
    """Whether an import statement is in code of a package that means version 2."""
    if not importer:
        return False
    # That of a module which is run by ``python -m`` is told by its package alone.
    module = importer.get("__package__") or importer.get("__name__") or ""
    return module.partition(".")[0] in MEAN_VERSION_2


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the modules below the stand-in, such as ``tensorflow.contrib.slim``."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in
        self._specs: dict[str, importlib.machinery.ModuleSpec | None] = {}

    def is_own(self, name: str) -> bool:
        """Whether a module is given here: all below ``tensorflow`` but its folders."""
        first, *rest = name.split(".")
        return first == NAME and bool(rest) and rest[0] not in self._stand_in.folders

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002
        target: object = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that is given here.

        Raises:
            ModuleNotFoundError: it would be below ``tensorflow.contrib``, and is nowhere.
        """
        if not self.is_own(fullname):
            return None
        _, *rest = fullname.split(".")
        if self._stand_in.contrib.has_root(rest[0]):
            if not self._stand_in.contrib.is_module(tuple(rest)):
                # With another name than its own: else ``from package import name`` would say
                # only that it cannot import it.
                raise ModuleNotFoundError(
                    self._stand_in.contrib.refusal(tuple(rest)), name=fullname.rpartition(".")[0]
                )
        elif self._stand_in.submodule(rest) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        _, *rest = spec.name.split(".")
        contrib = self._stand_in.contrib
        if contrib.has_root(rest[0]):
            return OnDemand(spec.name, lambda name: contrib.find(tuple(rest), name))
        module = self._stand_in.submodule(rest)
        assert module is not None
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run: a module that is there by another name only gets its spec back."""
        assert module.__spec__ is not None
        name = module.__spec__.name
        if name in self._specs:
            module.__spec__ = self._specs.pop(name)
