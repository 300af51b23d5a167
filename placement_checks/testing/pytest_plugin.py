"""The pytest plugin: hooks and the fixture ``place``. Loading it imports no TensorFlow."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from placement_checks.core.gpus import checked_gpus, local_gpus
from placement_checks.testing import isolation

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.results import Verdict
    from placement_checks.logs.live import CaughtLog
    from placement_checks.testing.place import Place
    from placement_checks.testing.tower_benchmark import TowerBenchmark

_PROPERTY = "placement"
_MARK_ARGUMENTS = ("gpus", "machine", "soft")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options (group "placement")."""
    group = parser.getgroup("placement", "device placement checks")
    group.addoption(
        "--placement-devices",
        choices=("auto", "real", "simulated"),
        default="auto",
        help="Where programs are placed and run: on the GPUs here if there are enough, else on "
        "phantom and simulated ones (auto); on GPUs or not at all (real); never on GPUs "
        "(simulated). Default: %(default)s.",
    )
    group.addoption(
        "--placement-gpus",
        type=int,
        default=0,
        metavar="N",
        help="Start TensorFlow with so many CPU devices that N GPUs can be simulated for eager "
        "code and strategies (placement_checks.simulated_gpus).",
    )


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Ask for logical CPUs before a conftest can start TensorFlow."""
    gpus = early_config.known_args_namespace.placement_gpus
    if not gpus:
        return
    from placement_checks.core.errors import UsageError
    from placement_checks.testing.import_hook import ask_on_import

    try:
        ask_on_import(checked_gpus(gpus))
    except UsageError as error:
        raise pytest.UsageError(f"--placement-gpus={gpus}: {error}") from None


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and what depends on other plugins."""
    config.addinivalue_line(
        "markers",
        "gpu(n): the test is about n GPUs; `place` uses as many, and --placement-devices=real "
        "skips it where there are fewer.",
    )
    config.addinivalue_line(
        "markers",
        "placement(*rules, gpus=, machine=, soft=): everything that the test places must keep "
        "these rules; the keywords are the defaults of `place`.",
    )
    plugins = config.pluginmanager
    plugins.register(_Summary(), "placement-summary")
    plugins.register(_Timed() if plugins.hasplugin("benchmark") else _Untimed(), "placement-timed")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which devices are used."""
    return f"placement: devices {_devices(config)}, {_found(len(local_gpus()))}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks that make no sense before anything runs, and prepare for being timed."""
    if any("tower_benchmark" in getattr(item, "fixturenames", ()) for item in items):
        from placement_checks.run.threads import settle

        settle()
    for item in items:
        for mark in item.iter_markers("gpu"):
            if len(mark.args) != 1 or type(mark.args[0]) is not int or mark.args[0] < 1:
                raise pytest.UsageError(f"{item.nodeid}: write @pytest.mark.gpu(2)")
        for mark in item.iter_markers("placement"):
            if unknown := mark.kwargs.keys() - set(_MARK_ARGUMENTS):
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.placement has no {' and no '.join(unknown)}, "
                    f"only {', '.join(_MARK_ARGUMENTS)}"
                )
            _check_rules(item, mark.args)


def pytest_report_collectionfinish() -> list[str]:
    """Say so if a test's module, as it was imported, has changed what all tests build."""
    call = isolation.turned_off()
    return [f"placement: {call} was called on import, and holds for all tests"] if call else []


def _check_rules(item: pytest.Item, rules: tuple[object, ...]) -> None:
    from placement_checks.core.errors import UsageError
    from placement_checks.verification.policy import known_rule

    for rule in rules:
        try:
            known_rule(str(rule))
        except UsageError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that wants more GPUs than there are, if real ones are asked for."""
    wanted = _gpus_wanted(item)
    present = len(local_gpus())
    if _devices(item.config) == "real" and present < wanted:
        pytest.skip(
            f"wants {wanted} GPU{'s' if wanted > 1 else ''}, {_found(present)} "
            "(--placement-devices=real)"
        )


# Last, and so inside pytest's capturing, which takes hold of the descriptors anew for the call.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record the verdicts of a test, and keep what it does to TensorFlow from the next one."""
    from placement_checks.testing import checking

    def record(evidence: Evidence, verdict: Verdict) -> None:
        facts = {
            "program": evidence.placement.program,
            "on": _conditions(evidence, verdict),
            "rule": verdict.rule,
            "state": verdict.state,
        }
        item.user_properties.append((_PROPERTY, json.dumps(facts)))

    checking.observers.append(record)
    checking.devices = _devices(item.config)
    before = isolation.before_test()
    caught: CaughtLog | None = getattr(item, "funcargs", {}).get("placement_log")
    try:
        with caught or contextlib.nullcontext():
            return (yield)
    finally:
        checking.observers.remove(record)
        for leak in isolation.undone(before):
            item.warn(pytest.PytestWarning(f"{item.nodeid} {leak}; it was undone"))


def _conditions(evidence: Evidence, verdict: Verdict) -> str:
    """What a verdict rests on: the machine and its placer, or the devices of a run."""
    if verdict.evidence == "executed" and evidence.measurement:
        return f"gpu*{evidence.measurement.towers} ({evidence.measurement.devices})"
    return f"{evidence.machine or 'no machine'} ({evidence.placer or 'not placed'})"


class _Summary:
    """Counts the verdicts of all tests; under xdist, those of all workers."""

    def __init__(self) -> None:
        self._states: Counter[str] = Counter()
        self._machines: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == _PROPERTY:
                facts = json.loads(str(value))
                self._states[facts["state"]] += 1
                self._machines[facts["on"]] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._states:
            return
        said = ", ".join(
            f"{self._states[state]} {state.replace('-', ' ')}"
            for state in ("kept", "broken", "not-checked")
        )
        terminalreporter.section("placement checks")
        terminalreporter.line(f"rules: {said}, on {', '.join(sorted(self._machines))}")


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """Place a program or graph on GPUs that need not exist: ``place(build, gpus=2)``.

    The call takes a builder, a ``tf.Graph``, a target such as ``train.py:build_towers`` or the
    path of a saved graph, and the keywords ``gpus`` (default 2), ``machine`` (a `Machine` or its
    written form) and ``soft``. With ``reference``, the program for one GPU, and ``batch`` both
    are run, for the rules on numbers. It returns `Evidence` for the ``assert_*`` functions.
    What the call leaves open, the marks of the test say, and then ``[tool.placement_checks]``.
    """
    from placement_checks.testing.checking import assert_rules
    from placement_checks.verification import configuration, gathering

    item = request.node
    marks = list(item.iter_markers("placement"))
    settings = configuration.load(request.config.rootpath).settings
    defaults: dict[str, Any] = {"gpus": settings.gpus or 2, "soft": settings.soft}
    if settings.machine:
        defaults["machine"] = settings.machine
    if _gpus_wanted(item):
        defaults |= {"gpus": _gpus_wanted(item), "machine": None}
    for mark in reversed(marks):
        defaults |= _one_machine(mark.kwargs)
    rules = list(dict.fromkeys(rule for mark in marks for rule in mark.args))
    alone = {rule for mark in marks if _is_of_one_gpu(mark) for rule in mark.args}
    devices = _devices(request.config)

    def call(target: Any, **keywords: Any) -> Evidence:
        __tracebackhide__ = True
        options = {**defaults, **_one_machine(keywords)}
        reference, batch = options.pop("reference", None), options.pop("batch", None)
        evidence = gathering.place(target, devices=devices, **options)
        policy = settings.within(configuration.Settings(policy=evidence.policy)).policy
        evidence = replace(evidence, policy=policy)
        if reference is not None:
            evidence = gathering.with_numbers(evidence, reference, batch, devices=devices)
        if rules:
            one = evidence.machine is not None and evidence.machine.towers == 1
            assert_rules(evidence, *rules, alone=alone if one else ())
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


class _Timed:
    """``tower_benchmark`` with pytest-benchmark, which knows these tests by its own fixture."""

    @pytest.fixture
    def tower_benchmark(self, request: pytest.FixtureRequest, benchmark: Any) -> TowerBenchmark:
        """Time towers beside one GPU: ``tower_benchmark(build_towers, build_single, batch)``.

        The call takes two builders or targets, a batch function, and the keywords ``gpus``,
        ``rows``, ``rounds`` and ``fail_over``, the largest ratio of their times. It returns a
        `Timing`. pytest-benchmark's table and JSON have the steps of the towers, with the ratios
        as ``extra_info``.
        """
        from placement_checks.testing.tower_benchmark import TowerBenchmark

        if hasattr(request.config, "workerinput"):
            benchmark.skipped = True  # or it warns that nothing was timed
            pytest.skip(
                "tower_benchmark is off under xdist, whose workers share the cores: run it with "
                "-n 0"
            )
        gpus = _gpus_wanted(request.node) or 2
        return TowerBenchmark(benchmark, gpus, _devices(request.config), request.config)


class _Untimed:
    """``tower_benchmark`` without pytest-benchmark."""

    @pytest.fixture
    def tower_benchmark(self) -> None:
        """Time towers beside one GPU (``pip install 'placement_checks[benchmark]'``)."""
        pytest.fail(
            "tower_benchmark needs pytest-benchmark: pip install 'placement_checks[benchmark]'",
            pytrace=False,
        )


def _one_machine(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call; a number of GPUs takes the place of an outer machine."""
    return {"machine": None, **keywords} if "gpus" in keywords else dict(keywords)


def _is_of_one_gpu(mark: pytest.Mark) -> bool:
    """Whether a mark asks for rules on one GPU, on which those that compare towers have no say."""
    return mark.kwargs.get("gpus") == 1 or str(mark.kwargs.get("machine")) == "gpu*1"


def _gpus_wanted(item: pytest.Item) -> int:
    return max((mark.args[0] for mark in item.iter_markers("gpu")), default=0)


def _devices(config: pytest.Config) -> str:
    return str(config.getoption("--placement-devices"))


def _found(gpus: int) -> str:
    return f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'} here"
