"""What a verdict or a finding says, as a text for a snapshot: a changed word is one update.

`assert messages(verdict) == snapshot`, with syrupy's fixture, compares with the file of the test
in ``__snapshots__`` beside it; `pytest --snapshot-update` writes that file.
"""

from __future__ import annotations

from collections.abc import Iterator

from placement_checks import Finding, Verdict


def messages(told: Verdict | Finding) -> str:
    """The state, reason and note of a verdict; of a finding message, consequence and fix."""
    return "\n".join(_of_verdict(told) if isinstance(told, Verdict) else _of_finding(told))


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
