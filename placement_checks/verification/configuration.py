"""``[tool.placement_checks]`` of ``pyproject.toml``::

[tool.placement_checks]
gpus = 2                          # or machine = "worker*8: gpu*4"
soft = true                       # default: what the program's session configuration says
without = ["no-idle-device"]
programs = ["train.py:build_towers"]

[tool.placement_checks.policy.variables-on-host]
device = "/job:ps"

[[tool.placement_checks.programs]]      # a program with settings of its own
target = "train.py:build_towers"
reference = "train.py:build_single"     # run beside it, for the rules on numbers
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
from dataclasses import dataclass, field
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
    """How programs are placed and judged; None and empty mean "not set"."""

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
        """These settings; what they leave open is taken from ``outer``."""
        has_devices = self.gpus is not None or self.machine is not None
        return Settings(
            self.gpus if has_devices else outer.gpus,
            self.machine if has_devices else outer.machine,
            outer.soft if self.soft is None else self.soft,
            self.rules or outer.rules,
            self.without or outer.without,
            {
                rule: {**outer.policy.get(rule, {}), **self.policy.get(rule, {})}
                for rule in {**outer.policy, **self.policy}
            },
            self.reference or outer.reference,
            self.batch or outer.batch,
            self.args or outer.args,
            outer.v1 if self.v1 is None else self.v1,
            {**outer.let, **self.let},
            outer.limit if self.limit is None else self.limit,
        )

    def script_of(self, target: str) -> Target:
        """The target, or the program that it names, with its arguments.

        Raises:
            UsageError: it is no program, and something is given that only programs take.
        """
        let = {name: str(value) for name, value in self.let.items()}
        return script_from_target(target, self.args, v1=bool(self.v1), let=let, limit=self.limit)

    @property
    def reference_target(self) -> Target | None:
        """The program for one GPU that is named; a whole one may have arguments of its own.

        They stand behind it: ``"train_single.py --rows=8"``.
        """
        if self.reference is None:
            return None
        name, *args = shlex.split(self.reference) or [""]
        if not is_program(name):
            return self.reference
        return script_from_target(name, args, v1=bool(self.v1), limit=self.limit)


@dataclass(frozen=True)
class _Table(Settings):
    programs: Annotated[tuple[Any, ...], "a list of targets or tables"] = ()


@dataclass(frozen=True)
class _Program(Settings):
    target: Annotated[str, "a target, such as 'train.py:build'"] = ""


@dataclass(frozen=True)
class Config:
    """The settings for all targets, and the programs that must hold, each with its own."""

    settings: Settings = Settings()
    programs: Sequence[tuple[str, Settings]] = ()


def load(folder: Path) -> Config:
    """The configuration of the ``pyproject.toml`` in ``folder`` or the nearest above it.

    Raises:
        ConfigError: the file is not valid TOML, or fields are wrong: all of them are named.
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
        raise ConfigError(str(file), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(file), f"is not valid TOML: {error}", "correct that line") from None
    errors: list[ConfigError] = []
    tool = document.get("tool", {})
    if not isinstance(tool, dict):
        raise ConfigError(f"{file}: tool", "is not a table")
    config = _config(tool.get(_NAME, {}), file, errors)
    errors += [*_misspelled(document, ""), *_misspelled(tool, "tool.")]
    if len(errors) > 1:
        fields = "; ".join(
            error.fault + (f" ({error.fix})" if error.fix else "") for error in errors
        )
        raise ConfigError(str(file), f"{len(errors)} fields are wrong: {fields}")
    for wrong in errors:
        raise ConfigError(f"{file}: {wrong.object}", wrong.message, wrong.fix)
    return config


_NAME = "placement_checks"
_TABLE = f"tool.{_NAME}"
_CHECKS: Mapping[str, Callable[[Any], object]] = {"machine": Machine.parse, "gpus": checked_gpus}


def _misspelled(tables: Mapping[str, Any], within: str) -> Iterator[ConfigError]:
    """Tables whose name is nearly ours, which nobody reads."""
    for name in tables:
        spelled = name.lower().replace("-", "_")
        if within + name != _TABLE and close_matches(spelled, [_NAME], cutoff=0.9):
            yield ConfigError(within + name, "is not read", f"write [{_TABLE}]")


def _config(table: Any, file: Path, errors: list[ConfigError]) -> Config:
    if not isinstance(table, dict):
        errors.append(ConfigError(_TABLE, "is not a table"))
        return Config()
    shared = _fields(_Table, table, _TABLE, file, errors)
    programs = []
    for number, entry in enumerate(shared.pop("programs", ())):
        at = f"{_TABLE}.programs[{number}]"
        entry = {"target": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, dict) or "target" not in entry:
            errors.append(ConfigError(at, "has no target", "add target = 'file.py:function'"))
            continue
        own = _fields(_Program, entry, at, file, errors)
        programs.append((own.pop("target", ""), Settings(**own)))
    return Config(Settings(**shared), programs)


def _fields(
    owner: type[Settings], table: Mapping[str, Any], at: str, file: Path, errors: list[ConfigError]
) -> dict[str, Any]:
    """The fields of a table that are valid; errors are added for the others."""
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
        errors.append(ConfigError(f"{at}.gpus", "says the same as machine", "give one of them"))
    for key in valid.keys() & {"reference", "batch", "target"}:
        valid[key] = _from_file(valid[key], file)
    return valid


def _from_file(target: str, file: Path) -> str:
    """Paths in targets are relative to the file of the configuration; modules have no path.

    The arguments of a program that is named as a reference stay behind it.
    """
    program, blank, args = target.partition(" ")
    if program.endswith(".py") and blank:
        return f"{_from_file(program, file)} {args}"
    bare, arguments = split_arguments(target)
    path, colon, function = bare.rpartition(":")
    if not colon:
        path, function = target, ""
    absolute = file.parent / path
    is_module = is_module_name(path) and file_kind(absolute) == "nothing"
    if not path.endswith(".py") and (colon or is_module):
        return target
    here = Path.cwd()
    shown = absolute.relative_to(here) if absolute.is_relative_to(here) else absolute
    return f"{shown}{colon}{function}{arguments}"
