"""Parses the text of a baseline, which `baseline.text` writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from placement_checks.baseline.text import (
    ALL,
    FORM,
    MOST_TOWERS,
    NONE,
    TITLE,
    read_line_end,
    read_ranges,
    read_run,
    take_word,
)
from placement_checks.core.baseline import (
    ANY_NUMBER,
    NO_TOWER,
    PARTS,
    Address,
    Baseline,
    Copies,
    FoldedScope,
    HeldVariable,
)
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Tensor

REWRITE: Final = "write it again: pytest --placement-update"

_CONFLICT = re.compile(r"(<{7}|={7}|>{7}|\|{7})( |$)")
_NUMBER = re.compile(r"\d[\d,]*")
_PLACE = re.compile(r"[^\s,]+")
_FORM = re.compile(r"(?:\[(?P<dims>(?:\?|\d+)(?:,(?:\?|\d+))*)?\])?")
_TOWERS = re.compile(r"tower (?P<towers>[\d,-]+) ")
_SLOTS = re.compile(r"(?P<place>[^\s,]+)(?:  \+ (?P<count>\d+) slots?(?: on (?P<places>.+))?)?")
_FOLDED = re.compile(
    r": (?P<count>[\d,]+) variables?, (?P<bytes>[\d,]+) bytes, forms (?P<digest>\w+): "
)
_COPIES = re.compile(
    r"(?P<source>tower \S+|\S+) -> (?P<to>tower \S+|\S+): "
    r"(?P<copies>[\d,]+) cop(?:y|ies), (?P<bytes>[\d,]+) bytes"
    r"(?:, (?P<unknown>[\d,]+) of unknown size)?"
)
_MOST_SLOTS = 1_000


def is_baseline(text: str) -> bool:
    """Whether a text begins like a baseline, perhaps after a merge conflict marker."""
    return any(line.startswith(TITLE) for line in text.split("\n", 3)[:3])


def parse(text: str, name: str) -> Baseline:
    """Returns the baseline that `baseline.text.render` wrote.

    Args:
        text: the text of the file.
        name: the name of the file, for errors.

    Raises:
        InputError: the text contains merge conflict markers, has another form, or a line cannot be
            parsed.
    """
    lines = [line.rstrip() for line in text.split("\n")]
    for number, line in enumerate(lines, 1):
        if _CONFLICT.match(line):
            raise InputError(
                f"{name}:{number}",
                "contains merge conflict markers",
                "keep either side, then " + REWRITE,
            )
    form = lines[0].removeprefix(TITLE).partition(":")[0]
    if not lines[0].startswith(TITLE) or not form.isdecimal():
        raise InputError(
            f"{name}:1",
            f"is not a baseline: it does not begin with {TITLE!r}",
            REWRITE,
            is_predicate=True,
        )
    if int(form) != FORM:
        raise InputError(
            f"{name}:1",
            f"is a baseline of form {form}, but this placement_checks reads form {FORM}",
            "install a newer placement_checks" if int(form) > FORM else REWRITE,
            is_predicate=True,
        )
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            try:
                reader.read(line)
            except (ValueError, LookupError):
                raise InputError(
                    f"{name}:{number}",
                    f"cannot be parsed: {line.strip():.60}",
                    REWRITE,
                    is_predicate=True,
                ) from None
    try:
        return reader.baseline()
    except ValueError as reason:
        raise InputError(name, str(reason), REWRITE) from None


class _Reader:
    """Reads a baseline line by line.

    The methods raise ValueError or LookupError for an invalid line.
    """

    def __init__(self) -> None:
        self._head: dict[str, str] = {}
        self._variables: list[HeldVariable] = []
        self._folded: list[FoldedScope] = []
        self._towers: list[str] = []
        self._defaults: dict[str, str] = {}
        self._exceptions: dict[Address, Mapping[str, int]] = {}
        self._types: dict[tuple[str, int], dict[str, int]] = {}
        self._copies: dict[tuple[str, str], Copies] = {}
        self._part = ""
        self._counted: list[dict[str, int]] = []
        self._section: Callable[[str], None] = self._unexpected

    def read(self, line: str) -> None:
        """Reads a line, which must be neither blank nor a comment."""
        if line[0] == " ":
            self._section(line)
            return
        key, colon, value = line.partition(":")
        if not colon or key in self._head:
            raise ValueError(line)
        self._head[key] = value.strip()
        self._section = {
            "variables": self._read_variable,
            "towers": self._read_towers,
            "parts": self._read_part,
            "copies of one step": self._read_copies,
        }.get(key, self._unexpected)

    def baseline(self) -> Baseline:
        """Returns the baseline of all lines.

        Raises:
            ValueError: the message names the missing or invalid entry.
        """
        required = ("program", "machine", "placed by", "versions", "variables", "towers", "parts")
        for key in required:
            if key not in self._head:
                raise ValueError(f"the line '{key}:' is missing")
        variables = len(self._variables) + sum(scope.count for scope in self._folded)
        for key, number in (("variables", variables), ("towers", len(self._towers))):
            if self._head[key] != str(number):
                stated = self._head[key]
                raise ValueError(f"the number of {key} is {stated}, but {number} are listed")
        placer, comma, strictness = self._head["placed by"].rpartition(", ")
        if not comma or strictness not in ("soft", "strict"):
            raise ValueError(f"placed by: {self._head['placed by']:.60} is not a placer")
        versions = [entry.rpartition(" ") for entry in self._head["versions"].split(", ")]
        return Baseline(
            read_line_end(self._head["program"]),
            read_line_end(self._head["machine"]),
            read_line_end(placer),
            strictness == "soft",
            {name: version for name, _, version in versions if name},
            tuple(self._variables),
            tuple(self._folded),
            tuple(self._towers),
            self._defaults,
            self._exceptions,
            self._types,
            self._copies,
        )

    def _unexpected(self, line: str) -> None:
        raise ValueError(line)

    def _read_variable(self, line: str) -> None:
        text = line.strip()
        if text.startswith(ALL):
            self._read_scope("", text.removeprefix(ALL))
            return
        name, rest = take_word(text)
        if rest.startswith(f"/{ALL}"):
            self._read_scope(name, rest.removeprefix(f"/{ALL}"))
        elif name.endswith("/") and rest.startswith(ALL):  # a plain word includes the slash
            self._read_scope(name.removesuffix("/"), rest.removeprefix(ALL))
        else:
            tensor, where = _form(_after(": ", rest))
            place, slots = _slots(_after(": ", where))
            self._variables.append(HeldVariable(name, tensor, place, slots))

    def _read_scope(self, scope: str, rest: str) -> None:
        match = _matched(_FOLDED.match(rest))
        place, slots = _slots(rest[match.end() :])
        count, size = _number(match["count"]), _number(match["bytes"])
        self._folded.append(FoldedScope(scope, count, size, match["digest"], place, slots))

    def _read_towers(self, line: str) -> None:
        span, place = line.strip().split(": ")
        places = read_run(span, place)
        if int(span.partition("-")[0]) != len(self._towers) or len(self._towers) > MOST_TOWERS:
            raise ValueError(line)
        self._towers += places

    def _read_part(self, line: str) -> None:
        text = line.strip()
        if line.startswith("      "):
            self._read_counts(text)
        elif line.startswith("    but "):
            self._read_exception(text.removeprefix("but "))
        elif line.startswith("    "):
            head, colon, counts = text.partition(":")
            if not colon:
                raise ValueError(line)
            towers = [NO_TOWER]
            if head != "holds":
                span = _after("tower ", head.removeprefix("each of "))
                towers = list(read_ranges(span, len(self._towers)))
            self._counted = [self._types.setdefault((self._part, tower), {}) for tower in towers]
            self._read_counts(counts.strip())
        else:
            self._part, place = text.split(": ")
            if self._part not in PARTS or self._part in self._defaults:
                raise ValueError(line)
            self._defaults[self._part] = place

    def _read_counts(self, text: str) -> None:
        """Reads the numbers of ops by type: ``MatMul 2 Tanh 1``."""
        if not self._counted:
            raise ValueError(text)
        while text:
            kind, rest = take_word(text)
            number = _matched(_NUMBER.match(_after(" ", rest)))
            for types in self._counted:
                types[kind] = _number(number[0])
            text = rest[1 + number.end() :].lstrip()

    def _read_exception(self, text: str) -> None:
        towers = [NO_TOWER]
        if match := _TOWERS.match(text):
            towers = list(read_ranges(match["towers"], len(self._towers)))
            text = text[match.end() :]
        layer, rest = _name(text)
        kind, places = _name(_after(" ", rest))
        counts = {}
        for each in _after(": ", places).split(", "):
            place, _, number = each.partition(" ")
            counts[_place(place)] = _number(number) if number else ANY_NUMBER
        for tower in towers:
            self._exceptions[Address(self._part, tower, layer, kind)] = counts

    def _read_copies(self, line: str) -> None:
        match = _matched(_COPIES.fullmatch(line.strip()))
        amount = Copies(*(_number(match[key] or "0") for key in ("copies", "bytes", "unknown")))
        for source in self._places(match["source"]):
            for to in self._places(match["to"]):
                self._copies[source, to] = amount

    def _places(self, text: str) -> list[str]:
        if not text.startswith("tower "):
            return [text]
        span = text.removeprefix("tower ")
        return [self._towers[tower] for tower in read_ranges(span, len(self._towers))]


def _after(start: str, text: str) -> str:
    if not text.startswith(start):
        raise ValueError(text)
    return text.removeprefix(start)


def _matched(match: re.Match[str] | None) -> re.Match[str]:
    if match is None:
        raise ValueError
    return match


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _place(text: str) -> str:
    return _matched(_PLACE.fullmatch(text))[0]


def _name(text: str) -> tuple[str | None, str]:
    """Splits off a layer or type: None for all, ``""`` for none."""
    if text.startswith(ALL):
        return None, text.removeprefix(ALL)
    if text.startswith(NONE):
        return "", text.removeprefix(NONE)
    return take_word(text)


def _form(text: str) -> tuple[Tensor, str]:
    """Splits off a dtype and shape."""
    dtype, rest = _name(text)
    match = _matched(_FORM.match(rest))
    shape: tuple[int | None, ...] | None = None
    if match[0]:
        dims = (match["dims"] or "").split(",") if match["dims"] else []
        shape = tuple(None if dim == "?" else int(dim) for dim in dims)
    return Tensor(dtype or "", shape), rest[match.end() :]


def _slots(text: str) -> tuple[str, tuple[str, ...]]:
    """Returns the place of a variable and the places of its slots."""
    match = _matched(_SLOTS.fullmatch(text))
    place, count = _place(match["place"]), int(match["count"] or 0)
    if count > _MOST_SLOTS:
        raise ValueError(text)
    places = match["places"]
    slots = tuple(map(_place, places.split(", "))) if places else (place,) * count
    if len(slots) != count:
        raise ValueError(text)
    return place, slots
