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

import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from placement_checks.core.devices import checked_gpus
from placement_checks.core.errors import ConfigError
from placement_checks.core.machines import Machine
from placement_checks.core.program import Target
from placement_checks.targets.names import (
    file_kind,
    is_module_name,
    is_program,
    script_from_target,
    split_arguments,
)
from placement_checks.util.text import close_matches
from placement_checks.verification.policy import (
    collect_errors,
    convert_value,
    policy_errors,
    rule_named,
)


@dataclass(frozen=True)
class Settings:
    """How a program is placed and judged. None and empty values are not set.

    Attributes:
        gpus: the number of GPUs of a host or worker.
        machine: the text form of a `Machine`.
        soft: whether the placer may use other devices than requested.
        rules: the rules to check.
        without: the rules to skip.
        policy: fields of rules, by rule.
        reference: the target of the program for one GPU.
        batch: the target of a batch function, or the file of a saved case.
        args: the command-line arguments of the program.
        v1: whether the program runs with the API of TensorFlow 1.
        let: replaced values in the source of the program, by name.
        limit: the longest time until the first training step, in seconds.
    """

    gpus: int | None = None
    machine: Annotated[str | None, "a machine such as 'worker*8: gpu*4'"] = None
    soft: Annotated[bool | None, "true or false"] = None
    rules: Annotated[tuple[str, ...], "a list of rules"] = ()
    without: Annotated[tuple[str, ...], "a list of rules"] = ()
    policy: Annotated[Mapping[str, Any], "a table of rules"] = field(default_factory=dict)
    reference: Annotated[str | None, "the program for one GPU, such as 'train.py:single'"] = None
    batch: Annotated[str | None, "a batch function, such as 'train.py:batch'"] = None
    args: Annotated[tuple[str, ...], "a list of arguments"] = ()
    v1: Annotated[bool | None, "true or false"] = None
    let: Annotated[Mapping[str, Any], "a table of names and values"] = field(default_factory=dict)
    limit: Annotated[float | None, "a number of seconds"] = None

    def defaulting_to(self, outer: Settings) -> Settings:
        """These settings, completed by ``outer``; ``let`` and ``policy`` are merged by key."""
        values = {
            each.name: _first_set(getattr(self, each.name), getattr(outer, each.name))
            for each in fields(Settings)
        }
        if self.gpus is not None or self.machine is not None:
            values |= {"gpus": self.gpus, "machine": self.machine}  # either replaces both
        values["let"] = {**outer.let, **self.let}
        values["policy"] = {
            rule: {**outer.policy.get(rule, {}), **self.policy.get(rule, {})}
            for rule in {**outer.policy, **self.policy}
        }
        return Settings(**values)

    def script_of(self, target: str) -> Target:
        """The target; a whole program with its arguments.

        Raises:
            UsageError: a setting for whole programs is given, but the target is something else.
        """
        let = {name: str(value) for name, value in self.let.items()}
        return script_from_target(target, self.args, v1=bool(self.v1), let=let, limit=self.limit)

    @property
    def reference_target(self) -> Target | None:
        """The program for one GPU.

        A whole program may have its own arguments: ``"train_single.py --rows=8"``.
        """
        if self.reference is None:
            return None
        name, *args = shlex.split(self.reference) or [""]
        if not is_program(name):
            return self.reference
        return script_from_target(name, args, v1=bool(self.v1), limit=self.limit)


def _first_set(value: Any, default: Any) -> Any:
    return default if value in (None, "", (), {}) else value


@dataclass(frozen=True)
class _Table(Settings):
    programs: Annotated[tuple[Any, ...], "a list of targets or tables"] = ()


@dataclass(frozen=True)
class _Program(Settings):
    target: Annotated[str, "a target, such as 'train.py:build'"] = ""


@dataclass(frozen=True)
class Config:
    """The settings for all targets, and the configured programs with their own settings."""

    settings: Settings = Settings()
    programs: Sequence[tuple[str, Settings]] = ()


_NAME = "placement_checks"
_TABLE = f"tool.{_NAME}"
_CHECKS: Mapping[str, Callable[[Any], object]] = {"machine": Machine.parse, "gpus": checked_gpus}


def load(folder: Path) -> Config:
    """Read the ``pyproject.toml`` of a directory or its nearest parent directory.

    Raises:
        ConfigError: the file is not valid TOML, or fields are invalid; the message names all of
            them.
    """
    folder = folder.resolve()
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if file.is_file():
            break
    else:
        return Config()
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            str(file), f"cannot be read: {error.strerror}", is_predicate=True
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            str(file), f"is not valid TOML: {error}", "correct that line", is_predicate=True
        ) from None
    errors: list[ConfigError] = []
    tool = document.get("tool", {})
    if not isinstance(tool, dict):
        raise ConfigError(f"{file}: tool", "is not a table", is_predicate=True)
    config = _config(tool.get(_NAME, {}), file, errors)
    errors += [*_misspelled_tables(document, ""), *_misspelled_tables(tool, "tool.")]
    if len(errors) > 1:
        faults = "; ".join(
            error.fault + (f" ({error.fix})" if error.fix else "") for error in errors
        )
        raise ConfigError(str(file), f"{len(errors)} fields are invalid: {faults}")
    for wrong in errors:
        raise ConfigError(
            f"{file}: {wrong.object}", wrong.message, wrong.fix, is_predicate=wrong.is_predicate
        )
    return config


def _misspelled_tables(tables: Mapping[str, Any], parent: str) -> Iterator[ConfigError]:
    """Errors for tables with a similar name, which would be ignored silently."""
    for name in tables:
        normalized = name.lower().replace("-", "_")
        if parent + name != _TABLE and close_matches(normalized, [_NAME], cutoff=0.9):
            yield ConfigError(parent + name, "is not read", f"write [{_TABLE}]", is_predicate=True)


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
    """The valid fields of a table; the others are added to ``errors``."""
    valid: dict[str, Any] = {}
    for key, value in table.items():
        with collect_errors(errors, f"{at}.{key}"):
            valid[key] = convert_value(owner, key, value)
            if key in _CHECKS:
                _CHECKS[key](valid[key])
    for key in ("rules", "without"):
        for name in valid.get(key, ()):
            with collect_errors(errors, f"{at}.{key}"):
                rule_named(name)
    errors += policy_errors(valid.get("policy", {}), f"{at}.policy.")
    if "machine" in valid and "gpus" in valid:
        errors.append(
            ConfigError(
                f"{at}.gpus",
                "and machine are mutually exclusive",
                "give one of them",
                is_predicate=True,
            )
        )
    for key in valid.keys() & {"reference", "batch", "target"}:
        valid[key] = _relative_to_here(valid[key], file)
    return valid


def _relative_to_here(target: str, file: Path) -> str:
    """The target with its path relative to the working directory, not to the configuration file.

    A module has no path. The arguments of a whole program, as of a reference, are preserved.
    """
    program, blank, args = target.partition(" ")
    if program.endswith(".py") and blank:
        return f"{_relative_to_here(program, file)} {args}"
    bare, arguments = split_arguments(target)
    path, colon, function = bare.rpartition(":")
    if not colon:
        path, function = target, ""
    absolute = file.parent / path
    is_module = is_module_name(path) and file_kind(absolute) == "nothing"
    if not path.endswith(".py") and (colon or is_module):
        return target
    here = Path.cwd()
    relative = absolute.relative_to(here) if absolute.is_relative_to(here) else absolute
    return f"{relative}{colon}{function}{arguments}"
