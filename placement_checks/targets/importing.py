"""Loads the function that a target names: ``package.module:function``, ``train.py:function``.

A file is loaded in the environment of ``python file.py``: its directory is the first entry of
``sys.path``, so that the file can import modules next to it, and ``sys.argv`` contains only the
arguments of the program.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from placement_checks.core.devices import VISIBLE_GPUS
from placement_checks.core.errors import InputError, MissingTargetError
from placement_checks.core.program import Program
from placement_checks.core.settings import Settings
from placement_checks.core.target import Script, Target
from placement_checks.core.user_code import is_user_file, users_code
from placement_checks.targets.forms import no_module_error
from placement_checks.tf.process_state import own_behavior
from placement_checks.util.text import did_you_mean

_LOADING = "loading it"

# By directory: the imported modules of the directory. Two directories may each contain a model.py,
# and each program must import the model.py in its directory.
_neighbors: dict[Path, dict[str, ModuleType]] = {}

# By directory: the entries that its code has added to ``sys.path``, at the start and at the end.
_added_paths: dict[Path, tuple[list[str], list[str]]] = {}

# The values of CUDA_VISIBLE_DEVICES that imports have set, by the path of the target.
_visible_gpus: dict[str, str] = {}


def import_program(target: Target, argv: Sequence[str] = ()) -> Program:
    """Load the function that a target names; its code finds the command-line arguments ``argv``.

    Raises:
        InputError: the module or function does not exist, loading it failed, or the function does
            not take the arguments of the target.
    """
    where = target.path
    if where.endswith(".py"):
        file = Path(where).resolve()
        folder: Path | None = file.parent
        environment = partial(emulate_script_environment, file, argv)
        with environment(), _record_visible_gpus(where):
            build = _attribute(_load_file(Path(where)), target)
    else:
        environment = partial(own_behavior, where, where.partition(".")[0])
        with environment(), _record_visible_gpus(where):
            module = _import(target)
        home = getattr(module, "__file__", None)
        folder = Path(home).resolve().parent if home else None
        build = _attribute(module, target)
    program = Program(
        target.name,
        _call_within(environment, build),
        folder,
        build,
        target,
        argv,
        _visible_gpus.get(where),
    )
    program.check_given()
    return program


def eager_script(program: Program | Script, error: InputError) -> Script:
    """Return the script that runs a program eagerly in a process of its own.

    ``error`` occurred when the program was built into a graph.

    Raises:
        InputError: another process cannot import the function.
    """
    if isinstance(program, Script):
        return replace(program, eager=True)
    target = _target_of(program)
    if target is None:
        raise error.copy(
            InputError,
            object=program.name,
            message=f"{error.message}; eager code runs in a process of its own, which cannot "
            "import this function: it is not at the top level of a file",
            fix="put the code into a 'with watch(eager=True):' block, or name the function by a "
            "target: 'train.py:main(depth=50)'",
        )
    return Script(target, Settings(args=tuple(program.argv)), eager=True)


def target_of_function(function: Program | Callable[..., object]) -> Target:
    """Return the target that names a function, for a program that runs in processes of its own.

    Raises:
        InputError: another process cannot import the function.
    """
    program = function if isinstance(function, Program) else Program("", function)
    target = _target_of(program)
    if target is None:
        raise InputError(
            getattr(program.build, "__qualname__", str(program.build)),
            "cannot be imported by another process: it is not a function at the top level of a "
            "file",
            "name the function by a target: 'train.py:main(depth=50)'",
            is_predicate=True,
        )
    return target


def _target_of(program: Program) -> Target | None:
    return program.target or importable_target(inspect.unwrap(program.build))


def importable_target(function: Any) -> Target | None:
    """The target that names a function; None if another process cannot import the function."""
    name, module = getattr(function, "__qualname__", "<"), getattr(function, "__module__", "")
    loaded = sys.modules.get(module)
    if "<" in name or loaded is None or inspect.ismethod(function):
        return None
    if inspect.unwrap(operator.attrgetter(name)(loaded)) is not function:
        return None
    path = getattr(loaded, "__file__", None)
    spec = getattr(loaded, "__spec__", None)
    if spec is not None and importlib.util.find_spec(module) is not None:
        path = module
    return None if path is None else Target("function", f"{path}:{name}", path, name)


@contextlib.contextmanager
def _record_visible_gpus(path: str) -> Iterator[None]:
    """Record the value of ``CUDA_VISIBLE_DEVICES`` that an import sets, and restore the old one.

    The value would otherwise apply to all later programs of this process.
    """
    before = os.environ.get(VISIBLE_GPUS)
    try:
        yield
    finally:
        value = os.environ.pop(VISIBLE_GPUS, None)
        if value is not None and value != before:
            _visible_gpus[path] = value
        if before is not None:
            os.environ[VISIBLE_GPUS] = before


@contextlib.contextmanager
def emulate_script_environment(file: Path, argv: Sequence[str] = ()) -> Iterator[None]:
    """Give code in this block the ``sys.path`` and ``sys.argv`` of ``python file``.

    Entries that earlier blocks for the same directory have added to ``sys.path`` are added again.
    A loaded module is unloaded until the block ends if it hides a module next to ``file`` or in
    such an entry: it has the same name, and is in another directory.
    """
    folder = file.parent
    before_path, before_argv = list(sys.path), sys.argv
    first, last = _added_paths.get(folder, ([], []))
    namesakes: dict[str, ModuleType] = {}
    for directory in _directories(folder, *first, *last):
        namesakes |= _find_namesakes(directory)
    for name in namesakes:
        del sys.modules[name]
    before = set(sys.modules)
    sys.path[:] = [*first, str(folder), *before_path, *last]
    sys.argv = [str(file), *argv]
    sys.modules.update(_neighbors.get(folder, {}))
    try:
        with own_behavior(file, folder):
            yield
    finally:
        _added_paths[folder] = added = _added_entries(sys.path, [str(folder), *before_path])
        sys.path[:], sys.argv = before_path, before_argv
        directories = _directories(folder, *added[0], *added[1])
        own = {
            name: sys.modules[name]
            for name in sys.modules.keys() - before
            if any(_lies_in(sys.modules[name], directory) for directory in directories)
        }
        _neighbors.setdefault(folder, {}).update(own)
        for name in own:
            del sys.modules[name]
        sys.modules.update(namesakes)


def _added_entries(path: Sequence[str], before: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the entries of ``path`` that ``before`` lacks, in two parts.

    The first part has the new entries before the first old entry, the second part has the rest.
    """
    first = list(itertools.takewhile(lambda entry: entry not in before, path))
    return first, [entry for entry in path[len(first) :] if entry not in before]


def _directories(folder: Path, *added: str) -> list[Path]:
    """Return a directory and the directories that its code has added to ``sys.path``."""
    readable = (entry for entry in added if os.access(entry, os.R_OK) and Path(entry).is_dir())
    return [folder, *(Path(entry).resolve() for entry in readable)]


def _find_namesakes(folder: Path) -> dict[str, ModuleType]:
    """Loaded user modules that hide a module of a directory: same name, but different file."""
    with os.scandir(folder) as entries:
        names = {
            Path(entry.name).stem
            for entry in entries
            if entry.name.endswith(".py") or entry.is_dir()
        }
    loaded = names & sys.modules.keys()
    found = {}
    for name in list(sys.modules) if loaded else ():
        if name.partition(".")[0] in loaded:
            module = sys.modules[name]
            file = getattr(module, "__file__", None)
            if file and is_user_file(file, None) and not _lies_in(module, folder):
                found[name] = module
    return found


def _call_within(loading: Callable[[], AbstractContextManager[None]], build: Any) -> Any:
    """Wrap a function so that its calls run in the environment of its import.

    A function may import a neighboring module only when it is called.
    """

    def call(*args: Any, **arguments: Any) -> object:
        with loading():
            return build(*args, **arguments)

    if callable(build):
        call.__wrapped__ = build  # type: ignore[attr-defined]  # for inspect.signature
        call.__qualname__ = getattr(build, "__qualname__", "")
    return call


def _load_file(path: Path) -> ModuleType:
    # The stem alone would be the same for files of the same name in two directories.
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


def _import(target: Target) -> ModuleType:
    sys.path.insert(0, "")
    try:
        with users_code(target.name, _LOADING, None):
            try:
                return importlib.import_module(target.path)
            except ModuleNotFoundError as error:
                if not f"{target.path}.".startswith(f"{error.name}."):
                    raise  # the module exists, but imports a missing module
                raise no_module_error(target.path, target.name) from None
    finally:
        sys.path.remove("")


def _attribute(module: ModuleType, target: Target) -> Any:
    name = target.function
    value: Any = module
    for part in name.split("."):
        with users_code(target.name, _LOADING, None):  # the module may define __getattr__
            present = hasattr(value, part)
        if not present:
            names = [key for key, member in vars(module).items() if callable(member)]
            raise MissingTargetError(
                target.name,
                f"there is no function '{name}' in it",
                did_you_mean(name, names) or "name the function that builds the graph",
            )
        value = getattr(value, part)
    if not callable(value):
        raise InputError(
            target.name,
            f"'{name}' is of type {type(value).__name__}, not a function",
            "name a function",
        )
    return value


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if not file or not is_user_file(file, None):
        return False
    return Path(file).resolve().is_relative_to(folder)
