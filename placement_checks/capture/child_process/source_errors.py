"""Explains why source code cannot run: a syntax error, Python 2 or TensorFlow 1."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType

from placement_checks.core.errors import InputError, message_of
from placement_checks.core.user_code import is_user_file, relative_path, users_frames

# Syntax of Python 2: its name, Python 3's error message for it, and a pattern in the source line.
_PYTHON_2_SYNTAX = (
    ("a print statement", r"call to 'print'", r""),
    ("an exec statement", r"call to 'exec'", r""),
    ("except ERROR, NAME", r"must be parenthesized|invalid syntax", r"\bexcept\b[^:]*,"),
    ("raise ERROR, VALUE", r"invalid syntax", r"\braise\s+[\w.]+\s*,"),
    ("backticks", r"invalid (syntax|character)", r"`"),
    ("the operator <>", r"invalid syntax", r"<>"),
    ("a long number such as 10L", r"invalid (decimal|hexadecimal) literal", r"\b\d\w*[lL]\b"),
    ("an octal number such as 0755", r"leading zeros in decimal", r""),
    ("a string with the prefix ur", r"invalid syntax", r"\b[uU][rR]['\"]"),
    ("a parameter in parentheses", r"parameters cannot be parenthesized", r""),
    ("mixed tabs and spaces", r"inconsistent use of tabs", r""),
)
_BAD_BYTES = re.compile(r"\(unicode error\) '([\w-]+)' codec can't decode byte (0x\w\w)")
_CONVERT = "convert it to Python 3, for example with 2to3; placement-checks does not convert it"


def compile_error(error: BaseException, path: str) -> InputError:
    """Return the error for an exception of `compile`, with its source line.

    The exception is a SyntaxError, or has another type if the script is not text or is nested too
    deeply.
    """
    name = relative_path(path)
    if not isinstance(error, SyntaxError):
        reason = message_of(error) or "it is nested too deeply"
        message = f"cannot be compiled: {reason}"
        return InputError(name, message, "check that it is a Python script", is_predicate=True)
    where = f"{name}:{error.lineno}" if error.lineno else name
    if syntax := _python_2_syntax(error):
        return InputError(
            where, f"is written in Python 2: it has {syntax}", _CONVERT, is_predicate=True
        )
    if bad := _BAD_BYTES.match(error.msg):
        return InputError(
            name,
            f"is not valid {bad[1]}: it contains the byte {bad[2]}",
            "save it as UTF-8, or declare its encoding in the first line: "
            "# -*- coding: latin-1 -*-",
            is_predicate=True,
        )
    return InputError(
        where,
        f"is not valid Python 3: {error.msg}",
        "run it with python to see why",
        is_predicate=True,
    )


def _python_2_syntax(error: SyntaxError) -> str:
    """Return the syntax of Python 2 in the source line of an error; ``""`` if there is none."""
    return next(
        (
            name
            for name, message, text in _PYTHON_2_SYNTAX
            if re.search(message, error.msg) and re.search(text, error.text or "")
        ),
        "",
    )


@contextlib.contextmanager
def explain_outdated(program: str, *, is_v1: bool) -> Iterator[None]:
    """Explain the errors of a program in this block that are due to Python 2 or TensorFlow 1.

    Raises:
        InputError: the program uses a name of TensorFlow 1 that TensorFlow 2 lacks, or is written
            in Python 2.
    """
    try:
        yield
    except SyntaxError as error:  # in a module that the program imports
        if error.filename is None or not is_user_file(error.filename, None):
            raise
        raise compile_error(error, error.filename) from None
    except (AttributeError, ImportError, NameError, TypeError) as error:
        if cause := _python_2_cause(error):
            stack = traceback.extract_tb(error.__traceback__)
            where = next(reversed(users_frames(stack, None)), program)
            raise InputError(
                str(where), f"is written in Python 2: {cause}", _CONVERT, is_predicate=True
            ) from None
        # `tf.compat.v1` lacks `tf.estimator`, too, since TensorFlow 2.16.
        is_estimator = isinstance(error, AttributeError) and error.name == "estimator"
        if not _is_missing_in_tensorflow(error) or (is_v1 and not is_estimator):
            raise
        raise InputError(
            program,
            f"before its first training step it raised {type(error).__name__}: "
            f"{message_of(error)}",
            "use TensorFlow 2.15, the last version with estimators"
            if is_estimator
            else "add --v1 if the program is written for TensorFlow 1",
        ) from None


def _is_missing_in_tensorflow(error: Exception) -> bool:
    """Whether an error is due to a name or module that TensorFlow lacks."""
    match error:
        case ImportError(name=name):
            return str(name).startswith("tensorflow")
        case AttributeError(obj=owner):
            return str(getattr(owner, "__name__", "")).startswith("tensorflow")
    return False


_BUILTINS = frozenset(
    (
        *("apply", "basestring", "cmp", "coerce", "execfile", "file", "intern", "long"),
        *("raw_input", "reduce", "reload", "unichr", "unicode", "xrange"),
    )
)
_MODULES = frozenset(
    (
        *("BaseHTTPServer", "ConfigParser", "Cookie", "HTMLParser", "Queue", "SimpleHTTPServer"),
        *("SocketServer", "StringIO", "Tkinter", "UserDict", "UserList", "__builtin__"),
        *("anydbm", "cPickle", "cStringIO", "commands", "cookielib", "copy_reg", "exceptions"),
        *("httplib", "md5", "sets", "sha", "thread", "urllib2", "urlparse", "xmlrpclib"),
    )
)
_MODULE_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "itertools": frozenset(("ifilter", "ifilterfalse", "imap", "izip", "izip_longest")),
    "os": frozenset(("getcwdu",)),
    "string": frozenset(
        (
            *("atof", "atoi", "find", "join", "letters", "lower", "lowercase", "maketrans"),
            *("replace", "split", "strip", "upper", "uppercase"),
        )
    ),
    "sys": frozenset(("exc_clear", "exc_type", "maxint", "setdefaultencoding")),
    "urllib": frozenset(("quote", "quote_plus", "unquote", "urlencode", "urlopen", "urlretrieve")),
}
_METHODS: Mapping[type, frozenset[str]] = {
    Mapping: frozenset(
        (
            *("has_key", "iteritems", "iterkeys", "itervalues"),
            *("viewitems", "viewkeys", "viewvalues"),
        )
    ),
    Iterator: frozenset(("next",)),
    str: frozenset(("decode",)),
    FunctionType: frozenset(("func_code", "func_defaults", "func_globals", "func_name")),
}
# Calls that return a list in Python 2, by the type that they return in Python 3.
_LISTS = {
    "dict_items": "dict.items()",
    "dict_keys": "dict.keys()",
    "dict_values": "dict.values()",
    "filter": "filter()",
    "map": "map()",
    "range": "range()",
    "zip": "zip()",
}
_LIST = rf"({'|'.join(_LISTS)})"
# Python 3's messages if such a value is used as a list.
_USED_AS_LIST = [
    re.compile(pattern)
    for pattern in (
        rf"unsupported operand type\(s\) for [+*]=?: '{_LIST}' and ",
        rf"unsupported operand type\(s\) for [+*]=?: '\w+' and '{_LIST}'",
        rf"can only concatenate \w+ \(not \"{_LIST}\"\)",
        rf"'{_LIST}' object is not subscriptable",
        rf"'{_LIST}' object does not support item ",
        rf"object of type '{_LIST}' has no len\(\)",
    )
]
_CANNOT_IMPORT = re.compile(r"cannot import name '(\w+)' from '(\w+)'")


def _python_2_cause(error: Exception) -> str:
    """Describe the use of Python 2 that caused an error; ``""`` if there is none."""
    match error:
        case NameError(name=name) if name in _BUILTINS:
            return f"it uses {name}"
        case AttributeError(name=str(name), obj=owner):
            return _attribute_cause(owner, name)
        case TypeError():
            found = (pattern.search(message_of(error)) for pattern in _USED_AS_LIST)
            names = [_LISTS[match[1]] for match in found if match]
            return f"it uses {names[0]} as a list" if names else ""
        case ModuleNotFoundError(name=str(name)):
            return _import_cause(error, name.partition(".")[0])
        case ImportError():
            missing = _CANNOT_IMPORT.match(message_of(error))
            if missing and missing[1] in _MODULE_ATTRIBUTES.get(missing[2], ()):
                return f"it imports {missing[2]}.{missing[1]}"
    return ""


def _attribute_cause(owner: object, name: str) -> str:
    if isinstance(owner, ModuleType):
        known = name in _MODULE_ATTRIBUTES.get(owner.__name__, ())
        return f"it uses {owner.__name__}.{name}" if known else ""
    kind = type(owner).__name__
    if kind in _LISTS and hasattr(list, name):
        return f"it uses {_LISTS[kind]} as a list"
    known = any(name in names for type_, names in _METHODS.items() if isinstance(owner, type_))
    return f"it uses {kind}.{name}" if known else ""


def _import_cause(error: ImportError, module: str) -> str:
    if module in _MODULES:
        return f"it imports {module}"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    # The last frames may belong to import hooks, such as the hook of --v1.
    importers = [frame for frame in frames if is_user_file(frame.f_code.co_filename, None)]
    if not importers:
        return ""
    here = Path(importers[-1].f_code.co_filename).parent
    is_neighbor = bool(importers[-1].f_globals.get("__package__")) and any(
        (here / each).is_file() for each in (f"{module}.py", f"{module}/__init__.py")
    )
    return f"it imports {module} by an implicit relative import" if is_neighbor else ""
