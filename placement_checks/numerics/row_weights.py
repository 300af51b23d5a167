"""What it means that the rows of a batch count otherwise than they should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from placement_checks.core.measurement import Array, Trial
from placement_checks.util.text import join_and

CLOSE = 0.01  # of weights and ratios, which are fitted


# What was done wrong, by which its line is found in the program.
Mistake = Literal[
    "",
    "sum",
    "divided",
    "scaled",
    "changed",
    "changed in towers",
    "slices",
    "statistics",
    "moved",
    "paired",
    "penalty",
    "weights",
    "counts",
    "frozen",
    "tail",
]


class Diagnosis(NamedTuple):
    """The likely mistake.

    Attributes:
        what: a clause that says it.
        fix: what to change, or how to declare that it is meant.
        shown: what shows it, one line each.
        ratio: the number that all gradients are multiplied by, if that is the mistake.
        mistake: which of those that are known.
        consequence: what it means for the training; ``""`` where that is plain.
        towers: those that it is in, where it is not in all.
    """

    what: str
    fix: str
    shown: tuple[str, ...] = ()
    ratio: float | None = None
    mistake: Mistake = ""
    consequence: str = ""
    towers: tuple[int, ...] = ()


def diagnose_rows(times: Array, trial: Trial, towers: int) -> Diagnosis:
    """What it means that rows count so many times what they should."""
    shown = tuple(ranges(times))
    if trial.split:
        return _diagnose_towers(times, trial.split, shown)
    blocks = list(blocks_of(times))
    begin, end, last = blocks[-1]
    if len(blocks) > 1 and abs(last) < CLOSE and end - begin < towers:
        rows = "row counts" if end - begin == 1 else f"{end - begin} rows count"
        return Diagnosis(
            f"of a batch of {trial.rows} rows, which {towers} towers do not divide, the last "
            f"{rows} for nothing",
            "give what is left over to a tower, and weight the towers by their rows; or, if all "
            f"batches have a number of rows that {towers} divides: "
            f"--set gradients-equal.rows={trial.rows // towers * towers}",
            shown,
            mistake="tail",
            consequence="of every such batch some rows train nothing",
        )
    sizes = list(_sizes(blocks, trial.rows, towers))
    if len(sizes) == towers and len(set(sizes)) > 1:
        return Diagnosis(
            f"towers of {join_and(sizes)} rows are averaged as if they were equal",
            "weight each tower by its rows, n_i / n: placement_checks.average_gradients("
            "tower_grads, weights=rows)",
            shown,
            mistake="weights",
            consequence="a row counts more in a small tower than in a large one",
        )
    split = [part.rows for part in trial.per_tower]
    if len(split) == towers and all(np.ptp(times[list(rows)]) < CLOSE for rows in split):
        return _diagnose_towers(times, split, shown)
    return Diagnosis(
        "rows do not count alike",
        "see that every row is in one tower, and that towers are weighted by their rows",
        shown,
        mistake="weights",
        consequence="some examples train the model more than others",
    )


def _sizes(blocks: Sequence[tuple[int, int, float]], rows: int, towers: int) -> Iterator[int]:
    """The rows of each tower, if every tower counts as one of so many; none if that is not so.

    The mean over a tower's n_i rows counts each of them rows / (towers * n_i) times.
    """
    for begin, end, value in blocks:
        size = rows / (towers * value) if value > CLOSE else 0.0
        if not size or abs(size - round(size)) > CLOSE * size or (end - begin) % round(size):
            return
        yield from [round(size)] * ((end - begin) // round(size))


def _diagnose_towers(
    times: Array, split: Sequence[tuple[int, ...]], shown: tuple[str, ...]
) -> Diagnosis:
    per_tower = [times[list(rows)] for rows in split]
    lost = [number for number, rows in enumerate(per_tower) if np.all(np.abs(rows) < CLOSE)]
    counted = [number for number in range(len(per_tower)) if number not in lost]
    whole = len(times) / len(per_tower[counted[0]]) if len(counted) == 1 else 0.0
    if lost and whole and np.allclose(per_tower[counted[0]], whole, rtol=CLOSE):
        last = ", the last," if counted[0] == len(per_tower) - 1 else ""
        others = "the other's" if len(per_tower) == 2 else "those of the others"
        return Diagnosis(
            f"only the rows of tower {counted[0]}{last} count: {others} are lost, or computed on "
            "the same rows",
            "take the mean over the gradients of all towers, each computed on its own rows",
            shown,
            mistake="weights",
            consequence="what the other GPUs compute changes nothing: only one of "
            f"{len(per_tower)} parts of a batch trains the model",
        )
    if lost:
        towers = f"{'tower' if len(lost) == 1 else 'towers'} {join_and(lost)}"
        return Diagnosis(
            f"nothing of it comes from {towers}, as if it were frozen there",
            "look for a stop_gradient, a mask, a list of variables or an index that leaves it out",
            shown,
            mistake="frozen",
            consequence=f"the rows of {towers} train the rest of the model, and not this",
            towers=tuple(lost),
        )
    shares = _shares([float(np.mean(rows)) * len(rows) for rows in per_tower])
    meant = (
        "; if the towers are meant for parts of different size: "
        f"--set 'gradients-equal.shares={shares}'"
    )
    return Diagnosis(
        "the towers do not count alike",
        f"weight each tower by its rows{meant if shares else ''}",
        shown,
        mistake="weights",
        consequence="the rows of some towers count more than those of others",
    )


def _shares(weights: Sequence[float]) -> list[int]:
    """Small whole numbers in the ratio of the weights; empty if there are none."""
    if min(weights) <= 0:
        return []
    for times in range(1, 13):
        shares = [times * weight / min(weights) for weight in weights]
        if all(abs(share - round(share)) < CLOSE / 10 * times for share in shares):
            return [round(share) for share in shares]
    return []


def blocks_of(times: Array) -> Iterator[tuple[int, int, float]]:
    """Rows that follow each other and count alike: the first, the one after the last, how much."""
    begin = 0
    for end in range(1, len(times) + 1):
        if end == len(times) or abs(times[end] - times[begin]) > CLOSE:
            yield begin, end, float(np.mean(times[begin:end]))
            begin = end


def ranges(times: Array) -> Iterator[str]:
    """How often rows count, a text for each run of rows that count alike."""
    for begin, end, value in blocks_of(times):
        rows = f"row {begin} counts" if end - begin == 1 else f"rows {begin} to {end - 1} count"
        yield f"{rows} {four_digits(value)} times"


def four_digits(value: float) -> str:
    """Four digits, which rounding of the sixth does not change; what is nearly zero is zero."""
    return f"{0.0 if abs(value) < 1e-4 else float(f'{value:.6g}'):.4g}"
