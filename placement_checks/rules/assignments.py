"""Find lines that build no op, such as the slice or the list that loses a tower, or a seed.

An op is known by the line that builds it. If this line only uses a wrong value that a plain
assignment of Python made, or that a caller gave, the assignment or the call is the line to edit.
It is found in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain

from placement_checks.core.frames import Frame
from placement_checks.util.source_files import read_source

# Parts of a statement that have frames of their own up to Python 3.11.
COMPREHENSIONS = frozenset({"<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>"})
_CHANGES = frozenset({"append", "extend", "insert", "pop", "remove", "clear"})  # of a list
# Functions of Python and TensorFlow that build no op.
_PURE = frozenset(
    {"enumerate", "filter", "len", "list", "max", "min", "range", "reversed", "sorted", "sum"}
    | {"tuple", "zip"}
    | {"get_collection", "global_variables", "trainable_variables"}
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def assigned_at(frame: Frame) -> Frame:
    """Return the line of the plain assignment whose value the line of a frame uses.

    The result is the frame itself if the source is unknown, if the line slices or lists values
    itself, or if it uses the values of several such assignments.
    """
    read = _read(frame)
    if read is None or _selects(read[1]):
        return frame
    body, statement = read
    names = {
        each.id
        for each in _expressions(statement)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    found = {}
    for name in names:
        earlier = [each for each in _changes(body, name) if each.lineno < statement.lineno]
        last = max(earlier, key=lambda each: each.lineno, default=None)
        if last is not None and _is_plain(last) and not _adds_in_loop(body, last):
            found[last.lineno] = last
    lines = [line for line, each in found.items() if _selects(each)] or list(found)
    return frame._replace(line=lines[0]) if len(lines) == 1 else frame


def fed_at(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames down to the line that makes the data that a call takes in a loop.

    The call is in the innermost line, such as ``step(x, y)``. The loop is ``for x, y in data:``,
    and the line assigns ``data``, or gives it to the function with the loop.
    """
    frames, names = list(frames), None
    while frames and (read := _read(frames[-1])):
        body, statement = read
        if names is None:
            calls = (each for each in _expressions(statement) if isinstance(each, ast.Call))
            names = {name for each in calls for value in _values(each) for name in _taken(value)}
        for loop in _statements(body):
            if isinstance(loop, ast.For) and _spans(loop, frames[-1].line):
                targets = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
                if names & targets:
                    frames[-1] = frames[-1]._replace(line=loop.lineno)
                    names = _taken(loop.iter)
        if len(names) != 1:
            break
        (name,) = names
        assigned = [each for each in _changes(body, name) if each.lineno < frames[-1].line]
        if assigned:
            frames[-1] = frames[-1]._replace(line=max(each.lineno for each in assigned))
            break
        call = _call_of(body, frames[-2]) if len(frames) > 1 else None
        value = None if call is None else _given(body, call, name)
        if value is None:
            break
        frames.pop()
        names = _taken(value)
    return frames


# Functions that take data from their arguments.
_TAKE = _PURE | {
    *("iter", "next", "distribute_datasets_from_function", "experimental_distribute_dataset")
}


def _taken(node: ast.expr) -> set[str]:
    """Return the variables with the data that an expression takes, and does not make itself."""
    if isinstance(node, ast.Name):
        return {node.id}
    parts: Sequence[ast.expr] = ()
    if isinstance(node, ast.Starred):
        parts = [node.value]
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    elif isinstance(node, ast.Call) and _name(node.func) in _TAKE:
        parts = _values(node)
    return set().union(*map(_taken, parts))


def awaited_at(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames down to the line that chooses the ops of ``tf.control_dependencies``.

    It is the innermost such statement around a line, or the plain assignment of its argument.
    """
    for depth in range(len(frames) - 1, -1, -1):
        frame = frames[depth]
        read = _read(frame)
        around = [
            each
            for each in (_statements(read[0]) if read else ())
            if isinstance(each, ast.With)
            and _spans(each, frame.line)
            and any(
                isinstance(call, ast.Call) and _name(call.func) == "control_dependencies"
                for call in _expressions(each)
            )
        ]
        if around:
            return [*frames[:depth], assigned_at(frame._replace(line=around[-1].lineno))]
    return frames


def other_branch_of(frame: Frame) -> Frame:
    """Return the first line that runs in place of a line, if an ``if`` chooses between both.

    The result is the line of the ``if`` if it has one branch, and the frame itself without ``if``.
    """
    read = _read(frame)
    line = None if read is None else _other_branch(read[0].body, frame.line)
    return frame if line is None else frame._replace(line=line)


def _other_branch(block: Sequence[ast.stmt], line: int) -> int | None:
    found = None
    for each in block:
        # The statements after such an `if` are its other branch.
        if isinstance(each, ast.If) and _leaves(each.body) and (each.end_lineno or 0) < line:
            found = each.body[0].lineno
        branches = [getattr(each, name, []) for name in ("body", "orelse", "finalbody")]
        for branch in branches:
            if branch and branch[0].lineno <= line <= branch[-1].end_lineno:
                if isinstance(each, ast.If):
                    other = each.body if branch is each.orelse else each.orelse
                    found = other[0].lineno if other else each.lineno
                found = _other_branch(branch, line) or found
    return found


def _leaves(block: Sequence[ast.stmt]) -> bool:
    """Whether a branch ends its function, or a turn of a loop, after something else."""
    *before, last = block
    return bool(before) if isinstance(last, ast.Continue) else isinstance(last, ast.Return)


def given_at(frames: Sequence[Frame], name: str) -> Sequence[Frame]:
    """Return the frames down to the line that gives an argument its value.

    The argument is a variable or a keyword with ``name`` in its name, such as a seed. If it is a
    parameter of the innermost function, the line is in the caller, or it is the parameter's
    default. If it is a variable of the function, the line assigns it.
    """
    frames = list(frames)
    while frames and (read := _read(frames[-1])):
        body, statement = read
        (used, *more) = _arguments(statement, name) or [""]
        if not used or more:
            break
        assigned = [each for each in _changes(body, used) if each.lineno < statement.lineno]
        if assigned:
            frames[-1] = frames[-1]._replace(line=max(each.lineno for each in assigned))
            break
        if used in _parameters(body) and len(frames) > 1:
            line = _default_line(body, used, frames[-2])
            if line is not None:
                frames[-1] = frames[-1]._replace(line=line)
                break
            frames.pop()
            continue
        break
    return frames


def passed_at(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames down to the call that decides the arguments of the innermost line.

    A line passes arguments on if they are parameters of its function. Then the call of this
    function decides them, unless it gives literals, which are the same for all towers.
    """
    frames = found = list(frames)
    while len(frames) > 1 and (read := _read(frames[-1])):
        body, statement = read
        calls = [each for each in _expressions(statement) if isinstance(each, ast.Call)]
        names = {
            each.id
            for value in chain(*map(_values, calls))
            for each in ast.walk(value)
            if isinstance(each, ast.Name)
        }
        are_passed = len(calls) == 1 and names and names <= {*_parameters(body)}
        frames = frames[:-1]
        call = _call_of(body, frames[-1])
        if not are_passed or call is None or any(any(_changes(body, name)) for name in names):
            break
        if not all(isinstance(each, ast.Constant) for each in _values(call)):
            found = frames
    return found


def mentioned_at(frames: Sequence[Frame], name: str) -> Sequence[Frame]:
    """Return the frames down to the only line that mentions a name, such as a setting.

    The line is in the outermost function with such a line, or in a function within it. The result
    is empty if there is none, or if the function has several.
    """
    for depth, frame in enumerate(frames):
        body = _function(frame)
        lines = {
            getattr(each, "lineno", 0)
            for each in (ast.walk(body) if body else ())
            if name in (getattr(each, part, None) for part in ("arg", "attr", "id", "value"))
        }
        if lines:
            return [*frames[:depth], frame._replace(line=lines.pop())] if len(lines) == 1 else ()
    return ()


def calls(frame: Frame, function: str) -> bool:
    """Return whether the line of a frame calls a function; false if the source is unknown."""
    read = _read(frame)
    return read is not None and any(
        isinstance(each, ast.Call) and _name(each.func) == function
        for each in _expressions(read[1])
    )


def _values(call: ast.Call) -> Sequence[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _call_of(function: _Function, caller: Frame) -> ast.Call | None:
    """Return the call of a function in a line of its caller; None if there is none."""
    read = _read(caller)
    calls = (each for each in _expressions(read[1]) if isinstance(each, ast.Call)) if read else ()
    name = None if isinstance(function, ast.Module) else function.name
    return next((each for each in calls if _name(each.func) == name), None)


def _arguments(statement: ast.stmt, name: str) -> list[str]:
    """Return the variables of a statement that are values of a keyword, or are named like it."""
    expressions = list(_expressions(statement))
    values = [
        each.value
        for each in expressions
        if isinstance(each, ast.keyword) and each.arg and name in each.arg
    ]
    found = [each.id for each in values if isinstance(each, ast.Name)]
    if not values:
        found = [each.id for each in expressions if isinstance(each, ast.Name) and name in each.id]
    return list(dict.fromkeys(found))


def _parameters(function: _Function) -> list[str]:
    if isinstance(function, ast.Module):
        return []
    given = function.args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def _default_line(function: _Function, parameter: str, caller: Frame) -> int | None:
    """Return the line of a parameter's default; None if the caller may give another value."""
    call = _call_of(function, caller)
    if call is None or isinstance(function, ast.Module):
        return None
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = dict(
        zip((each.arg for each in reversed(positional)), reversed(given.defaults), strict=False)
    ) | {
        each.arg: default
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if default is not None
    }
    may_be_given = any(each.arg is None for each in call.keywords) or any(
        isinstance(each, ast.Starred) for each in call.args
    )
    if may_be_given or parameter not in defaults or _given(function, call, parameter):
        return None
    return defaults[parameter].lineno


def _given(function: _Function, call: ast.Call, parameter: str) -> ast.expr | None:
    """Return the argument of a call for a parameter; None if the call gives none."""
    names = _parameters(function)
    is_method = isinstance(call.func, ast.Attribute) and names[:1] == ["self"]
    given = dict(zip(names[is_method:], call.args, strict=False)) | {
        each.arg: each.value for each in call.keywords if each.arg
    }
    return given.get(parameter)


def _read(frame: Frame) -> tuple[_Function, ast.stmt] | None:
    """Return the function and the statement of a frame; None if the source is unknown."""
    body = _function(frame)
    statement = None if body is None else _statement(body, frame.line)
    return None if body is None or statement is None else (body, statement)


def _function(frame: Frame) -> _Function | None:
    """Return the innermost function of a frame; None if its source is unknown."""
    source = read_source(frame.file)
    if source is None:
        return None
    around = [
        each
        for each in _functions(frame.file, source.changed)
        if isinstance(each, ast.Module) or _spans(each, frame.line)
    ]
    found = max(around, key=lambda each: getattr(each, "lineno", 0), default=None)
    names = {getattr(found, "name", "<module>"), *COMPREHENSIONS}
    return found if frame.function in names else None


@lru_cache(maxsize=16)
def _functions(file: str, _changed: float) -> Sequence[_Function]:
    """Return the module in a file and all functions in it; none if Python cannot parse it."""
    source = read_source(file)
    try:
        module = ast.parse("\n".join(source.lines if source else ()))
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        return ()
    return [each for each in ast.walk(module) if isinstance(each, _Function)]


def _statements(body: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a function, without those of functions and classes in it."""
    for each in ast.iter_child_nodes(body):
        if isinstance(each, ast.stmt):
            yield each
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _statements(each)


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _statement(body: _Function, line: int) -> ast.stmt | None:
    """Return the innermost statement of a function that contains a line."""
    around = [each for each in _statements(body) if _spans(each, line)]
    return max(around, key=lambda each: each.lineno, default=None)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement, without the statements in it."""
    todo: list[ast.AST] = [statement]
    while todo:
        each = todo.pop()
        yield each
        todo += [child for child in ast.iter_child_nodes(each) if not isinstance(child, ast.stmt)]


def _changes(body: _Function, name: str) -> Iterator[ast.stmt]:
    """Yield the statements of a function that assign a name, or change the list that it names."""
    for statement in _statements(body):
        for each in _expressions(statement):
            is_assigned = (
                isinstance(each, ast.Name)
                and each.id == name
                and isinstance(each.ctx, ast.Store)
                and not isinstance(statement, ast.Global | ast.Nonlocal)
            )
            is_changed = (
                isinstance(each, ast.Call)
                and isinstance(each.func, ast.Attribute)
                and each.func.attr in _CHANGES
                and isinstance(each.func.value, ast.Name)
                and each.func.value.id == name
            )
            if is_assigned or is_changed:
                yield statement
                break


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement selects values and builds no op: no loop, no call, no first value."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return not any(map(_builds, statement.value.args))
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return False
    value = statement.value
    return value is not None and not _builds(value) and not _is_first_value(value)


def _adds_in_loop(body: _Function, statement: ast.stmt) -> bool:
    """Whether a statement adds to a list in a loop, as each tower does."""
    loops = (each for each in _statements(body) if isinstance(each, ast.For | ast.While))
    return isinstance(statement, ast.Expr) and any(
        _spans(each, statement.lineno) for each in loops
    )


def _builds(expression: ast.AST) -> bool:
    """Whether an expression may build ops: it calls a function that is not known to build none."""
    return any(
        isinstance(each, ast.Call) and _name(each.func) not in _PURE
        for each in ast.walk(expression)
    )


def _name(function: ast.expr) -> str:
    """Return the name of a called function or method; ``""`` for other expressions."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_first_value(value: ast.expr) -> bool:
    """Whether a value is the start of a loop, such as an empty list, a number or None."""
    if isinstance(value, ast.Tuple):
        return all(map(_is_first_value, value.elts))
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.List | ast.Dict) and not ast.unparse(value)[1:-1]
    )


def _selects(statement: ast.stmt) -> bool:
    """Whether a statement slices or lists values."""
    kinds = ast.Slice | ast.List
    return any(
        isinstance(each, kinds) and (not isinstance(each, ast.List) or bool(each.elts))
        for each in _expressions(statement)
    )
