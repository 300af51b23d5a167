from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import tensorflow as tf

from placement_checks.capture.child_process.source_errors import explain_outdated
from placement_checks.core.errors import InputError

V1 = "; add --v1 if the program is written for TensorFlow 1"


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
def test_names_that_version_2_removed_suggest_version_1(
    file: Path, code: str, reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        run(code, file)

    message = str(caught.value)
    assert message.startswith(f"train.py: before its first training step it raised {reason}")
    assert message.endswith(V1)


@pytest.mark.skipif(hasattr(tf, "estimator"), reason="TensorFlow has estimators")
@pytest.mark.parametrize("is_v1", [False, True])
def test_estimators_need_an_older_tensorflow(file: Path, is_v1: bool) -> None:
    with pytest.raises(
        InputError, match=r"; use TensorFlow 2.15, the last version with estimators"
    ):
        run("tf.compat.v1.estimator.RunConfig()", file, is_v1=is_v1)


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


def test_version_1_raises_no_warning(file: Path) -> None:
    with pytest.raises(AttributeError):
        run("tf.nosuchname", file, is_v1=True)


def test_a_module_of_python_2(file: Path) -> None:
    (file.parent / "model_of_python_2.py").write_text("import os\nprint 'x'\n")

    with pytest.raises(
        InputError, match=r"^model_of_python_2.py:2 is written in Python 2: it has a print"
    ):
        run("import model_of_python_2", file)


def test_a_module_of_python_2_in_an_archive(file: Path) -> None:
    archive = file.parent / "modules.zip"
    with ZipFile(archive, "w") as modules:
        modules.writestr("packed_model_of_python_2.py", "import os\nprint 'x'\n")
    sys.path.insert(0, str(archive))

    with pytest.raises(
        InputError, match=r"^modules.zip/packed_model_of_python_2.py:2 is written in Python 2: it"
    ):
        run("import packed_model_of_python_2", file)
