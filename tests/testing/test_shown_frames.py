"""What a failing test shows of an error, without TensorFlow."""

from __future__ import annotations

import pytest

TEST = """
import pytest
from placement_checks import assert_variables_on_host, read_logs
from placement_checks.core.errors import PlacerError
from placement_checks.logs import reading

def test_a_log_that_is_not_there():
    assert_variables_on_host(read_logs(["nope.log"]).placement())

@pytest.fixture
def log():
    return read_logs(["nope.log"])

def test_one_that_a_fixture_reads(log):
    pass

def test_an_internal_error(monkeypatch):
    def read(*_):
        raise PlacerError("the placer", "died")

    monkeypatch.setattr(reading, "Source", read)
    read_logs(["nope.log"])
"""
INTERNAL = "*placement_checks*logs*reading.py:*"


def test_frames_end_at_the_call_in_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_log=TEST)

    result = pytester.runpytest_inprocess("-k", "not internal")

    result.assert_outcomes(failed=1, errors=1)
    error = "E       placement_checks.core.errors.InputError: nope.log: there is no such file"
    result.stdout.fnmatch_lines(
        [">       return read_logs(*", error, "", "test_log.py:*: InputError"]
    )
    result.stdout.fnmatch_lines(
        [">       assert_variables_on_host(*", error, "", "test_log.py:*: InputError"]
    )
    result.stdout.no_fnmatch_line(INTERNAL)


@pytest.mark.parametrize(("test", "debug"), [("internal", ""), ("not_there", "1")])
def test_all_frames_are_shown_of_an_internal_error_or_on_request(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, test: str, debug: str
) -> None:
    if debug:
        monkeypatch.setenv("PLACEMENT_CHECKS_DEBUG", debug)
    pytester.makepyfile(test_log=TEST)

    result = pytester.runpytest_inprocess("-k", test)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([INTERNAL])
