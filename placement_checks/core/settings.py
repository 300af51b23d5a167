"""Settings: how a program is run, placed and judged.

`Settings` is the only list of them. The command line, ``pyproject.toml``, `place` and the fixtures
create an object of this type, and everything below them gets this object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Annotated, Any, Final, Self

from placement_checks.core.devices import checked_gpus
from placement_checks.core.errors import UsageError
from placement_checks.core.machines import Machine
from placement_checks.core.ranks import MAX_RANKS

DEFAULT_LIMIT = 300.0  # seconds until the first training step
_A_MACHINE: Final = "a machine such as 'worker*8: gpu*4'"
_UNSET: Final[tuple[object, ...]] = (None, "", (), {})


@dataclass(frozen=True)
class Policy:
    """Values of fields of rules, which `verification.policy.parse_policy` has checked."""

    # By rule and field.
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def over(self, outer: Policy) -> Policy:
        """This policy, completed by the fields that only ``outer`` sets."""
        rules = {**outer.fields, **self.fields}
        return Policy({rule: {**outer.of(rule), **self.of(rule)} for rule in rules})

    def of(self, rule: str) -> Mapping[str, Any]:
        """The fields of a rule."""
        return self.fields.get(rule, {})


@dataclass(frozen=True)
class Settings:
    """How a program is run, placed and judged. None and empty values are not set.

    An annotation has a description of valid values, and the type of a value in TOML if this is
    another type.

    Attributes:
        gpus: the number of GPUs of a host or worker.
        machine: the machine, or its text form.
        soft: whether the placer may use other devices than requested.
        rules: the rules to check.
        without: the rules to skip.
        policy: the values of fields of rules.
        reference: the target of the program for one GPU.
        batch: the target of a batch function, or the file of a saved case.
        args: the command-line arguments of the program. Arguments and values of ``let`` may
            contain ``{gpus}`` for the number of GPUs and ``{gpu_list}`` for ``0,1,…``. An argument
            with ``{each_gpu}`` is repeated for each GPU, with its index.
        v1: whether ``import tensorflow`` gives the program TensorFlow 1.
        let: replaced values in the source of the program, by name.
        limit: the longest time until the first training step, in seconds.
        horovod: the number of ranks of a Horovod program, which have one GPU each.
    """

    gpus: int | None = None
    machine: Annotated[Machine | str | None, _A_MACHINE, str | None] = None
    soft: Annotated[bool | None, "true or false"] = None
    rules: Annotated[tuple[str, ...], "a list of rules"] = ()
    without: Annotated[tuple[str, ...], "a list of rules"] = ()
    policy: Annotated[Policy, "a table of rules", Mapping[str, Any]] = Policy()
    reference: Annotated[str | None, "the program for one GPU, such as 'train.py:single'"] = None
    batch: Annotated[str | None, "a batch function, such as 'train.py:batch'"] = None
    args: Annotated[tuple[str, ...], "a list of arguments"] = ()
    v1: Annotated[bool | None, "true or false"] = None
    let: Annotated[Mapping[str, Any], "a table of names and values"] = field(
        default_factory=dict, hash=False
    )
    limit: Annotated[float | None, "a number of seconds"] = None
    horovod: Annotated[int | None, "a number of ranks"] = None

    def check(self) -> Self:
        """Check the values, and return these settings.

        Raises:
            UsageError: a number is out of range, the machine is malformed, or ``horovod`` and
                another setting describe the machine.
            InputError: ``TF_CONFIG`` describes no cluster.
        """
        if self.horovod is not None:
            _check_ranks(self.horovod)
            for name in ("gpus", "machine"):
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"{name} and horovod",
                        "are mutually exclusive",
                        f"remove {name}: each of the {self.horovod} ranks has one GPU",
                        is_predicate=True,
                    )
        if self.gpus is not None:
            checked_gpus(self.gpus)
        if self.limit is not None:
            _check_limit(self.limit)
        self.parse_machine()
        return self

    def parse_machine(self) -> Machine | None:
        """The machine that `machine` names, or None if it is not set.

        Raises:
            UsageError: the machine is malformed.
            InputError: ``TF_CONFIG`` describes no cluster.
        """
        if isinstance(self.machine, str):
            return Machine.parse(self.machine, self.gpus or 2)
        if not isinstance(self.machine, Machine | None):
            raise UsageError(
                f"machine {self.machine!r:.60}",
                "is not a machine",
                "write it like 'gpu*4' or 'worker*8: gpu*4'",
                is_predicate=True,
            )
        return self.machine

    def defaulting_to(self, outer: Settings) -> Settings:
        """These settings, completed by ``outer``; ``let`` and ``policy`` are merged by key."""
        values = {each.name: getattr(self, each.name) for each in fields(Settings)}
        missing = {name: getattr(outer, name) for name, own in values.items() if own in _UNSET}
        if any(value is not None for value in (self.gpus, self.machine, self.horovod)):
            # If one of the three is set, the outer values of all three are replaced.
            missing |= {"gpus": self.gpus, "machine": self.machine, "horovod": self.horovod}
        missing["let"] = {**outer.let, **self.let}
        missing["policy"] = self.policy.over(outer.policy)
        return Settings(**(values | missing))

    def of_process(self) -> Settings:
        """The settings that apply to a program in a process of its own, without all others."""
        return Settings(
            args=tuple(self.args),
            v1=self.v1 or None,
            let={name: str(value) for name, value in self.let.items()},
            limit=self.limit,
            horovod=self.horovod or None,
        )

    def of_reference(self) -> Settings:
        """The settings of a process that apply to the program for one GPU as well."""
        return Settings(v1=self.v1 or None, limit=self.limit)

    def entry(self, target: str) -> dict[str, Any]:
        """The entry of a program in ``programs``, except for the selected rules."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {"rules": (), "policy": self.policy.fields}
        given = {name: value for name, value in values.items() if value not in _UNSET}
        return {"target": target, **given}


DEFAULTS: Final = Settings()  # nothing is set


def _check_ranks(ranks: int) -> None:
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 2 <= ranks <= MAX_RANKS:
        raise UsageError(
            f"horovod={ranks!r:.60}",
            f"is not a number of ranks from 2 to {MAX_RANKS}",
            "give 2 or more: horovod=2, or --horovod 2 on the command line",
            is_predicate=True,
        )


def _check_limit(seconds: float) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < inf:
        raise UsageError(
            f"limit={seconds!r:.60}",
            "is not a finite positive number of seconds",
            "give one, such as limit=600",
            is_predicate=True,
        )
