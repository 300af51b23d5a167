from __future__ import annotations

from typing import Any

import pytest
from support.builders import script

from placement_checks.core.target import Arguments, for_gpus, uses_gpus


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("50", 50),
        ("-0.5", -0.5),
        ("None", None),
        ("True", True),
        ("'resnet'", "resnet"),
        ("{gpus}", 4),
        ("[1, (2, {gpus})]", [1, (2, 4)]),
        ("{'n': {gpus}}", {"n": 4}),
        ("{1, 2}", {1, 2}),
        ("'--n={gpus}'", "--n=4"),
        ("'{gpu_list}'", "0,1,2,3"),
        ("b'x'", b"x"),
    ],
)
def test_values_of_arguments(literal: str, value: Any) -> None:
    arguments = Arguments((("a", literal),))
    assert arguments.for_gpus(4) == {"a": value}
    assert arguments.uses_gpus == ("{gpu" in literal)


def test_each_call_gets_new_lists() -> None:
    arguments = Arguments((("sizes", "[1, 2]"),))
    arguments.for_gpus(2)["sizes"].append(3)
    assert arguments.for_gpus(2) == {"sizes": [1, 2]}


@pytest.mark.parametrize(
    ("text", "for_2", "for_1"),
    [
        ("--num_gpus={gpus}", "--num_gpus=2", "--num_gpus=1"),
        ("--gpu_list={gpu_list}", "--gpu_list=0,1", "--gpu_list=0"),
        ("[{gpu_list}]", "[0,1]", "[0]"),
        ("{gpus}x{gpus}", "2x2", "1x1"),
    ],
)
def test_the_placeholder_for_the_number_of_gpus(text: str, for_2: str, for_1: str) -> None:
    assert [for_gpus(text, 2), for_gpus(text, 1)] == [for_2, for_1]
    assert uses_gpus(text)


@pytest.mark.parametrize("text", ["", "--gpus=2", "{gpu}", "{0}", "{}", "{GPUS}"])
def test_other_braces_are_unchanged(text: str) -> None:
    assert for_gpus(text, 2) == text
    assert not uses_gpus(text)


def test_an_argument_is_repeated_for_each_gpu() -> None:
    train = script("train.py", ("--gpu_ids", "{each_gpu}", "--out={gpus}", "--gpu={each_gpu}"))

    assert train.takes_num_gpus
    assert train.for_gpus(2).settings.args == (
        "--gpu_ids",
        "0",
        "1",
        "--out=2",
        "--gpu=0",
        "--gpu=1",
    )
    assert train.for_gpus(1).settings.args == ("--gpu_ids", "0", "--out=1", "--gpu=0")
    assert script("train.py", ("{each_gpu}",)).takes_num_gpus
