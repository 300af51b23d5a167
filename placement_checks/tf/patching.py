"""How names of TensorFlow and Keras are looked up and patched."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from placement_checks.core.errors import InputError

Around = Callable[[Callable[..., Any]], Callable[..., Any]]
Patched = contextlib.AbstractContextManager[None]


@contextlib.contextmanager
def patched(owner: Any, name: str, around: Around) -> Iterator[None]:
    """Let ``around(original)`` take the place of a function or method of TensorFlow."""
    original = existing(owner, name)
    is_inherited = name not in vars(owner)
    setattr(owner, name, around(original))
    try:
        yield
    finally:
        if is_inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


@contextlib.contextmanager
def all_patched(owner: Any, functions: Mapping[str, Around]) -> Iterator[None]:
    """Patch several functions or methods, by their names."""
    with contextlib.ExitStack() as stack:
        for name, around in functions.items():
            stack.enter_context(patched(owner, name, around))
        yield


def eager_context() -> Any:
    """What eager code of this process runs in."""
    return existing_in("tensorflow.python.eager.context", "context")()


def existing_in(module: str, name: str) -> Any:
    """What a module of TensorFlow or Keras calls so; raises `InputError` where it is gone."""
    return existing(existing_module(module), name)


def existing_module(name: str) -> Any:
    """A module of TensorFlow or Keras; raises `InputError` where it is gone."""
    try:
        return import_module(name)
    except ImportError:
        raise _gone(name) from None


def existing(owner: Any, name: str) -> Any:
    """An attribute of a module, class or object of theirs; raises `InputError` if it is gone."""
    try:
        return getattr(owner, name)
    except AttributeError:
        holder = getattr(owner, "__name__", type(owner).__name__)
        raise _gone(f"{holder}.{name}") from None


def _gone(name: str) -> InputError:
    """The error for a version of TensorFlow or Keras that has no such name."""
    import tensorflow as tf

    keras = getattr(sys.modules.get("keras"), "__version__", "")
    return InputError(
        "tensorflow",
        f"version {tf.__version__}{keras and f' with Keras {keras}'} has no {name}, which this "
        "package needs",
        "install one from 2.15 (with Keras 2) to 2.21 (with Keras 3.15)",
    )
