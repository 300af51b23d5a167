from __future__ import annotations

import numpy as np
import pytest

from placement_checks.numerics.sampling import measure_noise, uncertain_elements, weighted_mean


def arrays(**values: object) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, np.float64) for name, value in values.items()}


def test_noise_is_the_largest_difference_in_any_other_order() -> None:
    orders = [arrays(w=[1.0, 5.0], b=2.0), arrays(w=[-1.0, 4.0], b=2.0)]

    assert measure_noise(arrays(w=[1.0, 4.0], b=2.0), orders) == {"w": 2.0, "b": 0.0}


@pytest.mark.parametrize(
    ("gradient", "uncertain"),
    [([1.0, 0.25], [False, True]), ([-1.0, -0.25], [False, True]), ([0.5, 0.625], [True, False])],
)
def test_an_element_is_uncertain_up_to_a_hundred_times_the_noise(
    gradient: list[float], uncertain: list[bool]
) -> None:
    first = arrays(w=gradient)
    other = {"w": first["w"] + 0.5**200}  # none
    noisy = arrays(w=[gradient[0] + 0.005, gradient[1]])

    by_noise, by_none = (
        uncertain_elements([first], [measure_noise(first, [turned])])["w"]
        for turned in (noisy, other)
    )

    assert by_noise.tolist() == uncertain
    assert by_none.tolist() == [False, False]


def test_zero_without_noise_is_certain() -> None:
    assert uncertain_elements([arrays(w=[0.0, 1.0])], [{"w": 0.0}])["w"].tolist() == [False] * 2


def test_an_element_is_uncertain_after_any_uncertain_step() -> None:
    """Each step is compared with the same step in other orders."""
    first = [arrays(w=[9.0, 0.1]), arrays(w=[0.1, 9.0]), arrays(w=[9.0, 9.0])]
    noise = [{"w": 0.01}, {"w": 0.01}, {"w": 0.0}]

    assert uncertain_elements(first, noise)["w"].tolist() == [True, True]
    assert uncertain_elements(first[:1], noise[:1])["w"].tolist() == [False, True]


def test_the_mean_over_parts_weights_them_by_their_rows() -> None:
    parts = [
        ((0, 1, 2), arrays(w=[4.0, 8.0], b=0.0)),
        ((3,), arrays(w=[8.0, 0.0], b=1.0)),
    ]

    mean = weighted_mean(parts, 4)

    assert {name: value.tolist() for name, value in mean.items()} == {"w": [5.0, 6.0], "b": 0.25}
