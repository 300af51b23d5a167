"""Rates, schedules and decays that differ from one GPU, next to gradients that are combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.steps import (
    Handle,
    Program,
    Value,
    add_n,
    apply,
    compare,
    differences,
    mean,
    split,
    square,
    total,
)

from placement_checks.core.missing import Missing
from placement_checks.core.mistakes import COEFFICIENT, DECAY, SETTING, Mistake
from placement_checks.step.comparison import State, StepEquality
from placement_checks.step.explanation import Excuse
from placement_checks.step.revisions import Revision, compare_revisions
from placement_checks.step.terms import Assumption
from placement_checks.step.weights import Weights

OPTIMIZERS = (
    "descent",
    "written descent",
    "momentum",
    "written momentum",
    "rate in the momentum",
    "adam",
    "written adam",
)
DECAYS = ("gradient", "assigned after", "subtracted after", "by the rate after")
WIDTH = 3


@dataclass(frozen=True)
class Update:
    """A step of towers: by default, it equals the step for one GPU.

    Attributes:
        optimizer: one of `OPTIMIZERS`.
        decay: one of `DECAYS`, or ``""``.
        rate: how many times the rate of one GPU is used.
        coefficient: how many times the coefficient of the decay is used.
        decays: how often the decay is computed.
        is_sum: whether gradients are added up instead of averaged.
        size: the coefficient of the decay.
        schedule: how the rate depends on a counter; ``"kept"`` for a rate in a variable.
        towers: the number of towers.
    """

    optimizer: str
    decay: str = ""
    rate: float = 1.0
    coefficient: float = 1.0
    decays: int = 1
    is_sum: bool = False
    size: float = 0.1
    schedule: str = ""
    towers: int = 2

    @property
    def for_one_gpu(self) -> Update:
        return Update(self.optimizer, self.decay, size=self.size, schedule=self.schedule, towers=1)

    def build(self) -> Program:
        program = Program()
        x, y = program.placeholder("x", (None, WIDTH)), program.placeholder("y", (None,))
        w = program.variable("w", (WIDTH,))
        gradients = []
        for tower, (part, labels) in enumerate(
            zip(split(x, self.towers), split(y, self.towers), strict=True)
        ):
            with program.tower(tower):
                loss = mean(square(total(part * w.read(), 1) - labels))
                gradients.append(program.gradient(loss, w))
        gradient = add_n(gradients) / (1.0 if self.is_sum else float(self.towers))
        counter = program.variable("counter", is_trained=False)
        rate = self._rate(counter.read())
        if self.decay == "gradient":
            for _ in range(self.decays):
                gradient = gradient + w.read() * (self.size * self.coefficient)
        updates = self._updates(program, w, rate, gradient)
        last = updates[0]
        for _ in range(self.decays if self.decay.endswith("after") else 0):
            with program.after(last):
                last = self._decayed(w, rate)
        with program.after(last, *updates):
            program.train(last, *updates, counter.assign_add(1.0))
        return program

    def _rate(self, counter: Value) -> Any:
        if self.schedule == "kept":
            return counter.program.constant("rate", 0.1 * self.rate)
        steps = 100.0 / self.towers
        if self.schedule == "warmup":
            return apply("Minimum", counter / steps, 1.0) * 0.1
        if self.schedule == "exponential":
            return apply("Pow", 0.9, counter / steps) * 0.1
        if self.schedule == "staircase":
            return apply("Pow", 0.9, counter // steps) * 0.1
        if self.schedule == "boundary":
            return apply("SelectV2", apply("Less", counter, steps), 0.1, 0.01)
        return 0.1 * self.rate

    def _updates(self, program: Program, w: Handle, rate: Any, gradient: Value) -> Sequence[Value]:
        """The update of the variable, and the updates of slots."""
        if self.optimizer == "descent":
            return [w.descend(rate, gradient)]
        if self.optimizer == "written descent":
            return [w.assign_sub(gradient * rate)]
        slots = [program.variable(f"w/{i}", (WIDTH,), is_trained=False) for i in range(2)]
        if self.optimizer == "momentum":
            return [w.apply_momentum(slots[0], rate, gradient)]
        if self.optimizer == "adam":
            powers = [program.variable(f"power_{i}", is_trained=False) for i in range(2)]
            return [w.apply_adam((slots[0], slots[1]), (powers[0], powers[1]), rate, gradient)]
        if self.optimizer == "written momentum":
            moment = slots[0].read() * 0.9 + gradient
            return [w.assign_sub(moment * rate), slots[0].assign(moment)]
        if self.optimizer == "rate in the momentum":
            moment = slots[0].read() * 0.9 - gradient * rate
            return [w.assign_add(moment), slots[0].assign(moment)]
        moment = slots[0].read() * 0.9 + gradient * 0.1
        squares = slots[1].read() * 0.999 + square(gradient) * 0.001
        change = moment * rate / (apply("Sqrt", squares) + 1e-3)
        return [w.assign_sub(change), slots[0].assign(moment), slots[1].assign(squares)]

    def _decayed(self, w: Handle, rate: Any) -> Value:
        part = self.size * self.coefficient
        if self.decay == "assigned after":
            return w.assign(w.read() * (1 - part))
        return w.assign_sub(w.read() * (rate * part if "rate" in self.decay else part))


def compared(update: Update) -> StepEquality:
    return compare(update.build(), update.for_one_gpu.build())


def check(
    found: StepEquality, state: State, mistake: Mistake, words: str, excuse: Excuse | None = None
) -> None:
    answer = found.variables["w"]
    assert answer.difference is not None
    assert words in answer.difference.text
    assert answer.state is state
    assert answer.difference.mistake is mistake
    assert answer.difference.excuse is excuse


@pytest.mark.parametrize("decay", ["", *DECAYS])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equal_steps(optimizer: str, decay: str) -> None:
    update = Update(optimizer, decay)

    found = compared(update)

    assert {answer.state for answer in found.variables.values()} == {State.PROVED}
    programs = update.build(), update.for_one_gpu.build()
    assert max(differences(*programs, found, (4, 4), 1).values()) < 1e-5


@pytest.mark.parametrize("size", [0.1, 1e-5])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS[:-1])
def test_decays_that_count_twice(optimizer: str, decay: str, size: float) -> None:
    """The decay is at fault, not the average of the gradients."""
    found = compared(Update(optimizer, decay, decays=2, size=size))

    check(found, State.DIFFERS, DECAY, "its own value, as in weight decay, counts")


@pytest.mark.parametrize("decay", DECAYS[1:])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_another_coefficient_of_a_decay_after_the_step(optimizer: str, decay: str) -> None:
    found = compared(Update(optimizer, decay, coefficient=3.0))

    check(found, State.DIFFERS, DECAY, "counts 3 times as much as on one GPU")
    weights = found.weights["w"]
    assert isinstance(weights, Weights)
    assert not weights.examples


@pytest.mark.parametrize("decay", ["", *DECAYS])
@pytest.mark.parametrize("optimizer", OPTIMIZERS[:-1])
def test_gradients_that_are_added_up(optimizer: str, decay: str) -> None:
    """The op that adds up the gradients is at fault, not a decay, and not the loss."""
    found = compared(Update(optimizer, decay, is_sum=True))

    check(found, State.DIFFERS, COEFFICIENT, "the gradient counts 2 times as much")
    difference = found.variables["w"].difference
    assert difference is not None
    assert difference.origin is not None
    assert not difference.origin.op.startswith("tower")
    weights = found.weights["w"]
    assert isinstance(weights, Weights)
    assert [set(term.ratios.values()) for term in weights.examples] == [{2.0}]


@pytest.mark.parametrize("times", [2.0, 1.7])
@pytest.mark.parametrize("decay", ["", *DECAYS[1:]])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_another_rate(optimizer: str, decay: str, times: float) -> None:
    """A rate may be chosen for the number of GPUs, and a sum of gradients is another mistake."""
    found = compared(Update(optimizer, decay, rate=times))

    words = "its learning rate is" if optimizer != "written adam" else "as with another learning"
    check(found, State.UNKNOWN, SETTING, words, Excuse.SETTING)
    weights = found.weights["w"]
    assert isinstance(weights, Weights)
    assert not weights.examples


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS[:-1])
def test_another_rate_and_another_decay(optimizer: str, decay: str) -> None:
    found = compared(Update(optimizer, decay, rate=2.0, coefficient=2.0))

    check(found, State.UNKNOWN, SETTING, ", and its own value, as in", Excuse.SETTING)


@pytest.mark.parametrize("decay", ["", *DECAYS[1:3]])
@pytest.mark.parametrize("schedule", ["warmup", "exponential", "staircase", "boundary"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS[:-1])
def test_schedules_that_depend_on_the_number_of_gpus(
    optimizer: str, schedule: str, decay: str
) -> None:
    update = Update(optimizer, decay, schedule=schedule)
    check(compared(update), State.UNKNOWN, SETTING, "its learning rate differs:", Excuse.SETTING)

    found = compared(replace(update, is_sum=True))
    difference = found.variables["w"].difference
    assert difference is not None
    assert difference.excuse is not Excuse.SETTING


@pytest.mark.parametrize("decay", ["", *DECAYS[1:]])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_rate_that_a_variable_holds(optimizer: str, decay: str) -> None:
    """The values of variables that no step changes are compared, like constants."""
    update = Update(optimizer, decay, schedule="kept")
    found = compared(update)
    assert {answer.state for answer in found.variables.values()} == {State.PROVED}

    found = compared(replace(update, rate=2.0))
    words = "its learning rate is 0.2" if optimizer != "written adam" else "another learning rate"
    check(found, State.UNKNOWN, SETTING, words, Excuse.SETTING)


def test_a_decay_by_a_rate_that_a_variable_holds() -> None:
    """It is known that the variable has the same value, so the coefficient differs."""
    update = Update("descent", "by the rate after", schedule="kept", coefficient=2.0)
    check(compared(update), State.UNKNOWN, DECAY, "counts 2 times as much", Excuse.SETTING)


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_a_rate_that_a_variable_held_at_a_revision(rate: float) -> None:
    new, old = (Update("momentum", schedule="kept", rate=each).build() for each in (rate, 1.0))
    found = compare_revisions(new.placement(), Revision(old.placement(), "at HEAD", towers=2))
    assert not isinstance(found, Missing)
    answer = found.variables["w"]
    if rate == 1.0:
        assert answer.state is State.PROVED
        assert Assumption.CONSTANT_STATE not in found.assumed
        return
    check(found, State.DIFFERS, SETTING, "its learning rate is 0.2, but 0.1 at HEAD")
