"""Timings of alternating loops. Whether there is a ratio does not depend on its value."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.timings import loop, timing

from placement_checks.core.devices import RunDevices
from placement_checks.core.timing import Spread

BUSY = ": the machine was busy; time it again when it is quiet"

seconds = st.floats(0.001, 1000)
rounds = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=9)


@pytest.mark.parametrize("baseline", [0.91, 1.0, 1.09])
def test_a_quiet_run_has_a_ratio(baseline: float) -> None:
    timed = timing(baseline)

    assert timed.unmeasured == ""
    assert timed.ratio == (0.5, 0.5, 0.5)
    assert timed.efficiency == 1


@pytest.mark.parametrize("devices", ["simulated", "real"])
@pytest.mark.parametrize("baseline", [1.11, 0.89])
def test_a_busy_machine_has_no_ratio(devices: RunDevices, baseline: float) -> None:
    timed = timing(baseline, devices=devices)

    assert timed.unmeasured == f"the baseline is {baseline:.3f}, not within 1 ± 0.1{BUSY}"
    assert timed.ratio is None
    assert timed.efficiency is None


def test_expensive_towers_are_distinguished_from_a_busy_machine() -> None:
    timed = timing(loop(1.3, cpu=[1.25]))

    assert timed.unmeasured == (
        "the baseline is 1.300, not within 1 ± 0.1, and 1.25 in processor time: the towers do "
        "more work than one program; take more rows"
    )
    assert timed.ratio is None


def test_the_cost_of_towers_is_no_reason_with_a_quiet_baseline() -> None:
    assert timing(loop(1.0, cpu=[1.25])).ratio


def test_a_baseline_with_less_cpu_time_costs_nothing() -> None:
    assert timing(loop(1.3, cpu=[0.8])).unmeasured.endswith(BUSY)


@pytest.mark.parametrize("gpus", [2, 3])
def test_programs_that_delay_each_other_show_contention(gpus: int) -> None:
    timed = timing(contention=loop(1.3), gpus=gpus, cores=3)

    assert timed.unmeasured == (
        f"{gpus} programs at once took 1.30 times as long as one alone, more than 1.25: something "
        "else was using the cores; time it again when it is quiet"
    )
    assert timed.ratio is None


@pytest.mark.parametrize("contention", [0.5, 1.0, 1.24])
def test_programs_with_a_core_each_show_no_contention(contention: float) -> None:
    assert timing(contention=loop(contention)).ratio


def test_a_noisy_baseline_is_reported_before_contention() -> None:
    assert timing(1.3, contention=loop(1.3)).unmeasured == timing(1.3).unmeasured


def test_devices_of_one_core_each_need_as_many_cores() -> None:
    timed = timing(gpus=4, cores=2)

    assert timed.unmeasured == (
        "4 devices of one core each need as many cores, but this process has 2"
    )
    assert timed.ratio is None
    assert timing(gpus=4, cores=4).ratio


def test_real_devices_need_no_cores() -> None:
    assert timing(devices="real", gpus=4, cores=1).ratio
    assert timing(loop(1.3, cpu=[1.25]), devices="real").unmeasured.endswith(BUSY)


@given(st.lists(seconds, min_size=3, max_size=3), st.sampled_from([1.0, 1.11, 0.89]))
def test_whether_there_is_a_ratio_does_not_depend_on_it(
    towers: Sequence[float], baseline: float
) -> None:
    one = loop(1.0, 2.0, 4.0)
    quiet = loop(*(baseline * seconds for seconds in one.wall), cpu=one.cpu)
    timed = timing(quiet, single=one, towers=loop(*towers))

    assert timed.unmeasured == timing(baseline).unmeasured
    assert (timed.ratio is None) == (baseline != 1)


@given(rounds)
def test_ratios_are_taken_round_by_round(pairs: Sequence[tuple[float, float]]) -> None:
    """If the machine is slow for a while, it is slow for both loops; medians of all rounds would
    differ."""
    single, towers = (loop(*seconds_taken) for seconds_taken in zip(*pairs, strict=True))
    timed = timing(single, single=single, towers=towers)

    assert timed.ratio is not None
    assert timed.ratio.median == median(mine / its for its, mine in pairs)
    assert timed.efficiency == 1 / (timed.ratio.median * 2)


@given(rounds)
def test_baseline_and_contention_are_compared_with_one_gpu_round_by_round(
    pairs: Sequence[tuple[float, float]],
) -> None:
    single, other = (loop(*seconds_taken) for seconds_taken in zip(*pairs, strict=True))
    timed = timing(other, single=single, contention=other)

    assert timed.contention_ratio is not None
    assert timed.baseline_ratio.median == median(mine / its for its, mine in pairs)
    assert timed.baseline_ratio == timed.contention_ratio


def test_the_cost_of_towers_uses_their_fastest_steps() -> None:
    """On a busy machine, single steps take longer."""
    one, baseline = loop(1, 1, 1, cpu=[1, 9, 2]), loop(1, 1, 1, cpu=[5, 3, 9])

    assert timing(baseline, single=one).work == 3


@given(st.lists(seconds, min_size=1, max_size=9))
def test_a_spread_is_the_median_and_its_quartiles(values: Sequence[float]) -> None:
    low, middle, high = np.percentile(values, [25, 50, 75])

    assert Spread.from_values(values) == pytest.approx((middle, low, high))


def test_text_of_a_spread() -> None:
    assert str(Spread.from_values([0.25, 0.5, 1.0])) == "0.500 (0.375 to 0.750)"


def test_examples_count_the_global_batch() -> None:
    timed = timing(towers=loop(0.5, 0.25, 4.0), single=loop(1, 1, 1), baseline=loop(1, 1, 1))

    assert timed.examples(timed.towers) == 256
    assert timed.examples(timed.single) == 128
