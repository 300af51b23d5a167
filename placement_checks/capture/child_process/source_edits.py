"""Compiles a program with values in place of those that it assigns: ``--let NAME=VALUE``.

NAME is a name, or a dotted one as the source writes it, such as ``config.num_gpus``. In the main
file whatever is assigned to it is replaced, in functions and classes too. In the modules that the
program imports from files of the user's, a name without a dot is replaced only outside of
functions: their local variables are nobody else's. All is done in memory, and lines keep their
numbers.

VALUE is a Python literal: a number, a list, True, None. A call or other expression that would
have to be computed is refused, where no string is expected. Anything else is taken for a string,
as the shell gives it: a path, a word, also ``0,1``, which to Python would be a tuple; and where
the source has a string, a number is taken for one.

Does not import TensorFlow.

What keeps a script from being compiled, in one line; code of Python 2 is named as such.

Says what to do where a program is outdated: of TensorFlow 1, or of Python 2.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from placement_checks.capture.child_process.python_2 import python_2_cause
from placement_checks.core.errors import InputError, message_of
from placement_checks.core.user_code import is_user_file, relative_path, users_frames
from placement_checks.tf.patching import patched
from placement_checks.util.text import did_you_mean, join_and

# What only Python 2 reads, by what Python 3 says of it, and by what stands in the line.
_PYTHON_2 = (
    ("a print statement", r"call to 'print'", r""),
    ("an exec statement", r"call to 'exec'", r""),
    ("except ERROR, NAME", r"must be parenthesized|invalid syntax", r"\bexcept\b[^:]*,"),
    ("raise ERROR, VALUE", r"invalid syntax", r"\braise\s+[\w.]+\s*,"),
    ("backticks", r"invalid (syntax|character)", r"`"),
    ("the operator <>", r"invalid syntax", r"<>"),
    ("a long number such as 10L", r"invalid (decimal|hexadecimal) literal", r"\b\d\w*[lL]\b"),
    ("an octal number such as 0755", r"leading zeros in decimal", r""),
    ("a string with the prefix ur", r"invalid syntax", r"\b[uU][rR]['\"]"),
    ("a parameter in brackets", r"parameters cannot be parenthesized", r""),
    ("tabs and spaces mixed", r"inconsistent use of tabs", r""),
)
_BAD_BYTES = re.compile(r"\(unicode error\) '([\w-]+)' codec can't decode byte (0x\w\w)")
CONVERT = "convert it to Python 3, as 2to3 does; nothing is converted here"


def as_input_error(error: BaseException, path: Path, source: bytes) -> InputError:
    """The error for what `compile` raised, with the line that is at fault.

    Args:
        error: a SyntaxError, or another where the script is no text or is nested too deep.
        path: of the script.
        source: what is in it.
    """
    name = relative_path(str(path))
    if not isinstance(error, SyntaxError):
        reason = message_of(error) or "it is nested too deep"
        return InputError(name, f"cannot be compiled: {reason}", "check that it is a script")
    where = f"{name}:{error.lineno}" if error.lineno else name
    if old := _python_2(error, source):
        return InputError(where, f"is code of Python 2: {old}", CONVERT)
    if bad := _BAD_BYTES.match(error.msg):
        return InputError(
            name,
            f"is not {bad[1]}: it has the byte {bad[2]}",
            "save it as UTF-8, or name its encoding in the first line: # -*- coding: latin-1 -*-",
        )
    return InputError(where, f"is no Python: {error.msg}", "see what python itself says of it")


def _python_2(error: SyntaxError, source: bytes) -> str:
    """What in the line is of Python 2; ``""`` if nothing is."""
    lines = source.splitlines()
    number = (error.lineno or 0) - 1
    line = lines[number].decode("latin-1") if 0 <= number < len(lines) else ""
    return next(
        (
            what
            for what, message, text in _PYTHON_2
            if re.search(message, error.msg) and re.search(text, line)
        ),
        "",
    )


_SHOWN = 6  # names in a message
_COMPUTED = (
    *(ast.Call, ast.Subscript, ast.List, ast.Set, ast.Dict, ast.JoinedStr, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_CONFIGURATIONS = frozenset(
    (".cfg", ".conf", ".gin", ".ini", ".json", ".properties", ".toml", ".yaml", ".yml")
)


class SourceValues:
    """The values that a program gets in place of those in its source.

    Args:
        let: the texts of the values, by the names whose values they replace.
    """

    def __init__(self, let: Mapping[str, str]) -> None:
        self._let = let
        self._replaced: set[str] = set()
        self._files: list[_SourceFile] = []
        self._configurations: dict[Path, None] = {}
        self._refused: InputError | None = None

    def compile_main(self, path: Path, source: bytes) -> CodeType:
        """Compile the main file, which is decoded as Python does it (PEP 263).

        Args:
            path: of the file, as its code and its tracebacks shall name it.
            source: what is in it.

        Raises:
            InputError: it is no Python 3, or a value would have to be computed.
        """
        try:
            tree = ast.parse(source, str(path))
            self._replace(tree, path, is_main=True)
            return compile(tree, str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise as_input_error(error, path, source) from None

    @contextlib.contextmanager
    def in_imports(self) -> Iterator[None]:
        """Replace values in the modules that are imported in this block."""
        if not self._let:
            yield
            return
        sys.addaudithook(self._note_configuration)
        with patched(SourceFileLoader, "get_code", self._code_of_module):
            yield

    def check(self) -> None:
        """Check that the program, which has run, assigns something to each name.

        Raises:
            InputError: it does not, or a value would have to be computed.
        """
        if self._refused:
            raise self._refused
        for name, text in self._let.items():
            if name not in self._replaced:
                raise _assigned_nowhere(name, text, self._files, self._configurations)

    def _code_of_module(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``SourceFileLoader.get_code``, with values in the code of the user's modules."""

        def get_code(loader: Any, name: str) -> Any:
            file = loader.get_filename(name)
            if not is_user_file(file, None):
                return original(loader, name)
            try:
                tree = ast.parse(loader.get_data(file), file)
                is_changed = self._replace(tree, Path(file), is_main=False)
                if is_changed:
                    return compile(tree, file, "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                pass  # Python says so
            return original(loader, name)

        return get_code

    def _replace(self, tree: ast.Module, path: Path, *, is_main: bool) -> bool:
        """Replace the values in a file of the program; whether there are any.

        Raises:
            InputError: a value would have to be computed.
        """
        names = _assigned_names(tree)
        replaced = set()
        for name, text in self._let.items():
            replacing = _Replacing(name, text, in_functions=is_main or "." in name)
            try:
                ast.fix_missing_locations(replacing.visit(tree))
            except _Computed:
                self._refused = InputError(
                    f"--let {name}={text}",
                    "must be a literal; expressions are not evaluated",
                    "give its value, such as 4, [0, 1] or [{gpu_list}]; a text in quotes: "
                    "\"'text'\"",
                )
                raise self._refused from None
            if replacing.has_replaced:
                replaced.add(name)
        self._files.append(_SourceFile(path, names))
        self._replaced |= replaced
        return bool(replaced)

    def _note_configuration(self, event: str, args: tuple[Any, ...]) -> None:
        """Note the configuration files that the program reads."""
        if event == "open" and isinstance(args[0], str | bytes) and "r" in (args[1] or "r"):
            path = Path(os.fsdecode(args[0]))
            if path.suffix.lower() in _CONFIGURATIONS:
                self._configurations[path.absolute()] = None


@dataclass(frozen=True)
class _SourceFile:
    """A file of the program.

    Attributes:
        path: of the file.
        names: what it assigns to, with the line of the first time.
    """

    path: Path
    names: Mapping[str, int]


class _Computed(Exception):
    """A value that is an expression."""


class _Replacing(ast.NodeTransformer):
    """Replaces what is assigned to one name.

    Args:
        name: the name.
        text: the text of its value.
        in_functions: whether it is replaced in functions too.

    Attributes:
        has_replaced: whether anything was.
    """

    def __init__(self, name: str, text: str, *, in_functions: bool) -> None:
        self._name = name
        self._text = text
        self._in_functions = in_functions
        self.has_replaced = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        if self._in_functions:
            self.generic_visit(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        if self._in_functions:
            self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        if all(map(self._is_named, node.targets)):
            node.value = self._value(node.value)
            return node
        # Others get what they got: a tuple's parts, or `a` of `a = b = 4`.
        named = [each for target in node.targets for each in _parts(target)]
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
        return _dotted(target) == self._name

    def _assigned(self, target: ast.expr) -> ast.stmt:
        return ast.copy_location(ast.Assign([target], self._value(target)), target)

    def _value(self, old: ast.expr) -> ast.expr:
        """The new value, at the place of the old one."""
        self.has_replaced = True
        is_string = isinstance(old, ast.Constant) and isinstance(old.value, str)
        value = _literal(self._text, where_string=is_string)
        for node in ast.walk(value):
            ast.copy_location(node, old)
        return value


def _literal(text: str, *, where_string: bool) -> ast.expr:
    """The value that a text stands for.

    Args:
        text: as it was typed.
        where_string: whether the script has a string there.
    """
    try:
        value = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Constant(text)
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, RecursionError, MemoryError):
        if not where_string and _is_computed(value):
            raise _Computed from None
        return ast.Constant(text)
    is_bare_tuple = isinstance(value, ast.Tuple) and not text.strip().startswith("(")
    return ast.Constant(text) if is_bare_tuple or (where_string and _is_number(value)) else value


def _is_computed(value: ast.expr) -> bool:
    """Whether it is Python to be computed, and no word or path, such as ``a/b`` or ``a-1``."""
    if isinstance(value, ast.BinOp):
        return all(
            isinstance(side, ast.Constant) or _is_computed(side)
            for side in (value.left, value.right)
        )
    return isinstance(value, _COMPUTED)


def _is_number(value: ast.expr) -> bool:
    literal = ast.literal_eval(value)
    return isinstance(literal, int | float | complex) and not isinstance(literal, bool)


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    """What a target assigns to: itself, or each of the parts of ``a, (b, *c)``."""
    match target:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                yield from _parts(element)
        case ast.Starred(value=value):
            yield from _parts(value)
        case _:
            yield target


def _dotted(target: ast.expr) -> str:
    """``a`` or ``a.b``; ``""`` for what is no name."""
    match target:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            within = _dotted(value)
            return f"{within}.{name}" if within else ""
    return ""


def _assigned_nowhere(
    name: str, text: str, files: Sequence[_SourceFile], configurations: Iterable[Path]
) -> InputError:
    """The error for a name that no file assigns to, with the place where the value may be.

    Args:
        name: the name.
        text: the text of its value.
        files: those of the program, the main one first.
        configurations: those that it has read.
    """
    last = _last_part(name)
    message = f"no Python file of the program assigns anything to {name}"
    for file in files:
        if name in file.names:  # within functions
            where = f"{relative_path(str(file.path))}:{file.names[name]}"
            return InputError(
                f"--let {name}={text}",
                f"{message} outside of a function; {where} does within one, whose local "
                "variables are replaced in the main file only",
                "make it a variable of the module",
            )
    names = list(dict.fromkeys(each for file in files for each in file.names))
    if near := next((each for each in names if _last_part(each) == last), None):
        return InputError(f"--let {name}={text}", message, f"did you mean '{near}'?")
    if where := _line_of_key(last, configurations):
        path = where.rpartition(":")[0]
        stem, dot, suffix = path.rpartition(".")
        return InputError(
            f"--let {name}={text}",
            f"{message}; {where} sets it, and a configuration file is read as it is",
            f"write the number into {path}, or keep a copy of the file for each number of GPUs "
            f"and name it in the arguments: {stem}_{{gpus}}{dot}{suffix}",
        )
    main = files[0]
    some = list(main.names)
    some = [*some[:_SHOWN], "others"] if len(some) > _SHOWN else some
    assigned = join_and(some) if some else "no name"
    fix = did_you_mean(name, names) or f"{relative_path(str(main.path))} assigns to {assigned}"
    return InputError(f"--let {name}={text}", message, fix)


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _line_of_key(key: str, configurations: Iterable[Path]) -> str:
    """The first line of a configuration file that gives a key a value; ``""`` if none does."""
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
    """The names that a file assigns to, in its order, each with the line of the first time."""
    targets: dict[type[ast.AST], Callable[..., list[ast.expr]]] = {
        ast.Assign: lambda node: node.targets,
        ast.AnnAssign: lambda node: [node.target] if node.value else [],
        ast.AugAssign: lambda node: [node.target],
        ast.NamedExpr: lambda node: [node.target],
    }
    found = sorted(
        (part.lineno, part.col_offset, _dotted(part))
        for node in ast.walk(tree)
        if type(node) in targets
        for target in targets[type(node)](node)
        for part in _parts(target)
    )
    names: dict[str, int] = {}
    for line, _, name in found:
        if name:
            names.setdefault(name, line)
    return names


@contextlib.contextmanager
def explain_outdated(program: str, *, is_v1: bool) -> Iterator[None]:
    """Run a program in this block.

    Raises:
        InputError: it asks TensorFlow 2 for what version 1 had, or is code of Python 2.
    """
    try:
        yield
    except SyntaxError as error:  # of a module that it imports
        if error.filename is None or not is_user_file(error.filename, None):
            raise
        file = Path(error.filename)
        raise as_input_error(error, file, file.read_bytes()) from None
    except (AttributeError, ImportError, NameError, TypeError) as error:
        if cause := python_2_cause(error):
            stack = traceback.extract_tb(error.__traceback__)
            where = next(reversed(users_frames(stack, None)), program)
            raise InputError(str(where), f"is code of Python 2: {cause}", CONVERT) from None
        if is_v1 or not _is_asked_of_tensorflow(error):
            raise
        raise InputError(
            program,
            f"before its first training step it raised {type(error).__name__}: "
            f"{message_of(error)}",
            "add --v1 if it means TensorFlow 1 by import tensorflow",
        ) from None


def _is_asked_of_tensorflow(error: Exception) -> bool:
    """Whether TensorFlow lacks a name or module that the program asked for."""
    match error:
        case ImportError(name=name):
            return str(name).startswith("tensorflow")
        case AttributeError(obj=owner):
            return str(getattr(owner, "__name__", "")).startswith("tensorflow")
    return False
