"""Loads the function that a target names: ``package.module:function``, ``train.py:function``.

A function may be given keyword arguments: ``train.py:build(depth=50, n={gpus})``.
A file is loaded as ``python file.py`` would run it: its folder comes first on the path and it is
alone on the command line, so that it may import its neighbours and read its own flags.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from placement_checks.core.errors import InputError
from placement_checks.core.program import Program
from placement_checks.core.script import Script
from placement_checks.core.user_code import is_user_file, users_code
from placement_checks.targets.names import arguments_of, check, is_graph, no_module, parted
from placement_checks.tf.process_state import own_behavior
from placement_checks.util.text import did_you_mean

_LOADING = "loading it"

# The neighbours that the files of a folder have imported, by folder: two folders may each have
# a model.py, and each of their programs must meet its own.
_neighbours: dict[Path, dict[str, ModuleType]] = {}


def resolve(target: str, argv: Sequence[str] = ()) -> Program | Path:
    """The program or the graph's path that ``target`` names.

    Args:
        target: as the command line names it.
        argv: the arguments of the program's own command line.

    Raises:
        InputError: there is no such file, module or function, loading it failed, or it takes no
            such arguments.
    """
    path = Path(target)
    if is_graph(path):
        return path
    check(target)
    program = _program(target, argv)
    program.check_given()
    return program


def _program(target: str, argv: Sequence[str]) -> Program:
    given = arguments_of(target)
    where, _, name = parted(target)[0].rpartition(":")
    if where.endswith(".py"):
        file = Path(where).resolve()
        as_file = partial(emulate_script_environment, file, argv)
        with as_file():
            build = _attribute(_load_file(Path(where)), name, target)
        return Program(target, _called_within(as_file, build), file.parent, build, given, argv)
    as_module = partial(own_behavior, where, where.partition(".")[0])
    with as_module():
        module = _import(where, target)
    home = getattr(module, "__file__", None)
    build = _attribute(module, name, target)
    of_module = Path(home).resolve().parent if home else None
    return Program(target, _called_within(as_module, build), of_module, build, given, argv)


def script_of_function(program: Program, error: InputError) -> Script:
    """A function as a program that is run eagerly, in a process of its own.

    Args:
        program: the function.
        error: what went wrong as it was built into a graph.

    Raises:
        InputError: no other process can load it.
    """
    if program.function is not None:  # a target names it
        return Script(program.name, tuple(program.argv), eager=True)
    where = _importable(inspect.unwrap(program.build))
    if where is None:
        raise InputError(
            program.name,
            f"{error.message}; as eager code it is run in a process of its own, which can load "
            "only a function at the top level of a file",
            "write 'with watch(eager=True):' around the code, or name the function as a target: "
            "'train.py:main(depth=50)'",
            details=error.details,
        )
    return Script(where, eager=True)


def _importable(function: Any) -> str | None:
    """The target that names a function in any process; None where none does."""
    name, module = getattr(function, "__qualname__", "<"), getattr(function, "__module__", "")
    loaded = sys.modules.get(module)
    if "<" in name or loaded is None or inspect.ismethod(function):
        return None
    file = getattr(loaded, "__file__", None)
    if inspect.unwrap(operator.attrgetter(name)(loaded)) is not function:
        return None
    spec = getattr(loaded, "__spec__", None)
    if spec is not None and importlib.util.find_spec(module) is not None:
        return f"{module}:{name}"
    return None if file is None else f"{file}:{name}"


@contextlib.contextmanager
def emulate_script_environment(file: Path, argv: Sequence[str] = ()) -> Iterator[None]:
    """Make the process look, to the code in ``file``, as if ``python file`` had started it."""
    folder = file.parent
    before_path, before_argv = list(sys.path), sys.argv
    namesakes = _namesakes(folder)
    for name in namesakes:
        del sys.modules[name]
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    sys.argv = [str(file), *argv]
    sys.modules.update(_neighbours.get(folder, {}))
    try:
        with own_behavior(file, folder):
            yield
    finally:
        sys.path[:], sys.argv = before_path, before_argv
        own = {
            name: sys.modules[name]
            for name in sys.modules.keys() - before
            if _lies_in(sys.modules[name], folder)
        }
        _neighbours.setdefault(folder, {}).update(own)
        for name in own:
            del sys.modules[name]
        sys.modules.update(namesakes)


def _namesakes(folder: Path) -> dict[str, ModuleType]:
    """Loaded modules of the user's that hide one of ``folder``'s: same name, another place."""
    with os.scandir(folder) as entries:
        names = {Path(entry.name).stem for entry in entries if _can_be_imported(entry)}
    loaded = names & sys.modules.keys()
    alike = [name for name in sys.modules if name.partition(".")[0] in loaded] if loaded else []
    return {name: sys.modules[name] for name in alike if _hides(sys.modules[name], folder)}


def _can_be_imported(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".py") or entry.is_dir()


def _hides(module: ModuleType, folder: Path) -> bool:
    """Whether a module is the user's, from another place than ``folder``."""
    file = getattr(module, "__file__", None)
    return bool(file) and is_user_file(file, None) and not _lies_in(module, folder)


def _called_within(loading: Callable[[], AbstractContextManager[None]], build: Any) -> Any:
    """The function, called as its file or module was loaded: it may import a neighbour late."""

    def call(*args: Any, **arguments: Any) -> object:
        with loading():
            return build(*args, **arguments)

    if callable(build):
        call.__wrapped__ = build  # type: ignore[attr-defined]  # so that inspect sees through it
        call.__qualname__ = getattr(build, "__qualname__", "")
    return call


def _load_file(path: Path) -> ModuleType:
    # Not its stem: two targets of one name must not take each other's place.
    name = f"placement_checks_target_{abs(hash(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with users_code(str(path), _LOADING, path.resolve().parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(name: str, target: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        with users_code(target, _LOADING, None):
            return _imported(name, target)
    finally:
        sys.path.remove("")


def _imported(name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise no_module(name, target) from None


def _attribute(module: ModuleType, name: str, target: str) -> Any:
    value: Any = module
    for part in name.split("."):
        with users_code(target, _LOADING, None):  # a module's own __getattr__
            present = hasattr(value, part)
        if not present:
            names = [key for key, member in vars(module).items() if callable(member)]
            raise InputError(
                target,
                f"there is no function '{name}' in it",
                did_you_mean(name, names) or "name the function that builds the graph",
            )
        value = getattr(value, part)
    if not callable(value):
        raise InputError(
            target, f"'{name}' is of type {type(value).__name__}, not a function", "name a builder"
        )
    return value


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if not file or "site-packages" in Path(file).parts:
        return False
    return Path(file).resolve().is_relative_to(folder)
