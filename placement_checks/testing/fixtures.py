"""The fixtures of the pytest plugin.

The type of the fixture ``place``, for tests that have types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from placement_checks.testing import markers

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.machines import Machine
    from placement_checks.core.program import Batch, Target
    from placement_checks.logs.live import CaughtLog
    from placement_checks.testing.benchmark import TowerBenchmark


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """Place a program or graph on GPUs that need not exist: ``place(build, gpus=2)``.

    The call takes a builder or a function that trains, a ``tf.Graph``, what ``with watch()``
    yields, a target such as ``train.py:build_towers``, the path of a saved graph, or a whole
    program, ``train.py``, with its ``args``; and the keywords ``gpus`` (default 2), ``machine``
    (a `Machine` or its written form) and ``soft``. With ``reference``, the program for one GPU,
    and ``batch`` both are run, for the rules on numbers. It returns `Evidence` for the
    ``assert_*`` functions.
    What the call leaves open is taken from the marks of the test, and then from
    ``[tool.placement_checks]``.
    """
    from placement_checks.core.errors import UsageError
    from placement_checks.testing.checking import assert_rules
    from placement_checks.verification import configuration, placing, running

    item = request.node
    placement_marks = list(item.iter_markers("placement"))
    settings = configuration.load(request.config.rootpath).settings
    defaults: dict[str, Any] = {"gpus": settings.gpus or 2, "soft": settings.soft}
    if settings.machine:
        defaults["machine"] = settings.machine
    if markers.gpus_wanted(item):
        defaults |= {"gpus": markers.gpus_wanted(item), "machine": None}
    for mark in reversed(placement_marks):
        defaults |= markers.resolve_machine(mark.kwargs)
    rules = list(dict.fromkeys(rule for mark in placement_marks for rule in mark.args))
    one_tower = {
        rule for mark in placement_marks if markers.is_single_gpu(mark) for rule in mark.args
    }
    devices = markers.devices_of(request.config)

    def call(target: Any, **keywords: Any) -> Evidence:
        __tracebackhide__ = True
        options = {**defaults, **markers.resolve_machine(keywords)}
        reference, batch = options.pop("reference", None), options.pop("batch", None)
        if reference is None and batch is not None:
            raise UsageError(
                "batch",
                "gives rows for a comparison, and no reference is named",
                "name the program for one GPU: reference=build_single",
            )
        evidence = placing.place(target, devices=devices, **options)
        policy = settings.defaulting_to(configuration.Settings(policy=evidence.policy)).policy
        evidence = replace(evidence, policy=policy)
        if reference is not None:
            evidence = running.with_numbers(evidence, reference, batch, devices=devices)
        if rules:
            is_one = evidence.machine is not None and evidence.machine.towers == 1
            assert_rules(evidence, *rules, one_tower=one_tower if is_one else ())
        return evidence

    return call


@pytest.fixture
def placement_log() -> CaughtLog:
    """The placement log that TensorFlow prints in the test itself, not in its fixtures.

    ``placement_log.placement()`` gives what was printed so far as a `Placement`; everything comes
    out where it would have gone when the test ends. For a part of a test, or in a fixture, there
    is `placement_checks.catch_log`.
    """
    from placement_checks.logs.live import catch_log

    return catch_log()


class Timed:
    """``tower_benchmark`` with pytest-benchmark, which knows these tests by its own fixture."""

    @pytest.fixture
    def tower_benchmark(self, request: pytest.FixtureRequest, benchmark: Any) -> TowerBenchmark:
        """Time towers beside one GPU: ``tower_benchmark(build_towers, build_single, batch)``.

        The call takes two builders or targets, a batch function, and the keywords ``gpus``,
        ``rows``, ``rounds`` and ``fail_over``, the largest ratio of their times. It returns a
        `Timing`. pytest-benchmark's table and JSON have the steps of the towers, with the ratios
        as ``extra_info``.
        """
        from placement_checks.testing.benchmark import TowerBenchmark

        if hasattr(request.config, "workerinput"):
            benchmark.skipped = True  # or it warns that nothing was timed
            pytest.skip(
                "tower_benchmark is off under xdist, whose workers share the cores: run it with "
                "-n 0"
            )
        gpus = markers.gpus_wanted(request.node) or 2
        return TowerBenchmark(benchmark, gpus, markers.devices_of(request.config), request.config)


class Untimed:
    """``tower_benchmark`` without pytest-benchmark."""

    @pytest.fixture
    def tower_benchmark(self) -> None:
        """Time towers beside one GPU (``pip install 'placement_checks[benchmark]'``)."""
        pytest.fail(
            "tower_benchmark needs pytest-benchmark: pip install 'placement_checks[benchmark]'",
            pytrace=False,
        )


class Place(Protocol):
    """What the fixture ``place`` gives: ``def test_towers(place: Place) -> None``."""

    def __call__(
        self,
        target: Target,
        *,
        gpus: int = ...,
        machine: Machine | str | None = ...,
        soft: bool | None = ...,
        reference: Target | None = ...,
        batch: Batch = ...,
        args: Sequence[str] = ...,
        v1: bool = ...,
        let: Mapping[str, str] = ...,
        limit: float | None = ...,
    ) -> Evidence:
        """Place a program or graph; defaults come from the marks and the configuration."""
