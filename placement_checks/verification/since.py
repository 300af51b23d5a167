"""Compares programs with themselves at a git revision.

Both sides run in child processes, even if the program is a function, because one process cannot
import two revisions of a module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from placement_checks.baseline.compare import compare_placements
from placement_checks.capture.child_process.early import early_captures
from placement_checks.core.errors import (
    ConfigError,
    InputError,
    MissingTargetError,
    PlacementError,
    UsageError,
    as_error,
)
from placement_checks.core.results import Report, Verdict
from placement_checks.core.revisions import Numbers, ProgramChange, Since
from placement_checks.core.settings import DEFAULT_LIMIT, Settings
from placement_checks.core.target import RowsToRead, SourceTree
from placement_checks.rules.requirements import Need
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.targets.forms import parse_target
from placement_checks.targets.revisions import checked_out, with_missing_data
from placement_checks.util.progress import step, track
from placement_checks.util.resources import gc_paused
from placement_checks.util.text import format_factor, listed, plural
from placement_checks.verification import configuration
from placement_checks.verification.baseline_rules import with_rules
from placement_checks.verification.judging import judge, verify
from placement_checks.verification.policy import RUNS, evidence_used, rows_used
from placement_checks.verification.running import with_revision
from placement_checks.verification.targets import MOST_ANNOUNCED, announce, gather
from placement_checks.verification.training_change import (
    compare_training,
    without_proved_objectives,
)


@dataclass(frozen=True)
class Job:
    """A program to compare.

    Attributes:
        target: the target in the working tree, as the user writes it.
        settings: its settings in the working tree.
        old_target: the target at the revision.
        old_settings: its settings at the revision; None for the same settings.
    """

    target: str
    settings: Settings
    old_target: str
    old_settings: Settings | None = None


def compare_since(
    revision: str,
    targets: Sequence[str],
    call: Settings,
    *,
    old_target: str | None = None,
    links: Sequence[str] = (),
    numbers: bool = False,
    captures: int | None = None,
) -> Since:
    """Compare programs with themselves at a revision.

    A program at the revision has the settings of its entry in the ``pyproject.toml`` of the
    revision, if there is one. The machine is always the machine of the working tree.

    Args:
        revision: any name of a commit, such as ``main``.
        targets: the programs; by default all programs of ``pyproject.toml``.
        call: the settings of the call.
        old_target: the target of the only program at the revision, if it has changed.
        links: paths of uncommitted data; the copy of the repository gets links to these paths.
        numbers: whether to run both sides of each program, and to compare gradients and weights.
        captures: the largest number of captures at the same time; None for the number of cores.

    Raises:
        UsageError: no program is named, two programs are the same, or the revision does not exist.
        InputError: the revision cannot be checked out, or lacks all of the programs.
    """
    jobs = _jobs(targets, call, configuration.load(Path.cwd()), old_target)
    with checked_out(revision, links) as tree:
        old = _old_configuration(tree, Path.cwd())
        found = compare_jobs(
            [
                replace(job, old_settings=_old_settings(job, call, old, is_named=bool(targets)))
                for job in jobs
            ],
            tree,
            numbers=numbers,
            captures=captures,
        )
        if not targets:
            gone = _no_longer_configured(jobs, old)
            found = replace(found, programs=[*found.programs, *gone])
    if not found.errors and all(program.difference is None for program in found.programs):
        names = listed([job.target for job in jobs])
        raise InputError(
            names,
            f"{'is' if len(jobs) == 1 else 'are'} not in {revision}, so there is nothing to "
            "compare",
            "check the program alone with placement-checks verify, or name its old target with "
            "--old",
            is_predicate=True,
        )
    return found


def _old_configuration(tree: SourceTree, here: Path) -> configuration.Config:
    try:
        with _within(tree, here):
            return configuration.load(Path.cwd())
    except ConfigError as error:
        raise _at_revision(error, tree, here) from None


def compare_jobs(
    jobs: Sequence[Job], tree: SourceTree, *, numbers: bool = False, captures: int | None = None
) -> Since:
    """Compare programs with a copy of their repository.

    An error in a program does not end the comparison of the other programs.

    Args:
        jobs: the programs.
        tree: the copy at the revision.
        numbers: whether to run both sides of each program too.
        captures: the largest number of captures at the same time; None for the number of cores.
    """
    here = Path.cwd()
    programs: list[ProgramChange] = []
    errors: list[PlacementError] = []
    with early_captures(captures):  # all captures end before the copy is removed
        for number, job in enumerate(track(jobs, "program")):
            for each in jobs[number : number + MOST_ANNOUNCED]:
                _announce(each, tree, here, numbers=numbers)
            try:
                programs.append(_compare(job, tree, here, numbers=numbers))
            except KeyboardInterrupt:
                raise
            except BaseException as fault:  # user code may raise more than Exception
                errors.append(as_error(job.target, fault))
    for program in programs:
        for report in (program.old, program.new):
            errors += report.errors if report else ()
    notes = []
    if tree.pointers:
        lfs = plural(len(tree.pointers), "file")
        notes.append(
            f"{lfs} of {tree.revision} in Git LFS not downloaded: {listed(tree.pointers)}"
        )
    return Since(tree.revision, tree.commit, programs, errors, notes)


def _jobs(
    targets: Sequence[str],
    call: Settings,
    configured: configuration.Config,
    old_target: str | None,
) -> Sequence[Job]:
    """The programs to compare with their settings in the working tree."""
    if old_target is not None and len(targets) != 1:
        raise UsageError(
            "--old",
            "needs exactly one TARGET, the program that had the old name",
            f"name it: placement-checks diff --since REV --old {old_target} TARGET",
            is_predicate=True,
        )
    jobs = [
        Job(target, settings, old_target or target)
        for target, settings in configured.select(
            targets, call, "placement-checks diff --since REV"
        )
    ]
    seen: set[tuple[str, tuple[str, ...], object, object]] = set()
    for job in jobs:
        own = job.settings
        key = (job.target, own.args, own.gpus, own.machine)
        if key in seen:
            raise UsageError(
                job.target,
                "is listed twice with the same arguments and machine",
                "remove one of the two entries, or name one program: diff --since REV TARGET",
                is_predicate=True,
            )
        seen.add(key)
    return jobs


def _old_settings(
    job: Job, call: Settings, old: configuration.Config, *, is_named: bool
) -> Settings:
    """The settings of a program at the revision, on the machine of the working tree."""
    entries = [settings for text, settings in old.programs if text == job.old_target]
    same = [each for each in entries if each.args == job.settings.args] or entries
    if len(same) == 1:
        own = old.complete(call, same[0])
    elif is_named:
        own = old.complete_for(job.old_target, call)
    else:
        return job.settings
    new = job.settings
    return replace(own, gpus=new.gpus, machine=new.machine, horovod=new.horovod)


def _announce(job: Job, tree: SourceTree, here: Path, *, numbers: bool) -> None:
    """Let the captures of both sides start early. `_compare` reports their errors."""
    with contextlib.suppress(PlacementError):
        _announce_side(job.target, job.settings, numbers=numbers)
    with contextlib.suppress(PlacementError), _within(tree, here):
        _announce_side(job.old_target, job.old_settings or job.settings, tree, numbers=numbers)


def _announce_side(
    target: str, settings: Settings, tree: SourceTree | None = None, *, numbers: bool
) -> None:
    needs = {Need.SINGLE_GPU} if _is_built_for_one_gpu(settings) else set()
    announce(
        parse_target(target),
        _with_limit(settings),
        needs,
        tree,
        rows=_rows(settings, numbers=numbers),
    )


def _compare(job: Job, tree: SourceTree, here: Path, *, numbers: bool) -> ProgramChange:
    with step("in the working tree"):
        new = _report(job.target, job.settings, numbers=numbers)
    try:
        with step(f"at {tree.revision}"), _within(tree, here):
            old = _report(job.old_target, job.old_settings or job.settings, tree, numbers=numbers)
    except MissingTargetError as error:
        if job.old_target != job.target:
            raise _at_revision(error, tree, here) from None
        return ProgramChange(job.target, None, new)
    except PlacementError as error:
        raise _at_revision(error, tree, here) from None
    placements = old.evidence.placement, new.evidence.placement
    with gc_paused():
        training = compare_training(*placements, tree.revision)
        difference = compare_placements(*placements, tree.revision)
        difference = without_proved_objectives(difference, training)
    new = replace(new, baseline=with_rules(difference, new.verdicts))
    return ProgramChange(
        job.target,
        old,
        new,
        training,
        _numbers(job, old, new, tree.revision) if numbers else None,
    )


_RUN_RULES = (GradientsEqual.name, WeightsEqual.name)


def _numbers(job: Job, old: Report, new: Report, revision: str) -> Numbers:
    """Run both sides, and compare their gradients and weights."""
    if not old.evidence.program or not new.evidence.program:
        return Numbers("not-checked", "a saved graph cannot be run")
    name = f"{job.old_target} at {revision}"
    with step(f"running {job.target}"):
        evidence = with_revision(new.evidence, old.evidence, name, job.settings.batch)
        verdicts = verify(evidence, only=_RUN_RULES).verdicts
    for verdict in verdicts:
        if verdict.error is not None:
            raise verdict.error
    by_rule = {verdict.rule: verdict for verdict in verdicts}
    gradients, weights = (by_rule[rule] for rule in _RUN_RULES)
    if "broken" in (gradients.state, weights.state):
        parts = [_differing(gradients, "gradients"), _differing(weights, "weights")]
        return Numbers("different", "; ".join(parts))
    if gradients.state == "not-checked":
        return Numbers("not-checked", gradients.reason or "")
    after = weights.note or f"not checked: {weights.reason}"
    return Numbers("equal", f"gradients: {gradients.note}; weights: {after}")


def _differing(verdict: Verdict, kind: str) -> str:
    """The variables that differ; for gradients also the ratio of the first variable."""
    if verdict.state == "not-checked":
        return f"{kind} not checked: {verdict.reason}"
    names = list(dict.fromkeys(finding.object for finding in verdict.findings))
    if not names:
        return f"{kind} equal"
    ratios = {figure["variable"]: figure["ratio"] for figure in verdict.figures}
    ratio = ratios.get(names[0]) if kind == "gradients" else None
    times = "" if ratio is None else f" ({names[0]} by a factor of {format_factor(ratio)})"
    return f"{kind} differ for {listed(names)}{times}"


def _report(
    target: str, settings: Settings, tree: SourceTree | None = None, *, numbers: bool
) -> Report:
    """Place a program in a child process, and judge it."""
    parsed = parse_target(target)
    if not parsed.is_code and parsed.kind != "graph":
        raise InputError(
            target,
            "is a placement log, and git revisions are compared by running programs",
            "name the program, or compare two logs: placement-checks diff OLD NEW",
            is_predicate=True,
        )
    evidence = gather(
        parsed,
        _with_limit(settings) if parsed.is_code else settings,
        for_one_gpu=_is_built_for_one_gpu(settings),
        rows=_rows(settings, numbers=numbers),
        tree=tree if parsed.is_code else None,
    )
    return judge(evidence)


def _rows(settings: Settings, *, numbers: bool) -> RowsToRead:
    """The rows to read. Without numbers, the rules on runs have nothing to check."""
    used = evidence_used(settings)
    return "all" if numbers else rows_used(used - RUNS)


def _is_built_for_one_gpu(settings: Settings) -> bool:
    """Whether a selected rule uses the build of the program for one GPU."""
    return Need.SINGLE_GPU in evidence_used(settings)


def _with_limit(settings: Settings) -> Settings:
    """The settings with a time limit, because a function with a limit runs in a child process."""
    return replace(settings, limit=DEFAULT_LIMIT if settings.limit is None else settings.limit)


@contextlib.contextmanager
def _within(tree: SourceTree, here: Path) -> Iterator[None]:
    """Run a block in the same directory of the copy as ``here`` in the repository.

    Raises:
        InputError: the revision lacks the directory.
    """
    folder = tree.counterpart(here.resolve())
    if not folder.is_dir():
        raise InputError(
            str(folder.relative_to(tree.root)),
            f"does not exist at {tree.revision}",
            "run the command from the top directory of the repository",
            is_predicate=True,
        )
    with contextlib.chdir(folder):
        yield


def _at_revision(error: PlacementError, tree: SourceTree, here: Path) -> PlacementError:
    """The error of a program at the revision, with the revision instead of temporary paths."""
    if isinstance(error, InputError):
        error = with_missing_data(error, tree, here)

    def without_root(text: str) -> str:
        return text.replace(f"{tree.root}/", "").replace(str(tree.root), str(tree.repository))

    return error.copy(
        type(error),
        object=f"{without_root(error.object)} at {tree.revision}",
        message=without_root(error.message),
        fix=without_root(error.fix),
        details=without_root(error.details),
    )


def _no_longer_configured(
    jobs: Sequence[Job], old: configuration.Config
) -> Iterator[ProgramChange]:
    """Yields the programs that pyproject.toml lists at the revision only."""
    present = {job.target for job in jobs}
    for text in dict.fromkeys(text for text, _ in old.programs):
        if text not in present:
            yield ProgramChange(text, None, None)
