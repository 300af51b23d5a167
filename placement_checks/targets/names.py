"""Checks and parses the text of a target before anything is loaded.

A target is one of:

* a whole program: ``path/to/train.py`` or ``package.train``;
* a function, with or without keyword arguments: ``train.py:build``,
  ``package.train:build(depth=50, n={gpus})``;
* the path of a saved graph.
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


def split_arguments(target: str) -> tuple[str, str]:
    """Split ``train.py:build(n=1)`` into ``train.py:build`` and ``(n=1)``.

    The second part is ``""`` for a target without arguments.
    """
    call = _CALL.fullmatch(target)
    return (call[1], call[2]) if call else (target, "")


def parse_arguments(target: str) -> Arguments:
    """Parse the keyword arguments in a target, such as ``(depth=50, n={gpus})``.

    Raises:
        InputError: they are not Python, or an argument is positional, repeated or not a literal.
    """
    bare, text = split_arguments(target)
    if not text:
        return NONE
    function = bare.rpartition(":")[2]
    call = _parse_call(target, function, text)
    for value in call.args:
        raise _unnamed_argument_error(target, function, ast.unparse(value))
    return Arguments(tuple(sorted(_literals(target, function, call.keywords))))


def _parse_call(target: str, function: str, text: str) -> ast.Call:
    reason = "text follows the closing parenthesis"
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            return call
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
    except (RecursionError, MemoryError):
        reason = "they are nested too deeply"
    raise InputError(
        target,
        f"its arguments cannot be parsed: {reason}",
        f"write them as in Python: {function}(depth=50, n={GPUS})",
    )


def _literals(
    target: str, function: str, keywords: list[ast.keyword]
) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for keyword in keywords:
        text = ast.unparse(keyword.value)
        if keyword.arg is None:
            raise _unnamed_argument_error(target, function, f"**{text}")
        if keyword.arg in seen:
            raise InputError(
                target, f"gives '{keyword.arg}' twice", "give it once", is_predicate=True
            )
        seen.add(keyword.arg)
        try:
            value_of(text, 1)
        except (ValueError, TypeError, RecursionError, MemoryError):
            raise _not_literal_error(target, keyword.arg, keyword.value) from None
        yield keyword.arg, text


def _unnamed_argument_error(target: str, function: str, text: str) -> InputError:
    return InputError(
        target,
        f"its argument {text} has no name",
        f"write {function}(NAME=VALUE), with the name of the parameter",
    )


def _not_literal_error(target: str, name: str, value: ast.expr) -> InputError:
    fix = f"write a number, a string, None, True, False, {GPUS}, or a list or tuple of these"
    if isinstance(value, ast.Name):
        is_gpus = f"{{{value.id}}}" == GPUS
        fix = f"write {name}={GPUS if is_gpus else repr(value.id)}"
    message = f"its {name}={ast.unparse(value)} must be a literal; expressions are not evaluated"
    return InputError(target, message, fix)


GRAPH_SUFFIXES = (".pb", ".pbtxt", ".meta")
_MOST_BYTES = 1 << 31  # the limit of a protobuf message


def check_target(target: str | Path) -> None:
    """Check that a target can exist, without loading it.

    Raises:
        InputError: the file or module does not exist, the file is not a graph, or the arguments
            of the function cannot be parsed.
    """
    path = Path(target)
    if isinstance(target, Path) or is_graph(path):
        graph_file(path)
        return
    where, colon, _ = split_arguments(target)[0].rpartition(":")
    if not colon and not is_program(target):
        raise _incomplete_target_error(target)
    where = where if colon else target
    if where.endswith(".py"):
        _check_readable(Path(where), where, _suggest_file(Path(where)))
    elif not _is_importable(where.partition(".")[0]):
        raise no_module_error(where, target)
    parse_arguments(target)


def is_program(target: str) -> bool:
    """Whether a target names a whole program: ``train.py`` or ``package.train``."""
    is_module = is_module_name(target) and _is_importable(target.partition(".")[0])
    return target.endswith(".py") or is_module


def is_module_name(text: str) -> bool:
    """Whether a text has the form of a module name: ``package.train``."""
    return all(part.isidentifier() for part in text.split("."))


def script_from_target(
    target: Target,
    args: Sequence[str] = (),
    *,
    v1: bool = False,
    let: Mapping[str, str] = MappingProxyType({}),
    limit: float | None = None,
) -> Target:
    """Return a `Script` if the target must run in a process of its own, else the target itself.

    A whole program always runs in its own process. A function does so if one of the other
    arguments is given, since these apply to a process.

    Args:
        target: any target.
        args: the command-line arguments of the program.
        v1: whether ``import tensorflow`` in the program means TensorFlow 1.
        let: new values by the names that the source code assigns to.
        limit: seconds until the first training step, after which the program is ended.

    Raises:
        UsageError: one of these arguments is given, but the target is not a program; or ``let``
            is given for a function.
    """
    wants_process = bool(args or v1 or let or limit is not None)
    is_text = isinstance(target, str) and not is_graph(Path(target))
    if wants_process and not is_text:
        raise UsageError(
            f"the program's options for {target!s:.60}",
            "are for a program in a file or module",
            "remove them, or name the program by a string such as 'train.py'",
            is_predicate=True,
        )
    if let and is_text and not is_program(str(target)):
        raise UsageError(
            f"--let {next(iter(let))}",
            f"is for a whole program, but {target} is a function",
            "remove the function, or pass the value as an argument: train.py:build(NAME=4)",
            is_predicate=True,
        )
    if isinstance(target, str) and is_text and (wants_process or is_program(target)):
        pairs = tuple(sorted(let.items()))
        return Script(target, tuple(args), v1, pairs, DEFAULT_LIMIT if limit is None else limit)
    return target


def graph_file(path: Path) -> Path:
    """Return the file of a saved graph: the path itself, or the graph in a SavedModel directory.

    Raises:
        InputError: the file does not exist, has another suffix, or is 2 GB or larger.
    """
    name = str(path)
    if file_kind(path) == "directory":
        saved = [path / f"saved_model{suffix}" for suffix in (".pb", ".pbtxt")]
        path = next((file for file in saved if file_kind(file) == "file"), path)
        if file_kind(path) == "directory":
            raise InputError(
                name,
                "is a directory without a saved_model.pb",
                "name a SavedModel",
                is_predicate=True,
            )
    _check_readable(path, name, "check the path")
    if path.suffix not in GRAPH_SUFFIXES:
        raise InputError(
            name,
            "is not a saved graph",
            f"name a file {', '.join(GRAPH_SUFFIXES)}",
            is_predicate=True,
        )
    if path.stat().st_size >= _MOST_BYTES:
        message = "is larger than 2 GB, the limit of protobuf"
        raise InputError(name, message, "save it without its constants", is_predicate=True)
    return path


def file_kind(path: str | Path) -> str:
    """Return ``file``, ``directory``, ``other`` or ``nothing``; never raises."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):  # such as a name that is too long
        return "nothing"
    return "file" if S_ISREG(mode) else "directory" if S_ISDIR(mode) else "other"


def is_graph(path: Path) -> bool:
    """Whether a path names a saved graph: by its suffix, or as the directory of a SavedModel."""
    return path.suffix in GRAPH_SUFFIXES or file_kind(path) == "directory"


def _check_readable(path: Path, name: str, fix: str) -> None:
    """Raise an `InputError` for ``name`` if a path is not a readable file."""
    kind = file_kind(path)
    if kind == "nothing":
        raise InputError(name, "there is no such file", fix)
    if kind == "directory":
        raise InputError(name, "is a directory", fix, is_predicate=True)
    if kind == "other":  # reading it may never end
        raise InputError(name, "is a pipe or device, not a file", fix, is_predicate=True)
    if not os.access(path, os.R_OK):
        raise InputError(name, "cannot be read: permission denied", fix, is_predicate=True)


def _is_importable(package: str) -> bool:
    """Whether Python finds a module or package; does not import it."""
    sys.path.insert(0, "")
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ValueError, ImportError):
        return False
    finally:
        sys.path.remove("")


def no_module_error(name: str, target: str) -> InputError:
    """Return the error for a target in a module that does not exist."""
    return InputError(
        target,
        f"there is no module '{name}'",
        "run it from the root of the project, or name the file: path/to/file.py:function",
    )


def _incomplete_target_error(target: str) -> InputError:
    path = Path(target)
    bare, parenthesis, arguments = target.partition("(")
    if bare.endswith(".py") and file_kind(bare) == "file":
        return InputError(
            target,
            "names no function, and only a function takes arguments in parentheses",
            f"write {bare}:build{parenthesis}{arguments}, with the name of the function",
            is_predicate=True,
        )
    if file_kind(path) == "file":
        return InputError(
            target,
            "is neither a Python file nor a saved graph",
            f"for a placement log, pass read_logs([{target!r}]).placement()",
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
