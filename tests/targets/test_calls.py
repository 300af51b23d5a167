"""Errors for the arguments in a target, in one line."""

from __future__ import annotations

import pytest

from placement_checks.core.errors import InputError
from placement_checks.targets.names import parse_arguments, split_arguments


@pytest.mark.parametrize(
    ("target", "bare", "arguments"),
    [
        ("train.py:build", "train.py:build", ""),
        ("train.py:build()", "train.py:build", "()"),
        ("a (copy)/train.py:Model.build(n=1)", "a (copy)/train.py:Model.build", "(n=1)"),
        ("package.train:build (name='a:b(c)')", "package.train:build", "(name='a:b(c)')"),
        ("graph(1).pb", "graph(1).pb", ""),
        ("train.py(n=1)", "train.py(n=1)", ""),
    ],
)
def test_parts_of_a_target(target: str, bare: str, arguments: str) -> None:
    assert split_arguments(target) == (bare, arguments)


def test_arguments_are_the_same_in_whatever_order_and_style() -> None:
    written = parse_arguments("t.py:build(n={gpus}, name='a:b', depth=5_0)")
    assert written == parse_arguments('t.py:build( depth = 50,name="a:b",\nn={ gpus }, )')
    assert written.for_gpus(2) == {"depth": 50, "n": 2, "name": "a:b"}


@pytest.mark.parametrize("target", ["t.py:build", "t.py:build()", "graph.pb"])
def test_no_arguments(target: str) -> None:
    assert parse_arguments(target).for_gpus(2) == {}


PYTHON = "write them as in Python: build(depth=50, n={gpus})"
LITERAL = "write a number, a string, None, True, False, {gpus}, or a list or tuple of these"
NAME = "write build(NAME=VALUE), with the name of the parameter"
WRONG = {
    "(50)": f"its argument 50 has no name; {NAME}",
    "({gpus})": f"its argument {{gpus}} has no name; {NAME}",
    "(*[1])": f"its argument *[1] has no name; {NAME}",
    "(**{'a': 1})": f"its argument **{{'a': 1}} has no name; {NAME}",
    "(depth=50": f"its arguments cannot be parsed: '(' was never closed; {PYTHON}",
    "(depth=1).x": f"its arguments cannot be parsed: text follows the closing parenthesis; "
    f"{PYTHON}",
    "(depth=1)(n=2)": f"its arguments cannot be parsed: text follows the closing parenthesis; "
    f"{PYTHON}",
    "(a='\0')": "its arguments cannot be parsed: source code string cannot contain null bytes; "
    + PYTHON,
    "(a=" + 900 * "[" + 900 * "]" + ")": "its arguments cannot be parsed: too many nested "
    f"parentheses; {PYTHON}",
    "(a="
    + 20_000 * "-"
    + "1)": f"its arguments cannot be parsed: they are nested too deeply; {PYTHON}",
    "(n=1, m=2, n=3)": "gives 'n' twice; give it once",
    "(n=len('x'))": f"its n=len('x') must be a literal; expressions are not evaluated; {LITERAL}",
    "(n={gpus} * 2)": f"its n={{gpus}} * 2 must be a literal; expressions are not evaluated; "
    f"{LITERAL}",
    "(n={[]})": f"its n={{[]}} must be a literal; expressions are not evaluated; {LITERAL}",
    "(n={number})": f"its n={{number}} must be a literal; expressions are not evaluated; "
    f"{LITERAL}",
    "(name=resnet)": "its name=resnet must be a literal; expressions are not evaluated; write "
    "name='resnet'",
    "(n=gpus)": "its n=gpus must be a literal; expressions are not evaluated; write n={gpus}",
}


@pytest.mark.parametrize("arguments", WRONG, ids=lambda text: text[:20].replace("\0", "NUL"))
def test_invalid_arguments(arguments: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_arguments(f"t.py:build{arguments}")
    assert caught.value.object == f"t.py:build{arguments}"
    assert f"{caught.value.message}; {caught.value.fix}" == WRONG[arguments]
