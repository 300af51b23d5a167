"""The option, the markers and the header, with a replaced list of local devices."""

from __future__ import annotations

import os

import pytest

from placement_checks.core.missing import Missing
from placement_checks.testing import pytest_plugin
from placement_checks.tf import startup

TWO = """
import pytest

@pytest.mark.placement_gpu(2)
def test_two():
    pass
"""


@pytest.fixture(params=[0, 1, 2], ids=lambda count: f"{count} GPUs here")
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(pytest_plugin, "local_gpus", lambda: request.param)
    return int(request.param)


@pytest.mark.parametrize("devices", ["auto", "simulated", "real"])
def test_a_test_is_skipped_only_if_real_gpus_are_required(
    pytester: pytest.Pytester, gpus: int, devices: str
) -> None:
    pytester.makepyfile(TWO)

    result = pytester.runpytest_inprocess(f"--placement-devices={devices}", "-rs")

    if devices == "real" and gpus < 2:
        result.assert_outcomes(skipped=1)
        found = {0: "no GPUs here", 1: "1 GPU here"}[gpus]
        result.stdout.fnmatch_lines([f"*needs 2 GPUs, {found} (--placement-devices=real)"])
    else:
        result.assert_outcomes(passed=1)


def test_the_header_names_the_devices(pytester: pytest.Pytester, gpus: int) -> None:
    result = pytester.runpytest_inprocess("--placement-devices=simulated")

    found = {0: "no GPUs here", 1: "1 GPU here", 2: "2 GPUs here"}[gpus]
    result.stdout.fnmatch_lines([f"placement: devices simulated, {found}"])


def test_the_header_names_a_limit_of_tensorflow(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Missing("tensorflow is a build without GPU kernels", "install another")
    monkeypatch.setattr(startup, "limit_of_installation", lambda: limit)

    result = pytester.runpytest_inprocess()

    result.stdout.fnmatch_lines(
        ["placement: tensorflow is a build without GPU kernels; install another"]
    )


def test_options_and_markers_are_listed(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--help").stdout.str()
    markers = pytester.runpytest_inprocess("--markers").stdout

    assert "device placement checks:" in text
    assert "--placement-devices={auto,real,simulated}" in text
    markers.fnmatch_lines(["@pytest.mark.placement_checks(*rules, gpus=, machine=, soft=)*"])
    markers.fnmatch_lines(["@pytest.mark.placement_gpu(n): *"])


INVALID_MARKS = {
    "placement_gpu('two')": "@pytest.mark.placement_gpu needs one whole number above 0, such as "
    "@pytest.mark.placement_gpu(2)",
    "placement_gpu(0)": "@pytest.mark.placement_gpu needs one whole number above 0, *",
    "placement_gpu": "@pytest.mark.placement_gpu needs one whole number above 0, *",
    "placement_checks(gpu=2)": "@pytest.mark.placement_checks has no argument gpu; did you mean "
    "'gpus'?",
    "placement_checks(reference='f')": "@pytest.mark.placement_checks has no argument reference; "
    "its arguments are gpus, machine and soft",
    "placement_checks('no-falback')": "@pytest.mark.placement_checks: rule 'no-falback' is not a "
    "known rule; did you mean 'no-fallback'?",
    "placement_checks('no-fallback')": "@pytest.mark.placement_checks checks programs that the "
    "fixture `place` places, but the test does not use it; add the argument place, or use "
    "assert_rules",
}


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_an_invalid_mark_fails_its_test_alone(pytester: pytest.Pytester, workers: str) -> None:
    pytester.makepyfile(
        "import pytest\n"
        + "".join(
            f"def test_before_{number}(): pass\n"
            f"@pytest.mark.{mark}\n"
            f"def test_{number}(): pass\n"
            "@pytest.mark.skip\n"
            f"@pytest.mark.{mark}\n"
            f"def test_skipped_{number}(): pass\n"
            for number, mark in enumerate(INVALID_MARKS)
        )
    )

    result = pytester.runpytest_subprocess(workers, "--strict-markers")

    of_each = len(INVALID_MARKS)
    result.assert_outcomes(passed=of_each, errors=of_each, skipped=of_each)
    for number, message in enumerate(INVALID_MARKS.values()):
        result.stdout.fnmatch_lines([f"_* ERROR at setup of test_{number} _*", message, "[_=]*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


MARKS_OF_OTHERS = """
import pytest

pytestmark = [pytest.mark.placement("top"), pytest.mark.gpu, pytest.mark.soft(machine=3)]

@pytest.mark.gpu("a100", memory=40)
@pytest.mark.placement(row=1)
@pytest.mark.parametrize("i", range(3))
def test_it(i, place):
    assert place == "mine"

@pytest.fixture
def place():
    return "mine"
"""


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_marks_and_fixtures_of_others_have_no_effect(
    pytester: pytest.Pytester, workers: str
) -> None:
    pytester.makepyfile(MARKS_OF_OTHERS)

    result = pytester.runpytest_subprocess(workers, "--placement-devices=real")

    result.assert_outcomes(passed=3, warnings=5)  # pytest's own, for marks it does not know
    result.stdout.no_fnmatch_line("*placement checks*")


def test_a_mark_with_rules_needs_the_fixture_place(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        rules = pytest.mark.placement_checks("no-fallback")

        @pytest.fixture
        def placed(place):
            return place

        @pytest.fixture
        def by_name(request):
            return request.getfixturevalue("place")

        @rules
        def test_argument(place):
            pass

        @rules
        def test_fixture(placed):
            pass

        @rules
        def test_by_name(by_name):
            pass

        @pytest.mark.placement_checks(gpus=4)
        def test_without_rules():
            pass

        @rules
        class TestClass:
            def test_places_nothing(self):
                pass
    """)

    pytester.runpytest_inprocess().assert_outcomes(passed=5)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_the_configuration_of_another_user_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(place): pass")
    file = pytester.makepyprojecttoml("[tool.placement_checks]\ngpus = 3")
    os.chown(file, 5432, 5432)

    refused = pytester.runpytest_inprocess()
    accepted = pytester.runpytest_inprocess("--placement-trust=.")

    refused.assert_outcomes(errors=1)
    refused.stdout.fnmatch_lines(
        [f"*pyproject.toml belongs to the user 5432; *--placement-trust={file.parent}*"]
    )
    accepted.assert_outcomes(passed=1)
