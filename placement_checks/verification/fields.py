"""Values that users write, checked against the types of the fields they are given for."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from placement_checks.core.errors import ConfigError, PlacementError
from placement_checks.util.text import did_you_mean

# What a field takes; one that needs other words is Annotated with them.
_DESCRIPTIONS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    int | None: "a whole number",
    int | float: "a number",
    str: "a name",
    tuple[str, ...]: "a name or a list of names",
    str | tuple[str, ...]: "a name or a list of names",
    tuple[int, ...]: "a list of whole numbers, such as [3, 1]",
    tuple[Mapping[str, Any], ...]: "a list of tables, such as [{allow_growth = 1}]",
}


def converted(owner: type[Any], name: str, value: object) -> Any:
    """A value as that field of a dataclass holds it: a tuple for a list, and for a single name.

    Raises:
        ConfigError: the field does not exist, or the value is not of its type. It names no object.
    """
    from msgspec import ValidationError, convert  # not before there is something to check

    names = [field.name for field in dataclasses.fields(owner)]
    if name not in names:
        raise ConfigError("", "is not a known field", did_you_mean(name, names) or _listed(names))
    kind = get_type_hints(owner, include_extras=True)[name]
    if kind == tuple[str, ...] and isinstance(value, str):
        return (value,)
    kind = int | float if kind is float else kind  # a whole number stays one in messages
    try:
        return convert(_finite(value), kind)
    except (ValueError, ValidationError):
        raise ConfigError("", f"{value!r} does not fit", f"give {_description(kind)}") from None


def _listed(fields: Sequence[str]) -> str:
    if len(fields) == 1:
        return f"its only field is {fields[0]}"
    return f"its fields are {', '.join(fields)}" if fields else "it has no fields"


@contextmanager
def collecting(errors: list[ConfigError], at: str) -> Iterator[None]:
    """Add an error that is raised within to ``errors``, as one of the field ``at``."""
    try:
        yield
    except PlacementError as error:
        is_named = error.object in ("", at.rpartition(".")[2])
        message = error.message if is_named else error.fault
        errors.append(ConfigError(at, message, error.fix))


def _description(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return str(kind.__metadata__[0])
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind) if choice)
    return _DESCRIPTIONS.get(kind) or f"a value of the type {kind}"


def _finite(value: object) -> object:
    """The value with numpy's floats as Python's, which alone msgspec takes.

    Raises:
        ValueError: one is infinite, or larger than a float can be, as TOML writes whole ones.
    """
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise ValueError
    return float(value) if isinstance(value, float) else value
