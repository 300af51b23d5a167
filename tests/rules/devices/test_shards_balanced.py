from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.graphs import op, placement
from support.towers import program
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.rules.devices.shards_balanced import ShardsBalanced
from placement_checks.verification.policy import parse_policy

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


def with_local_variables() -> Placement:
    graph = trained("store", 0, 1)
    local = [on_server(f"local{i}", 0, "worker") for i in range(3)]
    return placement(*graph.ops.values(), *local, machine="worker*2: gpu*1; store*2")


def with_unplaced_variable() -> Placement:
    graph = trained("store", 0, 1)
    lost = op("lost", "VarHandleOp", task(0, "keep"))
    return placement(*graph.ops.values(), lost, machine="worker*2: gpu*1; store*2; keep*2")


def two_jobs() -> Placement:
    graph = trained("ps", 0, 1)
    stored = [on_server(f"s{i}", 0, "store") for i in range(3)]
    return placement(*graph.ops.values(), *stored, machine="store*2; ps*2; worker*2: gpu*1")


TURNS = sized((0, 10000), (1, 1), (0, 10000), (1, 1))
SIZES = sized((0, 1), (0, 1), (0, 1), (1, 3))
QUARTER_MORE = sized((0, 20), (0, 5), (1, 15))
# The even share is 100 floats; the three servers hold 125, 150 and 25.
THREE = sized(*[(0, 25)] * 5, *[(1, 25)] * 6, (2, 25), machine="ps*3; worker*1: gpu")
# Ten variables, nine of them on the first server, without sizes.
UNSIZED = shards(*[0] * 9 + [1], shapes=dict.fromkeys(f"v{number}" for number in range(10)))
UNKNOWN_FIRST = shards(0, 0, 0, 1, shapes={"v0": None})


APART = shards(0, 2, machine="ps*4; worker*1: gpu")


CASES = {
    "two variables on the first server, and one on the second": kept(shards(0, 1, 0)),
    "the first server holds most of the bytes": broken(
        sized(
            (0, 1000), (1, 4), (0, 1000), (1, 4), (0, 1000), (0, 1000), (0, 2000), machine=CLUSTER
        )
    ),
    "the line of the largest variable": broken(
        sized((0, 1), (0, 9), (0, 5), lines={"v1": "main.py:9 net.py:3", "v0": "main.py:1"})
    ),
    # The variable after one that is out of turn is judged by the server of that one.
    "two variables out of turn": broken(
        shards(
            0, 1, 2, 2, 0, 0, 1, machine="ps*3; worker*1: gpu", lines={"v3": "main.py:9 net.py:3"}
        ),
        by="round-robin",
    ),
    **{
        f"variables in turn on servers {servers}": kept(shards(*servers), by="round-robin")
        for servers in ([0], [1], [0, 1, 0, 1], [1, 0, 1, 0, 1])
    },
    **{
        f"variables out of turn on servers {servers}": broken(shards(*servers), by="round-robin")
        for servers in ([0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1])
    },
    "turns of unequal sizes": kept(TURNS, by="round-robin"),
    "unequal sizes": kept(TURNS),
    "turns of unequal sizes, by bytes": broken(TURNS, by="bytes"),
    "equal sizes out of turn, by bytes": kept(SIZES, by="bytes"),
    "equal sizes out of turn": kept(SIZES),
    "equal sizes out of turn, by turns": broken(SIZES, by="round-robin"),
    "a server with only the largest variable": kept(sized((0, 30), (1, 10)), by="bytes"),
    "1.5 shares, by bytes": kept(sized((0, 20), (0, 10), (1, 10)), by="bytes"),
    "more than 1.5 shares, by bytes": broken(sized((0, 20), (0, 11), (1, 10)), by="bytes"),
    "1.5 shares, equal sizes": kept(sized((0, 5), (0, 5), (0, 5), (1, 5)), by="bytes"),
    "1.6 shares, equal sizes": broken(sized(*[(0, 5)] * 4 + [(1, 5)]), by="bytes"),
    "one more variable": kept(sized(*[(0, 5)] * 2 + [(1, 5)])),
    "one more variable, and larger ones": kept(sized((0, 9), (0, 9), (1, 1))),
    "one more variable, and larger ones, by bytes": broken(
        sized((0, 9), (0, 9), (1, 1)), by="bytes"
    ),
    "two more variables within 1.5 shares": kept(sized(*[(0, 5)] * 3 + [(1, 5)])),
    "two more variables, and larger ones": broken(sized(*[(0, 9)] * 3 + [(1, 1)])),
    "one variable": kept(sized((0, 5))),
    "one variable, by bytes": kept(sized((1, 5)), by="bytes"),
    "an empty server": broken(sized((0, 9), (0, 1))),
    "an empty server, by bytes": broken(sized((0, 9), (0, 1)), by="bytes"),
    "an empty server, and empty variables": broken(sized((1, 0), (1, 0))),
    "the largest share is allowed": kept(QUARTER_MORE, by="bytes", most=1.25),
    "the largest share is just not allowed": broken(QUARTER_MORE, by="bytes", most=1.24),
    "only an even share is allowed": broken(QUARTER_MORE, by="bytes", most=1),
    "three servers, and most that one of them holds": kept(THREE, most=1.5),
    "three servers, and one holds too much": broken(THREE, most=1.3),
    "three servers, and two hold too much": broken(THREE, most=1),
    "an even share is rounded up": broken(
        sized((0, 1), (0, 1), (0, 1), (0, 1), (1, 1), machine="ps*3; worker*1: gpu")
    ),
    # No server has too much, the first has more variables than the others.
    "several empty servers": broken(
        sized((1, 8), (1, 1), (1, 1), (2, 1), machine="ps*5; worker*1: gpu")
    ),
    "one server with most bytes, and one with most variables": broken(
        sized((0, 100), (0, 90), (1, 1), (1, 1), (1, 1), machine="ps*3; worker*1: gpu")
    ),
    "slots that are colocated with their variable": kept(
        placement(
            on_server("v0", 0),
            *[on_server(f"v0/slot{i}", 0, colocated=["v0"]) for i in range(4)],
            on_server("v1", 1),
            machine=CLUSTER,
        ),
        by="round-robin",
    ),
    "variables that are colocated with another op": broken(
        placement(
            op("table", "HashTable"),
            *(on_server(f"v{i}", 0, colocated=["table"]) for i in range(3)),
            machine=CLUSTER,
        )
    ),
    **{
        f"allowed: {allow}": kept(shards(0, 0, 0), allow=allow)
        for allow in (("v1", "v2"), ("v[12]",))
    },
    **{f"allowed: {allow}": broken(shards(0, 0, 0), allow=allow) for allow in ((), ("V1", "v"))},
    "all variables are allowed": not_checked(shards(0, 0, 0), allow=("v*",)),
    "an allowed variable took no turn": kept(shards(0, 0, 1), by="round-robin", allow=("v1",)),
    "an allowed variable took a turn": kept(shards(0, 0, 0), by="round-robin", allow=("v1",)),
    "after an allowed variable, one out of turn": broken(
        shards(0, 1, 0, 0, 0), by="round-robin", allow=("v2",)
    ),
    "before an allowed variable, one out of turn": broken(
        shards(0, 0, 1, 1, 0), by="round-robin", allow=("v3",)
    ),
    "the first variable is allowed": broken(shards(1, 0, 0), by="round-robin", allow=("v0",)),
    "two variables are allowed": kept(shards(0, 0, 0, 0), by="round-robin", allow=("v1", "v2")),
    "an allowed variable of another job takes no turn": broken(
        placement(
            on_server("v0", 0), on_server("w", 0, "worker"), on_server("v1", 0), machine=CLUSTER
        ),
        by="round-robin",
        allow=("w",),
    ),
    "an allowed slot takes no turn": broken(
        placement(
            on_server("v0", 0),
            on_server("v0/slot", 0, colocated=["v0"]),
            on_server("v1", 0),
            machine=CLUSTER,
        ),
        by="round-robin",
        allow=("v0/slot",),
    ),
    "variables of workers, and one that was not placed": kept(
        placement(
            *(on_server(f"local{i}", 0, "worker") for i in range(5)),
            on_server("v0", 0),
            op("lost", "VarHandleOp", task(0)),
            on_server("v1", 1),
            machine=CLUSTER,
        ),
        by="round-robin",
    ),
    "a variable that was not placed takes no turn": broken(
        placement(
            on_server("v0", 0),
            op("lost", "VarHandleOp", task(1)),
            on_server("v1", 0),
            machine=CLUSTER,
        ),
        by="round-robin",
    ),
    "a job without a task means its first task": kept(
        placement(
            on_server("v0", 1),
            op("v1", "VarHandleOp", "/job:ps", "/job:ps/cpu:0"),
            machine=CLUSTER,
        )
    ),
    "servers with gaps in their indices": kept(
        shards(3, 7, 3, machine="ps/task:3; ps/task:7; worker*1: gpu"), by="round-robin"
    ),
    "the note has four servers": kept(shards(*range(5), machine="ps*6; worker*1: gpu")),
    "the note has all of four servers": kept(shards(*range(3), machine="ps*4; worker*1: gpu")),
    **{
        f"a variable of shape {shape} counts as empty": kept(shards(0, 1, 0, shapes={"v0": shape}))
        for shape in (None, (None, 4), (4, None))
    },
    "an empty server, and a size is not known": not_checked(
        shards(0, 0, shapes={"v0": None}), by=""
    ),
    "no size is known": not_checked(UNSIZED),
    "no size is known, by bytes": not_checked(UNSIZED, by="bytes"),
    "even counts, by bytes, and a size is not known": not_checked(
        shards(0, 1, shapes={"v1": (None, 4)}), by="bytes"
    ),
    "a size is not known, by bytes": not_checked(UNKNOWN_FIRST, by="bytes"),
    "the size of an allowed variable is not known": kept(UNKNOWN_FIRST, by="bytes", allow=("v0",)),
    "even counts need no sizes": kept(shards(0, 1, 1, shapes=dict.fromkeys(["v0", "v1", "v2"]))),
    "an empty server, and no bytes": broken(sized((0, 0), (0, 0))),
    "turns need no sizes": broken(shards(0, 0, shapes={"v0": None}), by="round-robin"),
    "a job with variables and without towers": broken(trained("store", 1, 1, 1)),
    "workers hold variables too": kept(with_local_variables()),
    "a job with a variable that was not placed": kept(with_unplaced_variable()),
    "the job ps, and another job with variables": kept(two_jobs()),
    "the other job is declared": broken(two_jobs(), job="store"),
    "the workers are declared": broken(
        placement(
            *(on_server(f"v{i}", 0, "worker") for i in range(2)), machine="ps*1; worker*2: gpu*1"
        ),
        job="worker",
    ),
    "towers on one host": not_checked(program()),
    "no machine": not_checked(shards(0, machine=None)),
    "a job on one host": not_checked(program(), job="ps"),
    "workers alone": not_checked(trained("worker", 0, 1, machine="worker*2: gpu*1")),
    "two jobs with variables": not_checked(
        placement(on_server("a", 0, "store"), on_server("b", 1, "keep"), machine="store*2; keep*2")
    ),
    "no variables": not_checked(placement(op("a", "NoOp"), machine="store*2; worker*2: gpu")),
    "the machine lacks the job": not_checked(shards(0, machine="pss*2; worker*2: gpu"), job="ps"),
    "one server": not_checked(shards(0, 0, machine="ps*1; worker*2: gpu")),
    "a job without variables": not_checked(shards(0, 0), job="worker", by="bytes"),
    "servers without variables": not_checked(placement(op("a", "NoOp"), machine=CLUSTER)),
    "two empty servers, and each other holds one variable": kept(APART),
    "two empty servers, and each other holds one variable, by bytes": kept(APART, by="bytes"),
}

test_verdicts = verdicts(ShardsBalanced, CASES)


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
    _, (error,) = parse_policy({"shards-balanced": fields})
    assert str(error) == f"shards-balanced.{message}"
