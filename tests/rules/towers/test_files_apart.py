"""Ranks that write the same checkpoints, logs or summaries."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from support.towers import program
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Placement
from placement_checks.core.devices import Device
from placement_checks.core.frames import Frame
from placement_checks.core.ranks import (
    BACKUP,
    CSV_LOGGER,
    MODEL_CHECKPOINT,
    SAVER,
    TENSORBOARD,
    FileWrite,
    Rank,
    RankRecord,
)
from placement_checks.core.strategies import Strategy
from placement_checks.rules.towers.files_apart import FilesApart


def write(path: str, writer: str = SAVER) -> FileWrite:
    frames = (Frame("train.py", 9, "main"), Frame("train.py", 4, "save"))
    return FileWrite(writer, path, f"/data/{path}", frames)


def ranks(*writes: Sequence[FileWrite]) -> Placement:
    """Towers that are ranks, and write these files."""
    size = len(writes)
    records = [RankRecord(Rank(number, size), writes=each) for number, each in enumerate(writes)]
    gpus = [Device("rank", task=number, type="GPU", index=0) for number in range(size)]
    return program(strategy=Strategy("Horovod", gpus, ranks=records))


LOCAL = ranks(*([write("local/a"), write("b")] for _ in range(2)))


CASES = {
    **{
        f"a path that all ranks write, by {writer}": broken(
            ranks([write("out", writer)], [write("out", writer)])
        )
        for writer in (SAVER, MODEL_CHECKPOINT, BACKUP, CSV_LOGGER, TENSORBOARD)
    },
    "some ranks write one path": broken(
        ranks([write("a")], [write("b"), write("c")], [write("b")])
    ),
    "ranks name one file by different paths": broken(
        ranks([write("out")], [FileWrite(SAVER, "../data/out", "/data/out")])
    ),
    "one rank writes": kept(ranks([write("out")], [])),
    "each rank writes its own path": kept(ranks([write("a")], [write("b")])),
    "one rank writes two paths": kept(ranks([write("a"), write("b")], [])),
    "one rank writes a path twice": kept(ranks([write("a"), write("a", BACKUP)], [])),
    "no ranks": not_checked(program()),
    "ranks that write nothing": not_checked(ranks([], [])),
    "one of two paths is allowed": broken(LOCAL, allow=("local/*",)),
    "both paths are allowed": kept(LOCAL, allow=("local/*", "b")),
}

test_verdicts = verdicts(FilesApart, CASES)


@given(
    st.lists(st.lists(st.sampled_from("abcd"), unique=True), min_size=2, max_size=4).filter(any)
)
def test_a_path_is_found_if_two_ranks_write_it(paths: list[list[str]]) -> None:
    every = [path for each in paths for path in each]

    verdict = FilesApart().judge(ranks(*([write(path) for path in each] for each in paths)))

    assert sorted(finding.object for finding in verdict.findings) == sorted(
        {path for path in every if every.count(path) > 1}
    )
