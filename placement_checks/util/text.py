"""Numbers and lists in sentences, and the closest match for a misspelled word.

Text that shows what it holds, and cannot drive the terminal or page that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

_SPAN = 4  # names that are told as the first and the last of them


def plural(number: int, noun: str) -> str:
    """``1 finding``, ``2 findings``, ``1,000 findings``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_and(things: Iterable[object]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = [str(thing) for thing in things] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def listed(names: Sequence[object], most: int = 3) -> str:
    """Join names for a sentence: ``a, b and c``, or ``a, b, c and 4 more`` beyond ``most``."""
    more = len(names) - most
    return join_and([*names[:most], f"{more:,} more"] if more > 0 else names)


def range_text(names: Iterable[str]) -> str:
    """As `join_and`, where four names or more that count up are told as ``gpu:1 to gpu:4``."""
    told: list[str] = []
    for run in _counting_up(names):
        told += [f"{run[0]} to {run[-1]}"] if len(run) >= _SPAN else run
    return join_and(told)


def _counting_up(names: Iterable[str]) -> list[list[str]]:
    """The names in runs, in which only the number at the end goes up by one."""
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
    """A name, with a number where it is taken."""
    free, number = name, 0
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def file_size(size: int) -> str:
    """In kB, MB or GB."""
    for unit, of_unit in (("GB", 1e9), ("MB", 1e6)):
        if size >= of_unit:
            return f"{size / of_unit:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """``did you mean 'gpus'?``; ``""`` where none of the words is spelled like it."""
    return "".join(f"did you mean '{near}'?" for near in close_matches(word, words))


def close_matches(word: str, words: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """The word that is spelled most like ``word``, in a list that is empty if none is alike.

    Args:
        word: the misspelled one.
        words: those that there are.
        cutoff: how much alike they must be, from 0 for not at all to 1 for equal.
    """
    from difflib import get_close_matches  # not before a word is wrong: the plugin is in each run

    return get_close_matches(word, list(words), n=1, cutoff=cutoff)


def nearest(name: str, names: Collection[str]) -> str | None:
    """The name in another scope, or else the one that is spelled most like it."""
    last_part = name.rpartition("/")[2]
    ends = [other for other in names if other.endswith(f"/{name}")]
    near = [
        *ends,
        *close_matches(name, names),
        *(other for other in names if other.rpartition("/")[2] == last_part),
        *close_matches(name, names, cutoff=0.4),
    ]
    return near[0] if near else None


def _in_python(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def printable(text: str, escape: Callable[[str], str] = _in_python) -> str:
    r"""A line with what is not printable in escapes: ``\x1b``, ``\n``, ``\u202e``.

    Names come from graphs and logs that others wrote. An escape sequence in one could rewrite what
    stands above it, a mark for writing from right to left turn a line around, half of a surrogate
    pair end the writing.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else escape(letter) for letter in text)
