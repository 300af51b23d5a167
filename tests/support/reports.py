"""Findings written by hand, and their lines in the text report."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from support.graphs import placement

from placement_checks import Finding, Verdict
from placement_checks.core.baseline import Change, Difference
from placement_checks.core.errors import InputError
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report
from placement_checks.core.revisions import Numbers, ProgramChange, RuleChange, Since
from placement_checks.report.text.writer import write


def finding(object: str, **more: Any) -> Finding:
    values = {
        "op": "VarHandleOp",
        "evidence": "assigned",
        "message": f"{object} is [on a GPU]",
        "fix": "pin it",
        "frames": ("a.py:1",),
    }
    return Finding(object, **{**values, **more})


def broken(rule: str, *findings: Finding, **more: Any) -> Verdict:
    return Verdict(rule, "broken", "assigned", None, findings, **more)


def report(*verdicts: Verdict, program: str = "p") -> Report:
    return Report(Evidence(placement(program=program)), verdicts)


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
    unchecked = Verdict("no-idle-device", "not-checked", None, "there is one tower")
    kept = [
        Verdict(rule, "kept", "assigned")
        for rule in ("variables-on-host", "no-idle-device", "one-update")
    ]
    was = Verdict("one-update", "broken", "assigned", None, [wrong, wrong])
    worse = broken("slots-with-variables", wrong, wrong)
    moved = Change("ops", "input", "/cpu:0", "/gpu:0", ["x"], "1 op: Mul x", "q.py:1")
    difference = Difference(revision, name, 9, [moved], notes=["1 variable renamed: v -> w"])
    same = Difference(revision, "other.py", 4)
    old = report(*kept, program=name)
    new = report(broken("variables-on-host", wrong), program=name)
    changes = [
        RuleChange("broken", kept[0], broken("variables-on-host", wrong)),
        RuleChange("broken", broken("slots-with-variables", wrong), worse),
        RuleChange("unchecked", kept[1], unchecked),
        RuleChange("kept", was, kept[2]),
    ]
    missing = Verdict("no-fallback", "not-checked", None, "the revision lacks the program")
    other = broken("no-fallback", wrong)
    numbers = Numbers("different", f"other gradients for {message or 'w'}")
    return Since(
        revision,
        "0123456789abcdef",
        [
            ProgramChange(name, old, new, difference, changes, numbers),
            ProgramChange("other.py", report(program="other.py"), report(), same),
            ProgramChange("new.py", None, new, rules=[RuleChange("broken", missing, other)]),
            ProgramChange("gone.py", None, None),
        ],
        [InputError("last.py at main", "does not import", "repair it", is_predicate=True)],
        ["a note"],
    )
