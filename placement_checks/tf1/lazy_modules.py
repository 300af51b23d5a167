"""Modules whose attributes are looked up when they are asked for.

Names that are put into modules for a while.

What a program asked of TensorFlow 1 that TensorFlow 2 does not have under that name.

tf_slim, which is most of what programs use of ``tf.contrib``.

What programs of TensorFlow 1 ask for.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

Find = Callable[[str], Any]


class OnDemand(ModuleType):
    """A module whose attributes a function finds, or refuses by an `AttributeError`.

    It is a package too, so that what it has can be imported from it. An import of a module below
    it does not change its attributes, so that a function may have the name of such a module.
    """

    def __init__(self, name: str, find: Find, names: Callable[[], Iterable[str]] = tuple) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__find = find
        self.__names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            if name == "__all__" and (names := [*self.__names()]):
                return [public for public in names if not public.startswith("_")]
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self.__find(name)

    def __setattr__(self, name: str, value: Any) -> None:
        # After each first import, Python binds the module in its package.
        is_below = isinstance(value, OnDemand) and value.__name__ == f"{self.__name__}.{name}"
        if not is_below:
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self.__names()})


def alias(name: str, module: Callable[[], Any]) -> OnDemand:
    """A module of some name with the attributes of another, which is loaded when one is needed."""
    return OnDemand(name, lambda attribute: getattr(module(), attribute), lambda: dir(module()))


@contextlib.contextmanager
def added(owner: Any, names: Mapping[str, Any]) -> Iterator[None]:
    """Give a module the names of these that it does not have itself, until the block ends."""
    new = {name: value for name, value in names.items() if name not in vars(owner)}
    for name, value in new.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in new:
            with contextlib.suppress(AttributeError):
                delattr(owner, name)


@contextlib.contextmanager
def other_modules(named: Callable[[str], bool]) -> Iterator[None]:
    """Modules of some names are others in this block; those of before come back after it."""
    before = _taken_out(named)
    try:
        yield
    finally:
        _taken_out(named)
        sys.modules.update(before)


def _taken_out(named: Callable[[str], bool]) -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if named(name)}


def attribute_of(owner: Any, path: Iterable[str]) -> Any:
    """An attribute of an attribute, and so on.

    Raises:
        AttributeError: there is none.
    """
    for name in path:
        owner = getattr(owner, name)
    return owner


@dataclass
class Used:
    """What was asked for in a block of `as_tensorflow_1`; it grows while the block is open.

    Attributes:
        found: what has a place today, such as ``tf.contrib.slim.losses.get_total_loss``.
        missing: what has none, such as ``tf.contrib.gan.gan_model``, in the order in which it was
            asked for; a program may have asked only whether it is there.
    """

    found: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)

    def refusal(self, name: str) -> str:
        """Note that a name has no place, and say so."""
        if name not in self.missing:
            self.missing.append(name)
        return f"{name} is not in this TensorFlow, and --v1 has nothing in its place"


class NotInstalled(ImportError):
    """A package that stands in for a part of TensorFlow 1 is not installed."""

    def __init__(self, needed_for: str, package: str, version: str = "") -> None:
        # Not all that the extra v1 brings, which may be another TensorFlow.
        wanted = f"'{package}=={version}'" if version else package
        super().__init__(
            f"{needed_for} needs {package}, which is not installed; pip install {wanted}",
            name=package,
        )


PACKAGE = "tf_slim"


@cache
def is_installed() -> bool:
    """Whether it is."""
    return importlib.util.find_spec(PACKAGE) is not None


def modules_named(name: str, package: str) -> list[ModuleType]:
    """Its modules of this name; those first that are in a package of the other name."""
    names = [module for module in _names() if module.rpartition(".")[2] == name]
    names.sort(key=lambda module: package not in module.split("."))
    return [importlib.import_module(module) for module in names]


@cache
def _names() -> tuple[str, ...]:
    if not is_installed():
        return ()
    path = importlib.import_module(PACKAGE).__path__
    modules = pkgutil.walk_packages(path, f"{PACKAGE}.")
    return tuple(module.name for module in modules if not module.name.endswith("_test"))
