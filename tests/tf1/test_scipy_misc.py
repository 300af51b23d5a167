"""Images are read, written and resized as in ``scipy.misc``; scipy is a stand-in."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placement_checks.tf1 import scipy_misc as pictures
from placement_checks.tf1.scipy_misc import scipy_misc


@pytest.fixture
def scipy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package without ``misc``."""
    names = [name for name in sys.modules if name.partition(".")[0] == "scipy"]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "scipy"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
        del sys.modules[name]


@pytest.mark.usefixtures("scipy")
def test_scipy_without_misc() -> None:
    with scipy_misc():
        module = importlib.import_module("scipy.misc")
        assert module.imread is pictures.imread

    assert "scipy.misc" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("scipy.misc")


def test_scipy_with_misc_without_the_functions(scipy: Path) -> None:
    (scipy / "misc.py").write_text(
        "import warnings\nwarnings.warn('going', DeprecationWarning)\nx = 1"
    )

    with scipy_misc():
        module = importlib.import_module("scipy.misc")
        assert (module.imsave, module.x) == (pictures.imsave, 1)

    assert sys.modules["scipy.misc"] is module
    assert not hasattr(module, "imsave")


def test_misc_was_loaded_before(scipy: Path) -> None:
    (scipy / "misc.py").write_text("def imread(): return 'own'")
    module = importlib.import_module("scipy.misc")

    with scipy_misc():
        assert module.imread() == "own"
        assert module.imresize is pictures.imresize

    assert not hasattr(module, "imresize")


@pytest.fixture
def colors() -> np.ndarray[Any, Any]:
    return np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def test_saved_images_are_read(tmp_path: Path, colors: np.ndarray[Any, Any]) -> None:
    file = tmp_path / "a.png"

    pictures.imsave(file, colors)

    assert (pictures.imread(file) == colors).all()
    assert pictures.imread(file, mode="L").shape == (4, 6)
    assert pictures.imread(str(file), flatten=True).dtype == np.float32


def test_a_picture_with_a_palette_has_colors(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("P", (3, 2)).save(tmp_path / "a.png")

    assert pictures.imread(tmp_path / "a.png").shape == (2, 3, 3)


def test_other_sizes(colors: np.ndarray[Any, Any]) -> None:
    assert pictures.imresize(colors, (2, 3)).shape == (2, 3, 3)
    assert pictures.imresize(colors, 50).shape == (2, 3, 3)
    assert pictures.imresize(colors, 2.0, interp="nearest").shape == (8, 12, 3)
    assert (pictures.imresize(colors, (4, 6)) == colors).all()
    assert pictures.imresize(colors[..., 0], [8, 12], "bicubic", mode="L").dtype == np.uint8


def test_numbers_become_shades() -> None:
    numbers = np.array([[-1.0, 0.0], [0.5, 1.0]])

    assert np.array(pictures.toimage(numbers)).tolist() == [[0, 128], [191, 255]]
    assert np.array(pictures.toimage(numbers, cmin=0, cmax=2)).tolist() == [[0, 0], [64, 128]]
    assert np.array(pictures.toimage(np.zeros((2, 2)))).tolist() == [[0, 0], [0, 0]]


def test_colors_that_come_first(colors: np.ndarray[Any, Any]) -> None:
    assert (np.array(pictures.toimage(np.moveaxis(colors, 2, 0))) == colors).all()


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)

    with pytest.raises(ImportError) as error:
        pictures.imread("a.png")

    assert str(error.value) == (
        "scipy.misc needs Pillow, which is not installed; pip install Pillow"
    )
