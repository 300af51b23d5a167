from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.core import cluster_spec
from placement_checks.core.errors import InputError

FIX = 'write it like {"ps": ["host0:2222"], "worker": ["host1:2222", "host2:2222"]}'
ADDRESS = "write it like host0:2222"
LONG = "1" * 5000  # more digits than int() reads


class Spec:
    """The dictionary form of a tf.train.ClusterSpec."""

    def __init__(self, jobs: Mapping[str, Any] | None) -> None:
        self.jobs = jobs

    def as_dict(self) -> Mapping[str, Any] | None:
        return self.jobs


def config(
    monkeypatch: pytest.MonkeyPatch,
    cluster: Sequence[str] | Mapping[str, Any],
    task: str | Mapping[str, Any] | None = None,
) -> None:
    described = {"cluster": cluster} if task is None else {"cluster": cluster, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(described))


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (
            {"worker": ["a:1", "b:1"], "ps": ("c:65535",)},
            {"worker": {0: "a:1", 1: "b:1"}, "ps": {0: "c:65535"}},
        ),
        ({"worker": {7: "b:1", 2: "a:1"}}, {"worker": {2: "a:1", 7: "b:1"}}),
        ({"worker": {"10": "b:1", "9": "a:1"}}, {"worker": {9: "a:1", 10: "b:1"}}),
        (Spec({"Job_2": ["a:0"]}), {"Job_2": {0: "a:0"}}),
        (Spec({"ps": {3: "a:1"}}), {"ps": {3: "a:1"}}),
        ({"ps": ["[::1]:2222"]}, {"ps": {0: "[::1]:2222"}}),
        ({"ps": ["a:1"], "worker": ["a:2"]}, {"ps": {0: "a:1"}, "worker": {0: "a:2"}}),
    ],
)
def test_addresses_of_every_form_of_a_spec(
    spec: Mapping[str, Any] | Spec, found: Mapping[str, Mapping[int, str]]
) -> None:
    assert cluster_spec.addresses(spec) == found


def test_jobs_keep_their_order_and_tasks_are_sorted() -> None:
    found = cluster_spec.addresses({"worker": {"10": "a:1", "9": "a:2"}, "chief": ["a:3"]})

    assert [(job, list(tasks)) for job, tasks in found.items()] == [
        ("worker", [9, 10]),
        ("chief", [0]),
    ]


@pytest.mark.parametrize("spec", [{}, None, [], ["a:1"], "ps", 3, Spec({}), Spec(None)])
def test_a_spec_without_jobs(spec: Any) -> None:
    with pytest.raises(InputError) as caught:
        cluster_spec.addresses(spec)
    assert str(caught.value) == f"the ClusterSpec names no jobs; {FIX}"


@pytest.mark.parametrize(
    "job", ["", "9ps", "_ps", "ps-1", "ps/task:0", "ps ", "ps\n", "ж", 1, None]
)
def test_an_invalid_job_name_is_refused(job: str | int | None) -> None:
    with pytest.raises(InputError) as caught:
        cluster_spec.addresses({"worker": ["a:1"], job: ["b:1"]})
    assert str(caught.value) == f"the ClusterSpec: {job!r} is not the name of a job; {FIX}"


@pytest.mark.parametrize(
    "tasks",
    [
        [],
        (),
        {},
        None,
        "",
        "a:1",
        3,
        {"first": "a:1"},
        {-1: "a:1"},
        {0: "a:1", "": "b:1"},
        {"0": "a:1", "٣": "b:1"},
        {True: "a:1"},
        {"1000000000": "a:1"},
        {LONG: "a:1"},
    ],
)
def test_a_job_without_a_list_of_addresses(tasks: Any) -> None:
    with pytest.raises(InputError) as caught:
        cluster_spec.addresses({"ps": tasks})
    assert str(caught.value) == f"the ClusterSpec: the job ps lacks a list of addresses; {FIX}"


@pytest.mark.parametrize(
    "tasks",
    [
        {"1": "b:1", "01": "a:1"},
        {"1": None, "01": "a:1"},
        {"0": "a:1", "2": "b:1", 2: "b:1"},
    ],
)
def test_a_job_that_has_one_index_twice(tasks: Mapping[str | int, str | None]) -> None:
    with pytest.raises(InputError) as caught:
        cluster_spec.addresses({"worker": ["c:1"], "ps": tasks})
    assert str(caught.value) == f"the ClusterSpec: the job ps has a task index twice; {FIX}"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":2222",
        ":",
        "host:x",
        "host:-1",
        "host:22 ",
        "host:²",
        "host:٣",
        "host:1000000000",
        f"host:{LONG}",
    ],
)
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster_spec.addresses({"ps": ["host:1", address]})
    assert str(caught.value) == (
        f"the ClusterSpec: /job:ps/task:1 has the address {address!r}; {ADDRESS}"
    )


@pytest.mark.parametrize("address", [None, 22, pytest.param(10**5000, id="long"), ["a:1"]])
def test_an_address_that_is_not_a_string_is_refused(address: int | Sequence[str] | None) -> None:
    with pytest.raises(InputError) as caught:
        cluster_spec.addresses({"ps": ["host:1", address]})
    assert str(caught.value) == (
        "the ClusterSpec: the address of /job:ps/task:1 is of type "
        f"{type(address).__name__}; write host0:2222"
    )


@pytest.mark.parametrize("index", [pytest.param(10**5000, id="long"), -1, 1.0, "x"])
def test_an_invalid_index_is_refused(index: str | float) -> None:
    with pytest.raises(InputError, match="the job ps lacks a list of addresses"):
        cluster_spec.addresses({"ps": {index: "a:1"}})


@pytest.mark.parametrize("port", ["65536", "999999999"])
def test_a_port_above_65535_is_refused(port: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster_spec.addresses({"ps": {"4": f"host:{port}"}})
    assert str(caught.value) == (
        f"the ClusterSpec: /job:ps/task:4 has the port {port}; ports end at 65535"
    )


@pytest.mark.parametrize(
    ("spec", "tasks"),
    [
        ({"ps": ["a:1", "b:1", "a:1"]}, "/job:ps/task:0 and /job:ps/task:2"),
        ({"ps": ["b:1", "a:1"], "worker": {5: "a:1"}}, "/job:ps/task:1 and /job:worker/task:5"),
    ],
)
def test_two_tasks_with_one_address_are_refused(spec: Mapping[str, Any], tasks: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster_spec.addresses(spec)
    assert str(caught.value) == (
        f"the ClusterSpec: {tasks} both have the address a:1; give every task a port of its own"
    )


@pytest.mark.parametrize(
    "spec",
    [{}, {"9": []}, {"ps": []}, {"ps": ["a"]}, {"ps": ["a:65536"]}, {"ps": ["a:1", "a:1"]}],
)
def test_messages_name_the_spec_as_the_call_does(spec: Mapping[str, Sequence[str]]) -> None:
    with pytest.raises(InputError) as caught:
        cluster_spec.addresses(spec, "cluster.json")
    assert caught.value.object == "cluster.json"


def test_from_environment_reads_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    config(monkeypatch, {"ps": ["a:1"], "worker": ["b:1", "c:1"]})
    cluster = {"ps": {0: "a:1"}, "worker": {0: "b:1", 1: "c:1"}}
    assert cluster_spec.from_environment() == (cluster, None)


@pytest.mark.parametrize(
    ("cluster", "task", "own"),
    [
        pytest.param({"ps": ["a:1", "b:1"]}, {"type": "ps", "index": 1}, ("ps", 1), id="last"),
        pytest.param({"ps": ["a:1"]}, {"type": "ps", "index": "0"}, ("ps", 0), id="index as text"),
        pytest.param({"chief": ["a:1"]}, {"type": "chief"}, ("chief", 0), id="no index"),
        pytest.param({"chief": ["a:1"]}, {"index": 4}, None, id="no type"),
        pytest.param({"chief": ["a:1"]}, {"type": None}, None, id="type that is null"),
        pytest.param({"chief": ["a:1"]}, "chief", None, id="no mapping"),
        pytest.param({"chief": ["a:1"]}, {}, None, id="empty"),
        pytest.param({"ps": ["a:1"]}, {"type": "evaluator", "index": 0}, None, id="evaluator"),
        pytest.param({"ps": ["a:1"]}, {"type": "evaluator", "index": 9}, None, id="evaluator 9"),
        pytest.param(
            {"ps": {"3": "a:1", "7": "b:1"}}, {"type": "ps", "index": 7}, ("ps", 7), id="sparse"
        ),
    ],
)
def test_the_own_task_is_in_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
    cluster: Mapping[str, Any],
    task: str | Mapping[str, Any],
    own: tuple[str, int] | None,
) -> None:
    config(monkeypatch, cluster, task)
    assert cluster_spec.from_environment() == (cluster_spec.addresses(cluster), own)


@pytest.mark.parametrize("text", [None, ""])
def test_tf_config_is_not_set(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(InputError) as caught:
        cluster_spec.from_environment()
    assert (
        str(caught.value)
        == "TF_CONFIG is not set; set it, or describe the machine instead of TF_CONFIG"
    )


def test_tf_config_that_is_not_json_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{'cluster': 1}")
    with pytest.raises(InputError) as caught:
        cluster_spec.from_environment()
    assert str(caught.value) == (
        "TF_CONFIG is not JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)"
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100_000, id="nested too deep"),
        pytest.param(f'{{"cluster": {{"ps": [{LONG}]}}}}', id="a number too long"),
    ],
)
def test_tf_config_too_large_for_json(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(InputError, match=r"^TF_CONFIG is not JSON: [A-Za-z]"):
        cluster_spec.from_environment()


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", "3", '"cluster"', '{"cluster": {}}', '{"cluster": null}']
)
def test_tf_config_without_a_cluster(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(InputError) as caught:
        cluster_spec.from_environment()
    assert str(caught.value) == (
        f'TF_CONFIG describes no cluster; its "cluster" is missing; {FIX}'
    )


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (["ps"], f"names no jobs; {FIX}"),
        ({"ps": ["a"]}, f"/job:ps/task:0 has the address 'a'; {ADDRESS}"),
    ],
)
def test_tf_config_with_a_malformed_cluster(
    monkeypatch: pytest.MonkeyPatch,
    cluster: Sequence[str] | Mapping[str, Sequence[str]],
    message: str,
) -> None:
    config(monkeypatch, cluster)
    with pytest.raises(InputError) as caught:
        cluster_spec.from_environment()
    error = caught.value
    assert (error.object, f"{error.message}; {error.fix}") == ("TF_CONFIG", message)


@pytest.mark.parametrize(
    ("job", "fix"),
    [
        ("workers", "did you mean 'worker'?"),
        ("Worker", "did you mean 'worker'?"),
        ("zzz", "its jobs are ps, worker"),
        ("", "its jobs are ps, worker"),
        (3, "its jobs are ps, worker"),
    ],
)
def test_the_job_of_the_own_task_is_missing(
    monkeypatch: pytest.MonkeyPatch, job: str | int, fix: str
) -> None:
    config(monkeypatch, {"ps": ["a:1"], "worker": ["b:1"]}, {"type": job, "index": 0})
    with pytest.raises(InputError) as caught:
        cluster_spec.from_environment()
    assert str(caught.value) == (
        f"TF_CONFIG: its task is of the job {job}, which the cluster lacks; {fix}"
    )


@pytest.mark.parametrize(
    ("tasks", "index", "has"),
    [
        (["a:1", "b:1"], 2, "tasks 0 and 1"),
        (["a:1", "b:1"], -1, "tasks 0 and 1"),
        (["a:1", "b:1"], "first", "tasks 0 and 1"),
        (["a:1", "b:1"], None, "tasks 0 and 1"),
        (["a:1", "b:1"], True, "tasks 0 and 1"),
        (["a:1", "b:1"], "٣", "tasks 0 and 1"),
        (["a:1", "b:1", "c:1"], 3, "tasks 0 to 2"),
        (["a:1"], 1.0, "task 0 alone"),
        ({"7": "a:1", "3": "b:1", "8": "c:1"}, 4, "tasks 3, 7 and 8"),
    ],
)
def test_the_index_of_the_own_task_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    tasks: Sequence[str] | Mapping[str, str],
    index: str | bool | float | None,
    has: str,
) -> None:
    config(monkeypatch, {"worker": tasks}, {"type": "worker", "index": index})
    with pytest.raises(InputError) as caught:
        cluster_spec.from_environment()
    assert str(caught.value) == (
        f"TF_CONFIG: its task is /job:worker/task:{index}, which the cluster lacks; "
        f"the job has {has}"
    )


def test_a_long_index_of_the_own_task_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    config(monkeypatch, {"ps": ["a:1"]}, {"type": "ps", "index": LONG})
    with pytest.raises(InputError) as caught:
        cluster_spec.from_environment()
    assert str(caught.value) == (
        f"TF_CONFIG: its task is /job:ps/task:{LONG[:20]}, which the cluster lacks; "
        "the job has task 0 alone"
    )


def test_without_an_index_the_own_task_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    config(monkeypatch, {"worker": {"3": "a:1"}}, {"type": "worker"})
    with pytest.raises(InputError) as caught:
        cluster_spec.from_environment()
    assert str(caught.value) == (
        "TF_CONFIG: its task is /job:worker/task:0, which the cluster lacks; "
        "the job has task 3 alone"
    )


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([0], "task 0 alone"),
        ([3], "task 3 alone"),
        ([0, 1], "tasks 0 and 1"),
        ([0, 7], "tasks 0 and 7"),
        ([0, 1, 2], "tasks 0 to 2"),
        (range(4, 3000), "tasks 4 to 2999"),
        ([0, 1, 3], "tasks 0, 1 and 3"),
        ([*range(8), 9], "tasks 0, 1, 2, 3, 4, 5, 6, 7 and 9"),
        ([*range(1, 9), 10, 11], "tasks 1, 2, 3, 4, 5, 6, 7, 8 and others"),
        (range(0, 3000, 2), "tasks 0, 2, 4, 6, 8, 10, 12, 14 and others"),
    ],
)
def test_text_for_tasks(indices: Sequence[int] | range, words: str) -> None:
    assert cluster_spec.tasks_text(indices) == words


words = st.text(max_size=5) | st.sampled_from(["ps", "worker", "0", "3", "a:1", "b:65536", "c:x"])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | words
junk = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(junk | st.dictionaries(words | leaves, junk, max_size=3))
def test_addresses_raises_nothing_but_input_errors(
    spec: bool | Sequence[Any] | Mapping[Any, Any] | None,
) -> None:
    found = {}
    with suppress(InputError):
        found = cluster_spec.addresses(spec)
    addresses = [address for tasks in found.values() for address in tasks.values()]
    assert len(set(addresses)) == len(addresses)
    assert not found or cluster_spec.addresses(found) == found


@given(st.fixed_dictionaries({}, optional={"cluster": junk, "task": junk}) | junk)
def test_from_environment_raises_nothing_but_input_errors(
    described: str | Sequence[str | None] | Mapping[str, Any] | None,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", json.dumps(described))
        with suppress(InputError):
            cluster_spec.from_environment()
