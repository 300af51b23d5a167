"""Modules whose attributes are looked up when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
