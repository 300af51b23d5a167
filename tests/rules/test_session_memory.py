from __future__ import annotations

import pytest
from graphs import placement
from towers import host, program

from placement_checks import Finding, Verdict
from placement_checks.errors import ConfigError
from placement_checks.placement import Training
from placement_checks.rules import SessionMemory

GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
CURE = "set config.gpu_options.allow_growth = True, or per_process_gpu_memory_fraction to a share"


@pytest.fixture(autouse=True)
def no_growth_by_the_environment(monkeypatch):
    monkeypatch.delenv(GROWTH, raising=False)


def session(config, **more):
    return placement(host("a", "NoOp"), training=Training(session=config), **more)


def options(**fields):
    return session({"gpu_options": fields})


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"allow_growth": True}, "the memory grows as it is needed"),
        ({"per_process_gpu_memory_fraction": 0.4}, "0.4 of each GPU's memory"),
        ({"per_process_gpu_memory_fraction": 0.95}, "0.95 of each GPU's memory"),
        ({"visible_device_list": "0,2"}, "only the GPUs 0,2"),
        (
            {"allow_growth": True, "per_process_gpu_memory_fraction": 1.0},
            "the memory grows as it is needed",
        ),
        (
            {"visible_device_list": "1", "per_process_gpu_memory_fraction": 0.5},
            "0.5 of each GPU's memory",
        ),
    ],
)
def test_kept(fields, note):
    assert SessionMemory().check(options(**fields)) == Verdict(
        "session-memory", "kept", "configuration", findings=[], note=note
    )


def test_broken():
    verdict = SessionMemory().check(session({"allow_soft_placement": True}))

    assert (verdict.state, verdict.evidence, verdict.note) == ("broken", "configuration", None)
    assert verdict.findings == [
        Finding(
            object="gpu_options",
            op="",
            evidence="configuration",
            expected="allow_growth, or at most 0.95 of the memory",
            found="all of it",
            message="the session takes all of the memory of every visible GPU when it starts; a "
            "second program there fails",
            cure=CURE,
        )
    ]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"gpu_options": {}},
        {"gpu_options": None},
        {"gpu_options": {"allow_growth": False}},
        {"gpu_options": {"per_process_gpu_memory_fraction": 0.0}},
        {"gpu_options": {"visible_device_list": ""}},
        {"gpu_options": {"force_gpu_compatible": True}},
    ],
)
def test_all_of_the_memory_is_the_default(config):
    (finding,) = SessionMemory().check(session(config)).findings

    assert finding.found == "all of it"


@pytest.mark.parametrize(("fraction", "found"), [(0.96, "0.96 of it"), (0.99, "0.99 of it")])
def test_too_large_a_share(fraction, found):
    (finding,) = SessionMemory().check(options(per_process_gpu_memory_fraction=fraction)).findings

    assert finding.found == found
    assert finding.message == (
        f"the session takes {fraction:g} of the memory of every visible GPU when it starts; a "
        "second program there fails"
    )


def test_too_large_a_share_of_some_gpus():
    graph = options(per_process_gpu_memory_fraction=0.99, visible_device_list="0,2")

    (finding,) = SessionMemory().check(graph).findings

    assert finding.message == (
        "the session takes 0.99 of the memory of GPUs 0,2 when it starts; a second program there "
        "fails"
    )


@pytest.mark.parametrize(
    ("value", "state"),
    [("true", "kept"), ("false", "broken"), ("", "broken")],
)
def test_the_environment_lets_the_memory_grow(monkeypatch, value, state):
    monkeypatch.setenv(GROWTH, value)

    verdict = SessionMemory().check(session({}))

    assert verdict.state == state
    if state == "kept":
        assert verdict.note == "TF_FORCE_GPU_ALLOW_GROWTH lets the memory grow"


@pytest.mark.parametrize(
    ("fraction", "taken", "state"),
    [
        (0.5, 0.5, "kept"),
        (0.5, 0.51, "broken"),
        (1, 1.0, "kept"),
        (0.95, 0.95, "kept"),
        (0.3, 0.9, "broken"),
    ],
)
def test_the_largest_share_that_a_program_may_take(fraction, taken, state):
    graph = options(per_process_gpu_memory_fraction=taken)

    assert SessionMemory(fraction=fraction).check(graph).state == state


def test_the_share_is_named_in_the_finding():
    (finding,) = SessionMemory(fraction=0.5).check(session({})).findings

    assert finding.expected == "allow_growth, or at most 0.5 of the memory"


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, 95])
def test_what_is_no_share_is_refused(fraction):
    with pytest.raises(ConfigError) as refused:
        SessionMemory(fraction=fraction)

    assert str(refused.value) == f"fraction: {fraction} is no share; give one up to 1"


def test_it_needs_neither_towers_nor_a_placer():
    graph = session({}, placer=None, unplaced="no wheel", unasked="a log", machine=None)

    assert SessionMemory().check(graph).state == "broken"


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        pytest.param(
            program(),
            "no session configuration is known; return it from the function that builds the "
            "graph: {'config': config}",
            id="no configuration",
        ),
        pytest.param(
            session({"gpu_options": "growth"}),
            "the gpu_options of the session configuration are no mapping",
            id="options that are no mapping",
        ),
    ],
)
def test_not_checked(graph, reason):
    assert SessionMemory().check(graph) == Verdict("session-memory", "not-checked", None, reason)


def test_a_share_that_is_no_number_is_not_judged():
    options = {"per_process_gpu_memory_fraction": "half"}
    graph = placement(training=Training(session={"gpu_options": options}))

    verdict = SessionMemory().check(graph)

    assert verdict.state == "not-checked"
    assert verdict.reason == "per_process_gpu_memory_fraction is 'half', no number"
