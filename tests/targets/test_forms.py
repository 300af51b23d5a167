"""Each form of target is recognized by its text; a wrong target is one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.program import Program
from placement_checks.core.settings import Settings
from placement_checks.core.target import Script
from placement_checks.targets.forms import parse_command, parse_target, resolve


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a (copy)").mkdir()
    for name in ("t.py", "a (copy)/t.py", "graph(1).pb", "outputlog"):
        (tmp_path / name).touch()


@pytest.mark.parametrize(
    ("text", "path", "function", "arguments"),
    [
        ("t.py:build", "t.py", "build", {}),
        ("t.py:build()", "t.py", "build", {}),
        ("a (copy)/t.py:Model.build(n=1)", "a (copy)/t.py", "Model.build", {"n": 1}),
        ("os.path:join (name='a:b(c)')", "os.path", "join", {"name": "a:b(c)"}),
        ("graph(1).pb", "graph(1).pb", "", {}),
    ],
)
def test_parts_of_a_target(
    text: str, path: str, function: str, arguments: Mapping[str, Any]
) -> None:
    target = parse_target(text)

    assert (target.name, target.path, target.function) == (text, path, function)
    assert target.arguments.for_gpus(2) == arguments


def test_the_order_and_style_of_arguments_does_not_matter() -> None:
    written = parse_target("t.py:build(n={gpus}, name='a:b', depth=5_0)").arguments
    other = parse_target('t.py:build( depth = 50,name="a:b",\nn={ gpus }, )').arguments
    assert written == other
    assert written.for_gpus(2) == {"depth": 50, "n": 2, "name": "a:b"}


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
        parse_target(f"t.py:build{arguments}")
    assert caught.value.object == f"t.py:build{arguments}"
    assert f"{caught.value.message}; {caught.value.fix}" == WRONG[arguments]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("t.py", "program"),
        ("os.path", "program"),
        ("os.path:join", "function"),
        ("graph(1).pb", "graph"),
        ("outputlog", "log"),
        ("-", "log"),
    ],
)
def test_kind_of_a_target(text: str, kind: str) -> None:
    assert parse_target(text).kind == kind


def test_a_whole_program_has_a_process_of_its_own_and_a_function_only_with_options() -> None:
    program, function = parse_target("t.py"), parse_target("t.py:build")

    arguments, limit = Settings(args=("-n", "2")), Settings(limit=60.0)
    assert resolve("t.py", arguments) == Script(program, arguments)
    assert resolve("t.py:build") == resolve("t.py:build", Settings(gpus=4)) == function
    assert resolve("t.py:build", limit) == Script(function, limit)
    values = Settings(let={"N": "{gpus}"})
    assert resolve("t.py:build", values) == Script(function, values)
    assert isinstance(resolve(print), Program)


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        ("graph(1).pb", Settings(v1=True), "--v1"),
        ("graph(1).pb", Settings(let={"N": "2"}), "--let"),
    ],
)
def test_options_that_do_not_apply(target: str, settings: Settings, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(target, settings)
    assert caught.value.object == message


def test_a_placement_log_cannot_be_loaded() -> None:
    with pytest.raises(InputError, match="pass read_logs"):
        resolve("outputlog")


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("t.py --rows=8 'a b'", "t.py", ["--rows=8", "a b"]),
        ("t.py:build(name='a b', depth=2)", "t.py:build(name='a b', depth=2)", ()),
        ('t.py:build(name="it\'s")', 't.py:build(name="it\'s")', ()),
    ],
)
def test_arguments_of_a_reference(text: str, name: str, args: object) -> None:
    target, given = parse_command(text)

    assert (target.name, given) == (name, args)
