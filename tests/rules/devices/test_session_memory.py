from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.graphs import placement
from support.towers import host, program
from support.verdicts import Case, broken, check_case, kept, not_checked, verdicts
from syrupy.assertion import SnapshotAssertion

from placement_checks import Placement
from placement_checks.core.errors import ConfigError
from placement_checks.core.missing import Missing
from placement_checks.core.placement import StepOps
from placement_checks.rules.devices.session_memory import SessionMemory

GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
GROWS = {"allow_growth": True}


@pytest.fixture(autouse=True)
def no_growth_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GROWTH, raising=False)


def session(config: Mapping[str, Any], **more: Any) -> Placement:
    return placement(host("a", "NoOp"), step=StepOps(session=config), **more)


def options(*settings: Mapping[str, Any]) -> Placement:
    """A session with these options of GPUs."""
    return session({"gpu_options": {key: each[key] for each in settings for key in each}})


def share(fraction: float) -> dict[str, Any]:
    return {"per_process_gpu_memory_fraction": fraction}


def on(gpus: str) -> dict[str, Any]:
    return {"visible_device_list": gpus}


WITHOUT_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "no config": {},
    "a config without options of GPUs": {"allow_soft_placement": True},
    "empty options": {"gpu_options": {}},
    "no options": {"gpu_options": None},
    "options that do not concern memory": {"gpu_options": {"force_gpu_compatible": True}},
}

CASES = {
    "memory that grows": kept(options(GROWS)),
    "a share": kept(options(share(0.4))),
    "the largest share": kept(options(share(0.95))),
    "some GPUs": kept(options(on("0,2"))),
    "memory that grows up to the whole": kept(options(GROWS, share(1.0))),
    "a share of one GPU": kept(options(on("1"), share(0.5))),
    "memory that does not grow": broken(options({"allow_growth": False})),
    "a share of 0, which is the default": broken(options(share(0.0))),
    "an empty list of GPUs, which is the default": broken(options(on(""))),
    **{what: not_checked(session(config)) for what, config in WITHOUT_SETTINGS.items()},
    **{
        f"{what}, and a share is declared": broken(session(config), fraction=0.9)
        for what, config in WITHOUT_SETTINGS.items()
    },
    **{
        f"{what}, and other programs are declared": broken(session(config), others=(GROWS,))
        for what, config in WITHOUT_SETTINGS.items()
    },
    "too large a share": broken(options(share(0.96))),
    "almost everything": broken(options(share(0.99))),
    "too large a share of some GPUs": broken(options(share(0.99), on("0,2"))),
    **{
        f"at most {fraction}, and exactly that": kept(options(share(fraction)), fraction=fraction)
        for fraction in (0.5, 1, 0.95)
    },
    "at most 0.5, and a little more": broken(options(share(0.51)), fraction=0.5),
    "at most 0.3, and much more": broken(options(share(0.9)), fraction=0.3),
    "neither towers nor a placer": broken(
        session(
            {"gpu_options": {"allow_growth": False}},
            placer=None,
            assigned=Missing("no wheel"),
            requested=Missing("a log"),
            machine=None,
        )
    ),
    "no configuration": not_checked(program()),
    "options that are no mapping": not_checked(session({"gpu_options": "growth"})),
    "a share that is no number": not_checked(options({"per_process_gpu_memory_fraction": "half"})),
    "a share that is no number next to others": not_checked(
        options({"per_process_gpu_memory_fraction": True}), others=({},)
    ),
    **{
        f"a share below 0, {fraction}{', that grows' if growth else ''}{others}": not_checked(
            options(share(fraction), growth), others=({},) if others else ()
        )
        for fraction in (-0.25, -1.0)
        for growth in ({}, GROWS)
        for others in ("", ", next to others")
    },
    # Next to other programs.
    "two programs that both take all": broken(options(), others=({},), fraction=1),
    "programs that share one of their GPUs": broken(
        options(share(0.5), on("0,2")),
        others=({**share(0.3), **on("0")}, share(0.2), on("3"), GROWS),
    ),
    "two shares": kept(options(share(0.4)), others=(share(0.4),)),
    "three shares": kept(options(share(0.5)), others=(share(0.25), share(0.125))),
    "each program has its own GPUs": kept(options(on("0")), others=(on("1"), on(" 2 , 3,"))),
    "the others share another GPU": kept(
        options(on("1,2")), others=(on("0"), {**share(0.9), **on("0")})
    ),
    "two programs that grow": kept(options(GROWS), others=(GROWS,)),
    "next to programs that grow": kept(options(share(0.9)), others=(GROWS, GROWS)),
    "growth on its own GPU": kept(options(GROWS, on("1")), others=(on("0"),)),
    "two halves": broken(options(share(0.5)), others=(share(0.5),)),
    "one half and two quarters": broken(options(share(0.5)), others=(share(0.25), share(0.25))),
    "growth next to a program that takes all": broken(options(GROWS), others=({},)),
    "a half next to a program without a share": broken(options(share(0.5)), others=(share(0.0),)),
    "two programs that take all of one GPU": broken(options(on("0,1")), others=(on("1,2"),)),
    "the other program names no GPU": broken(options(on("1")), others=({},)),
    "the session names no GPU": broken(options(share(0.5)), others=(on("1, 0"),)),
    "GPUs in the order of their numbers": broken(
        options(share(0.5)), others=({**share(0.5), **on("10,2")}, {**share(0.5), **on("0")})
    ),
    "only on one GPU": broken(options(share(0.5)), others=(share(0.2), {**share(0.3), **on("4")})),
    "all is allowed: growth next to a program that takes all": broken(
        options(GROWS), others=({},), fraction=1
    ),
    "all is allowed: growth next to a share that is all": broken(
        options(GROWS), others=(share(1.0),), fraction=1
    ),
    "all is allowed: a program that takes all next to growth": broken(
        options(), others=(GROWS,), fraction=1
    ),
    "all is allowed: a program that takes all next to growth and a share": broken(
        options(), others=({**GROWS, **share(0.5)},), fraction=1
    ),
    "all is allowed: growth on one GPU": broken(
        options(GROWS, on("2")), others=(GROWS, on("1,2")), fraction=1
    ),
    "growth next to the largest share": kept(options(GROWS), others=(share(0.99),), fraction=0.99),
    "growth next to too large a share": broken(
        options(GROWS), others=(share(0.99),), fraction=0.98
    ),
    "takes all, next to a program that takes all": broken(options(), others=({},)),
    "takes all, next to growth": broken(options(), others=(GROWS,)),
    "takes all, next to a program on one GPU": broken(
        options(), others=({**share(0.1), **on("4")},)
    ),
    "too large a share of one GPU, next to another GPU": broken(
        options(share(0.99), on("0")), others=(on("1"),)
    ),
    "too large a share of one GPU": broken(options(share(0.99), on("0"))),
    "too large a share, next to two programs": broken(
        options(share(0.96)), others=(share(0.9), {})
    ),
    **{
        f"at most {fraction} together, and exactly that": kept(
            options(share(0.5)), others=(share(0.25),), fraction=fraction
        )
        for fraction in (1, 0.75)
    },
    **{
        f"at most {fraction} together, and 0.75": broken(
            options(share(0.5)), others=(share(0.25),), fraction=fraction
        )
        for fraction in (0.74, 0.5)
    },
    **{
        f"{others} others that take all, and at most {fraction}": broken(
            options(GROWS), others=({},) * others, fraction=fraction
        )
        for fraction, others in ((1, 1), (1, 2), (0.9, 1), (0.5, 4), (0.05, 2), (0.02, 2))
    },
    "200 others that take all": broken(options(GROWS), others=({},) * 200),
    "alone, a session that names its GPUs leaves the rest to others": kept(options(on("0"))),
    "next to others, named GPUs are judged": broken(options(on("0")), others=({},)),
    "no others": kept(options(share(0.9)), others=()),
}

test_verdicts = verdicts(SessionMemory, CASES)


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

    def state(*others: Mapping[str, Any], fraction: float = fraction) -> str:
        return SessionMemory(fraction, others).judge(options(own)).state

    assert state(*others) == "kept"
    assert state(*others, fraction=fraction - 0.0001) == "broken"
    assert state(*others, share(0.0001)) == "broken"


# The environment lets the memory of all sessions grow, or keeps it from growing.
ENVIRONMENT: Mapping[str, Mapping[str, Case]] = {
    "true": {
        "no config": kept(session({})),
        "next to others": kept(options(), others=(share(0.9),)),
        "next to a program that takes all": broken(
            options(share(0.5), on("0,1")), others=(on("1"),)
        ),
    },
    "false": {
        "no config": broken(session({})),
        "next to others": broken(options(), others=(share(0.9),)),
        "memory that grows": broken(options(GROWS)),
        "memory that grows, and a share": kept(options(GROWS, share(0.5))),
        "memory that grows, and too large a share": broken(options(GROWS, share(0.99))),
        "memory that grows on one GPU": kept(options(GROWS, on("0"))),
        "two halves": broken(options(GROWS, share(0.5)), others=(share(0.5),)),
        "next to a program that grows": kept(options(share(0.5)), others=(GROWS,)),
    },
    "": {
        "no config": not_checked(session({})),
        "next to others": broken(options(), others=(share(0.9),)),
        "two halves, and one grows": kept(options(GROWS, share(0.5)), others=(share(0.5),)),
    },
    # Other values are ignored.
    **{
        value: {
            "memory that grows": kept(options(GROWS)),
            "memory that does not grow": broken(options({"allow_growth": False})),
        }
        for value in ("0", "1", "False", "TRUE")
    },
}


@pytest.mark.parametrize(
    ("value", "case"),
    [
        pytest.param(value, case, id=f"{value!r}, {name}")
        for value, cases in ENVIRONMENT.items()
        for name, case in cases.items()
    ],
)
def test_growth_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str, case: Case, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv(GROWTH, value)

    check_case(SessionMemory, case, snapshot)


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, 95])
def test_an_invalid_share_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError) as refused:
        SessionMemory(fraction=fraction)

    assert (
        str(refused.value)
        == f"fraction: {fraction} is not a share; give a number above 0, up to 1"
    )


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
