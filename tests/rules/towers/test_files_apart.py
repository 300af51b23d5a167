"""Ranks that write the same checkpoints, logs or summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.snapshots import messages
from support.towers import objects_of, program
from syrupy.assertion import SnapshotAssertion

from placement_checks import Placement, Verdict
from placement_checks.core.devices import Device
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

WRITERS = (SAVER, MODEL_CHECKPOINT, BACKUP, CSV_LOGGER, TENSORBOARD)


def write(path: str, writer: str = SAVER) -> FileWrite:
    return FileWrite(writer, path, f"/data/{path}", ("train.py:9", "train.py:4"))


def ranks(*writes: Sequence[FileWrite]) -> Placement:
    """Towers that are ranks, and write these files."""
    size = len(writes)
    records = [RankRecord(Rank(number, size), writes=each) for number, each in enumerate(writes)]
    gpus = [Device("rank", task=number, type="GPU", index=0) for number in range(size)]
    return program(strategy=Strategy("Horovod", gpus, ranks=records))


def objects(graph: Placement, **fields: Any) -> list[str]:
    return objects_of(FilesApart(**fields), graph)


@pytest.mark.parametrize("writer", WRITERS)
def test_all_ranks_write_one_path(writer: str, snapshot: SnapshotAssertion) -> None:
    verdict = FilesApart().judge(ranks([write("out", writer)], [write("out", writer)]))

    assert verdict.state == "broken"
    assert messages(verdict) == snapshot
    assert verdict.findings[0].where == "train.py:4"


def test_some_ranks_write_one_path() -> None:
    graph = ranks([write("a")], [write("b"), write("c")], [write("b")])

    (finding,) = FilesApart().judge(graph).findings

    assert finding.message == "ranks 1 and 2 save checkpoints to b"
    assert [device.task for device in finding.devices] == [1, 2]


def test_one_path_in_other_words() -> None:
    """The ranks name the same file in different ways."""
    other = FileWrite(SAVER, "../data/out", "/data/out")

    assert objects(ranks([write("out")], [other])) == ["out"]


@pytest.mark.parametrize(
    ("writes", "note"),
    [
        ([[write("out")], []], "1 path, written by rank 0"),
        ([[write("a")], [write("b")]], "2 paths, written by ranks 0 and 1"),
        ([[write("a"), write("b")], []], "2 paths, written by rank 0"),
        ([[write("a"), write("a", BACKUP)], []], "1 path, written by rank 0"),
    ],
)
def test_no_path_is_shared(writes: Sequence[Sequence[FileWrite]], note: str) -> None:
    assert FilesApart().judge(ranks(*writes)) == Verdict(
        "files-apart", "kept", "configuration", findings=[], note=note
    )


_PATHS = st.lists(st.lists(st.sampled_from("abcd"), unique=True), min_size=2, max_size=4)


@given(_PATHS.filter(any))
def test_a_path_is_found_if_two_ranks_write_it(paths: list[list[str]]) -> None:
    every = [path for each in paths for path in each]

    found = objects(ranks(*([write(path) for path in each] for each in paths)))

    assert sorted(found) == sorted({path for path in every if every.count(path) > 1})


@pytest.mark.parametrize("graph", [program(), ranks([], [])])
def test_nothing_is_written(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = FilesApart().judge(graph)

    assert verdict == Verdict("files-apart", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_paths_on_a_disk_of_each_rank() -> None:
    graph = ranks(*([write("local/a"), write("b")] for _ in range(2)))

    assert objects(graph, allow=("local/*",)) == ["b"]
    assert objects(graph, allow=("local/*", "b")) == []
