"""Named values, as in `tf.contrib.training.HParams`."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from placement_checks.tf1.shims.hparams import HParams


def hparams() -> Any:
    return HParams(rate=0.1, depth=3, name="net", deep=False, sizes=[64, 32], nothing=None)


def test_values_are_attributes() -> None:
    made = hparams()
    made.rate = 0.5

    assert made.values() == {
        "rate": 0.5,
        "depth": 3,
        "name": "net",
        "deep": False,
        "sizes": [64, 32],
        "nothing": None,
    }
    assert "rate" in made
    assert "speed" not in made
    assert (made.get("depth"), made.get("speed"), made.get("speed", 2)) == (3, None, 2)
    assert copy.deepcopy(made).sizes == [64, 32]
    assert repr(HParams(a=1)) == "HParams([('a', 1)])"
    with pytest.raises(AttributeError):
        _ = made.speed


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", {}),
        ("rate=1", {"rate": 1.0}),
        ("depth=7,name=a b", {"depth": 7, "name": "a b"}),
        ("deep=true", {"deep": True}),
        ("deep=0", {"deep": False}),
        ("sizes=[1, 2,3]", {"sizes": [1, 2, 3]}),
        ("sizes[1]=5,rate=2e-3", {"sizes": [64, 5], "rate": 0.002}),
        ("name=", {"name": ""}),
    ],
)
def test_text_changes_values(text: str, changed: dict[str, object]) -> None:
    made = hparams().parse(text)

    assert made.values() == {**hparams().values(), **changed}
    assert type(made.rate) is float


@pytest.mark.parametrize(
    "text", ["speed=1", "rate", "depth=1.5", "depth=x", "deep=perhaps", "sizes=3", "rate=[1]"]
)
def test_text_that_does_not_fit(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        hparams().parse(text)


def test_values_from_mappings_and_json() -> None:
    made = hparams().override_from_dict({"depth": 4}).parse_json('{"sizes": [8], "deep": true}')

    assert (made.depth, made.sizes, made.deep) == (4, [8], True)
    assert HParams(b=2, a=[1]).to_json(sort_keys=True) == '{"a": [1], "b": 2}'


def test_names_are_added_and_removed() -> None:
    made: Any = HParams()
    made.add_hparam("beam", (1, 2))
    assert made.beam == [1, 2]

    made.del_hparam("beam")
    made.del_hparam("beam")

    assert "beam" not in made
    for name, value in (("values", 1), ("empty", [])):
        with pytest.raises(ValueError, match=name):
            made.add_hparam(name, value)
    with pytest.raises(KeyError):
        made.set_hparam("beam", 1)


def test_whole_numbers_stay_whole() -> None:
    made = hparams()

    made.set_hparam("depth", 4.0)

    assert type(made.depth) is int
    with pytest.raises(ValueError, match="not a whole number"):
        made.set_hparam("depth", 4.5)
