from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from support.towers import accumulating, broken_mirror, gradient, objects_of, on, program, split
from syrupy.assertion import SnapshotAssertion

from placement_checks import Device, Finding, Op, Placement, Verdict
from placement_checks.core.errors import ConfigError, InputError
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.core.strategies import Strategy
from placement_checks.rules.devices.variables_on_host import VariablesOnHost

CLUSTER = "ps*2; worker*2: gpu*2"


def variable(requested: str, assigned: str, type: str = "VarHandleOp", **more: Any) -> Op:
    return op("w", type, requested, assigned, **more)


def test_kept(snapshot: SnapshotAssertion) -> None:
    graph = placement(variable("/cpu:0", "CPU:0"), op("a", "MatMul", "/gpu:0", "GPU:0", "w"))
    verdict = VariablesOnHost().judge(graph)
    assert verdict == Verdict("variables-on-host", "kept", "assigned", findings=[], note=ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(("shape", "state"), [((), "kept"), ((8,), "broken")])
def test_a_scalar_created_outside_the_scope_of_a_strategy(
    shape: tuple[int, ...], state: str
) -> None:
    """An optimizer created before the scope: its learning rate, and a table."""
    replicas = [Device.parse(f"/gpu:{i}") for i in (0, 1)]
    graph = placement(
        op("rate", "VarHandleOp", "/gpu:0", "GPU:0"),
        op("a", "MatMul", "/gpu:0", "GPU:0", "rate"),
        shapes={"rate": shape},
        strategy=Strategy("MirroredStrategy", replicas, outside=["rate"]),
    )

    verdict = VariablesOnHost().judge(graph)

    assert verdict.state == state
    assert [finding.fix for finding in verdict.findings] == (
        [] if state == "kept" else ["create it under `with strategy.scope():`"]
    )


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        variable("/gpu:1", "GPU:1", "VariableV2"),
        op("v", "VariableV2", "/cpu:0", "CPU:0"),
        lines={"w": "main.py:30 net.py:9 net.py:3"},
    )
    verdict = VariablesOnHost().judge(graph)
    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="w",
            op="VariableV2",
            evidence="assigned",
            expected="/device:CPU:0",
            found="/device:GPU:1",
            frames=("main.py:30", "net.py:9", "net.py:3"),
            message=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_a_variable_without_request_is_a_finding_on_the_host_too(
    snapshot: SnapshotAssertion,
) -> None:
    graph = placement(variable("", "CPU:0"), lines={"w": "main.py:9"})
    verdict = VariablesOnHost().judge(graph)
    assert verdict.findings == [
        Finding(
            object="w",
            op="VarHandleOp",
            evidence="requested",
            expected="/device:CPU:0",
            found="no device",
            frames=("main.py:9",),
            message=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_a_variable_without_request_on_a_gpu(snapshot: SnapshotAssertion) -> None:
    (finding,) = VariablesOnHost().judge(placement(variable("", "GPU:0"))).findings
    assert messages(finding) == snapshot


@pytest.mark.parametrize("type", ["VarHandleOp", "Variable", "AutoReloadVariable"])
def test_the_fix_mentions_device_functions_for_resource_variables_only(
    type: str, snapshot: SnapshotAssertion
) -> None:
    (finding,) = VariablesOnHost().judge(placement(variable("/gpu:0", "GPU:0", type))).findings
    assert messages(finding) == snapshot


def test_the_device_scope_is_named(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        variable("/gpu:0", "GPU:0"),
        op("w/Momentum", "VarHandleOp", "", "GPU:0", colocated=["w"]),
        device_lines={"w": "main.py:8"},
    )

    primary, slot = VariablesOnHost().judge(graph).findings

    assert primary.device_line == slot.device_line == "main.py:8"
    assert (primary.alike, primary.fix) == (slot.alike, slot.fix)
    assert [messages(primary), messages(slot)] == snapshot


@pytest.mark.parametrize("name", ["chosen", "<lambda>"])
def test_the_device_function_is_named(name: str, snapshot: SnapshotAssertion) -> None:
    lines = {"w": f"main.py:5 in {name}"}
    graph = placement(variable("/gpu:0", "GPU:0"), device_lines=lines)

    (finding,) = VariablesOnHost().judge(graph).findings

    assert finding.device_line == "main.py:5"
    assert messages(finding) == snapshot


@pytest.mark.parametrize("towers", [2, 3])
def test_the_consequence_of_a_variable_that_other_gpus_read(
    towers: int, snapshot: SnapshotAssertion
) -> None:
    reads = (op(f"a{i}", "MatMul", f"/gpu:{i}", f"GPU:{i}", "w") for i in range(towers))
    graph = placement(variable("/gpu:0", "GPU:0"), *reads, machine=f"gpu*{towers}")

    (finding,) = VariablesOnHost().judge(graph).findings

    assert messages(finding) == snapshot


@pytest.mark.parametrize(
    ("graph", "device"),
    [
        pytest.param(
            placement(variable("/job:ps/task:1", "/job:ps/task:1/cpu:0"), machine=CLUSTER),
            "/job:ps",
            id="any task of a partial name",
        ),
        pytest.param(
            placement(variable("/job:ps", "/job:ps/task:0/cpu:0"), machine=CLUSTER),
            "/cpu:0",
            id="only a job asked for, judged by where it was put",
        ),
        pytest.param(
            placement(variable("/gpu:1", "GPU:1")), ("/cpu:0", "/gpu:1"), id="one of several"
        ),
        pytest.param(
            placement(
                op("v", "VarHandleOp", "/cpu:0", "CPU:0"), variable("", "CPU:0", colocated=["v"])
            ),
            "/cpu:0",
            id="slot that asks to be with its variable",
        ),
        pytest.param(
            placement(variable("/cpu:0", "/cpu:0"), op("v", "VarHandleOp", "/gpu:0")),
            "/cpu:0",
            id="one that was not placed",
        ),
    ],
)
def test_kept_on_the_devices_that_are_allowed(
    graph: Placement, device: str | tuple[str, str]
) -> None:
    verdict = VariablesOnHost(device).judge(graph)
    assert (verdict.state, list(verdict.findings)) == ("kept", [])


def test_partial_name_that_does_not_match(snapshot: SnapshotAssertion) -> None:
    graph = placement(variable("/job:worker/cpu:0", "/job:worker/task:1/cpu:0"), machine=CLUSTER)
    (finding,) = VariablesOnHost(("/job:ps", "/job:chief/cpu:0")).judge(graph).findings
    assert finding.expected == "/job:ps or /job:chief/device:CPU:0"
    assert finding.found == "/job:worker/replica:0/task:1/device:CPU:0"
    assert messages(finding) == snapshot


@pytest.mark.parametrize(
    ("allow", "found"),
    [(("w", "v"), ["u"]), (("[uw]",), ["v"]), (("*",), []), (("W", "x*"), ["w", "v", "u"])],
)
def test_allowed_variables_may_sit_anywhere(allow: tuple[str, ...], found: Sequence[str]) -> None:
    graph = placement(
        variable("/gpu:0", "GPU:0"),
        op("v", "VarHandleOp", "", "CPU:0"),
        op("u", "VarHandleOp", "/gpu:0", "GPU:0"),
    )
    assert objects_of(VariablesOnHost(allow=allow), graph) == found


@pytest.mark.parametrize("device", ["host", ("/cpu:0", "/host:0")])
def test_device_must_be_a_device_name(device: str | tuple[str, str]) -> None:
    with pytest.raises(InputError, match="is not part of a device name"):
        VariablesOnHost(device)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(placement(variable("/gpu:0", ""), placer=None), id="no placer"),
        pytest.param(
            placement(variable("/gpu:0", ""), assigned=Missing("it died")), id="unplaced"
        ),
        pytest.param(placement(op("a", "NoOp", "", "CPU:0")), id="no variables"),
        pytest.param(placement(variable("", "CPU:0"), machine="cpu*2"), id="a host without GPUs"),
        pytest.param(
            placement(variable("/job:worker", "/job:worker/cpu:0"), machine="ps*1; worker*2"),
            id="a cluster without GPUs",
        ),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = VariablesOnHost().judge(graph)
    assert verdict == Verdict("variables-on-host", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


SERVERS = "ps*2; worker*2"


def misplaced(device: str | tuple[str, str], machine: str = SERVERS) -> Verdict:
    """Findings on a variable on a worker of a cluster without GPUs."""
    graph = placement(
        variable("/job:worker/cpu:0", "/job:worker/task:1/cpu:0", "VariableV2"),
        op("v", "VariableV2", "/job:ps/task:1", "/job:ps/task:1/cpu:0"),
        machine=machine,
    )
    return VariablesOnHost(device).judge(graph)


def test_a_cluster_without_gpus_is_judged_by_the_job(snapshot: SnapshotAssertion) -> None:
    verdict = misplaced("/job:ps")

    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="w",
            op="VariableV2",
            evidence="assigned",
            expected="/job:ps",
            found="/job:worker/replica:0/task:1/device:CPU:0",
            message=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("device", "objects"),
    [
        ("/job:ps/cpu:0", ["w"]),
        ("/job:ps/task:0", ["w", "v"]),
        ("/job:worker", ["v"]),
        (("/job:ps/task:0", "/job:worker"), ["v"]),
    ],
)
def test_the_finding_in_a_cluster_without_gpus(
    device: str | tuple[str, str], objects: Sequence[str]
) -> None:
    assert [finding.object for finding in misplaced(device).findings] == objects


@pytest.mark.parametrize("device", ["/cpu:0", "/cpu", ("/job:ps", "/job:worker"), "/task:*/cpu:0"])
def test_a_cluster_with_only_allowed_devices(
    device: str | tuple[str, str],
    snapshot: SnapshotAssertion,
) -> None:
    verdict = misplaced(device)
    assert verdict == Verdict("variables-on-host", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_a_second_cpu_is_judged() -> None:
    assert misplaced("/cpu:0", "ps*2; worker*2: cpu*2").state == "kept"


def test_a_host_without_gpus_is_not_judged_for_any_device() -> None:
    graph = placement(variable("/cpu:1", "CPU:1"), machine="cpu*2")
    assert VariablesOnHost("/cpu:0").judge(graph).state == "not-checked"


@pytest.mark.parametrize(
    ("machine", "device"),
    [
        ("pss*2; worker*2: gpu", "/job:ps"),
        ("ps*2; worker*2: gpu", "/job:ps/task:2/cpu:0"),
        ("gpu*2", ("/job:ps", "/gpu:1")),
        ("gpu*2", ("/cpu:1", "/job:ps")),
        (None, "/job:ps"),
    ],
)
def test_the_fix_for_a_declared_device_that_the_machine_lacks(
    machine: str | None, device: str | tuple[str, str], snapshot: SnapshotAssertion
) -> None:
    graph = placement(variable("/cpu:0", "CPU:0", "VariableV2"), machine=machine)

    (finding,) = VariablesOnHost(device).judge(graph).findings

    assert messages(finding) == snapshot


def test_the_fix_for_a_job_that_the_machine_lacks_does_not_mention_device_functions(
    snapshot: SnapshotAssertion,
) -> None:
    graph = placement(variable("", "CPU:0"), machine="pss*2; worker*2: gpu")

    (finding,) = VariablesOnHost("/job:ps").judge(graph).findings

    assert messages(finding) == snapshot


LOG = "a log lacks requested devices"


def logged(*ops: Op, **more: Any) -> Verdict:
    """A placement from the log of a machine with GPUs."""
    return VariablesOnHost().judge(placement(*ops, placer="log", requested=Missing(LOG), **more))


def test_a_log_has_assigned_devices_and_no_requests(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = logged(
        op("w", "VarHandleOp", "", "GPU:0"), op("v", "VarHandleOp", "", "CPU:0"), machine="gpu*2"
    )

    (finding,) = verdict.findings
    assert messages(finding) == snapshot
    assert messages(verdict) == snapshot


def test_variables_missing_in_the_log_are_counted(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = logged(
        op("w", "VarHandleOp", "", "CPU:0"), op("v", "VarHandleOp"), op("u", "VarHandleOp")
    )

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([op("w", "VarHandleOp")], id="one that was not placed"),
        pytest.param([op("a", "MatMul", "", "GPU:0")], id="types"),
        pytest.param([op("a", "MatMul", "", "GPU:0"), op("b", "")], id="a type"),
        pytest.param([op("a", "", "", "GPU:0")], id="no types"),
    ],
)
def test_a_log_that_names_no_variable(ops: Sequence[Op], snapshot: SnapshotAssertion) -> None:
    assert messages(logged(*ops)) == snapshot


def test_a_log_of_a_machine_without_gpus_is_not_checked(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = logged(op("w", "VarHandleOp", "", "CPU:0"), machine="cpu*1")

    assert messages(verdict) == snapshot


def test_variables_without_assigned_devices(snapshot: SnapshotAssertion) -> None:
    verdict = VariablesOnHost().judge(placement(op("w", "VarHandleOp", "/cpu:0")))

    assert messages(verdict) == snapshot


# Variables of one tower.

LOCAL = {TRAINABLE: ["w"], GLOBAL: ["w", "step"]}


def cached(at: str) -> Placement:
    """The second tower's examples are kept in a variable."""
    return program(
        op("images", "VarHandleOp", at, at),
        on(1, "tower_1/w/MatMul", "MatMul", "images", "tower_1/w/read"),
        collections=LOCAL,
    )


@pytest.mark.parametrize("count", [2, 4])
def test_a_copy_may_be_on_the_gpu_of_its_tower(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = VariablesOnHost().judge(program(mirrored=True, gpus=range(count)))

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_a_copy_on_the_gpu_of_another_tower_is_found(snapshot: SnapshotAssertion) -> None:
    graph = program(op("v1/w", "VarHandleOp", "/gpu:0", "GPU:0"), mirrored=True)

    verdict = VariablesOnHost().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["v1/w"]
    assert messages(verdict) == snapshot


def test_a_variable_that_only_looks_like_a_copy_is_found() -> None:
    """It takes its own tower's gradients."""
    own = [
        on(i, f"update/v{i}/w", "ResourceApplyGradientDescent", f"v{i}/w", gradient(i))
        for i in (0, 1)
    ]

    assert objects_of(VariablesOnHost(), program(*own, mirrored=True)) == ["v0/w", "v1/w"]


@pytest.mark.parametrize(("at", "found"), [("GPU:1", []), ("CPU:0", []), ("GPU:0", ["images"])])
def test_examples_may_be_on_the_reading_gpu_and_on_the_host(at: str, found: Sequence[str]) -> None:
    assert objects_of(VariablesOnHost(), cached(at)) == found


@pytest.mark.parametrize(
    ("local", "found"),
    [
        ((), []),
        (("/gpu:1",), []),
        (("/cpu:0", "/gpu:1"), []),
        (("/gpu:0",), ["images"]),
        (("/cpu:0",), ["images"]),
    ],
)
def test_local_variables_may_have_other_devices(
    local: Sequence[str], found: Sequence[str]
) -> None:
    assert objects_of(VariablesOnHost(local=tuple(local)), cached("GPU:1")) == found


def test_local_variables_on_a_server_are_found_if_declared_for_workers(
    snapshot: SnapshotAssertion,
) -> None:
    graph = placement(
        op("w", "VarHandleOp", "/job:ps", "/job:ps/task:0/cpu:0"),
        op("seen", "VarHandleOp", "/job:ps", "/job:ps/task:1/cpu:0"),
        machine=CLUSTER,
        collections={GLOBAL: ["w"]},
    )

    assert objects_of(VariablesOnHost(device="/job:ps"), graph) == []
    verdict = VariablesOnHost(device="/job:ps", local=("/job:worker",)).judge(graph)
    assert [finding.object for finding in verdict.findings] == ["seen"]
    assert messages(verdict) == snapshot


def test_without_collections_all_variables_are_judged_alike() -> None:
    graph = placement(variable("/gpu:0", "GPU:0"))

    assert objects_of(VariablesOnHost(local=("/gpu:0",)), graph) == ["w"]


def test_local_must_be_devices() -> None:
    with pytest.raises(ConfigError, match="local names no device"):
        VariablesOnHost(local=("",))


@pytest.mark.parametrize(("at", "found"), [("GPU:1", []), ("CPU:0", []), ("GPU:0", ["shown1"])])
def test_an_accumulator_for_a_summary_may_be_on_the_gpu_of_its_tower(
    at: str, found: Sequence[str]
) -> None:
    graph = accumulating(op("shown1", "VarHandleOp", at, at))

    assert objects_of(VariablesOnHost(), graph) == found


# A split model.


def test_a_part_of_a_split_model_may_be_on_its_gpu() -> None:
    assert objects_of(VariablesOnHost(), split()) == []


@pytest.mark.parametrize(
    "moved",
    [
        pytest.param(op("a", "VarHandleOp", "/gpu:1", "GPU:1"), id="on the GPU of another part"),
        pytest.param(op("a/m", "VarHandleOp", "/gpu:1", "GPU:1"), id="a slot apart from it"),
        pytest.param(op("a", "VarHandleOp", "", "GPU:0"), id="that requests no device"),
        pytest.param(op("step", "VarHandleOp", "/gpu:0", "GPU:0"), id="of no part"),
    ],
)
def test_findings_in_a_split_model(moved: Op) -> None:
    assert objects_of(VariablesOnHost(), split(moved)) == [moved.name]


def test_a_variable_that_two_parts_read_is_found() -> None:
    tied = [
        op("table", "VarHandleOp", "/gpu:0", "GPU:0"),
        on(0, "first", "MatMul", "x", "a", "table"),
        on(1, "second", "MatMul", "first", "b", "table"),
    ]

    assert objects_of(VariablesOnHost(), split(*tied)) == ["table"]


def follows(graph: Placement) -> dict[str, str | None]:
    findings = VariablesOnHost().judge(graph).findings
    return {finding.object: finding.follows for finding in findings}


def test_variables_on_the_gpus_of_towers_follow_from_a_broken_mirror() -> None:
    slot = on(1, "v1/w/Momentum", "VarHandleOp", colocated=("v1/w",))

    assert follows(broken_mirror(slot)) == {
        "v0/w": "variables-shared",
        "v1/w": "variables-shared",
        "v1/w/Momentum": "variables-shared",
    }


def test_a_variable_on_another_gpu_is_a_separate_mistake() -> None:
    assert follows(broken_mirror(on(0, "v1/w", "VarHandleOp"))) == {
        "v0/w": "variables-shared",
        "v1/w": None,
    }


def test_a_variable_of_tf_variable_is_a_separate_mistake() -> None:
    """By tf.Variable, which shares nothing: it stays on its GPU when all towers read it."""
    assert follows(broken_mirror(named=False)) == {"v0/w": None, "v1/w": None}


@pytest.mark.parametrize(
    ("matmul", "cause"), [("", "no-idle-device"), ("/cpu:0", "no-idle-device"), ("/gpu:0", None)]
)
def test_variables_of_a_program_that_requests_no_gpu_follow_from_the_idle_gpu(
    matmul: str, cause: str | None
) -> None:
    graph = placement(
        op("w", "VarHandleOp", "", "GPU:0"),
        op("x", "Placeholder", "", "GPU:0"),
        op("y", "MatMul", matmul, matmul or "GPU:0", "x", "w"),
    )

    assert follows(graph) == {"w": cause}
