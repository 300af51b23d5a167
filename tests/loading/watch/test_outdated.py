from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.loading.watch.outdated import explain_outdated

V1 = "; add --v1 if it means TensorFlow 1 by import tensorflow"


def run(code: str, file: Path, *, is_v1: bool = False) -> None:
    file.write_text(code)
    with explain_outdated("train.py", is_v1=is_v1):
        exec(compile(code, str(file), "exec"), {"tf": tf, "__name__": "__main__"})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path / "train.py"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("tf.placeholder(tf.float32)", "AttributeError: module 'tensorflow' has no attribute"),
        ("tf.train.AdamOptimizer(1)", "AttributeError: module 'tensorflow._api.v2.train' has no"),
        ("import tensorflow.contrib.slim", "ModuleNotFoundError: No module named 'tensorflow.co"),
        ("from tensorflow import Session", "ImportError: cannot import name 'Session' from"),
    ],
)
def test_what_version_1_had_is_asked_of_version_2(file: Path, code: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        run(code, file)

    said = str(caught.value)
    assert said.startswith(f"train.py: before its first training step it raised {reason}")
    assert said.endswith(V1)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import nosuchmodule", ModuleNotFoundError),
        ("[].placeholder", AttributeError),
        ("step", NameError),
    ],
)
def test_other_errors_are_the_programs_own(file: Path, code: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(code, file)


def test_with_version_1_nothing_is_said_of_it(file: Path) -> None:
    with pytest.raises(AttributeError):
        run("tf.nosuchname", file, is_v1=True)


def test_names_of_python_2(file: Path) -> None:
    with pytest.raises(InputError) as caught:
        run("n = 3\nfor i in xrange(n): pass", file)

    assert str(caught.value) == (
        "train.py:2 is code of Python 2: it uses xrange; convert it to Python 3, as 2to3 does; "
        "nothing is converted here"
    )


def test_a_module_of_python_2(file: Path) -> None:
    (file.parent / "model_of_python_2.py").write_text("import os\nprint 'x'\n")

    with pytest.raises(InputError, match=r"^model_of_python_2.py:2 is code of Python 2: a print"):
        run("import model_of_python_2", file)
