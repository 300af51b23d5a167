"""Modules that look up their attributes on access, and the names that programs use in them."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, reduce
from types import ModuleType
from typing import Any

Find = Callable[[str], Any]


class LazyModule(ModuleType):
    """A module that looks up its attributes by calling a function.

    The function may raise `AttributeError`. The module is a package, so submodules can be
    imported. The import of a submodule does not set an attribute, so a function may have the same
    name as a submodule.
    """

    def __init__(self, name: str, find: Find, names: Callable[[], Iterable[str]] = tuple) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__find = find
        self.__names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            if name == "__all__" and (names := [*self.__names()]):
                return [public for public in names if not public.startswith("_")]
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self.__find(name)

    def __setattr__(self, name: str, value: Any) -> None:
        # After importing a submodule, Python sets it as an attribute of its package.
        is_submodule = (
            isinstance(value, LazyModule) and value.__name__ == f"{self.__name__}.{name}"
        )
        if not is_submodule:
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self.__names()})


def lazy_alias(name: str, module: Callable[[], Any]) -> LazyModule:
    """A module with the attributes of another module, which is loaded on first access."""
    return LazyModule(name, lambda attribute: getattr(module(), attribute), lambda: dir(module()))


def attribute_of(owner: Any, path: Iterable[str]) -> Any:
    """Follow a path of attributes.

    Raises:
        AttributeError: an attribute is missing.
    """
    return reduce(getattr, path, owner)


@dataclass
class UsedNames:
    """Names of TensorFlow 1 that a program used in a block of `as_tensorflow_1`.

    Attributes:
        found: names with a replacement, such as ``tf.contrib.slim.losses.get_total_loss``.
        missing: names without a replacement, such as ``tf.contrib.gan.gan_model``, in the order of
            their use. The program may only have tested whether a name exists.
    """

    found: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)

    def refusal(self, name: str) -> str:
        """Record a missing name, and return the error message."""
        if name not in self.missing:
            self.missing.append(name)
        return f"{name} is not in this TensorFlow, and --v1 has no replacement"


class NotInstalled(ImportError):
    """A package that replaces a part of TensorFlow 1 is not installed."""

    def __init__(self, needed_for: str, package: str, version: str = "") -> None:
        # The message does not name the extra v1, which might install another TensorFlow.
        requirement = f"'{package}=={version}'" if version else package
        super().__init__(
            f"{needed_for} needs {package}, which is not installed; pip install {requirement}",
            name=package,
        )


TF_SLIM = "tf_slim"  # most names of ``tf.contrib`` that programs use are in this package


@cache
def has_tf_slim() -> bool:
    """Whether tf_slim is installed."""
    return importlib.util.find_spec(TF_SLIM) is not None


def tf_slim_modules(name: str, package: str) -> list[ModuleType]:
    """The modules of tf_slim with this last name; modules in ``package`` come first."""
    names = [module for module in _tf_slim_module_names() if module.rpartition(".")[2] == name]
    names.sort(key=lambda module: package not in module.split("."))
    return [importlib.import_module(module) for module in names]


@cache
def _tf_slim_module_names() -> tuple[str, ...]:
    if not has_tf_slim():
        return ()
    path = importlib.import_module(TF_SLIM).__path__
    modules = pkgutil.walk_packages(path, f"{TF_SLIM}.")
    return tuple(module.name for module in modules if not module.name.endswith("_test"))
