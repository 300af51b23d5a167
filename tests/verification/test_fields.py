"""Values are checked with the types of their fields."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks import RULES
from placement_checks.core.errors import ConfigError, InputError
from placement_checks.verification.policy import collect_errors, convert_value


@dataclass
class Fields:
    whole: int = 0
    number: float = 0.0
    name: str = ""
    names: tuple[str, ...] = ()
    device: str | tuple[str, ...] = ""
    numbers: tuple[int, ...] = ()
    tables: tuple[Mapping[str, Any], ...] = ()
    most: int | None = None
    way: Literal["", "fast", "slow"] = ""
    flag: Annotated[bool, "yes or no"] = False


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("whole", -(2**70), -(2**70)),
        ("number", 32, 32),
        ("number", 0.5, 0.5),
        ("number", np.float64(0.5), 0.5),
        ("name", "", ""),
        ("names", "a", ("a",)),
        ("names", ["a", "b"], ("a", "b")),
        ("names", (), ()),
        ("device", "a", "a"),
        ("device", ["a"], ("a",)),
        ("numbers", [3, 1], (3, 1)),
        ("tables", [{}, {"a": [1]}], ({}, {"a": [1]})),
        ("most", 1, 1),
        ("most", None, None),
        ("way", "fast", "fast"),
        ("way", "", ""),
        ("flag", True, True),
    ],
)
def test_valid_values(name: str, value: object, found: object) -> None:
    fit = convert_value(Fields, name, value)

    assert (fit, type(fit)) == (found, type(found))


WHOLE, NUMBER, NAME = "give a whole number", "give a number", "give a name"
LIST = "give a list of whole numbers, such as [3, 1]"
NO_NUMBERS: Sequence[Any] = (1, "31", [1.5], [True], [10**400], [[1]])
NO_WAYS: Sequence[Any] = ("Fast", 1, [])


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        *(("whole", value, WHOLE) for value in (True, 1.0, "1", None, 10**400, [1])),
        *(("number", value, NUMBER) for value in (True, "1", math.nan, math.inf, -math.inf)),
        *(("number", value, NUMBER) for value in (10**400, -(10**400), np.float64("nan"))),
        *(("name", value, NAME) for value in (1, b"a", ["a"], None)),
        ("names", 1, f"{NAME} or a list of names"),
        ("names", [1], f"{NAME} or a list of names"),
        ("names", {"a": 1}, f"{NAME} or a list of names"),
        ("names", b"a", f"{NAME} or a list of names"),
        ("device", ["a", 1], f"{NAME} or a list of names"),
        *(("numbers", value, LIST) for value in NO_NUMBERS),
        ("tables", {"a": 1}, "give a list of tables, such as [{allow_growth = 1}]"),
        ("most", 1.5, WHOLE),
        *(("way", value, "give 'fast' or 'slow'") for value in NO_WAYS),
        *(("flag", value, "give yes or no") for value in (1, "true")),
    ],
)
def test_invalid_values(name: str, value: object, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        convert_value(Fields, name, value)

    assert (refused.value.message, refused.value.fix) == (f"{value!r} does not fit", fix)


@pytest.mark.parametrize(
    ("rule", "name", "fix"),
    [
        ("variables-on-host", "devices", "did you mean 'device'?"),
        (
            "variables-on-host",
            "name",
            "its fields are device, allow, local",
        ),  # of the class, no field
        ("losses-apart", "private", "its only field is allow"),
        ("placeable", "allow", "it has no fields"),
    ],
)
def test_an_unknown_field(rule: str, name: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        convert_value(RULES[rule], name, 1)

    assert (refused.value.message, refused.value.fix) == ("is not a known field", fix)


@pytest.mark.parametrize(
    ("rule", "name"),
    [(rule, field.name) for rule in RULES.values() for field in dataclasses.fields(rule)],
)
def test_each_field_takes_its_default_and_refuses_other_types(rule: type[Any], name: str) -> None:
    default = getattr(rule(), name)
    assert convert_value(rule, name, default) == default

    with pytest.raises(ConfigError, match=r"does not fit; give (a|'|true)"):
        convert_value(rule, name, object)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(st.sampled_from([field.name for field in dataclasses.fields(Fields)]), anything)
def test_any_value_is_valid_or_a_configuration_error(name: str, value: object) -> None:
    try:
        found = convert_value(Fields, name, value)
    except ConfigError:
        return
    assert found in (value, (value,), tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ConfigError("", "does not fit", "give more", is_predicate=True),
            "a.b does not fit; give more",
        ),
        (ConfigError("b", "is no share", is_predicate=True), "a.b is no share"),
        (
            InputError("'gpu one'", "is no device", is_predicate=True),
            "a.b: 'gpu one' is no device",
        ),
    ],
)
def test_errors_name_their_position(error: ConfigError, text: str) -> None:
    errors: list[ConfigError] = []

    with collect_errors(errors, "a.b"):
        raise error

    assert list(map(str, errors)) == [text]
