"""How a placement differs from a baseline, as plain mappings."""

from __future__ import annotations

from typing import Any

from placement_checks.core.baseline.difference import Change, Difference
from placement_checks.core.baseline.values import Copies


def difference_document(difference: Difference) -> dict[str, Any]:
    """The difference as a mapping."""
    return {
        "baseline": difference.old,
        "program": difference.new,
        "same": difference.same,
        "moved": list(map(_change, difference.moved)),
        "new": list(map(_change, difference.new_there)),
        "gone": list(map(_change, difference.gone)),
        "crosses": [
            {
                "source": each.source,
                "to": each.to,
                "old": _copies(each.old),
                "new": _copies(each.new),
            }
            for each in difference.crosses
        ],
        "notes": list(difference.notes),
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "what": change.what,
        "old": change.old or None,
        "new": change.new or None,
        "names": list(change.ops),
        "note": change.note or None,
        "where": change.where,
        "rules": list(change.rules),
    }


def _copies(copies: Copies) -> dict[str, int]:
    return {"copies": copies.copies, "bytes": copies.bytes, "unknown": copies.unknown}
