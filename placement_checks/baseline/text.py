"""Writes a baseline as text that people review; `baseline.parse` reads it.

The first functions write and read the tokens of the text: names, ranges of numbers, and runs of
devices.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from placement_checks.core.baseline import (
    ANY_NUMBER,
    NO_TOWER,
    PARTS,
    UNCOUNTED_PARTS,
    Address,
    Baseline,
    Copies,
    dtype_and_shape,
)
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

    Args:
        text: the ranges.
        below: the limit of the numbers.

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
    """Joins consecutive places: ``("0-7", "/job:worker/task:0/gpu:0-7")``."""
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
        yield f"  {word(held.name)}: {_form(held.tensor)}: {where}"
    for scope in baseline.folded:
        name = f"{word(scope.scope)}/{ALL}" if scope.scope else ALL
        what = f"{plural(scope.count, 'variable')}, {scope.bytes:,} bytes, forms {scope.digest}"
        yield f"  {name}: {what}: {scope.place}{_slots(scope.place, scope.slots)}"


def _form(tensor: Tensor) -> str:
    dtype = word(tensor.dtype) if tensor.dtype else NONE
    return dtype_and_shape(tensor._replace(dtype=dtype))


def _slots(place: str, slots: tuple[str, ...]) -> str:
    if not slots:
        return ""
    away = f" on {', '.join(slots)}" if set(slots) != {place} else ""
    return f"  + {plural(len(slots), 'slot')}{away}"


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
    """Yields a line for each address; towers with equal lines share one."""
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
            yield from _wrapped("    holds:", counts)
        if own:
            each = "each of " if len(own) > 1 else ""
            yield from _wrapped(f"    {each}tower {ranges(own)}:", counts)


def _wrapped(line: str, words: Iterable[str]) -> Iterator[str]:
    for each in words:
        if len(line) + 1 + len(each) > _WIDTH:
            yield line
            line = "     "
        line = f"{line} {each}"
    yield line


def _copies(baseline: Baseline) -> Iterator[str]:
    """Yields a line for each pair of places; towers with equal copies share one."""
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
