"""Runs a program as ``python train.py …`` or ``python -m package.train …`` would run it."""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from placement_checks.core.errors import InputError
from placement_checks.core.script import Script
from placement_checks.loading.watch.source_values import SourceValues


def run_as_main(script: Script, values: SourceValues) -> None:
    """Run a program as the main module of this process.

    Args:
        script: the program.
        values: those that it gets in place of its own.

    Raises:
        InputError: there is no such program, or it is no Python 3.
    """
    if script.target.endswith(".py"):
        file, spec = Path(script.target).resolve(), None
        sys.path.insert(0, str(file.parent))
    else:
        sys.path.insert(0, str(Path.cwd()))
        spec = _spec_of(script.target)
        file = Path(str(spec.origin))
    main = ModuleType("__main__")
    main.__file__ = str(file)
    main.__spec__ = spec
    main.__package__ = spec.parent if spec else None
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [script.target if spec is None else str(file), *script.args]
    code = values.compile_main(file, file.read_bytes())
    with values.in_imports():
        exec(code, main.__dict__)


def _spec_of(module: str) -> ModuleSpec:
    """The module that ``python -m`` runs: of a package that is its ``__main__``.

    Raises:
        InputError: there is no such module.
    """
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{module}.__main__")
    if spec is None or spec.origin is None or not spec.has_location:
        raise InputError(
            module,
            "is no program: there is no such module, or it is a package without a __main__",
            "name a file, path/to/train.py, or a module as python -m takes it",
        )
    return spec


def programs_started() -> Sequence[str]:
    """The Python programs that this process starts from now on; the list grows."""
    started: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and isinstance(args[1], list | tuple):
            command = [os.fsdecode(word) for word in args[1]]
            if "python" in Path(command[0]).name and any(word.endswith(".py") for word in command):
                started.append(" ".join(["python", *command[1:]]))

    sys.addaudithook(hook)
    return started
