"""Names that numpy and Python removed exist in the block."""

from __future__ import annotations

import collections
import collections.abc
import fractions
import inspect
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from placement_checks.tf1.renamed import dropped_names

Run = Callable[[str], dict[str, Any]]


def test_names_of_numpy() -> None:
    numpy: Any = np
    with dropped_names():
        types = [numpy.int, numpy.float, numpy.object, numpy.str, numpy.unicode, numpy.complex]
        array = numpy.zeros(2, numpy.int)
        values = [
            numpy.asscalar(array[:1]),
            numpy.product([2, 3]),
            bool(numpy.alltrue([True, False])),
            numpy.in1d([[1], [2]], [2]).tolist(),
            numpy.msort(np.array([[2], [1]])).tolist(),
            numpy.Inf,
            numpy.rank(array),
        ]

    assert types == [int, float, object, str, str, complex]
    assert values == [0, 6, False, [False, True], [[1], [2]], np.inf, 1]


def test_existing_names_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "int", "own", raising=False)

    with dropped_names():
        assert vars(np)["int"] == "own"

    assert vars(np)["int"] == "own"


def test_names_of_python() -> None:
    def function(a: object, b: int = 1, *c: object, **d: object) -> None: ...

    python: Any = collections
    clock: Any = time
    inspecting: Any = inspect
    with dropped_names():
        assert python.Iterable is collections.abc.Iterable
        assert python.MutableMapping is collections.abc.MutableMapping
        assert clock.clock() > 0
        spec = inspecting.getargspec(function)
        divisor: Any = fractions
        assert divisor.gcd(6, 4) == 2

    assert spec == (["a", "b"], "c", "d", (1,))
    assert (spec.args, spec.keywords) == (["a", "b"], "d")


def test_the_names_are_removed_after_the_block() -> None:
    before = [{*vars(module)} for module in (np, collections, time, inspect, fractions)]

    with pytest.raises(ZeroDivisionError), dropped_names():
        raise ZeroDivisionError

    assert [{*vars(module)} for module in (np, collections, time, inspect, fractions)] == before


def test_a_program_uses_the_names(run: Run) -> None:
    run(
        """
        from collections import Mapping
        from inspect import getargspec
        import numpy as np
        assert np.array([1.5]).astype(np.int)[0] == 1
        """
    )
