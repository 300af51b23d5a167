"""Text that shows what it holds, and cannot drive the terminal or page that shows it."""

from __future__ import annotations

from collections.abc import Callable


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
