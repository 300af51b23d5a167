"""What a source line says, as far as its file can still be read.

The lines of plain Python that give a line its values.

A mistake may be in a list, an index or an order, of which no op tells: TensorFlow knows the line
below it, at which the value is used. Only assignments that ran in this build are named. Python
runs the statements above a line in the same block; whether it ran another block, such as a branch
or the body of a loop, is known only if an op was built there.
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

_STARTED = time.time()  # of this process, or soon after: before any program is built
_LONGEST = 100
_LARGEST_FILE = 4_000_000  # bytes


def source_text(line: str) -> str | None:
    """The text of a line, as in ``train.py:12``; None where there is none to be read.

    That is so for a cell of a notebook, what `exec` was given and files in an archive, and where
    the file has become shorter. A file that was written after this process began may not be what
    was run: that is said.
    """
    file, _, number = line.rpartition(":")
    lines, changed = source_lines(file)
    known = number.isdecimal() and 0 < int(number) <= len(lines)
    text = lines[int(number) - 1].strip() if known else ""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1]}…"
    if text and changed:
        return f"{text}  (the file has changed since)"
    return text or None


def source_lines(file: str) -> tuple[Sequence[str], bool]:
    """The lines of a file, none where it cannot be read; and whether it was written meanwhile."""
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
    """Those of a file in the encoding that it names; none where it is no text."""
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
_MOST = 3
# What is called without building an op.
_PLAIN = frozenset(
    {
        *("append", "extend", "insert", "dict", "list", "tuple", "slice", "len", "max", "min"),
        *("enumerate", "range", "reversed", "sorted", "zip"),
        *("get_collection", "get_losses", "global_variables", "trainable_variables"),
    }
)


def lines_of_values(line: str, placement: Placement | None = None) -> Sequence[str]:
    """Where the names that a line uses get their values in its function, as ``file:line``.

    Of plain Python alone, the nearest first: a statement that calls anything else may build ops,
    and is told where it does. An assignment that may not have run is left out, and so are those
    whose value it may have replaced.

    Args:
        line: the line, as ``file:line``.
        placement: the program, whose ops show which branches and loops ran; None if that is not
            known.
    """
    file, _, number = line.rpartition(":")
    lines, changed = source_lines(file)
    tree = None if changed or not number.isdecimal() else _tree("\n".join(lines))
    if tree is None:
        return ()
    at = int(number)
    values = _Values(file, placement)
    giving = {
        statement.lineno
        for place in _places(_innermost(tree, at).body, at)
        for name in _names(place.used, ast.Load)
        for statement in values.given(name, place.steps)
        if statement.lineno != at and _is_plain(statement)
    }
    nearest = sorted(giving, key=lambda each: abs(at - each))[:_MOST]
    return [f"{file}:{each}" for each in nearest]


@lru_cache(maxsize=64)
def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _innermost(tree: ast.Module, at: int) -> _Function:
    """The function whose body has a line; the module where there is none."""
    found: _Function = tree
    for node in ast.walk(tree):  # the outer ones first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _has(node, at):
            found = node
    return found


def _has(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


class _Step(NamedTuple):
    """A statement on the way from a function to a line.

    Attributes:
        before: the statements above it in its block.
        statement: the statement.
    """

    before: Sequence[ast.stmt]
    statement: ast.stmt


class _Place(NamedTuple):
    """An expression or statement that a line's values come from, and the way to it."""

    used: ast.AST
    steps: Sequence[_Step]


def _places(block: Sequence[ast.stmt], at: int, way: Sequence[_Step] = ()) -> Iterator[_Place]:
    """The statement at a line, and the heads of the loops and contexts around it."""
    for number, statement in enumerate(block):
        if not _has(statement, at):
            continue
        steps = (*way, _Step(block[:number], statement))
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
    """The blocks of a compound statement; none of a function or class in it."""
    if isinstance(statement, _SCOPES):
        return
    for field in ("body", "orelse", "finalbody"):
        if block := getattr(statement, field, None):
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


class _Values:
    """The values that names are given in one file, by statements that ran."""

    def __init__(self, file: str, placement: Placement | None) -> None:
        self._file = file
        self._placement = placement

    def given(self, name: str, steps: Sequence[_Step]) -> Iterator[ast.stmt]:
        """The statements that give a name its value at the end of a way, the last one first."""
        for depth in range(len(steps) - 1, -1, -1):
            for statement in reversed(steps[depth].before):
                if (yield from self._in(statement, name)):
                    return
            if depth and name in _set_by_head(steps[depth - 1].statement):
                return

    def _in(self, statement: ast.stmt, name: str) -> Generator[ast.stmt, None, bool]:
        """The statements in one that give a name its value; returns whether none before it does.

        That is so as well if a block that may not have run replaces the value.
        """
        if not any(_blocks(statement)):
            gives = name in _given(statement)
            if gives:
                yield statement
            return name in _replaced(statement)
        is_settled = False
        for block in _blocks(statement):
            for each in reversed(block):
                if self._has_run(each, block, statement):
                    if (yield from self._in(each, name)):
                        is_settled = True
                        break
                elif _may_replace(each, name):
                    is_settled = True
        return is_settled or name in _set_by_head(statement)

    def _has_run(self, statement: ast.stmt, block: Sequence[ast.stmt], owner: ast.stmt) -> bool:
        """Whether a statement of a block surely ran, if the statement that has the block did."""
        if isinstance(owner, _WITH) or block is getattr(owner, "finalbody", None):
            return True
        if block[0].lineno == owner.lineno:  # of its one line the head may have built ops
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


def _set_by_head(statement: ast.stmt) -> Collection[str]:
    """The names that the head of a loop or context sets."""
    if isinstance(statement, _FOR):
        return {*_names(statement.target, ast.Store)}
    if isinstance(statement, _WITH):
        targets = [item.optional_vars for item in statement.items if item.optional_vars]
        return {name for target in targets for name in _names(target, ast.Store)}
    return ()


def _given(statement: ast.stmt) -> Collection[str]:
    """The names that a simple statement gives a value, or adds one to."""
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return {*_names(statement, ast.Store)}
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            return {called.value.id}
    return ()


def _replaced(statement: ast.stmt) -> Collection[str]:
    """The names whose value a simple statement replaces."""
    if isinstance(statement, _SCOPES):
        return {statement.name}
    if isinstance(statement, ast.AugAssign) or getattr(statement, "value", statement) is None:
        return ()
    return {*_names(statement, ast.Store)}


def _may_replace(statement: ast.stmt, name: str) -> bool:
    return any(
        name in _replaced(each) or name in _set_by_head(each)
        for each in ast.walk(statement)
        if isinstance(each, ast.stmt)
    )


def _is_plain(statement: ast.stmt) -> bool:
    """Whether all that it calls builds no op, and it gives more than something empty."""
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
    says = any(isinstance(node, ast.Name) for node in _values(statement))
    return names <= _PLAIN and says


def _values(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of what is given."""
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
