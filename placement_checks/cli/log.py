"""``placement-checks log``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from placement_checks.cli import FAILED
from placement_checks.cli.options import FILE, format_option
from placement_checks.cli.output import write_stderr
from placement_checks.logs import Log, Source, read_logs
from placement_checks.report.commands.log import problems, render_json, render_lines, render_text
from placement_checks.util.resources import gc_paused
from placement_checks.util.text import printable

_WORTH_A_BAR = 1 << 25  # bytes
_STEPS = 50  # of the bar


@click.command("log")
@click.argument("files", nargs=-1, required=True, metavar="FILE... | -", type=FILE)
@format_option("text", "json", "lines")
@click.option("--require-records", is_flag=True, help="A log without records is an error.")
def command(files: tuple[str, ...], output_format: str, require_records: bool) -> int:
    """Say what a placement log has on each device.

    FILE is what a process printed with log_device_placement on, stdout and stderr, in one file
    or several, from wherever it was printed; gzip is unpacked, and - is standard input.

    --format lines prints one op a line, in TensorFlow's own words.

    The exit status is 0 also for a log without records, whose likely reason is printed, in JSON as
    "reason"; with --require-records it is 2, as it is where a file cannot be read.
    """
    render: dict[str, Callable[[Log], str]] = {
        "text": render_text,
        "json": render_json,
        "lines": render_lines,
    }
    with gc_paused():
        with _bar(files) as watch:
            log = read_logs(files, watch=watch)
        if require_records:
            log.require_records()
        sys.stdout.write(render[output_format](log))
    troubles = list(log.troubles)
    if output_format == "lines":
        troubles += problems(log)
    printed = [write_stderr(f"placement-checks: {trouble}") for trouble in troubles]
    return 0 if all(printed) else FAILED


@contextlib.contextmanager
def _bar(files: tuple[str, ...]) -> Iterator[Callable[[Source], None] | None]:
    """A progress bar on stderr, where that is a terminal and there is much to read."""
    sizes = [path.stat().st_size for path in map(Path, files) if path.is_file()]
    if not sys.stderr.isatty() or sum(sizes) < _WORTH_A_BAR:
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        tasks = {file: progress.add_task(escape(printable(file)), total=_STEPS) for file in files}
        shown: dict[str, int] = {}

        def watch(source: Source) -> None:
            step = int(source.share * _STEPS)
            if step != shown.get(source.name):
                shown[source.name] = step
                progress.update(tasks[source.name], completed=step, refresh=True)

        yield watch
