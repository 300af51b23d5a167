"""Predictions compared with a machine: with CPU devices, and with GPUs of a stand-in."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gpu_truth import comparison as gpu_comparison
from gpu_truth.__main__ import lines
from gpu_truth.comparison import (
    ASSUMPTIONS,
    Answer,
    ComparedProgram,
    GpuComparison,
    OpDifference,
    compare_with_gpus,
)
from gpu_truth.machine import Observed, Worker
from gpu_truth.programs import PROGRAMS

from placement_checks.core.errors import InputError
from placement_checks.run.doctor.devices import PhysicalDevice

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
A100 = "NVIDIA A100 (compute capability 8.0)"
ON_GPU_0 = "/job:localhost/replica:0/task:0/device:GPU:0"
ON_GPU_1 = "/job:localhost/replica:0/task:0/device:GPU:1"
ON_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.fixture(scope="module")
def on_cpus() -> GpuComparison:
    return compare_with_gpus(simulated=True)


def test_predictions_for_cpu_devices_agree_with_runs_on_them(on_cpus: GpuComparison) -> None:
    compared = [program for program in on_cpus.programs if program.state != "skipped"]

    assert [each for each in compared if each.state != "same"] == []
    assert len(compared) >= 20
    coverage = {program.name: program.ops / program.predicted for program in compared}
    assert [name for name, share in coverage.items() if share < 0.6] == ["compiled_by_xla"]
    assert on_cpus.is_as_predicted


def test_cpu_devices_answer_nothing_about_gpus(on_cpus: GpuComparison) -> None:
    assert {answer.state for answer in on_cpus.answers} == {"not answered"}
    assert {each.name for each in on_cpus.programs if each.state == "skipped"} == {
        "variables_without_devices",
        "mirrored_strategy_with_nccl",
        "sums_of_nccl",
    }


def test_a_process_that_ends_is_the_result_of_its_program_alone() -> None:
    """The process has no program of this name, and ends with a traceback."""
    with Worker(simulated=True) as worker:
        first = worker.run("nonsense")
        second = worker.run("refused")

    assert first == Observed(error="its process ended with status 1")
    assert second.error == ""
    assert second.placed["no_kernel"][0] == "StringJoin"


Change = Callable[[str, Observed], Observed]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., GpuComparison]:
    """Compare with GPUs on which all programs run as predicted, except for a change."""

    def call(
        change: Change = lambda _, observed: observed, gpus: int = 1, others: str = "CPU"
    ) -> GpuComparison:
        class StandIn:
            def run(self, name: str) -> Observed:
                return change(name, as_predicted(name))

        @contextlib.contextmanager
        def stand_in(**_: Any) -> Iterator[StandIn]:
            yield StandIn()

        monkeypatch.setattr(gpu_comparison, "local_gpus", lambda: 1)
        monkeypatch.setattr(gpu_comparison, "_predict", lambda program, _: predicted(program.name))
        monkeypatch.setattr(gpu_comparison, "Worker", stand_in)
        devices = [PhysicalDevice(kind, "") for kind in others.split()]
        devices += [PhysicalDevice("GPU", A100)] * gpus
        monkeypatch.setattr(gpu_comparison, "physical_devices", lambda: devices)
        return compare_with_gpus()

    return call


_predict = vars(gpu_comparison)["_predict"]


@cache
def predicted(name: str) -> Any:
    return _predict(PROGRAMS[name], False)


REFUSED = "InvalidArgumentError: Cannot assign a device for operation"
FACTS: Mapping[str, Mapping[str, Any]] = {
    "mirrored_strategy": {"hints": ["ring"]},
    "mirrored_strategy_with_nccl": {"hints": []},
    "sums_of_nccl": {"units": 1.0},
    "variables_without_devices": {
        "variables": {
            **dict.fromkeys(("float32", "float16", "int64", "bool"), ON_GPU_0),
            "int32": ON_CPU,
        }
    },
}


@cache
def as_predicted(name: str) -> Observed:
    program = PROGRAMS[name]
    prediction = predicted(name) if program.is_predicted else None
    if name == "refused":
        return Observed(error=f"{REFUSED} no_kernel: …")
    placed = dict(prediction.devices) if prediction else {}
    if name == "compiled_by_xla":
        placed = {op: at for op, at in placed.items() if not op.startswith("PartitionedCall")}
        placed["PartitionedCall"] = ("PartitionedCall", ON_GPU_0)
        placed["PartitionedCall_1"] = ("PartitionedCall", ON_GPU_1)
    executed = {op: device for op, (_, device) in placed.items()}
    return Observed(placed, executed if program.kind == "graph" else {}, dict(FACTS.get(name, {})))


def answer_to(comparison: GpuComparison, part: str) -> Answer:
    (found,) = (answer for answer in comparison.answers if part in answer.assumption)
    return found


def program_of(comparison: GpuComparison, name: str) -> ComparedProgram:
    (found,) = (program for program in comparison.programs if program.name == name)
    return found


def test_a_gpu_that_agrees_with_all_predictions(compare: Callable[..., GpuComparison]) -> None:
    comparison = compare()

    assert comparison.devices == "2 logical GPUs of 1 NVIDIA A100 (compute capability 8.0)"
    assert comparison.is_as_predicted
    assert [(answer.state, answer.reason) for answer in comparison.answers[2:7]] == [
        ("seen", "TensorFlow lists only CPU and GPU devices"),
        ("seen", "float32, float16, int64, bool and int32 are on their predicted devices"),
        (
            "seen",
            "mirrored_strategy uses CollectiveReduceV2 on /device:GPU:0 and CollectiveReduceV2 on "
            "/device:GPU:1 with ring hint",
        ),
        ("not answered", "sums_of_nccl: needs 2 physical GPUs"),
        ("seen", "2 calls, each on the same device as all its ops"),
    ]
    assert [answer.state for answer in comparison.answers] == [
        *["seen"] * 5,
        "not answered",
        *["seen"] * 3,
        "not answered",
    ]
    assert re.fullmatch(r"[\d,]+ ops of 17 programs", comparison.answers[0].reason)


def test_two_gpus_answer_for_nccl(compare: Callable[..., GpuComparison]) -> None:
    comparison = compare(gpus=2)

    assert comparison.devices == "2 NVIDIA A100 (compute capability 8.0)"
    assert answer_to(comparison, "NCCL and CPU").reason == (
        "the largest error is 1.0 units in the last place"
    )
    assert "NcclAllReduce on /device:GPU:0" in answer_to(comparison, "`MirroredStrategy`").reason
    assert not [program for program in comparison.programs if program.state == "skipped"]


def moved(program: str, op: str, device: str, *, executed: bool = False) -> Change:
    """The program runs with an op on another device."""

    def change(name: str, observed: Observed) -> Observed:
        if name != program:
            return observed
        if executed:
            return replace(observed, executed={**observed.executed, op: device})
        kind, _ = observed.placed[op]
        return replace(observed, placed={**observed.placed, op: (kind, device)})

    return change


@pytest.mark.parametrize(
    ("program", "op", "device", "executed", "answer"),
    [
        ("towers", "tower_1/matmul", ON_GPU_0, False, "a session on real GPUs"),
        ("strings", "StringJoin", ON_GPU_0, False, "GPUs have the kernels"),
        ("unpinned", "matmul", ON_CPU, True, "rewrites after placement"),
    ],
)
def test_an_op_on_another_device(
    compare: Callable[..., GpuComparison],
    program: str,
    op: str,
    device: str,
    executed: bool,
    answer: str,
) -> None:
    comparison = compare(moved(program, op, device, executed=executed))

    kind, expected = predicted(program).devices[op]
    assert program_of(comparison, program).state == "different"
    assert program_of(comparison, program).differences == [
        OpDifference(op, kind, expected, device, executed)
    ]
    assert answer_to(comparison, answer).state == "different"
    assert answer_to(comparison, answer).reason.startswith("1 of ")
    assert not comparison.is_as_predicted


def with_facts(program: str, **facts: Any) -> Change:
    return lambda name, observed: replace(observed, facts=facts) if name == program else observed


@pytest.mark.parametrize(
    ("change", "answer", "reason"),
    [
        (
            with_facts("variables_without_devices", variables={"int32": ON_GPU_0}),
            "eager code puts",
            "int32 is on /device:GPU:0, predicted on /device:CPU:0",
        ),
        (
            with_facts("sums_of_nccl", units=900.0),
            "NCCL and CPU",
            "the largest error is 900.0 units in the last place",
        ),
        (
            moved("compiled_by_xla", "PartitionedCall_1", ON_GPU_0),
            "ops that XLA compiles",
            "ops of PartitionedCall_1 are predicted on other devices than their call",
        ),
        (
            moved("mirrored_strategy", "CollectiveReduceV2/part_1", ON_CPU),
            "`MirroredStrategy`",
            "mirrored_strategy uses CollectiveReduceV2 on /device:CPU:0, CollectiveReduceV2 on "
            "/device:GPU:0 and CollectiveReduceV2 on /device:GPU:1, predicted CollectiveReduceV2 "
            "on /device:GPU:0 and CollectiveReduceV2 on /device:GPU:1",
        ),
        (
            lambda name, observed: (
                Observed(error="InternalError: no memory in /opt/x/y")
                if name == "towers"
                else observed
            ),
            "all kernels run",
            "towers: InternalError: no memory in …/y",
        ),
    ],
)
def test_an_assumption_that_does_not_hold(
    compare: Callable[..., GpuComparison], change: Change, answer: str, reason: str
) -> None:
    comparison = compare(change, gpus=2)

    assert answer_to(comparison, answer) == Answer(
        answer_to(comparison, answer).assumption, "different", reason
    )
    assert not comparison.is_as_predicted


def test_other_devices_of_the_machine(compare: Callable[..., GpuComparison]) -> None:
    found = answer_to(compare(others="CPU XLA_GPU"), "MIG slices")

    assert (found.state, found.reason) == ("different", "this machine also has XLA_GPU")


def test_a_program_that_runs_although_a_refusal_was_predicted(
    compare: Callable[..., GpuComparison],
) -> None:
    def change(name: str, observed: Observed) -> Observed:
        return Observed({"no_kernel": ("StringJoin", ON_GPU_0)}) if name == "refused" else observed

    found = program_of(compare(change), "refused")

    assert (found.state, found.reason) == (
        "different",
        "ran here, but the prediction refuses Const, no_kernel and no_kernel/inputs_1",
    )


def test_a_refusal_that_was_not_predicted(compare: Callable[..., GpuComparison]) -> None:
    def change(name: str, observed: Observed) -> Observed:
        return Observed(error=f"{REFUSED} w: no kernel\nmore") if name == "towers" else observed

    comparison = compare(change)

    found = program_of(comparison, "towers")
    assert (found.state, found.reason) == ("different", f"refused here: {REFUSED} w: no kernel")
    assert answer_to(comparison, "a session on real GPUs") == Answer(
        comparison.answers[0].assumption,
        "different",
        f"towers: refused here: {REFUSED} w: no kernel",
    )


def test_a_function_on_two_devices_is_not_compared() -> None:
    predicted = gpu_comparison._Predicted({"f/x": ("Add", ON_GPU_0), "y": ("Add", ON_GPU_0)})
    observed = Observed(
        {"f/_1/x": ("Add", ON_CPU), "f/_2/x": ("Add", ON_GPU_0), "y": ("Add", ON_GPU_0)}
    )

    assert gpu_comparison._match(predicted, observed) == {"y": ON_GPU_0}


def test_a_log_without_the_ops_is_not_agreement(compare: Callable[..., GpuComparison]) -> None:
    def change(_: str, observed: Observed) -> Observed:
        return replace(observed, placed={})

    comparison = compare(change)

    assert program_of(comparison, "towers").state == "different"
    assert not comparison.is_as_predicted


def test_a_prefix_of_all_names_is_found() -> None:
    devices = {"a/x": ("Add", ON_GPU_0), "b": ("Mul", ON_GPU_1), "c": ("Sub", ON_CPU)}
    observed = Observed(
        {
            "run/call/a/x": ("Add", ON_CPU),
            "run/call/b": ("Mul", ON_GPU_1),
            "run/call/c": ("Exp", ON_CPU),
            "c": ("Sub", ON_GPU_0),
        }
    )
    matched = gpu_comparison._match(gpu_comparison._Predicted(devices), observed)

    assert matched == {"a/x": ON_CPU, "b": ON_GPU_1}


def test_without_a_gpu_it_is_an_error() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tools.gpu_truth"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    assert "error: this machine has no GPU that this process may use; run this on a " in ran.stderr


def test_tensorflow_that_finds_no_gpu(compare: Callable[..., GpuComparison]) -> None:
    with pytest.raises(InputError, match="TensorFlow finds no GPU; install the libraries"):
        compare(gpus=0)


def test_the_page_has_all_assumptions() -> None:
    page = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")

    _, _, after = page.partition("| assumption | affects |\n|---|---|\n")
    table, _, _ = after.partition("\n\n")

    assert re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE) == [
        (text, affects) for text, affects, _ in ASSUMPTIONS
    ]


GRAPH_ERROR = """InvalidArgumentError: Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
  (0) INVALID_ARGUMENT:  shape mismatch
     [[{{node CollectiveReduceV2}}]]"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("RuntimeError: no memory\nmore", "RuntimeError: no memory"),
        ("ValueError: these differ:\n  a and b", "ValueError: these differ: a and b"),
        (
            GRAPH_ERROR,
            "InvalidArgumentError: Graph execution error: (0) INVALID_ARGUMENT:  shape mismatch",
        ),
        ("", ""),
    ],
)
def test_the_reason_of_a_failed_program_is_one_line(error: str, line: str) -> None:
    assert gpu_comparison._first_line(error) == line


def test_the_report() -> None:
    cpu, gpu = ON_CPU, ON_GPU_0
    moved_ops = [
        OpDifference("StringJoin", "StringJoin", cpu, gpu, executed=False),
        OpDifference("x", "Mul", gpu, cpu, executed=True),
    ]
    comparison = GpuComparison(
        A100,
        [
            ComparedProgram("towers", "A tower on each GPU.", "same", 100, 99),
            ComparedProgram("strings", "Strings on a GPU.", "different", 12, 12, moved_ops),
            ComparedProgram("nccl", "NCCL.", "skipped", reason="needs 2 physical GPUs"),
        ],
        [Answer("nodes are placed alike", "different", "2 of 150 ops of 3 programs")],
    )

    assert list(lines(comparison))[1:] == [
        "",
        "same       towers   99 of 100 ops",
        "different  strings  12 of 12 ops, 2 on other devices than predicted",
        "           StringJoin (StringJoin): predicted /device:CPU:0, placed on /device:GPU:0",
        "           x (Mul): predicted /device:GPU:0, executed on /device:CPU:0",
        "skipped    nccl     needs 2 physical GPUs",
        "",
        "Assumptions of predictions:",
        "",
        "different     nodes are placed alike",
        "              2 of 150 ops of 3 programs",
        "",
        "1 of 2 programs ran as predicted.",
    ]
