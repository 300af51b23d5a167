"""What it means that all gradients are those of the reference, times one number."""

from __future__ import annotations

import numpy as np

from placement_checks.core.measurement import Measurement
from placement_checks.numerics.row_weights import CLOSE, Diagnosis, Mistake


def diagnose_ratio(ratio: float, measured: Measurement) -> Diagnosis:
    """What it means that all gradients are the reference's times one number."""
    towers = measured.towers
    declared = f"--set gradients-equal.scale={_declarable(ratio * measured.scale)}"
    if abs(ratio) < 1e-6:
        return Diagnosis(
            "it is zero",
            "look for a stop_gradient, a mask, or a loss that does not depend on the variables",
            consequence="these variables are never trained",
        )
    mistake: Mistake
    if towers > 1 and np.isclose(ratio, towers, rtol=CLOSE / 10):
        mistake = "sum"
        what, fix = _added_up(measured)
        fix = f"{fix}; if a sum is meant, with a rate that is divided by it: {declared}"
    elif towers > 1 and np.isclose(ratio * towers, 1, rtol=CLOSE / 10):
        mistake = "divided"
        what, fix = _divided(measured)
        fix = f"{fix}; if it is meant: {declared}"
    else:
        what = "all of it is multiplied by one number"
        mistake = "scaled"
        fix = (
            "if it is a loss scale, undo it before the gradients are applied: "
            f"`(gradient / {ratio:.4g}, variable)`; if it is meant: {declared}"
        )
    return Diagnosis(
        what,
        fix,
        ratio=ratio,
        mistake=mistake,
        consequence=f"the step is that of a learning rate {ratio:.4g} times as high; optimisers "
        "that divide by the size of gradients, such as Adam, hide it",
    )


def _added_up(measured: Measurement) -> tuple[str, str]:
    """What it means that the sum over towers is applied, and what to do."""
    towers, strategy = measured.towers, measured.strategy
    if not strategy:
        return (
            f"the gradients of {towers} towers are added up where their mean is meant",
            f"divide the sum by the number of towers: `tf.add_n(gradients) / {towers}`",
        )
    loss = "the loss is the mean over a replica's own rows"
    fix = (
        "divide by the rows of all replicas: `tf.nn.compute_average_loss(losses, "
        "global_batch_size=…)`"
    )
    if not measured.trials[0].split:
        loss += ", or over the rows of all"
        fix += ", and give each rows of its own: `strategy.experimental_distribute_dataset`"
    return (
        f"{strategy} adds up the gradients of {towers} replicas, and each is whole already: "
        f"{loss}, or the program adds gradients up itself",
        fix,
    )


def _divided(measured: Measurement) -> tuple[str, str]:
    """What it means that gradients are divided by the number of towers, and what to do."""
    if not measured.strategy:
        return (
            f"it is divided by the number of towers, {measured.towers}, once too often",
            "divide the losses by the number of towers or take the mean of the gradients, not "
            "both; where the loss is a sum over rows, add the gradients up",
        )
    return (
        f"it is divided by the number of replicas, {measured.towers}, once too often",
        "divide the loss by the rows of all replicas alone, as `tf.nn.compute_average_loss` does, "
        "and add the gradients up: `tf.distribute.ReduceOp.SUM`",
    )


def is_simple(ratio: float) -> bool:
    """Whether it is a whole number, a half, a third and so on, or nothing."""
    return _is_whole(ratio) or abs(ratio) < 1e-6 or _is_whole(1 / ratio)


def _is_whole(number: float) -> bool:
    return bool(abs(number) > 1.5 and np.isclose(number, round(number), rtol=1e-4))


def _declarable(ratio: float) -> str:
    """A ratio to declare: the whole number or part that is meant but for rounding, or 9 digits."""
    for meant in (float(round(ratio)), 1 / round(1 / ratio) if 0 < abs(ratio) < 1 else 0.0):
        if meant and np.isclose(ratio, meant, rtol=1e-5):
            return f"{meant:.16g}"
    return f"{ratio:.9g}"
