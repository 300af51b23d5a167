"""The words of a baseline's text that are both written and read: names, numbers in ranges."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

FORM = 1
TITLE = "# placement baseline, form "
NONE = "-"
ALL = "*"
MOST_TOWERS = 100_000

_PLAIN = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>\-]*")  # as TensorFlow's own names
_QUOTED = json.JSONDecoder()


def word(name: str) -> str:
    """A name as it stands between blanks and colons; in JSON's quotes if it is no plain one."""
    return name if _PLAIN.fullmatch(name) else quoted(name)


def line_end(text: str) -> str:
    """A text as it stands at the end of a line; in quotes where it could be misread."""
    plain = text and text.isprintable() and text == text.strip() and text[0] != '"'
    return text if plain else quoted(text)


def quoted(text: str) -> str:
    """In JSON's quotes; what is not printable in its escapes."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def take_word(text: str) -> tuple[str, str]:
    """A name at the beginning of ``text``, and what follows it.

    Raises:
        ValueError: there is none.
    """
    if text.startswith('"'):
        name, end = _QUOTED.raw_decode(text)
        return str(name), text[end:]
    match = _PLAIN.match(text)
    if match is None:
        raise ValueError(text)
    return match[0], text[match.end() :]


def read_line_end(text: str) -> str:
    """What `line_end` wrote.

    Raises:
        ValueError: quotes do not end.
    """
    if not text.startswith('"'):
        return text
    value, rest = take_word(text)
    if rest:
        raise ValueError(text)
    return value


def ranges(numbers: Iterable[int]) -> str:
    """``0-2,5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def read_ranges(text: str, below: int) -> Iterator[int]:
    """The numbers of `ranges`, which are below a limit.

    Raises:
        ValueError: it is none, or has a number that is too large.
    """
    for span in text.split(","):
        first, _, last = span.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= below:
            raise ValueError(text)
        yield from numbers


def runs(places: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Places whose indices count up, in one: ``0-7`` and ``/job:worker/task:0/gpu:0-7``."""
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
    """The places of one line of `runs`.

    Raises:
        ValueError: the two ranges are not equally long, or too long.
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
