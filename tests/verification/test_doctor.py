"""Each check of ``placement-checks doctor`` on machines that lack something."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forked import run_forked

from placement_checks.core.checkup import Check
from placement_checks.placer import placing
from placement_checks.placer.worker import main
from placement_checks.placer.worker.client import PlacerProcess, PlacerUnavailable, Request
from placement_checks.run.doctor import devices
from placement_checks.run.doctor.devices import PhysicalDevice, physical_devices
from placement_checks.util.child import Ended
from placement_checks.verification import doctor


def named(name: str) -> Check:
    """A check of this machine, by its name."""
    (found,) = (check for check in doctor.examine().checks if check.name == name)
    return found


def test_all_parts_work_here() -> None:
    checkup = doctor.examine()

    assert [check.name for check in checkup.checks if check.state == "missing"] == []
    assert checkup.status == 0
    assert [check.name for check in checkup.checks][:10] == [
        "python",
        "memory",
        "files",
        "tensorflow",
        "keras",
        "placer",
        "isolation",
        "programs",
        "numbers",
        "GPUs",
    ]
    private = {str(Path.home()), str(Path(__file__).parents[2]), getpass.getuser()} - {"root"}
    assert not any(name in check.found for check in checkup.checks for name in private)


@pytest.mark.parametrize(
    ("isolation", "variable", "state", "found", "fix"),
    [
        ("own-network", "", "ok", "the placer has a network of its own", ""),
        (
            "filtered",
            "",
            "ok",
            "no network namespace, but the port of the placer is closed to other users",
            "",
        ),
        (
            "open",
            "PLACEMENT_CHECKS_SHARED_NETWORK",
            "limited",
            "PLACEMENT_CHECKS_SHARED_NETWORK is set, and PLACEMENT_CHECKS_OPEN_PORT is set: "
            "other users can reach the placer",
            "unset PLACEMENT_CHECKS_OPEN_PORT",
        ),
        (None, "", "limited", "unknown, because the placer has ended", ""),
    ],
)
def test_the_isolation_is_read_from_the_process(
    monkeypatch: pytest.MonkeyPatch,
    isolation: str | None,
    variable: str,
    state: str,
    found: str,
    fix: str,
) -> None:
    monkeypatch.setattr(PlacerProcess, "isolation", isolation)
    if variable:
        monkeypatch.setenv(variable, "1")

    assert doctor._isolation() == Check("isolation", state, found, fix)  # type: ignore[arg-type]


IN_A_HARDENED_SYSTEM = """
import sys

from support.system_calls import NAMESPACES, SOCKET_FILTERS, refuse

try:
    refuse(*(NAMESPACES, SOCKET_FILTERS)[: int(sys.argv[1])])
except OSError as error:
    print("skip:", error)
    raise SystemExit(0)

from placement_checks.verification import doctor

for name, examine in (("placer", doctor._placer), ("isolation", doctor._isolation)):
    check = doctor._tried(name, examine)
    print(check.state, check.found, sep=": ")
"""


@pytest.mark.parametrize(
    ("refused", "found"),
    [
        (1, "ok: no network namespace, but the port of the placer is closed to other users"),
        (2, "missing: the placer: its port could not be closed to other users ("),
    ],
)
def test_the_isolation_in_a_hardened_system(refused: int, found: str) -> None:
    """The placer starts with fewer system calls: no namespaces, then no filters of sockets too."""
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tests, tests.parent)))}
    environment.pop(main.SHARED_NETWORK, None)

    ran = run_forked(["-c", IN_A_HARDENED_SYSTEM, str(refused)], environment=environment)

    if ran.stdout.startswith("skip:"):
        pytest.skip(ran.stdout)
    assert any(line.startswith(found) for line in ran.stdout.splitlines()), ran


def test_a_build_without_gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoKernels(PlacerProcess):
        def send(self, request: Request) -> Any:
            raise PlacerUnavailable("a build without GPU kernels", "install another")

    monkeypatch.setattr(placing, "phantom", NoKernels({}))
    monkeypatch.setattr("placement_checks.tf.startup.build_info", lambda: {"is_cuda_build": False})
    checkup = doctor.examine()
    checks = {check.name: check for check in checkup.checks}

    assert checks["tensorflow"].state == "limited"
    assert checks["tensorflow"].found.endswith(", a build without GPU kernels")
    assert checks["placer"] == Check(
        "placer", "missing", "a build without GPU kernels", "install another"
    )
    assert "isolation" not in checks
    assert checks["numbers"].state == "ok"
    assert checkup.status == 1


def test_a_read_only_cache_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")

    assert doctor._files() == Check(
        "files",
        "limited",
        "the cache directory is read-only: failed comparisons are not saved",
        "set XDG_CACHE_HOME to a writable directory",
    )


def test_no_directory_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise FileNotFoundError("no usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)

    assert doctor._files() == Check(
        "files",
        "missing",
        "no writable directory for temporary files",
        "set TMPDIR to a writable directory",
    )


@pytest.mark.parametrize(
    ("version", "state"), [("2.14.1", "limited"), ("2.22.0-rc1", "limited"), ("2.15.1", "ok")]
)
def test_other_versions_are_untested(
    monkeypatch: pytest.MonkeyPatch, version: str, state: str
) -> None:
    monkeypatch.setattr(doctor, "versions", lambda: {"tensorflow": version})

    check = doctor._tensorflow()

    assert check.state == state
    assert check.found.startswith(f"{version}, with GPU kernels for CUDA ")
    assert check.found.endswith("this package is tested with 2.15 to 2.21") == (state != "ok")


def test_keras_2_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"tf_keras": "2.19.0"}[name])

    assert doctor._keras().found == "tf_keras 2.19.0, Keras 2, chosen by TF_USE_LEGACY_KERAS"


def test_little_memory_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 700_000_000)

    assert doctor._memory().state == "limited"
    assert doctor._memory().found.startswith("700.0 MB free, ")


def test_a_check_that_fails_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Check:
        raise ZeroDivisionError("in /opt/private/x.py")

    monkeypatch.setattr(doctor, "_programs", fail)

    assert named("programs") == Check(
        "programs",
        "missing",
        "ZeroDivisionError: in …/x.py",
        "set PLACEMENT_CHECKS_DEBUG=1 for the traceback, and report it",
    )


def ended() -> list[PhysicalDevice]:
    raise Ended(-6, "was ended by SIGABRT", "")


CPU = PhysicalDevice("CPU", "")
A100 = PhysicalDevice("GPU", "NVIDIA A100 (compute capability 8.0)")


@pytest.mark.parametrize(
    ("found", "state", "message"),
    [
        (
            lambda: [CPU, A100, A100],
            "ok",
            "2 NVIDIA A100 (compute capability 8.0), driver 550.54.15",
        ),
        (lambda: [CPU, A100], "limited", "TensorFlow finds 1 of 2 GPUs (driver 550.54.15)"),
        (
            ended,
            "limited",
            "a process that started the GPUs was ended by SIGABRT (driver 550.54.15)",
        ),
    ],
)
def test_gpus_that_tensorflow_finds(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    found: Callable[[], list[PhysicalDevice]],
    state: str,
    message: str,
) -> None:
    monkeypatch.setattr(doctor, "present_gpus", lambda: 2)
    monkeypatch.setattr(doctor, "local_gpus", lambda: 2)
    monkeypatch.setattr(doctor, "_DRIVER_VERSION", tmp_path / "version")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
        "GCC version:  gcc version 11.4.0\n"
    )
    monkeypatch.setattr(devices, "physical_devices", found)

    check = doctor._gpus()

    assert (check.state, check.found) == (state, message)
    assert ("CUDA_VISIBLE_DEVICES=-1" in check.fix) == (state == "limited")


def test_devices_are_listed_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    assert list(physical_devices()) == [CPU]


def test_a_process_that_ends_while_it_lists_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "nonsense")

    with pytest.raises(Ended) as ended:
        physical_devices()
    assert ended.value.how == "ended with status 1"


def test_hidden_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "present_gpus", lambda: 2)
    monkeypatch.setattr(doctor, "local_gpus", lambda: 0)

    assert doctor._gpus().found == "CUDA_VISIBLE_DEVICES hides 2 GPUs; none are needed"


@pytest.mark.parametrize(("growth", "fix"), [("true", False), ("", True)])
def test_the_growth_of_gpu_memory(monkeypatch: pytest.MonkeyPatch, growth: str, fix: bool) -> None:
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", growth)

    assert bool(doctor._gpu_memory().fix) == fix
