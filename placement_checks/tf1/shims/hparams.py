"""``tf.contrib.training.HParams``: named values that a command line can change."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_ASSIGNMENT = re.compile(
    r"\s*(?P<name>[A-Za-z][\w.]*)\s*(?:\[\s*(?P<index>\d+)\s*\])?\s*=\s*"
    r"(?:\[(?P<list>[^\]]*)\]|(?P<value>[^,\[]*))\s*(?:,|$)"
)


class HParams:
    """Named values, as attributes. Values keep their type: number, bool, text or list."""

    def __init__(self, **values: Any) -> None:
        self._names: dict[str, type] = {}
        for name, value in values.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Add a new name.

        Raises:
            ValueError: the name exists already, or the value is an empty list.
        """
        if hasattr(self, name):
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        if isinstance(value, list | tuple):
            if not value:
                raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
            value = list(value)
        self._names[name] = type(value[0] if isinstance(value, list) else value)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Change the value of a name.

        Raises:
            KeyError: there is no such name.
            ValueError: the value has another type.
        """
        kind, before = self._names[name], getattr(self, name)
        if isinstance(before, list) != isinstance(value, list):
            held = "a list" if isinstance(before, list) else "a single value"
            raise ValueError(f"Hyperparameter {name} holds {held}")
        converted = (
            [_convert(kind, item) for item in value]
            if isinstance(value, list)
            else _convert(kind, value)
        )
        setattr(self, name, converted)

    def del_hparam(self, name: str) -> None:
        """Remove a name, if it exists."""
        if self._names.pop(name, None) is not None:
            delattr(self, name)

    def parse(self, values: str) -> HParams:
        """Change values by text such as ``rate=0.1,layers=[64,32],layers[1]=16``.

        Raises:
            ValueError: the text is malformed, or names an unknown value.
        """
        position = 0
        while position < len(values):
            match = _ASSIGNMENT.match(values, position)
            if match is None or match["name"] not in self._names:
                raise ValueError(f"Unknown or malformed hyperparameter in {values[position:]!r}")
            self._assign(match)
            position = match.end()
        return self

    def _assign(self, match: re.Match[str]) -> None:
        name = match["name"]
        if match["list"] is not None:
            self.set_hparam(name, [item.strip() for item in match["list"].split(",")])
        elif match["index"] is not None:
            items = list(getattr(self, name))
            items[int(match["index"])] = match["value"]
            self.set_hparam(name, items)
        else:
            self.set_hparam(name, match["value"].strip())

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Change several values."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> HParams:
        """Change values by a JSON object."""
        return self.override_from_dict(json.loads(values_json))

    def values(self) -> dict[str, Any]:
        """All names with their values."""
        return {name: getattr(self, name) for name in self._names}

    def to_json(self, indent: int | None = None, sort_keys: bool = False) -> str:
        """The values as a JSON object."""
        return json.dumps(self.values(), indent=indent, sort_keys=sort_keys)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a name, or the default if the name does not exist."""
        return getattr(self, key) if key in self._names else default

    def __contains__(self, key: str) -> bool:
        return key in self._names

    def __repr__(self) -> str:
        return f"HParams({sorted(self.values().items())!r})"


def _convert(kind: type, value: Any) -> Any:
    """Convert a value or its text to the type of a hyperparameter."""
    if value is None or kind is type(None):
        return value
    if kind is bool and isinstance(value, str):
        return _TRUTH[value.strip().lower()]
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is not a whole number")
    return kind(value)


_TRUTH = {"true": True, "1": True, "false": False, "0": False}
