"""Numbers and lists as sentences have them, and words that are spelled like others."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def plural(number: int, noun: str) -> str:
    """``1 finding``, ``2 findings``, ``1,000 findings``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def joined(things: Iterable[object]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = [str(thing) for thing in things] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean 'gpus'?``; nothing where no word that is known is spelled like it."""
    return "".join(f"did you mean '{near}'?" for near in close(word, known))


def close(word: str, known: Iterable[str], *, alike: float = 0.6) -> list[str]:
    """The word that is spelled most like it, if one is: alike is 1 for the same, 0 for none."""
    from difflib import get_close_matches  # not before a word is wrong: the plugin is in each run

    return get_close_matches(word, list(known), n=1, cutoff=alike)


def nearest(name: str, names: Collection[str]) -> str | None:
    """The name in another scope, or else the one that is spelled most like it."""
    own = name.rpartition("/")[2]
    ends = [other for other in names if other.endswith(f"/{name}")]
    near = [
        *ends,
        *close(name, names),
        *(other for other in names if other.rpartition("/")[2] == own),
        *close(name, names, alike=0.4),
    ]
    return near[0] if near else None
