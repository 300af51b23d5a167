"""``place --tensorboard``: the graph as an event file, with the devices that the placer gave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.commands import Run

PROGRAM = """
import tensorflow as tf

def build(num_gpus):
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"):
            tf.add(1.0, 2.0, name=f"on_{i}")
    tf.add(1.0, 2.0, name="anywhere")
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    os.utime("train.py", (0, 0))
    Path("outputlog").write_text("a: (Add): /job:localhost/replica:0/task:0/device:GPU:1\n")


def test_the_output_names_file_and_viewer(run: Run) -> None:
    import tensorflow as tf

    ran = run("place", "train.py:build", "--tensorboard", "my logs")

    (file,) = Path("my logs").iterdir()
    assert ran.status == 0
    written, look = ran.out.splitlines()
    assert written.startswith(f"{file}: ")
    assert written.endswith(" ops on 2 devices")
    assert look == "tensorboard --logdir 'my logs'"
    *_, event = tf.compat.v1.train.summary_iterator(str(file))
    nodes = {node.name: node for node in tf.compat.v1.GraphDef.FromString(event.graph_def).node}
    assert nodes["on_1"].device.endswith("/device:GPU:1")
    assert nodes["anywhere"].device.endswith("/device:GPU:0")  # where nothing was asked for


@pytest.mark.parametrize(
    ("target", "folder", "error"),
    [
        ("train.py:build", "train.py", "--tensorboard train.py: File exists; name a writable "
         "directory"),
        ("train.py:build", "/proc/logs", "--tensorboard /proc/logs: No such file or directory; "
         "name a writable directory"),
        ("outputlog", "logs", "outputlog is a placement log, which has no graph; name the "
         "program that printed it"),
    ],
)  # fmt: skip
def test_write_errors_are_reported(run: Run, target: str, folder: str, error: str) -> None:
    ran = run("place", target, "--tensorboard", folder)

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.splitlines()[-1] == f"placement-checks: {error}"
    assert not Path("logs").exists()


@pytest.mark.parametrize("other", ["--transfers", "--format=html"])
def test_only_the_event_file_is_written(run: Run, other: str) -> None:
    ran = run("place", "train.py:build", "--tensorboard", "logs", other)

    assert ran.status == 2
    assert ran.err == (
        "placement-checks: --tensorboard writes only the graph; omit the other option, "
        "or run the command twice\n"
    )
