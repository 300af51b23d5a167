"""Captures that start early: their order, their number, and when their answers count."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from placement_checks.capture.child_process import early
from placement_checks.core.errors import InputError

FILE = Path("model.ckpt")


@dataclass(eq=False)
class Recorded:
    """A capture that answers at once, and the events of all captures."""

    name: str
    events: list[str]
    answered: object = "graph"
    restored: Sequence[Path] = ()
    is_answered: bool = True
    has_renames: bool = False
    has_queried: bool = False
    memory: int = 0
    on_answer: Callable[[], object] = lambda: None
    killed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events.append(f"start {self.name}")

    def let_continue(self) -> None:
        self.events.append(f"turn of {self.name}")

    def answer(self, meanwhile: Callable[[], object]) -> object:
        meanwhile()
        self.on_answer()
        if isinstance(self.answered, InputError) and self.answered.message == "raised":
            raise self.answered
        return self.answered

    def show_output(self) -> None:
        self.events.append(f"output of {self.name}")

    def kill(self) -> None:
        self.killed.append(self.name)

    def end(self) -> Sequence[Path]:
        self.events.append(f"end {self.name}")
        return self.restored


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def _much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "available_memory", lambda: 64 << 30)


@contextlib.contextmanager
def expecting(*captures: tuple[str, Callable[[], Recorded]], jobs: int = 2) -> Iterator[None]:
    with early.early_captures(jobs):
        for task, start in captures:
            early.expect(task, start)
        yield


def finish(events: list[str], name: str = "first", **fields: object) -> object:
    capture = Recorded(name, events, **fields)  # type: ignore[arg-type]
    return early.finish(name, capture).answer


def test_without_the_block_nothing_starts_early(events: list[str]) -> None:
    early.expect("second", lambda: Recorded("second", events))

    assert finish(events) == "graph"
    assert early.take("second") is None
    assert events == ["start first", "turn of first", "end first"]


def test_an_expected_capture_starts_during_the_first(events: list[str]) -> None:
    with expecting(("second", lambda: Recorded("second", events))):
        finish(events)
        taken = early.take("second")

    assert taken == ("graph", ())
    assert events == [
        *("start first", "turn of first", "start second", "end first"),
        *("turn of second", "end second", "output of second"),
    ]


def test_one_job_starts_nothing_early(events: list[str]) -> None:
    with expecting(("second", lambda: Recorded("second", events)), jobs=1):
        finish(events)
        assert early.take("second") is None

    assert events == ["start first", "turn of first", "end first"]


@pytest.mark.parametrize(("jobs", "started"), [(2, 1), (3, 2), (9, 4)])
def test_the_number_of_jobs_counts_the_needed_capture(
    events: list[str], jobs: int, started: int
) -> None:
    tasks = "abcd"
    with expecting(
        *((each, lambda each=each: Recorded(each, events, is_answered=False)) for each in tasks),
        jobs=jobs,
    ):
        finish(events)

    assert [event for event in events if event.startswith("start")][1:] == [
        f"start {task}" for task in tasks[:started]
    ]
    assert sorted(event for event in events if event.startswith("end")) == sorted(
        ["end first", *(f"end {task}" for task in tasks[:started])]
    )


def test_answers_that_nobody_takes_are_limited(events: list[str]) -> None:
    with expecting(*((each, lambda each=each: Recorded(each, events)) for each in "abcd")):
        finish(events)

    assert [event for event in events if event.startswith("start")] == [
        *("start first", "start a", "start b")
    ]


def test_an_expected_capture_that_did_not_start_is_made_when_needed(events: list[str]) -> None:
    with expecting(("second", lambda: Recorded("second", events))):
        assert early.take("second") is None
        finish(events)

    assert "start second" not in events


@pytest.mark.parametrize("message", ["raised", "returned"])
def test_a_failed_early_capture_is_made_again(events: list[str], message: str) -> None:
    failed = InputError("train.py", message)
    with expecting(("second", lambda: Recorded("second", events, failed))):
        finish(events)
        assert early.take("second") is None

    assert "output of second" not in events
    assert events.count("end second") == 1


def test_the_error_of_the_needed_capture_is_its_own(events: list[str]) -> None:
    failed = InputError("train.py", "raised")
    with expecting(), pytest.raises(InputError, match="raised"):
        finish(events, answered=failed)

    assert events[-1] == "end first"


def test_restored_files_discard_early_answers(events: list[str]) -> None:
    with expecting(("second", lambda: Recorded("second", events))):
        finish(events, restored=[FILE])
        assert early.take("second") is None


def test_files_that_an_early_capture_restores_do_not_discard_itself(events: list[str]) -> None:
    with expecting(("second", lambda: Recorded("second", events, restored=[FILE]))):
        finish(events)
        assert early.take("second") == ("graph", [FILE])


@pytest.mark.parametrize("has_queried", [True, False])
def test_a_capture_that_depends_on_a_query(events: list[str], has_queried: bool) -> None:
    with expecting():
        early.expect("second", lambda: Recorded("second", events), if_queried_by="first")
        finish(events, has_queried=has_queried)
        assert (early.take("second") is not None) == has_queried

    assert ("start second" in events) == has_queried


def test_a_query_of_another_capture_does_not_count(events: list[str]) -> None:
    with expecting():
        early.expect("second", lambda: Recorded("second", events), if_queried_by="another")
        finish(events, has_queried=True)

    assert "start second" not in events


def test_too_little_memory(
    events: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(early, "available_memory", lambda: 3 << 30)
    with expecting(("second", lambda: Recorded("second", events))):
        finish(events)
        finish(events)

    assert "start second" not in events
    assert capsys.readouterr().err == (
        "placement-checks: too little memory for parallel captures; they run in sequence\n"
    )


def test_a_capture_whose_environment_changed_does_not_start(events: list[str]) -> None:
    with expecting(("second", lambda: None), ("third", lambda: Recorded("third", events))):  # type: ignore[arg-type,return-value]
        finish(events)
        assert early.take("second") is None
        assert early.take("third")


def test_a_growing_capture_is_discarded_before_memory_runs_out(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [64 << 30]
    second: list[Recorded] = []

    def start() -> Recorded:
        second.append(Recorded("second", events, is_answered=False))
        return second[0]

    def wait() -> None:
        free[0] = 1
        while not second[0].killed:
            pass

    monkeypatch.setattr(early, "available_memory", lambda: free[0])
    monkeypatch.setattr(early, "_WATCH_INTERVAL", 0.01)
    with expecting(("second", start)):
        finish(events, on_answer=wait)
        assert early.take("second") is None


def test_a_renamed_file_discards_early_captures_at_once(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    second: list[Recorded] = []

    def start() -> Recorded:
        second.append(Recorded("second", events, is_answered=False))
        return second[0]

    def wait() -> None:
        while not second[0].killed:
            pass

    monkeypatch.setattr(early, "_WATCH_INTERVAL", 0.01)
    with expecting(("second", start)):
        finish(events, has_renames=True, on_answer=wait)
        assert early.take("second") is None


def test_a_capture_that_cannot_start_is_made_when_needed(events: list[str]) -> None:
    def fail() -> Recorded:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with expecting(("second", fail)):
        assert finish(events) == "graph"
        assert early.take("second") is None
