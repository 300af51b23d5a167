"""Finds other modules for import statements than Python would.

A `Redirector` is a finder in front of all others (`sys.meta_path`). Its function can create a
module, change what the other finders find, or leave the import to them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Others = Callable[[], ModuleSpec | None]
Find = Callable[[str, Others], ModuleSpec | None]
Load = Callable[[ModuleType], None]


class Redirector(MetaPathFinder):
    """Asks a function first when a module is imported, in a ``with`` block or from `install` on.

    Args:
        find: gets the full name of the module, and a function that asks the other finders. It
            returns the spec of the module, or None if the other finders should find it. It may
            raise `ModuleNotFoundError`.
    """

    def __init__(self, find: Find) -> None:
        self._find = find

    def install(self) -> None:
        """Put this finder in front of all others."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Remove this finder, if it is installed."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def __enter__(self) -> None:
        self.install()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the spec of a module. Python calls this method."""

        def others() -> ModuleSpec | None:
            for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
                find = getattr(finder, "find_spec", None)
                if find is not None and (spec := find(name, path, target)) is not None:
                    return spec  # type: ignore[no-any-return]
            return None

        return self._find(name, others)


def created_module(
    name: str, create: Callable[[], ModuleType], then: Load = lambda _: None
) -> ModuleSpec:
    """The spec of a package that a function creates.

    Args:
        name: the full name of the module.
        create: returns a new module, or a module with another name, which keeps its own spec.
        then: gets the module when it is importable by its name.
    """
    return ModuleSpec(name, _Creator(create, then), is_package=True)


class _Creator(Loader):
    def __init__(self, create: Callable[[], ModuleType], then: Load) -> None:
        self._create = create
        self._then = then
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        module = self._create()
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._own_spec is not None:
            module.__spec__ = self._own_spec
        self._then(module)


def around_loading(spec: ModuleSpec, around: Callable[[Load, ModuleType], None]) -> ModuleSpec:
    """Call ``around(load, module)`` to load the module of a spec; ``load(module)`` runs its code.

    The loader keeps its type, since libraries read sources and data files with it.
    """
    loader = spec.loader
    assert loader is not None
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        if module.__spec__ is spec:
            around(load, module)
        else:  # some loaders load many modules, such as the loader of pytest
            load(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


@contextlib.contextmanager
def without_modules(named: Callable[[str], bool]) -> Iterator[None]:
    """Remove modules from `sys.modules`, by name, and restore them after the block."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if named(name)}
    try:
        yield
    finally:
        for name in filter(named, list(sys.modules)):
            del sys.modules[name]
        sys.modules.update(before)
