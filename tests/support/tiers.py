"""The tiers of the suite, as a plugin of pytest. Each test belongs to one tier.

=========  ================================================================================
`light`    tests of modules that need neither TensorFlow nor another process
`smoke`    tests marked `@pytest.mark.smoke`: a few with TensorFlow, from each area
`slow`     all other tests of a change
`nightly`  tests marked `@pytest.mark.nightly`: once a day, and before a release
=========  ================================================================================

No list names the modules. A module is light unless its source, the source of a helper that it
imports, or a `conftest.py` above it has one of `SIGNS`. A run does not import modules without
tests of its tiers. In a run of light tests alone, a test that imports TensorFlow or starts a
process has an error.

``pytest --tiers light,smoke`` selects tiers. By default, all tests run in the paths of a command
line, and without paths all but the nightly tests. ``versions`` adds the tests of a change whose
result depends on the version of TensorFlow or Keras: the tests in the directories `VERSIONS`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest

TIERS = ("light", "smoke", "slow", "nightly")
VERSIONS = ("tf", "tf1", "horovod", "capture/eager", "capture/in_process")
TESTS = Path(__file__).parents[1]
TOOLS = TESTS.with_name("tools")
SIGNS = re.compile(
    r"\b(?:import|from) tensorflow\b"  # also in a program that a test writes
    r"|\bplacement_checks(?:\.| import )(?:capture|cli|graph|horovod|placer|run|tf1?)\b"
    r"|\bplacement_checks\.(?:targets\.importing|verification\.(?:placing|running))\b"
    r"|\b(?:local_cluster|place|watch)\(|\bLocalCluster\b"
    r"|\b(?:multiprocessing|pytester|subprocess)\b|\bos\.fork\("
)
_MARK = re.compile(r"\bmark\.(smoke|nightly)\b")
_MARK_OF_ALL = re.compile(r"^pytestmark = pytest\.mark\.(smoke|nightly)$", re.MULTILINE)
_IMPORT = re.compile(r"^from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
_STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"}  # audit events


def is_light(path: Path) -> bool:
    """Whether neither a module, nor a helper that it imports, nor a `conftest.py` has a sign."""
    conftests = (parent / "conftest.py" for parent in path.parents if TESTS in parent.parents)
    return not any(map(_has_sign, [path, *filter(Path.is_file, conftests)]))


@cache
def _has_sign(path: Path) -> bool:
    return bool(SIGNS.search(_source(path))) or any(map(_has_sign, _helpers(path)))


def _helpers(path: Path) -> Iterator[Path]:
    """The modules of the tests and of the tools that a module imports."""
    for root, (module, names) in product((TESTS, TOOLS), _IMPORT.findall(_source(path))):
        base = root.joinpath(*module.split("."))
        for file in (base, *(base / name for name in re.findall(r"\w+", names))):
            if file.with_suffix(".py").is_file():
                yield file.with_suffix(".py")


@cache
def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tiers_in(path: Path) -> frozenset[str]:
    """The tiers of a module's tests according to its source, or of all modules in a directory, and
    `versions` if their result depends on the version."""
    if path.is_dir():
        return frozenset().union(*map(tiers_in, path.rglob("test_*.py")))
    if found := _MARK_OF_ALL.search(_source(path)):
        return frozenset({found[1]})
    tiers = {"light" if is_light(path) else "slow", *_MARK.findall(_source(path))}
    return frozenset(tiers | {"versions"} if _depends_on_version(path) else tiers)


def _depends_on_version(path: Path) -> bool:
    return any(TESTS / folder in path.parents for folder in VERSIONS)


def tier_of(item: pytest.Item) -> str:
    """The tier of a test.

    Raises:
        pytest.UsageError: the source of its module does not show it.
    """
    marked = (tier for tier in ("nightly", "smoke") if item.get_closest_marker(tier))
    tier = next(marked, "light" if is_light(item.path) else "slow")
    if tier not in tiers_in(item.path):
        raise pytest.UsageError(f"{item.nodeid}: its module does not name the mark {tier}")
    return tier


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tiers").addoption(
        "--tiers",
        type=_tiers,
        metavar="TIER,...",
        help=f"Run the tests of these tiers: {', '.join(TIERS)}; versions.",
    )


def _tiers(text: str) -> tuple[str, ...]:
    tiers = tuple(text.split(","))
    if not set(tiers) <= {*TIERS, "versions"}:
        raise ValueError
    return tiers


def pytest_configure(config: pytest.Config) -> None:
    if config.option.tiers is None:  # a worker of xdist receives it
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.option.tiers = TIERS if named else TIERS[:-1]
    # In other runs, tests of a module are left out, and syrupy would call their snapshots unused.
    if config.option.tiers not in (("light",), TIERS[:-1], TIERS):
        config.option.disable_unused_snapshots = True
    if config.option.tiers == ("light",):
        config.pluginmanager.register(_Light(), "light-tests")


def pytest_report_header(config: pytest.Config) -> str:
    return f"tiers: {', '.join(config.option.tiers)}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.is_dir() or collection_path.match("test_*.py"):
        return tiers_in(collection_path).isdisjoint(config.option.tiers) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    by_choice: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        tier = tier_of(item)
        is_of_versions = tier != "nightly" and "versions" in tiers_in(item.path)
        chosen = {tier, "versions"} if is_of_versions else {tier}
        by_choice[not chosen.isdisjoint(config.option.tiers)].append(item)
    items[:] = by_choice[True]
    config.hook.pytest_deselected(items=by_choice[False])


class _Light:
    """The plugin of a run of light tests: an error for each module and test that is not light."""

    _has_started = False

    def __init__(self) -> None:
        self._has_imported = "tensorflow" in sys.modules
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        self._has_started |= event in _STARTS

    def _error(self) -> str:
        """What the code that ran since the last call needs; empty if nothing."""
        imports = "tensorflow" in sys.modules and not self._has_imported
        needs = ["imports TensorFlow"] * imports + ["starts a process"] * self._has_started
        self._has_imported |= imports
        self._has_started = False
        return f"{' and '.join(needs)}, so SIGNS in {__file__} lack a sign of it" if needs else ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        self._has_started = False  # by other plugins

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if error := self._error():
            report.outcome, report.longrepr = "failed", f"{collector.nodeid} {error}"
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if error := self._error():
            pytest.fail(f"{item.nodeid} {error}", pytrace=False)
