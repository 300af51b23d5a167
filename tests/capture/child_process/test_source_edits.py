"""`--let NAME=VALUE` replaces the values that a script assigns, and nothing else."""

from __future__ import annotations

import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.capture.child_process.source_edits import SourceValues
from placement_checks.core.errors import InputError

SCRIPT = Path("train.py")


def after(source: str, **let: str) -> dict[str, Any]:
    """The names of a script after its run."""
    return after_dotted(source, let)


def after_dotted(source: str, let: dict[str, str]) -> dict[str, Any]:
    namespace: dict[str, Any] = {"SimpleNamespace": SimpleNamespace}
    values = SourceValues(let)
    exec(values.compile_main(SCRIPT, textwrap.dedent(source).encode()), namespace)
    values.check()
    return namespace


def compile_script(path: Path, source: bytes, let: dict[str, str]) -> CodeType:
    return SourceValues(let).compile_main(path, source)


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
def test_assignments_in_a_script(source: str) -> None:
    assert after(source, n="4")["n"] == 4


def test_other_names_keep_their_values() -> None:
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
def test_values_of_each_type(text: str, value: Any) -> None:
    found = after("n = 8", n=text)["n"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", "0"), ("1.50", "1.50"), ("0,1", "0,1"), ("'x'", "x"), ("None", None), ("True", True)],
)
def test_a_number_becomes_a_string_in_place_of_a_string(text: str, value: Any) -> None:
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
def test_expressions_are_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        after("n = 8", n=text)

    assert str(error.value) == (
        f"--let n={text}: must be a literal; expressions are not evaluated; write a value such "
        "as 4, [0, 1] or [{gpu_list}]; a string in quotes: \"'text'\""
    )


def test_an_expression_becomes_a_string_in_place_of_a_string() -> None:
    assert after("day = '2020-11-12'", day="2021-12-24")["day"] == "2021-12-24"
    assert after("name = 'x'", name="model(1)")["name"] == "model(1)"


@given(st.text())
def test_any_text_is_allowed_in_place_of_a_string(text: str) -> None:
    assert "n" in after("n = 'x'", n=text)


def test_lines_and_the_name_of_the_file_are_as_before() -> None:
    source = b'"""Text."""\n\nn, m = (\n    8,\n    9,\n)\n1 / 0\n'
    with pytest.raises(ZeroDivisionError) as raised:
        exec(compile_script(SCRIPT, source, {"n": "[\n1,\n2]", "m": "4"}), {})

    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno) == ("train.py", 7)


def test_a_new_value_has_the_position_of_the_old_one() -> None:
    code = compile_script(SCRIPT, b"\n\nn = 8\n", {"n": "[1,\n2]"})

    assert {line for *_, line in code.co_lines()} <= {0, 3}  # 0 is where the module begins


def instructions(code: CodeType) -> list[Any]:
    inner = [instructions(each) for each in code.co_consts if isinstance(each, CodeType)]
    return [code.co_code, code.co_names, code.co_flags, list(code.co_positions()), *inner]


def test_without_values_the_code_is_unchanged() -> None:
    source = Path(__file__).read_bytes()

    code = compile_script(SCRIPT, source, {})

    assert instructions(code) == instructions(compile(source, "train.py", "exec"))


def test_future_imports_of_this_package_do_not_apply_to_scripts() -> None:
    assert after("x: 1 / 1 = 2", x="3")["__annotations__"] == {"x": 1.0}


@pytest.mark.parametrize(
    "source",
    [
        "# -*- coding: latin-1 -*-\nx = 'é'\nn = 8".encode("latin-1"),
        b"\xef\xbb\xbfx = '\xc3\xa9'\nn = 8",
        "x = 'é'\r\nn = 8\r\n".encode(),
    ],
)
def test_the_encoding_declaration_applies(source: bytes) -> None:
    namespace: dict[str, Any] = {}
    exec(compile_script(SCRIPT, source, {"n": "ü"}), namespace)
    assert (namespace["x"], namespace["n"]) == ("é", "ü")


@pytest.mark.parametrize(
    ("source", "let", "message", "fix"),
    [
        ("n_gpus = 3", "n_gpu", "n_gpu", "did you mean 'n_gpus'?"),
        ("def c(): c.num_gpus = 3", "num_gpus", "num_gpus", "did you mean 'c.num_gpus'?"),
        ("num_gpus = 3", "c.num_gpus", "c.num_gpus", "did you mean 'num_gpus'?"),
        ("def f(): configuration.n = 3", "n", "n", "did you mean 'configuration.n'?"),
        ("a = 1\nb, c = 2, 3", "zzz", "zzz", "train.py assigns to a, b and c"),
        ("def f():\n    a = b[0] = 1\n    f().c = a = 2", "zzz", "zzz", "train.py assigns to a"),
        (
            "a = b = c = d = e = f = g = 1",
            "zzz",
            "zzz",
            "train.py assigns to a, b, c, d, e, f and 1 more",
        ),
        ("pass", "n", "n", "train.py assigns to no name"),
        ("x = 0\nn: int", "n", "n", "train.py assigns to x"),
        ("for n in (): x = 1", "n", "n", "train.py assigns to x"),
    ],
)
def test_a_name_without_assignment(source: str, let: str, message: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        after_dotted(source, {let: "4"})

    assert error.value.object == f"--let {let}=4"
    assert error.value.message == f"no Python file of the program assigns to {message}"
    assert error.value.fix == fix


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a program. Its modules are unloaded after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def run(source: str, **let: str) -> dict[str, Any]:
    """The names of a program and its imported modules after its run."""
    values = SourceValues(let)
    namespace: dict[str, Any] = {}
    with values.in_imports():
        exec(values.compile_main(SCRIPT, source.encode()), namespace)
    values.check()
    return namespace


@pytest.mark.parametrize(
    "program",
    [
        "from settings_of_it import n",
        "import settings_of_it\nn = settings_of_it.n",
        "import importlib\nn = importlib.import_module('settings_of_it').n",
        "from importlib.util import module_from_spec as new, spec_from_file_location as spec_of\n"
        "spec = spec_of('settings', 'settings_of_it.py')\n"
        "module = new(spec)\n"
        "spec.loader.exec_module(module)\n"
        "found = module.n",
    ],
)
def test_assignments_in_a_module(folder: Path, program: str) -> None:
    (folder / "settings_of_it.py").write_text("n = 8\nm = n + 1\n")

    found = run(program, n="4")

    assert found.get("n", found.get("found")) == 4
    assert not (folder / "__pycache__").exists()


def test_a_module_keeps_the_variables_of_its_functions(folder: Path) -> None:
    (folder / "settings_of_it.py").write_text(
        "class Config:\n    n = 8\n    def __init__(self): self.m = 9\n"
        "def rows():\n    n = 7\n    return n\n"
        "async def more():\n    n = 7\n"
        "n = 6\n"
    )

    found = run(
        "from settings_of_it import *\nfound = Config.n, n, rows(), Config().m",
        **{"n": "4", "self.m": "5"},
    )

    assert found["found"] == (4, 4, 7, 5)


def test_a_module_of_a_library_keeps_its_values(folder: Path) -> None:
    with pytest.raises(InputError, match="no Python file of the program assigns"):
        run("import this", d="4")


def test_a_name_of_the_main_file_and_of_a_module(folder: Path) -> None:
    (folder / "settings_of_it.py").write_text("n = 8\n")

    found = run("import settings_of_it\nn = 9\nfound = settings_of_it.n, n", n="4")

    assert found["found"] == (4, 4)


def test_a_module_without_the_name_is_imported_unchanged(folder: Path) -> None:
    (folder / "settings_of_it.py").write_text("m = 8\n")

    run("import settings_of_it\nn = 9", n="4")

    assert (folder / "__pycache__").exists()


def test_an_invalid_module_is_an_ordinary_syntax_error(folder: Path) -> None:
    (folder / "settings_of_it.py").write_text("n = = 8\n")

    with pytest.raises(SyntaxError, match="invalid syntax"):
        run("import settings_of_it", n="4")


def test_an_expression_is_refused_even_if_the_program_continues(folder: Path) -> None:
    (folder / "settings_of_it.py").write_text("n = 8\n")

    with pytest.raises(InputError, match=r"^--let n=2\*3: must be a literal"):
        run("try:\n    import settings_of_it\nexcept Exception: pass", n="2*3")


def test_names_of_modules_are_suggested(folder: Path) -> None:
    (folder / "settings_of_it.py").write_text("num_gpus = 8\n")

    with pytest.raises(InputError, match=r"to num_gpu; did you mean 'num_gpus'\?$"):
        run("import settings_of_it", num_gpu="4")


def test_a_name_within_a_function_of_a_module(folder: Path) -> None:
    (folder / "settings_of_it.py").write_text("def f():\n    n = 8\n")

    with pytest.raises(InputError) as error:
        run("import settings_of_it", n="4")

    assert str(error.value) == (
        "--let n=4: no Python file of the program assigns to n outside of a function; "
        "settings_of_it.py:2 assigns to it inside a function, but local variables are replaced "
        "only in the main file; make it a module variable"
    )


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("train.yaml", "model:\n  # num_gpus: 1\n  num_gpus: 8\n", 3),
        ("train.yml", "num_gpus_too: 3\nmodel: {depth: 1, num_gpus: 8}\n", 2),
        ("train.json", '{"depth": 1, "num_gpus": 8}', 1),
        ("train.ini", "[train]\nnum_gpus=8\n", 2),
        ("train.toml", "[train]\nnum_gpus = 8\n", 2),
        ("train.gin", "train.depth = 2\ntrain.num_gpus = 8\n", 2),
    ],
)
def test_a_number_in_a_configuration_file(folder: Path, name: str, text: str, line: int) -> None:
    (folder / "configs").mkdir()
    (folder / "configs" / name).write_text(text)
    (folder / "configs" / "other.json").write_text('{"num_gpus": 1}')

    with pytest.raises(InputError) as error:
        run(f"text = open('configs/{name}').read()", num_gpus="4")

    stem, _, suffix = name.partition(".")
    assert str(error.value) == (
        "--let num_gpus=4: no Python file of the program assigns to num_gpus; "
        f"configs/{name}:{line} sets it, but values in configuration files are not replaced; "
        f"write the number into configs/{name}, or make a copy of the file for each number of "
        f"GPUs "
        f"and name it in the arguments: configs/{stem}_{{gpus}}.{suffix}"
    )


def test_a_configuration_file_that_does_not_set_it(folder: Path) -> None:
    (folder / "train.yaml").write_text("# num_gpus: 8\nnum_gpus_too: 9\n")

    with pytest.raises(InputError, match=r"to num_gpus; train\.py assigns to text$"):
        run("text = open('train.yaml').read()", num_gpus="4")


def test_several_values() -> None:
    found = after("a = 1\nb = 2\nc = a, b", a="3", b="'a = 9'")
    assert found["c"] == (3, "a = 9")
