"""Finds the modules of a package without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules


def find_modules(*packages: str, first: str = "") -> Mapping[str, str]:
    """Return the full names of the modules in packages, by short names such as no-fallback.

    They are in alphabetical order of the short names, but ``first`` comes first. Subpackages are
    not among them. The packages may be in a zip file.
    """
    found = {
        module.name.replace("_", "-"): f"{package}.{module.name}"
        for package in packages
        for module in iter_modules(import_module(package).__path__)
        if not module.ispkg
    }
    return {name: found[name] for name in sorted(found, key=lambda name: (name != first, name))}
