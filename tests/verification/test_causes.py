"""Findings that follow from findings of other rules, and the order of all reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.core.facts import CAUSES, Fact, FactKind
from placement_checks.core.impact import Impact
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.registry import RULES
from placement_checks.verification.judging import in_order, with_causes


def finding(object: str, **more: object) -> Finding:
    return Finding(object, "", "requested", "", "", **more)  # type: ignore[arg-type]


def broken(rule: str, *findings: Finding | str) -> Verdict:
    found = [finding(each) if isinstance(each, str) else each for each in findings]
    return Verdict(rule, "broken", "requested", None, found)


def judged(*verdicts: Verdict) -> list[Verdict]:
    return in_order(with_causes(verdicts, [RULES[each.rule].states for each in verdicts]))


def causes(*verdicts: Verdict) -> dict[str, dict[str, str | None]]:
    return {
        verdict.rule: {finding.object: finding.follows for finding in verdict.findings}
        for verdict in judged(*verdicts)
    }


def order(*verdicts: Verdict) -> list[str]:
    return [verdict.rule for verdict in judged(*verdicts)]


def test_a_finding_follows_from_a_fact_on_the_same_object() -> None:
    names, shared = broken("names-portable", "w", "v"), broken("variables-shared", "w")
    expected = {"names-portable": {"w": "variables-shared", "v": None}}
    expected["variables-shared"] = {"w": None}

    assert causes(names, shared) == causes(shared, names) == expected


def test_separate_variables_explain_no_device() -> None:
    """Shared variables would be on the GPU of the first tower."""
    found = causes(
        broken("variables-shared", "w"),
        broken("variables-on-host", "w"),
        broken("averaging-on-host", "w"),
    )

    assert found["variables-on-host"] == found["averaging-on-host"] == {"w": None}


def test_equal_noise_explains_no_update() -> None:
    """A weight decay that counts twice is a mistake of its own."""
    found = causes(broken("randomness-apart", "dropout"), broken("equal-to-one-gpu", "w"))

    assert found["equal-to-one-gpu"] == {"w": None}


def test_other_ops_and_objects_of_a_finding_state_facts_too() -> None:
    copies = finding("w_1", ops=("w_1", "w"), others=("v",))

    assert causes(broken("variables-shared", copies), broken("names-portable", "w", "v", "u"))[
        "names-portable"
    ] == {"w": "variables-shared", "v": "variables-shared", "u": None}


def test_the_root_cause_is_named() -> None:
    rules = ["weights-equal", "gradients-equal", "gradients-averaged", "every-tower-counts"]
    rules.append("variables-shared")

    found = causes(*(broken(rule, "w") for rule in rules))

    assert found.pop("variables-shared") == {"w": None}
    assert found == {rule: {"w": "variables-shared"} for rule in rules[:-1]}


@pytest.mark.parametrize(
    "cause", ["inputs-distinct", "losses-apart", "towers-alike", "replicas-in-sync"]
)
def test_a_mistake_of_towers_explains_the_gradients_of_the_same_step(cause: str) -> None:
    """Rows, losses and models of towers concern every variable, copies of a variable only it."""
    object = "w" if cause == "replicas-in-sync" else "tower_1/x"
    rules = ["gradients-averaged", "gradients-equal", "weights-equal"]

    found = causes(broken(cause, object), *(broken(rule, "w") for rule in rules))

    assert found == {cause: {object: None}, **{rule: {"w": cause} for rule in rules}}


def test_the_same_rows_in_all_towers_do_not_explain_a_sum() -> None:
    """With rows of their own, the gradients would still be added up instead of averaged."""
    summed = broken("gradients-averaged", finding("w", facts=(Fact(FactKind.SCALED, "w"),)))
    numbers = broken("gradients-equal", "w")

    found = causes(summed, broken("inputs-distinct", "tower_1/x"), numbers)
    assert found["gradients-averaged"] == {"w": None}
    assert found["gradients-equal"] == {"w": "gradients-averaged"}
    shared = causes(summed, broken("variables-shared", "w"))
    assert shared["gradients-averaged"] == {"w": "variables-shared"}


def test_a_known_mistake_of_a_variable_does_not_explain_other_variables() -> None:
    found = causes(broken("one-update", "v"), broken("gradients-averaged", "w"))

    assert found == {"one-update": {"v": None}, "gradients-averaged": {"w": None}}


def test_differences_without_a_known_reason_follow_from_any_mistake() -> None:
    unknown = finding("v", may_follow=(Fact(FactKind.VALUE, "v"), Fact(FactKind.VALUE)))
    weights = broken("weights-equal", unknown, "u")

    assert causes(weights, broken("replicas-in-sync", "w"))["weights-equal"] == {
        "v": "replicas-in-sync",
        "u": None,
    }
    assert causes(weights)["weights-equal"] == {"v": None, "u": None}


def test_kept_and_unselected_rules_explain_nothing() -> None:
    kept = Verdict("variables-shared", "kept", "requested")

    assert causes(broken("names-portable", "w"), kept)["names-portable"] == {"w": None}
    assert causes(broken("names-portable", "w"))["names-portable"] == {"w": None}


def test_a_doubt_neither_explains_nor_follows() -> None:
    doubt = broken("trainables-trained", finding("w", is_doubt=True))
    shared = broken("variables-shared", "w")

    found = causes(doubt, broken("gradients-equal", "w"))
    assert found == {"gradients-equal": {"w": None}, "trainables-trained": {"w": None}}
    assert causes(doubt, shared)["trainables-trained"] == {"w": None}


def test_facts_that_a_finding_states_replace_the_default() -> None:
    pipeline = finding("IteratorV2", facts=(Fact(FactKind.INPUT_DEVICE, "IteratorV2"),))

    found = causes(broken("inputs-distinct", pipeline), broken("gradients-averaged", "w"))

    assert found["gradients-averaged"] == {"w": None}


def test_no_kind_of_fact_causes_itself() -> None:
    for kind in FactKind:
        assert kind not in {cause.kind for cause in Fact(kind).causes()}


def test_every_cause_and_every_kind_is_used() -> None:
    stated = {rule.states for rule in RULES.values()}
    by_findings = {*(FactKind.INPUT_DEVICE, FactKind.DIAGNOSED, FactKind.BLOCKED, FactKind.SCALED)}

    assert {*CAUSES} <= {*stated, *by_findings}
    assert {*FactKind} == {*stated, *by_findings} - {None}


def test_what_explains_more_comes_first() -> None:
    counts = broken("every-tower-counts", "w")
    update = broken("one-update", "v", "u", "t")

    assert order(update, counts) == ["one-update", "every-tower-counts"]
    assert order(update, counts, broken("gradients-averaged", "w")) == [
        "every-tower-counts",
        "one-update",
        "gradients-averaged",
    ]


def test_findings_that_explain_more_come_first() -> None:
    shared = broken("variables-shared", "v", finding("w", group_key="other"))

    (first, _) = judged(shared, broken("names-portable", "w"))[0].findings
    assert first.object == "w"


def test_the_impact_comes_before_what_follows() -> None:
    shared = broken("variables-shared", finding("w", impact=Impact.LAYOUT))
    names = broken("names-portable", finding("w", impact=Impact.LAYOUT))
    update = broken("one-update", finding("v", impact=Impact.TRAINING))

    assert order(shared, names, update) == ["one-update", "variables-shared", "names-portable"]


def test_a_cause_has_the_impact_of_what_follows_from_it() -> None:
    idle = finding("/gpu:1", impact=Impact.LAYOUT, facts=(Fact(FactKind.LOST),))
    averaged = finding("w", impact=Impact.TRAINING)
    slow = broken("variables-on-host", finding("v", impact=Impact.LAYOUT))

    verdicts = judged(slow, broken("gradients-averaged", averaged), broken("no-idle-device", idle))

    assert verdicts[0].rule == "no-idle-device"
    assert verdicts[0].findings[0].impact is Impact.TRAINING


def test_doubts_and_rules_without_findings_come_last() -> None:
    kept = Verdict("placeable", "kept", "assigned")
    doubt = Verdict(
        "trainables-trained", "doubtful", "requested", None, [finding("w", is_doubt=True)]
    )

    assert order(kept, doubt, broken("one-update", "v")) == [
        "one-update",
        "trainables-trained",
        "placeable",
    ]


NAMES = sorted(name for name, rule in RULES.items() if rule.states is not None)


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from("uvw"), min_size=1)),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(FactKind)),
)
def test_each_finding_follows_from_a_rule_with_a_root_cause(
    objects: dict[str, set[str]], further: dict[str, FactKind]
) -> None:
    """Also if facts that findings may follow from make a circle."""
    verdicts = judged(
        *(
            broken(rule, *(finding(name, may_follow=facts(further, rule)) for name in names))
            for rule, names in objects.items()
        )
    )

    roots = {each.rule for each in verdicts if any(one.is_root for one in each.findings)}
    followed = {one.follows for each in verdicts for one in each.findings} - {None}
    assert followed <= roots
    assert bool(roots) is bool(objects)
    assert {each.rule: {one.object for one in each.findings} for each in verdicts} == objects


def facts(further: dict[str, FactKind], rule: str) -> tuple[Fact, ...]:
    return (Fact(further[rule]),) if rule in further else ()
