"""For each rule a short program that breaks it, and the mended one: ``RULE.diff`` holds both.

A line belongs to the broken program (``-``), to the mended one (``+``), or to both. Each is a
function ``build`` that runs with ``import tensorflow as tf; tf1 = tf.compat.v1``.
"""

from __future__ import annotations

from collections.abc import Sequence


def example(rule: str) -> Sequence[str]:
    """The lines of a rule's example, each behind its sign; none for a rule of another package."""
    from importlib.resources import files  # not before somebody asks: rules are listed without

    file = files(__name__).joinpath(f"{rule}.diff")
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else ()
