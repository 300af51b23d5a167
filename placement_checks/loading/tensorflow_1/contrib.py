"""Finds what ``tf.contrib`` and ``tensorflow.examples`` had, where it is today."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, Final

from placement_checks.loading.tensorflow_1 import slim
from placement_checks.loading.tensorflow_1.contrib_places import (
    FOLDERS,
    MOVED_TO,
    PACKAGES,
    PLACES,
    RENAMED,
    SHIMS,
)
from placement_checks.loading.tensorflow_1.names import attribute_of
from placement_checks.loading.tensorflow_1.on_demand import OnDemand
from placement_checks.loading.tensorflow_1.used import NotInstalled, Used
from placement_checks.loading.tf_internals import tensorflow_1_modules
from placement_checks.util.modules import module_or_none

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
        if needs_slim and not slim.is_installed():
            raise NotInstalled(name, slim.PACKAGE)
        return self._used.refusal(name)

    def _is_installed(self, package: str) -> bool:
        """True, or an error that says what to install: a program asks for this one at once."""
        if PLACES.get(package) == (slim.PACKAGE,) and not slim.is_installed():
            raise NotInstalled(f"tf.contrib.{package}", slim.PACKAGE)
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
        yield from slim.modules_named(own, package)
        for folder in MOVED_TO:
            module = tensorflow_1_modules.internal_module(f"{folder}.{own}")
            if module is not None:
                yield module

    def _find_place(self, place: str) -> Any:
        """What a place of `contrib_places` is; None where this TensorFlow does not have it."""
        first, *rest = place.split(".")
        if first == "python":
            return tensorflow_1_modules.internal_module(".".join(rest))
        if first == "tf":
            with contextlib.suppress(AttributeError):
                return attribute_of(self._whole, rest)
            return None
        if _is_of_slim(place) and not slim.is_installed():
            return None
        return module_or_none(place)


def _written(path: Path) -> str:
    return ".".join(("tf", *path))


def _is_of_slim(place: str) -> bool:
    return place.split(".")[0] == slim.PACKAGE


def _attribute(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
