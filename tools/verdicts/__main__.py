"""``python -m tools.verdicts record OUT`` and ``python -m tools.verdicts compare OLD NEW``."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.verdicts")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="judge programs, and write their verdicts")
    recording.add_argument("out", type=Path, help="a new directory")
    recording.add_argument("--numbers", action="store_true", help="also judge the rules on runs")
    recording.add_argument("--only", metavar="TEXT", default="", help="names with this text")
    recording.add_argument(
        "--resume", action="store_true", help="continue a record that was interrupted"
    )
    recording.add_argument("--jobs", type=int, default=2, help="programs at the same time")
    recording.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="WHAT",
        help="a directory of programs, the arguments of verify for one program, or a .txt file "
        "with a line of such arguments for each program; may be repeated",
    )
    recording.add_argument(
        "--public",
        action="store_true",
        help="also the public programs in the directory PLACEMENT_CHECKS_SOURCES",
    )
    comparing = commands.add_parser("compare", help="list the differences between two records")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--all", action="store_true", help="list every difference of a kind")
    options = parser.parse_args()
    if options.command == "compare":
        return _compare(parser, options)
    return _record(parser, options)


def _record(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]
    from support.forked import server

    from .comparison import read, summary
    from .programs import fixture_programs, other_programs, public_programs
    from .recording import record

    recorded_before = read(options.out)
    if options.out.exists() and any(options.out.iterdir()) and not options.resume:
        parser.error(f"{options.out} is not empty; name a new directory, or add --resume")
    programs = [
        *fixture_programs(),
        *(program for text in options.also for program in other_programs(text)),
        *(public_programs() if options.public else ()),
    ]
    selected = [program for program in programs if options.only in program.name]
    if not selected:
        parser.error(f"no program has {options.only!r} in its name")
    missing = [program for program in selected if program.name not in recorded_before]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cache-") as cache:
        os.environ.update(XDG_CACHE_HOME=cache, TF_CPP_MIN_LOG_LEVEL="3")
        record(missing, options.out, numbers=options.numbers, jobs=options.jobs)
    seconds = time.monotonic() - begin
    server().end()  # its processes count when it has ended
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(each.ru_utime + each.ru_stime for each in used)
    print(summary(read(options.out)))
    print(f"{len(missing)} programs judged in {seconds:.0f} s, {cpu_seconds:.0f} CPU s")
    return 0


def _compare(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from .comparison import differences, read, report

    old, new = read(options.old), read(options.new)
    for folder, results in ((options.old, old), (options.new, new)):
        if not results:
            parser.error(f"{folder} has no records; write them with: record {folder}")
    found = differences(old, new)
    print(report(found, everything=options.all))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
