"""Without TensorFlow, logs and baselines are judged, and other commands fail in one line.

Its import is blocked here. Each change has these tests in `tox run -e bare`, where it is not
installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.commands import Ran, run_apart

import placement_checks

pytestmark = pytest.mark.nightly

HOME = Path(placement_checks.__file__).parents[1]
_BLOCKED = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in ("tensorflow", "keras", "grpc", "google.protobuf"):
            return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
_NEEDED = (
    "is required, but is not installed; pip install 'placement_checks[tensorflow]', or the "
    "build of TensorFlow that you use, such as a nightly"
)
LOG = """\
w: (VariableV2): /job:localhost/replica:0/task:0/device:CPU:0
tower_0/y: (MatMul): /job:localhost/replica:0/task:0/device:GPU:0
tower_1/y: (MatMul): /job:localhost/replica:0/task:0/device:GPU:1
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HOME)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)


def write(folder: Path) -> None:
    (folder / "good.log").write_text(LOG)
    (folder / "bad.log").write_text(LOG.replace("CPU:0", "GPU:1"))
    (folder / "train.py").write_text("def build(num_gpus): pass\n")


def python(code: str, *arguments: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCKED + code, *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def command(*arguments: str) -> Ran:
    return python("from placement_checks.cli import main; main()", *arguments)


WITHOUT = {
    "log good.log": (0, "/device:GPU:1"),
    "verify good.log --rule variables-on-host --rule no-idle-device --gpus 2": (0, "2 kept"),
    "verify bad.log --rule variables-on-host": (1, "w sits on /device:GPU:1"),
    "verify bad.log --format html": (1, "<!DOCTYPE html>"),
    "diff good.log bad.log": (1, "/gpu:1"),
    "rules": (0, "no-fallback"),
    "explain no-fallback": (0, "allow_soft_placement"),
    "schema verify": (0, '"$schema"'),
    "completion bash": (0, "_placement_checks_completion"),
}
WITH = [
    "verify train.py",
    "verify train.py:build",
    "verify good.log --graph train.py:build",
    "verify good.log --reference train.py:build",
    "place train.py:build",
    "time train.py:build --reference train.py:build",
    "diff good.log train.py:build",
    "explain w train.py:build",
]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Ran]:
    """The ends of these commands."""
    folder = tmp_path_factory.mktemp("commands")
    write(folder)
    return run_apart([*WITHOUT, *WITH], folder, _BLOCKED, ENVIRONMENT)


@pytest.mark.parametrize("arguments", WITHOUT)
def test_commands_that_need_no_tensorflow(ended: Mapping[str, Ran], arguments: str) -> None:
    ran, (status, expected) = ended[arguments], WITHOUT[arguments]

    assert (ran.status, ran.err) == (status, "")
    assert expected in ran.out


@pytest.mark.parametrize("arguments", WITH)
def test_commands_that_need_tensorflow_fail_in_one_line(
    ended: Mapping[str, Ran], arguments: str
) -> None:
    ran = ended[arguments]

    assert (ran.status, ran.err) == (2, f"placement-checks: tensorflow {_NEEDED}\n")


def test_doctor_names_the_fix() -> None:
    ran = command("doctor")

    (line,) = (line for line in ran.out.splitlines() if line.startswith("missing"))
    assert line.split(maxsplit=2)[1:] == [
        "tensorflow",
        "is not installed: only logs and baselines can be checked; pip install "
        "'placement_checks[tensorflow]', or the build of TensorFlow that you use, such as a "
        "nightly",
    ]
    assert (ran.status, ran.err) == (1, "")


def test_several_programs_that_need_tensorflow() -> None:
    Path("pyproject.toml").write_text(
        "[[tool.placement_checks.programs]]\ntarget = 'train.py:build'\n"
        "[[tool.placement_checks.programs]]\ntarget = 'good.log'\n"
        "[[tool.placement_checks.programs]]\ntarget = 'train.py'\n"
    )

    ran = command("verify", "--rule", "variables-on-host")

    assert (ran.status, ran.err) == (2, f"placement-checks: tensorflow {_NEEDED}\n")
    assert "good.log" in ran.out


def test_a_missing_target_is_reported_first() -> None:
    ran = command("verify", "trian.py:build")

    assert ran.status == 2
    assert ran.err.startswith("placement-checks: trian.py")


def test_tests_of_logs() -> None:
    Path("test_log.py").write_text(
        "import pytest\n"
        "from placement_checks import assert_variables_on_host, read_logs\n"
        "\n"
        "def test_good():\n"
        "    assert_variables_on_host(read_logs(['good.log']).placement())\n"
        "\n"
        "def test_program(place):\n"
        "    place('train.py:build')\n"
        "\n"
        "def test_import():\n"
        "    from placement_checks import watch\n"
    )

    ran = python("import pytest; pytest.main(['-p', 'no:cacheprovider', '--placement-gpus=2'])")

    assert "2 failed, 1 passed" in ran.out
    assert f"InputError: tensorflow {_NEEDED}" in ran.out
    message = (
        "ModuleNotFoundError: placement_checks.watch needs TensorFlow, which is not installed; "
    )
    assert f"{message}pip install 'placement_checks[tensorflow]'" in ran.out
