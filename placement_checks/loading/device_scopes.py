"""The ``with tf.device(…)`` that decided which device an op asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Frame
from placement_checks.loading.source_lines import is_users, shown
from placement_checks.loading.tf_internals.graph_building import device_scopes

# How TensorFlow writes what a scope was given: a function, with where it is defined, …
_FUNCTION = re.compile(r"(?P<name>.+)<(?P<file>.*), (?P<line>\d+)>")
# … or a tf.DeviceSpec.
_SPEC = re.compile(
    r"<DeviceSpec\(job=(?P<job>\w+), replica=(?P<replica>\w+), task=(?P<task>\w+), "
    r"device_type=(?P<type>\w+), device_index=(?P<index>\w+)\)>"
)


class _Scope(NamedTuple):
    """One scope around an op.

    Attributes:
        line: where it was opened.
        device: what it names; false for a device function.
        function: where the device function is defined that it was given; None for a device.
        clears: whether it is ``tf.device(None)``, inside which no scope around it counts.
    """

    line: Frame
    device: Device
    function: Frame | None = None
    clears: bool = False


def deciding_line(op: Any, folder: Path | None) -> Frame | None:
    """The user's line that decided the device which an op of a live graph asks for.

    That of the innermost scope that names a type of device (a job, where the op asks for no more);
    where a device function inside it chose another, that of the function. None where the op asks
    for no device, or where a library decided.
    """
    asked = Device.parse(op.device)
    scopes = [_scope(each.obj, each.filename, each.lineno) for each in device_scopes(op)]
    decided = _deciding(scopes, asked) if asked else None
    for line in () if decided is None else (decided.function, decided.line):
        if line is not None and is_users(line.file, folder):
            return line._replace(file=shown(line.file))
    return None


def _deciding(scopes: Sequence[_Scope], asked: Device) -> _Scope | None:
    """The scope that decided, of those around an op, the innermost first."""
    functions = []
    for scope in scopes:
        if scope.clears:
            break
        if scope.function is not None:
            functions.append(scope)
        elif scope.device if asked.type is None else scope.device.type is not None:
            passed = asked.matches(scope.device)
            return scope if passed or not functions else functions[0]
    return functions[0] if functions else None


@lru_cache(maxsize=4096)
def _scope(given: str, file: str, line: int) -> _Scope:
    """A scope from what TensorFlow keeps of it: where it was opened, and with what, as text."""
    opened = Frame(file, line, "")
    if given == str(None):
        return _Scope(opened, Device(), clears=True)
    if function := _FUNCTION.fullmatch(given):
        defined = Frame(function["file"], int(function["line"]), function["name"])
        return _Scope(opened, Device(), defined)
    if spec := _SPEC.fullmatch(given):
        part = {
            key: None if value == str(None) else value for key, value in spec.groupdict().items()
        }
        given = "".join(f"/{key}:{part[key]}" for key in ("job", "replica", "task") if part[key])
        given += f"/device:{part['type']}:{part['index'] or '*'}" if part["type"] else ""
    try:
        return _Scope(opened, Device.parse(given))
    except InputError:  # a device function without a line of its own, such as a partial
        return _Scope(opened, Device(), opened)
