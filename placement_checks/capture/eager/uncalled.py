"""Finds the training functions that a program has defined, but not called yet.

A loop may call one of its steps several times before it calls the next one: five steps of a critic
for each step of a generator, or several batches to add up their gradients. `UncalledFunctions`
knows the functions that `tf.function` decorates, and the Keras models that are compiled, before
they are called. `takes_gradients` reads the source code of a function, because an uncalled
function has no graph.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from placement_checks.core.user_code import is_user_file, relative_path
from placement_checks.tf.eager import is_traced
from placement_checks.tf.keras import around_compile, has_trained_on_batches
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import afterwards, patched
from placement_checks.util.walks import walk

# Attributes that code uses to take or apply gradients.
_GRADIENTS = frozenset(
    {"GradientTape", "apply_gradients", "assign_sub", "gradient", "gradients", "minimize"}
)


class UncalledFunctions:
    """The decorated functions and compiled models of a program; `record_uncalled` fills it."""

    def __init__(self) -> None:
        self._functions: list[weakref.ref[Any]] = []
        self._models: list[weakref.ref[Any]] = []

    def note_function(self, function: Any, *_: Any) -> None:
        """Record an object that `tf.function` returned."""
        self._functions.append(weakref.ref(function))

    def note_model(self, model: Any, *_: Any) -> None:
        """Record a compiled Keras model."""
        self._models.append(weakref.ref(model))

    def functions(self) -> Sequence[str]:
        """The uncalled functions of the user that take or apply gradients, with their lines."""
        calls: defaultdict[CodeType, list[bool]] = defaultdict(list)
        for function in filter(None, (reference() for reference in self._functions)):
            # A decorated method has one object in its class, and one for each instance.
            code = getattr(inspect.unwrap(function.python_function), "__code__", None)
            if code is not None and is_user_file(code.co_filename, None):
                calls[code].append(is_traced(function))
        return [
            f"{code.co_name} ({relative_path(code.co_filename)}:{code.co_firstlineno})"
            for code, traced in calls.items()
            if not any(traced) and takes_gradients(code)
        ]

    def models(self) -> Sequence[str]:
        """The names of compiled models that were not trained on a batch."""
        alive = filter(None, (reference() for reference in self._models))
        return list(
            dict.fromkeys(
                f"the model {model.name}" for model in alive if not has_trained_on_batches(model)
            )
        )


@contextlib.contextmanager
def record_uncalled() -> Iterator[UncalledFunctions]:
    """Record the functions that are decorated, and the models that are compiled, in this block."""
    notes = UncalledFunctions()
    with (
        patched(Patch.NEW_FUNCTION, afterwards(notes.note_function)),
        around_compile(afterwards(notes.note_model)),
    ):
        yield notes


class _Definition(NamedTuple):
    """A ``def`` statement, with its file."""

    file: str
    node: ast.AST


def takes_gradients(code: CodeType) -> bool:
    """Whether a function takes or applies gradients, or names a function of the user that does."""
    own = [
        _Definition(code.co_filename, node)
        for node in _definitions(code.co_filename).get(code.co_name, ())
        if code.co_firstlineno in _lines(node)
    ]
    return any(
        isinstance(node, ast.Attribute) and node.attr in _GRADIENTS
        for definition in walk(own, _named_definitions)
        for node in ast.walk(definition.node)
    )


def _lines(node: Any) -> Sequence[int]:
    """The lines on which a function may begin in its code object, with or without decorators."""
    return [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]


@lru_cache(maxsize=256)
def _definitions(file: str) -> Mapping[str, Sequence[ast.AST]]:
    """The ``def`` statements of a file, also in classes and functions, by name."""
    found: defaultdict[str, list[ast.AST]] = defaultdict(list)
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        for node in ast.walk(ast.parse(Path(file).read_bytes())):
            if isinstance(node, ast.FunctionDef):
                found[node.name].append(node)
    return found


def _named_definitions(definition: _Definition) -> Iterator[_Definition]:
    """The functions of the user that a function names: its own file's, and imported functions."""
    file, body = definition
    scope = _globals(file)
    for node in ast.walk(body):
        value: Any = None
        match node:
            case ast.Name(id=name):
                value = scope.get(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                pass
            case ast.Attribute(value=ast.Name(id=base), attr=name):
                module = scope.get(base)
                if not isinstance(module, ModuleType):
                    continue
                value = getattr(module, name, None)
            case _:
                continue
        function = inspect.unwrap(getattr(value, "python_function", value))
        if isinstance(function, FunctionType):
            file_of_function = function.__code__.co_filename
            if not is_user_file(file_of_function, None):
                continue
            found = _definitions(file_of_function).get(function.__name__, ())
            yield from (_Definition(file_of_function, each) for each in found)
        else:
            yield from (_Definition(file, each) for each in _definitions(file).get(name, ()))


def _globals(file: str) -> Mapping[str, Any]:
    """The global names of the loaded module of a file; empty if no module is loaded from it."""
    modules = list(sys.modules.values())
    return next((vars(each) for each in modules if getattr(each, "__file__", None) == file), {})
