"""Values that users write, held against the types of the fields that they are meant for."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from placement_checks.core.errors import ConfigError, PlacementError
from placement_checks.util.text import did_you_mean

# What to give, in words; a field that needs others is Annotated with them.
_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    int | None: "a whole number",
    int | float: "a number",
    str: "a name",
    tuple[str, ...]: "a name or a list of names",
    str | tuple[str, ...]: "a name or a list of names",
    tuple[int, ...]: "a list of whole numbers, such as [3, 1]",
    tuple[Mapping[str, Any], ...]: "a list of tables, such as [{allow_growth = 1}]",
}


def fitted(owner: type[Any], name: str, value: object) -> Any:
    """A value as that field of a dataclass has it: a tuple for a list, and for a single name.

    Raises:
        ConfigError: there is no such field, or the value is not of its type. It names no object.
    """
    from msgspec import ValidationError, convert  # not before there is something to check

    names = [each.name for each in dataclasses.fields(owner)]
    if name not in names:
        known = f"its fields are {', '.join(names)}" if names else "it has no fields"
        raise ConfigError("", "there is no such field", did_you_mean(name, names) or known)
    kind = get_type_hints(owner, include_extras=True)[name]
    if kind == tuple[str, ...] and isinstance(value, str):
        return (value,)
    kind = int | float if kind is float else kind  # a whole one is told as it was written
    try:
        return convert(_finite(value), kind)
    except (ValueError, ValidationError):
        raise ConfigError("", f"{value!r} does not fit", f"give {_wanted(kind)}") from None


@contextmanager
def collected(errors: list[ConfigError], at: str) -> Iterator[None]:
    """Keep an error that is raised within, as one of what stands there."""
    try:
        yield
    except PlacementError as error:
        said = error.object in ("", at.rpartition(".")[2])
        message = error.message if said else f"{error.object}: {error.message}"
        errors.append(ConfigError(at, message, error.fix))


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return str(kind.__metadata__[0])
    if get_origin(kind) is Literal:
        return " or ".join(repr(each) for each in get_args(kind) if each)
    return _WORDS[kind]


def _finite(value: object) -> object:
    """The value with its numbers as msgspec knows them: numpy's floats are none to it.

    Raises:
        ValueError: one is infinite, or larger than a float can be, as TOML writes whole ones.
    """
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise ValueError
    return float(value) if isinstance(value, float) else value
