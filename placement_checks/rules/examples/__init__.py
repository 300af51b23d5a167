"""An example of each rule in ``RULE.diff``: a program that breaks it, and the fixed program.

A line belongs to the broken program (``-``), to the fixed program (``+``), or to both. Each
program is a function ``build`` that runs after ``import tensorflow as tf; tf1 = tf.compat.v1``.
"""

from __future__ import annotations

from collections.abc import Sequence


def example(rule: str) -> Sequence[str]:
    """Return the lines of a rule's example, each after its sign.

    A rule of another package has no example: the result is empty.
    """
    from importlib.resources import files  # slow to import, and not needed to list rules

    file = files(__name__).joinpath(f"{rule}.diff")
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else ()
