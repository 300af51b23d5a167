"""Finds what only Python 2 has in the code that raised an error."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, FunctionType, ModuleType

from placement_checks.core.errors import message_of

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
# What Python 2 gives as a list, by the type that Python 3 gives.
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
# What Python 3 says where such a value is used as a list.
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


def python_2_cause(error: Exception) -> str:
    """What in the code that raised an error is of Python 2; ``""`` if nothing is known to be."""
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
    *_, (importer, _) = traceback.walk_tb(error.__traceback__)
    return f"an implicit relative import of {module}" if _is_neighbor(importer, module) else ""


def _is_neighbor(importer: FrameType, module: str) -> bool:
    """Whether a module is in the directory of a module of a package that imports it."""
    here = Path(importer.f_code.co_filename).parent
    is_of_package = bool(importer.f_globals.get("__package__"))
    return is_of_package and any(
        (here / each).is_file() for each in (f"{module}.py", f"{module}/__init__.py")
    )
