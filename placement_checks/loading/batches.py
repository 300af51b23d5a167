"""The function that yields batches, from what a call or an option names."""

from __future__ import annotations

from functools import partial, update_wrapper
from pathlib import Path
from typing import cast

from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.program import Batch, BatchFunction
from placement_checks.loading.saved_case import SUFFIX, Case
from placement_checks.loading.targets import resolve

_BY_POSITION = 2  # rng and n


def batch_of(batch: Batch, gpus: int) -> BatchFunction | None:
    """The batch function that a call or an option names; None for None.

    Args:
        batch: a function ``batch(rng, n)`` that returns arrays of ``n`` rows by the names of the
            inputs, a target such as ``train.py:batch``, or the path of a saved case.
        gpus: what ``{gpus}`` stands for in the arguments of a target.

    Raises:
        InputError: it names a file or module that cannot be loaded, or no function in it, or
            arguments that the function does not take.
        UsageError: it is not a function.
    """
    if isinstance(batch, str | Path) and Path(batch).suffix == SUFFIX:
        return Case.load(Path(batch))
    if isinstance(batch, str):
        named = resolve(batch)
        if isinstance(named, Path):
            raise InputError(batch, "is not a function", "name one, such as train.py:batch")
        named.check_given(_BY_POSITION)
        bound = partial(named.build, **named.given.for_gpus(gpus))
        return cast("BatchFunction", update_wrapper(bound, named.build))
    if isinstance(batch, Path):
        raise InputError(
            str(batch), "is not a saved case", f"name a {SUFFIX} file that a run saved"
        )
    if batch is not None and not callable(batch):
        raise UsageError(
            f"batch {batch!r:.60}",
            "is not a function",
            f"give batch(rng, n) itself, 'train.py:batch' or a {SUFFIX} file that a run saved",
        )
    return batch
