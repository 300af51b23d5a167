"""Names that would drive a terminal or a page, in every form of a report."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import StringIO

import pytest
from rich.console import Console
from support.graphs import op, placement
from support.outcomes import since_as, written_as
from support.pictures import with_data
from support.reports import since
from support.timings import timeline, timing

from placement_checks import Placement, assert_rules, assert_variables_on_host, verify
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.logs import Log, Record
from placement_checks.report.commands import log
from placement_checks.report.commands import time as timing_report
from placement_checks.report.commands.time import chrome_trace
from placement_checks.report.common import baseline
from placement_checks.report.formats import FORMATS
from placement_checks.report.text import writer
from placement_checks.verification.diff import compare_names

HOSTILE = ["w\x1b[31mX", "a\nKEPT all is well", "gnp.\u202egpu", "b\x9b2J\x7f", "half\udcff"]
PLAIN = "ü/中"
NAMES = [*HOSTILE, PLAIN]
HOST = "/job:localhost/replica:0/task:0/device"


def graph(device: str, program: str = "train.py:\x1b[2Jbuild") -> Placement:
    return placement(
        *(op(name, "VarHandleOp", "/gpu:0", device) for name in NAMES), program=program
    )


def console_text(write: Callable[[Console], None]) -> str:
    file = StringIO()
    write(Console(file=file))
    return file.getvalue()


def of_logs() -> str:
    hostile = Log("\x1b[2J.log", {Record(n, "Add", f"{HOST}:CPU:0"): 1 for n in NAMES}, len(NAMES))
    twice = {Record(n, "Add", f"{HOST}:GPU:{i}"): 1 for i in (0, 1) for n in NAMES}
    moved = log.render_text(Log("a", twice, 2 * len(NAMES)))
    return log.render_lines(hostile) + log.render_text(hostile) + moved


def in_format(format: str) -> str:
    program = f"train.py:\x1b[2Jbuild {PLAIN}"
    written = written_as(
        format,
        verify(graph("GPU:0", program)),
        errors=[InputError("\x07", "\r")],
        next_step="\x1b[2J",
    )
    return with_data(written).replace("\u200b", "")  # added to prevent links in comments


def since_in_format(format: str) -> str:
    hostile = "".join(NAMES)
    shown = since_as(format, since(revision="\x1b[2J", name=hostile, message=hostile))
    return with_data(shown).replace("\u200b", "")


FORMS: dict[str, Callable[[], str]] = {
    "text in full": lambda: console_text(
        lambda to: writer.write([verify(graph("GPU:0"))] * 2, to, everything=True)
    ),
    "diff": lambda: baseline.render_text(compare_names(graph("GPU:0"), graph("CPU:0"), "a\rb")),
    "log": of_logs,
    "timing": lambda: console_text(
        lambda to: timing_report.write_comparison([timing()], [], "\x1b]0;title\x07ü/中", to)
    ),
    **{format: partial(in_format, format) for format in FORMATS},
    **{f"{format} since": partial(since_in_format, format) for format in FORMATS},
    "json of a difference": lambda: baseline.render_json(
        compare_names(graph("GPU:0"), graph("CPU:0"), "a")
    ),
    "chrome": lambda: chrome_trace(timeline({"/cpu:0": [(n, 0.0, 0.1) for n in NAMES]}), "\x7f"),
}


@pytest.mark.parametrize("form", FORMS)
def test_names_have_no_effect_in_any_format(form: str) -> None:
    shown = FORMS[form]()

    assert [line for line in shown.split("\n") if not line.isprintable()] == []
    assert "\nKEPT all is well" not in shown
    assert PLAIN in shown
    shown.encode()


def test_a_line_with_a_name_of_ours_keeps_its_colors() -> None:
    file = StringIO()
    console = Console(file=file, force_terminal=True)
    writer.write([verify(graph("GPU:0", "train.py:build"), only=["variables-on-host"])], console)

    lines = file.getvalue().splitlines()
    assert any("BROKEN" in line and "\x1b[1;31m" in line for line in lines)
    assert any(r"w\x1b[31mX sits on" in line and "\x1b" not in line for line in lines)


def test_assertions_escape_names() -> None:
    for assertion in (assert_variables_on_host, assert_rules):
        with pytest.raises(AssertionError) as raised:
            assertion(graph("GPU:0"))
        message = str(raised.value)
        assert [line for line in message.split("\n") if not line.isprintable()] == []
        assert r"w\x1b[31mX" in message
        assert "\nKEPT all is well" not in message

    with pytest.raises(AssertionError) as raised:
        assert_rules(
            placement(op("w", "VarHandleOp"), requested=Missing("\x1b[2J")), "variables-shared"
        )
    assert str(raised.value).isprintable()
