"""An invalid path is reported before TensorFlow is loaded or a placer is started."""

from __future__ import annotations

import os

import pytest
from support.commands import Ran, run_apart

# Ends a process that loads TensorFlow: this process, or one that it starts.
NO_TENSORFLOW = "raise SystemExit('TensorFlow is loaded')\n"

FILE = "nosuch.py: there is no such file"
CASE = (
    "nosuch.npz is not a saved case: there is no such file; name the .npz file that a failed "
    "comparison saved"
)
NAMELESS = "its argument 50 has no name; write build(NAME=VALUE), with the name of the parameter"
CALLS = {
    "verify nosuch.py:build": FILE,
    "verify nosuch.py:build elsewhere.py:build": "elsewhere.py: there is no such file",
    "verify train.py:build --reference nosuch.py:build": FILE,
    "verify train.py:build --reference train.py:build --batch nosuch.py:batch": FILE,
    "verify train.py:build --reference train.py:build --batch nosuch.npz": CASE,
    "verify a.log --graph nosuch.py:build": FILE,
    "verify nosuch.module:build": "nosuch.module:build: there is no module 'nosuch.module'; run "
    "it from the root of the project, or name the file: path/to/file.py:function",
    "verify nosuch.py -- --num_gpus=2": FILE,
    "verify -- --num_gpus=2": "-- --num_gpus=2 is an argument for a program, but no program is "
    "named; name it first: placement-checks verify train.py -- --num_gpus=2",
    "verify a.log -- --num_gpus=2": "-- --num_gpus=2 is for a program, but a.log is a placement "
    "log; name the program that printed it: --graph train.py",
    "verify train.py --let 3=4": "--let 3=4 is not of the form NAME=VALUE; write it "
    "like --let NUM_GPUS={gpus}",
    "verify train.py(depth=50)": "train.py(depth=50) names no function, and only a function "
    "takes arguments in parentheses; write train.py:build(depth=50), with the name of the "
    "function",
    "verify train.py:build(50)": f"train.py:build(50): {NAMELESS}",
    "verify train.py:build --reference train.py:build(50)": f"train.py:build(50): {NAMELESS}",
    "verify train.py:build --reference train.py:build --batch train.py:build(50)": "train.py:"
    f"build(50): {NAMELESS}",
    "place train.py:build(50)": f"train.py:build(50): {NAMELESS}",
    "verify folder": "folder is a directory without a saved_model.pb; name a SavedModel",
    "verify pipe.pb": "pipe.pb is a pipe or device, not a file; check the path",
    "place nosuch.pb": "nosuch.pb: there is no such file; check the path",
    "diff train.py:build nosuch.py:build": FILE,
    "diff nosuch.py:build a.log": FILE,
    "time nosuch.py:build --reference train.py:build": FILE,
    "time train.py:build --reference nosuch.py:build": FILE,
    "time train.py:build --reference train.py:build --batch nosuch.npz": CASE,
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """The ends of all commands."""
    folder = tmp_path_factory.mktemp("wrong_paths")
    (folder / "tensorflow").mkdir()
    (folder / "tensorflow" / "__init__.py").write_text(NO_TENSORFLOW)
    (folder / "train.py").write_text("def build():\n    pass\n")
    (folder / "a.log").write_text("a: (Const): /job:localhost/replica:0/task:0/device:CPU:0\n")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe.pb")
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return run_apart(CALLS, folder, environment=environment)


@pytest.mark.parametrize("call", CALLS)
def test_missing_files_are_reported_without_loading_tensorflow(
    call: str, ended: dict[str, Ran]
) -> None:
    ran = ended[call]

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.splitlines()[-1] == f"placement-checks: {CALLS[call]}"
    assert "TensorFlow is loaded" not in ran.err
