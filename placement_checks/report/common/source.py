"""Reads source lines, and finds the lines of plain Python that assign values used in a line.

A mistake may be in a list, an index or an order. No op was built there: TensorFlow only knows the
later line that uses the value. `value_lines` finds the assignments, but only assignments that ran
in this build. Python runs the statements above a line in the same block. Whether another block
ran, such as a branch or the body of a loop, is known only if an op was built there.
"""

from __future__ import annotations

import ast
import time
import tokenize
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple, TypeAlias

from placement_checks.core.placement import Placement

_STARTED = time.time()  # earlier than the build of any program
_MAX_LENGTH = 100
_LARGEST_FILE = 4_000_000  # bytes


def source_text(line: str) -> str | None:
    """Returns the text of a line such as ``train.py:12``; None if it cannot be read.

    Cells of notebooks, code passed to `exec` and files in archives cannot be read. If the file was
    written after this process started, the text ends with a note.
    """
    file, _, number = line.rpartition(":")
    lines, changed = source_lines(file)
    known = number.isdecimal() and 0 < int(number) <= len(lines)
    text = lines[int(number) - 1].strip() if known else ""
    if len(text) > _MAX_LENGTH:
        text = f"{text[: _MAX_LENGTH - 1]}…"
    if text and changed:
        return f"{text}  (the file has changed since)"
    return text or None


def source_lines(file: str) -> tuple[Sequence[str], bool]:
    """Returns the lines of a file, and whether it was written after this process started.

    If the file cannot be read, it has no lines.
    """
    try:
        status = Path(file).stat()
    except (OSError, ValueError):
        return (), False
    if not (S_ISREG(status.st_mode) and status.st_size <= _LARGEST_FILE):
        return (), False
    lines = _lines(file, (status.st_dev, status.st_ino, status.st_mtime_ns))
    return lines, status.st_mtime > _STARTED


@lru_cache(maxsize=64)
def _lines(file: str, _version: tuple[int, ...]) -> Sequence[str]:
    """The lines of a file in its declared encoding; none if it is not a text file."""
    try:
        with tokenize.open(file) as source:
            return source.read().split("\n")
    except (OSError, SyntaxError, ValueError):
        return ()


_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_WITH = (ast.With, ast.AsyncWith)
_FOR = (ast.For, ast.AsyncFor)
_EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_MAX_LINES = 3
# Functions that build no op.
_PLAIN = frozenset(
    {
        *("append", "extend", "insert", "dict", "list", "tuple", "slice", "len", "max", "min"),
        *("enumerate", "range", "reversed", "sorted", "zip"),
        *("get_collection", "get_losses", "global_variables", "trainable_variables"),
    }
)


def value_lines(line: str, placement: Placement | None = None) -> Sequence[str]:
    """Returns the lines that assign the names that a line uses, as ``file:line``, nearest first.

    The lines are in the same function, and contain only plain Python: a statement with other calls
    may build ops, which have their own lines. An assignment that may not have run is omitted,
    together with earlier assignments whose values it may have replaced.

    Args:
        line: the line, as ``file:line``.
        placement: the program; its ops show which branches and loops ran. None if unknown.
    """
    file, _, number = line.rpartition(":")
    lines, changed = source_lines(file)
    tree = None if changed or not number.isdecimal() else _parse("\n".join(lines))
    if tree is None:
        return ()
    at = int(number)
    values = _Values(file, placement)
    numbers = {
        statement.lineno
        for place in _places(_innermost(tree, at).body, at)
        for name in _names(place.used, ast.Load)
        for statement in values.assignments(name, place.steps)
        if statement.lineno != at and _is_plain(statement)
    }
    nearest = sorted(numbers, key=lambda each: abs(at - each))[:_MAX_LINES]
    return [f"{file}:{each}" for each in nearest]


@lru_cache(maxsize=64)
def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _innermost(tree: ast.Module, at: int) -> _Function:
    """The innermost function that contains a line, or else the module."""
    found: _Function = tree
    for node in ast.walk(tree):  # outer functions first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _contains_line(node, at):
            found = node
    return found


def _contains_line(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


class _Step(NamedTuple):
    """One of the nested statements that contain a line.

    Attributes:
        before: the statements above it in its block.
        statement: the statement.
    """

    before: Sequence[ast.stmt]
    statement: ast.stmt


class _Place(NamedTuple):
    """An expression or statement whose names a line uses, and the statements around it."""

    used: ast.AST
    steps: Sequence[_Step]


def _places(block: Sequence[ast.stmt], at: int, outer: Sequence[_Step] = ()) -> Iterator[_Place]:
    """Yields the statement at a line, and the heads of the loops and contexts around it."""
    for number, statement in enumerate(block):
        if not _contains_line(statement, at):
            continue
        steps = (*outer, _Step(block[:number], statement))
        if isinstance(statement, _FOR):
            yield _Place(statement.iter, steps)
        elif isinstance(statement, _WITH):
            yield from (_Place(item.context_expr, steps) for item in statement.items)
        blocks = [*_blocks(statement)]
        if not blocks and not isinstance(statement, _SCOPES):
            yield _Place(statement, steps)
        for inner in blocks:
            yield from _places(inner, at, steps)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a compound statement, except functions and classes."""
    if isinstance(statement, _SCOPES):
        return
    for field in ("body", "orelse", "finalbody"):
        if block := getattr(statement, field, None):
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


class _Values:
    """The assignments in one file that ran."""

    def __init__(self, file: str, placement: Placement | None) -> None:
        self._file = file
        self._placement = placement

    def assignments(self, name: str, steps: Sequence[_Step]) -> Iterator[ast.stmt]:
        """Yields the statements that assign a name before the innermost step, the last first."""
        for depth in range(len(steps) - 1, -1, -1):
            for statement in reversed(steps[depth].before):
                if (yield from self._assignments_in(statement, name)):
                    return
            if depth and name in _head_names(steps[depth - 1].statement):
                return

    def _assignments_in(self, statement: ast.stmt, name: str) -> Generator[ast.stmt, None, bool]:
        """Yields the assignments of a name in a statement; returns whether to stop the search.

        The search stops at a statement that replaces the value, or may have replaced it in a block
        that may not have run.
        """
        if not any(_blocks(statement)):
            if name in _assigned_names(statement):
                yield statement
            return name in _replaced_names(statement)
        is_settled = False
        for block in _blocks(statement):
            for each in reversed(block):
                if self._has_run(each, block, statement):
                    if (yield from self._assignments_in(each, name)):
                        is_settled = True
                        break
                elif _may_replace(each, name):
                    is_settled = True
        return is_settled or name in _head_names(statement)

    def _has_run(self, statement: ast.stmt, block: Sequence[ast.stmt], owner: ast.stmt) -> bool:
        """Whether a statement of a block certainly ran, if the owner of the block ran."""
        if isinstance(owner, _WITH) or block is getattr(owner, "finalbody", None):
            return True
        if block[0].lineno == owner.lineno:  # the head may have built the ops of this line
            return False
        end = block[-1].end_lineno or block[-1].lineno
        built = [line for line in self._built if block[0].lineno <= line <= end]
        if any(line >= statement.lineno for line in built):
            return True
        leaves = any(isinstance(node, _EXITS) for each in block for node in ast.walk(each))
        return bool(built) and not leaves

    @cached_property
    def _built(self) -> Collection[int]:
        """The lines of the file on which ops were built."""
        if self._placement is None:
            return ()
        return self._placement.cached(_lines_of_ops).get(self._file, ())


def _lines_of_ops(placement: Placement) -> Mapping[str, Collection[int]]:
    lines: dict[str, set[int]] = defaultdict(set)
    for stack in {tuple(placement.details.frames(name)) for name in placement.ops}:
        for frame in stack:
            lines[frame.file].add(frame.line)
    return lines


def _head_names(statement: ast.stmt) -> Collection[str]:
    """The names that the head of a loop or context assigns."""
    if isinstance(statement, _FOR):
        return {*_names(statement.target, ast.Store)}
    if isinstance(statement, _WITH):
        targets = [item.optional_vars for item in statement.items if item.optional_vars]
        return {name for target in targets for name in _names(target, ast.Store)}
    return ()


def _assigned_names(statement: ast.stmt) -> Collection[str]:
    """The names that a simple statement assigns or changes, as by ``towers.append(…)``."""
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return {*_names(statement, ast.Store)}
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            return {called.value.id}
    return ()


def _replaced_names(statement: ast.stmt) -> Collection[str]:
    """The names whose value a simple statement replaces."""
    if isinstance(statement, _SCOPES):
        return {statement.name}
    if isinstance(statement, ast.AugAssign) or getattr(statement, "value", statement) is None:
        return ()
    return {*_names(statement, ast.Store)}


def _may_replace(statement: ast.stmt, name: str) -> bool:
    return any(
        name in _replaced_names(each) or name in _head_names(each)
        for each in ast.walk(statement)
        if isinstance(each, ast.stmt)
    )


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement builds no op, and assigns more than an empty container."""
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
    uses_names = any(isinstance(node, ast.Name) for node in _values(statement))
    return names <= _PLAIN and uses_names


def _values(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of the assigned expression, or of the arguments of a call."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        for argument in statement.value.args:
            yield from ast.walk(argument)
    elif isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and statement.value:
        yield from ast.walk(statement.value)


def _names(node: ast.AST, context: type[ast.expr_context]) -> Iterator[str]:
    return (
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, context)
    )
