"""Compiles a script with values in place of those that it assigns: ``--let NAME=VALUE``.

NAME is a name, or a dotted one as the script writes it, such as ``config.num_gpus``. Whatever the
script assigns to it, in functions and classes too, is replaced in memory, and lines keep their
numbers. VALUE is a Python literal: a number, a list, True, None. A call or other expression that
would have to be computed is refused, where no string is expected. Anything else is taken for a
string, as the shell gives it: a path, a word, also ``0,1``, which to Python would be a tuple; and
where the script has a string, a number is taken for one.

Does not import TensorFlow.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType

from placement_checks.core.errors import InputError
from placement_checks.loading.source_lines import shown
from placement_checks.loading.watch.syntax_errors import as_input_error
from placement_checks.util.text import did_you_mean, joined

_SHOWN = 6  # names in a message
_COMPUTED = (
    *(ast.Call, ast.Subscript, ast.List, ast.Set, ast.Dict, ast.JoinedStr, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


def compile_script(path: Path, source: bytes, let: Mapping[str, str]) -> CodeType:
    """Compile a script, which is decoded as Python does it (PEP 263).

    Args:
        path: of the script, as its code and its tracebacks shall name it.
        source: what is in it.
        let: the texts of values, by the names whose values they replace.

    Raises:
        InputError: it is no Python 3, or assigns nothing to one of the names.
    """
    try:
        tree = ast.parse(source, str(path))
        for name, text in let.items():
            tree = _with_value(tree, path, name, text)
        return compile(tree, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise as_input_error(error, path, source) from None


def _with_value(tree: ast.Module, path: Path, name: str, text: str) -> ast.Module:
    replacing = _Replacing(name, text)
    try:
        tree = ast.fix_missing_locations(replacing.visit(tree))
    except _Computed:
        raise InputError(
            f"--let {name}={text}",
            "is an expression, and nothing is computed",
            "give its value, such as 4, [0, 1] or [{gpu_list}]; a text in quotes: \"'text'\"",
        ) from None
    if not replacing.has_replaced:
        raise _assigned_nowhere(tree, path, name, text)
    return tree


class _Computed(Exception):
    """A value that is an expression."""


class _Replacing(ast.NodeTransformer):
    """Replaces what is assigned to one name.

    Attributes:
        has_replaced: whether anything was.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self.has_replaced = False

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


def _assigned_nowhere(tree: ast.Module, path: Path, name: str, text: str) -> InputError:
    names = _assigned_names(tree)
    last = _last_part(name)
    near = next((each for each in names if _last_part(each) == last), None)
    some = [*names[:_SHOWN], "others"] if len(names) > _SHOWN else names
    fix = f"did you mean '{near}'?" if near else did_you_mean(name, names)
    return InputError(
        f"--let {name}={text}",
        f"{shown(str(path))} assigns nothing to {name}; other files are left as they are",
        fix or (f"it assigns to {joined(some)}" if names else "it assigns to no name"),
    )


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _assigned_names(tree: ast.Module) -> Sequence[str]:
    """The names that a script assigns to, in its order."""
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
    return list(dict.fromkeys(name for *_, name in found if name))
