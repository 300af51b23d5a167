"""The sessions of a program and its reference, with equal variables and equal rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.errors import InputError
from placement_checks.core.measurement import Arrays, Elements, Sample, Trial, largest
from placement_checks.numerics.comparing import DEFAULT_LIMITS, REQUIRED_RESOLUTION, Limits
from placement_checks.numerics.sampling import (
    build_trial,
    measure_noise,
    select_all,
    weighted_mean,
)
from placement_checks.run.clipping import clipped_gradients, raw_gradients, where_clipped
from placement_checks.run.compare.row_state import (
    check_state_equal,
    values_of_towers,
    with_other_shapes,
)
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.interface import Feeding
from placement_checks.run.session import ProgramSession
from placement_checks.util.progress import track

# The largest change of a weight in a perturbation, in eps. The noise of four perturbations is then
# one to three times the error of correct towers (deep convolutional autoencoder, 32 variables).
_PERTURBATION = 4.0
# How much more another order of the rows changes a gradient than a perturbation of the weights
# does, if the order matters. Rounding and kinks change it about as much as the weights do.
_ORDER_MATTERS = 100.0


@dataclass(frozen=True)
class Conditions:
    """How programs are run to be compared.

    Attributes:
        rows: the size of the global batch; 0 for the fixed size of the placeholders, or a small
            size if the placeholders take any.
        shares: the relative parts of the towers in a batch; empty for equal parts.
        scale: the factor on the program's gradients that the user declares as intended.
        statistics_per_tower: whether the user declares that the reference computes on the rows of
            each tower separately.
        steps: the number of training steps.
        seconds: the time limit of one run.
        seed: the seed of the batches.
        gradient_limits: the largest errors of equal gradients. If an error is larger, the noise is
            measured.
        weight_limits: the same for variables after steps.
    """

    rows: int = 0
    shares: Sequence[int] = ()
    scale: float = 1.0
    statistics_per_tower: bool = False
    steps: int = 3
    seconds: float = 60.0
    seed: int = 0
    gradient_limits: Limits = DEFAULT_LIMITS
    weight_limits: Limits = DEFAULT_LIMITS


class OwnRows(NamedTuple):
    """That the reference computes on the rows of each tower alone, instead of all rows at once.

    The program is then expected to combine the gradients of these parts. In a step, the reference
    computes running statistics on the rows of the first tower only; these are not compared.

    Attributes:
        reason: why, as the end of a sentence.
        adds_up: whether the gradients of the parts are added up instead of averaged, because the
            loss is a sum over rows.
    """

    reason: str
    adds_up: bool = False


_DECLARED = OwnRows('as gradients-equal.statistics = "tower" declares')


class Perturbation(NamedTuple):
    """A change of a run that has about the effect of rounding.

    The rows are in another order, and the values of trained variables change by a few eps. Other
    orders alone do not show that a value may cross a kink, such as the zero of a ReLU or the
    maximum of a pool, because the rows of a batch are computed in the same way in any order.

    Attributes:
        order: the order of the rows.
        number: the number of the perturbation. An odd number changes the variables by the opposite
            of the previous number's changes, because a value close to a kink crosses it in one
            direction only.
    """

    order: list[int]
    number: int


class PairedSessions:
    """The sessions of a program and its reference.

    Attributes:
        towers: the session of the program.
        reference: the session of the reference.
        feeding: converts batches to the feeds of both programs.
        conditions: how the programs are run.
        own_rows: why the reference computes on the rows of each tower; None if it computes on all
            rows at once.
        order_matters: whether the gradients of the reference depend on the order of its rows,
            which shows when noise is measured.
        start: the initial values of the variables, equal in both programs.
        batches: all batches so far.
        of_other_shape: variables with another shape in the program, such as the state of a tower's
            rows.
    """

    def __init__(
        self,
        towers: ProgramSession,
        reference: ProgramSession,
        feeding: Feeding,
        conditions: Conditions,
    ) -> None:
        """Store the sessions without running anything; no noise is measured before `restart`."""
        self.towers = towers
        self.reference = reference
        self.feeding = feeding
        self.conditions = conditions
        self.own_rows = _DECLARED if conditions.statistics_per_tower else None
        self.order_matters = False
        self.start: Arrays = {}
        self.batches: list[Arrays] = []
        self.of_other_shape: frozenset[str] = frozenset()
        self._tower_start: Arrays = {}
        self._perturbations = 0
        self._earlier = Case((), {})
        self._rng = np.random.default_rng(conditions.seed)

    @property
    def on_parts(self) -> bool:
        """Whether the reference computes on the rows of each tower."""
        return self.own_rows is not None

    @cached_property
    def _where_clipped(self) -> str:
        return where_clipped(self.towers.program)

    @cached_property
    def _averaged_raw(self) -> Sequence[str]:
        """The raw gradients of the reference to average, if the program clips the average."""
        raw = self._where_clipped == "average"
        return raw_gradients(self.reference.program) if raw else ()

    @property
    def clips_as_program(self) -> bool:
        """Whether `expected` averages gradients where the program does: before or after clipping.

        If the program clips both, or sparse gradients, the mean of clipped gradients is expected.
        """
        return self._where_clipped in ("", "towers") or bool(self._averaged_raw)

    def initialize(self, case: Case | None) -> None:
        """Give the variables of both programs equal values: the values of the case, if any."""
        self.reference.initialize({})
        compared = self.reference.program.built.initial.compared
        values = {
            name: value for name, value in self.reference.values().items() if name in compared
        }
        if case and case.start:
            self.start = case.initial_values(values)
        else:
            trained = self.reference.program.gradients.by_variable
            self.start = {
                name: _compact(self._vary(value) if name in trained else value)
                for name, value in values.items()
            }
        self.of_other_shape = with_other_shapes(self.towers.program, self.start)
        self._tower_start = values_of_towers(self.towers.program, self.start)
        self.reference.load(self.start)
        self.start_towers()
        check_state_equal(self.towers, self.start)

    def start_towers(self) -> None:
        """Initialize the program with the initial values of the reference."""
        self.towers.initialize(self._tower_start)

    def own_scalars(self) -> Arrays:
        """Initialize the program, and return scalars that no step changes, such as learning rates.

        Scalars with the reference's values are left out.
        """
        programs = self.towers.program, self.reference.program
        updated = {
            name for each in programs for name in analyze(each.placement).updates.by_variable
        }
        self.towers.initialize({})
        return {
            name: value
            for part in self.towers.read()
            for name, value in part.items()
            if name in self.start.keys() - updated
            and (value.dtype.kind, value.ndim) == ("f", 0)
            and value != self.start[name]
        }

    def restart(self, perturbations: int) -> None:
        """Start again with the same values and batches, and measure noise in perturbed runs."""
        self._perturbations = perturbations
        self._earlier, self.batches = Case(self.batches, {}), []
        self.reference.initialize({})
        self.reference.load(self.start)
        self.start_towers()

    def _vary(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Add noise to an array of equal elements, because zeros hide what they multiply."""
        if value.size < 2 or np.any(value != value.flat[0]):
            return value
        size = max(1.0, abs(float(value.flat[0])))
        return (value + size * self._rng.uniform(0.05, 0.15, value.shape)).astype(value.dtype)

    def batch(self, rows: int) -> Arrays:
        """Return a batch, and store it for the saved case.

        After `restart`, the earlier batches are returned again before new batches.
        """
        try:
            batch = self._earlier(self._rng, rows)
        except IndexError:
            batch = self.feeding.batch(self._rng, rows)
        self.batches.append(batch)
        return batch

    def both(self, batch: Arrays) -> Iterator[tuple[ProgramSession, Arrays]]:
        """Yield each session with its feeds."""
        yield self.towers, self.feeding.to_towers(batch)
        yield self.reference, self.to_reference(batch)

    def to_reference(self, batch: Arrays) -> Arrays:
        """Return the feeds of the reference: all rows, or the rows of the first tower."""
        rows = self.split(self.feeding.rows)[0] if self.on_parts else None
        return self.feeding.to_reference(batch, rows)

    def perturbations(self, rows: int) -> list[Perturbation]:
        """Return the perturbed runs that measure noise.

        Rows stay in their tower if `on_parts`, or if the reference has towers: if rows change
        towers, the gradients of a correct program may change, as with batch normalization. They
        stay in their order if `order_matters`, or if a variable has a part for each row.
        """
        if self.of_other_shape:
            return [Perturbation([*range(rows)], each) for each in range(self._perturbations)]
        stay = self.on_parts or self.feeding.same_towers
        parts = self.split(rows) if stay else [range(rows)]
        shuffle = list if self.order_matters else self._shuffle
        return [
            Perturbation([row for part in parts for row in shuffle(part)], number)
            for number in range(self._perturbations)
        ]

    def perturb(self, values: Arrays, perturbation: Perturbation) -> None:
        """Give the reference's trained variables these values, changed by a few eps."""
        rng = np.random.default_rng((self.conditions.seed, perturbation.number // 2))
        sign = 1 - 2 * (perturbation.number % 2)
        trained = self.reference.program.gradients.by_variable
        self.reference.load(
            {
                name: _perturb(value, sign, rng)
                for name, value in values.items()
                if name in trained and value.dtype.kind == "f"
            }
        )

    def _shuffle(self, rows: Sequence[int]) -> list[int]:
        """Return the rows in a different order, because the same order would show no noise."""
        given = list(rows)
        while True:
            order: list[int] = self._rng.permutation(given).tolist()
            if order != given or len(given) < 2:
                return order

    def trial(self, batch: Arrays, rows: int, values: Arrays) -> Trial:
        """Return the gradients of both programs on one batch.

        Args:
            batch: the batch.
            rows: the size of the batch.
            values: the values of the variables in both programs.
        """
        found = self.towers.gradients(self.feeding.to_towers(batch))
        expected = self.expected(batch, rows)
        noise = self._noise(batch, rows, values, expected)
        if (scale := self.conditions.scale) != 1:
            found = {name: value / np.float64(scale) for name, value in found.items()}
        expected = {**expected, **self._expected_after(batch, found)}
        split = self.feeding.split if rows == self.feeding.rows else ()
        return build_trial(rows, split, expected, found, noise)

    def _noise(
        self, batch: Arrays, rows: int, values: Arrays, expected: Arrays
    ) -> dict[str, float]:
        """Return the largest change of each gradient in perturbed runs, which are few or none.

        If other orders of the rows change a gradient by far more than rounding does, the order
        matters: the rows of this and all later runs then stay in their order.
        """
        runs = [measure_noise(expected, [other]) for other in self._perturbed(batch, rows, values)]
        noise = {name: max((run[name] for run in runs), default=0.0) for name in expected}
        if not runs or self.order_matters:
            return noise
        usual = {name: sorted(run[name] for run in runs)[len(runs) // 2] for name in expected}
        moved = [
            name
            for name, value in expected.items()
            if usual[name] > REQUIRED_RESOLUTION * largest(value)
        ]
        if not moved:
            return noise
        self.order_matters = True
        in_order = measure_noise(expected, self._perturbed(batch, rows, values))
        self.order_matters = any(usual[name] > _ORDER_MATTERS * in_order[name] for name in moved)
        return in_order if self.order_matters else noise

    def _perturbed(self, batch: Arrays, rows: int, values: Arrays) -> Iterator[Arrays]:
        """Yield the reference's gradients in perturbed runs, then restore its variables."""
        perturbations = self.perturbations(rows)
        for perturbation in track(perturbations, "perturbed run"):
            self.perturb(values, perturbation)
            yield self.expected(batch, rows, perturbation.order)
        if perturbations:
            self.reference.load(values)

    def _expected_after(self, batch: Arrays, found: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Return gradients that the reference computes after it has applied other gradients.

        The other gradients are the program's. So a wrong gradient of a critic is no difference in
        the generator, whose gradient depends on the updated critic.
        """
        groups: dict[frozenset[str], list[str]] = {}
        for variable, earlier in self.reference.program.earlier_gradients.items():
            if earlier <= found.keys() and all(np.isfinite(found[name]).all() for name in earlier):
                groups.setdefault(earlier, []).append(variable)
        expected: dict[str, npt.NDArray[Any]] = {}
        for earlier, variables in groups.items() if not self.on_parts else ():
            applied = self.reference.gradient_feeds({name: found[name] for name in earlier})
            feeds = {**self.feeding.to_reference(batch), **applied}
            expected |= self.reference.gradients(feeds, only=variables)
        return expected

    def expected(self, batch: Arrays, rows: int, order: Sequence[int] | None = None) -> Arrays:
        """Return the gradients that the program should have on one batch.

        Raises:
            InputError: the reference does not accept the rows of one tower.
        """
        if not self.on_parts:
            return self._gradients(batch, order)
        order = range(rows) if order is None else order
        parts = [[order[row] for row in part] for part in self.split(rows)]
        combined = self._combined(parts, (self._gradients(batch, part) for part in parts))
        if self._averaged_raw:
            clipped = self._clipped(batch, parts)
            combined |= {name: clipped[name] for name in clipped_gradients(self.reference.program)}
        return combined

    def _combined(
        self, parts: Sequence[Sequence[int]], gradients: Iterable[Arrays]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the gradients of a batch from the gradients of its parts."""
        if self.own_rows and self.own_rows.adds_up:
            parts = [(0,) for _ in parts]
            return weighted_mean(zip(parts, gradients, strict=True), 1)
        return weighted_mean(zip(parts, gradients, strict=True), sum(map(len, parts)))

    def _clipped(self, batch: Arrays, parts: Sequence[list[int]]) -> Arrays:
        """Let the reference clip its combined raw gradients of the parts."""
        names = self._averaged_raw
        raw = {name: name for name in names}
        feeds = [self.feeding.to_reference(batch, part) for part in parts]
        combined = self._combined(
            parts, (self.reference.evaluate(raw, names, each) for each in feeds)
        )
        return self.reference.gradients({**feeds[0], **combined})

    def expected_step(
        self, batch: Arrays, order: Sequence[int] | None = None, *, with_gradients: bool
    ) -> Arrays:
        """Let the reference take the step that the program should take.

        Returns:
            The gradients before the step if ``with_gradients``, else an empty mapping.
        """
        rows = self.feeding.rows
        gradients = self.expected(batch, rows, order) if with_gradients or self.on_parts else {}
        if self.on_parts:
            applied = self.reference.gradient_feeds(gradients)
            self.reference.step({**self.to_reference(batch), **applied})
        else:
            self.reference.step(self.feeding.to_reference(batch, order))
        return gradients if with_gradients else {}

    def _gradients(self, batch: Arrays, rows: Sequence[int] | None = None) -> Arrays:
        """Return the reference's gradients on rows, in the given order; by default on all."""
        return self.reference.gradients(self.feeding.to_reference(batch, rows))

    def losses(self, batch: Arrays, rows: Sequence[int] | None = None) -> list[float]:
        """Return the sum of each loss of the reference on the given rows, by default on all."""
        names = list(self.reference.program.placement.step.objectives)
        feeds = self.feeding.to_reference(batch, rows)
        values = self.reference.evaluate(names, names, feeds)
        return [float(np.sum(np.asarray(value, np.float64))) for value in values]

    def split(self, rows: int) -> Sequence[tuple[int, ...]]:
        """Return the rows of each tower; the last part may be the rest of an uneven batch."""
        if self.feeding.split and rows == self.feeding.rows:
            return self.feeding.split
        size = rows // self.towers.program.gpus
        return [tuple(range(at, min(at + size, rows))) for at in range(0, rows, size)]

    def samples(
        self, batch: Arrays, parts: Iterable[tuple[int, ...]], elements: Mapping[str, Elements]
    ) -> list[Sample]:
        """Return some elements of the reference's gradients on each part of the rows.

        The result ends before the first part that the reference does not accept.
        """
        samples = []
        with contextlib.suppress(InputError):
            for rows in track(list(parts), "part"):
                samples.append(Sample(rows, select_all(self._gradients(batch, rows), elements)))
        return samples

    def shifted(
        self, batch: Arrays, rows: int, elements: Mapping[str, Elements]
    ) -> Iterator[tuple[str, Arrays]]:
        """Yield elements of the reference's gradients with the rows of one input shifted.

        Yields:
            A description of the shift against the other inputs, and the elements.
        """
        names = sorted(name for name, array in batch.items() if array.ndim)
        if len(names) == 2:
            others, shifted_names = f"'{names[0]}'", names[1:]
        else:
            others, shifted_names = "the others", names if len(names) > 2 else []
        for name in shifted_names:
            for how, order in self._shifts(rows).items():
                with contextlib.suppress(InputError):
                    gradients = self.expected({**batch, name: batch[name][order]}, rows)
                    description = f"the rows of '{name}' {how} against {others}"
                    yield description, select_all(gradients, elements)

    def _shifts(self, rows: int) -> dict[str, npt.NDArray[np.int_]]:
        """Return orders of rows: shifted by one row or by a tower's rows, or within each tower."""
        order = np.arange(rows)
        size = max(1, rows // self.towers.program.gpus)
        distances = sorted({1, -1, size, -size}, key=abs)
        shifts = {f"moved by {distance}": np.roll(order, distance) for distance in distances}
        if rows % size == 0:
            for distance in (1, -1):
                within = np.roll(order.reshape(-1, size), distance, axis=1).ravel()
                shifts[f"moved by {distance} within each tower"] = within
        return shifts


def _compact(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of equal elements as a broadcast scalar, other arrays as they are.

    The slots of an optimizer need more memory than the weights, and most of them start with zeros.
    """
    first = np.array(value.reshape(-1)[:1])
    if value.size > 1 and value.dtype.kind not in "OSU" and np.all(value == first):
        return np.broadcast_to(first.reshape(()), value.shape)
    return value


def _perturb(value: npt.NDArray[Any], sign: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Change the elements of an array by random parts of a few eps.

    Coarser dtypes than float32 do not change: a few of their eps would hide most mistakes.
    """
    dtype: Any = np.float64 if value.dtype == np.float64 else np.float32
    changed = rng.random(value.shape, dtype)
    changed -= 0.5
    changed *= 2 * sign * _PERTURBATION * np.finfo(dtype).eps
    changed += 1
    changed *= value
    return changed.astype(value.dtype, copy=False)
