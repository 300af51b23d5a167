from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks import RULES
from placement_checks.core.errors import ConfigError, UsageError
from placement_checks.core.settings import Settings
from placement_checks.rules.devices.no_fallback import NoFallback
from placement_checks.rules.devices.session_memory import SessionMemory
from placement_checks.rules.devices.variables_on_host import VariablesOnHost
from placement_checks.rules.registry import in_order
from placement_checks.rules.towers.gradients_averaged import GradientsAveraged
from placement_checks.rules.towers.variables_shared import VariablesShared
from placement_checks.verification.policy import (
    judged_by,
    parse_policy,
    parse_setting,
    rule_named,
    rules_for,
    valid_policy,
)

NAMES = list(RULES)
ALL = f"the rules are {', '.join(NAMES)}"
TABLES = "give a list of tables, such as [{allow_growth = 1}]"


@pytest.mark.parametrize(
    ("only", "without", "chosen"),
    [
        ([], [], [rule.name for rule in in_order(RULES.values())]),
        (["no-fallback", "placeable"], [], ["placeable", "no-fallback"]),
        ([], NAMES[1:], NAMES[:1]),
        (NAMES[:2], NAMES[1:], NAMES[:1]),
    ],
)
def test_rules_for_chooses_in_the_order_of_the_reports(
    only: Sequence[str], without: Sequence[str], chosen: Sequence[str]
) -> None:
    settings = Settings(rules=tuple(only), without=tuple(without))
    assert [rule.name for rule in rules_for(settings)] == chosen


def test_rules_for_takes_each_field_from_the_first_policy_that_has_it() -> None:
    policies: list[Mapping[str, Any]] = [
        {"variables-on-host": {"device": "/gpu:0"}},
        {"variables-on-host": {"device": "/gpu:1", "allow": ["v"]}, "no-fallback": {"allow": ()}},
    ]
    settings = judged_by(Settings(), policies, ["variables-on-host", "no-fallback"])
    assert rules_for(settings) == [NoFallback(), VariablesOnHost("/gpu:0", ("v",))]


def test_fields_of_the_rule_that_a_rule_is_declared_with() -> None:
    numbers = {"gradients-equal": {"scale": 2.0, "shares": [3, 1], "seconds": 5.0}}
    own = {"gradients-averaged": {"scale": 4.0}}

    settings = judged_by(Settings(), [numbers], ["gradients-averaged"])
    (shared,) = rules_for(settings)
    (overridden,) = rules_for(judged_by(settings, [own], settings.rules))

    assert shared == GradientsAveraged(scale=2.0, shares=(3, 1))
    assert overridden == GradientsAveraged(scale=4.0, shares=(3, 1))


@pytest.mark.parametrize(
    "settings",
    [Settings(rules=("placeable", "fallback")), Settings(without=("placeable", "fallback"))],
)
def test_rules_for_refuses_a_rule_that_does_not_exist(settings: Settings) -> None:
    with pytest.raises(UsageError, match="rule 'fallback' is not a known rule"):
        rules_for(settings)


def test_rules_for_refuses_to_check_nothing() -> None:
    with pytest.raises(UsageError) as caught:
        rules_for(Settings(rules=("placeable",), without=("placeable",)))
    assert str(caught.value) == "no rule is left to check; skip fewer rules (--without)"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("no-fallbacks", "did you mean 'no-fallback'?"),
        ("variables_shared", "did you mean 'variables-shared'?"),
        ("zzz", ALL),
        ("", ALL),
    ],
)
def test_unknown_rule_is_offered_the_nearest(name: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        rule_named(name)
    assert str(caught.value) == f"rule '{name}' is not a known rule; {fix}"


def test_known_rules_are_found_by_their_names() -> None:
    assert [rule_named(name).name for name in NAMES] == NAMES


def test_lists_for_tuples() -> None:
    policy = valid_policy(
        {"variables-shared": {"allow": ["bn/*"]}, "variables-on-host": {"device": "/gpu:0"}}
    )
    names = ("variables-on-host", "variables-shared")
    rules = rules_for(Settings(policy=policy, rules=names))
    assert rules == [VariablesOnHost("/gpu:0"), VariablesShared(("bn/*",))]


@pytest.mark.parametrize(
    ("policy", "errors"),
    [
        ({}, []),
        ({"no-fallback": {"allow": ["Print"]}, "no-idle-device": {"allow": ("/gpu:1",)}}, []),
        ({"variables-on-host": {"device": ["/job:ps", "/cpu:0"], "allow": []}}, []),
        ({"placeable": {}}, []),
        ({"no-falback": {}}, ["no-falback is not a known rule; did you mean 'no-fallback'?"]),
        ({"no-fallback": ["Print"]}, ["no-fallback is not a table of fields"]),
        (
            {"variables-on-host": {"devices": "/gpu:0"}},
            ["variables-on-host.devices is not a known field; did you mean 'device'?"],
        ),
        (
            {"variables-on-host": {"zzz": 1}},
            ["variables-on-host.zzz is not a known field; its fields are device, allow, local"],
        ),
        (
            {"placeable": {"soft": True}},
            ["placeable.soft is not a known field; it has no fields"],
        ),
        (
            {"no-fallback": {"allow": 3}},
            ["no-fallback.allow: 3 does not fit; give a name or a list of names"],
        ),
        (
            {"no-idle-device": {"allow": [1]}},
            ["no-idle-device.allow: [1] does not fit; give a name or a list of names"],
        ),
        (
            {"variables-on-host": {"device": ["/cpu:0", ""]}},
            ["variables-on-host.device names no device; name one, such as /cpu:0"],
        ),
        (
            {"variables-on-host": {"device": []}},
            ["variables-on-host.device names no device; name one, such as /cpu:0"],
        ),
        (
            {"no-idle-device": {"allow": ["gpu one"]}},
            [
                "no-idle-device.allow: 'gpu one': 'gpu one' is not part of a device name; "
                "write it like /cpu:0, /gpu:1 or /job:ps/task:0/device:CPU:0"
            ],
        ),
        (
            {"variables-on-host": {"device": 0}},
            ["variables-on-host.device: 0 does not fit; give a name or a list of names"],
        ),
        ({"session-memory": {"others": []}}, []),
        ({"session-memory": {"others": [{}, {"allow_growth": True}]}}, []),
        ({"session-memory": {"others": ({"per_process_gpu_memory_fraction": 0.4},)}}, []),
        (
            {"session-memory": {"others": {"allow_growth": True}}},
            [f"session-memory.others: {{'allow_growth': True}} does not fit; {TABLES}"],
        ),
        (
            {"session-memory": {"others": "all"}},
            [f"session-memory.others: 'all' does not fit; {TABLES}"],
        ),
        (
            {"session-memory": {"others": True}},
            [f"session-memory.others: True does not fit; {TABLES}"],
        ),
        (
            {"session-memory": {"others": [{}, 0.4]}},
            [f"session-memory.others: [{{}}, 0.4] does not fit; {TABLES}"],
        ),
        (
            {"session-memory": {"others": [{"per_process_gpu_memory_fraction": "half"}]}},
            [
                "session-memory.others: per_process_gpu_memory_fraction is 'half', not a "
                "number; write each program as {'per_process_gpu_memory_fraction': 0.5}"
            ],
        ),
    ],
)
def test_policy_errors_name_the_wrong_fields(
    policy: Mapping[str, Any], errors: Sequence[str]
) -> None:
    assert [str(error) for error in parse_policy(policy)[1]] == errors


@pytest.mark.parametrize("device", ["/host:0", ["/cpu:0", "/host:0"]])
def test_policy_errors_find_invalid_devices(device: str | Sequence[str]) -> None:
    _, (error,) = parse_policy({"variables-on-host": {"device": device}})
    assert error.object == "variables-on-host.device"
    assert "'host:0' is not part of a device name" in error.message
    assert error.fix == "write it like /cpu:0, /gpu:1 or /job:ps/task:0/device:CPU:0"


def test_all_policy_errors_are_found_with_their_file() -> None:
    policy: Mapping[str, Any] = {"placeable": {"a": 1, "b": 2}, "zzz": {}, "no-fallback": 3}
    _, errors = parse_policy(policy, "--set ")
    assert all(isinstance(error, ConfigError) for error in errors)
    assert [error.object for error in errors] == [
        "--set placeable.a",
        "--set placeable.b",
        "--set zzz",
        "--set no-fallback",
    ]


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("no-fallback.allow=['Print']", ("no-fallback", "allow", ["Print"])),
        ("variables-on-host.device=/gpu:0", ("variables-on-host", "device", "/gpu:0")),
        ("variables-on-host.device='/gpu:0'", ("variables-on-host", "device", "/gpu:0")),
        (" a.b = some words ", ("a", "b", "some words")),
        ("a.b=", ("a", "b", "")),
        ("a.b=c=d", ("a", "b", "c=d")),
        ("a.b.c=1", ("a", "b.c", 1)),
        ("a.b=true", ("a", "b", True)),
        ("a.b=[", ("a", "b", "[")),
    ],
)
def test_parse_setting_reads_every_kind_of_value(text: str, setting: tuple[str, str, Any]) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize("text", ["", "a.b", "a=b.c", "device=/gpu:0", "="])
def test_setting_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_setting(text)
    assert str(caught.value) == (
        f"--set {text} is not of the form RULE.FIELD=VALUE; "
        "write it like --set variables-on-host.device=/gpu:0"
    )


@given(st.text() | st.text("ab.=[]{}'\"\\\n #0_-:+eTZ").map("a.b={}".format))
def test_parse_setting_raises_nothing_but_usage_errors(text: str) -> None:
    try:
        rule, field, _ = parse_setting(text)
    except UsageError:
        assert "=" not in text or "." not in text.partition("=")[0]
    else:
        assert text.lstrip().startswith(f"{rule}.{field}")


@given(st.lists(st.text(string.ascii_letters + string.punctuation + " ")))
def test_parse_setting_reads_lists_of_names(names: Sequence[str]) -> None:
    setting = parse_setting(f"no-fallback.allow = {json.dumps(names)}")
    assert setting == ("no-fallback", "allow", names)


@pytest.mark.parametrize(
    ("value", "others"),
    [
        (
            "[{per_process_gpu_memory_fraction = 0.4}]",
            ({"per_process_gpu_memory_fraction": 0.4},),
        ),
        (
            "[{allow_growth = 1}, {visible_device_list = '0,1'}]",
            ({"allow_growth": 1}, {"visible_device_list": "0,1"}),
        ),
        ("[]", ()),
    ],
)
def test_others_are_set_as_a_list_of_tables(
    value: str, others: tuple[Mapping[str, Any], ...]
) -> None:
    rule, field, parsed = parse_setting(f"session-memory.others={value}")
    policy = valid_policy({rule: {field: parsed}})

    assert rules_for(Settings(policy=policy, rules=(rule,))) == [SessionMemory(others=others)]


@pytest.mark.parametrize(
    "value", ["{allow_growth = 1}", "[0.4]", "[{allow_growth: 1}]", "[{allow_growth = 1}", "", "1"]
)
def test_others_that_are_no_list_of_tables(value: str) -> None:
    rule, field, parsed = parse_setting(f"session-memory.others={value}")

    _, (error,) = parse_policy({rule: {field: parsed}}, "--set ")

    assert (error.object, error.fix) == ("--set session-memory.others", TABLES)
