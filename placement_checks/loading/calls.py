"""Reads a target that gives its function arguments: ``train.py:build(depth=50, n={gpus})``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from placement_checks.core.arguments import GPUS, NONE, Arguments, value_of
from placement_checks.core.errors import InputError

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
