"""The image functions that scipy removed from ``scipy.misc``, implemented with Pillow."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.tf.patching import add_names, module_or_none
from placement_checks.tf1.lazy_modules import NotInstalled
from placement_checks.util.imports import Load, Others, Redirector, around_loading, created_module

_NAME = "scipy.misc"
_FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "cubic": 3}

Array = npt.NDArray[Any]


@contextlib.contextmanager
def scipy_misc() -> Iterator[None]:
    """Restore the image functions of ``scipy.misc`` in this block, before or after its import.

    If scipy has removed the module, it is created.
    """
    with contextlib.ExitStack() as stack:

        def add_functions(module: ModuleType) -> None:
            stack.enter_context(add_names(module, _FUNCTIONS))

        def load(own: Load, module: ModuleType) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of the module itself
                own(module)
            add_functions(module)

        def find(name: str, others: Others) -> ModuleSpec | None:
            if name != _NAME:
                return None
            if spec := others():
                return around_loading(spec, load)
            stack.callback(sys.modules.pop, name, None)
            return created_module(name, lambda: ModuleType(name), add_functions)

        if _NAME in sys.modules:
            add_functions(sys.modules[_NAME])
        stack.enter_context(Redirector(find))
        yield


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
