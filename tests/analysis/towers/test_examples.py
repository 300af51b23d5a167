"""The values that depend on examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from support.graphs import op, placement

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.devices import Device
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.core.strategies import Copy, Strategy


@pytest.mark.parametrize(
    ("kind", "depends"),
    [
        ("Placeholder", True),
        ("PlaceholderWithDefault", True),
        ("IteratorGetNext", True),
        ("QueueDequeueManyV2", True),
        ("ReaderReadV2", True),
        ("RandomUniform", True),
        ("StatelessRandomNormal", True),
        ("VarHandleOp", False),
        ("Const", False),
    ],
)
def test_fed_read_and_random_values_are_examples(kind: str, depends: bool) -> None:
    graph = placement(op("source", kind), op("value", "Mul", "", "", "source", "source"))

    assert list(analyze(graph).examples) == [depends, depends]


@pytest.mark.parametrize(
    ("kind", "shape", "depends"),
    [
        ("Placeholder", (), False),
        ("PlaceholderWithDefault", (), False),
        ("Placeholder", (None,), True),
        ("Placeholder", None, True),
        ("IteratorGetNext", (), True),
    ],
)
def test_a_fed_scalar_is_no_example(
    kind: str, shape: Sequence[int | None] | None, depends: bool
) -> None:
    graph = placement(
        op("rate", kind),
        op("decay", "Mul", "", "", "penalty", "rate"),
        outputs={"rate": None if shape is None else tuple(shape)},
    )

    assert list(analyze(graph).examples) == [depends, depends]


@pytest.mark.parametrize(
    ("collections", "cached"),
    [
        ({TRAINABLE: ["w"], GLOBAL: ["w", "mean"]}, ["images"]),
        ({GLOBAL: ["w", "mean", "images"]}, []),
        ({TRAINABLE: [], GLOBAL: []}, []),
        ({}, []),
    ],
)
def test_a_variable_that_is_neither_trained_nor_saved_holds_examples(
    collections: Mapping[str, Sequence[str]], cached: Sequence[str]
) -> None:
    """A scalar, such as the count of a metric, does not hold examples."""
    graph = placement(
        *(op(name, "VarHandleOp") for name in ("w", "mean", "images", "seen")),
        shapes={"seen": ()},
        collections={key: [*names, "seen"][: len(names)] for key, names in collections.items()},
    )

    assert analyze(graph).cached_inputs == frozenset(cached)
    examples = analyze(graph).examples
    assert [graph.by_number[op].name for op in range(4) if examples[op]] == cached


def test_the_copy_of_a_replica_holds_no_examples() -> None:
    names = ["w", "w/replica_1", "images"]
    graph = placement(
        *(op(name, "VarHandleOp") for name in names),
        shapes=dict.fromkeys(names, (2,)),
        collections={TRAINABLE: ["w"], GLOBAL: ["w"]},
    )
    copies = {"w": Copy("w", 0), "w/replica_1": Copy("w", 1)}
    gpus = [Device.parse(f"/gpu:{index}") for index in range(2)]

    mirrored = replace(graph, strategy=Strategy("MirroredStrategy", gpus, copies))

    assert analyze(graph).cached_inputs == {"w/replica_1", "images"}
    assert analyze(mirrored).cached_inputs == {"images"}
