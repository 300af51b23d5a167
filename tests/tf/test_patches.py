"""The list of patches agrees with the installed TensorFlow and Keras, and with the package."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import tensorflow as tf

import placement_checks
from placement_checks.core.errors import InputError
from placement_checks.tf.keras import comes_with_keras_2
from placement_checks.tf.patches import EXTENDED_MODULES, Patch
from placement_checks.tf.patching import add_names, patched

KERAS = "Keras 2" if comes_with_keras_2() else "Keras 3"
HERE = [patch for patch in Patch if patch.only in ("", KERAS)]


@pytest.mark.smoke
def test_the_installed_version_has_all_patched_names() -> None:
    missing = [patch.path for patch in HERE if not _has_name(patch)]
    assert not missing, "\n".join(missing)


def _has_name(patch: Patch) -> bool:
    try:
        return hasattr(patch.find_owner(), patch.attribute)
    except (ImportError, AttributeError):
        return False


def test_patches_are_undone() -> None:
    left = []
    for patch in HERE:
        owner = patch.find_owner()
        before = vars(owner).get(patch.attribute)
        with patched(patch, lambda original: original):
            pass
        if vars(owner).get(patch.attribute) is not before:
            left.append(patch.path)

    assert not left, "\n".join(left)


def test_a_removed_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients_util = sys.modules["tensorflow.python.ops.gradients_util"]
    monkeypatch.delattr(gradients_util, "_GradientsHelper")

    with pytest.raises(InputError) as error, patched(Patch.GRADIENTS, lambda original: original):
        pass

    assert str(error.value).startswith(f"tensorflow: version {tf.__version__}")
    assert " has no tensorflow.python.ops.gradients_util._GradientsHelper, " in str(error.value)
    assert "2.15" in error.value.fix


def test_patches_are_undone_after_exceptions() -> None:
    before = tf.Graph.device

    with contextlib.suppress(ZeroDivisionError):
        with patched(Patch.GRAPH_SCOPE, lambda _: lambda *_: None):
            assert tf.Graph.device is not before
            raise ZeroDivisionError

    assert tf.Graph.device is before


def test_modules_that_get_names_exist() -> None:
    # `tf1.scipy_misc` creates scipy.misc if scipy lacks it.
    for name in EXTENDED_MODULES.keys() - {"scipy.misc"}:
        import_module(name)


def test_every_patch_is_used() -> None:
    package = Path(placement_checks.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    used = {name for text in texts for name in re.findall(r"\bPatch\.([A-Z_0-9]+)\b", text)}

    assert used == set(Patch.__members__)


def replaced(tree: ast.AST) -> Iterator[str]:
    """The attributes of imported modules and classes that a module assigns, other than `sys`."""
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
                if not isinstance(owner, ast.Name) or owner.id != "self":
                    yield ast.unparse(node)
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                path = ast.unparse(node)
                if path.partition(".")[0] in imported - {"sys"} and "(" not in path:
                    yield path


def test_nothing_else_replaces_an_attribute() -> None:
    package = Path(placement_checks.__file__).parent
    found = {
        (path.relative_to(package).as_posix(), name)
        for path in package.rglob("*.py")
        for name in replaced(ast.parse(path.read_text(encoding="utf-8")))
    }

    assert {name for file, name in found if file != "tf/patching.py"} == {
        # A module that is made for programs, and subpackages that Python would have bound.
        "setattr(self.module, name, getattr(tensorflow, name, None))",
        "setattr(tensorflow, directory, module)",
        "tempfile.tempdir",  # in a new process
    }


def test_purposes_of_two_patches_of_an_attribute_differ() -> None:
    assert len({(patch.path, patch.purpose) for patch in Patch}) == len(Patch)


def test_keras_is_patched_once_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    assert not Patch.KERAS_3_APPLY.is_loaded
    keras = ModuleType("keras")
    monkeypatch.setitem(sys.modules, "keras", keras)

    vars(keras)["__version__"] = "3.15.0"
    assert (Patch.KERAS_3_APPLY.is_loaded, Patch.KERAS_2_APPLY.is_loaded) == (True, False)
    vars(keras)["__version__"] = "2.15.0"
    assert (Patch.KERAS_3_APPLY.is_loaded, Patch.KERAS_2_APPLY.is_loaded) == (False, True)
    assert Patch.V1_APPLY.is_loaded


def test_missing_names_are_added() -> None:
    module = ModuleType("fractions")
    vars(module)["a"] = 1

    with add_names(module, {"a": 2, "b": 3}):
        assert (vars(module)["a"], vars(module)["b"]) == (1, 3)
        del vars(module)["b"]  # by other code

    assert (vars(module)["a"], "b" in vars(module)) == (1, False)


def test_names_are_added_to_listed_modules_only() -> None:
    with pytest.raises(AssertionError), add_names(ModuleType("unlisted"), {}):
        pass
