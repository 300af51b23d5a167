"""`--let NAME=VALUE` replaces what a script assigns, and nothing else."""

from __future__ import annotations

import textwrap
import traceback
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.core.errors import InputError
from placement_checks.loading.watch.source_values import compile_script

SCRIPT = Path("train.py")


def after(source: str, **let: str) -> dict[str, Any]:
    """The names of a script when it has run."""
    return after_dotted(source, let)


def after_dotted(source: str, let: dict[str, str]) -> dict[str, Any]:
    namespace: dict[str, Any] = {"SimpleNamespace": SimpleNamespace}
    exec(compile_script(SCRIPT, textwrap.dedent(source).encode(), let), namespace)
    return namespace


@pytest.mark.parametrize(
    "source",
    [
        "n = 8",
        "n: int = 8",
        "n = [i for i in range(3)][1 / 0]",
        "n = n_too = 8",
        "n, m = 8, 9",
        "[m, (n, *k)] = [1, (8, 9)]",
        "*n, m = 1, 2",
        "n = 3\nn += 5",
        "n = 3\nn *= 2\nm = n",
        "print(n := 8, end='')",
        "if True:\n    n = 8\nelse:\n    n = 9",
        "try:\n    n = 8\nfinally:\n    pass",
        "def f():\n    global n\n    n = 8\nf()",
        "def f():\n    n = 8\n    return n\nn = f()",
        "class C:\n    n = 8\nn = C.n",
        "async def f():\n    pass\nfor i in range(2):\n    n = i",
        "import os; n = 8",
        "m = (n := 8)",
        "print(m := (n := 8), end='')",
    ],
)
def test_what_a_script_assigns_to_a_name(source: str) -> None:
    assert after(source, n="4")["n"] == 4


def test_other_names_get_what_they_got() -> None:
    found = after(
        """
        a = n = 8
        n, b = 7, 8
        n_gpus = 9
        n2 = n
        names = {"n": 1}
        names["n"] = 2
        def f(n=3, *, k=n): return n, k
        c = f(n=5)
        """,
        n="4",
    )

    assert (found["a"], found["b"], found["n_gpus"], found["n2"]) == (8, 8, 9, 4)
    assert found["names"] == {"n": 2}
    assert found["c"] == (5, 4)


def test_dotted_names_are_as_the_script_writes_them() -> None:
    found = after_dotted(
        """
        config, other = SimpleNamespace(), SimpleNamespace(inner=SimpleNamespace())
        config.n = 8
        other.n = 8
        other.inner.n = 8
        class Model:
            def __init__(self):
                self.n = 8
        model = Model()
        """,
        {"config.n": "1", "other.inner.n": "2", "self.n": "3"},
    )

    assert (found["config"].n, found["other"].n) == (1, 8)
    assert (found["other"].inner.n, found["model"].n) == (2, 3)


def test_a_dataclass_has_another_default() -> None:
    found = after(
        """
        from dataclasses import dataclass
        @dataclass
        class Config:
            name: str
            n_gpus: int = 8
        config = Config("x")
        """,
        n_gpus="4",
    )

    assert found["config"].n_gpus == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        (" 4 ", 4),
        ("-0.5", -0.5),
        ("1e-3", 0.001),
        ("True", True),
        ("None", None),
        ("[0, 1]", [0, 1]),
        ("(0, 1)", (0, 1)),
        ("{'a': 1}", {"a": 1}),
        ("'4'", "4"),
        ("", ""),
        ("/tmp/x", "/tmp/x"),
        ("adam", "adam"),
        ("true", "true"),
        ("0,1", "0,1"),
        ("os.sep", "os.sep"),
        ("data/train", "data/train"),
        ("model-3", "model-3"),
        ("a 'b", "a 'b"),
        ("C:\\new", "C:\\new"),
        ("1\0", "1\0"),
        ("/tmp/\udce9", "/tmp/\udce9"),
        ("[" * 500, "[" * 500),
        ("-" * 100_000 + "1", "-" * 100_000 + "1"),
    ],
)
def test_values(text: str, value: Any) -> None:
    found = after("n = 8", n=text)["n"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", "0"), ("1.50", "1.50"), ("0,1", "0,1"), ("'x'", "x"), ("None", None), ("True", True)],
)
def test_a_number_is_a_string_where_the_script_has_one(text: str, value: Any) -> None:
    assert after("gpus = '0,1,2,3'", gpus=text)["gpus"] == value


@pytest.mark.parametrize(
    "text",
    [
        "list(range(2))",
        "2 * 3",
        "[gpu0, gpu1]",
        "GPUS[0]",
        "f'{x}'",
        "[n for n in (0, 1)]",
        "2*n(3)",
    ],
)
def test_what_would_have_to_be_computed_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        after("n = 8", n=text)

    assert str(error.value) == (
        f"--let n={text} is an expression, and nothing is computed; give its value, such as 4, "
        "[0, 1] or [{gpu_list}]; a text in quotes: \"'text'\""
    )


def test_an_expression_is_a_text_where_the_script_has_one() -> None:
    assert after("day = '2020-11-12'", day="2021-12-24")["day"] == "2021-12-24"
    assert after("name = 'x'", name="model(1)")["name"] == "model(1)"


@given(st.text())
def test_any_text_is_a_value_where_the_script_has_one(text: str) -> None:
    assert "n" in after("n = 'x'", n=text)


def test_lines_and_the_name_of_the_file_are_as_before() -> None:
    source = b'"""Text."""\n\nn, m = (\n    8,\n    9,\n)\n1 / 0\n'
    with pytest.raises(ZeroDivisionError) as raised:
        exec(compile_script(SCRIPT, source, {"n": "[\n1,\n2]", "m": "4"}), {})

    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno) == ("train.py", 7)


def test_a_value_is_where_the_old_one_was() -> None:
    code = compile_script(SCRIPT, b"\n\nn = 8\n", {"n": "[1,\n2]"})

    assert {line for *_, line in code.co_lines()} <= {0, 3}  # 0 is where the module begins


def instructions(code: CodeType) -> list[Any]:
    inner = [instructions(each) for each in code.co_consts if isinstance(each, CodeType)]
    return [code.co_code, code.co_names, code.co_flags, list(code.co_positions()), *inner]


def test_without_values_it_is_what_python_makes_of_it() -> None:
    source = Path(__file__).read_bytes()

    code = compile_script(SCRIPT, source, {})

    assert instructions(code) == instructions(compile(source, "train.py", "exec"))


def test_the_imports_from_the_future_of_this_package_are_not_the_scripts() -> None:
    assert after("x: 1 / 1 = 2", x="3")["__annotations__"] == {"x": 1.0}


@pytest.mark.parametrize(
    "source",
    [
        "# -*- coding: latin-1 -*-\nx = 'é'\nn = 8".encode("latin-1"),
        b"\xef\xbb\xbfx = '\xc3\xa9'\nn = 8",
        "x = 'é'\r\nn = 8\r\n".encode(),
    ],
)
def test_the_encoding_is_the_one_that_it_names(source: bytes) -> None:
    namespace: dict[str, Any] = {}
    exec(compile_script(SCRIPT, source, {"n": "ü"}), namespace)
    assert (namespace["x"], namespace["n"]) == ("é", "ü")


@pytest.mark.parametrize(
    ("source", "let", "message", "fix"),
    [
        ("n_gpus = 3", "n_gpu", "n_gpu", "did you mean 'n_gpus'?"),
        ("c.num_gpus = 3", "num_gpus", "num_gpus", "did you mean 'c.num_gpus'?"),
        ("num_gpus = 3", "c.num_gpus", "c.num_gpus", "did you mean 'num_gpus'?"),
        ("configuration.n = 3", "n", "n", "did you mean 'configuration.n'?"),
        ("a = 1\nb, c = 2, 3", "zzz", "zzz", "it assigns to a, b and c"),
        ("a = b[0] = 1\nf().c = a = 2", "zzz", "zzz", "it assigns to a"),
        (
            "a = b = c = d = e = f = g = 1",
            "zzz",
            "zzz",
            "it assigns to a, b, c, d, e, f and others",
        ),
        ("print()", "n", "n", "it assigns to no name"),
        ("n: int\nx = n", "n", "n", "it assigns to x"),
        ("for n in (): x = 1", "n", "n", "it assigns to x"),
    ],
)
def test_a_name_that_is_assigned_nowhere(source: str, let: str, message: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        after_dotted(source, {let: "4"})

    assert error.value.object == f"--let {let}=4"
    assert error.value.message == (
        f"train.py assigns nothing to {message}; other files are left as they are"
    )
    assert error.value.fix == fix


def test_several_values() -> None:
    found = after("a = 1\nb = 2\nc = a, b", a="3", b="'a = 9'")
    assert found["c"] == (3, "a = 9")
