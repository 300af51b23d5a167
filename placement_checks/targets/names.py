"""What targets name, as far as that can be told before anything is loaded.

A target is a program, ``path/to/file.py`` or ``package.module``; a function of either,
``package.module:function``; or the path of a graph.

Reads a target that gives its function arguments: ``train.py:build(depth=50, n={gpus})``.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import MappingProxyType

from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.program import Target
from placement_checks.core.script import DEFAULT_LIMIT, GPUS, NONE, Arguments, Script, value_of
from placement_checks.util.text import close_matches

_CALL = re.compile(r"(.+?:[\w.]+)\s*(\(.*)", re.DOTALL)


def parted(target: str) -> tuple[str, str]:
    """A target without its arguments, and those in their brackets; ``""`` if it has none."""
    call = _CALL.fullmatch(target)
    return (call[1], call[2]) if call else (target, "")


def arguments_of(target: str) -> Arguments:
    """The arguments that a target gives its function.

    Raises:
        InputError: they cannot be read, or one has no name, is there twice or is no literal.
    """
    bare, text = parted(target)
    if not text:
        return NONE
    function = bare.rpartition(":")[2]
    call = _parsed(target, function, text)
    for value in call.args:
        raise _nameless(target, function, ast.unparse(value))
    return Arguments(tuple(sorted(_literals(target, function, call.keywords))))


def _parsed(target: str, function: str, text: str) -> ast.Call:
    reason = "there is more than these"
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            return call
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
    except (RecursionError, MemoryError):
        reason = "they are nested too deep"
    raise InputError(
        target,
        f"its arguments cannot be read: {reason}",
        f"write them as in Python, {function}(depth=50, n={GPUS})",
    )


def _literals(
    target: str, function: str, keywords: list[ast.keyword]
) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for keyword in keywords:
        text = ast.unparse(keyword.value)
        if keyword.arg is None:
            raise _nameless(target, function, f"**{text}")
        if keyword.arg in seen:
            raise InputError(target, f"gives '{keyword.arg}' twice", "give it once")
        seen.add(keyword.arg)
        try:
            value_of(text, 1)
        except (ValueError, TypeError, RecursionError, MemoryError):
            raise _no_literal(target, keyword.arg, keyword.value) from None
        yield keyword.arg, text


def _nameless(target: str, function: str, text: str) -> InputError:
    return InputError(
        target,
        f"its argument {text} has no name",
        f"write {function}(NAME=VALUE), with the parameter's name",
    )


def _no_literal(target: str, name: str, value: ast.expr) -> InputError:
    fix = f"write a number, a string, None, True, False, {GPUS}, or a list or tuple of such"
    if isinstance(value, ast.Name):
        word = value.id
        fix = f"write {name}={GPUS if f'{{{word}}}' == GPUS else repr(word)}"
    return InputError(target, f"its {name}={ast.unparse(value)} is no literal", fix)


GRAPH_SUFFIXES = (".pb", ".pbtxt", ".meta")
_LIMIT = 1 << 31  # bytes; protobuf reads no larger message


def check(target: str | Path) -> None:
    """Check a target, as far as that needs nothing to be loaded.

    Raises:
        InputError: there is no such file or module, the file can hold no graph, or the function's
            arguments cannot be read.
    """
    path = Path(target)
    if isinstance(target, Path) or is_graph(path):
        graph_file(path)
        return
    where, colon, _ = parted(target)[0].rpartition(":")
    if not colon and not is_program(target):
        raise _incomplete(target)
    where = where if colon else target
    if where.endswith(".py"):
        if reason := _unreadable(Path(where)):
            raise InputError(where, reason, _near(Path(where)))
    elif not _is_found(where.partition(".")[0]):
        raise no_module(where, target)
    arguments_of(target)


def is_program(target: str) -> bool:
    """Whether a target names a whole program: ``train.py`` or ``package.train``."""
    is_module = is_module_name(target) and _is_found(target.partition(".")[0])
    return target.endswith(".py") or is_module


def is_module_name(text: str) -> bool:
    """Whether it looks like the name of a module: ``package.train``."""
    return all(part.isidentifier() for part in text.split("."))


def script_of(
    target: Target,
    args: Sequence[str] = (),
    *,
    v1: bool = False,
    let: Mapping[str, str] = MappingProxyType({}),
    limit: float | None = None,
) -> Target:
    """The target, or the program to be watched in a process of its own that it names.

    That is a whole program, and a function that needs what only such a process can have.

    Args:
        target: any target.
        args: the arguments of the program's command line.
        v1: whether it means TensorFlow 1 by ``import tensorflow``.
        let: the values of names that its source holds.
        limit: seconds that it may take until its first training step.

    Raises:
        UsageError: the target is no program, and one of the others is given.
    """
    wants_process = bool(args or v1 or let or limit is not None)
    is_text = isinstance(target, str) and not is_graph(Path(target))
    if wants_process and not is_text:
        raise UsageError(
            f"the program's options for {target!s:.60}",
            "are for a program in a file or module",
            "leave them out, or name it as a text such as 'train.py'",
        )
    if let and is_text and not is_program(str(target)):
        raise UsageError(
            f"--let {next(iter(let))}",
            f"is for a whole program, and {target} is a function",
            "leave the function out, or give it the value as an argument in brackets",
        )
    if isinstance(target, str) and is_text and (wants_process or is_program(target)):
        pairs = tuple(sorted(let.items()))
        return Script(target, tuple(args), v1, pairs, DEFAULT_LIMIT if limit is None else limit)
    return target


def graph_file(path: Path) -> Path:
    """The file of a saved graph: the path itself, or the one in the folder of a SavedModel.

    Raises:
        InputError: there is no such file, it is too large, or its name is that of no graph.
    """
    name = str(path)
    if kind_of(path) == "folder":
        saved = [path / f"saved_model{suffix}" for suffix in (".pb", ".pbtxt")]
        path = next((file for file in saved if kind_of(file) == "file"), path)
        if kind_of(path) == "folder":
            raise InputError(name, "is a folder without a saved_model.pb", "name a SavedModel")
    if reason := _unreadable(path):
        raise InputError(name, reason, "check the path")
    if path.suffix not in GRAPH_SUFFIXES:
        raise InputError(name, "is not a saved graph", f"name a file {', '.join(GRAPH_SUFFIXES)}")
    if path.stat().st_size >= _LIMIT:
        raise InputError(
            name,
            "is larger than the 2 GB that a protobuf may have",
            "save it without its constants",
        )
    return path


def kind_of(path: str | Path) -> str:
    """``file``, ``folder``, ``other`` or ``nothing``, whatever the path: it may be too long."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return "nothing"
    return "file" if S_ISREG(mode) else "folder" if S_ISDIR(mode) else "other"


def is_graph(path: Path) -> bool:
    return path.suffix in GRAPH_SUFFIXES or kind_of(path) == "folder"


def _unreadable(path: Path) -> str:
    """Why a path cannot be read as a file; ``""`` if it can. A pipe or device might not end."""
    kind = kind_of(path)
    if kind == "file":
        return "" if os.access(path, os.R_OK) else "cannot be read: you lack the permission"
    return {"folder": "is a folder", "other": "is a pipe or device, not a file"}.get(
        kind, "there is no such file"
    )


def _is_found(package: str) -> bool:
    """Whether there is a module of this name, which is not loaded."""
    sys.path.insert(0, "")
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ValueError, ImportError):
        return False
    finally:
        sys.path.remove("")


def no_module(name: str, target: str) -> InputError:
    return InputError(
        target,
        f"there is no module '{name}'",
        "run it from the project's root, or give the path: path/to/file.py:function",
    )


def _incomplete(target: str) -> InputError:
    path = Path(target)
    bare, bracket, arguments = target.partition("(")
    if bare.endswith(".py") and kind_of(bare) == "file":
        return InputError(
            target,
            "names no function, and only a function takes arguments in brackets",
            f"write {bare}:build{bracket}{arguments}, with its name",
        )
    if kind_of(path) == "file":
        return InputError(
            target,
            "is neither a Python file nor a saved graph",
            f"if it is a placement log, give read_logs([{target!r}]).placement()",
        )
    return InputError(
        target,
        "there is no such file" if path.suffix or "/" in target else "is not a target",
        _near(path)
        or "write path/to/file.py, path/to/file.py:function, package.module:function or the path "
        "of a graph",
    )


def _near(path: Path) -> str:
    try:
        near = close_matches(path.name, os.listdir(path.parent))
    except (OSError, ValueError):  # there is no such folder, or it may not be listed
        return ""
    return f"did you mean '{path.parent / near[0]}'?" if near else ""
