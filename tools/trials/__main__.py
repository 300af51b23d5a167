"""Run trials, and print a table with one row for each class.

``python -m tools.trials [--seed S] [--class NAME] [--count N]``. The exit status is 1 if a trial
lost a file, gave a wrong verdict, printed a traceback, or left something over.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from .base import Outcome, Trials

_COLUMNS = ("trials", "lost", "wrong", "traceback", "max s", "max MB", "left over")


def _classes() -> list[str]:
    return sorted(
        module.name
        for module in pkgutil.iter_modules([str(Path(__file__).parent)])
        if module.name not in ("base", "__main__")
    )


def main() -> int:
    classes = _classes()
    parser = argparse.ArgumentParser(prog="python -m tools.trials", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--class", dest="classes", action="append", choices=classes)
    parser.add_argument("--count", type=int, help="trials of each class; default: all")
    options = parser.parse_args()
    rows = []
    is_good = True
    for name in options.classes or classes:
        module = cast(Trials, import_module(f".{name}", __package__))
        outcomes = []
        for trial in module.trials(options.seed, options.count or sys.maxsize):
            outcome = trial.run()
            outcomes.append(outcome)
            is_good &= outcome.is_good
            print(_line(trial.kind, trial.name, outcome), file=sys.stderr, flush=True)
        rows.append((name, _row(outcomes)))
    width = max(map(len, classes), default=0)
    print(" ".join([" " * width, *(f"{column:>9}" for column in _COLUMNS)]))
    for name, row in rows:
        print(" ".join([f"{name:{width}}", *(f"{value:>9}" for value in row)]))
    return 0 if is_good else 1


def _line(kind: str, name: str, outcome: Outcome) -> str:
    faults = [
        *(f"lost {path}" for path in outcome.lost),
        *([f"wrong verdict: {outcome.wrong_verdict}"] if outcome.wrong_verdict else []),
        *([f"traceback: {outcome.traceback}"] if outcome.traceback else []),
        *(f"left over {what}" for what in outcome.left_over),
    ]
    state = "; ".join(faults) or "good"
    return f"{kind}: {name}: {state} ({outcome.seconds:.1f} s, {outcome.megabytes:.0f} MB)"


def _row(outcomes: Sequence[Outcome]) -> Sequence[str]:
    return (
        str(len(outcomes)),
        str(sum(len(each.lost) > 0 for each in outcomes)),
        str(sum(each.wrong_verdict != "" for each in outcomes)),
        str(sum(each.traceback != "" for each in outcomes)),
        f"{max((each.seconds for each in outcomes), default=0.0):.1f}",
        f"{max((each.megabytes for each in outcomes), default=0.0):.0f}",
        str(sum(len(each.left_over) > 0 for each in outcomes)),
    )


if __name__ == "__main__":
    sys.exit(main())
