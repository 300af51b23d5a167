"""Texts of factors."""

from __future__ import annotations

import pytest

from placement_checks.util.text import format_factor


@pytest.mark.parametrize("noise", [-3e-7, 0, 3e-7])
def test_rounding_is_the_same_on_every_machine(noise: float) -> None:
    assert format_factor(17 / 16 + noise) == "1.062"


@pytest.mark.parametrize(("value", "expected"), [(9e-5, "0"), (-0.5, "-0.5"), (128, "128")])
def test_four_digits(value: float, expected: str) -> None:
    assert format_factor(value) == expected
