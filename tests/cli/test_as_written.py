"""Programs in the style of their time, verified with the command line of their users."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pytest
from support.commands import Run

NUMBERS = ("gradients-equal", "weights-equal")
TRAINED = "train"  # a directory that one of them deletes


class Row(NamedTuple):
    """The expected verdicts on a program, by rule.

    Attributes:
        typed: the arguments of ``verify``.
        broken: the broken rules.
        kept: rules that must be kept, not unchecked.
    """

    typed: str
    broken: Collection[str] = ()
    kept: Collection[str] = ()


# The batches are small, because computation takes the time.
PROGRAMS = [
    Row("mnist_towers.py --v1 -- --num_gpus={gpus} --batch_size=16", kept=NUMBERS),
    # Its summaries show the last tower. Its moving averages race with its update.
    Row(
        "cifar10_towers.py --v1 -- --num_gpus={gpus} --batch_size=8 --data_dir=data"
        f" --train_dir={TRAINED}",
        {"loss-of-all-towers"},
        NUMBERS,
    ),
    # Its towers have separate variables: 64 instead of 32. No run can compare them with one GPU.
    Row(
        "autoencoder_naive.py --v1 --let num_gpus={gpus} --let batch_size=2 "
        f"{' '.join(f'--without {rule}' for rule in NUMBERS)}",
        {"variables-shared", "variables-on-host", "names-portable", "loss-of-all-towers"},
    ),
    Row("autoencoder_towers.py --v1 --let NUM_GPUS={gpus} --let BATCH_SIZE=2", kept=NUMBERS),
    Row("make_parallel.py --v1 -- --num_gpus {gpus}", kept=NUMBERS),
    Row(
        "make_parallel.py --v1 -- --num_gpus {gpus} --uncolocated",
        {"gradients-colocated", "averaging-on-host"},
        NUMBERS,
    ),
    Row("devices_and_servers.py --v1 --gpus 1", kept={"placeable", "variables-on-host"}),
    Row(
        "devices_and_servers.py --v1 --gpus 1 -- --int32_on_gpu",
        {"placeable", "no-fallback"},
    ),
    Row(
        "devices_and_servers.py --v1 --gpus 1 -- --int32_on_gpu --soft_placement",
        {"no-fallback"},
        {"placeable"},
    ),
    Row(
        "ps_workers.py --v1 -- --job_name=worker --num_gpus={gpus}",
        kept={"variables-on-host", "every-tower-counts", "shards-balanced"},
    ),
    # Its alternating steps race if they run as one step.
    Row("ways/gan.py --v1 --let N_GPUS={gpus}", kept={"every-tower-counts"}),
    Row(
        "ways/slim_train.py --v1 -- --num_clones={gpus}",
        kept={"update-ops-run", "gradients-equal"},
    ),
    # Keras computes gradients, and creates the variables of optimizers, on no requested device.
    Row(
        "ways/keras_fit.py --v1 -- --num_gpus={gpus}",
        {"variables-on-host", "gradients-colocated", "averaging-on-host"},
        NUMBERS,
    ),
]


@pytest.fixture
def programs(fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A writable copy of their directory, which is the current one."""
    pytest.importorskip("tf_slim")
    folder = tmp_path / "as_written"
    shutil.copytree(fixtures / "as_written", folder)
    monkeypatch.chdir(folder)
    return folder


def judged(run: Run, typed: str) -> dict[str, str]:
    """The state of each rule; the report names the judged variables."""
    ours, _, theirs = typed.partition(" -- ")
    options = ("--without", "towers-overlap", "--format", "json")
    ran = run("verify", *ours.split(), *options, "--", *theirs.split())
    assert ran.out, ran.err
    (program,) = json.loads(ran.out)["programs"]
    has_reference_variables = "keras" not in typed
    assert has_reference_variables == (
        "its variables are reference variables (VariableV2), as in TensorFlow 1"
        in program["notes"]
    )
    return {rule["rule"]: rule["state"] for rule in program["rules"]}


# The autoencoder takes the longest; tests/fixtures/test_pairs.py compares a smaller one.
MARKS = {"ps_workers.py": pytest.mark.smoke, "autoencoder_towers.py": pytest.mark.nightly}


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=MARKS.get(row.typed.split()[0], ())) for row in PROGRAMS],
    ids=lambda row: row.typed.replace(" --v1", ""),
)
def test_a_program_of_the_field_is_verified(programs: Path, run: Run, row: Row) -> None:
    checkpoint = programs / TRAINED / "model.ckpt-700000.index"
    checkpoint.parent.mkdir()
    checkpoint.write_text("a week of training")

    states = judged(run, row.typed)

    assert {rule for rule, state in states.items() if state == "broken"} == set(row.broken)
    assert {rule for rule in row.kept if states[rule] != "kept"} == set()
    assert checkpoint.read_text() == "a week of training"
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("ps_workers.py --v1 -- --job_name=ps", "this is a parameter server"),
        (
            "ways/never_trains.py --v1",
            "ended without a training step: it opened 1 session with 11 runs, "
            "but updated no trainable variable",
        ),
    ],
)
def test_programs_that_cannot_be_analyzed(
    programs: Path, run: Run, typed: str, message: str
) -> None:
    ours, _, theirs = typed.partition(" -- ")

    ran = run("verify", *ours.split(), "--", *theirs.split())

    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err
