from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Run
from support.pictures import embedded

LOG = "logs/2.20.0/session.log"


@pytest.mark.parametrize("command", ["verify", "place"])
def test_a_page_shows_every_target(run: Run, fixtures: Path, tmp_path: Path, command: str) -> None:
    page = tmp_path / "page.html"
    targets = [fixtures / LOG] * (2 if command == "verify" else 1)

    ran = run(command, *targets, "--format", "html", "--output", page)

    assert not ran.out
    shown = embedded(page.read_text(encoding="utf-8"))
    assert [Path(each["program"]).name for each in shown] == ["session.log"] * len(targets)
    assert [bool(each["rules"]) for each in shown] == [command == "verify"] * len(targets)


def test_unreadable_targets_are_not_on_the_page(run: Run) -> None:
    ran = run("verify", "nowhere.log", "--format", "html")

    assert (ran.status, ran.out) == (2, "")
    assert "nowhere.log" in ran.err


def test_a_page_always_has_the_transfers(run: Run, fixtures: Path) -> None:
    ran = run("place", fixtures / LOG, "--transfers", "--format", "html")

    assert (ran.status, ran.out) == (2, "")
    assert (
        ran.err == "placement-checks: --transfers is not needed: the HTML page always has the "
        "transfers; omit it\n"
    )


def test_a_page_of_the_difference_of_two_placements(
    run: Run, fixtures: Path, tmp_path: Path
) -> None:
    log, other = fixtures / LOG, tmp_path / "other.log"
    other.write_text(log.read_text().replace("device:CPU:0", "device:CPU:1"))

    ran = run("diff", log, other, "--format", "html")

    (shown,) = embedded(ran.out)
    assert (ran.status, shown["state"]) == (1, "differs")
    assert shown["findings"][0]["rule"] == "moved"
