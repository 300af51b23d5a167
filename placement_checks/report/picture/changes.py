"""Two placements of one program in one picture: the new one, with what has moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Difference, Report
from placement_checks.report.diff import routes, with_types
from placement_checks.report.picture.model import program_data
from placement_checks.util.text import plural


def changes_data(difference: Difference, old: Placement, new: Placement) -> dict[str, Any]:
    """The new placement, as `program_data` has it, with what differs in place of findings.

    Where each op was is one more view of it.
    """
    data = program_data(Report(Evidence(new), ()), before=old)
    number = {name: at for at, name in enumerate(new.ops)}
    told = [
        _change("moved", f"from {before} to {after}", ops, number)
        for before, after, ops in routes(difference)
    ]
    for name, ops in ((new.program, difference.added), (old.program, difference.removed)):
        if ops:
            told.append(_change(f"only in {name}", "", with_types(ops), number))
    moved = f"{len(difference.moved):,} of {plural(difference.ops, 'op')} have moved"
    stayed = f"All {plural(difference.ops, 'op')} are where they were"
    return data | {
        "state": "differs" if difference else "placed",
        "headline": f"{moved if difference.moved else stayed}.",
        "facts": [
            f"{len(difference.added):,} only in {new.program}, "
            f"{len(difference.removed):,} only in {old.program}.",
            *difference.unread,
        ],
        "findings": told,
    }


def _change(
    rule: str, route: str, ops: Sequence[str], number: Mapping[str, int]
) -> dict[str, Any]:
    """A group of ops that went one way, as the page tells a finding; ``ops`` have their types."""
    names = [op.rpartition(" (")[0] or op for op in ops]
    return {
        "rule": rule,
        "message": ": ".join(filter(None, [route, ops[0]])),
        "where": "",
        "source": "",
        "others": list(ops[1:]),
        "path": [],
        "consequence": "",
        "fix": "",
        "follows": "",
        "figure": [],
        "objects": [],
        "ops": sorted(number[name] for name in names if name in number),
        "devices": [],
    }
