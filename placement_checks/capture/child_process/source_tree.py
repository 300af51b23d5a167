"""Makes a program import modules from a copy of its repository, not from the working tree.

The program finds the copy wherever it would find the repository: as its working directory, in
``sys.path`` and PYTHONPATH, and through the finders of editable installs. Only a module that is
loaded by its absolute path still comes from the working tree; `check_imports` reports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from placement_checks.core.errors import InputError
from placement_checks.core.target import Script, SourceTree
from placement_checks.targets.revisions import GIT_VARIABLES
from placement_checks.util.imports import Others, Redirector

_PACKAGE = __name__.partition(".")[0]
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PYTHON_PATH = "PYTHONPATH"


def enter_tree(script: Script, tree: SourceTree) -> Script:
    """Prepare this process to run a program of the copy, which is its working directory.

    Returns:
        The program, with the path of its file in the copy.
    """
    os.environ["PWD"] = str(Path.cwd())
    for name in GIT_VARIABLES:
        os.environ.pop(name, None)
    sys.path[:] = [_redirect(path, tree) for path in sys.path]
    if _PYTHON_PATH in os.environ:
        paths = os.environ[_PYTHON_PATH].split(os.pathsep)
        os.environ[_PYTHON_PATH] = os.pathsep.join(_redirect(path, tree) for path in paths)
    for name, _ in _wrong_modules(tree):  # such as a package with rules of the user
        del sys.modules[name]
    Redirector(partial(_find_spec, tree=tree)).install()
    target = replace(script.target, path=_redirect(script.target.path, tree))
    return replace(script, target=target)


def check_imports(target: str, tree: SourceTree) -> None:
    """Check that no module of the working tree was imported.

    Raises:
        InputError: the program loaded a module by its absolute path.
    """
    for name, file in _wrong_modules(tree):
        raise InputError(
            target,
            f"it imports {name} from the working tree, {file.relative_to(tree.repository)}, and "
            f"not from {tree.revision}",
            "import it by name, or load it by a path relative to __file__, in both revisions",
        )


def _wrong_modules(tree: SourceTree) -> Sequence[tuple[str, Path]]:
    """The names of imported modules from the working tree, with their resolved paths."""
    return [
        (name, _resolve(file))
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] != _PACKAGE and (file := _file_of(module))
        if _is_in_repository(file, tree)
    ]


def _file_of(module: ModuleType) -> str | None:
    try:
        file = module.__file__
    except Exception:  # a lazy module may run any code
        return None
    return file if isinstance(file, str) else None


def _is_in_repository(path: str, tree: SourceTree) -> bool:
    """Whether a path is in the working tree, but not in an environment with installed packages."""
    if not Path(path).is_absolute():  # relative to the working directory, the copy
        return False
    place = _resolve(path)
    if not place.is_relative_to(tree.repository) or place.is_relative_to(tree.root):
        return False
    if not _INSTALLED.isdisjoint(place.parts):
        return False
    prefix = Path(sys.prefix).resolve()
    return not (prefix.is_relative_to(tree.repository) and place.is_relative_to(prefix))


def _resolve(path: str) -> Path:
    """Resolve symbolic links in a path. The lookup of the directory is cached."""
    folder, name = os.path.split(path)
    file = _resolve_directory(folder) / name
    return file.resolve() if name in ("", "..") or file.is_symlink() else file


@cache
def _resolve_directory(path: str) -> Path:
    return Path(path).resolve()


def _redirect(path: str, tree: SourceTree) -> str:
    """Convert a path in the working tree to a path in the copy. Other paths are unchanged."""
    if not _is_in_repository(path, tree):
        return path
    return str(tree.counterpart(Path(path).resolve()))


def _find_spec(name: str, others: Others, tree: SourceTree) -> ModuleSpec | None:
    """Find a module in the copy, if the other finders find it in the working tree."""
    if name.partition(".")[0] == _PACKAGE:
        return None
    spec = others()
    return None if spec is None else _redirect_spec(spec, tree)


def _redirect_spec(spec: ModuleSpec, tree: SourceTree) -> ModuleSpec:
    """Return the spec of the same module in the copy.

    Raises:
        ModuleNotFoundError: the copy lacks the module.
    """
    places = spec.submodule_search_locations
    folders = None if places is None else list(places)
    if spec.origin is None and folders is not None:  # a namespace package
        if not any(_is_in_repository(folder, tree) for folder in folders):
            return spec
        found = [_redirect(folder, tree) for folder in folders]
        namespace = ModuleSpec(spec.name, None, is_package=True)
        namespace.submodule_search_locations = list(filter(os.path.isdir, found))
        return namespace
    if spec.origin is None or not _is_in_repository(spec.origin, tree):
        return spec
    file = _redirect(spec.origin, tree)
    if not Path(file).exists():
        raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name)
    if folders is not None:
        folders = [_redirect(folder, tree) for folder in folders]
    redirected = spec_from_file_location(spec.name, file, submodule_search_locations=folders)
    assert redirected is not None
    return redirected
