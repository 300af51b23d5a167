"""``verify --shard I/N`` divides the programs among machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import Run

from placement_checks.cli.verify import Shard
from placement_checks.core.errors import UsageError
from placement_checks.core.settings import Settings

PROGRAMS = st.lists(
    st.tuples(
        st.sampled_from(["a.py", "b.py:build", "c.py"]),
        st.builds(Settings, gpus=st.sampled_from([None, 2, 4])),
    ),
    min_size=1,
    max_size=12,
)


CONFIGURATION = "[tool.placement_checks]\nprograms = ['a.py', 'b.py']"


@given(PROGRAMS, st.data())
def test_parts_are_complete_and_of_equal_size(
    programs: list[tuple[str, Settings]], data: st.DataObject
) -> None:
    total = data.draw(st.integers(1, len(programs)))

    parts = [Shard(number, total).select(programs) for number in range(1, total + 1)]

    assert sorted(str(each) for part in parts for each in part) == sorted(map(str, programs))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part in parts:
        left = iter(programs)
        assert all(any(each is other for other in left) for each in part)  # in their order


@given(PROGRAMS, st.data())
def test_parts_do_not_depend_on_the_order(
    programs: list[tuple[str, Settings]], data: st.DataObject
) -> None:
    total = data.draw(st.integers(1, len(programs)))
    shard = Shard(data.draw(st.integers(1, total)), total)

    shuffled = data.draw(st.permutations(programs))

    assert sorted(map(str, shard.select(programs))) == sorted(map(str, shard.select(shuffled)))


@pytest.mark.parametrize("text", ["1/1", "2/3", " 3/3 "])
def test_valid(text: str) -> None:
    assert f"{Shard.parse(text).number}/{Shard.parse(text).total}" == text.strip()


@pytest.mark.parametrize("text", ["", "0/2", "3/2", "1", "1/0", "-1/2", "a/b", "1/2/3", "1.0/2"])
def test_not_valid(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Shard.parse(text)
    assert str(caught.value) == (
        f"--shard {text} is not of the form I/N, with I from 1 to N; write it like --shard 1/4"
    )


def test_an_empty_part_is_an_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.placement_checks]\nprograms = ['a.py', 'b.py']"
    )

    ran = run("verify", "--shard", "3/3")

    assert ran.status == 2
    assert ran.err == (
        "placement-checks: --shard 3/3 is empty: there are 2 programs; use at most 2 shards\n"
    )


def test_a_part_of_the_configured_programs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.placement_checks]\nprograms = ['a.py', 'b.py']"
    )

    errors = [run("verify", "--shard", shard).err for shard in ("1/2", "2/2")]

    assert ["a.py" in error for error in errors] == [True, False]
    assert ["b.py" in error for error in errors] == [False, True]
