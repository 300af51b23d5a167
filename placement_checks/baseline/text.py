"""Writes a baseline as text that people review, and parses the text.

The functions for tokens come first (names, ranges of numbers, runs of devices), then the writer
and the parser.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from placement_checks.core import limits
from placement_checks.core.baseline import (
    ANY_NUMBER,
    NO_TOWER,
    PARTS,
    UNCOUNTED_PARTS,
    Address,
    Baseline,
    Copies,
    HeldVariable,
    dtype_and_shape,
)
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Tensor
from placement_checks.util.text import plural

FORM = 2
TITLE = "# placement baseline, form "
NONE = "-"
ALL = "*"
_END = "placement baseline"  # the value of the last line, "end"; a file without it is cut off

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
    name, end = word_at(text, 0)
    return name, text[end:]


def word_at(text: str, at: int) -> tuple[str, int]:
    """Returns the name of the `word` at a position, and the position behind the word.

    Raises:
        ValueError: there is no word at this position.
    """
    if text.startswith('"', at):
        name, end = _QUOTED.raw_decode(text, at)
        return str(name), end
    match = _PLAIN.match(text, at)
    if match is None:
        raise ValueError(text)
    return match[0], match.end()


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
        numbers = range(_parse_number(first), _parse_number(last or first) + 1)
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
        _parse_number(first)
        return [place]
    head, _, span = place.rpartition(":")
    low, _, high = span.partition("-")
    count = _parse_number(last) - _parse_number(first) + 1
    indices = range(_parse_number(low), _parse_number(high) + 1)
    if not 1 < count <= limits.DEVICES.most or len(indices) != count:
        raise ValueError(place)
    return [f"{head}:{index}" for index in indices]


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
    yield from _counted("objective", _objectives(baseline.objectives))
    yield from _counted("parts", _parts(baseline))
    yield from _counted("copies of one step", _copies(baseline))
    yield ""
    yield f"end: {_END}"


def _counted(section: str, lines: Iterable[str]) -> Iterator[str]:
    """Yields a section. Its head has the number of its lines, so that no line is lost unseen."""
    listed = list(lines)
    yield ""
    yield f"{section}: {plural(len(listed), 'line')}"
    yield from listed


def _variables(baseline: Baseline) -> Iterator[str]:
    yield ""
    yield f"variables: {len(baseline.variables)}"
    for held in baseline.variables:
        where = f"{held.place}{_slots(held.place, held.slots)}"
        dtype = word(held.tensor.dtype) if held.tensor.dtype else NONE
        form = dtype_and_shape(held.tensor._replace(dtype=dtype))
        yield f"  {word(held.name)}: {form}: {where}"


def _slots(place: str, slots: tuple[str, ...]) -> str:
    if not slots:
        return ""
    away = f" on {', '.join(slots)}" if set(slots) != {place} else ""
    return f"  + {plural(len(slots), 'slot')}{away}"


def _objectives(objectives: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yields each objective with its variables."""
    for text, variables in objectives.items():
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
    if line.strip():
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


def rewrite_command(file: str, program: str = "", machine: str = "") -> str:
    """Returns the remedy for a file that cannot be read: the commands that write it again.

    Args:
        file: the path of the file.
        program: the line of the file that names the program; ``""`` if it is not known.
        machine: the line that names the machine.
    """
    is_plain = _TARGET.fullmatch(program) and _MACHINE.fullmatch(machine)
    target = f"{program} --machine {shlex.quote(machine)}" if is_plain else "PROGRAM"
    folder = shlex.quote(str(Path(file).parent))
    return (
        "write it again: pytest --placement-update, or "
        f"placement-checks verify {target} --baseline {folder} --update"
    )


_TARGET = re.compile(r"[A-Za-z0-9_][\w./-]*(:[A-Za-z_][\w.]*)?", re.ASCII)
_MACHINE = re.compile(r"[\w*,;: -]+", re.ASCII)
_CONFLICT = re.compile(r"(<{7}|={7}|>{7}|\|{7})( |$)")
_COUNTED: Final = ("objective", "parts", "copies of one step")  # heads have a number of lines
_FORM_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_DIGITS = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"\d[\d,]*")
_PLACE = re.compile(r"[^\s,]+")
_FORM = re.compile(r"(?:\[(?P<dims>(?:\?|\d+)(?:,(?:\?|\d+))*)?\])?")
_TOWERS = re.compile(r"tower (?P<towers>[\d,-]+) ")
_SLOTS = re.compile(r"(?P<place>[^\s,]+)(?:  \+ (?P<count>\d+) slots?(?: on (?P<places>.+))?)?")
_COPIES = re.compile(
    r"(?P<source>tower \S+|\S+) -> (?P<to>tower \S+|\S+): "
    r"(?P<copies>[\d,]+) cop(?:y|ies), (?P<bytes>[\d,]+) bytes"
    r"(?:, (?P<unknown>[\d,]+) of unknown size)?"
)


def is_baseline(text: str) -> bool:
    """Whether a text begins like a baseline, perhaps after a merge conflict marker."""
    return any(line.startswith(TITLE) for line in text.split("\n", 3)[:3])


def parse(text: str, name: str) -> Baseline:
    """Returns the baseline that `render` wrote.

    Raises:
        InputError: the text contains merge conflict markers, has another form, or a line cannot be
            parsed.
    """
    rewrite = rewrite_command(name)
    limits.BASELINE_ENTRIES.check(text.count("\n"), name, rewrite)
    lines = [line.rstrip() for line in text.split("\n")]
    for number, line in enumerate(lines, 1):
        limits.BASELINE_LINE.check(len(line), f"{name}:{number}", rewrite)
        if _CONFLICT.match(line):
            raise InputError(
                f"{name}:{number}",
                "contains merge conflict markers",
                "keep either side, then " + rewrite,
            )
    form = lines[0].removeprefix(TITLE).partition(":")[0]
    if not lines[0].startswith(TITLE) or not _FORM_NUMBER.fullmatch(form):
        raise InputError(
            f"{name}:1",
            f"is not a baseline: it does not begin with {TITLE!r}",
            rewrite,
            is_predicate=True,
        )
    if int(form) != FORM:
        raise InputError(
            f"{name}:1",
            f"is a baseline of form {form}, but this placement_checks reads form {FORM}",
            "install a newer placement_checks" if int(form) > FORM else rewrite,
            is_predicate=True,
        )
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            try:
                reader.read(line)
            except InputError as error:  # a limit
                raise error.copy(
                    InputError, object=f"{name}:{number}", fix=reader.rewrite_command(name)
                ) from None
            except (ValueError, LookupError):
                raise InputError(
                    f"{name}:{number}",
                    f"cannot be parsed: {line.strip():.60}",
                    reader.rewrite_command(name),
                    is_predicate=True,
                ) from None
    try:
        return reader.baseline()
    except ValueError as reason:
        raise InputError(name, str(reason), reader.rewrite_command(name)) from None


class _Reader:
    """Reads a baseline line by line.

    The methods raise ValueError or LookupError for an invalid line.
    """

    def __init__(self) -> None:
        self._head: dict[str, str] = {}
        self._lines: Counter[str] = Counter()  # of each section
        self._entries = 0
        self._names: set[str] = set()
        self._variables: list[HeldVariable] = []
        self._towers: list[str] = []
        self._defaults: dict[str, str] = {}
        self._exceptions: dict[Address, Mapping[str, int]] = {}
        self._types: dict[tuple[str, int], dict[str, int]] = {}
        self._copies: dict[tuple[str, str], Copies] = {}
        self._objectives: dict[str, list[str]] = {}
        self._updated: list[str] = []
        self._key = ""
        self._part = ""
        self._counted: list[dict[str, int]] = []
        self._section: Callable[[str], None] = self._unexpected

    def read(self, line: str) -> None:
        """Reads a line, which must be neither blank nor a comment."""
        if line[0] == " ":
            self._lines[self._key] += 1
            self._section(line)
            return
        key, colon, value = line.partition(":")
        if not colon or key in self._head or "end" in self._head:
            raise ValueError(line)
        self._key = key
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
        for key in ("program", "machine", "placed by", "versions"):
            if key not in self._head:
                raise ValueError(f"the line '{key}:' is missing")
        for key in ("variables", "towers", *_COUNTED):
            if key not in self._head:
                raise ValueError(f"the section '{key}' is missing, so the file is incomplete")
        listed = {"variables": len(self._variables), "towers": len(self._towers)}
        for key, number in listed.items():
            if self._head[key] != str(number):
                stated = self._head[key]
                raise ValueError(f"the number of {key} is {stated:.20}, but {number} are listed")
        for key in _COUNTED:
            stated, number = self._head[key], self._lines[key]
            if stated != plural(number, "line"):
                raise ValueError(
                    f"the section '{key}' must have {stated:.20}, but it has {number}"
                )
        if self._head.get("end") != _END:
            raise ValueError(f"the last line, 'end: {_END}', is missing, so the file is cut off")
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
            tuple(self._towers),
            self._defaults,
            self._exceptions,
            self._types,
            self._copies,
            self._objectives,
        )

    def rewrite_command(self, name: str) -> str:
        """Returns the remedy for the file; see `rewrite_command`."""
        return rewrite_command(name, self._head.get("program", ""), self._head.get("machine", ""))

    def _count(self, entries: int) -> None:
        """Counts entries before they are created."""
        self._entries += entries
        limits.BASELINE_ENTRIES.check(self._entries, "")

    def _read_towers_of(self, text: str) -> list[int]:
        towers = []
        for tower in read_ranges(text, len(self._towers)):
            self._count(1)
            towers.append(tower)
        return towers

    def _unexpected(self, line: str) -> None:
        raise ValueError(line)

    def _read_variable(self, line: str) -> None:
        name, rest = take_word(line.strip())
        tensor, where = _take_form(_strip_start(": ", rest))
        place, slots = _take_slots(_strip_start(": ", where))
        if name in self._names:
            raise ValueError(line)
        self._names.add(name)
        self._count(1 + len(slots))
        self._variables.append(HeldVariable(name, tensor, place, slots))

    def _read_towers(self, line: str) -> None:
        span, place = line.strip().split(": ")
        places = read_run(span, place)
        if _parse_number(span.partition("-")[0]) != len(self._towers):
            raise ValueError(line)
        self._towers += places
        limits.DEVICES.check(len(self._towers), "")

    def _read_objective(self, line: str) -> None:
        text = line.strip()
        if not line.startswith("    "):
            objective = text.removesuffix(":")
            if objective == text or objective in self._objectives:
                raise ValueError(line)
            self._updated = self._objectives[objective] = []
            return
        at = 0
        while at < len(text):
            name, at = word_at(text, at)
            self._updated.append(name)
            at = _next_word(text, at)

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
                towers = self._read_towers_of(span)
            if any((self._part, tower) in self._types for tower in towers):
                raise ValueError(line)
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
        at = 0
        while at < len(text):
            kind, end = word_at(text, at)
            match = _require_match(_NUMBER.match(text, _next_word(text, end)))
            at = _next_word(text, match.end())
            if kind in self._counted[0]:
                raise ValueError(text)
            self._count(len(self._counted))
            number = _parse_number(match[0])
            for types in self._counted:
                types[kind] = number

    def _read_exception(self, text: str) -> None:
        towers = [NO_TOWER]
        if match := _TOWERS.match(text):
            towers = self._read_towers_of(match["towers"])
            text = text[match.end() :]
        layer, rest = _take_name(text)
        kind, places = _take_name(_strip_start(" ", rest))
        counts = {}
        for each in _strip_start(": ", places).split(", "):
            place, _, number = each.partition(" ")
            counts[_parse_place(place)] = _parse_number(number) if number else ANY_NUMBER
        self._count(len(counts))
        for tower in towers:
            address = Address(self._part, tower, layer, kind)
            if address in self._exceptions:
                raise ValueError(text)
            self._exceptions[address] = counts

    def _read_copies(self, line: str) -> None:
        match = _require_match(_COPIES.fullmatch(line.strip()))
        amount = Copies(
            *(_parse_number(match[key] or "0") for key in ("copies", "bytes", "unknown"))
        )
        destinations = self._places(match["to"])
        for source in self._places(match["source"]):
            self._count(len(destinations))
            for to in destinations:
                if (source, to) in self._copies:
                    raise ValueError(line)
                self._copies[source, to] = amount

    def _places(self, text: str) -> list[str]:
        if not text.startswith("tower "):
            return [text]
        span = text.removeprefix("tower ")
        return [self._towers[tower] for tower in self._read_towers_of(span)]


def _strip_start(start: str, text: str) -> str:
    if not text.startswith(start):
        raise ValueError(text)
    return text.removeprefix(start)


def _require_match(match: re.Match[str] | None) -> re.Match[str]:
    if match is None:
        raise ValueError
    return match


def _next_word(text: str, at: int) -> int:
    """Returns the position behind a blank; the end of the text if there is no blank."""
    if at < len(text) and text[at] != " ":
        raise ValueError(text)
    return at + 1


def _parse_number(text: str) -> int:
    digits = text.replace(",", "")
    if not _DIGITS.fullmatch(digits):
        raise ValueError(text)
    limits.DIGITS.check(len(digits), "")
    return int(digits)


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
        shape = tuple(None if dim == "?" else _parse_number(dim) for dim in dims)
    return Tensor(dtype or "", shape), rest[match.end() :]


def _take_slots(text: str) -> tuple[str, tuple[str, ...]]:
    """Returns the place of a variable and the places of its slots."""
    match = _require_match(_SLOTS.fullmatch(text))
    place, count = _parse_place(match["place"]), _parse_number(match["count"] or "0")
    limits.BASELINE_SLOTS.check(count, "")
    places = match["places"]
    slots = tuple(map(_parse_place, places.split(", "))) if places else (place,) * count
    if len(slots) != count:
        raise ValueError(text)
    return place, slots
