"""The text of a rule, and the diff of its example."""

from __future__ import annotations

import io

from rich.console import Console

from placement_checks.report.text.explain import write_rule

EXAMPLE = (" def build():", "-    wrong", "+    right")


def written(*, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=terminal, color_system="standard" if terminal else None
    )
    write_rule("It holds.\n\nAnd why.", EXAMPLE, console)
    return stream.getvalue()


def test_the_explanation_and_the_diff_line_by_line() -> None:
    assert written(terminal=False).splitlines() == [
        "It holds.",
        "",
        "And why.",
        "",
        "A program that breaks the rule (-), and its fix (+); tf1 is tf.compat.v1:",
        "",
        *EXAMPLE,
    ]


def test_example_is_red_and_green_on_a_terminal() -> None:
    assert written(terminal=True).splitlines()[-3:] == [
        " def build():",
        "\x1b[31m-    wrong\x1b[0m",
        "\x1b[32m+    right\x1b[0m",
    ]
