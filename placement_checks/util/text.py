"""Text for messages: numbers, lists, suggestions for misspelled words, and safe characters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

_SPAN = 4  # consecutive names that are shortened to the first and the last


def plural(number: int, noun: str) -> str:
    """``1 finding``, ``2 findings``, ``1,000 findings``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_and(things: Iterable[object]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = [str(thing) for thing in things] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def listed(names: Sequence[object], limit: int = 3) -> str:
    """Join names for a sentence: ``a, b and c``, or ``a, b, c and 4 more`` beyond ``limit``."""
    more = len(names) - limit
    return join_and([*names[:limit], f"{more:,} more"] if more > 0 else names)


def range_text(names: Iterable[str]) -> str:
    """Join names as `join_and` does; four or more consecutive names become ``gpu:1 to gpu:4``."""
    parts: list[str] = []
    for run in _counting_up(names):
        parts += [f"{run[0]} to {run[-1]}"] if len(run) >= _SPAN else run
    return join_and(parts)


def _counting_up(names: Iterable[str]) -> list[list[str]]:
    """Split names into runs of consecutive numbers at their ends."""
    runs: list[list[str]] = []
    expected = None
    for name in names:
        stem = name.rstrip("0123456789")
        number = name[len(stem) :]
        if name == expected:
            runs[-1].append(name)
        else:
            runs.append([name])
        expected = f"{stem}{int(number) + 1}" if number else None
    return runs


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number appended if it is taken."""
    free, number = name, 0
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def format_factor(value: float) -> str:
    """Format a factor with four digits, stable under rounding errors; 0 if it is nearly zero.

    For example, 1.0625 and 1.0625001 are both ``1.062``.
    """
    return f"{0.0 if abs(value) < 1e-4 else float(f'{value:.6g}'):.4g}"


def file_size(size: int) -> str:
    """Format a number of bytes in kB, MB or GB."""
    for unit, of_unit in (("GB", 1e9), ("MB", 1e6)):
        if size >= of_unit:
            return f"{size / of_unit:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """``did you mean 'gpus'?``; ``""`` if no word is similar."""
    return "".join(f"did you mean '{near}'?" for near in close_matches(word, words))


def close_matches(word: str, words: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """A list with the most similar word; empty if no word is similar.

    Args:
        word: the misspelled word.
        words: the valid words.
        cutoff: the required similarity, from 0 to 1 for equal words.
    """
    from difflib import get_close_matches  # here, as the pytest plugin imports this module

    return get_close_matches(word, list(words), n=1, cutoff=cutoff)


def nearest(name: str, names: Collection[str]) -> str | None:
    """The same name in another scope, or else the most similar name; None if there is neither."""
    last_part = name.rpartition("/")[2]
    ends = [other for other in names if other.endswith(f"/{name}")]
    near = [
        *ends,
        *close_matches(name, names),
        *(other for other in names if other.rpartition("/")[2] == last_part),
        *close_matches(name, names, cutoff=0.4),
    ]
    return near[0] if near else None


def _python_escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def printable(text: str, escape: Callable[[str], str] = _python_escape) -> str:
    r"""Escape characters that are not printable: ``\x1b``, ``\n``, ``\u202e``.

    Names come from graphs and logs of others. An escape sequence could overwrite the terminal, a
    right-to-left mark could reverse a line, and half of a surrogate pair cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else escape(letter) for letter in text)


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields a line for each row; columns between the first and the last are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *cells, last in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:-1], strict=True))
        yield "  ".join([first.ljust(widths[0]), *numbers, last]).rstrip()


def words(text: str) -> list[str]:
    """The words of a text: a list of names that is easier to read and to edit than a list."""
    return text.split()
