"""The messages of a verdict or finding, as text for a snapshot: a changed word is one update.

`assert messages(verdict) == snapshot`, with syrupy's fixture, compares them with a file in the
directory ``__snapshots__`` of the test. `pytest --snapshot-update` writes this file.
"""

from __future__ import annotations

from collections.abc import Iterator

from placement_checks import Finding, Verdict


def messages(result: Verdict | Finding) -> str:
    """The state, reason and note of a verdict, and the message, consequence and fix of each
    finding."""
    return "\n".join(_of_verdict(result) if isinstance(result, Verdict) else _of_finding(result))


def _of_verdict(verdict: Verdict) -> Iterator[str]:
    yield verdict.state
    if verdict.reason is not None:
        yield f"reason: {verdict.reason}"
    if verdict.note is not None:
        yield f"note: {verdict.note}"
    for finding in verdict.findings:
        yield from _of_finding(finding)


def _of_finding(finding: Finding) -> Iterator[str]:
    yield f"message: {finding.message}"
    if finding.consequence:
        yield f"consequence: {finding.consequence}"
    yield f"fix: {finding.fix}"
