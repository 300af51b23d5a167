"""Writes a baseline as text that people review, and parses the text.

The functions for tokens come first (names, ranges of numbers, runs of devices), then the writer
and the parser.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from placement_checks.core.baseline import (
    ANY_NUMBER,
    NO_TOWER,
    PARTS,
    UNCOUNTED_PARTS,
    Address,
    Baseline,
    Copies,
    FoldedScope,
    HeldVariable,
    dtype_and_shape,
)
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Tensor
from placement_checks.util.text import plural

FORM = 1
TITLE = "# placement baseline, form "
NONE = "-"
ALL = "*"
MOST_TOWERS = 100_000

_PLAIN = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>\-]*")  # as TensorFlow's own names
_QUOTED = json.JSONDecoder()


def word(name: str) -> str:
    """A name between blanks and colons; as a JSON string unless it is plain."""
    return name if _PLAIN.fullmatch(name) else quoted(name)


def line_end(text: str) -> str:
    """A text at the end of a line; as a JSON string if it would be ambiguous."""
    plain = text and text.isprintable() and text == text.strip() and text[0] != '"'
    return text if plain else quoted(text)


def quoted(text: str) -> str:
    """A text as a JSON string; a text that is not printable is escaped."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def take_word(text: str) -> tuple[str, str]:
    """Splits a text that begins with a `word` into the name and the rest.

    Raises:
        ValueError: the text does not begin with a word.
    """
    if text.startswith('"'):
        name, end = _QUOTED.raw_decode(text)
        return str(name), text[end:]
    match = _PLAIN.match(text)
    if match is None:
        raise ValueError(text)
    return match[0], text[match.end() :]


def read_line_end(text: str) -> str:
    """Returns the text that `line_end` wrote.

    Raises:
        ValueError: the JSON string is not closed, or text follows it.
    """
    if not text.startswith('"'):
        return text
    value, rest = take_word(text)
    if rest:
        raise ValueError(text)
    return value


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: ``0-2,5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def read_ranges(text: str, below: int) -> Iterator[int]:
    """Yields the numbers that `ranges` wrote.

    Raises:
        ValueError: the text contains an invalid range, or a number that is too large.
    """
    for span in text.split(","):
        first, _, last = span.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= below:
            raise ValueError(text)
        yield from numbers


def runs(places: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Joins towers on consecutive devices: ``("0-7", "/job:worker/task:0/gpu:0-7")``."""
    start = 0
    while start < len(places):
        head, _, index = places[start].rpartition(":")
        end = start + 1
        if index.isdecimal() and index == str(int(index)):
            first = int(index)
            while end < len(places) and places[end] == f"{head}:{first + end - start}":
                end += 1
        if end - start > 1:
            yield f"{start}-{end - 1}", f"{places[start]}-{first + end - start - 1}"
        else:
            yield str(start), places[start]
        start = end


def read_run(span: str, place: str) -> list[str]:
    """Returns the places that one item of `runs` joins.

    Raises:
        ValueError: the two ranges have different lengths, or are too long.
    """
    first, dash, last = span.partition("-")
    if not dash:
        int(first)
        return [place]
    head, _, indices = place.rpartition(":")
    low, _, high = indices.partition("-")
    count = int(last) - int(first) + 1
    if not 1 < count <= MOST_TOWERS or int(high) - int(low) + 1 != count:
        raise ValueError(place)
    return [f"{head}:{index}" for index in range(int(low), int(high) + 1)]


_HEAD = f"""\
{TITLE}{FORM}: the devices of this program's variables and ops. Review it like code.
# Written by pytest --placement-update, or placement-checks verify --baseline FOLDER --update;
# after a merge conflict, run that again instead of editing this file."""
_WIDTH = 99


def render(baseline: Baseline) -> str:
    """Returns the text of a baseline; equal baselines have equal texts."""
    return "\n".join(_lines(baseline)) + "\n"


def _lines(baseline: Baseline) -> Iterator[str]:
    yield _HEAD
    yield f"program: {line_end(baseline.program)}"
    yield f"machine: {line_end(baseline.machine)}"
    yield f"placed by: {line_end(baseline.placer)}, {'soft' if baseline.soft else 'strict'}"
    versions = (f"{name} {version}" for name, version in baseline.versions.items())
    yield f"versions: {', '.join(versions) or NONE}"
    yield from _variables(baseline)
    yield ""
    yield f"towers: {len(baseline.towers)}"
    yield from (f"  {span}: {place}" for span, place in runs(baseline.towers))
    if baseline.objectives:
        yield ""
        yield "objective:"
        yield from _objectives(baseline.objectives)
    yield ""
    yield "parts:"
    yield from _parts(baseline)
    yield ""
    yield "copies of one step:"
    yield from _copies(baseline)


def _variables(baseline: Baseline) -> Iterator[str]:
    count = len(baseline.variables) + sum(scope.count for scope in baseline.folded)
    yield ""
    yield f"variables: {count}"
    for held in baseline.variables:
        where = f"{held.place}{_slots(held.place, held.slots)}"
        dtype = word(held.tensor.dtype) if held.tensor.dtype else NONE
        form = dtype_and_shape(held.tensor._replace(dtype=dtype))
        yield f"  {word(held.name)}: {form}: {where}"
    for scope in baseline.folded:
        name = f"{word(scope.scope)}/{ALL}" if scope.scope else ALL
        what = f"{plural(scope.count, 'variable')}, {scope.bytes:,} bytes, forms {scope.digest}"
        yield f"  {name}: {what}: {scope.place}{_slots(scope.place, scope.slots)}"


def _slots(place: str, slots: tuple[str, ...]) -> str:
    if not slots:
        return ""
    away = f" on {', '.join(slots)}" if set(slots) != {place} else ""
    return f"  + {plural(len(slots), 'slot')}{away}"


def _objectives(objectives: Mapping[str, Sequence[str] | int]) -> Iterator[str]:
    """Yields each objective with its variables, or with their number."""
    for text, variables in objectives.items():
        if isinstance(variables, int):
            yield f"  {text}: {plural(variables, 'variable')}"
        else:
            yield f"  {text}:"
            yield from _wrap_words("   ", map(word, variables), indent=3)


def _parts(baseline: Baseline) -> Iterator[str]:
    excepted: dict[str, list[tuple[Address, Mapping[str, int]]]] = defaultdict(list)
    for address, places in baseline.exceptions.items():
        excepted[address.part].append((address, places))
    counted: dict[str, list[tuple[int, Mapping[str, int]]]] = defaultdict(list)
    for (part, tower), types in baseline.types.items():
        if part not in UNCOUNTED_PARTS:
            counted[part].append((tower, types))
    for part in PARTS:
        if part in baseline.defaults:
            yield f"  {part}: {baseline.defaults[part]}"
            yield from _exceptions(excepted[part])
            yield from _types(counted[part])


def _exceptions(excepted: Iterable[tuple[Address, Mapping[str, int]]]) -> Iterator[str]:
    """Yields a line for each address; towers with equal places share a line."""
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for address, places in excepted:
        layer, kind = (
            ALL if each is None else word(each) if each else NONE for each in address[2:]
        )
        where = ", ".join(
            place if number == ANY_NUMBER else f"{place} {number}"
            for place, number in sorted(places.items())
        )
        alike[f"{layer} {kind}", where].append(address.tower)
    for (what, where), towers in sorted(alike.items()):
        own = [tower for tower in towers if tower != NO_TOWER]
        if NO_TOWER in towers:
            yield f"    but {what}: {where}"
        if own:
            yield f"    but tower {ranges(own)} {what}: {where}"


def _types(counted: Iterable[tuple[int, Mapping[str, int]]]) -> Iterator[str]:
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for tower, types in counted:
        words = tuple(f"{word(kind)} {number}" for kind, number in sorted(types.items()))
        alike[words].append(tower)
    for counts, towers in sorted(alike.items(), key=lambda each: min(each[1])):
        own = [tower for tower in towers if tower != NO_TOWER]
        if NO_TOWER in towers:
            yield from _wrap_words("    holds:", counts)
        if own:
            each = "each of " if len(own) > 1 else ""
            yield from _wrap_words(f"    {each}tower {ranges(own)}:", counts)


def _wrap_words(line: str, words: Iterable[str], *, indent: int = 5) -> Iterator[str]:
    for each in words:
        if line.strip() and len(line) + 1 + len(each) > _WIDTH:
            yield line
            line = " " * indent
        line = f"{line} {each}"
    yield line


def _copies(baseline: Baseline) -> Iterator[str]:
    """Yields a line for each pair of places; towers with equal copies share a line."""
    single = len(set(baseline.towers)) == len(baseline.towers)
    tower_on = {place: tower for tower, place in enumerate(baseline.towers)} if single else {}
    alike: dict[tuple[str, str, Copies], list[int]] = defaultdict(list)
    for (source, to), copies in baseline.copies.items():
        if (source in tower_on) == (to in tower_on):
            alike[source, to, copies] = []
        elif source in tower_on:
            alike["", to, copies].append(tower_on[source])
        else:
            alike[source, "", copies].append(tower_on[to])
    lines = []
    for (source, to, (number, size, unknown)), towers in alike.items():
        joined = f"tower {ranges(towers)}"
        more = f", {unknown:,} of unknown size" if unknown else ""
        amount = f"{number:,} {'copy' if number == 1 else 'copies'}, {size:,} bytes{more}"
        lines.append(f"  {source or joined} -> {to or joined}: {amount}")
    yield from sorted(lines)


REWRITE: Final = (
    "write it again: pytest --placement-update, or placement-checks verify --baseline FOLDER "
    "--update"
)

_CONFLICT = re.compile(r"(<{7}|={7}|>{7}|\|{7})( |$)")
_NUMBER = re.compile(r"\d[\d,]*")
_PLACE = re.compile(r"[^\s,]+")
_FORM = re.compile(r"(?:\[(?P<dims>(?:\?|\d+)(?:,(?:\?|\d+))*)?\])?")
_TOWERS = re.compile(r"tower (?P<towers>[\d,-]+) ")
_SLOTS = re.compile(r"(?P<place>[^\s,]+)(?:  \+ (?P<count>\d+) slots?(?: on (?P<places>.+))?)?")
_FOLDED = re.compile(
    r": (?P<count>[\d,]+) variables?, (?P<bytes>[\d,]+) bytes, forms (?P<digest>\w+): "
)
_VARIABLES = re.compile(r" (?P<count>[\d,]+) variables?")
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
    """Returns the baseline that `render` wrote.

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
        self._objectives: dict[str, list[str] | int] = {}
        self._updated: list[str] = []
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
            "objective": self._read_objective,
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
            stated = f"{self._head['placed by']:.60}"
            raise ValueError(
                f"the line 'placed by: {stated}' must end with ', soft' or ', strict'"
            )
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
            self._objectives,
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
            tensor, where = _take_form(_strip_start(": ", rest))
            place, slots = _take_slots(_strip_start(": ", where))
            self._variables.append(HeldVariable(name, tensor, place, slots))

    def _read_scope(self, scope: str, rest: str) -> None:
        match = _require_match(_FOLDED.match(rest))
        place, slots = _take_slots(rest[match.end() :])
        count, size = _parse_number(match["count"]), _parse_number(match["bytes"])
        self._folded.append(FoldedScope(scope, count, size, match["digest"], place, slots))

    def _read_towers(self, line: str) -> None:
        span, place = line.strip().split(": ")
        places = read_run(span, place)
        if int(span.partition("-")[0]) != len(self._towers) or len(self._towers) > MOST_TOWERS:
            raise ValueError(line)
        self._towers += places

    def _read_objective(self, line: str) -> None:
        text = line.strip()
        if not line.startswith("    "):
            objective, colon, count = text.rpartition(":")
            if not colon or objective in self._objectives:
                raise ValueError(line)
            self._updated = []
            self._objectives[objective] = (
                _parse_number(_require_match(_VARIABLES.fullmatch(count))["count"])
                if count
                else self._updated
            )
            return
        while text:
            name, rest = take_word(text)
            self._updated.append(name)
            text = _strip_start(" ", rest) if rest else ""

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
                span = _strip_start("tower ", head.removeprefix("each of "))
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
            number = _require_match(_NUMBER.match(_strip_start(" ", rest)))
            for types in self._counted:
                types[kind] = _parse_number(number[0])
            text = rest[1 + number.end() :].lstrip()

    def _read_exception(self, text: str) -> None:
        towers = [NO_TOWER]
        if match := _TOWERS.match(text):
            towers = list(read_ranges(match["towers"], len(self._towers)))
            text = text[match.end() :]
        layer, rest = _take_name(text)
        kind, places = _take_name(_strip_start(" ", rest))
        counts = {}
        for each in _strip_start(": ", places).split(", "):
            place, _, number = each.partition(" ")
            counts[_parse_place(place)] = _parse_number(number) if number else ANY_NUMBER
        for tower in towers:
            self._exceptions[Address(self._part, tower, layer, kind)] = counts

    def _read_copies(self, line: str) -> None:
        match = _require_match(_COPIES.fullmatch(line.strip()))
        amount = Copies(
            *(_parse_number(match[key] or "0") for key in ("copies", "bytes", "unknown"))
        )
        for source in self._places(match["source"]):
            for to in self._places(match["to"]):
                self._copies[source, to] = amount

    def _places(self, text: str) -> list[str]:
        if not text.startswith("tower "):
            return [text]
        span = text.removeprefix("tower ")
        return [self._towers[tower] for tower in read_ranges(span, len(self._towers))]


def _strip_start(start: str, text: str) -> str:
    if not text.startswith(start):
        raise ValueError(text)
    return text.removeprefix(start)


def _require_match(match: re.Match[str] | None) -> re.Match[str]:
    if match is None:
        raise ValueError
    return match


def _parse_number(text: str) -> int:
    return int(text.replace(",", ""))


def _parse_place(text: str) -> str:
    return _require_match(_PLACE.fullmatch(text))[0]


def _take_name(text: str) -> tuple[str | None, str]:
    """Splits off a layer or type: None for all, ``""`` for none."""
    if text.startswith(ALL):
        return None, text.removeprefix(ALL)
    if text.startswith(NONE):
        return "", text.removeprefix(NONE)
    return take_word(text)


def _take_form(text: str) -> tuple[Tensor, str]:
    """Splits off a dtype and shape."""
    dtype, rest = _take_name(text)
    match = _require_match(_FORM.match(rest))
    shape: tuple[int | None, ...] | None = None
    if match[0]:
        dims = (match["dims"] or "").split(",") if match["dims"] else []
        shape = tuple(None if dim == "?" else int(dim) for dim in dims)
    return Tensor(dtype or "", shape), rest[match.end() :]


def _take_slots(text: str) -> tuple[str, tuple[str, ...]]:
    """Returns the place of a variable and the places of its slots."""
    match = _require_match(_SLOTS.fullmatch(text))
    place, count = _parse_place(match["place"]), int(match["count"] or 0)
    if count > _MOST_SLOTS:
        raise ValueError(text)
    places = match["places"]
    slots = tuple(map(_parse_place, places.split(", "))) if places else (place,) * count
    if len(slots) != count:
        raise ValueError(text)
    return place, slots
