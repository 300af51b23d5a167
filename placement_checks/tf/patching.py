"""Look up and patch functions and methods of Python, TensorFlow and Keras.

How a patch is made and undone:

1. `patches.Patch` lists the attributes that may be patched.
2. A caller writes a wrapper factory (`Around`): a function that receives the original function and
   returns its replacement. The replacement usually calls the original, before or after its own
   work::

       def recording(take):                      # receives the original
           def take_and_record(*args, **kwargs):  # replaces it
               gradients = take(*args, **kwargs)
               recorded.append(gradients)
               return gradients
           return take_and_record

3. Entering the context manager replaces the attribute: ``with patched(Patch.GRADIENTS,
   recording): …``. Leaving the block, also by an exception, restores it. If the class inherits the
   method, the replacement is deleted, so that the inherited method is visible again.

Patches of the same attribute nest: the second replacement receives the first as its original.
Blocks must therefore close in reverse order, which ``with`` and `contextlib.ExitStack` guarantee.
A patch applies to all threads of the process. If TensorFlow lacks the attribute, entering the
block raises an `InputError`, and nothing is patched.

The other functions look up modules and attributes that the installed version may lack.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from placement_checks.core.errors import InputError
from placement_checks.tf.patches import EXTENDED_MODULES, Patch

Around = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextlib.contextmanager
def patched(patch: Patch, around: Around) -> Iterator[None]:
    """Replace an attribute by ``around(original)`` until the block ends.

    Raises:
        InputError: the installed TensorFlow or Keras lacks the attribute.
    """
    name = patch.attribute
    try:
        owner = patch.find_owner()
        original = getattr(owner, name)
    except (ImportError, AttributeError):
        raise _missing_name(patch.path) from None
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
def all_patched(patches: Mapping[Patch, Around]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch, around in patches.items():
            stack.enter_context(patched(patch, around))
        yield


@contextlib.contextmanager
def add_names(module: ModuleType, names: Mapping[str, Any]) -> Iterator[None]:
    """Add names to one of `EXTENDED_MODULES` until the block ends; existing names stay."""
    assert module.__name__ in EXTENDED_MODULES
    new = {name: value for name, value in names.items() if name not in vars(module)}
    for name, value in new.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name in new:
            with contextlib.suppress(AttributeError):
                delattr(module, name)


def afterwards(note: Callable[[Any, Any, Mapping[str, Any]], object]) -> Around:
    """Return a factory for methods: ``note`` gets the object, result and keywords of each call."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            note(self, result, kwargs)
            return result

        return method

    return around


def around_builtin(replacement: Callable[..., Any]) -> Around:
    """Return a factory that replaces a builtin function by ``replacement(original, …)``.

    The result is a `partial`: a plain function would become a method in classes that store the
    builtin as an attribute.
    """
    return lambda original: functools.update_wrapper(
        functools.partial(replacement, original), original
    )


def module_or_none(name: str) -> ModuleType | None:
    """Import a module; return None if the module or one of its packages does not exist.

    Raises:
        ModuleNotFoundError: the module exists, but imports a module that does not exist.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def internal_module(path: str) -> ModuleType | None:
    """A module below ``tensorflow.python``, such as ``ops.nccl_ops``; None if it is missing."""
    return module_or_none(f"tensorflow.python.{path}")


def eager_context() -> Any:
    """The eager context of this process."""
    return existing_in("tensorflow.python.eager.context", "context")()


def existing_in(module: str, name: str) -> Any:
    """An attribute of a module of TensorFlow or Keras; `InputError` if either is missing."""
    return existing(existing_module(module), name)


def existing_module(name: str) -> Any:
    """A module of TensorFlow or Keras; `InputError` if it is missing."""
    try:
        return import_module(name)
    except ImportError:
        raise _missing_name(name) from None


def existing(owner: Any, name: str) -> Any:
    """An attribute of a module, class or object; `InputError` if it is missing."""
    try:
        return getattr(owner, name)
    except AttributeError:
        holder = getattr(owner, "__name__", type(owner).__name__)
        raise _missing_name(f"{holder}.{name}") from None


def _missing_name(name: str) -> InputError:
    import tensorflow as tf

    keras = getattr(sys.modules.get("keras"), "__version__", "")
    return InputError(
        "tensorflow",
        f"version {tf.__version__}{keras and f' with Keras {keras}'} has no {name}, which this "
        "package needs",
        "install a version from 2.15 (with Keras 2) to 2.21 (with Keras 3.15)",
    )
