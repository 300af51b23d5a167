"""The place of a process among the ranks of a Horovod program."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.core.devices import Device
from placement_checks.core.machines import Machine
from placement_checks.core.ranks import MAX_RANKS, Rank, RankRecord
from placement_checks.core.strategies import Strategy


@given(st.integers(1, MAX_RANKS).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_the_environment_states_the_rank(place: tuple[int, int]) -> None:
    rank = Rank(*place)

    assert Rank.from_environment(rank.environment) == rank
    assert rank.environment["HOROVOD_LOCAL_RANK"] == str(rank.number)
    assert rank.environment["OMPI_COMM_WORLD_RANK"] == str(rank.number)
    assert rank.environment["OMPI_COMM_WORLD_LOCAL_SIZE"] == str(rank.size)


def test_without_the_variables_there_is_no_rank() -> None:
    with pytest.raises(KeyError):
        Rank.from_environment({"HOROVOD_RANK": "0"})


@given(st.integers(2, MAX_RANKS))
def test_each_rank_is_a_task_with_one_gpu(ranks: int) -> None:
    machine = Machine.of_ranks(ranks)

    assert str(machine) == f"rank*{ranks}: gpu*1"
    assert Machine.parse(str(machine)) == machine
    assert len(machine.gpus) == ranks


GPUS = [Device("rank", task=number, type="GPU", index=0) for number in range(2)]
RANKS = Strategy("Horovod", GPUS, ranks=[RankRecord(Rank(number, 2)) for number in range(2)])


@pytest.mark.parametrize(
    ("requested", "gpu"),
    [
        (Device("rank", task=1), GPUS[1]),
        (Device("rank", task=1, type="CPU", index=0), None),
        (Device("rank", task=2), None),
        (Device(), None),
    ],
)
def test_an_op_without_a_device_is_on_the_gpu_of_its_rank(
    requested: Device, gpu: Device | None
) -> None:
    assert RANKS.default_gpu(requested) == gpu


def test_an_op_of_a_worker_has_no_default() -> None:
    workers = Strategy("MultiWorkerMirroredStrategy", GPUS)

    assert workers.default_gpu(Device("rank", task=1)) is None
