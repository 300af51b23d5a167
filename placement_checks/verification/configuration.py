"""Reads ``[tool.placement_checks]`` of ``pyproject.toml``::

[tool.placement_checks]
gpus = 2                          # or machine = "worker*8: gpu*4"
soft = true                       # default: the session configuration of the program
without = ["no-idle-device"]
programs = ["train.py:build_towers"]

[tool.placement_checks.policy.variables-on-host]
device = "/job:ps"

[[tool.placement_checks.programs]]      # a program with its own settings
target = "train.py:build_towers"
reference = "train.py:build_single"     # runs too, for the rules on numbers
batch = "train.py:batch"

[[tool.placement_checks.programs]]      # a whole program, until its first training step
target = "cifar10.py"
args = ["--num_gpus={gpus}"]
v1 = true
let = { BATCH = 32 }
limit = 600

[[tool.placement_checks.programs]]
target = "train.py:build_single"
gpus = 1
policy.variables-on-host.device = "/gpu:0"
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from placement_checks.core import limits
from placement_checks.core.cluster_spec import TF_CONFIG
from placement_checks.core.errors import ConfigError, InputError, UsageError
from placement_checks.core.input_files import link_fault, read_text
from placement_checks.core.settings import DEFAULTS, Settings
from placement_checks.core.toml import parse_toml
from placement_checks.targets.forms import path_of_target, rebase
from placement_checks.util.text import close_matches
from placement_checks.verification.policy import (
    collect_errors,
    convert_value,
    parse_policy,
    rule_named,
)
from placement_checks.verification.trust import check_trusted


@dataclass(frozen=True)
class _Table(Settings):
    programs: Annotated[tuple[Any, ...], "a list of targets or tables"] = ()


@dataclass(frozen=True)
class _Program(Settings):
    target: Annotated[str, "a target, such as 'train.py:build'"] = ""


@dataclass(frozen=True)
class Config:
    """The settings for all targets, and the configured programs with their own settings."""

    settings: Settings = DEFAULTS
    programs: Sequence[tuple[str, Settings]] = ()

    def complete(self, call: Settings, own: Settings = DEFAULTS) -> Settings:
        """The settings of a call, completed by the program's settings, then by shared settings."""
        return call.defaulting_to(own).defaulting_to(self.settings)

    def entry_of(self, target: str, args: Sequence[str] = ()) -> Settings | None:
        """The settings of the first configured program with this target, and with these arguments.

        Without arguments, those of the program do not matter.
        """
        name = rebase(target, Path.cwd())
        entries = (own for each, own in self.programs if each == name)
        return next((own for own in entries if not args or tuple(own.args) == tuple(args)), None)

    def complete_for(self, target: str, call: Settings) -> Settings:
        """The settings of a call that names a target."""
        return self.complete(call, self.entry_of(target, call.args) or DEFAULTS)

    def select(
        self, targets: Sequence[str], call: Settings, command: str
    ) -> list[tuple[str, Settings]]:
        """The named targets, or all configured programs, with their settings.

        Args:
            targets: the targets of the call.
            call: the settings of the call.
            command: the beginning of the command line, for messages.

        Raises:
            UsageError: there is no program, or there are arguments but no target.
        """
        if targets:
            return [(target, self.complete_for(target, call)) for target in targets]
        if call.args:
            raise UsageError(
                f"-- {call.args[0]}",
                "is an argument for a program, but no program is named",
                f"name it first: {command} train.py -- {call.args[0]}",
                is_predicate=True,
            )
        if not self.programs:
            raise UsageError(
                "", "no target is given", "name a target such as train.py:build_towers"
            )
        return [(target, self.complete(call, own)) for target, own in self.programs]


_NAME = "placement_checks"
_TABLE = f"tool.{_NAME}"
_MOST_NAMED = 20  # invalid fields


def load(folder: Path) -> Config:
    """Read the ``pyproject.toml`` of a directory or its nearest parent directory.

    Raises:
        ConfigError: the file is not valid TOML, or fields are invalid; the message names all of
            them. Or the file, or code that it names, belongs to another user.
    """
    folder = folder.resolve()
    file = _nearest_file(folder)
    if file is None:
        return Config()
    try:
        text = read_text(file, limits.CONFIG_BYTES)
        document = parse_toml(text, str(file))
    except OSError as error:
        raise ConfigError(
            str(file), f"cannot be read: {error.strerror}", is_predicate=True
        ) from None
    except UnicodeDecodeError as error:
        check_trusted(file)
        raise ConfigError(
            str(file), f"is not valid TOML: {error}", "correct that line", is_predicate=True
        ) from None
    except InputError as error:
        check_trusted(file)
        raise error.copy(ConfigError) from None
    errors: list[ConfigError] = []
    tool = document.get("tool", {})
    if not isinstance(tool, dict):
        raise ConfigError(f"{file}: tool", "is not a table", is_predicate=True)
    if _NAME in tool:  # the files of other users are refused only if they have an effect
        check_trusted(file)
    config = _config(tool.get(_NAME, {}), file, errors)
    for parent, tables in (("", document), ("tool.", tool)):
        for name in tables:
            similar = close_matches(name.lower().replace("-", "_"), [_NAME], cutoff=0.9)
            if similar and parent + name != _TABLE:  # it would be ignored silently
                errors.append(
                    ConfigError(
                        parent + name, "is ignored", f"write [{_TABLE}]", is_predicate=True
                    )
                )
    if len(errors) > 1:
        faults = "; ".join(
            error.fault + (f" ({error.fix})" if error.fix else "")
            for error in errors[:_MOST_NAMED]
        )
        if (more := len(errors) - _MOST_NAMED) > 0:
            faults += f"; and {more:,} more"
        raise ConfigError(str(file), f"{len(errors)} fields are invalid: {faults}")
    for wrong in errors:
        raise wrong.copy(ConfigError, object=f"{file}: {wrong.object}")
    return config


def _config(table: Any, file: Path, errors: list[ConfigError]) -> Config:
    if not isinstance(table, dict):
        errors.append(ConfigError(_TABLE, "is not a table", is_predicate=True))
        return Config()
    shared = _valid_fields(_Table, table, _TABLE, file, errors)
    programs = []
    for number, entry in enumerate(shared.pop("programs", ())):
        at = f"{_TABLE}.programs[{number}]"
        entry = {"target": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, dict) or "target" not in entry:
            errors.append(
                ConfigError(
                    at, "has no target", "add target = 'file.py:function'", is_predicate=True
                )
            )
            continue
        own = _valid_fields(_Program, entry, at, file, errors)
        programs.append((own.pop("target", ""), Settings(**own)))
    return Config(Settings(**shared), programs)


def _valid_fields(
    owner: type[Settings], table: Mapping[str, Any], at: str, file: Path, errors: list[ConfigError]
) -> dict[str, Any]:
    """The valid fields of a table; the errors of invalid fields are added to ``errors``."""
    valid: dict[str, Any] = {}
    before = len(errors)
    for key, value in table.items():
        with collect_errors(errors, f"{at}.{key}"):
            valid[key] = convert_value(owner, key, value)
            owner(**{key: valid[key]}).check()
    if len(errors) == before:
        with collect_errors(errors, at):
            owner(**valid).check()
    for key in ("rules", "without"):
        for name in valid.get(key, ()):
            with collect_errors(errors, f"{at}.{key}"):
                rule_named(name)
    if "policy" in valid:
        valid["policy"], wrong = parse_policy(valid["policy"], f"{at}.policy.")
        errors += wrong
    if "gpus" in valid and valid.get("machine", TF_CONFIG).strip() != TF_CONFIG:
        errors.append(
            ConfigError(
                f"{at}.gpus",
                "and machine are mutually exclusive",
                "give one of them",
                is_predicate=True,
            )
        )
    for key in valid.keys() & {"reference", "batch", "target"}:
        for path in _code_files(valid[key], file.parent):
            check_trusted(path)
        valid[key] = rebase(valid[key], file.parent)
    return valid


def _nearest_file(folder: Path) -> Path | None:
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if fault := link_fault(file):
            raise ConfigError(str(file), fault, "replace the link")
        with contextlib.suppress(OSError):  # a parent directory may not be readable
            if file.is_file():
                return file
    return None


def _code_files(target: str, folder: Path) -> Iterator[Path]:
    """The existing files of a target that may run: code, and graphs that are compared."""
    path = path_of_target(target, folder)
    if path:
        files = [folder / path] if Path(path).suffix != ".npz" else []
    else:
        top = target.partition(":")[0].partition(".")[0]
        files = [Path(f"{top}.py"), Path(top, "__init__.py")]
    return filter(os.path.isfile, files)
