"""Finds patches of a test that do not hold for the program that it places.

A function that trains eagerly is captured in a process of its own, which imports its modules
again. There, ``monkeypatch`` and ``unittest.mock`` of the test have no effect, and rules would
judge another program than the test means.
"""

from __future__ import annotations

import ast
import gc
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Final
from unittest import mock

import pytest

from placement_checks.core.user_code import is_user_file
from placement_checks.testing.tracebacks import entries_of_cause
from placement_checks.util.text import listed

if TYPE_CHECKING:
    from placement_checks.core.errors import PlacementError
    from placement_checks.core.evidence import Evidence

_PARSERS: Final = frozenset({"absl", "argparse", "click", "fire", "sys"})
_IN_THIS_PROCESS: Final = (
    "capture it in this process: call it in `with watch(gpus=2, eager=True) as watched:`, then "
    "place(watched); start pytest with --placement-gpus=2"
)


def check_patches(evidence: Evidence) -> None:
    """Check that the patches of the test hold for a program.

    Raises:
        UsageError: the program was captured in another process, and the test has patched user code
            that the program imports; or the test has patched a module that the target names, but
            that was loaded again from its file.
    """
    from placement_checks.core.errors import UsageError
    from placement_checks.core.program import Program

    program = evidence.program
    if not program or not isinstance(program.program, Program):
        return  # a graph, the code of a block, or a whole program
    function = inspect.unwrap(program.program.function or program.program.build)
    if not isinstance(function, FunctionType):
        return
    loaded = _modules_of_file(function.__code__.co_filename)
    if program.source.live is None:
        where, fix = "captured in a process of its own", _IN_THIS_PROCESS
        modules = _modules_imported_by(function)
    else:
        where, fix = "loaded again from its file", "place the function itself, without a target"
        modules = [module for module in loaded if vars(module) is not function.__globals__]
    if names := _patched_names(modules):
        has = "has" if len(names) == 1 else "have"
        message = f"was {where}, where the patches of this test do not hold: {listed(names)} {has}"
        raise UsageError(program.name, f"{message} the original value", fix, is_predicate=True)


def add_note_on_patches(error: PlacementError, target: object) -> None:
    """Name the patches that may be missing in the process that raised an error."""
    function = inspect.unwrap(target) if isinstance(target, FunctionType) else None
    if not isinstance(function, FunctionType) or entries_of_cause(error):
        return  # the user's code failed in this process
    if names := _patched_names(_modules_imported_by(function)):
        error.add_note(
            "if it trains eagerly, it runs in a process of its own, where the patches of this "
            f"test do not hold: {listed(names)}; {_IN_THIS_PROCESS}"
        )


def _patched_names(modules: Sequence[ModuleType]) -> list[str]:
    """The active patches of modules and of objects in them, sorted by name."""
    names = _names_of_objects(modules)
    return sorted(
        {
            f"{names[id(target)]}{attribute}"
            for target, attribute in (_active_patches() if names else ())
            if id(target) in names and (target is not sys or attribute == ".argv")
        }
    )


def _active_patches() -> Iterator[tuple[object, str]]:
    """The patched objects, and the attribute or item that was replaced."""
    for each in gc.get_objects():
        kind = type(each)
        if kind is pytest.MonkeyPatch:
            for target, name, _ in each._setattr:
                yield target, f".{name}"
            for items, key, _ in each._setitem:
                if items is not os.environ:  # other processes inherit it
                    yield items, f"[{key!r}]"
        elif kind is mock._patch and hasattr(each, "temp_original"):
            yield each.target, f".{each.attribute}"
        elif kind is mock._patch_dict and each._original is not None:
            yield each.in_dict, "[…]"


def _modules_of_file(file: str) -> list[ModuleType]:
    return [
        module
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and getattr(module, "__file__", None) == file
    ]


def _modules_imported_by(function: FunctionType) -> list[ModuleType]:
    """The user's modules that the module of a function imports, also inside of functions."""
    file, package = function.__code__.co_filename, function.__globals__.get("__package__")
    left = _modules_of_file(file) or list(_imports(file, package))
    found: dict[str, ModuleType] = {}
    while left:
        module = left.pop()
        file = getattr(module, "__file__", None) or ""
        if module.__name__ not in found and is_user_file(file, None):
            found[module.__name__] = module
            left += _imports(file, module.__package__)
    return list(found.values())


def _imports(file: str, package: str | None) -> Iterator[ModuleType]:
    """The loaded modules that the import statements of a file name."""
    try:
        nodes = ast.walk(ast.parse(Path(file).read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = (package or "").split(".")
            above = parents[: len(parents) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
    for name in names:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            yield module


def _names_of_objects(modules: Sequence[ModuleType]) -> dict[int, str]:
    """The names of modules, and of the user's objects in them, by identity."""
    names = {id(module): module.__name__ for module in modules}
    own = set(names.values())
    if any(_reads_arguments(module) for module in modules):
        names[id(sys)] = "sys"
    for module in modules:
        for name, value in vars(module).items():
            defined = getattr(value if isinstance(value, type) else type(value), "__module__", "")
            if not name.startswith("__") and (defined in own or isinstance(value, dict)):
                names.setdefault(id(value), f"{module.__name__}.{name}")
    return names


def _reads_arguments(module: ModuleType) -> bool:
    """Whether a module has imported `sys`, or a package that parses the command line."""
    roots = {
        str(getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", ""))
        for value in vars(module).values()
    }
    return not _PARSERS.isdisjoint(root.partition(".")[0] for root in roots)
