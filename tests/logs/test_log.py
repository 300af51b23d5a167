"""The content of a log, the reason for an empty log, and the verdicts on logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.graphs import op, placement

from placement_checks import Device, Evidence, Machine, verify
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.missing import Missing
from placement_checks.logs import Log, Record, read_logs
from placement_checks.logs.reading import Tally

HOST = "/job:localhost/replica:0/task:0/device"
CPU, GPU, GPU_1 = f"{HOST}:CPU:0", f"{HOST}:GPU:0", f"{HOST}:GPU:1"
PREFIX = "2018-10-21 18:30:00.140665: I tensorflow/core/common_runtime/"
MAPPING = (
    "Device mapping:\n"
    f"{GPU} -> device: 0, name: Tesla K40c, pci bus id: 0000:02:00.0\n"
    f"{GPU_1} -> device: 1, name: Tesla K40c, pci bus id: 0000:03:00.0\n"
)


def read(text: str) -> Log:
    tally = Tally()
    tally.add(b"\n" + text.encode())
    return tally.log("a.log")


def states(log: Log, machine: Machine | None = None) -> dict[str, str]:
    return {verdict.rule: verdict.state for verdict in verify(log.placement(machine)).verdicts}


def test_doubled_records_count_once_and_repeats_each_time() -> None:
    twice = f"{PREFIX}placer.cc:54] x: (Add): {CPU}\nx: (Add): {CPU}\n" * 2
    log = read(twice + f"x: (Add): {CPU}\n{PREFIX}placer.cc:54] y: (Add): {CPU}\n")

    assert log.counts == {Record("x", "Add", CPU): 3, Record("y", "Add", CPU): 1}
    assert log.records == 6


def test_all_records_of_a_line_are_counted() -> None:
    log = read(f'"x: (Add): {CPU}\\ny: (Mul): {CPU}\\n"\n' * 2)

    assert log.counts == {Record("x", "Add", CPU): 2, Record("y", "Mul", CPU): 2}


def test_two_spellings_of_a_device_are_equal() -> None:
    log = read(f"x: (Add): {CPU}\nx: (Add): /job:localhost/replica:0/task:0/cpu:0\n")

    assert log.counts == {Record("x", "Add", CPU): 2}


def test_a_node_placed_again_elsewhere_is_reported() -> None:
    log = read(f"x: (Add): {CPU}\ny: (Add): {CPU}\nx: (Add): {GPU}\n")

    assert log.moved == {"x": [Record("x", "Add", CPU), Record("x", "Add", GPU)]}


def test_eager_ops_of_one_type_are_not_moved() -> None:
    log = read(f"Executing op Add in device {CPU}\nExecuting op Add in device {GPU}\n")

    assert log.moved == {}


def test_a_node_of_two_types_on_one_device_is_not_moved() -> None:
    log = read(f"x: (Add): {CPU}\nx: (Mul): {CPU}\n")

    assert log.moved == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the log is empty: TensorFlow prints placements to the process's own stdout"),
        ("\n  \n", "the log is empty"),
        ("loss: (0.1, 0.2)\n", "nothing in it comes from TensorFlow's runtime"),
        ("ckpt: (best) /home/me/ckpt-1\n", "nothing in it comes from TensorFlow's runtime"),
        ("step 1, loss 0.3\n", "nothing in it comes from TensorFlow's runtime"),
        (MAPPING, "device placement was logged, but nothing was placed: no"),
        (
            f"{PREFIX}direct_session.cc:9] starting\n",
            "TensorFlow logged records, but no placements: log_",
        ),
        (
            "I0000 00:00:17.1 9 cpu_feature_guard.cc:227] AVX\n",
            "TensorFlow logged records, but no placements: log_",
        ),
        (
            "2018-10-21 18:30:00.140665: W tensorflow/a/b.cc:9] hm\n",
            "only warnings and errors are logged: TF_CPP",
        ),
        (
            "W0000 00:00:17.1 9 gpu_device.cc:2] no GPU\n",
            "only warnings and errors are logged: TF_CPP",
        ),
        (
            "E0000 00:00:17.1 9 gpu_device.cc:2] no GPU\n",
            "only warnings and errors are logged: TF_CPP",
        ),
    ],
)
def test_a_log_without_records_has_a_reason(text: str, reason: str) -> None:
    log = read(text)

    assert log.reason is not None
    assert log.reason.startswith(reason)
    assert (log.counts, log.records) == ({}, 0)
    with pytest.raises(InputError, match=r"a\.log has no placements"):
        log.placement()


def test_the_machine_has_listed_and_used_devices() -> None:
    log = read(MAPPING + f"x: (Add): /job:ps/replica:0/task:1/cpu:0\ny: (Add): {HOST}:XLA_GPU:0\n")

    assert str(log.placement().machine) == "localhost*1: gpu*2, xla_gpu*1; ps/task:1: cpu*1"
    assert log.devices == {Device.parse(GPU), Device.parse(GPU_1)}


@pytest.mark.parametrize(
    "line",
    [
        f"{GPU_1} -> device: 1, name: Tesla K40c\n",
        f"Created TensorFlow device ({GPU_1} with 11439 MB memory) -> physical GPU (device: 1)\n",
        f"Created device {GPU_1} with 38000 MB memory:  -> device: 1, name: NVIDIA A100\n",
        "Creating TensorFlow device (/gpu:1) -> (device: 1, name: Tesla K40c)\n",
        f"{GPU_1} -> device: 1\n{HOST.removesuffix('device')}deviGPU:7 -> device: 0\n",
    ],
)
def test_devices_are_listed_in_any_form(line: str) -> None:
    assert read(f"{PREFIX}gpu/gpu_device.cc:9] {line}").devices == {Device.parse(GPU_1)}


def test_variables_are_known_by_the_type_of_their_op() -> None:
    log = read(
        MAPPING
        + f"w: (VarHandleOp): {GPU}\nv: (VariableV2): {CPU}\na: (MatMul): {GPU_1}\n"
        + f"b: (MatMul): {GPU}\n"
    )

    report = verify(log.placement())

    checked = {
        verdict.rule: verdict.state
        for verdict in report.verdicts
        if verdict.state != "not-checked"
    }
    assert checked == {"variables-on-host": "broken", "no-idle-device": "kept"}
    (finding,) = next(verdict for verdict in report.verdicts if verdict.state == "broken").findings
    assert finding.message == "variable w sits on /device:GPU:0, not on /device:CPU:0"
    assert finding.object == "w"


def test_a_variable_placed_twice_is_judged_twice() -> None:
    log = read(MAPPING + f"w: (VarHandleOp): {CPU}\nw: (VarHandleOp): {GPU}\nb: (Add): {GPU_1}\n")

    (finding,) = verify(log.placement(), only=["variables-on-host"]).verdicts[0].findings

    assert (finding.object, [each.short for each in finding.devices]) == ("w", ["/device:GPU:0"])
    assert list(log.placement().ops) == ["w", f"w (VarHandleOp) {GPU}", "b"]


def test_a_node_of_several_types_has_an_op_for_each() -> None:
    log = read(
        f"w: (Const): {CPU}\nw: (VarHandleOp): {GPU}\nw: (Identity): {GPU}\nb: (Add): {GPU_1}"
    )

    (finding,) = verify(log.placement(), only=["variables-on-host"]).verdicts[0].findings

    assert finding.object == "w"


def test_eager_variables_have_a_device_without_a_name() -> None:
    log = read(f"Executing op VarHandleOp in device {GPU}\nExecuting op MatMul in device {GPU}\n")

    (finding,) = verify(log.placement(), only=["variables-on-host"]).verdicts[0].findings

    assert (finding.object, [each.short for each in finding.devices]) == (
        "VarHandleOp (eager)",
        ["/device:GPU:0"],
    )


@pytest.mark.parametrize("machine", [None, Machine.local(2)])
def test_a_log_of_a_machine_without_gpus_keeps_no_rule(machine: Machine | None) -> None:
    log = read(f"w: (VarHandleOp): {CPU}\na: (MatMul): {CPU}\n")

    assert set(states(log, machine).values()) == {"not-checked"}
    reasons = {
        verdict.rule: str(verdict.reason) for verdict in verify(log.placement(machine)).verdicts
    }
    assert reasons["variables-on-host"].startswith("the log comes from a machine without GPUs")


def test_a_gpu_that_no_log_line_names_may_be_idle() -> None:
    text = f"a: (MatMul): {GPU}\n"

    assert states(read(text))["no-idle-device"] == "not-checked"
    assert states(read(text), Machine.local(1))["no-idle-device"] == "kept"
    assert states(read(text), Machine.local(2))["no-idle-device"] == "broken"
    assert states(read(MAPPING + text))["no-idle-device"] == "broken"


def test_a_log_before_0_12_has_no_types() -> None:
    log = read("w: /job:localhost/replica:0/task:0/gpu:0\n")

    assert log.placement().ops["w"].type == ""
    reasons = {verdict.rule: str(verdict.reason) for verdict in verify(log.placement()).verdicts}

    assert reasons["variables-on-host"].startswith("logs of TensorFlow before 0.12 have no op typ")


GRAPH = placement(
    op("w", "VarHandleOp", "/cpu:0"),
    op("a", "MatMul", "/gpu:1", "", "w"),
    op("b", "MatMul", "/gpu:0", "", "w"),
    op("c", "NoOp"),
    lines={"w": "train.py:9", "a": "train.py:10"},
    program="train.py:build",
    placer=None,
)


def test_a_graph_completes_a_log() -> None:
    log = read(
        f"w: /job:localhost/replica:0/task:0/gpu:0\na: (MatMul): {CPU}\nb: (MatMul): {GPU}\n"
    )

    joined = log.placement(graph=GRAPH)
    verdicts = {verdict.rule: verdict for verdict in verify(joined).verdicts}

    assert (joined.program, joined.placer, list(joined.ops)) == ("a.log", "log", list("wabc"))
    assert verdicts["variables-on-host"].findings[0].where == "train.py:9"
    assert [finding.object for finding in verdicts["no-fallback"].findings] == ["a"]
    assert verdicts["placeable"].state == "not-checked"
    assert log.placement(graph=Evidence(GRAPH)) == joined


def test_the_graph_must_be_a_placement() -> None:
    with pytest.raises(
        UsageError, match=r"is not a placement; pass the result of place\(build_towers\)"
    ):
        read(f"w: (Add): {CPU}\n").placement(graph=read)  # type: ignore[arg-type]


def test_a_graph_of_another_program_is_refused() -> None:
    with pytest.raises(InputError) as error:
        read(f"x: (Add): {CPU}\n").placement(graph=GRAPH)
    assert str(error.value) == (
        "a.log has none of the 4 ops of train.py:build; is it the log of this program?"
    )


def test_variables_that_the_log_does_not_name_are_counted() -> None:
    graph = placement(
        op("w", "VarHandleOp", "/cpu:0"), op("v", "VarHandleOp", "/cpu:0"), op("a", "Add")
    )
    log = read(MAPPING + f"w: (VarHandleOp): {CPU}\n")

    (verdict,) = verify(log.placement(graph=graph), only=["variables-on-host"]).verdicts

    assert verdict.note == "1 variable, and 1 that the log does not name"


def test_an_op_that_was_not_placed_has_no_device() -> None:
    assert read("p: (Op): \n").placement().ops["p"].assigned is None


def test_a_log_has_no_requests() -> None:
    assert read(f"x: (Add): {CPU}\n").placement().requested == Missing(
        "a placement log has neither requested devices nor the inputs of ops",
        "add the program that printed the log: --graph train.py:build",
    )


def test_several_files_are_one_log_of_one_machine(tmp_path: Path) -> None:
    files = [tmp_path / "a.log", tmp_path / "b.log"]
    files[0].write_text(MAPPING)
    files[1].write_text(f"x: (Add): {CPU}\n")

    log = read_logs(files)

    assert log.name == f"{files[0]} + {files[1]}"
    assert log.devices == {Device.parse(GPU), Device.parse(GPU_1)}


def test_unread_parts_are_reported() -> None:
    log = Log("a.log", {}, 1, torn=2, troubles=["it is cut"])

    assert log.unread == (
        "it is cut; 2 of 3 records are torn, and their other copy is missing: "
        "log again with PYTHONUNBUFFERED=1, and copy whole lines"
    )


def test_devices_of_any_type_in_any_spelling() -> None:
    log = read(
        "H/xla_cpu:0 -> device: XLA_CPU device\nx: (Add): H/xla_cpu:0\n".replace(
            "H", "/job:localhost/replica:0/task:0"
        )
    )

    assert str(log.placement().machine) == "xla_cpu*1"
    listed = read("/job:localhost/replica:0/task:0/spu:0 -> device: an SPU\n")
    assert [str(device) for device in listed.devices] == [f"{HOST}:SPU:0"]


def test_an_impossible_device() -> None:
    log = read(f"x: (Add): {HOST}:GPU:99999999\n")

    with pytest.raises(InputError, match="the limit is 256 devices of one type in a task"):
        log.placement()


def test_a_log_without_gpu_requests_keeps_no_rule() -> None:
    log = read(MAPPING + f"w: (VarHandleOp): {CPU}\n")

    (verdict,) = verify(log.placement(graph=GRAPH), only=["no-fallback"]).verdicts

    assert (verdict.state, verdict.reason) == (
        "not-checked",
        "no op that requests a GPU was placed",
    )


def test_devices_of_every_type_are_a_machine() -> None:
    kinds = ["COMPOSITE", "DML", "METAL", "NPU", "npu910", "TPU_SYSTEM", "XLA_CPU", "_X"]
    log = read("".join(f"x_{kind}: (Add): {HOST}:{kind}:1\n" for kind in kinds))

    placed = log.placement()

    assert len(log.counts) == len(kinds)
    assert str(placed.machine) == ", ".join(f"{kind.lower()}*2" for kind in kinds)
    assert placed.ops["x_npu910"].assigned == Device.parse(f"{HOST}:NPU910:1")
