"""The lines of plain Python that give a line its values.

A mistake may be in a list, an index or an order, of which no op tells: TensorFlow knows the line
below it, at which the value is used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

from placement_checks.report.text.source_text import source_lines

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
_MOST = 3
# What is called without building an op.
_PLAIN = frozenset(
    {
        *("append", "extend", "insert", "dict", "list", "tuple", "slice", "len", "max", "min"),
        *("enumerate", "range", "reversed", "sorted", "zip"),
        *("get_collection", "get_losses", "global_variables", "trainable_variables"),
    }
)


def lines_of_values(line: str) -> Sequence[str]:
    """Where the names that a line uses get their values in its function, as ``file:line``.

    Of plain Python alone, the nearest first: a statement that calls anything else may build ops,
    and is told where it does.
    """
    file, _, number = line.rpartition(":")
    lines, changed = source_lines(file)
    tree = None if changed or not number.isdecimal() else _tree("\n".join(lines))
    if tree is None:
        return ()
    at = int(number)
    function = _innermost(tree, at)
    used = {name for statement in _around(function, at) for name in _names(statement, ast.Load)}
    giving = [
        statement.lineno
        for statement in _statements(function)
        if not _has(statement, at)
        if used.intersection(_given(statement)) and _is_plain(statement)
    ]
    nearest = sorted(set(giving), key=lambda each: abs(at - each))[:_MOST]
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


def _around(function: _Function, at: int) -> Iterator[ast.AST]:
    """The statement at a line, and the heads of the blocks around it."""
    for statement in _statements(function):
        if _has(statement, at):
            if isinstance(statement, ast.For | ast.AsyncFor):
                yield statement.iter
            elif isinstance(statement, ast.With | ast.AsyncWith):
                yield from (item.context_expr for item in statement.items)
            elif not isinstance(statement, ast.If | ast.While | ast.Try | ast.FunctionDef):
                yield statement


def _statements(function: _Function) -> Iterator[ast.stmt]:
    """All statements of a function, those of functions in it left out."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.stmt):
            yield node
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _statements(node)  # type: ignore[arg-type]


def _given(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement gives a value, or adds one to."""
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        yield from _names(statement, ast.Store)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            yield called.value.id


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
