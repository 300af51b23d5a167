"""Settings: which of two values applies, and which values are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.core.errors import UsageError
from placement_checks.core.machines import Machine
from placement_checks.core.settings import Policy, Settings

names = st.sampled_from("abc")
policies = st.dictionaries(names, st.dictionaries(names, st.integers(), max_size=3)).map(Policy)
machines: st.SearchStrategy[Mapping[str, Any]] = st.sampled_from(
    [{}, {"gpus": 1}, {"gpus": 4}, {"machine": "gpu*2"}, {"horovod": 2}]
)
values = st.builds(
    lambda machine, others: Settings(**machine, **others),
    machines,
    st.fixed_dictionaries(
        {},
        optional={
            "soft": st.none() | st.booleans(),
            "v1": st.none() | st.booleans(),
            "rules": st.lists(names, max_size=2).map(tuple),
            "policy": policies,
            "let": st.dictionaries(names, st.integers(), max_size=2),
            "limit": st.none() | st.floats(1, 600),
        },
    ),
)


@pytest.mark.parametrize(
    ("inner", "outer", "merged"),
    [
        (Settings(), Settings(gpus=2), Settings(gpus=2)),
        (Settings(gpus=1), Settings(gpus=2), Settings(gpus=1)),
        (Settings(gpus=1), Settings(machine="gpu*4"), Settings(gpus=1)),
        (Settings(machine="gpu*4"), Settings(gpus=2), Settings(machine="gpu*4")),
        (Settings(horovod=2), Settings(gpus=4), Settings(horovod=2)),
        (Settings(gpus=4), Settings(horovod=2), Settings(gpus=4)),
        (Settings(soft=False), Settings(soft=True), Settings(soft=False)),
        (Settings(), Settings(soft=True), Settings(soft=True)),
        (Settings(rules=("a",)), Settings(rules=("b",)), Settings(rules=("a",))),
        (
            Settings(without=("a",)),
            Settings(rules=("b",)),
            Settings(rules=("b",), without=("a",)),
        ),
        (
            Settings(let={"N": 1}),
            Settings(let={"N": 2, "M": 3}),
            Settings(let={"N": 1, "M": 3}),
        ),
        (
            Settings(policy=Policy({"r": {"a": 1}, "s": {"b": 2}})),
            Settings(policy=Policy({"r": {"a": 3, "c": 4}, "t": {}})),
            Settings(policy=Policy({"r": {"a": 1, "c": 4}, "s": {"b": 2}, "t": {}})),
        ),
    ],
)
def test_inner_settings_precede_outer_settings(
    inner: Settings, outer: Settings, merged: Settings
) -> None:
    assert inner.defaulting_to(outer) == merged


@given(values, values, values)
def test_settings_are_completed_in_any_grouping(
    call: Settings, entry: Settings, shared: Settings
) -> None:
    in_turn = call.defaulting_to(entry).defaulting_to(shared)
    assert in_turn == call.defaulting_to(entry.defaulting_to(shared))
    assert call.defaulting_to(Settings()) == Settings().defaulting_to(call) == call


@given(policies, policies, names, names)
def test_a_field_has_the_value_of_the_first_policy_that_sets_it(
    first: Policy, second: Policy, rule: str, field: str
) -> None:
    expected = first.of(rule).get(field, second.of(rule).get(field))
    assert first.over(second).of(rule).get(field) == expected


def test_only_settings_of_a_process_count_for_it() -> None:
    given = Settings(
        gpus=4,
        soft=True,
        rules=("placeable",),
        reference="a.py",
        args=("-n",),
        v1=False,
        let={"N": 2},
    )
    assert given.of_process() == Settings(args=("-n",), let={"N": "2"})
    assert Settings(horovod=2, limit=5.0).of_process() == Settings(horovod=2, limit=5.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(gpus=0), "0 GPUs: one host has between 1 and 256"),
        (Settings(limit=float("inf")), "limit=inf is not a finite positive number of seconds"),
        (Settings(limit=0), "limit=0 is not a finite positive number of seconds"),
        (Settings(machine=3), "machine 3 is not a machine"),  # type: ignore[arg-type]
        (Settings(machine="gpu*x"), "machine 'gpu*x'"),
        (Settings(horovod=1), "horovod=1 is not a number of ranks from 2 to 256"),
        (Settings(horovod=257), "horovod=257 is not a number of ranks from 2 to 256"),
        (Settings(horovod=2, gpus=2), "gpus and horovod are mutually exclusive"),
        (
            Settings(horovod=2, machine=Machine.local()),
            "machine and horovod are mutually exclusive",
        ),
    ],
    ids=str,
)
def test_values_that_are_refused(settings: Settings, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings.check()
    assert str(caught.value).startswith(message)


@given(values)
def test_other_values_are_accepted(settings: Settings) -> None:
    assert settings.check() is settings
