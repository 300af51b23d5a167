"""The image functions that scipy removed from ``scipy.misc``, implemented with Pillow."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.tf.patching import add_names, module_or_none
from placement_checks.tf1.lazy_modules import NotInstalled

_NAME = "scipy.misc"
_FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "cubic": 3}

Array = npt.NDArray[Any]


@contextlib.contextmanager
def scipy_misc() -> Iterator[None]:
    """Restore the image functions of ``scipy.misc`` in this block, before or after its import."""
    with contextlib.ExitStack() as stack:
        if _NAME in sys.modules:
            stack.enter_context(add_names(sys.modules[_NAME], _FUNCTIONS))
        finder = _Finder(stack)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``scipy.misc``, or creates it if scipy has removed it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: object = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None:
            spec = importlib.machinery.ModuleSpec(fullname, None)
            self._stack.callback(sys.modules.pop, fullname, None)
        spec.loader = _Loader(spec.loader, self._stack)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads the module with its own loader, if any, and adds the image functions."""

    def __init__(self, own: Any, stack: contextlib.ExitStack) -> None:
        self._own = own
        self._stack = stack

    def exec_module(self, module: ModuleType) -> None:
        if self._own is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of the module itself
                self._own.exec_module(module)
        self._stack.enter_context(add_names(module, _FUNCTIONS))


def _pillow() -> Any:
    image = module_or_none("PIL.Image")
    if image is None:
        raise NotInstalled("scipy.misc", "Pillow")
    return image


def imread(name: Any, flatten: bool = False, mode: str | None = None) -> Array:
    """Read an image, in shades of gray with ``flatten``."""
    with _pillow().open(name) as picture:
        if mode is not None:
            picture = picture.convert(mode)
        elif picture.mode == "P":
            picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
        return np.array(picture.convert("F") if flatten else picture)


def imsave(name: Any, arr: Any, format: str | None = None) -> None:
    """Write an image."""
    toimage(arr).save(name, format)


def imresize(arr: Any, size: Any, interp: str = "bilinear", mode: str | None = None) -> Array:
    """Resize an image to (height, width), by a factor (a float), or by percent (an integer)."""
    picture = toimage(arr, mode=mode)
    if isinstance(size, tuple | list | np.ndarray):
        height, width = (int(length) for length in size[:2])
    else:
        factor = size / 100 if isinstance(size, int | np.integer) else size
        width, height = (int(length * factor) for length in picture.size)
    return np.array(picture.resize((width, height), resample=_FILTERS[interp]))


def toimage(
    arr: Any, cmin: float | None = None, cmax: float | None = None, mode: str | None = None
) -> Any:
    """Convert an array to a Pillow image.

    Values that are not bytes are scaled to 0 to 255, from their range or from (cmin, cmax).
    """
    array = np.asarray(arr)
    if array.dtype != np.uint8:
        array = _bytes(array.astype(float), cmin, cmax)
    if array.ndim == 3 and array.shape[2] not in (3, 4) and array.shape[0] in (3, 4):
        array = np.moveaxis(array, 0, 2)  # color channels first
    picture = _pillow().fromarray(array)
    return picture.convert(mode) if mode else picture


def _bytes(array: Array, low: float | None, high: float | None) -> Array:
    low = float(array.min()) if low is None else low
    high = float(array.max()) if high is None else high
    scaled = (array - low) * (255 / ((high - low) or 1))
    return (scaled.clip(0, 255) + 0.5).astype(np.uint8)


_FUNCTIONS = {function.__name__: function for function in (imread, imresize, imsave, toimage)}
