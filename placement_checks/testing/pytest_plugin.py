"""The pytest plugin: its hooks. Loading it imports no TensorFlow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from placement_checks.core.devices import checked_gpus, local_gpus
from placement_checks.testing import (
    baselines,
    fixtures,
    hookspec,
    markers,
    report_file,
    running_test,
    summary,
    tensorflow_state,
)
from placement_checks.testing.running_test import RunningTest

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.results import Verdict
    from placement_checks.logs.live import CaughtLog


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
    baselines.add_options(group)
    report_file.add_option(group)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hook that gets what all tests have judged."""
    pluginmanager.add_hookspecs(hookspec)


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Ask for logical CPUs before a conftest can start TensorFlow."""
    gpus = early_config.known_args_namespace.placement_gpus
    if not gpus:
        return
    from placement_checks.core.errors import UsageError
    from placement_checks.testing.tensorflow_state import request_cpus_on_import

    try:
        request_cpus_on_import(checked_gpus(gpus))
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
    settings = contextlib.ExitStack()
    test = RunningTest(markers.devices_of(config), all_findings=config.get_verbosity() > 1)
    settings.enter_context(running_test.run_as(test))
    config.add_cleanup(settings.close)
    plugins = config.pluginmanager
    plugins.register(fixtures, "placement-fixtures")
    plugins.register(summary.Summary(), "placement-summary")
    if not hasattr(config, "workerinput"):
        reports = report_file.ReportFile(config, report_file.path_of(config))
        plugins.register(reports, "placement-report")
    baselines.check_options(config)
    plugins.register(baselines.Baselines(config), "placement-baselines")
    timed = fixtures.Timed() if plugins.hasplugin("benchmark") else fixtures.Untimed()
    plugins.register(timed, "placement-timed")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which devices are used."""
    return f"placement: devices {markers.devices_of(config)}, {_gpus_here(len(local_gpus()))}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check all marks before anything runs, and prepare for timing."""
    if any("tower_benchmark" in getattr(item, "fixturenames", ()) for item in items):
        from placement_checks.run.timing.thread_pools import set_thread_pools

        set_thread_pools()
    for item in items:
        markers.validate_marks(item)


def pytest_report_collectionfinish() -> list[str]:
    """Warn if the import of a test module has changed what all tests build."""
    call = tensorflow_state.global_change()
    return [f"placement: {call} was called on import, and holds for all tests"] if call else []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that wants more GPUs than there are, if real ones are asked for."""
    wanted = markers.gpus_wanted(item)
    present = len(local_gpus())
    if markers.devices_of(item.config) == "real" and present < wanted:
        pytest.skip(
            f"wants {wanted} GPU{'s' if wanted > 1 else ''}, {_gpus_here(present)} "
            "(--placement-devices=real)"
        )


# Last, and so inside pytest's capturing, which takes hold of the descriptors anew for the call.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record the verdicts of a test, and undo what it does to TensorFlow."""

    def record(evidence: Evidence, verdict: Verdict) -> None:
        item.user_properties.append(summary.recorded(evidence, verdict))
        if report_file.is_wanted(item.config):
            report_file.note(item, evidence, verdict)

    before = tensorflow_state.before_test()
    caught: CaughtLog | None = getattr(item, "funcargs", {}).get("placement_log")
    recording = replace(running_test.current(), record=record)
    try:
        with running_test.run_as(recording), caught or contextlib.nullcontext():
            return (yield)
    finally:
        for leak in tensorflow_state.restored(before):
            item.warn(pytest.PytestWarning(f"{item.nodeid} {leak}; it was undone"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what a test has judged into its report, and no frames of ours where it is at fault."""
    if call.excinfo is not None:
        summary.hide_internal_frames(call.excinfo.value)
    report = yield
    report_file.attach(item, report)
    return report


def _gpus_here(gpus: int) -> str:
    return f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'} here"


def pytest_assertrepr_compare(
    config: pytest.Config, op: str, left: object, right: object
) -> list[str] | None:
    """Explain why two placements are not equal."""
    if op != "==" or "placement_checks.core.placement" not in sys.modules:
        return None
    from placement_checks.testing.comparison import explain

    return explain(left, right, everything=config.get_verbosity() > 1)
