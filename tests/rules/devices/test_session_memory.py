from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import placement
from support.snapshots import messages
from support.towers import host, program
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Placement, Verdict
from placement_checks.core.errors import ConfigError
from placement_checks.core.missing import Missing
from placement_checks.core.placement import StepOps
from placement_checks.rules.devices.session_memory import SessionMemory

GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


@pytest.fixture(autouse=True)
def no_growth_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GROWTH, raising=False)


def session(config: Mapping[str, Any], **more: Any) -> Placement:
    return placement(host("a", "NoOp"), step=StepOps(session=config), **more)


def options(**fields: Any) -> Placement:
    return session({"gpu_options": fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"allow_growth": True},
        {"per_process_gpu_memory_fraction": 0.4},
        {"per_process_gpu_memory_fraction": 0.95},
        {"visible_device_list": "0,2"},
        {"allow_growth": True, "per_process_gpu_memory_fraction": 1.0},
        {"visible_device_list": "1", "per_process_gpu_memory_fraction": 0.5},
    ],
)
def test_kept(fields: Mapping[str, Any], snapshot: SnapshotAssertion) -> None:
    verdict = SessionMemory().judge(options(**fields))
    assert verdict == Verdict("session-memory", "kept", "configuration", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    verdict = SessionMemory().judge(options(allow_growth=False))

    assert (verdict.state, verdict.evidence) == ("broken", "configuration")
    assert verdict.findings == [
        Finding(
            object="gpu_options",
            op="",
            evidence="configuration",
            expected="allow_growth, or at most 0.95 of the memory",
            found="all of it",
            message=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    "fields",
    [
        {"allow_growth": False},
        {"per_process_gpu_memory_fraction": 0.0},
        {"visible_device_list": ""},
    ],
)
def test_settings_that_take_all_memory(fields: Mapping[str, Any]) -> None:
    (finding,) = SessionMemory().judge(options(**fields)).findings

    assert finding.found == "all of it"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"allow_soft_placement": True},
        {"gpu_options": {}},
        {"gpu_options": None},
        {"gpu_options": {"force_gpu_compatible": True}},
    ],
)
def test_a_session_without_settings_is_judged_if_a_share_is_declared(
    config: Mapping[str, Mapping[str, Any] | None], snapshot: SnapshotAssertion
) -> None:
    verdict = SessionMemory().judge(session(config))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot
    assert SessionMemory(fraction=0.9).judge(session(config)).state == "broken"
    assert SessionMemory(others=({"allow_growth": True},)).judge(session(config)).state == "broken"


@pytest.mark.parametrize(("fraction", "found"), [(0.96, "0.96 of it"), (0.99, "0.99 of it")])
def test_too_large_a_share(fraction: float, found: str, snapshot: SnapshotAssertion) -> None:
    (finding,) = SessionMemory().judge(options(per_process_gpu_memory_fraction=fraction)).findings

    assert finding.found == found
    assert messages(finding) == snapshot


def test_too_large_a_share_of_some_gpus(snapshot: SnapshotAssertion) -> None:
    graph = options(per_process_gpu_memory_fraction=0.99, visible_device_list="0,2")

    (finding,) = SessionMemory().judge(graph).findings

    assert messages(finding) == snapshot


@pytest.mark.parametrize(
    ("value", "state"),
    [("true", "kept"), ("false", "broken"), ("", "not-checked")],
)
def test_the_environment_lets_the_memory_grow(
    monkeypatch: pytest.MonkeyPatch, value: str, state: str, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv(GROWTH, value)

    verdict = SessionMemory().judge(session({}))

    assert verdict.state == state
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("fraction", "fraction_taken", "state"),
    [
        (0.5, 0.5, "kept"),
        (0.5, 0.51, "broken"),
        (1, 1.0, "kept"),
        (0.95, 0.95, "kept"),
        (0.3, 0.9, "broken"),
    ],
)
def test_the_largest_share_that_a_program_may_take(
    fraction: float, fraction_taken: float, state: str
) -> None:
    graph = options(per_process_gpu_memory_fraction=fraction_taken)

    assert SessionMemory(fraction=fraction).judge(graph).state == state


def test_the_share_is_named_in_the_finding() -> None:
    (finding,) = SessionMemory(fraction=0.5).judge(session({})).findings

    assert finding.expected == "allow_growth, or at most 0.5 of the memory"


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, 95])
def test_an_invalid_share_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError) as refused:
        SessionMemory(fraction=fraction)

    assert (
        str(refused.value)
        == f"fraction: {fraction} is not a share; give a number above 0, up to 1"
    )


def test_needs_neither_towers_nor_a_placer() -> None:
    graph = session(
        {"gpu_options": {"allow_growth": False}},
        placer=None,
        assigned=Missing("no wheel"),
        requested=Missing("a log"),
        machine=None,
    )

    assert SessionMemory().judge(graph).state == "broken"


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(program(), id="no configuration"),
        pytest.param(session({"gpu_options": "growth"}), id="options that are no mapping"),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = SessionMemory().judge(graph)
    assert verdict == Verdict("session-memory", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_an_invalid_share_is_not_judged(snapshot: SnapshotAssertion) -> None:
    options = {"per_process_gpu_memory_fraction": "half"}
    graph = placement(step=StepOps(session={"gpu_options": options}))

    verdict = SessionMemory().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def judge_next_to(*others: Mapping[str, Any], fraction: float = 0.95, **fields: Any) -> Verdict:
    """The verdict on a session with these options if other programs run with theirs."""
    return SessionMemory(fraction, others).judge(options(**fields))


GROWS = {"allow_growth": True}


def share(fraction: float, gpus: str | None = None) -> dict[str, Any]:
    more = {} if gpus is None else {"visible_device_list": gpus}
    return {"per_process_gpu_memory_fraction": fraction, **more}


def test_two_programs_that_both_take_all(snapshot: SnapshotAssertion) -> None:
    verdict = judge_next_to({}, fraction=1)

    assert verdict == Verdict(
        "session-memory",
        "broken",
        "configuration",
        findings=[
            Finding(
                object="gpu_options",
                op="",
                evidence="configuration",
                expected="at most 1 of its memory for all programs",
                found="2 of it",
                message=ANY,
                fix=ANY,
            )
        ],
        note=ANY,
    )
    assert messages(verdict) == snapshot


def test_programs_that_share_one_gpu(snapshot: SnapshotAssertion) -> None:
    verdict = judge_next_to(
        share(0.3, "0"), share(0.2), {"visible_device_list": "3"}, GROWS, **share(0.5, "0,2")
    )

    assert verdict.findings == [
        Finding(
            object="/device:GPU:0",
            op="",
            evidence="configuration",
            expected="at most 0.95 of its memory for all programs",
            found="1 of it",
            message=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("own", "others"),
    [
        pytest.param(share(0.4), [share(0.4)], id="below together"),
        pytest.param(share(0.5), [share(0.25), share(0.125)], id="3"),
        pytest.param(
            {"visible_device_list": "0"},
            [{"visible_device_list": "1"}, {"visible_device_list": " 2 , 3,"}],
            id="each its own GPUs",
        ),
        pytest.param(
            {"visible_device_list": "1,2"},
            [{"visible_device_list": "0"}, share(0.9, "0")],
            id="others fight for another GPU",
        ),
        pytest.param(GROWS, [GROWS], id="growth"),
        pytest.param(share(0.9), [GROWS, GROWS], id="next to growth"),
        pytest.param(
            {**GROWS, "visible_device_list": "1"},
            [{"visible_device_list": "0"}],
            id="growth on its own GPU",
        ),
    ],
)
def test_programs_that_fit_on_one_gpu(
    own: Mapping[str, Any], others: Sequence[Mapping[str, Any]], snapshot: SnapshotAssertion
) -> None:
    verdict = judge_next_to(*others, **own)
    assert verdict == Verdict("session-memory", "kept", "configuration", findings=[], note=ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("own", "others", "objects", "found"),
    [
        pytest.param(share(0.5), [share(0.5)], ["gpu_options"], "1 of it", id="two halves"),
        pytest.param(
            share(0.5), [share(0.25), share(0.25)], ["gpu_options"], "1 of it", id="three"
        ),
        pytest.param(GROWS, [{}], ["gpu_options"], "1 of it", id="growth and another takes all"),
        pytest.param(share(0.5), [share(0.0)], ["gpu_options"], "1.5 of it", id="no share is all"),
        pytest.param(
            {"visible_device_list": "0,1"},
            [{"visible_device_list": "1,2"}],
            ["/device:GPU:1"],
            "2 of it",
            id="one GPU of both",
        ),
        pytest.param(
            {"visible_device_list": "1"},
            [{}],
            ["/device:GPU:1"],
            "2 of it",
            id="an other that names no GPU",
        ),
        pytest.param(
            share(0.5),
            [{"visible_device_list": "1, 0"}],
            ["/device:GPU:0", "/device:GPU:1"],
            "1.5 of it",
            id="a session that names no GPU",
        ),
        pytest.param(
            share(0.5),
            [share(0.5, "10,2"), share(0.5, "0")],
            ["/device:GPU:0", "/device:GPU:2", "/device:GPU:10"],
            "1 of it",
            id="in the order of their numbers",
        ),
        pytest.param(
            share(0.5), [share(0.2), share(0.3, "4")], ["/device:GPU:4"], "1 of it", id="on one"
        ),
    ],
)
def test_programs_that_take_too_much_together(
    own: Mapping[str, Any],
    others: Sequence[Mapping[str, str | float]],
    objects: Sequence[str],
    found: str,
) -> None:
    verdict = judge_next_to(*others, **own)

    assert verdict.state == "broken"
    assert [finding.object for finding in verdict.findings] == objects
    assert {finding.found for finding in verdict.findings} == {found}


@pytest.mark.parametrize(
    ("own", "others", "object", "found"),
    [
        pytest.param(GROWS, [{}], "gpu_options", "1 of it", id="growth and another takes all"),
        pytest.param(GROWS, [share(1.0)], "gpu_options", "1 of it", id="a share that is all"),
        pytest.param({}, [GROWS], "gpu_options", "1 of it", id="all and another grows"),
        pytest.param({}, [{**GROWS, **share(0.5)}], "gpu_options", "1 of it", id="growth first"),
        pytest.param(
            {**GROWS, "visible_device_list": "2"},
            [GROWS, {"visible_device_list": "1,2"}],
            "/device:GPU:2",
            "1 of it",
            id="on one GPU",
        ),
    ],
)
def test_growth_fails_next_to_a_session_that_takes_all_memory(
    own: Mapping[str, str | bool], others: Sequence[Mapping[str, Any]], object: str, found: str
) -> None:
    (finding,) = judge_next_to(*others, fraction=1, **own).findings
    assert (finding.object, finding.found) == (object, found)


def test_growth_next_to_a_fraction_of_memory() -> None:
    assert judge_next_to(share(0.99), fraction=0.99, **GROWS).state == "kept"
    assert judge_next_to(share(0.99), fraction=0.98, **GROWS).state == "broken"


@pytest.mark.parametrize(
    ("own", "others"),
    [
        pytest.param({}, [{}], id="all and another takes all"),
        pytest.param({}, [GROWS], id="next to growth"),
        pytest.param({}, [share(0.1, "4")], id="next to one GPU"),
        pytest.param(share(0.99, "0"), [{"visible_device_list": "1"}], id="next to another GPU"),
        pytest.param(share(0.96), [share(0.9), {}], id="next to two"),
    ],
)
def test_too_large_a_share_is_found_for_any_other_program(
    own: Mapping[str, Any], others: Sequence[Mapping[str, Any]], snapshot: SnapshotAssertion
) -> None:
    alone = judge_next_to(**{"allow_growth": False, **own})

    assert judge_next_to(*others, **own) == alone
    assert messages(alone) == snapshot


@pytest.mark.parametrize(
    ("shares", "fraction"),
    [
        ((0.4, 0.55), 0.95),
        ((0.15, 0.8), 0.95),
        ((0.05, 0.9), 0.95),
        ((0.1, 0.2), 0.3),
        ((0.1, 0.2, 0.4), 0.7),
    ],
)
def test_shares_that_add_up_to_the_fraction(shares: Sequence[float], fraction: float) -> None:
    own, *others = map(share, shares)
    assert judge_next_to(*others, fraction=fraction, **own).state == "kept"
    assert judge_next_to(*others, fraction=fraction - 0.0001, **own).state == "broken"
    assert judge_next_to(*others, share(0.0001), fraction=fraction, **own).state == "broken"


@pytest.mark.parametrize(
    ("fraction", "state"), [(1, "kept"), (0.75, "kept"), (0.74, "broken"), (0.5, "broken")]
)
def test_the_largest_share_that_programs_may_take_together(fraction: float, state: str) -> None:
    assert judge_next_to(share(0.25), fraction=fraction, **share(0.5)).state == state


@pytest.mark.parametrize(
    ("fraction", "others"),
    [
        (1, 1),
        (1, 2),
        (0.9, 1),
        (0.5, 4),
        (0.05, 2),
        (0.02, 2),
        (0.95, 200),
    ],
)
def test_the_fix_gives_each_its_part(
    fraction: float, others: int, snapshot: SnapshotAssertion
) -> None:
    (finding,) = judge_next_to(*[{}] * others, fraction=fraction, **GROWS).findings
    assert finding.fix == snapshot


def test_next_to_other_programs_named_gpus_are_judged() -> None:
    """Alone, a session that names its GPUs leaves the rest to others."""
    assert SessionMemory().judge(options(visible_device_list="0")).state == "kept"
    assert judge_next_to({}, visible_device_list="0").state == "broken"


def test_an_empty_list_of_others(snapshot: SnapshotAssertion) -> None:
    assert messages(judge_next_to(**share(0.9))) == snapshot


@pytest.mark.parametrize("value", ["half", None, True, [0.5]])
def test_others_with_an_invalid_share_are_refused(
    value: str | bool | Sequence[float] | None,
) -> None:
    with pytest.raises(ConfigError) as refused:
        SessionMemory(others=({}, {"per_process_gpu_memory_fraction": value}))

    assert str(refused.value) == (
        f"others: per_process_gpu_memory_fraction is {value!r}, not a number; "
        "write each program as {'per_process_gpu_memory_fraction': 0.5}"
    )


def test_others_with_a_negative_share_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        SessionMemory(others=(share(0.5), share(-1.0)))

    assert str(refused.value) == (
        "others: per_process_gpu_memory_fraction is -1, and must be 0 or more; "
        "write each program as {'per_process_gpu_memory_fraction': 0.5}"
    )


@pytest.mark.parametrize("others", [(), ({},)], ids=["alone", "others"])
@pytest.mark.parametrize("fraction", [-0.25, -1.0])
@pytest.mark.parametrize("more", [{}, GROWS], ids=["", "growth"])
def test_a_negative_share_is_not_judged(
    others: Sequence[Mapping[str, Any]],
    fraction: float,
    more: Mapping[str, bool],
    snapshot: SnapshotAssertion,
) -> None:
    verdict = judge_next_to(*others, **share(fraction), **more)
    assert verdict == Verdict("session-memory", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_an_invalid_share_is_not_judged_next_to_others(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = judge_next_to({}, per_process_gpu_memory_fraction=True)
    assert verdict == Verdict("session-memory", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("value", "state"), [("true", "kept"), ("false", "broken"), ("", "broken")]
)
def test_the_environment_lets_the_memory_grow_next_to_others(
    monkeypatch: pytest.MonkeyPatch, value: str, state: str, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv(GROWTH, value)

    verdict = judge_next_to(share(0.9))

    assert verdict.state == state
    assert messages(verdict) == snapshot


def test_growth_by_environment_fails_next_to_all_memory(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv(GROWTH, "true")

    verdict = judge_next_to({"visible_device_list": "1"}, **share(0.5, "0,1"))

    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        (GROWS, "broken"),
        ({**GROWS, **share(0.5)}, "kept"),
        ({**GROWS, **share(0.99)}, "broken"),
        ({**GROWS, "visible_device_list": "0"}, "kept"),
    ],
)
def test_the_environment_keeps_the_memory_from_growing(
    monkeypatch: pytest.MonkeyPatch,
    fields: Mapping[str, Any],
    state: str,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setenv(GROWTH, "false")

    verdict = judge_next_to(**fields)

    assert verdict.state == state
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("value", ["", "0", "1", "False", "TRUE"])
def test_other_values_of_the_environment_are_ignored(
    monkeypatch: pytest.MonkeyPatch, value: str, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv(GROWTH, value)
    assert messages(judge_next_to(**GROWS)) == snapshot
    assert judge_next_to(allow_growth=False).state == "broken"


def test_the_environment_keeps_the_memory_from_growing_next_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = (share(0.5),)
    assert judge_next_to(*others, **GROWS, **share(0.5)).state == "kept"
    monkeypatch.setenv(GROWTH, "false")
    assert judge_next_to(*others, **GROWS, **share(0.5)).state == "broken"
    assert judge_next_to(GROWS, **share(0.5)).state == "kept"
