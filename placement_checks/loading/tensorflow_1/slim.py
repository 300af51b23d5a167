"""tf_slim, which is most of what programs use of ``tf.contrib``."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from functools import cache
from types import ModuleType

PACKAGE = "tf_slim"


@cache
def is_installed() -> bool:
    """Whether it is."""
    return importlib.util.find_spec(PACKAGE) is not None


def modules_named(name: str, package: str) -> list[ModuleType]:
    """Its modules of this name; those first that are in a package of the other name."""
    names = [module for module in _names() if module.rpartition(".")[2] == name]
    names.sort(key=lambda module: package not in module.split("."))
    return [importlib.import_module(module) for module in names]


@cache
def _names() -> tuple[str, ...]:
    if not is_installed():
        return ()
    path = importlib.import_module(PACKAGE).__path__
    modules = pkgutil.walk_packages(path, f"{PACKAGE}.")
    return tuple(module.name for module in modules if not module.name.endswith("_test"))
