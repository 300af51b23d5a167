"""Writes a report as the JSON document of `verify` or of `diff --since`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TextIO

from msgspec import UNSET, Meta, UnsetType

from placement_checks.core.devices import RunDevices
from placement_checks.core.placement import Placer
from placement_checks.core.results import EvidenceKind, Finding, Report, State, Verdict
from placement_checks.report.commands.since import SinceDocument
from placement_checks.report.common.baseline import DifferenceObject
from placement_checks.report.common.json import (
    VERSION,
    Count,
    ErrorObject,
    FailedDocument,
    JsonObject,
    UnknownSizes,
    Versions,
    to_json,
)
from placement_checks.report.formats import Format
from placement_checks.report.outcome import Outcome, PytestOutcome, PytestResult


class FindingObject(JsonObject):
    object: Annotated[str, Meta(description="The op, variable or device with the fault.")]
    op: Annotated[str, Meta(description="The type of the op; empty for a device.")]
    evidence: Annotated[EvidenceKind, Meta(description="The evidence for the finding.")]
    where: Annotated[
        str | None,
        Meta(
            description="The line to look at: a file relative to the current directory, and a "
            "line number."
        ),
    ]
    path: Annotated[list[str], Meta(description="The ops that show the fault, in order.")]
    message: Annotated[str, Meta(description="The fault, with all names.")]
    consequence: Annotated[
        str, Meta(description="The consequence for the training, or an empty text.")
    ]
    fix: Annotated[str, Meta(description="The fix.")]
    frames: Annotated[
        list[str],
        Meta(
            description="The user's lines that built the ops, the outermost caller first and the "
            "line to look at last."
        ),
    ]
    device_line: Annotated[
        str | None,
        Meta(description="The line of the with tf.device(…) that requested the device."),
    ]
    follows: Annotated[
        str | None,
        Meta(description="The rule with the root cause of this finding; null for a root cause."),
    ]
    doubt: Annotated[
        bool,
        Meta(description="Whether this may be intended. A doubt does not break the rule."),
    ]
    known: Annotated[
        str | None,
        Meta(description="The library with this known behavior, such as Keras 3."),
    ]
    others: Annotated[
        list[str],
        Meta(
            description="The other objects with the same known behavior, which is reported once."
        ),
    ]

    @classmethod
    def from_finding(cls, finding: Finding) -> Self:
        return cls(
            object=finding.object,
            op=finding.op,
            evidence=finding.evidence,
            where=finding.where,
            path=list(map(str, finding.path)),
            message=finding.message,
            consequence=finding.consequence,
            fix=finding.fix,
            frames=list(finding.frames),
            device_line=finding.device_line,
            follows=finding.follows,
            doubt=finding.is_doubt,
            known=finding.known or None,
            others=list(finding.others),
        )


class ErrorFigure(JsonObject):
    """The difference between the arrays of a variable."""

    variable: str
    state: Literal["equal", "differs", "noise", "too-coarse"]
    ratio: Annotated[
        float | None,
        Meta(
            description="The ratio of the found values to the expected values, by least squares."
        ),
    ]
    error: Annotated[
        float | None,
        Meta(description="The largest difference, in eps of the largest expected value."),
    ]
    limit: Annotated[
        float | None,
        Meta(description="The limit of the error, in eps of the largest expected value."),
    ]


class TransferFigure(JsonObject, rename={"source": "from"}):
    """The copies of a step from one device to another."""

    source: str
    to: str
    copies: Count
    bytes: Count
    unknown: UnknownSizes


class ShardFigure(JsonObject):
    """The variables of a parameter server."""

    task: str
    variables: Count
    bytes: Count


class ObjectiveFigure(JsonObject):
    """The loss terms that the updates of some variables minimize."""

    variables: Annotated[list[str], Meta(min_length=1)]
    objective: Annotated[
        str,
        Meta(
            description="The weighted sum of loss terms, such as mean + 0.05 L2Loss(variable). A "
            "mean is a mean over the whole batch."
        ),
    ]
    expected: Annotated[
        str | None,
        Meta(description="The same for one GPU or the reference; null if it is unknown."),
    ]


# The figures of each rule of this package. Rules of other packages may have any figures.
FIGURES: Mapping[str, type[JsonObject]] = {
    "gradients-equal": ErrorFigure,
    "weights-equal": ErrorFigure,
    "transfer-budget": TransferFigure,
    "shards-balanced": ShardFigure,
    "gradients-averaged": ObjectiveFigure,
}
_FIGURES_BY_RULE = {
    "allOf": [
        {
            "if": {"properties": {"rule": {"const": rule}}},
            "then": {"properties": {"figures": {"items": {"$ref": f"#/$defs/{figure.__name__}"}}}},
        }
        for rule, figure in FIGURES.items()
    ]
}


class RuleObject(JsonObject):
    rule: str
    state: State
    evidence: Annotated[
        EvidenceKind | None, Meta(description="The strongest evidence for the verdict.")
    ]
    reason: Annotated[str | None, Meta(description="The reason why the rule was not checked.")]
    note: Annotated[str | None, Meta(description="Further information on the verdict.")]
    findings: list[FindingObject]
    figures: (
        Annotated[
            list[dict[str, Any]],
            Meta(min_length=1, description="The measured values."),
        ]
        | UnsetType
    ) = UNSET

    @classmethod
    def from_verdict(cls, verdict: Verdict) -> Self:
        return cls(
            rule=verdict.rule,
            state=verdict.state,
            evidence=verdict.evidence,
            reason=verdict.reason,
            note=verdict.note,
            findings=list(map(FindingObject.from_finding, verdict.findings)),
            figures=list(map(dict, verdict.figures)) or UNSET,
        )


class ProgramObject(JsonObject, kw_only=True):
    test: (
        Annotated[
            str,
            Meta(description="The pytest test that judged the program, with --placement-report."),
        ]
        | UnsetType
    ) = UNSET
    outcome: Annotated[PytestOutcome, Meta(description="The outcome of the test.")] | UnsetType = (
        UNSET
    )
    program: str
    machine: Annotated[
        str | None,
        Meta(description="The devices of the machine, in the syntax of --machine."),
    ]
    placer: Annotated[Placer | None, Meta(description="The placer that assigned the devices.")]
    devices: Annotated[
        RunDevices | None, Meta(description="The devices on which the program was run.")
    ]
    notes: list[str]
    rules: Annotated[
        list[Annotated[RuleObject, Meta(extra_json_schema=_FIGURES_BY_RULE)]],
        Meta(
            description="The rules, in the order of all reports: the rule with the root cause to "
            "fix first is the first one."
        ),
    ]
    baseline: (
        Annotated[
            DifferenceObject,
            Meta(
                description="The difference from the baseline, if the program was compared with "
                "one."
            ),
        ]
        | UnsetType
    ) = UNSET

    @classmethod
    def from_report(cls, report: Report, test: PytestResult | None) -> Self:
        """Returns the object, with the test that judged the program, if there is one."""
        placement, measurement = report.evidence.placement, report.evidence.measurement
        return cls(
            test=test.name if test else UNSET,
            outcome=test.outcome if test else UNSET,
            program=placement.program,
            machine=str(placement.machine) if placement.machine else None,
            placer=placement.placer,
            devices=measurement.devices if measurement else None,
            notes=list(report.evidence.notes),
            rules=list(map(RuleObject.from_verdict, report.verdicts)),
            baseline=UNSET
            if report.baseline is None
            else DifferenceObject.from_difference(report.baseline),
        )


_OF_A_TEST = Meta(
    extra_json_schema={"dependentRequired": {"test": ["outcome"], "outcome": ["test"]}}
)
Errors = Annotated[list[ErrorObject], Meta(min_length=2, description="All errors, if several.")]
# Both documents have `errors` only together with `error`.
ERRORS_HAVE_A_FIRST: Mapping[str, Any] = {"dependentRequired": {"errors": ["error"]}}


class VerifyDocument(JsonObject):
    """The verdicts on several programs."""

    schema: Annotated[Literal[2], VERSION]
    versions: Versions
    programs: list[Annotated[ProgramObject, _OF_A_TEST]]
    error: Annotated[ErrorObject, Meta(description="The first error.")] | UnsetType = UNSET
    errors: Errors | UnsetType = UNSET


class NothingVerified(FailedDocument):
    """The errors, if they prevented every verdict."""

    errors: Errors | UnsetType = UNSET


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes the document."""
    stream.write(to_json(document(outcome)) + "\n")


FORMAT = Format(
    write,
    "your own programs; a schema fixes the form",
    "the state `doubtful` of the rule, and `doubt` of the finding",
    ".json",
    has_errors=True,
)


def document(outcome: Outcome) -> VerifyDocument | NothingVerified | SinceDocument:
    """Returns the document."""
    if outcome.since is not None:
        return SinceDocument.from_since(outcome.since)
    errors = [ErrorObject.from_error(error) for error in outcome.errors]
    several = errors if len(errors) > 1 else UNSET
    if errors and not outcome.reports:
        return NothingVerified(schema=2, error=errors[0], errors=several)
    tests: Sequence[PytestResult | None] = outcome.tests or [None] * len(outcome.reports)
    return VerifyDocument(
        schema=2,
        versions=Versions.installed(),
        programs=[
            ProgramObject.from_report(report, test)
            for report, test in zip(outcome.reports, tests, strict=True)
        ],
        error=errors[0] if errors else UNSET,
        errors=several,
    )
