"""The hooks of the pytest plugin. The module does not import TensorFlow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import pytest

from placement_checks.core.devices import checked_gpus, local_gpus
from placement_checks.testing import (
    baselines,
    fixtures,
    hookspec,
    markers,
    running_test,
    tensorflow_state,
    tracebacks,
    verdicts,
)
from placement_checks.testing.running_test import RunningTest
from placement_checks.verification.trust import trusting

if TYPE_CHECKING:
    from placement_checks.logs.live import CaughtLog

_IMPORTED = pytest.StashKey[str]()  # the module whose import changed TensorFlow for all tests


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options (group "placement")."""
    group = parser.getgroup("placement", "device placement checks")
    group.addoption(
        "--placement-devices",
        choices=("auto", "real", "simulated"),
        default="auto",
        help="auto: use the GPUs of this machine if there are enough, otherwise none. real: use "
        "GPUs, and skip tests that need more. simulated: use no GPUs. Default: %(default)s.",
    )
    group.addoption(
        "--placement-gpus",
        type=int,
        default=0,
        metavar="N",
        help="Start TensorFlow with enough CPU devices to simulate N GPUs for eager code and "
        "strategies (placement_checks.simulated_gpus).",
    )
    group.addoption(
        "--placement-trust",
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="Use the [tool.placement_checks] and programs below this directory although they "
        "belong to another user; may be repeated.",
    )
    baselines.add_options(group)
    verdicts.add_option(group)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hook that receives the verdicts of all tests."""
    pluginmanager.add_hookspecs(hookspec)


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Request logical CPUs before a conftest can start TensorFlow."""
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
    """Register the markers, and the plugins of this package."""
    config.addinivalue_line(
        "markers",
        f"{markers.GPU}(n): the test needs n GPUs; `place` uses n GPUs, and "
        "--placement-devices=real skips the test if there are fewer.",
    )
    config.addinivalue_line(
        "markers",
        f"{markers.CHECKS}(*rules, gpus=, machine=, soft=): every program that the fixture "
        "`place` places in the test must keep these rules; the keywords are defaults of `place`.",
    )
    settings = contextlib.ExitStack()
    test = RunningTest(markers.devices_of(config), all_findings=config.get_verbosity() > 1)
    settings.enter_context(running_test.run_as(test))
    settings.enter_context(trusting(config.getoption("--placement-trust")))
    config.add_cleanup(settings.close)
    plugins = config.pluginmanager
    plugins.register(fixtures, "placement-fixtures")
    plugins.register(verdicts.Recorder(), "placement-recorder")
    plugins.register(verdicts.Summary(), "placement-summary")
    if not hasattr(config, "workerinput"):
        plugins.register(verdicts.ReportFile(config), "placement-report")
    baselines.check_options(config)
    plugins.register(baselines.Baselines(config), "placement-baselines")
    timed = fixtures.Timed() if plugins.hasplugin("benchmark") else fixtures.Untimed()
    plugins.register(timed, "placement-timed")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Print the devices that programs run on, and a limit of the installed TensorFlow."""
    from placement_checks.tf.startup import limit_of_installation

    devices = f"devices {markers.devices_of(config)}, {_gpus_here(local_gpus())}"
    limit = limit_of_installation()
    return [f"placement: {line}" for line in (devices, *([] if limit is None else [limit]))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set thread pools if a test measures time."""
    if any("tower_benchmark" in getattr(item, "fixturenames", ()) for item in items):
        from placement_checks.run.timing.thread_pools import set_thread_pools

        set_thread_pools()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Note the first test module whose import changes TensorFlow for all tests."""
    report = yield
    if _IMPORTED not in collector.config.stash and tensorflow_state.global_change():
        collector.config.stash[_IMPORTED] = collector.nodeid or "a conftest.py or plugin"
    return report


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> list[str]:
    """Warn if the import of a test module changed TensorFlow for tests that use the package."""
    call = tensorflow_state.global_change()
    if not call or not any(map(markers.uses_package, items)):
        return []
    module = config.stash.get(_IMPORTED, "a conftest.py or plugin")
    return [
        f"placement: the import of {module} called {call}, which affects all tests; call it in a "
        "test or fixture instead"
    ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the marks of a test; with --placement-devices=real, skip it without enough GPUs."""
    markers.check_marks(item)
    wanted = markers.needed_gpus(item)
    if not wanted or markers.devices_of(item.config) != "real":
        return
    present = local_gpus()
    if present < wanted:
        pytest.skip(
            f"needs {wanted} GPU{'s' if wanted > 1 else ''}, {_gpus_here(present)} "
            "(--placement-devices=real)"
        )


# The innermost wrapper, because the capturing of pytest redirects the descriptors for each call.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Undo the changes of a test to TensorFlow, if it uses the package."""
    is_isolated = markers.uses_package(item)
    before = tensorflow_state.current_state() if is_isolated else None
    caught: CaughtLog | None = getattr(item, "funcargs", {}).get("placement_log")
    try:
        with caught or contextlib.nullcontext():
            return (yield)
    finally:
        for leak in tensorflow_state.restore(before) if is_isolated else ():
            item.warn(pytest.PytestWarning(f"{item.nodeid} {leak}; it was undone"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shorten tracebacks of user errors, except with --full-trace."""
    if call.excinfo is not None and not item.config.getoption("fulltrace", False):
        tracebacks.shorten(call.excinfo.value)
    return (yield)


_MOST_NAMED = 3  # ops of a change


def pytest_assertrepr_compare(
    config: pytest.Config, op: str, left: object, right: object
) -> list[str] | None:
    """List the ops that two placements have on different devices; with -vv, all of them."""
    if op != "==" or "placement_checks.core.placement" not in sys.modules:
        return None
    from placement_checks.core.errors import InputError
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.placement import Placement
    from placement_checks.report.common.baseline import render_text
    from placement_checks.verification.diff import compare_names

    if not isinstance(left, Evidence | Placement) or not isinstance(right, Evidence | Placement):
        return None
    old, new = Evidence.wrap(right).placement, Evidence.wrap(left).placement
    most = sys.maxsize if config.get_verbosity() > 1 else _MOST_NAMED
    try:
        difference = compare_names(old, new, "the right side", most_named=most)
    except InputError as error:
        return [f"placements cannot be compared: {error}"]
    return f"the left side: {render_text(difference)}".split("\n")


def _gpus_here(gpus: int) -> str:
    return f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'} here"
