"""Looking ops up in a baseline, by any spread of them over devices."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import placement

from placement_checks import Placement
from placement_checks.baseline.build import Group, OpDevice, build_baseline
from placement_checks.baseline.compare_ops import AllowedPlaces
from placement_checks.baseline.text import parse, render
from placement_checks.core.baseline import Baseline

NAMES = ["a", "b", "c"]  # of variables, which are layers


@dataclass
class AnySpread:
    """The counts of a `Spread`, without the ops."""

    groups: dict[Group, dict[OpDevice, int]]
    towers: list[str]
    names: list[str] = field(default_factory=lambda: NAMES)
    variables: tuple[()] = ()
    copies: dict[tuple[str, str], object] = field(default_factory=dict)
    objectives: dict[str, str] = field(default_factory=dict)
    placement: Placement = field(default_factory=placement)

    def variable_name(self, layer: int) -> str:
        return "" if layer < 0 else self.names[layer]


places = st.sampled_from(["/cpu:0", "/gpu:0", "/gpu:1"])
op_devices = st.dictionaries(
    st.builds(OpDevice, places, st.booleans()), st.integers(1, 3), min_size=1
)
groups = st.builds(
    Group,
    st.sampled_from(["forward", "reads"]),
    st.integers(-1, 2),
    st.integers(-1, 2),
    st.sampled_from(["MatMul", "Const", "Add"]),
)
spreads = st.builds(
    AnySpread,
    st.dictionaries(groups, op_devices, max_size=25),
    st.just(["/gpu:0", "/gpu:1", "/gpu:0"]),
)


def looked_up(baseline: Baseline, spread: AnySpread) -> AllowedPlaces:
    names = {name: name for name in NAMES}
    return AllowedPlaces(baseline, spread, names, {0: 0, 1: 1, 2: 2})  # type: ignore[arg-type]


def baseline(spread: AnySpread) -> Baseline:
    return parse(render(build_baseline(spread)), "any.toml")  # type: ignore[arg-type]


@given(spreads)
def test_a_placement_matches_its_own_baseline(spread: AnySpread) -> None:
    assert list(looked_up(baseline(spread), spread).misplaced()) == []


@given(spreads, st.data())
def test_every_move_to_a_new_device_is_found(spread: AnySpread, data: st.DataObject) -> None:
    if not spread.groups:
        return
    group = data.draw(st.sampled_from(sorted(spread.groups)))
    op_device = data.draw(st.sampled_from(sorted(spread.groups[group])))
    old = baseline(spread)
    elsewhere = OpDevice("/gpu:7", False)
    there = {**spread.groups[group], elsewhere: 1}
    there[op_device] -= 1
    spread.groups[group] = {each: number for each, number in there.items() if number}

    (misplaced,) = looked_up(old, spread).misplaced()

    assert (misplaced.group, misplaced.op_device, misplaced.number) == (group, elsewhere, 1)


@given(spreads, st.data())
@settings(max_examples=50)
def test_every_move_between_allowed_devices_is_found(
    spread: AnySpread, data: st.DataObject
) -> None:
    many = [group for group, there in spread.groups.items() if len({s.device for s in there}) > 1]
    if not many:
        return
    group = data.draw(st.sampled_from(sorted(many)))
    old = baseline(spread)
    before = looked_up(old, spread).places(group)
    ways = [
        (a, b)
        for a in sorted(spread.groups[group])
        for b in sorted(spread.groups[group])
        if a.device != b.device and not a.is_with_variable and not b.is_with_variable
    ]
    if not ways:
        return
    source, to = data.draw(st.sampled_from(ways))
    there = dict(spread.groups[group])
    there[source] -= 1
    there[to] += 1
    spread.groups[group] = {each: number for each, number in there.items() if number}

    found = list(looked_up(old, spread).misplaced())

    assert len(before) > 1
    assert [each.number for each in found] == [1]
