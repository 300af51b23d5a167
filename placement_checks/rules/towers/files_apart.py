from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from placement_checks.core.evidence import Evidence
from placement_checks.core.impact import Impact
from placement_checks.core.ranks import (
    BACKUP,
    CSV_LOGGER,
    MODEL_CHECKPOINT,
    SAVER,
    TENSORBOARD,
    FileWrite,
)
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import Rule, about, unless_allowed
from placement_checks.rules.ranks import ranks_text
from placement_checks.rules.source_lines import blame_argument
from placement_checks.util.text import plural


class _Words(NamedTuple):
    """The words of findings on a writer: the action of the ranks, its effect, and the fix."""

    action: str
    consequence: str
    fix: str


_ON_FIRST = "add {} to the callbacks of one rank: `if hvd.rank() == 0: callbacks.append(…)`"
_DAMAGED = "the ranks overwrite each other's files, so that a checkpoint may be damaged"
_WORDS = {
    SAVER: _Words(
        "save checkpoints to",
        _DAMAGED,
        "save on one rank: `if hvd.rank() == 0:`, or "
        "MonitoredTrainingSession(checkpoint_dir=directory if hvd.rank() == 0 else None)",
    ),
    MODEL_CHECKPOINT: _Words(
        "save checkpoints to", _DAMAGED, _ON_FIRST.format("tf.keras.callbacks.ModelCheckpoint")
    ),
    BACKUP: _Words(
        "back up their training in",
        "the ranks overwrite and delete each other's backup, which may be damaged",
        "give each rank a directory: tf.keras.callbacks.BackupAndRestore("
        "f'{directory}/{hvd.rank()}')",
    ),
    CSV_LOGGER: _Words(
        "log to",
        "the ranks overwrite each other's lines",
        _ON_FIRST.format("tf.keras.callbacks.CSVLogger"),
    ),
    TENSORBOARD: _Words(
        "write summaries to",
        "TensorBoard mixes the curves of the ranks, because it expects the event files of one "
        "process in a directory",
        _ON_FIRST.format("tf.keras.callbacks.TensorBoard") + ", or give each rank a directory",
    ),
}


@dataclass(frozen=True)
class FilesApart(Rule):
    """No two ranks of a Horovod program write checkpoints, logs or summaries to the same path.

    All ranks run the same program. If it saves checkpoints without a condition on the rank, every
    rank saves them, to the same files and at the same time. TensorFlow reports no error.

    The rule compares the checkpoints that the ranks save before their first training step, and
    the paths of the callbacks `ModelCheckpoint`, `BackupAndRestore`, `CSVLogger` and `TensorBoard`
    in a call of `fit`. `MonitoredTrainingSession` saves its first checkpoint before the first
    step. The rule ignores writers that may stay unused on some ranks: `FileWriter`,
    `tf.summary.create_file_writer`, subclasses of the callbacks, models with their own methods to
    save, and paths that contain a metric. If no other writer exists, the rule is not checked.

    `allow` lists paths that several ranks may write, for example because each rank is on a host
    with its own disk; a pattern such as /local/* matches several paths.
    """

    name = "files-apart"
    kind = "configuration"
    impact = Impact.TRAINING
    intended = "several ranks write these paths, each on a disk of its own"
    threads = (
        "horovod/horovod#58: all workers save in the directory of MonitoredTrainingSession",
        "apcode/tensorflow_fasttext#3: processes race to write checkpoints to the same file",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        strategy = evidence.placement.strategy
        if strategy is None or not strategy.ranks:
            return self.not_checked("the program has no ranks of Horovod")
        paths = {write.location for record in strategy.ranks for write in record.writes}
        if not paths:
            return self.not_checked(
                "no rank saves a checkpoint before its first step, or passes fit a callback "
                "that is certain to write files"
            )
        writing = [number for number, record in enumerate(strategy.ranks) if record.writes]
        return self.verdict(
            unless_allowed(_shared_paths(strategy), self.allow),
            f"{plural(len(paths), 'path')}, written by {ranks_text(writing)}",
        )


def _shared_paths(strategy: Strategy) -> Iterator[Finding]:
    by_path: dict[tuple[str, str], dict[int, FileWrite]] = defaultdict(dict)
    for number, record in enumerate(strategy.ranks):
        for write in record.writes:
            by_path[write.location, write.writer].setdefault(number, write)
    for (_, writer), writes in by_path.items():
        if len(writes) < 2:
            continue
        ranks, first = list(writes), next(iter(writes.values()))
        words = _WORDS[writer]
        yield Finding(
            **about(first.path, "configuration"),
            message=f"{ranks_text(ranks)} {words.action} {first.path}",
            devices=tuple(strategy.replicas[n] for n in ranks),
            consequence=words.consequence,
            fix=words.fix,
            frames=blame_argument(first.frames, "callbacks"),
            group_key=tuple(ranks),
        )
