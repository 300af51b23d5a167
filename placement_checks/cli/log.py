"""``placement-checks log``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from placement_checks.cli import FAILED
from placement_checks.cli.common.options import FILE, format_option
from placement_checks.cli.common.output import write_stderr
from placement_checks.logs import Log, Source, read_logs
from placement_checks.report.commands.log import problems as find_problems
from placement_checks.report.commands.log import render_json, render_lines, render_text
from placement_checks.util.resources import gc_paused
from placement_checks.util.text import printable

_MIN_BYTES = 1 << 25  # smallest total size of files with a progress bar
_BAR_STEPS = 50


@click.command("log")
@click.argument("files", nargs=-1, required=True, metavar="FILE... | -", type=FILE)
@format_option("text", "json", "lines")
@click.option(
    "--require-records", is_flag=True, help="Fail if the log contains no device placements."
)
def command(files: tuple[str, ...], output_format: str, require_records: bool) -> int:
    """Count the ops of a placement log by device.

    FILE is the output of a process with log_device_placement on, stdout and stderr, in one or
    several files. gzip files are decompressed; - is standard input.

    --format lines prints each op on a line, in the format of TensorFlow.

    The exit status is 0 even if the log has no records; the likely reason is printed, in JSON as
    "reason". It is 2 if a file cannot be read, or with --require-records if there are no records.
    """
    render: dict[str, Callable[[Log], str]] = {
        "text": render_text,
        "json": render_json,
        "lines": render_lines,
    }
    with gc_paused():
        with _progress_bar(files) as watch:
            log = read_logs(files, watch=watch)
        if require_records:
            log.require_records()
        sys.stdout.write(render[output_format](log))
    problems = list(log.troubles)
    if output_format == "lines":
        problems += find_problems(log)
    printed = [write_stderr(f"placement-checks: {problem}") for problem in problems]
    return 0 if all(printed) else FAILED


@contextlib.contextmanager
def _progress_bar(files: tuple[str, ...]) -> Iterator[Callable[[Source], None] | None]:
    """Show a progress bar if stderr is a terminal and the files are large."""
    sizes = [path.stat().st_size for path in map(Path, files) if path.is_file()]
    if not sys.stderr.isatty() or sum(sizes) < _MIN_BYTES:
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        tasks = {
            file: progress.add_task(escape(printable(file)), total=_BAR_STEPS) for file in files
        }
        shown: dict[str, int] = {}

        def watch(source: Source) -> None:
            step = int(source.share * _BAR_STEPS)
            if step != shown.get(source.name):
                shown[source.name] = step
                progress.update(tasks[source.name], completed=step, refresh=True)

        yield watch
