from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Run

from placement_checks.cli import doctor
from placement_checks.core.checkup import (
    Answer,
    Check,
    Checkup,
    ComparedProgram,
    GpuComparison,
    OpDifference,
)

LIMITED = Checkup(
    [
        Check("placer", "ok", "started"),
        Check("isolation", "limited", "no network namespace", "allow user namespaces"),
    ]
)
BROKEN = Checkup([Check("tensorflow", "missing", "is not installed", "pip install tensorflow")])


@pytest.mark.parametrize(
    ("checkup", "status", "text"),
    [
        (
            LIMITED,
            0,
            "ok       placer     started\n"
            "limited  isolation  no network namespace; allow user namespaces\n"
            "\n"
            "Programs can be checked here, with limits: see isolation.\n",
        ),
        (
            BROKEN,
            1,
            "missing  tensorflow  is not installed; pip install tensorflow\n"
            "\n"
            "Programs cannot be checked here, or only in part: see tensorflow.\n",
        ),
        (
            Checkup(LIMITED.checks[:1]),
            0,
            "ok       placer  started\n\nPrograms can be checked here.\n",
        ),
    ],
)
def test_the_report(
    run: Run, monkeypatch: pytest.MonkeyPatch, checkup: Checkup, status: int, text: str
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: checkup)

    ran = run("doctor")

    assert (ran.status, ran.out, ran.err) == (status, text, "")


def test_json_into_a_file(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: BROKEN)

    ran = run("doctor", "--format", "json")
    into_file = run("doctor", "--format", "json", "--output", tmp_path / "report.json")

    assert (ran.status, into_file.status, into_file.out) == (1, 1, "")
    assert (tmp_path / "report.json").read_text() == ran.out
    document = json.loads(ran.out)
    assert document["can_check"] is False
    assert document["checks"] == [
        {
            "check": "tensorflow",
            "state": "missing",
            "found": "is not installed",
            "fix": "pip install tensorflow",
        }
    ]


def test_an_argument_is_a_usage_error(run: Run) -> None:
    ran = run("doctor", "train.py")

    assert (ran.status, ran.out) == (2, "")
    assert "placement-checks doctor --help" in ran.err


CPU, GPU = (f"/job:localhost/replica:0/task:0/device:{kind}:0" for kind in ("CPU", "GPU"))
COMPARISON = GpuComparison(
    "2 NVIDIA A100 (compute capability 8.0)",
    [
        ComparedProgram("towers", "A tower on each GPU.", "same", 100, 99),
        ComparedProgram(
            "strings",
            "Strings on a GPU.",
            "different",
            12,
            12,
            [OpDifference("StringJoin", "StringJoin", CPU, GPU, executed=False)],
        ),
        ComparedProgram(
            "unpinned",
            "No requested devices.",
            "different",
            39,
            39,
            [OpDifference(f"op_{i}", "Mul", GPU, CPU, executed=True) for i in range(7)],
        ),
        ComparedProgram("xla", "XLA.", "failed", reason="its process was ended by SIGSEGV"),
        ComparedProgram("nccl", "NCCL.", "skipped", reason="needs 2 physical GPUs"),
    ],
    [
        Answer("nodes are placed alike", "different", "8 of 150 ops of 3 programs"),
        Answer("times are alike", "not answered", "measure it"),
    ],
)
TEXT = """\
ok       placer     started
limited  isolation  no network namespace; allow user namespaces

Programs can be checked here, with limits: see isolation.

Predictions for 2 GPUs, compared with 2 NVIDIA A100 (compute capability 8.0):

same       towers    99 of 100 ops
different  strings   12 of 12 ops, 1 on other devices than predicted
           StringJoin (StringJoin): predicted /device:CPU:0, placed on /device:GPU:0
different  unpinned  39 of 39 ops, 7 on other devices than predicted
           op_0 (Mul): predicted /device:GPU:0, executed on /device:CPU:0
           op_1 (Mul): predicted /device:GPU:0, executed on /device:CPU:0
           op_2 (Mul): predicted /device:GPU:0, executed on /device:CPU:0
           op_3 (Mul): predicted /device:GPU:0, executed on /device:CPU:0
           op_4 (Mul): predicted /device:GPU:0, executed on /device:CPU:0
           and 2 more, in --format json
failed     xla       its process was ended by SIGSEGV
skipped    nccl      needs 2 physical GPUs

Assumptions of predictions:

different     nodes are placed alike
              8 of 150 ops of 3 programs
not answered  times are alike
              measure it

3 of 4 programs did not run as predicted. Please report this machine with the output of \
--format json.
"""


def test_the_comparison_with_gpus(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: LIMITED)
    monkeypatch.setattr(doctor, "compare_with_gpus", lambda **_: COMPARISON)

    text = run("doctor", "--gpus")
    document = json.loads(run("doctor", "--gpus", "--format", "json").out)

    assert (text.status, text.out) == (1, TEXT)
    assert document["can_check"] is True
    assert document["gpus"]["programs"][1]["differences"] == [
        {
            "op": "StringJoin",
            "type": "StringJoin",
            "predicted": CPU,
            "found": GPU,
            "executed": False,
        }
    ]


def test_a_machine_without_gpus_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement_checks.verification.gpu_comparison.local_gpus", lambda: 0)

    ran = run("doctor", "--gpus")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "placement-checks: this machine has no GPU that this process may use; run this on a "
        "machine with an NVIDIA GPU; one GPU is enough\n"
    )


def test_simulated_needs_gpus(run: Run) -> None:
    ran = run("doctor", "--simulated")

    assert (ran.status, ran.err) == (
        2,
        "placement-checks: --simulated requires --gpus; add --gpus\n",
    )
