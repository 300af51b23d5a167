"""Names of numpy, Python and scipy that were dropped since TensorFlow 1."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import fractions
import inspect
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from placement_checks.loading.tensorflow_1.names import added
from placement_checks.loading.tensorflow_1.scipy_misc import scipy_misc

_OF_NUMPY: dict[str, Any] = {
    "Inf": np.inf,
    "Infinity": np.inf,
    "NAN": np.nan,
    "NINF": -np.inf,
    "NaN": np.nan,
    "PINF": np.inf,
    "alltrue": np.all,
    "asscalar": lambda array: array.item(),
    "bool": bool,
    "bool8": np.bool_,
    "complex": complex,
    "complex_": np.complex128,
    "cumproduct": np.cumprod,
    "float": float,
    "float_": np.float64,
    "in1d": lambda array, values, **options: np.isin(np.ravel(array), values, **options),
    "infty": np.inf,
    "int": int,
    "int0": np.intp,
    "long": int,
    "mat": np.asmatrix,
    "msort": lambda array: np.sort(array, axis=0),
    "object": object,
    "object0": np.object_,
    "product": np.prod,
    "rank": np.ndim,
    "round_": np.round,
    "row_stack": np.vstack,
    "sometrue": np.any,
    "str": str,
    "string_": np.bytes_,
    "uint0": np.uintp,
    "unicode": str,
    "unicode_": np.str_,
}
_OF_COLLECTIONS: dict[str, Any] = {
    name: getattr(collections.abc, name) for name in collections.abc.__all__
}


class _ArgSpec(NamedTuple):
    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple[Any, ...] | None


def _getargspec(function: Callable[..., Any]) -> _ArgSpec:
    return _ArgSpec(*inspect.getfullargspec(function)[:4])


@contextlib.contextmanager
def old_names() -> Iterator[None]:
    """Put them back in this block."""
    with (
        added(np, _OF_NUMPY),
        added(collections, _OF_COLLECTIONS),
        added(inspect, {"getargspec": _getargspec, "ArgSpec": _ArgSpec}),
        added(time, {"clock": time.process_time}),
        added(fractions, {"gcd": math.gcd}),
        scipy_misc(),
    ):
        yield
