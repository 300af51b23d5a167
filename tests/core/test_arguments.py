from __future__ import annotations

from typing import Any

import pytest

from placement_checks.core.arguments import Arguments


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
        ("b'x'", b"x"),
    ],
)
def test_values(literal: str, value: Any) -> None:
    arguments = Arguments((("a", literal),))
    assert arguments.for_gpus(4) == {"a": value}
    assert arguments.uses_gpus == ("gpus" in literal)


def test_each_call_gets_lists_of_its_own() -> None:
    arguments = Arguments((("sizes", "[1, 2]"),))
    arguments.for_gpus(2)["sizes"].append(3)
    assert arguments.for_gpus(2) == {"sizes": [1, 2]}
