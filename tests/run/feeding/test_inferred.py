"""Inference of rows and of counterparts among the tensors that were fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.builders import script

from placement_checks import Program
from placement_checks.capture.programs import load
from placement_checks.core.errors import CannotRun
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.feeding.inferred import (
    FedProgram,
    InferredInputs,
    RowInput,
    infer_inputs,
)
from placement_checks.run.feeding.interface import PASS_BATCH
from placement_checks.run.feeding.replayed import ReplayedFeeding
from placement_checks.run.runnable import RunnableProgram, make_runnable

tf1 = tf.compat.v1
Shapes = Mapping[str, tuple[int, ...]]


def program(
    gpus: int, fed: Mapping[str, Any], *, fixed: bool = False, free: bool = False
) -> RunnableProgram:
    """A program with a placeholder for each array; the scope ``tower_i`` is on GPU i.

    Placeholders have the shapes of the arrays (``fixed``), any number of rows, or rows of any
    length (``free``).
    """

    def build() -> Any:
        w = tf1.get_variable("w", [])
        total = 0.0
        for name, array in fed.items():
            on = name.partition("/")[0]
            device = f"/gpu:{on[-1]}" if on.startswith("tower_") else "/cpu:0"
            row = [None] * (array.ndim - 1) if free else array.shape[1:]
            shape = array.shape if fixed else (None, *row)[: array.ndim]
            with tf.device(device):
                total += w * tf.cast(
                    tf.reduce_sum(tf1.placeholder(array.dtype, shape, name=name)), tf.float32
                )
        return tf1.train.GradientDescentOptimizer(0.1).minimize(total)

    built = load(Program("towers" if gpus > 1 else "single", build), gpus)
    return make_runnable(
        replace(built, fed={f"{name}:0": each for name, each in fed.items()}), "auto"
    )


def arrays(shapes: Shapes) -> dict[str, Any]:
    """Arrays that differ in every element."""
    return {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for name, shape in shapes.items()
    }


def found(several: Mapping[str, Any], alone: Mapping[str, Any], gpus: int = 2) -> InferredInputs:
    return infer_inputs(FedProgram(program(gpus, several), {}), FedProgram(program(1, alone), {}))


def of_shapes(several: Shapes, alone: Shapes, gpus: int = 2) -> InferredInputs:
    return found(arrays(several), arrays(alone), gpus)


def fed_to(inputs: InferredInputs) -> dict[str, list[str]]:
    return {each.reference: list(each.towers) for each in inputs.inputs}


def refused(several: Shapes, alone: Shapes) -> str:
    with pytest.raises(CannotRun) as error:
        of_shapes(several, alone)
    return str(error.value)


def test_tensors_of_towers_are_matched_by_the_end_of_their_names() -> None:
    inputs = of_shapes(
        {"tower_0/x": (4, 3), "tower_0/y": (4, 3), "tower_1/y_1": (4, 3), "tower_1/x": (4, 3)},
        {"x": (8, 3), "y": (8, 3)},
    )

    assert fed_to(inputs) == {
        "x:0": ["tower_0/x:0", "tower_1/x:0"],
        "y:0": ["tower_0/y:0", "tower_1/y_1:0"],
    }
    assert (inputs.rows, inputs.reference_rows, inputs.split) == (8, 8, (4, 4))
    assert inputs.any_batch_size


def test_other_feeds_are_matched_by_row_shape() -> None:
    inputs = of_shapes(
        {"tower_0/a": (4, 3), "tower_0/b": (4, 2), "tower_1/a": (4, 3), "tower_1/b": (4, 2)},
        {"images": (8, 3), "labels": (8, 2)},
    )

    assert fed_to(inputs) == {
        "images:0": ["tower_0/a:0", "tower_1/a:0"],
        "labels:0": ["tower_0/b:0", "tower_1/b:0"],
    }


def test_rows_may_be_padded_to_the_longest_of_their_batch() -> None:
    """Each run shuffles, so that the batches of both programs are of other lengths."""
    several = arrays(
        {"inputs": (4, 9), "inputs_1": (4, 9), "targets": (4, 9), "targets_1": (4, 9)}
    )
    alone = arrays({"inputs": (8, 7), "targets": (8, 7)})

    inputs = infer_inputs(
        FedProgram(program(2, several, free=True), {}),
        FedProgram(program(1, alone, free=True), {}),
    )

    assert fed_to(inputs) == {
        "inputs:0": ["inputs:0", "inputs_1:0"],
        "targets:0": ["targets:0", "targets_1:0"],
    }
    assert [each.rows.shape for each in inputs.inputs] == [(8, 9), (8, 9)]
    assert (inputs.rows, inputs.reference_rows, inputs.split) == (8, 8, (4, 4))


@pytest.mark.parametrize(("second", "free"), [((4, 8), True), ((4, 9), False)])
def test_rows_of_other_lengths_are_named(second: tuple[int, int], free: bool) -> None:
    """The towers' rows differ in length, or the graph takes one length only."""
    several = arrays({"x": (4, 9), "x_1": second})
    alone = arrays({"x": (8, 7)})

    with pytest.raises(CannotRun) as error:
        infer_inputs(
            FedProgram(program(2, several, free=free), {}),
            FedProgram(program(1, alone, free=free), {}),
        )

    assert str(error.value) == (
        "'x:0' is fed rows of the shape [9], and 'x:0' of single rows of [7]; pad rows to one "
        "length, or shuffle by a seed"
    )


def test_a_single_feed_serves_all_towers() -> None:
    inputs = of_shapes({"x": (8, 3)}, {"x": (4, 3)})

    assert fed_to(inputs) == {"x:0": ["x:0"]}
    assert (inputs.rows, inputs.reference_rows, inputs.split) == (8, 4, ())


def test_host_feeds_belong_to_towers_in_order() -> None:
    inputs = of_shapes({"x": (4, 3), "x_1": (2, 3)}, {"x": (6, 3)})

    assert fed_to(inputs) == {"x:0": ["x:0", "x_1:0"]}
    assert inputs.split == (4, 2)


def test_several_entries_may_be_one_row() -> None:
    shapes = {"tower_0/x": (2, 3), "tower_0/words": (10,), "tower_1/x": (2, 3)}
    inputs = of_shapes({**shapes, "tower_1/words": (10,)}, {"x": (2, 3), "words": (10,)})

    assert [(each.reference, each.per_row, each.rows.shape) for each in inputs.inputs] == [
        ("x:0", 1, (4, 3)),
        ("words:0", 5, (4, 5)),
    ]


def test_feeds_without_rows_are_fed_whole() -> None:
    several = arrays({"x": (8, 3), "weights": (5,)})
    alone = arrays({"x": (6, 3), "weights": (5,)})
    rates = ({"rate": np.float32(0.2), "epoch": np.int32(3)}, {"rate": np.float32(0.1)})

    inputs = found({**several, **rates[0]}, {**alone, "epoch": np.int32(1), **rates[1]})

    assert (
        inputs.tower_values.keys()
        == inputs.reference_values.keys()
        == {"weights:0", "rate:0", "epoch:0"}
    )
    assert inputs.reference_values["rate:0"] == np.float32(0.1)
    assert inputs.reference_values["epoch:0"] == 1
    assert set(inputs.unequal_scalars) == {"rate:0", "epoch:0"}


def test_initial_states_are_fed_unchanged() -> None:
    several = {**arrays({"x": (8, 3)}), "state": np.zeros([2, 4, 5], np.float32)}
    alone = {**arrays({"x": (8, 3)}), "state": np.zeros([2, 8, 5], np.float32)}

    inputs = found(several, alone)

    assert inputs.tower_values["state:0"].shape == (2, 4, 5)
    assert inputs.reference_values["state:0"].shape == (2, 8, 5)
    assert not inputs.any_batch_size


def test_a_fed_number_of_rows_fixes_the_batch_size() -> None:
    several = {**arrays({"x": (8, 3)}), "size": np.int32(4)}

    assert not found(several, {**arrays({"x": (4, 3)}), "size": np.int32(4)}).any_batch_size
    assert found(several, {**arrays({"x": (3, 3)}), "size": np.int32(5)}).any_batch_size


def test_tensors_without_counterpart_are_named() -> None:
    assert refused({"x": (8, 3), "mask": (8, 2)}, {"x": (8, 3)}) == (
        "towers is fed 'mask:0', without a unique counterpart in single; " + PASS_BATCH
    )
    assert refused({"x": (8, 3)}, {"x": (8, 3), "x_1": (8, 3)}) == (
        "towers is fed 'x:0', without a unique counterpart in single; " + PASS_BATCH
    )


def test_several_host_feeds_are_ambiguous() -> None:
    shapes = {"a": (4, 3), "b": (4, 3), "c": (4, 3), "d": (4, 3)}

    assert refused(shapes, {"one": (8, 3), "other": (8, 3)}).startswith(
        "towers is fed 'a:0', 'b:0', 'c:0' and 'd:0', without a unique counterpart"
    )


@pytest.mark.parametrize(
    "components",
    [
        {"x/indices": (8, 2), "x/values": (8,), "x/shape": (2,)},
        {"x/flat_values": (8,), "x/row_splits_0": (9,)},
    ],
    ids=["sparse", "ragged"],
)
def test_sparse_and_ragged_tensors_are_refused(components: Shapes) -> None:
    """Even if the number of their values is the number of rows: their indices are no rows."""

    def fed(scope: str) -> dict[str, Any]:
        made = {f"{scope}{name}": each for name, each in arrays(components).items()}
        for name, each in made.items():
            if not name.endswith("values"):
                made[name] = each.astype(np.int64)
        return {**made, **arrays({f"{scope}y": (8, 1)})}

    with pytest.raises(CannotRun, match="is fed 'tower_0/x', a sparse or ragged tensor"):
        found({**fed("tower_0/"), **fed("tower_1/")}, fed(""))


def test_parts_of_other_dtypes_are_no_sparse_tensor() -> None:
    parts = {"x/indices": (8, 2), "x/values": (8, 3), "x/shape": (8, 1)}

    assert of_shapes(parts, parts).rows == 8


def test_rows_of_several_sizes_are_named() -> None:
    several = {"x": (8, 3), "y": (8, 1), "z": (5, 2)}
    assert refused(several, {"x": (8, 3), "y": (8, 1), "z": (7, 2)}) == (
        "cannot match the rows of towers and single: towers feeds 5 to 'z:0', and single feeds 7 "
        "to 'z:0', but other inputs get 8 rows in towers and 8 in single; "
        "pass a function that returns rows: --batch train.py:batch"
    )
    parts = {"tower_0/x": (4, 3), "tower_1/x": (2, 3), "tower_0/y": (3, 2), "tower_1/y": (3, 2)}
    assert refused(parts, {"x": (6, 3), "y": (6, 2)}) == (
        "cannot identify the rows of each tower: 'tower_0/x:0' and 'tower_0/y:0' are fed parts of "
        "different sizes; " + PASS_BATCH
    )


def test_row_shapes_may_differ_between_towers() -> None:
    of_towers = [np.full([1, 3], value, np.float32) for value in (1, 2)]
    several = {f"tower_{i}/x": row for i, row in enumerate(of_towers)}

    inputs = found(several, arrays({"x": (1, 3)}))

    assert (inputs.rows, inputs.split) == (2, (1, 1))


def test_single_numbers_are_not_rows() -> None:
    for fed in ({"rate": np.float32(1)}, arrays({"x": (0, 3)})):
        with pytest.raises(CannotRun, match="no tensor that is fed to towers has rows"):
            found(fed, fed)


@given(
    gpus=st.integers(1, 4),
    size=st.integers(1, 6),
    per_row=st.integers(1, 3),
    reference_rows=st.integers(1, 30),
    any_batch_size=st.booleans(),
    shared=st.booleans(),
    seed=st.integers(0, 9),
)
def test_rows_stay_together_in_both_programs(
    gpus: int,
    size: int,
    per_row: int,
    reference_rows: int,
    any_batch_size: bool,
    shared: bool,
    seed: int,
) -> None:
    rows = gpus * size
    seen = np.arange(rows)

    def towers(name: str) -> list[str]:
        return [name] if shared else [f"{name}_{i}" for i in range(gpus)]

    several = np.repeat(seen[:, None], per_row, axis=1)
    feeding = ReplayedFeeding(
        "single",
        InferredInputs(
            rows=rows,
            reference_rows=reference_rows,
            any_batch_size=any_batch_size,
            split=() if shared else [size] * gpus,
            inputs=[
                RowInput(towers("x"), "x", 1, seen),
                RowInput(towers("y"), "y", per_row, several if per_row > 1 else seen),
            ],
            tower_values={"rate": np.ones(())},
            reference_values={},
        ),
        gpus,
        None,
    )

    batch = feeding.batch(np.random.default_rng(seed), rows)
    fed = feeding.to_towers(batch)

    assert sorted(batch["x"]) == list(seen)
    x, y = (np.concatenate([fed[tensor] for tensor in towers(name)]) for name in "xy")
    assert np.array_equal(x, batch["x"])
    assert np.array_equal(y, np.repeat(x, per_row))
    assert len(feeding.parts) == gpus
    for part in feeding.parts if feeding.takes_parts else ():
        alone = feeding.to_reference(batch, part)
        times = len(alone["x"]) // size
        assert np.array_equal(alone["x"], np.tile(batch["x"][list(part)], times))
        assert len(alone["x"]) == reference_rows or (any_batch_size and times == 1)
    if feeding.takes_all:
        assert set(feeding.to_reference(batch)["x"]) == set(seen)


def test_a_program_without_feeds() -> None:
    towers = program(2, arrays({"x": (8, 3)}))
    built = replace(towers.built, program=script("train.py"), fed={})

    with pytest.raises(CannotRun, match="was fed no tensor that can hold rows, and its"):
        ProgramPair(replace(towers, built=built), program(1, arrays({"x": (8, 3)}))).feeding(None)
