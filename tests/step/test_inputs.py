"""Inputs of towers: elements of pipelines, and placeholders with a fixed number of rows.

NumPy runs the programs, so that a wrong expectation fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from support.steps import (
    Program,
    Value,
    add_n,
    apply,
    compare,
    concat,
    differences,
    mean,
    partition,
    relu,
    reshape,
    rows_of,
    split,
    square,
    stack,
    to_float,
    total,
    unstack,
)

from placement_checks.rules.towers.inputs_distinct import InputsDistinct
from placement_checks.step.comparison import State
from placement_checks.step.terms import Assumption

WIDTH = 3
SHAPES = {"x": (None, WIDTH), "y": (None,)}
Rows = tuple[Value, Value]
Combine = Callable[[Sequence[Value]], Value]


def _mean(gradients: Sequence[Value]) -> Value:
    return add_n(gradients) / float(len(gradients))


def _trained(program: Program, parts: Sequence[Rows], combine: Combine = _mean) -> Program:
    """Towers with one part each, or the first towers with an equal number of parts."""
    w, gradients = program.variable("w", (WIDTH,)), []
    for number, (x, y) in enumerate(parts):
        with program.tower(number):
            loss = mean(square(total(x * w.read(), 1) - y))
            gradients.append(program.gradient(loss, w))
    program.train(w.descend(0.1, combine(gradients)))
    return program


# --- elements of pipelines ---


def _draw(program: Program, iterator: Value, tower: int | None = None) -> Rows:
    x, y = program.draw(iterator, SHAPES, tower)
    return x, y


def _one_gpu() -> Program:
    program = Program()
    return _trained(program, [_draw(program, program.iterator())])


def _next_elements(program: Program, combine: Combine = _mean) -> Program:
    iterator = program.iterator()
    return _trained(program, [_draw(program, iterator, tower) for tower in range(2)], combine)


def _own_pipelines(program: Program, shards: Sequence[int]) -> Program:
    towers = []
    for tower, shard in enumerate(shards):
        towers.append(_draw(program, program.iterator(shard=shard), tower))
    return _trained(program, towers)


def _own_datasets(program: Program, shards: Sequence[int], seed: int = 1) -> Program:
    towers = []
    for tower, shard in enumerate(shards):
        dataset = program.add("ShardDataset", program.add("RangeDataset", 0, 99, 1), 2, shard)
        shuffled = program.add("ShuffleDataset", dataset, 9, seed, seed)
        towers.append(_draw(program, program.iterator(shuffled), tower))
    return _trained(program, towers)


def _parts(program: Program) -> Program:
    x, y = _draw(program, program.iterator())
    return _trained(program, list(zip(split(x, 2), split(y, 2), strict=True)))


def _pairs_of_two_draws(program: Program) -> Program:
    """Each tower has the features of one element and the labels of the next one."""
    iterator = program.iterator()
    drawn = [_draw(program, iterator, tower) for tower in range(4)]
    return _trained(program, [(drawn[i][0], drawn[i + 1][1]) for i in (0, 2)])


PIPELINES: dict[str, tuple[State, Program]] = {
    "next elements": (State.PROVED, _next_elements(Program())),
    "pipelines of shards": (State.PROVED, _own_pipelines(Program(), (0, 1))),
    "datasets of shards": (State.PROVED, _own_datasets(Program(), (0, 1))),
    "equal datasets": (State.DIFFERS, _own_datasets(Program(), (1, 1))),
    "equal datasets in orders of their own": (State.PROVED, _own_datasets(Program(), (1, 1), 0)),
    "parts of one element": (State.PROVED, _parts(Program())),
    "sum": (State.DIFFERS, _next_elements(Program(), add_n)),
    "last element": (State.DIFFERS, _next_elements(Program(), lambda gradients: gradients[-1])),
    "first element twice": (
        State.DIFFERS,
        _next_elements(Program(), lambda gradients: (gradients[0] + gradients[0]) / 2.0),
    ),
    "equal pipelines": (State.DIFFERS, _own_pipelines(Program(), (1, 1))),
    "labels of another element": (State.DIFFERS, _pairs_of_two_draws(Program())),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_elements_of_pipelines(name: str) -> None:
    expected, towers = PIPELINES[name]
    found = compare(towers, _one_gpu())

    assert found.variables["w"].state is expected, found.variables["w"]
    if expected is State.PROVED:
        several = name != "parts of one element"
        assert found.assumed == ({Assumption.EQUAL_ROWS} if several else set())
        assert differences(towers, _one_gpu(), found, (4, 4), 0)["w"] < 1e-5


def _features_and_labels(is_ordered: bool, is_paired: bool, count: int) -> Program:
    """Each tower draws features from one pipeline, and labels from another one."""
    program = Program()
    iterators = [program.iterator(name=name) for name in SHAPES]
    w, gradients, before = program.variable("w", (WIDTH,)), [], list[Value]()
    for i in range(count):
        number = i if count > 1 else None
        with program.after(*before):
            (x,), (y,) = (
                program.draw(iterator, {name: SHAPES[name]}, number)
                for name, iterator in zip(SHAPES, iterators, strict=True)
            )
        before += [x, y] if is_ordered else []
        with program.tower(i):
            predicted = total(x * w.read(), 1)
            loss = mean(square(predicted - y)) if is_paired else mean(square(predicted)) - mean(y)
            gradients.append(program.gradient(loss, w))
    program.train(w.descend(0.1, _mean(gradients)))
    return program


@pytest.mark.parametrize(
    ("is_ordered", "is_paired", "state", "verdict"),
    [
        (True, True, State.PROVED, "kept"),
        (False, True, State.UNKNOWN, "doubtful"),
        (False, False, State.PROVED, "kept"),
    ],
)
def test_features_and_labels_of_two_pipelines(
    is_ordered: bool, is_paired: bool, state: State, verdict: str
) -> None:
    """Towers that do not wait for each other may get labels of other features."""
    towers, one = (_features_and_labels(is_ordered, is_paired, count) for count in (2, 1))

    assert compare(towers, one).variables["w"].state is state
    assert InputsDistinct().judge(towers.placement()).state == verdict


# --- elements that are fetched early ---


def _through_staging_areas(
    elements: Callable[[Program, int], Sequence[Rows]], count: int
) -> Program:
    """Each tower takes its rows from a staging area."""
    program = Program()
    towers = []
    for tower, rows in enumerate(elements(program, count)):
        area = f"area_{tower}"
        program.add("Stage", *rows, shared_name=area)
        number = tower if count > 1 else None
        x, y = program.draw(None, SHAPES, number, "Unstage", shared_name=area)
        towers.append((x, y))
    return _trained(program, towers)


def _through_queues(
    elements: Callable[[Program, int], Sequence[Rows]], count: int, *, in_one_run: bool = False
) -> Program:
    """Each tower takes its rows from a queue."""
    program = Program()
    towers, fills = [], []
    for tower, rows in enumerate(elements(program, count)):
        queue = program.add("FIFOQueueV2")
        fills.append(program.add("QueueEnqueueV2", queue, *rows))
        x, y = program.draw(queue, SHAPES, tower if count > 1 else None, "QueueDequeueV2")
        towers.append((x, y))
    if in_one_run:
        with program.after(*fills):
            program.add("NoOp")
    return _trained(program, towers)


def _next_of_one(program: Program, count: int) -> Sequence[Rows]:
    iterator = program.iterator()
    return [_draw(program, iterator) for _ in range(count)]


def _same_of_one(program: Program, count: int) -> Sequence[Rows]:
    return [_draw(program, program.iterator())] * count


def _parts_of_one(program: Program, count: int) -> Sequence[Rows]:
    x, y = _draw(program, program.iterator())
    return list(zip(split(x, count), split(y, count), strict=True)) if count > 1 else [(x, y)]


def _next_of_each(program: Program, count: int) -> Sequence[Rows]:
    return [_draw(program, program.iterator()) for _ in range(count)]


def _readers_of_one_queue(program: Program, count: int) -> Sequence[Rows]:
    files = program.add("FIFOQueueV2")
    found = []
    for _ in range(count):
        x, y = program.draw(program.add("TextLineReaderV2"), SHAPES, None, "ReaderReadV2")
        read = program.ops[x.op]
        program.ops[x.op] = read._replace(inputs=(*read.inputs, files.name))
        found.append((x, y))
    return found


FETCHED_EARLY: dict[str, tuple[State, Callable[[int], Program]]] = {
    "staged next elements": (State.PROVED, partial(_through_staging_areas, _next_of_one)),
    "staged parts": (State.PROVED, partial(_through_staging_areas, _parts_of_one)),
    "staged element": (State.DIFFERS, partial(_through_staging_areas, _same_of_one)),
    "staged equal pipelines": (State.DIFFERS, partial(_through_staging_areas, _next_of_each)),
    "queued next elements": (State.PROVED, partial(_through_queues, _next_of_one)),
    "queued parts": (State.PROVED, partial(_through_queues, _parts_of_one)),
    "queues that are filled in turn": (State.PROVED, partial(_through_queues, _same_of_one)),
    "queues that are filled together": (
        State.DIFFERS,
        partial(_through_queues, _same_of_one, in_one_run=True),
    ),
    "queued equal pipelines": (State.DIFFERS, partial(_through_queues, _next_of_each)),
    "readers of one queue": (State.PROVED, partial(_through_queues, _readers_of_one_queue)),
}


@pytest.mark.parametrize("name", FETCHED_EARLY)
def test_elements_that_are_fetched_early(name: str) -> None:
    """Each take from an iterator, queue or reader yields other rows."""
    expected, build = FETCHED_EARLY[name]
    found = compare(build(2), build(1))

    assert found.variables["w"].state is expected, found.variables["w"]
    if expected is State.DIFFERS:
        assert "reads the same rows as" in str(found.variables["w"])


def test_a_staged_element_of_a_fixed_size() -> None:
    """The element that the step stages does not have the rows of all towers together."""
    shapes = {"x": (4, WIDTH), "y": (4,)}

    def build(count: int) -> Program:
        program = Program()
        staged = program.draw(program.iterator(), shapes)
        stages, towers = [], []
        for tower in range(count):
            area = f"area_{tower}"
            stages.append(program.add("Stage", *staged, shared_name=area))
            x, y = program.draw(None, shapes, tower, "Unstage", shared_name=area)
            towers.append((x, y))
        with program.after(*stages):
            return _trained(program, towers)

    found = compare(build(2), build(1)).variables["w"]

    assert found.state is State.DIFFERS
    assert "reads the same rows as" in str(found)


@pytest.mark.parametrize("towers", [2, 3])
def test_evaluation_on_rows_of_its_own(towers: int) -> None:
    """A program with an evaluation has an input that the step does not reach."""

    def build(count: int) -> Program:
        program = Program()
        rows: list[Rows] = []
        for tower in range(count):
            number = tower if count > 1 else None
            x, y = (program.placeholder(name, SHAPES[name], number) for name in SHAPES)
            rows.append((x, y))
        for name, shape in SHAPES.items():
            program.placeholder(f"{name}_to_evaluate", shape)
        return _trained(program, rows)

    found = compare(build(towers), build(1))

    assert found.variables["w"].state is State.PROVED, found.variables["w"]


# --- parts of one batch ---

Cut = Callable[[Value, int], Sequence[Value]]


def _stacked(value: Value, *extents: int) -> Value:
    return reshape(value, [*extents, *value.shape[1:]])


def _in_turn(value: Value, count: int) -> Sequence[Value]:
    return unstack(_stacked(value, -1, count), count, axis=1)


def _in_two_steps(value: Value, count: int) -> Sequence[Value]:
    """Each tower adds up the gradients of two parts of its rows."""
    if count == 1:
        return [value]
    parts = _stacked(value, count, 2, -1)
    return [element for part in unstack(parts, count) for element in unstack(part, 2)]


def _split_and_next(value: Value, count: int) -> Sequence[Value]:
    first, *others = split(value, count) if count > 1 else [value]
    return [*others, first]


def _stripes(value: Value, count: int) -> Sequence[Value]:
    return [value[i::count] for i in range(count)]


def _looked_up(numbers: Callable[[int, int], Sequence[int]]) -> Cut:
    """The rows of each tower by their numbers, given the tower and the number of towers."""

    def cut(value: Value, count: int) -> Sequence[Value]:
        if count == 1:
            return [value]
        chosen = [np.array(numbers(i, count), np.int32) for i in range(count)]
        return [apply("GatherV2", value, each, 0) for each in chosen]

    return cut


def _looked_up_range(begin: int, end: int, step: int = 1) -> Cut:
    """Rows from ``begin`` times the tower's number on, as ``tf.gather(x, tf.range(…))``."""

    def cut(value: Value, count: int) -> Sequence[Value]:
        if count == 1:
            return [value]
        ranges = [(begin * i, end if step > 1 else begin * i + end, step) for i in range(count)]
        return [apply("GatherV2", value, value.program.add("Range", *each), 0) for each in ranges]

    return cut


_SHUFFLED = [3, 1, 4, 11, 5, 9, 2, 6, 0, 7, 8, 10]
_blocks = _looked_up(lambda i, n: range(12 // n * i, 12 // n * (i + 1)))
_shuffled = _looked_up(lambda i, n: _SHUFFLED[12 // n * i : 12 // n * (i + 1)])


class Cuts(NamedTuple):
    """How rows and labels are cut.

    Attributes:
        verdict: of the rule inputs-distinct; each row has its own label if it is kept.
        rows: the cut of the rows.
        labels: the cut of the labels.
        fixed: whether the cuts are parts only of a fixed number of rows.
        is_proved: whether the step is then proved to be the step for one GPU.
    """

    verdict: str
    rows: Cut
    labels: Cut
    fixed: bool = False
    is_proved: bool = True


CUTS: dict[str, Cuts] = {
    "stacked": Cuts("kept", lambda x, n: unstack(_stacked(x, n, -1), n), split),
    "in turn": Cuts("kept", _in_turn, _stripes),
    "in two steps": Cuts("kept", _in_two_steps, _in_two_steps),
    "joined again": Cuts("kept", lambda x, n: unstack(stack(split(x, n)), n), split),
    "looked-up blocks": Cuts("kept", _looked_up_range(6, 6), _blocks, fixed=True),
    "looked-up blocks, labels split": Cuts("kept", _blocks, split, fixed=True),
    "looked-up stripes": Cuts("kept", _looked_up_range(1, 12, 2), _stripes, fixed=True),
    "numbers of stripes": Cuts(
        "kept", _looked_up(lambda i, n: range(i, 12, n)), _looked_up_range(1, 12, 2), fixed=True
    ),
    "shuffled": Cuts("kept", _shuffled, _shuffled, fixed=True, is_proved=False),
    "stacked, labels in turn": Cuts(
        "broken", lambda x, n: unstack(_stacked(x, n, -1), n), _in_turn
    ),
    "split, labels in turn": Cuts("broken", split, _stripes),
    "in turn, labels split": Cuts("broken", _stripes, split),
    "labels of another part": Cuts(
        "broken",
        lambda x, n: unstack(_stacked(x, n, -1), n),
        lambda y, n: unstack(_stacked(y, n, -1), n)[::-1],
    ),
    "labels of the next tower": Cuts("broken", split, _split_and_next),
    "rows of the next tower": Cuts("broken", _split_and_next, split),
    "labels in another order": Cuts(
        "broken",
        _shuffled,
        _looked_up(lambda i, n: _SHUFFLED[12 // n * i : 12 // n * (i + 1)][::-1]),
    ),
    "one part for all": Cuts(
        "broken",
        lambda x, n: [_stacked(x, n, -1)[0]] * n,
        lambda y, n: [_stacked(y, n, -1)[0]] * n,
    ),
    "common rows": Cuts("broken", _looked_up_range(3, 9), _looked_up_range(3, 9)),
    "common rows, shuffled": Cuts(
        "broken",
        _looked_up(lambda i, _: _SHUFFLED[2 * i : 2 * i + 6]),
        _looked_up(lambda i, _: _SHUFFLED[2 * i : 2 * i + 6]),
    ),
    "common stripes": Cuts(
        "broken",
        lambda x, n: [x[:: i + n] for i in range(n)],
        lambda y, n: [y[:: i + n] for i in range(n)],
    ),
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [(name, rows) for name in CUTS for rows in (None, 12) if rows or not CUTS[name].fixed],
)
def test_cuts(name: str, rows: int | None) -> None:
    cuts = CUTS[name]

    def build(count: int) -> Program:
        program = Program()
        x, y = program.placeholder("x", (rows, WIDTH)), program.placeholder("y", (rows,))
        towers = list(zip(cuts.rows(x, count), cuts.labels(y, count), strict=True))
        return _trained(program, towers)

    towers, one = build(2), build(1)
    found = compare(towers, one)
    is_right = cuts.verdict == "kept"

    assert InputsDistinct().judge(towers.placement()).state == cuts.verdict
    assert (found.variables["w"].state is State.PROVED) is (is_right and cuts.is_proved)
    assert (differences(towers, one, found, (12,), 0)["w"] < 1e-5) is is_right


@pytest.mark.parametrize("is_whole", [True, False])
def test_halves_of_rows(is_whole: bool) -> None:
    """A reshape that cuts rows in halves leaves no tower every third row."""

    def build(count: int) -> Program:
        program = Program()
        x, y = program.placeholder("x", (None, 4)), program.placeholder("y", (None, 2))
        w, gradients = program.variable("w", (2,)), []
        parts = [x[i::count] for i in range(count)]
        if not is_whole:
            parts = unstack(reshape(x, [-1, count, 2]), count, axis=1)
        for i, part in enumerate(parts):
            halves, labels = reshape(part, [-1, 2]), reshape(y[i::count], [-1])
            loss = mean(square(total(halves * w.read(), 1) - labels))
            gradients.append(program.gradient(loss, w))
        program.train(w.descend(0.1, _mean(gradients)))
        return program

    towers, one = build(3), build(1)
    found = compare(towers, one)

    assert (found.variables["w"].state is State.PROVED) is is_whole
    assert (differences(towers, one, found, (12,), 0)["w"] < 1e-5) is is_whole


@pytest.mark.parametrize("cut", ["range", "remainders"])
@pytest.mark.parametrize("seed", [None, 1])
def test_random_numbers_for_rows(cut: str, seed: int | None) -> None:
    """Each tower draws numbers for its own rows, and towers must not draw the same."""

    def build(count: int) -> Program:
        program = Program()
        x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
        rows, gradients = apply("Shape", x)[0], []
        numbers = apply("FloorMod", apply("Range", 0, rows, 1), count)
        parts = partition(x, numbers, count)
        if cut == "range":
            ends = [rows // count * i for i in range(count + 1)]
            ranges = [apply("Range", *both, 1) for both in pairwise(ends)]
            parts = [apply("GatherV2", x, each, 0) for each in ranges]
        for part in parts:
            shape = stack([apply("Shape", part)[0], WIDTH])
            noise = program.add("RandomStandardNormal", shape, seed2=seed or 0)
            loss = mean(square(total((part + noise) * w.read(), 1)))
            gradients.append(program.gradient(loss, w))
        program.train(w.descend(0.1, _mean(gradients)))
        return program

    state = compare(build(2), build(1)).variables["w"].state

    assert state is (State.DIFFERS if seed else State.PROVED)


@pytest.mark.parametrize("rows", [None, 12])
@pytest.mark.parametrize("fewest", [1, 5])
def test_rows_that_a_vectorized_map_looks_up(fewest: int, rows: int | None) -> None:
    """For at most so many rows, the first one is taken in place of each."""

    def build(count: int) -> Program:
        program = Program()
        x, y = program.placeholder("x", (rows, WIDTH)), program.placeholder("y", (rows,))
        w, gradients = program.variable("w", (WIDTH,)), []
        for part in zip(split(x, count), split(y, count), strict=True):
            most = apply("Max", stack([rows_of(each) for each in part]), [0])
            numbers = program.add("Range", 0, most, 1)
            found = []
            for each in part:
                are_several = apply("Greater", rows_of(each), fewest)
                index = apply("SelectV2", are_several, numbers, 0)
                found.append(apply("GatherV2", each, index, 0))
            loss = mean(square(total(found[0] * w.read(), 1) - found[1]))
            gradients.append(program.gradient(loss, w))
        program.train(w.descend(0.1, _mean(gradients)))
        return program

    found = compare(build(2), build(1)).variables["w"]

    assert (found.state is State.PROVED) is (fewest == 1 or rows is not None), found


@pytest.mark.parametrize("is_masked_first", [False, True])
def test_masked_rows(is_masked_first: bool) -> None:
    """A part of the rows that a mask leaves is not what the mask leaves of a part."""

    def masked(rows: Value, mask: Value) -> Value:
        return apply("GatherV2", rows, reshape(apply("Where", mask), [-1]), 0)

    def build(is_masked_first: bool) -> Program:
        program = Program()
        x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
        mask = apply("Less", apply("Range", 0, apply("Shape", x)[0], 1), 2)
        if is_masked_first:
            parts = split(masked(x, mask), 2)
        else:
            parts = [masked(*both) for both in zip(split(x, 2), split(mask, 2), strict=True)]
        losses = [total(square(total(part * w.read(), 1))) for part in parts]
        gradients = [program.gradient(loss, w) for loss in losses]
        program.train(w.descend(0.1, gradients[0] * 2.0 + gradients[1]))
        return program

    towers, one = build(is_masked_first), build(False)
    found = compare(towers, one)

    assert (found.variables["w"].state is State.PROVED) is not is_masked_first
    assert (differences(towers, one, found, (8,), 0)["w"] < 1e-5) is not is_masked_first


@pytest.mark.parametrize("cut", ["slices", "every second row"])
def test_pairs_of_rows_that_two_masks_leave(cut: str) -> None:
    """In towers with every second row, other rows are paired than in the whole batch."""

    def build(count: int) -> Program:
        program = Program()
        inputs = program.placeholder("x", (None, WIDTH)), program.placeholder("y", (None,))
        w = program.variable("w", (WIDTH,))
        cuts = [
            split(each, count) if cut == "slices" else [each[i::count] for i in range(count)]
            for each in inputs
        ]
        gradients = []
        for x, y in zip(*cuts, strict=True):
            scores = total(x * w.read(), 1)
            masks = apply("Greater", y, 0.6), apply("Less", y, 0.4)
            numbers = (reshape(apply("Where", mask), [-1]) for mask in masks)
            good, bad = (apply("GatherV2", scores, each, 0) for each in numbers)
            loss = total(square(1.0 + bad - good)) / to_float(rows_of(x))
            gradients.append(program.gradient(loss, w))
        program.train(w.descend(0.1, _mean(gradients)))
        return program

    towers, one = build(2), build(1)
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(8, WIDTH)), "y": np.array([1, 0, 0, 1, 0, 1, 1, 0])}
    values = {"w": rng.normal(size=WIDTH)}
    is_equal = bool(np.allclose(towers.run(batch, values)["w"], one.run(batch, values)["w"]))

    assert (compare(towers, one).variables["w"].state is State.PROVED) is is_equal
    assert is_equal is (cut == "slices")


def test_a_part_that_is_not_followed_may_be_the_other_part() -> None:
    def build(count: int) -> Program:
        program = Program()
        x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
        size = rows_of(x) // count
        numbers = apply("Range", 0, size, 1)
        parts = [apply("GatherV2", x, numbers + size * i, 0) for i in range(count)]
        losses = [mean(square(total(part * w.read(), 1))) for part in parts]
        program.train(w.descend(0.1, _mean([program.gradient(each, w) for each in losses])))
        return program

    towers, one = build(2), build(1)
    found = compare(towers, one)

    assert found.variables["w"].state is not State.DIFFERS
    assert differences(towers, one, found, (8,), 0)["w"] < 1e-5


@pytest.mark.parametrize("order", ["of the batch", "in turn"])
def test_results_of_joined_rows(order: str) -> None:
    """Results of rows in another order are not compared with the labels of the batch."""

    def build(count: int) -> Program:
        program = Program()
        x, y = program.placeholder("x", (None, WIDTH)), program.placeholder("y", (None,))
        w = program.variable("w", (WIDTH,))
        parts = _in_turn(x, count) if order == "in turn" else split(x, count)
        results = concat([total(part * w.read(), 1) for part in parts])
        program.train(w.descend(0.1, program.gradient(mean(square(results - y)), w)))
        return program

    towers, one = build(2), build(1)
    found = compare(towers, one)

    assert (found.variables["w"].state is State.PROVED) is (order == "of the batch")
    assert (differences(towers, one, found, (8,), 0)["w"] < 1e-5) is (order == "of the batch")


# --- fixed numbers of rows ---


def _fixed(rows: Sequence[int], weights: Sequence[float]) -> Program:
    """Placeholders with a fixed number of rows for each tower, and weights of the gradients."""
    program = Program()
    towers = [
        (
            program.placeholder("x", (count, WIDTH), tower if len(rows) > 1 else None),
            program.placeholder("y", (count,), tower if len(rows) > 1 else None),
        )
        for tower, count in enumerate(rows)
    ]

    def combine(gradients: Sequence[Value]) -> Value:
        pairs = zip(gradients, weights, strict=True)
        return add_n([gradient * weight for gradient, weight in pairs])

    return _trained(program, towers, combine)


FIXED: dict[str, tuple[bool, Sequence[int], Sequence[float]]] = {
    "equal": (True, (4, 4), (0.5, 0.5)),
    "by rows": (True, (2, 6), (0.25, 0.75)),
    "unequal": (False, (2, 6), (0.5, 0.5)),
    "by rows of the other": (False, (2, 6), (0.75, 0.25)),
    "added up": (False, (4, 4), (1.0, 1.0)),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_numbers_of_rows(name: str) -> None:
    """If the numbers of rows are known, nothing is taken for granted."""
    is_equal, rows, weights = FIXED[name]
    towers, one = _fixed(rows, weights), _fixed([sum(rows)], [1.0])
    found = compare(towers, one)

    assert (found.variables["w"].state is State.PROVED) is is_equal
    assert not is_equal or not found.assumed
    assert (differences(towers, one, found, rows, 0)["w"] < 1e-5) is is_equal


SLICES: dict[str, tuple[bool, Sequence[tuple[int, int]]]] = {
    "halves": (True, [(0, 4), (4, 8)]),
    "of two sizes": (True, [(0, 2), (2, 8)]),
    "in another order": (True, [(6, 8), (0, 3), (3, 6)]),
    "all but one row": (False, [(0, 4), (5, 8)]),
    "one row twice": (False, [(0, 5), (4, 8)]),
    "one half twice": (False, [(0, 4), (0, 4)]),
    "half": (False, [(0, 4)]),
}


@pytest.mark.parametrize("rows", [8, None])
@pytest.mark.parametrize("name", SLICES)
def test_slices_by_numbers(name: str, rows: int | None) -> None:
    """Sums over slices of eight rows are the sum if each row is in one of them."""
    is_equal, slices = SLICES[name]

    def build(bounds: Sequence[tuple[int, int]]) -> Program:
        program = Program()
        x, w = program.placeholder("x", (rows, WIDTH)), program.variable("w", (WIDTH,))
        losses = [total(square(total(x[low:high] * w.read(), 1))) for low, high in bounds]
        program.train(w.descend(0.1, add_n([program.gradient(loss, w) for loss in losses])))
        return program

    towers, one = build(slices), build([(0, 8)])
    found = compare(towers, one)
    assert (found.variables["w"].state is State.PROVED) is is_equal
    assert not is_equal or (Assumption.EQUAL_ROWS in found.assumed) is (rows is None)
    for count in (8,) if rows else (8, 24):  # further rows are not read
        assert (differences(towers, one, found, (count,), 0)["w"] < 1e-5) is is_equal


@pytest.mark.parametrize(
    ("end", "scale", "state"),
    [
        (8, "", State.PROVED),
        (6, "", State.DIFFERS),
        (6, "constant", State.DIFFERS),
        (6, "all rows", State.UNKNOWN),  # they may count by the scale
    ],
)
def test_rows_that_no_written_optimizer_makes_up_for(end: int, scale: str, state: State) -> None:
    """Rows are left out, and a slot is scaled: a rate may make up for only one of them."""

    def build(bounds: Sequence[tuple[int, int]], factor: float) -> Program:
        program = Program()
        x, w = program.placeholder("x", (8, WIDTH)), program.variable("w", (WIDTH,))
        speed = program.variable("speed", (WIDTH,), is_trained=False)
        losses = [mean(square(total(x[low:high] * w.read(), 1))) for low, high in bounds]
        gradient = _mean([program.gradient(loss, w) for loss in losses])
        moved = speed.read() * 0.9 + square(gradient) * 0.1
        if scale:
            moved = moved * (factor if scale == "constant" else factor + total(square(x)))
        step = apply("Sqrt", moved + 1.0) + gradient
        program.train(speed.assign(moved), w.assign(w.read() - step * 0.1))
        return program

    towers = build([(0, end // 2), (end // 2, end)], 1.0 if end == 8 else 2.0)
    one = build([(0, 8)], 1.0)
    found = compare(towers, one)
    assert found.variables["w"].state is state
    assert (differences(towers, one, found, (8,), 0)["w"] < 1e-5) is (state is State.PROVED)


def _first_rows(x: Value, begin: int, end: int) -> Value:
    return apply("Slice", x, [begin, 0], [end - begin, -1])


def _from_the_last(x: Value, begin: int, end: int) -> Value:
    return apply("ReverseV2", x, [0])[begin:end]


@pytest.mark.parametrize(
    ("cut", "of_one", "reason"),
    [
        (_first_rows, 4, "the first 8 rows of x, but the first 4 rows on one GPU"),
        (lambda x, begin, end: x[begin:end], None, "the first 8 rows of x, but other rows"),
        (_first_rows, 8, ""),
        (_from_the_last, 8, "cannot be followed"),
    ],
)
def test_slices_of_any_number_of_rows(
    cut: Callable[[Value, int, int], Value], of_one: int | None, reason: str
) -> None:
    """A batch that grows with the towers is another batch, although it is fed as one input."""

    def build(bounds: Sequence[int | None]) -> Program:
        program = Program()
        x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
        pairs = pairwise([0, *bounds])
        parts = [x if end is None else cut(x, begin or 0, end) for begin, end in pairs]
        gradients = [program.gradient(mean(relu(total(x * w.read(), 1))), w) for x in parts]
        program.train(w.descend(0.1, _mean(gradients)))
        return program

    towers, one = build([4, 8]), build([of_one])
    found = compare(towers, one)
    answer = found.variables["w"]
    is_equal = differences(towers, one, found, (12,), 0)["w"] < 1e-5
    if not reason:
        assert answer.state is State.PROVED
        assert is_equal
        return
    assert answer.state is State.UNKNOWN
    assert answer.difference is not None
    assert reason in answer.difference.text


def test_statistics_of_a_fixed_number_of_rows() -> None:
    def build(rows: Sequence[int]) -> Program:
        program = Program()
        w = program.variable("w", (WIDTH,))
        gradients = []
        for tower, count in enumerate(rows):
            x = program.placeholder("x", (count, WIDTH), tower if len(rows) > 1 else None)
            h = x * w.read()
            centered = h - mean(h, 0)
            spread = mean(square(centered), 0)
            normalized = centered * apply("Rsqrt", spread + 0.1)
            gradients.append(program.gradient(mean(relu(normalized)), w))
        program.train(w.descend(0.1, _mean(gradients)))
        return program

    found = compare(build([4, 4]), build([8]))
    assert found.variables["w"].state is State.PROVED
    assert found.assumed == {Assumption.OWN_STATISTICS}


def test_programs_for_other_numbers_of_rows() -> None:
    """A number is the number of rows in one of the programs alone."""
    towers, one = _fixed([4, 4], [0.5, 0.5]), _fixed([6], [6.0 / 8.0])

    assert compare(towers, one).variables["w"].state is not State.PROVED
    assert compare(towers, _fixed([6], [1.0])).variables["w"].state is State.PROVED


@pytest.mark.parametrize(
    ("rows", "of_one", "divisor", "state"),
    [
        ((4, 4), 8, 16.0, State.DIFFERS),
        ((4, 4), 4, 8.0, State.PROVED),
        ((None, None), None, 8.0, State.UNKNOWN),
        ((None, None), None, 4.0, State.PROVED),
    ],
)
def test_a_sum_divided_by_a_batch_that_grows_with_the_towers(
    rows: Sequence[int | None], of_one: int | None, divisor: float, state: State
) -> None:
    """The divisor may be the number of rows, unless both programs have equally many rows."""

    def build(rows: Sequence[int | None], divisor: float) -> Program:
        program = Program()
        w = program.variable("w", (WIDTH,))
        gradients = []
        for tower, count in enumerate(rows):
            x = program.placeholder("x", (count, WIDTH), tower if len(rows) > 1 else None)
            loss = total(square(total(x * w.read(), 1))) / divisor
            gradients.append(program.gradient(loss, w))
        program.train(w.descend(0.1, add_n(gradients) if len(rows) > 1 else gradients[0]))
        return program

    one = build([of_one], 8.0 if of_one == 8 else 4.0)
    answer = compare(build(rows, divisor), one).variables["w"]

    assert answer.state is state
    if state is State.UNKNOWN:
        assert answer.difference is not None
        assert "right if the batch has 2 times as many rows" in answer.difference.text


@pytest.mark.parametrize(("divisor", "is_equal"), [(8.0, True), (4.0, False), (2.0, False)])
def test_a_number_in_place_of_the_number_of_rows(divisor: float, is_equal: bool) -> None:
    """A sum that is divided by the rows of all towers is a mean only for this number of rows."""

    def build(rows: Sequence[int]) -> Program:
        program = Program()
        w = program.variable("w", (WIDTH,))
        towers = [
            program.placeholder("x", (count, WIDTH), tower if len(rows) > 1 else None)
            for tower, count in enumerate(rows)
        ]
        errors = [square(total(x * w.read(), 1)) for x in towers]
        losses = [total(each) / divisor if len(rows) > 1 else mean(each) for each in errors]
        gradients = [program.gradient(loss, w) for loss in losses]
        program.train(w.descend(0.1, add_n(gradients)))
        return program

    towers, one = build([4, 4]), build([8])
    found = compare(towers, one)
    assert (found.variables["w"].state is State.PROVED) is is_equal
    assert (differences(towers, one, found, (4, 4), 0)["w"] < 1e-5) is is_equal
    assert compare(towers, build([6])).variables["w"].state is not State.PROVED
