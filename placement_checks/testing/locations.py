"""Finds the settings and the programs of a test, wherever pytest is started.

A repository may contain several projects, each with its tests and its ``pyproject.toml``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from placement_checks.verification.configuration import Config


def configuration_of(item: pytest.Item) -> Config:
    """The ``[tool.placement_checks]`` of the project of a test.

    This is the nearest one in the directory of the test or a parent directory, up to the rootdir.
    Otherwise it is read for the rootdir.

    Raises:
        ConfigError: a ``pyproject.toml`` on this way is invalid, or belongs to another user.
    """
    from placement_checks.verification import configuration

    for folder in _folders(item):
        if (folder / "pyproject.toml").is_file():
            config = configuration.load(folder)
            if config.programs or config.settings != configuration.Config().settings:
                return config
    return configuration.load(item.config.rootpath)


def _folders(item: pytest.Item) -> Iterator[Path]:
    """The directory of a test and its parent directories below the rootdir."""
    root, folder = item.config.rootpath, item.path.parent
    while folder.is_relative_to(root) and folder != root:
        yield folder
        folder = folder.parent


def find_target(target: Any, item: pytest.Item) -> Any:
    """A target with a path relative to the current directory.

    The path is looked up in the rootdir, next to the test, and in the current directory; first
    there if the test has changed the directory.
    """
    if not isinstance(target, str):
        return target
    from placement_checks.targets.forms import path_of_target

    here = Path.cwd()
    path = path_of_target(target, here)
    if not path or not target.startswith(path):
        return target
    folders = [item.config.rootpath, item.path.parent]
    if here != item.config.invocation_params.dir:
        folders.insert(0, here)
    for folder in folders:
        if (folder / path).exists():
            return os.path.relpath(folder / path) + target.removeprefix(path)
    return target


def argument_for(item: pytest.Item) -> str:
    """A test as an argument of pytest in the directory where pytest was started."""
    _, separator, name = item.nodeid.partition("::")
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    return f"{path}{separator}{name}"
