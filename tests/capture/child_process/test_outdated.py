from __future__ import annotations

import builtins
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


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("for i in xrange(3): pass", "it uses xrange"),
        ("isinstance('', unicode)", "it uses unicode"),
        ("isinstance('', basestring)", "it uses basestring"),
        ("raw_input('name?')", "it uses raw_input"),
        ("reduce(max, [1, 2])", "it uses reduce"),
        ("{}.iteritems()", "it uses dict.iteritems"),
        ("collections.OrderedDict().has_key(1)", "it uses OrderedDict.has_key"),
        ("iter([1]).next()", "it uses list_iterator.next"),
        ("(i for i in [1]).next()", "it uses generator.next"),
        ("'text'.decode('utf-8')", "it uses str.decode"),
        ("{}.values() + [1]", "it uses dict.values() as a list"),
        ("[1] + {}.keys()", "it uses dict.keys() as a list"),
        ("{1: 2}.items()[0]", "it uses dict.items() as a list"),
        ("{}.keys().sort()", "it uses dict.keys() as a list"),
        ("range(3) + [1]", "it uses range() as a list"),
        ("range(3)[0] = 1", "it uses range() as a list"),
        ("map(str, [1])[0]", "it uses map() as a list"),
        ("len(zip([1], [2]))", "it uses zip() as a list"),
        ("filter(None, [1]).append(2)", "it uses filter() as a list"),
        ("import cPickle", "it imports cPickle"),
        ("import cPickle as pickle", "it imports cPickle"),
        ("from StringIO import StringIO", "it imports StringIO"),
        ("from itertools import izip", "it imports itertools.izip"),
        ("import urllib.request; urllib.urlopen('x')", "it uses urllib.urlopen"),
        ("import sys; sys.maxint", "it uses sys.maxint"),
    ],
)
def test_code_of_python_2(file: Path, line: str, cause: str) -> None:
    with pytest.raises(InputError) as caught:
        run(f"import collections\n{line}", file)

    assert str(caught.value) == (
        f"train.py:2 is written in Python 2: {cause}; convert it to Python 3, for "
        "example with 2to3; placement-checks does not convert it"
    )


@pytest.mark.parametrize(
    "line",
    [
        "[].iteritems()",
        "'text'.no_such_method()",
        "{}.values().no_such_method()",
        "range(3)()",
        "[1] + 2",
        "from itertools import no_such_name",
        "next(1)",
    ],
)
def test_errors_of_python_3_do_not_mention_python_2(file: Path, line: str) -> None:
    with pytest.raises((AttributeError, ImportError, TypeError)) as caught:
        run(line, file)

    assert not isinstance(caught.value, InputError)


@pytest.mark.parametrize("has_hook", [False, True], ids=["", "below an import hook"])
def test_an_implicit_relative_import(
    file: Path, monkeypatch: pytest.MonkeyPatch, has_hook: bool
) -> None:
    original = builtins.__import__
    if has_hook:
        code = "lambda *args, **kwargs: original(*args, **kwargs)"
        hook = eval(compile(code, tf.__file__, "eval"), {"original": original})
        monkeypatch.setattr(builtins, "__import__", hook)
    package = file.parent / "models_of_python_2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "layers_of_python_2.py").touch()
    (package / "network.py").write_text("import os\nfrom layers_of_python_2 import dense\n")

    with pytest.raises(InputError) as caught:
        run("import models_of_python_2.network", file)

    assert (
        "models_of_python_2/network.py:2 is written in Python 2: it imports layers_of_python_2 by "
        "an implicit relative import; convert it" in str(caught.value)
    )


def test_a_missing_package_is_not_an_implicit_relative_import(file: Path) -> None:
    package = file.parent / "models_of_today"
    package.mkdir()
    (package / "__init__.py").write_text("import nosuchmodule\n")

    with pytest.raises(ModuleNotFoundError, match="nosuchmodule"):
        run("import models_of_today", file)


def test_the_users_line_is_named_if_a_library_raises(file: Path) -> None:
    with pytest.raises(
        InputError, match=r"^train\.py:2 is written in Python 2: it uses dict\.val"
    ):
        run("import os.path\ntf.nest.map_structure(lambda _: {}.values() + [1], [1])", file)


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
