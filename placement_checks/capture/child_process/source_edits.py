"""Compiles a program with new values for the names that it assigns to: ``--let NAME=VALUE``.

NAME is a name, or a dotted name as in the source code, such as ``config.num_gpus``. In the main
file, or in the file of the function that a target names, each assignment to NAME gets the new
value, also in functions and classes. In other modules of the user, a name without a dot is only
replaced outside of functions, because local variables of the same name are unrelated. The files do
not change, and line numbers stay the same.

VALUE is a Python literal, such as a number, a list, True or None, or a string without quotes, such
as a path or a word. ``0,1`` is a string, and not a tuple. If the source code assigns a string,
numbers, calls and other expressions are strings too. Otherwise calls and expressions are errors.

This module does not import TensorFlow.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from placement_checks.capture.child_process.source_errors import compile_error
from placement_checks.core.errors import InputError
from placement_checks.core.user_code import is_user_file, relative_path
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import patched
from placement_checks.util.text import did_you_mean, listed

_MOST_NAMES = 6  # in a message
_EXPRESSIONS = (
    *(ast.Call, ast.Subscript, ast.List, ast.Set, ast.Dict, ast.JoinedStr, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_PARSER_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
_CONFIGURATIONS = frozenset(
    (".cfg", ".conf", ".gin", ".ini", ".json", ".properties", ".toml", ".yaml", ".yml")
)


class SourceValues:
    """Replaces values in the source code of a program. ``let`` maps names to new texts."""

    def __init__(self, let: Mapping[str, str]) -> None:
        self._let = let
        self._replaced: set[str] = set()
        self._assigned: dict[Path, Mapping[str, int]] = {}  # lines of names; main file first
        self._configurations: dict[Path, None] = {}
        self._refused: InputError | None = None

    def compile_main(self, path: Path, source: bytes) -> CodeType:
        """Compile the main file. Python decodes its source according to PEP 263.

        Raises:
            InputError: the file is not valid Python 3, or a new value is an expression.
        """
        try:
            tree = ast.parse(source, str(path))
            self._replace(tree, path, is_main=True)
            return compile(tree, str(path), "exec", dont_inherit=True)
        except _PARSER_ERRORS as error:
            raise compile_error(error, str(path)) from None

    @contextlib.contextmanager
    def in_imports(self, main: str = "") -> Iterator[None]:
        """Replace values in the modules that are imported in this block.

        ``main`` is the module of the function that a target names: its name, or its absolute path.
        """
        if not self._let:
            yield
            return
        sys.addaudithook(self._note_configuration)
        with patched(Patch.MODULE_CODE, partial(self._code_of_module, main)):
            yield

    def check(self) -> None:
        """Check, after the program has run, that its files assign to each name.

        Raises:
            InputError: no file assigns to a name, or a new value is an expression.
        """
        if self._refused:
            raise self._refused
        for name, text in self._let.items():
            if name not in self._replaced:
                raise _unassigned_error(name, text, self._assigned, self._configurations)

    def _code_of_module(self, main: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``SourceFileLoader.get_code``, to replace values in modules of the user."""

        def get_code(loader: Any, name: str) -> Any:
            file = loader.get_filename(name)
            if not is_user_file(file, None):
                return original(loader, name)
            with contextlib.suppress(*_PARSER_ERRORS):  # the original raises the same error
                tree = ast.parse(loader.get_data(file), file)
                if self._replace(tree, Path(file), is_main=main in (name, file)):
                    return compile(tree, file, "exec", dont_inherit=True)
            return original(loader, name)

        return get_code

    def _replace(self, tree: ast.Module, path: Path, *, is_main: bool) -> bool:
        """Replace the values in a file of the program; returns whether a value was replaced.

        Raises:
            InputError: a new value is an expression.
        """
        names = _assigned_names(tree)
        replaced = set()
        for name, text in self._let.items():
            replacing = _Replacer(name, text, in_functions=is_main or "." in name)
            try:
                ast.fix_missing_locations(replacing.visit(tree))
            except _NotALiteral:
                self._refused = InputError(
                    f"--let {name}={text}",
                    "must be a literal; expressions are not evaluated",
                    "write a value such as 4, [0, 1] or [{gpu_list}]; a string in quotes: "
                    "\"'text'\"",
                )
                raise self._refused from None
            if replacing.has_replaced:
                replaced.add(name)
        self._assigned = (
            {path: names, **self._assigned} if is_main else {**self._assigned, path: names}
        )
        self._replaced |= replaced
        return bool(replaced)

    def _note_configuration(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | bytes) and "r" in (args[1] or "r"):
            path = Path(os.fsdecode(args[0]))
            if path.suffix.lower() in _CONFIGURATIONS:
                self._configurations[path.absolute()] = None


class _NotALiteral(Exception):
    """A new value is an expression."""


class _Replacer(ast.NodeTransformer):
    """Replaces the values that are assigned to one name.

    With ``in_functions``, values in functions are replaced too.
    """

    def __init__(self, name: str, text: str, *, in_functions: bool) -> None:
        self._name = name
        self._text = text
        self._in_functions = in_functions
        self.has_replaced = False  # whether a value was replaced

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
        if self._in_functions:
            self.generic_visit(node)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # as ast names it

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        if all(map(self._is_named, node.targets)):
            node.value = self._value(node.value)
            return node
        # The other targets of the statement keep their values, such as `a` in `a = b = 4`.
        named = [each for target in node.targets for each in _targets(target)]
        return [node, *(self._assigned(each) for each in named if self._is_named(each))]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        if node.value is not None and self._is_named(node.target):
            node.value = self._value(node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        return self._assigned(node.target) if self._is_named(node.target) else node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        self.generic_visit(node)
        if self._is_named(node.target):
            node.value = self._value(node.value)
        return node

    def _is_named(self, target: ast.expr) -> bool:
        return _dotted_name(target) == self._name

    def _assigned(self, target: ast.expr) -> ast.stmt:
        return ast.copy_location(ast.Assign([target], self._value(target)), target)

    def _value(self, old: ast.expr) -> ast.expr:
        """Return the new value, with the source location of the old one."""
        self.has_replaced = True
        is_string = isinstance(old, ast.Constant) and isinstance(old.value, str)
        value = _literal(self._text, where_string=is_string)
        for node in ast.walk(value):
            ast.copy_location(node, old)
        return value


def _literal(text: str, *, where_string: bool) -> ast.expr:
    """Parse the text of a new value; ``where_string`` is whether the source code assigns a string.

    Raises:
        _NotALiteral: the text is an expression.
    """
    try:
        value = ast.parse(text.strip(), mode="eval").body
    except _PARSER_ERRORS:
        return ast.Constant(text)
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, RecursionError, MemoryError):
        if not where_string and _is_expression(value):
            raise _NotALiteral from None
        return ast.Constant(text)
    is_bare_tuple = isinstance(value, ast.Tuple) and not text.strip().startswith("(")
    is_number = type(ast.literal_eval(value)) in (int, float, complex)
    return ast.Constant(text) if is_bare_tuple or (where_string and is_number) else value


def _is_expression(value: ast.expr) -> bool:
    """Whether a text is an expression, and not a word or path such as ``a/b`` or ``a-1``."""
    if isinstance(value, ast.BinOp):
        return all(
            isinstance(side, ast.Constant) or _is_expression(side)
            for side in (value.left, value.right)
        )
    return isinstance(value, _EXPRESSIONS)


def _targets(target: ast.expr) -> Iterator[ast.expr]:
    """The single targets of an assignment: three for ``a, (b, *c)``."""
    match target:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                yield from _targets(element)
        case ast.Starred(value=value):
            yield from _targets(value)
        case _:
            yield target


def _dotted_name(target: ast.expr) -> str:
    """``a`` or ``a.b``; ``""`` for a target that is not a name."""
    match target:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            within = _dotted_name(value)
            return f"{within}.{name}" if within else ""
    return ""


def _unassigned_error(
    name: str,
    text: str,
    assigned: Mapping[Path, Mapping[str, int]],
    configurations: Iterable[Path],
) -> InputError:
    """Return the error for a name that no file assigns to, with a guess at the right name.

    Args:
        name: the name.
        text: the text of the new value.
        assigned: the names that each file assigns to, with the lines of their first assignments;
            the main file first.
        configurations: the configuration files that the program read.
    """
    option = f"--let {name}={text}"
    last = name.rpartition(".")[2]
    message = f"no Python file of the program assigns to {name}"
    for path, lines in assigned.items():
        if name in lines:  # in a function
            line = f"{relative_path(str(path))}:{lines[name]}"
            return InputError(
                option,
                f"{message} outside of a function; {line} assigns to it inside a function, but "
                "local variables are replaced only in the main file",
                "make it a module variable",
            )
    names = list(dict.fromkeys(each for lines in assigned.values() for each in lines))
    if near := next((each for each in names if each.rpartition(".")[2] == last), None):
        return InputError(option, message, f"did you mean '{near}'?")
    if line := _line_of_key(last, configurations):
        file = line.rpartition(":")[0]
        stem, dot, suffix = file.rpartition(".")
        return InputError(
            option,
            f"{message}; {line} sets it, but values in configuration files are not replaced",
            f"write the number into {file}, or make a copy of the file for each number of GPUs "
            f"and name it in the arguments: {stem}_{{gpus}}{dot}{suffix}",
        )
    main, lines = next(iter(assigned.items()))
    has = listed(list(lines), _MOST_NAMES) or "no name"
    fix = did_you_mean(name, names) or f"{relative_path(str(main))} assigns to {has}"
    return InputError(option, message, fix)


def _line_of_key(key: str, configurations: Iterable[Path]) -> str:
    """The first line of a configuration file that sets a key; ``""`` if there is none."""
    pattern = re.compile(
        rf"^(?!\s*[#;])(?:.*[\s{{,.])?[\"']?{re.escape(key)}[\"']?\s*[:=]", re.MULTILINE
    )
    for path in configurations:
        with contextlib.suppress(OSError):
            text = path.read_bytes().decode("utf-8", "replace")
            if found := pattern.search(text):
                return f"{relative_path(str(path))}:{text.count(chr(10), 0, found.end()) + 1}"
    return ""


def _assigned_names(tree: ast.Module) -> Mapping[str, int]:
    """The names that a file assigns to, each with the line of its first assignment."""
    targets: dict[type[ast.AST], Callable[..., list[ast.expr]]] = {
        ast.Assign: lambda node: node.targets,
        ast.AnnAssign: lambda node: [node.target] if node.value else [],
        ast.AugAssign: lambda node: [node.target],
        ast.NamedExpr: lambda node: [node.target],
    }
    found = sorted(
        (part.lineno, part.col_offset, _dotted_name(part))
        for node in ast.walk(tree)
        if type(node) in targets
        for target in targets[type(node)](node)
        for part in _targets(target)
    )
    names: dict[str, int] = {}
    for line, _, name in found:
        if name:
            names.setdefault(name, line)
    return names
