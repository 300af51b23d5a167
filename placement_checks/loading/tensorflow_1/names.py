"""Names that are put into modules for a while."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any


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
