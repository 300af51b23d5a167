"""Findings written by hand, and their lines in the text report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console
from support.graphs import placement

from placement_checks import Finding, Verdict
from placement_checks.core.baseline import Change, Difference
from placement_checks.core.errors import InputError
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import EvidenceKind, Report, State
from placement_checks.core.revisions import (
    ChangedVariable,
    Numbers,
    ProgramChange,
    Since,
    TrainingChange,
)
from placement_checks.report.text.writer import write
from placement_checks.verification.judging import in_order


def finding(object: str, **more: Any) -> Finding:
    values = {
        "op": "VarHandleOp",
        "evidence": "assigned",
        "message": f"{object} is [on a GPU]",
        "fix": "pin it",
        "frames": ("a.py:1",),
    }
    return Finding(object, **{**values, **more})


def broken(rule: str, *findings: Finding, state: State = "broken", **more: Any) -> Verdict:
    evidence: EvidenceKind = "executed" if "figures" in more else "assigned"
    return Verdict(rule, state, evidence, None, findings, **more)


def report(*verdicts: Verdict, program: str = "p") -> Report:
    """The report on verdicts, in the order of all reports."""
    return Report(Evidence(placement(program=program)), in_order(verdicts))


def written(*reports: Report, everything: bool = False, width: int = 40) -> str:
    """The text report, for a terminal that is narrower than its lines: they must not be broken
    again."""
    file = StringIO()
    write(reports, Console(file=file, width=width), everything=everything)
    return file.getvalue()


def below_the_table(text: str) -> Sequence[str]:
    """The lines with findings in a report of one program."""
    _, _, rest = text.split("\n\n", 2)
    return rest.rstrip("\n").split("\n")[:-1]


def since(*, revision: str = "main", name: str = "train.py:build", message: str = "") -> Since:
    """A comparison with a revision: a changed program, an equal, a new and a gone one."""
    wrong = finding("w", message=message or "w is [on a GPU]")
    moved = Change("ops", "input", "/cpu:0", "/gpu:0", ["x"], "1 op: Mul x", "q.py:1")
    difference = Difference(revision, name, 9, [moved], notes=["1 variable renamed: v -> w"])
    old = report(
        Verdict("variables-on-host", "kept", "assigned"),
        broken("slots-with-variables", wrong),
        Verdict("no-idle-device", "kept", "assigned"),
        broken("one-update", wrong, wrong),
        program=name,
    )
    new = report(
        broken("variables-on-host", wrong),
        broken("slots-with-variables", wrong, wrong),
        Verdict("no-idle-device", "not-checked", None, "there is one tower"),
        Verdict("one-update", "kept", "assigned"),
        program=name,
    )
    other = report(program="other.py")
    added = report(broken("no-fallback", wrong), program="new.py")
    training = TrainingChange(
        [
            ChangedVariable("w", "different", message or "it counts twice", "q.py:2"),
            ChangedVariable("w/slot", "not-checked", message or "it counts twice"),
            ChangedVariable("v", "not-checked", "an op is not known"),
            ChangedVariable("u", "proved"),
        ],
    )
    numbers = Numbers("different", f"other gradients for {message or 'w'}")
    return Since(
        revision,
        "0123456789abcdef",
        [
            ProgramChange(name, old, replace(new, baseline=difference), training, numbers),
            ProgramChange(
                "other.py",
                other,
                replace(other, baseline=Difference(revision, "other.py", 4)),
                TrainingChange(
                    [ChangedVariable(each, "proved") for each in ("v", "w")], ["rows are rows"]
                ),
            ),
            ProgramChange("new.py", None, added),
            ProgramChange("gone.py", None, None),
        ],
        [InputError("last.py at main", "does not import", "repair it", is_predicate=True)],
        ["a note"],
    )
