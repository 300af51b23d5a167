"""The fixtures of the pytest plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from placement_checks.testing import locations, markers

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.machines import Machine
    from placement_checks.core.program import Batch, TargetLike
    from placement_checks.logs.live import CaughtLog
    from placement_checks.testing.benchmark import TowerBenchmark


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """Place a program or graph on GPUs that need not exist: ``place(build, gpus=2)``.

    The argument is a builder, a function that trains, a ``tf.Graph``, the value that
    ``with watch()`` yields, a target such as ``train.py:build_towers``, the path of a saved graph,
    or a whole program, ``train.py``, with its ``args``. Keywords are ``gpus``,
    ``machine`` (a `Machine` or its text form) and ``soft``, or ``horovod``, the number of ranks of
    a Horovod program, as for `placement_checks.place`. With ``reference``, the program for one
    GPU, and ``batch``, both programs run, for the rules on numbers. The call returns `Evidence`
    for the ``assert_*`` functions.

    Defaults come from the marks of the test, then from ``[tool.placement_checks]``.
    """
    from placement_checks.core.errors import PlacementError, UsageError
    from placement_checks.targets.forms import resolve_reference
    from placement_checks.testing.checking import assert_rules
    from placement_checks.testing.patches import add_note_on_patches, check_patches
    from placement_checks.verification import placing, running

    placement_marks = list(markers.placement_marks_of(request.node))
    settings = locations.configuration_of(request.node).settings
    defaults: dict[str, Any] = {
        "gpus": settings.gpus,
        "machine": settings.machine,
        "soft": settings.soft,
    }
    if gpus := markers.needed_gpus(request.node):
        defaults |= {"gpus": gpus, "machine": None}
    for mark in reversed(placement_marks):
        defaults |= markers.resolve_machine(mark.kwargs)
    rules = list(dict.fromkeys(rule for mark in placement_marks for rule in mark.args))
    one_tower = {
        rule for mark in placement_marks if markers.is_single_gpu(mark) for rule in mark.args
    }
    devices = markers.devices_of(request.config)

    def call(target: Any, *unnamed: Any, **keywords: Any) -> Evidence:
        __tracebackhide__ = True
        _check_names(unnamed, keywords)
        options = {**defaults, **markers.resolve_machine(keywords)}
        if keywords.get("horovod"):  # the ranks are the machine
            options["machine"] = keywords.get("machine")
        target, reference, batch = (
            locations.find_target(each, request.node)
            for each in (target, options.pop("reference", None), options.pop("batch", None))
        )
        if reference is None and batch is not None:
            raise UsageError(
                "batch",
                "requires a reference program",
                "name the program for one GPU: reference=build_single",
                is_predicate=True,
            )
        try:
            evidence = placing.place(target, **options)
        except PlacementError as error:
            add_note_on_patches(error, target)
            raise
        check_patches(evidence)
        own = replace(
            evidence.settings,
            policy=settings.policy.over(evidence.settings.policy),
            rules=settings.rules,
            without=settings.without,
        )
        evidence = replace(evidence, settings=own)
        if isinstance(reference, str):
            reference = resolve_reference(replace(own, reference=reference))
        if reference is not None:
            evidence = running.with_numbers(evidence, reference, batch, devices=devices)
        if rules:
            is_one = evidence.machine is not None and evidence.machine.towers == 1
            assert_rules(evidence, *rules, one_tower=one_tower if is_one else ())
        return evidence

    return call


def _check_names(unnamed: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Check that the arguments of a call of ``place``, except the first, are its keywords.

    Raises:
        UsageError: an argument has no name or an unknown name.
    """
    import inspect

    from placement_checks.core.errors import UsageError
    from placement_checks.util.text import did_you_mean, join_and

    _, _, *names = inspect.signature(Place.__call__).parameters  # after self and target
    if unnamed:
        fix = "name it, such as place(build, gpus=2)"
        message = f"{unnamed[0]!r:.60} needs a name"
        raise UsageError("place", f"its argument {message}", fix)
    for name in keywords:
        if name not in names:
            fix = did_you_mean("gpus" if name == "num_gpus" else name, names)
            message = f"has no argument '{name}'"
            fix = fix or f"its arguments are {join_and(names)}"
            raise UsageError("place", message, fix, is_predicate=True)


@pytest.fixture
def placement_log() -> CaughtLog:
    """The placement log that TensorFlow prints in the test itself, not in its fixtures.

    ``placement_log.placement()`` returns the log so far as a `Placement`. When the test ends, the
    output is passed on to its original destination. Use `placement_checks.catch_log` for a part of
    a test, or in a fixture.
    """
    from placement_checks.logs.live import catch_log

    return catch_log()


class Timed:
    """``tower_benchmark`` with pytest-benchmark, which requires its fixture ``benchmark``."""

    @pytest.fixture
    def tower_benchmark(self, request: pytest.FixtureRequest, benchmark: Any) -> TowerBenchmark:
        """Compare step times: ``tower_benchmark(build_towers, build_single, batch)``.

        The call takes two builders or targets, a batch function, and the keywords ``gpus``,
        ``rows``, ``rounds`` and ``fail_over``, the largest allowed ratio of step times. It returns
        a `Timing`. The table and JSON of pytest-benchmark contain the steps of the towers, with
        the ratios as ``extra_info``.
        """
        from placement_checks.testing.benchmark import TowerBenchmark

        if hasattr(request.config, "workerinput"):
            benchmark.skipped = True  # otherwise pytest-benchmark warns that nothing was timed
            pytest.skip(
                "tower_benchmark is off under xdist because workers share the cores: run it with "
                "-n 0"
            )
        gpus = markers.needed_gpus(request.node) or 2
        return TowerBenchmark(benchmark, gpus, request.node)


class Untimed:
    """``tower_benchmark`` without pytest-benchmark."""

    @pytest.fixture
    def tower_benchmark(self) -> None:
        """Compare step times (needs ``pip install 'placement_checks[benchmark]'``)."""
        pytest.fail(
            "tower_benchmark needs pytest-benchmark: pip install 'placement_checks[benchmark]'",
            pytrace=False,
        )


class Place(Protocol):
    """The type of the fixture ``place``: ``def test_towers(place: Place) -> None``."""

    def __call__(
        self,
        target: TargetLike,
        *,
        gpus: int = ...,
        machine: Machine | str | None = ...,
        soft: bool | None = ...,
        reference: TargetLike | None = ...,
        batch: Batch = ...,
        args: Sequence[str] = ...,
        v1: bool = ...,
        let: Mapping[str, str] = ...,
        limit: float | None = ...,
        horovod: int = ...,
    ) -> Evidence:
        """Place a program or graph; see the fixture."""
