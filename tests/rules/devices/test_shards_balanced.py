from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from support.towers import program
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.missing import Missing
from placement_checks.rules.devices.shards_balanced import ShardsBalanced
from placement_checks.verification.policy import policy_errors

CLUSTER = "ps*2; worker*2: gpu*1"


def task(number: int, job: str = "ps") -> str:
    return f"/job:{job}/task:{number}"


def on_server(name: str, server: int, job: str = "ps", **more: Any) -> Op:
    """A variable on that server."""
    at = f"{task(server, job)}/cpu:0"
    return op(name, "VarHandleOp", task(server, job), at, **more)


def shards(*servers: int, job: str = "ps", **more: Any) -> Placement:
    """Variables v0, v1, … in the order of building, on these servers."""
    variables = (on_server(f"v{number}", server, job) for number, server in enumerate(servers))
    return placement(*variables, **{"machine": CLUSTER, **more})


def sized(*sizes: tuple[int, int], **more: Any) -> Placement:
    """Variables v0, v1, … as pairs of a server and a number of floats."""
    shapes = {f"v{number}": (size,) for number, (_, size) in enumerate(sizes)}
    return shards(*(server for server, _ in sizes), shapes=shapes, **more)


def figure(server: int, variables: int, size: int, job: str = "ps") -> dict[str, str | int]:
    return {"task": task(server, job), "variables": variables, "bytes": size}


def state(graph: Placement, **fields: Any) -> str:
    verdict = ShardsBalanced(**fields).judge(graph)
    assert verdict.state != "not-checked", verdict.reason
    return verdict.state


def objects(graph: Placement, **fields: Any) -> list[str]:
    assert state(graph, **fields) == "broken"
    return [finding.object for finding in ShardsBalanced(**fields).judge(graph).findings]


def test_kept(snapshot: SnapshotAssertion) -> None:
    verdict = ShardsBalanced().judge(shards(0, 1, 0))
    assert verdict == Verdict(
        "shards-balanced",
        "kept",
        "assigned",
        findings=[],
        note=ANY,
        figures=[figure(0, 2, 32), figure(1, 1, 16)],
    )
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = sized(
        (0, 1000), (1, 4), (0, 1000), (1, 4), (0, 1000), (0, 1000), (0, 2000), machine=CLUSTER
    )
    verdict = ShardsBalanced().judge(graph)

    assert verdict == Verdict(
        "shards-balanced",
        "broken",
        "assigned",
        findings=[
            Finding(
                object="/job:ps/task:0",
                op="",
                evidence="assigned",
                expected="about 12,016 bytes",
                found="24,000 bytes",
                path=(
                    "v6: 8,000 bytes",
                    "v0: 4,000 bytes",
                    "v2: 4,000 bytes",
                    "v4: 4,000 bytes",
                ),
                message=ANY,
                consequence=ANY,
                fix=ANY,
            )
        ],
        note=ANY,
        figures=[figure(0, 5, 24_000), figure(1, 2, 32)],
    )
    assert messages(verdict) == snapshot


def test_the_finding_locates_the_largest_variable(snapshot: SnapshotAssertion) -> None:
    graph = sized((0, 1), (0, 9), (0, 5), lines={"v1": "main.py:9 net.py:3", "v0": "main.py:1"})

    (finding,) = ShardsBalanced().judge(graph).findings

    assert finding.where == "net.py:3"
    assert messages(finding) == snapshot


def test_broken_by_turns(snapshot: SnapshotAssertion) -> None:
    """The variable after one that is out of turn is judged by the server of that one."""
    graph = shards(
        0, 1, 2, 2, 0, 0, 1, machine="ps*3; worker*1: gpu", lines={"v3": "main.py:9 net.py:3"}
    )

    verdict = ShardsBalanced(by="round-robin").judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="v3",
            op="VarHandleOp",
            evidence="assigned",
            expected="/job:ps/task:0",
            found="/job:ps/task:2",
            frames=("main.py:9", "net.py:3"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        ),
        Finding(
            object="v5",
            op="VarHandleOp",
            evidence="assigned",
            expected="/job:ps/task:1",
            found="/job:ps/task:0",
            message=ANY,
            consequence=ANY,
            fix=ANY,
        ),
    ]
    assert messages(verdict) == snapshot
    assert [server["variables"] for server in verdict.figures] == [3, 2, 2]


@pytest.mark.parametrize(
    ("servers", "found"),
    [
        ([0], []),
        ([1], []),
        ([0, 1, 0, 1], []),
        ([1, 0, 1, 0, 1], []),
        ([0, 0], ["v1"]),
        ([0, 1, 1, 0], ["v2"]),
        ([0, 0, 1, 1], ["v1", "v3"]),
        ([1, 1, 1], ["v1", "v2"]),
    ],
)
def test_variables_out_of_turn(servers: Sequence[int], found: Sequence[str]) -> None:
    verdict = ShardsBalanced(by="round-robin").judge(shards(*servers))
    assert [finding.object for finding in verdict.findings] == found


def test_sizes_do_not_count_by_turns() -> None:
    graph = sized((0, 10_000), (1, 1), (0, 10_000), (1, 1))
    assert state(graph, by="round-robin") == "kept"
    assert state(graph) == "kept"
    assert state(graph, by="bytes") == "broken"


def test_turns_do_not_count_by_bytes() -> None:
    graph = sized((0, 1), (0, 1), (0, 1), (1, 3))
    assert state(graph, by="bytes") == "kept"
    assert state(graph) == "kept"
    assert objects(graph, by="round-robin") == ["v1", "v2"]


@pytest.mark.parametrize(
    ("sizes", "by", "expected"),
    [
        pytest.param([(0, 30), (1, 10)], "bytes", "kept", id="as large as the largest"),
        pytest.param([(0, 20), (0, 10), (1, 10)], "bytes", "kept", id="1.5 shares"),
        pytest.param([(0, 20), (0, 11), (1, 10)], "bytes", "broken", id="more than 1.5 shares"),
        pytest.param([(0, 5), (0, 5), (0, 5), (1, 5)], "bytes", "kept", id="1.5 by counts"),
        pytest.param([(0, 5)] * 4 + [(1, 5)], "bytes", "broken", id="1.6 by counts"),
        pytest.param([(0, 5)] * 2 + [(1, 5)], "", "kept", id="one more"),
        pytest.param([(0, 9), (0, 9), (1, 1)], "", "kept", id="one more that is larger"),
        pytest.param([(0, 9), (0, 9), (1, 1)], "bytes", "broken", id="one more by bytes"),
        pytest.param([(0, 5)] * 3 + [(1, 5)], "", "kept", id="two more within 1.5"),
        pytest.param([(0, 9)] * 3 + [(1, 1)], "", "broken", id="two more that are larger"),
        pytest.param([(0, 5)], "", "kept", id="one variable"),
        pytest.param([(1, 5)], "bytes", "kept", id="one variable by bytes"),
        pytest.param([(0, 9), (0, 1)], "", "broken", id="an empty server"),
        pytest.param([(0, 9), (0, 1)], "bytes", "broken", id="an empty server by bytes"),
        pytest.param([(1, 0), (1, 0)], "", "broken", id="an empty server and empty variables"),
    ],
)
def test_spread(sizes: Sequence[tuple[int, int]], by: str, expected: str) -> None:
    assert state(sized(*sizes), by=by) == expected


@pytest.mark.parametrize(("most", "expected"), [(1, "broken"), (1.25, "kept"), (1.24, "broken")])
def test_most_is_the_largest_share(most: float, expected: str) -> None:
    assert state(sized((0, 20), (0, 5), (1, 15)), by="bytes", most=most) == expected


@pytest.mark.parametrize(
    ("most", "found"),
    [(1, [task(0), task(1)]), (1.3, [task(1)]), (1.5, [])],
)
def test_every_server_with_too_much_is_a_finding(most: float, found: Sequence[str]) -> None:
    """The even share is 100 floats; the three hold 125, 150 and 25."""
    sizes = [*[(0, 25)] * 5, *[(1, 25)] * 6, (2, 25)]
    verdict = ShardsBalanced(most=most).judge(sized(*sizes, machine="ps*3; worker*1: gpu"))

    assert [finding.object for finding in verdict.findings] == found
    assert {finding.expected for finding in verdict.findings} <= {"about 400 bytes"}


def test_an_even_share_is_rounded_up(snapshot: SnapshotAssertion) -> None:
    (finding,) = (
        ShardsBalanced()
        .judge(sized((0, 1), (0, 1), (0, 1), (0, 1), (1, 1), machine="ps*3; worker*1: gpu"))
        .findings
    )

    assert (finding.expected, finding.found) == ("about 7 bytes", "16 bytes")
    assert messages(finding) == snapshot


def test_several_empty_servers(snapshot: SnapshotAssertion) -> None:
    """No server has too much, the first has more variables than the others."""
    graph = sized((1, 8), (1, 1), (1, 1), (2, 1), machine="ps*5; worker*1: gpu")

    (finding,) = ShardsBalanced().judge(graph).findings

    assert finding == Finding(
        object="/job:ps/task:1",
        op="",
        evidence="assigned",
        expected="about 32 bytes",
        found="40 bytes",
        path=("v0: 32 bytes", "v1: 4 bytes", "v2: 4 bytes"),
        message=ANY,
        consequence=ANY,
        fix=ANY,
    )
    assert messages(finding) == snapshot


def test_the_server_with_most_bytes_is_found_not_the_one_with_most_variables() -> None:
    sizes = [(0, 100), (0, 90), (1, 1), (1, 1), (1, 1)]
    assert objects(sized(*sizes, machine="ps*3; worker*1: gpu")) == [task(0)]


def test_an_empty_server_is_no_finding_if_each_other_holds_one() -> None:
    graph = shards(0, 2, machine="ps*4; worker*1: gpu")
    for by in ("", "bytes"):
        assert state(graph, by=by) == "kept"


def test_variables_bound_to_a_variable_are_not_counted() -> None:
    slots = [on_server(f"v0/slot{i}", 0, colocated=["v0"]) for i in range(4)]
    graph = placement(on_server("v0", 0), *slots, on_server("v1", 1), machine=CLUSTER)

    verdict = ShardsBalanced(by="round-robin").judge(graph)

    assert verdict.state == "kept"
    assert verdict.figures == [figure(0, 1, 16), figure(1, 1, 16)]


def test_variables_bound_to_another_op_are_counted() -> None:
    graph = placement(
        op("table", "HashTable"),
        *(on_server(f"v{i}", 0, colocated=["table"]) for i in range(3)),
        machine=CLUSTER,
    )
    assert objects(graph) == [task(0)]


@pytest.mark.parametrize(
    ("allow", "expected"),
    [
        ((), [task(0)]),
        (("v1", "v2"), []),
        (("v*",), None),
        (("V1", "v"), [task(0)]),
        (("v[12]",), []),
    ],
)
def test_allowed_variables_are_not_counted(
    allow: tuple[str, ...], expected: Sequence[str] | None
) -> None:
    verdict = ShardsBalanced(allow=allow).judge(shards(0, 0, 0))

    if expected is None:
        assert verdict.reason == "no variable is on /job:ps"
    else:
        assert [finding.object for finding in verdict.findings] == expected


@pytest.mark.parametrize(
    ("servers", "allow", "found"),
    [
        pytest.param([0, 0, 1], ("v1",), [], id="it took no turn"),
        pytest.param([0, 0, 0], ("v1",), [], id="it took a turn"),
        pytest.param([0, 1, 0, 0, 0], ("v2",), ["v4"], id="what comes after is judged"),
        pytest.param([0, 0, 1, 1, 0], ("v3",), ["v1"], id="what comes before is judged"),
        pytest.param([1, 0, 0], ("v0",), ["v2"], id="the first"),
        pytest.param([0, 0, 0, 0], ("v1", "v2"), [], id="two"),
    ],
)
def test_an_allowed_variable_restarts_the_turns(
    servers: Sequence[int], allow: tuple[str, ...], found: Sequence[str]
) -> None:
    verdict = ShardsBalanced(by="round-robin", allow=allow).judge(shards(*servers))
    assert [finding.object for finding in verdict.findings] == found


def test_an_allowed_variable_of_another_job_takes_no_turn() -> None:
    graph = placement(
        on_server("v0", 0), on_server("w", 0, "worker"), on_server("v1", 0), machine=CLUSTER
    )
    assert objects(graph, by="round-robin", allow=("w",)) == ["v1"]


def test_an_allowed_variable_that_is_bound_to_another_takes_no_turn() -> None:
    slot = on_server("v0/slot", 0, colocated=["v0"])
    graph = placement(on_server("v0", 0), slot, on_server("v1", 0), machine=CLUSTER)
    assert objects(graph, by="round-robin", allow=("v0/slot",)) == ["v1"]


def test_other_variables_are_not_counted() -> None:
    """Variables of the workers, and one without an assigned device."""
    graph = placement(
        *(on_server(f"local{i}", 0, "worker") for i in range(5)),
        on_server("v0", 0),
        op("lost", "VarHandleOp", task(0)),
        on_server("v1", 1),
        machine=CLUSTER,
    )
    verdict = ShardsBalanced(by="round-robin").judge(graph)

    assert verdict.state == "kept"
    assert verdict.figures == [figure(0, 1, 16), figure(1, 1, 16)]


def test_a_variable_that_was_not_placed_takes_no_turn() -> None:
    lost = op("lost", "VarHandleOp", task(1))
    graph = placement(on_server("v0", 0), lost, on_server("v1", 0), machine=CLUSTER)
    assert objects(graph, by="round-robin") == ["v1"]


def test_a_job_without_task_means_its_first_task() -> None:
    at = op("v1", "VarHandleOp", "/job:ps", "/job:ps/cpu:0")
    graph = placement(on_server("v0", 1), at, machine=CLUSTER)
    assert ShardsBalanced().judge(graph).figures == [figure(0, 1, 16), figure(1, 1, 16)]


def test_servers_with_gaps_in_their_indices() -> None:
    graph = shards(3, 7, 3, machine="ps/task:3; ps/task:7; worker*1: gpu")
    verdict = ShardsBalanced(by="round-robin").judge(graph)

    assert verdict.state == "kept"
    assert verdict.figures == [figure(3, 2, 32), figure(7, 1, 16)]


def test_the_note_has_four_servers(snapshot: SnapshotAssertion) -> None:
    graph = shards(*range(5), machine="ps*6; worker*1: gpu")
    verdict = ShardsBalanced().judge(graph)

    assert messages(verdict) == snapshot
    assert verdict.figures == [*(figure(i, 1, 16) for i in range(5)), figure(5, 0, 0)]


def test_the_note_has_all_of_four_servers(snapshot: SnapshotAssertion) -> None:
    verdict = ShardsBalanced().judge(shards(*range(3), machine="ps*4; worker*1: gpu"))
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("shape", [None, (None, 4), (4, None)])
def test_a_variable_of_unknown_size_counts_as_empty(
    shape: tuple[int | None, int | None] | None,
) -> None:
    graph = shards(0, 1, 0, shapes={"v0": shape})
    verdict = ShardsBalanced().judge(graph)

    assert verdict.state == "kept"
    assert verdict.figures == [figure(0, 2, 16), figure(1, 1, 16)]


@pytest.mark.parametrize(
    ("servers", "shapes", "by"),
    [
        pytest.param([0, 0], {"v0": None}, "", id="an empty server"),
        pytest.param(
            [0] * 9 + [1], dict.fromkeys(f"v{number}" for number in range(10)), "", id="none"
        ),
        pytest.param(
            [0] * 9 + [1],
            dict.fromkeys(f"v{number}" for number in range(10)),
            "bytes",
            id="none by bytes",
        ),
        pytest.param([0, 1], {"v1": (None, 4)}, "bytes", id="even counts by bytes"),
    ],
)
def test_without_the_sizes_the_spread_is_not_known(
    servers: Sequence[int],
    shapes: Mapping[str, tuple[None, int] | None],
    by: Literal["", "round-robin", "bytes"],
    snapshot: SnapshotAssertion,
) -> None:
    verdict = ShardsBalanced(by=by).judge(shards(*servers, shapes=shapes))

    assert verdict == Verdict("shards-balanced", "not-checked", None, ANY, note=ANY)
    assert messages(verdict) == snapshot


def test_sizes_of_allowed_variables_need_not_be_known() -> None:
    graph = shards(0, 0, 0, 1, shapes={"v0": None})
    assert ShardsBalanced(by="bytes").judge(graph).state == "not-checked"
    assert state(graph, by="bytes", allow=("v0",)) == "kept"


def test_even_counts_need_no_sizes() -> None:
    assert state(shards(0, 1, 1, shapes=dict.fromkeys(["v0", "v1", "v2"]))) == "kept"


def test_without_any_bytes_an_empty_server_is_found(snapshot: SnapshotAssertion) -> None:
    (finding,) = ShardsBalanced().judge(sized((0, 0), (0, 0))).findings

    assert (finding.expected, finding.found) == ("about 0 bytes", "0 bytes")
    assert finding.path == ("v0: 0 bytes", "v1: 0 bytes")
    assert messages(finding) == snapshot


def test_turns_need_no_sizes() -> None:
    assert objects(shards(0, 0, shapes={"v0": None}), by="round-robin") == ["v1"]


def trained(job: str, *servers: int, **more: Any) -> Placement:
    """Variables on a job of another name than ps; the GPUs of the workers compute with them."""
    names = [f"v{number}" for number in range(len(servers))]
    reads = [
        op(
            f"read{name}{worker}",
            "MatMul",
            f"/job:worker/task:{worker}/gpu:0",
            f"/job:worker/task:{worker}/gpu:0",
            name,
        )
        for name in names
        for worker in (0, 1)
    ]
    return placement(
        *(on_server(name, server, job) for name, server in zip(names, servers, strict=True)),
        *reads,
        **{"machine": f"{job}*2; worker*2: gpu*1", **more},
    )


def test_the_servers_are_the_job_that_holds_variables_and_has_no_tower() -> None:
    verdict = ShardsBalanced().judge(trained("store", 1, 1, 1))

    assert verdict.figures == [figure(0, 0, 0, "store"), figure(1, 3, 48, "store")]
    assert [finding.object for finding in verdict.findings] == [task(1, "store")]


def test_the_servers_are_known_where_workers_hold_variables_too() -> None:
    graph = trained("store", 0, 1)
    local = [on_server(f"local{i}", 0, "worker") for i in range(3)]
    graph = placement(*graph.ops.values(), *local, machine="worker*2: gpu*1; store*2")

    verdict = ShardsBalanced().judge(graph)

    assert verdict.figures == [figure(0, 1, 16, "store"), figure(1, 1, 16, "store")]


def test_the_servers_are_known_where_a_variable_was_not_placed() -> None:
    graph = trained("store", 0, 1)
    lost = op("lost", "VarHandleOp", task(0, "keep"))
    graph = placement(*graph.ops.values(), lost, machine="worker*2: gpu*1; store*2; keep*2")

    verdict = ShardsBalanced().judge(graph)

    assert verdict.figures == [figure(0, 1, 16, "store"), figure(1, 1, 16, "store")]


def test_the_servers_are_the_job_ps() -> None:
    graph = trained("ps", 0, 1)
    stored = [on_server(f"s{i}", 0, "store") for i in range(3)]
    graph = placement(*graph.ops.values(), *stored, machine="store*2; ps*2; worker*2: gpu*1")

    assert ShardsBalanced().judge(graph).figures == [figure(0, 1, 16), figure(1, 1, 16)]
    assert objects(graph, job="store") == [task(0, "store")]


def test_workers_may_hold_the_shards() -> None:
    graph = placement(
        *(on_server(f"v{i}", 0, "worker") for i in range(2)), machine="ps*1; worker*2: gpu*1"
    )
    assert objects(graph, job="worker") == [task(0, "worker")]


@pytest.mark.parametrize(
    ("graph", "fields"),
    [
        pytest.param(shards(0, placer=None), {}, id="no placer"),
        pytest.param(shards(0, assigned=Missing("it died")), {}, id="unplaced"),
        pytest.param(shards(0, requested=Missing("a log lacks requested devices")), {}, id="log"),
        pytest.param(program(), {}, id="towers on one host"),
        pytest.param(shards(0, machine=None), {}, id="no machine"),
        pytest.param(program(), {"job": "ps"}, id="one host and a job"),
        pytest.param(trained("worker", 0, 1, machine="worker*2: gpu*1"), {}, id="workers alone"),
        pytest.param(
            placement(
                on_server("a", 0, "store"), on_server("b", 1, "keep"), machine="store*2; keep*2"
            ),
            {},
            id="two jobs with variables",
        ),
        pytest.param(
            placement(op("a", "NoOp"), machine="store*2; worker*2: gpu"), {}, id="no variables"
        ),
        pytest.param(
            shards(0, machine="pss*2; worker*2: gpu"),
            {"job": "ps"},
            id="a job that the machine lacks",
        ),
        pytest.param(shards(0, 0, machine="ps*1; worker*2: gpu"), {}, id="one server"),
        pytest.param(shards(0, 0), {"job": "worker", "by": "bytes"}, id="a job without variables"),
        pytest.param(placement(op("a", "NoOp"), machine=CLUSTER), {}, id="ps without variables"),
    ],
)
def test_not_checked(
    graph: Placement, fields: Mapping[str, Any], snapshot: SnapshotAssertion
) -> None:
    verdict = ShardsBalanced(**fields).judge(graph)
    assert verdict == Verdict("shards-balanced", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"by": "size"}, "by: 'size' does not fit; give 'round-robin' or 'bytes'"),
        ({"by": "Bytes"}, "by: 'Bytes' does not fit; give 'round-robin' or 'bytes'"),
        ({"most": 0.99}, "most: 0.99 times an even share is impossible; give 1 or more"),
        ({"most": -1}, "most: -1 times an even share is impossible; give 1 or more"),
    ],
)
def test_invalid_fields(fields: Mapping[str, Any], message: str) -> None:
    (error,) = policy_errors({"shards-balanced": fields})
    assert str(error) == f"shards-balanced.{message}"
