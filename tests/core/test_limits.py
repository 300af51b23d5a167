"""SECURITY.md lists each limit with its number, and with a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from placement_checks.core.errors import InputError
from placement_checks.core.limits import Limit, all_limits

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE
)[1:]


def test_the_table_lists_all_limits() -> None:
    assert sorted(limit for _, limit, _ in ROWS if limit != "-") == sorted(
        map(str, all_limits().values())
    )


def test_the_tests_of_the_table_exist() -> None:
    assert len(ROWS) > len(all_limits())
    for _, _, tests in ROWS:
        for test in re.findall(r"`([^`]+)`", tests):
            assert (ROOT / test).is_file(), test


def test_an_error_names_the_limit_and_the_file() -> None:
    limit = Limit(3, "lines of a file")
    limit.check(3, "a.txt")

    with pytest.raises(InputError) as raised:
        limit.check(4, "a.txt:7", "write it again")
    assert str(raised.value) == ("a.txt:7 exceeds the limit of 3 lines of a file; write it again")
