"""The forms of targets: how a text is recognized and parsed before anything is loaded.

A target is one of:

* a whole program: ``path/to/train.py`` or ``package.train``;
* a function, with or without keyword arguments: ``train.py:build``,
  ``package.train:build(depth=50, n={gpus})``;
* the path of a saved graph;
* the path of a placement log, or ``-`` for standard input.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from placement_checks.core import limits
from placement_checks.core.errors import InputError, MissingTargetError, UsageError
from placement_checks.core.input_files import link_fault
from placement_checks.core.program import BuiltGraph, LiveGraph, Program, TargetLike
from placement_checks.core.settings import DEFAULTS, Settings
from placement_checks.core.target import (
    GPUS,
    NONE,
    Arguments,
    Loadable,
    RowsToRead,
    Script,
    SourceTree,
    Target,
    value_of,
)
from placement_checks.util.text import close_matches, join_and

_STDIN = "-"  # also in `logs.sources`, which is slow to import
_GRAPH_SUFFIXES = (".pb", ".pbtxt", ".meta")
_CALL = re.compile(r"(.+?:[\w.]+)\s*(\(.*)", re.DOTALL)  # a function and its arguments


def parse_target(text: str | Path) -> Target:
    """Parse a target, and check that it exists. A `Path` is the path of a saved graph.

    Raises:
        InputError: the text has no known form; the file or module does not exist; or the arguments
            of the function cannot be parsed.
    """
    if isinstance(text, Path):
        return _parse_graph(str(text))
    for form in _FORMS:
        if form.path_of(text, Path()) is not None:
            return form.parse(text)
    raise _incomplete_target_error(text)


def parse_command(text: str) -> tuple[Target, Sequence[str]]:
    """Parse a target, or a whole program with its arguments: ``train.py --rows=8``.

    Raises:
        InputError: as for `parse_target`.
    """
    try:
        program, *args = shlex.split(text)
    except ValueError:  # empty, or an unclosed quotation
        return parse_target(text), ()
    is_program = _program_path(program, Path()) is not None
    return (parse_target(program), args) if is_program else (parse_target(text), ())


def rebase(text: str, folder: Path) -> str:
    """Make the path of a target relative to the working directory, instead of to ``folder``.

    The text may be a whole program with its arguments. Names of modules are not changed. A path
    outside of the working directory becomes absolute.
    """
    program, blank, args = text.partition(" ")
    if program.endswith(".py") and blank:
        return f"{rebase(program, folder)} {args}"
    path = path_of_target(text, folder)
    if not path:
        return text
    absolute, here = folder / path, Path.cwd()
    relative = absolute.relative_to(here) if absolute.is_relative_to(here) else absolute
    return f"{relative}{text[len(path) :]}"


def path_of_target(text: str, folder: Path) -> str:
    """The path that a target begins with, relative to ``folder``; ``""`` for a module."""
    program, blank, _ = text.partition(" ")
    if program.endswith(".py") and blank:
        return program
    paths = (form.path_of(text, folder) for form in _FORMS)
    return next((path for path in paths if path is not None), "" if _is_module(program) else text)


def resolve(
    target: TargetLike,
    settings: Settings = DEFAULTS,
    *,
    tree: SourceTree | None = None,
    rows: RowsToRead = "all",
) -> Loadable:
    """Parse a target of any type, for `capture.programs.load`.

    A whole program becomes a `Script`, which runs in its own process. A function also becomes a
    `Script` if a setting for a process is given.

    Args:
        target: any target.
        settings: the settings; those of other kinds (`Settings.of_process`) do not count.
        tree: the copy of the repository whose code is run; None for the working tree.
        rows: as `Script.rows`.

    Raises:
        UsageError: a setting for a process is given, but the target is not code in a file or
            module; or ``target`` has none of the known types.
        InputError: the target does not exist, or is a placement log.
    """
    if isinstance(target, str | Path):
        target = parse_target(target)
    own = settings.of_process()
    wants_process = own != DEFAULTS or tree is not None
    if isinstance(target, Target) and target.is_code:
        if target.kind == "program" or wants_process:
            return Script(target, own, tree=tree, rows=rows)
        return target
    if wants_process:
        name = target.name if isinstance(target, Target) else str(target)
        given = {
            "arguments after --": own.args,
            "--v1": own.v1,
            "--let": own.let,
            "--limit": own.limit is not None,
            "--since": tree,
            "--horovod": own.horovod,
        }
        raise UsageError(
            join_and(option for option, value in given.items() if value),
            f"cannot be used with {name:.60}, which is not a program in a file or module",
            "omit this, or name a program such as 'train.py'",
            is_predicate=True,
        )
    if isinstance(target, Target):
        if target.kind == "log":
            raise InputError(
                target.name,
                "is neither a Python file nor a saved graph",
                f"for a placement log, pass read_logs([{target.name!r}]).placement()",
                is_predicate=True,
            )
        return target
    if isinstance(target, Loadable):
        return target
    if isinstance(target, LiveGraph):
        return BuiltGraph(target)
    return Program.from_function(target)


def resolve_reference(settings: Settings) -> Loadable | None:
    """The program for one GPU that settings name; its arguments are part of ``reference``.

    Raises:
        InputError: the program does not exist.
    """
    if settings.reference is None:
        return None
    target, args = parse_command(settings.reference)
    own = replace(settings.of_reference(), args=tuple(args))
    if target.kind == "program" or (own.v1 and target.is_code):
        return resolve(target, own)
    return resolve(target)


# Graphs


def _graph_path(text: str, folder: Path) -> str | None:
    is_graph = Path(text).suffix in _GRAPH_SUFFIXES or _file_kind(folder / text) == "directory"
    return text if is_graph else None


def _parse_graph(text: str) -> Target:
    """The target of a saved graph: a file, or the graph in a SavedModel directory."""
    path = Path(text)
    name = str(path)
    if _file_kind(path) == "directory":
        saved = [path / f"saved_model{suffix}" for suffix in (".pb", ".pbtxt")]
        path = next((file for file in saved if _file_kind(file) == "file"), path)
        if _file_kind(path) == "directory":
            raise InputError(
                name,
                "is a directory without a saved_model.pb",
                "name a SavedModel",
                is_predicate=True,
            )
    _check_readable(path, name, "check the path")
    if path.suffix not in _GRAPH_SUFFIXES:
        raise InputError(
            name,
            "is not a saved graph",
            f"name a file {', '.join(_GRAPH_SUFFIXES)}",
            is_predicate=True,
        )
    if path.stat().st_size > limits.GRAPH_BYTES.most:
        message = "is larger than 2 GB, the limit of protobuf"
        raise InputError(name, message, "save it without its constants", is_predicate=True)
    return Target("graph", name, str(path))


# Logs


def _log_path(text: str, folder: Path) -> str | None:
    """The path of a log: any existing file except a program or graph; ``""`` for stdin."""
    if text == _STDIN:
        return ""
    is_other = Path(text).suffix not in (".py", *_GRAPH_SUFFIXES)
    return text if is_other and _file_kind(folder / text) in ("file", "other") else None


# Programs and functions


def _program_path(text: str, _folder: Path) -> str | None:
    """The file of a whole program; ``""`` for a module."""
    if text.endswith(".py"):
        return text
    return "" if _is_module(text) and _is_importable(text) else None


def _parse_program(text: str) -> Target:
    _check_code(text, text)
    return Target("program", text, text)


def _function_path(text: str, _folder: Path) -> str | None:
    """The file of a function; ``""`` for a function of a module."""
    path, colon, _ = _split_arguments(text)[0].rpartition(":")
    return (path if path.endswith(".py") else "") if colon else None


def _parse_function(text: str) -> Target:
    bare, arguments = _split_arguments(text)
    path, _, function = bare.rpartition(":")
    _check_code(path, text)
    return Target("function", text, path, function, _parse_arguments(text, function, arguments))


def _check_code(path: str, text: str) -> None:
    """Check that the file or module of a target exists."""
    if path.endswith(".py"):
        _check_readable(Path(path), path, _suggest_file(Path(path)))
    elif not _is_importable(path):
        raise no_module_error(path, text)


def _split_arguments(text: str) -> tuple[str, str]:
    """Split ``train.py:build(n=1)`` into ``train.py:build`` and ``(n=1)``."""
    call = _CALL.fullmatch(text)
    return (call[1], call[2]) if call else (text, "")


def _parse_arguments(target: str, function: str, text: str) -> Arguments:
    """Parse keyword arguments such as ``(depth=50, n={gpus})``."""
    if not text:
        return NONE
    call, reason = None, "text follows the closing parenthesis"
    try:
        call = ast.parse(f"f{text}", mode="eval").body
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
    except (RecursionError, MemoryError):
        reason = "they are nested too deeply"
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise InputError(
            target,
            f"its arguments cannot be parsed: {reason}",
            f"write them as in Python: {function}(depth=50, n={GPUS})",
        )
    unnamed = [
        *map(ast.unparse, call.args),
        *(f"**{ast.unparse(keyword.value)}" for keyword in call.keywords if not keyword.arg),
    ]
    if unnamed:
        raise InputError(
            target,
            f"its argument {unnamed[0]} has no name",
            f"write {function}(NAME=VALUE), with the name of the parameter",
        )
    literals: dict[str, str] = {}
    for keyword in call.keywords:
        name, literal = str(keyword.arg), ast.unparse(keyword.value)
        if name in literals:
            raise InputError(target, f"gives '{name}' twice", "give it once", is_predicate=True)
        try:
            value_of(literal, 1)
        except (ValueError, TypeError, RecursionError, MemoryError):
            fix = (
                f"write a number, a string, None, True, False, {GPUS}, or a list or tuple of these"
            )
            if isinstance(keyword.value, ast.Name):
                is_gpus = f"{{{literal}}}" == GPUS
                fix = f"write {name}={GPUS if is_gpus else repr(literal)}"
            raise InputError(
                target,
                f"its {name}={literal} must be a literal; expressions are not evaluated",
                fix,
            ) from None
        literals[name] = literal
    return Arguments(tuple(sorted(literals.items())))


# Files and modules


def _file_kind(path: str | Path) -> str:
    """Return ``file``, ``directory``, ``other`` or ``nothing``; never raises."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):  # such as a name that is too long
        return "nothing"
    return "file" if S_ISREG(mode) else "directory" if S_ISDIR(mode) else "other"


def _check_readable(path: Path, name: str, fix: str) -> None:
    """Raise an `InputError` for ``name`` if a path is not a readable file."""
    kind = _file_kind(path)
    if fault := link_fault(path):
        raise InputError(name, fault, "replace the link")
    if kind == "nothing":
        raise MissingTargetError(name, "there is no such file", fix)
    if kind == "directory":
        raise InputError(name, "is a directory", fix, is_predicate=True)
    if kind == "other":  # reading it may never end
        raise InputError(name, "is a pipe or device, not a file", fix, is_predicate=True)
    if not os.access(path, os.R_OK):
        raise InputError(name, "cannot be read: permission denied", fix, is_predicate=True)


def _is_module(text: str) -> bool:
    """Whether a text has the form of a module name: ``package.train``."""
    return all(part.isidentifier() for part in text.split("."))


def _is_importable(module: str) -> bool:
    """Whether Python finds the top package of a module; does not import it."""
    package = module.partition(".")[0]
    sys.path.insert(0, "")
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ValueError, ImportError):
        return False
    finally:
        sys.path.remove("")


def no_module_error(name: str, target: str) -> MissingTargetError:
    """Return the error for a target in a module that does not exist."""
    return MissingTargetError(
        target,
        f"there is no module '{name}'",
        "run it from the root of the project, or name the file: path/to/file.py:function",
    )


def _incomplete_target_error(target: str) -> InputError:
    path = Path(target)
    if fault := link_fault(path):
        return InputError(target, fault, "replace the link")
    bare, parenthesis, arguments = target.partition("(")
    if bare.endswith(".py") and _file_kind(bare) == "file":
        return InputError(
            target,
            "names no function, and only a function takes arguments in parentheses",
            f"write {bare}:build{parenthesis}{arguments}, with the name of the function",
            is_predicate=True,
        )
    is_path = bool(path.suffix) or "/" in target
    return InputError(
        target,
        "there is no such file" if is_path else "is not a target",
        _suggest_file(path)
        or "write path/to/file.py, path/to/file.py:function, package.module:function or the path "
        "of a graph",
        is_predicate=not is_path,
    )


def _suggest_file(path: Path) -> str:
    try:
        near = close_matches(path.name, os.listdir(path.parent))
    except (OSError, ValueError):  # the directory does not exist or cannot be listed
        return ""
    return f"did you mean '{path.parent / near[0]}'?" if near else ""


class _Form(NamedTuple):
    """A form of target.

    Attributes:
        path_of: gets a text and the directory that its path is relative to, and returns the path
            that the text begins with. It returns ``""`` for a form without a path, such as a
            module, and None if the text has another form.
        parse: parses a text of this form; raises an InputError if its file or module does not
            exist, or if its arguments are invalid.
    """

    path_of: Callable[[str, Path], str | None]
    parse: Callable[[str], Target]


# The first form that fits a text applies.
_FORMS: Sequence[_Form] = (
    _Form(_graph_path, _parse_graph),
    _Form(_log_path, lambda text: Target("log", text, text)),
    _Form(_function_path, _parse_function),
    _Form(_program_path, _parse_program),
)
