"""Finds the constants that set the number of GPUs in the source code of a program.

A small program often has a constant, ``GPUS = 2``, where other programs have an argument. It can
be built for one GPU with ``--let GPUS={gpus}``, which reports then offer. The program is neither
imported nor run.
"""

from __future__ import annotations

import ast
import dis
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from placement_checks.core.missing import FixedGpus, Missing
from placement_checks.core.program import Program
from placement_checks.core.target import GPUS, Loadable, Script
from placement_checks.core.user_code import is_user_file, relative_path
from placement_checks.util.text import join_and

_ALL = ""  # in place of a name: everything that the module defines
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class GpuConstant(NamedTuple):
    """A module-level integer that may be the number of GPUs."""

    name: str
    line: str  # ``train.py:3``


def offer_constants(reason: FixedGpus, program: Loadable, towers: int) -> Missing:
    """Add the constants that may be the number of GPUs to the reason why that number is fixed."""
    constants = find_gpu_constants(program, towers) if towers > 1 else ()
    if not constants:
        return reason
    places = [f"{constant.name} = {towers} ({constant.line})" for constant in constants]
    is_object = isinstance(program, Program) and program.target is None
    options = [
        f"let={{'{name}': '{GPUS}'}}" if is_object else f"--let {name}={GPUS}"
        for name in dict.fromkeys(constant.name for constant in constants)
    ]
    which = "that is the number of GPUs" if len(options) == 1 else "one of them is that number"
    return Missing(
        f"{reason.reason}, but reads {join_and(places)}", f"if {which}: {' or '.join(options)}"
    )


def find_gpu_constants(program: Loadable, number: int) -> Sequence[GpuConstant]:
    """Return the module-level constants with the value ``number`` that a program reads.

    The code of a builder is followed through the functions, classes and values of its module, and
    through imports of other modules of the user. For a whole program, all code of the main file
    counts. The result is empty if the source code cannot be read.
    """
    start = _start_of(program)
    if start is None:
        return []
    search = _Search(start[0].parent, number)
    search.visit(*start)
    return sorted(search.found)


def _start_of(program: Loadable) -> tuple[Path, str] | None:
    """The file of a program, and the name in it that the search starts with."""
    target = program.target if isinstance(program, Program | Script) else None
    if target is not None:
        name = target.function.partition(".")[0]
        if target.path.endswith(".py"):
            return Path(target.path).resolve(), name
        file = _find_module(target.path, [Path.cwd()])
        return None if file is None else (file, name)
    if not isinstance(program, Program):
        return None
    function = inspect.unwrap(program.build)
    code, name = getattr(function, "__code__", None), getattr(function, "__qualname__", "")
    return None if code is None else (Path(code.co_filename).resolve(), name.partition(".")[0])


class _Search:
    """Collects the constants that names of modules depend on."""

    def __init__(self, folder: Path, number: int) -> None:
        self.found: set[GpuConstant] = set()
        self._folders = [folder, Path.cwd()]
        self._number = number
        self._statements: dict[Path, dict[str, list[ast.stmt]]] = {}
        self._visited: set[tuple[Path, str]] = set()

    def visit(self, file: Path, name: str) -> None:
        """Collect the constants that a module-level name depends on."""
        pending = [(file, name)]
        while pending:
            file, name = pending.pop()
            if (file, name) in self._visited:
                continue
            self._visited.add((file, name))
            by_name = self._read(file)
            names = list(by_name) if name == _ALL else [name]
            for each in names:
                for statement in by_name.get(each, ()):
                    self._note_constants(statement, each, file)
                    pending += self._imported(statement, each, "", file)
                    for used, attribute in _reads(statement, file):
                        pending.append((file, used))
                        for imported in by_name.get(used, ()) if attribute else ():
                            pending += self._imported(imported, used, attribute, file)

    def _read(self, file: Path) -> dict[str, list[ast.stmt]]:
        """The top-level statements of a file, by the names that they bind."""
        if file not in self._statements:
            by_name: dict[str, list[ast.stmt]] = defaultdict(list)
            try:
                tree = ast.parse(file.read_bytes(), str(file))
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                tree = ast.Module([], [])
            for statement in tree.body:
                for name in set(_bound_names(statement)) or {f"{statement.lineno}:"}:
                    by_name[name].append(statement)
            self._statements[file] = by_name
        return self._statements[file]

    def _note_constants(self, statement: ast.stmt, name: str, file: Path) -> None:
        for node in _own_nodes(statement):
            match node:
                case ast.Assign(targets=targets, value=ast.Constant(value=int(value))):
                    pass
                case ast.AnnAssign(target=target, value=ast.Constant(value=int(value))):
                    targets = [target]
                case _:
                    continue
            is_named = any(isinstance(each, ast.Name) and each.id == name for each in targets)
            if is_named and value == self._number and not isinstance(value, bool):
                line = f"{relative_path(str(file))}:{node.lineno}"
                self.found.add(GpuConstant(name, line))

    def _imported(
        self, statement: ast.stmt, name: str, attribute: str, file: Path
    ) -> Iterator[tuple[Path, str]]:
        """The names in other modules that ``name`` or ``name.attribute`` of this module means."""
        for node in _own_nodes(statement):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) != name:
                    continue
                if isinstance(node, ast.Import):
                    module = self._find(alias.name if alias.asname else name, 0, file)
                    names = attribute
                else:
                    within = ".".join(filter(None, (node.module, alias.name)))
                    module, names = self._find(within, node.level, file), attribute
                    if module is None:  # a name in a module, not a module in a package
                        module, names = self._find(node.module or "", node.level, file), alias.name
                if module is not None and names:
                    yield module, names

    def _find(self, module: str, level: int, file: Path) -> Path | None:
        """The file of a module of the user; ``level`` is the number of leading dots."""
        folders = [file.parents[level - 1]] if 0 < level <= len(file.parents) else self._folders
        return _find_module(module, folders)


def _find_module(module: str, folders: Sequence[Path]) -> Path | None:
    """The file of a module of the user in one of some directories, or of a loaded module."""
    for folder in folders:
        stem = folder.joinpath(*module.split("."))
        for file in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
            if file.is_file() and is_user_file(str(file), None):
                return file
    file_name = getattr(sys.modules.get(module), "__file__", None)
    is_own = file_name is not None and is_user_file(file_name, None)
    return Path(file_name) if is_own and file_name is not None else None


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, except those inside of functions and classes."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _SCOPES):
            pending += ast.iter_child_nodes(node)


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    """The module-level names that a statement binds."""
    for node in _own_nodes(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.partition(".")[0]


def _reads(statement: ast.stmt, file: Path) -> Iterator[tuple[str, str]]:
    """The global names that a statement reads, also in functions, each with its attribute.

    The attribute is ``""`` if the name is read alone. The bytecode knows which names are global.
    """
    try:
        code = compile(ast.Module([statement], []), str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    pending = [code]
    while pending:
        code = pending.pop()
        pending += (constant for constant in code.co_consts if isinstance(constant, CodeType))
        for load, following in pairwise([*dis.get_instructions(code), None]):
            if load is not None and load.opname in _GLOBALS:
                is_attribute = following is not None and following.opname in _ATTRIBUTES
                yield load.argval, following.argval if is_attribute and following else ""
