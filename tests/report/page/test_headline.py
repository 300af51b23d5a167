from __future__ import annotations

import pytest
from support.pictures import data_of
from support.reports import broken, finding
from support.towers import host, program, variable

from placement_checks import Placement, Verdict
from placement_checks.core.placement import TRAINABLE

KEPT = Verdict("placeable", "kept", "assigned")
UNCHECKED = Verdict("towers-overlap", "not-checked", None, "no trace")


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (
            program(),
            "2 towers share the variables on CPU:0: the one rule that could be checked is kept.",
        ),
        (
            program(mirrored=True),
            "2 towers, each with a copy of the variables: "
            "the one rule that could be checked is kept.",
        ),
        (program(gpus=[0]), "The one rule that could be checked is kept."),
    ],
)
def test_headline_of_a_sound_program(graph: Placement, sentence: str) -> None:
    data = data_of(graph, KEPT, UNCHECKED)

    assert (data["state"], data["headline"]) == ("kept", sentence)
    assert data["facts"][0] == "1 not checked."


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (program(), "2 towers compute alike and share the variables on CPU:0: "),
        (program(mirrored=True), "2 towers compute alike, each with a copy of the variables: "),
    ],
)
def test_headline_of_towers_that_were_found_alike(graph: Placement, sentence: str) -> None:
    data = data_of(graph, KEPT, Verdict("towers-alike", "kept", "requested"))

    assert data["headline"] == f"{sentence}all 2 rules that could be checked are kept."


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (
            program(host("sum/w", "AddN", "gradients/tower_1/w/MatMul_grad/MatMul")),
            "GPU:0 never counts: the update of 1 variable does not use its gradients.",
        ),
        (
            program(variable("a", at="GPU:0"), variable("b", at="GPU:0"), variables=["a", "b"]),
            "2 variables are on GPU:0, not on CPU:0.",
        ),
        (program(machine="gpu*4"), "GPU:2 and GPU:3 compute nothing."),
        (program(machine="gpu*9"), "7 GPUs compute nothing: GPU:2 … GPU:8."),
    ],
)
def test_headline_of_a_broken_program(graph: Placement, sentence: str) -> None:
    data = data_of(graph, judged=True)

    assert (data["state"], data["headline"]) == ("broken", sentence)


def test_other_rules_show_their_first_finding() -> None:
    found = [
        finding(
            name,
            message=f"the op {name} is elsewhere; so be it",
        )
        for name in "ab"
    ]

    data = data_of(program(), broken("some-rule", *found), KEPT)

    assert data["headline"] == "The op a is elsewhere (and 1 more)."
    assert data["facts"][0] == "1 of 2 rules that could be checked is broken: some-rule."


def test_a_name_at_the_beginning_stays_as_it_is() -> None:
    found = finding("fc1/w", message="fc1/w is elsewhere")

    assert data_of(program(), broken("some-rule", found))["headline"] == "fc1/w is elsewhere."


def test_a_program_that_was_only_placed_is_described() -> None:
    data = data_of(program())

    assert (data["state"], data["headline"]) == (
        "placed",
        f"{len(program().ops)} ops on CPU:0, GPU:0 and GPU:1.",
    )


def test_a_program_without_checked_rules() -> None:
    assert data_of(program(), UNCHECKED)["state"] == "not-checked"


def test_the_devices_of_trained_variables() -> None:
    data = data_of(program(collections={TRAINABLE: ["w"]}), KEPT)

    assert "1 trained variable on CPU:0." in data["facts"]


def test_mirrored_variables_are_counted_once() -> None:
    data = data_of(program(mirrored=True, collections={TRAINABLE: ["v0/w"]}), KEPT)

    assert "1 trained variable, with a copy on each of 2 GPUs." in data["facts"]
