"""Real logs of TensorFlow 0.12 to 2.21, compared with the counts of an independent program."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from placement_checks.logs import Record, read_logs, text_of

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
TRUTHS = sorted(LOGS.rglob("*.truth.json"))


def name(truth: Path) -> str:
    return str(truth.relative_to(LOGS)).removesuffix(".truth.json")


@pytest.mark.parametrize("truth", TRUTHS, ids=name)
def test_logs_are_read_exactly(truth: Path) -> None:
    counted = json.loads(truth.read_text())

    log = read_logs([str(truth).replace(".truth.json", ".log")])

    assert log.counts == {Record(*words): count for *words, count in counted["ops"]}
    assert (log.records, log.unread) == (counted["records"], "")


@pytest.mark.parametrize("truth", TRUTHS, ids=name)
def test_a_log_can_be_written_and_read_back(truth: Path, tmp_path: Path) -> None:
    log = read_logs([str(truth).replace(".truth.json", ".log")])
    file = tmp_path / "again.log"
    file.write_text("".join(text_of(record) + "\n" for record in log.counts for _ in range(2)))

    assert read_logs([str(file)]).counts == dict.fromkeys(log.counts, 2)


def test_logs_of_all_promised_versions_exist() -> None:
    versions = {tuple(map(int, truth.parent.name.split("."))) for truth in TRUTHS}

    assert len([version for version in versions if version < (2,)]) >= 5
    assert len([version for version in versions if version >= (2,)]) >= 5


def test_stdout_and_stderr_in_two_files_are_one_run() -> None:
    both = [str(LOGS / "2.20.0" / f"session.{stream}.log") for stream in ("stdout", "stderr")]

    apart, together = read_logs(both), read_logs([str(LOGS / "2.20.0" / "session.log")])

    assert (apart.counts, apart.records) == (together.counts, together.records)


def test_form_a_of_version_0_11(tmp_path: Path) -> None:
    """No wheel that old exists; 0.12 printed the same lines, with the op type added."""
    folder = LOGS / "0.12.1"
    text = (folder / "session.tty.log").read_bytes()
    old = tmp_path / "session.log"
    old.write_bytes(re.sub(rb": \(\w+\)(?:: )?(?=/job:)", b": ", text))
    counted = json.loads((folder / "session.tty.truth.json").read_text())

    log = read_logs([str(old)])

    assert log.counts == {
        Record(node, None, device): count for node, _, device, count in counted["ops"]
    }
    assert (log.records, log.torn) == (counted["records"], 0)
