from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule
from placement_checks.rules.requirements import Need
from placement_checks.util.text import join_and, plural

_EVERY = "every"  # the GPUs that no program names


class Claim(NamedTuple):
    """What a session takes of each GPU it sees when it starts.

    Attributes:
        share: of the memory; 0 where it grows as it is needed.
        gpus: the indices of the GPUs that it sees; empty for all.
    """

    share: float
    gpus: Sequence[str]

    @staticmethod
    def of(options: Mapping[str, Any]) -> Claim:
        """The claim of a session with these ``gpu_options``.

        Raises:
            ValueError: TensorFlow would not take a value; the message says which.
        """
        fraction = options.get("per_process_gpu_memory_fraction", 0)
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise ValueError(f"per_process_gpu_memory_fraction is {fraction!r}, not a number")
        if not fraction >= 0:  # NaN too
            raise ValueError(f"per_process_gpu_memory_fraction is {fraction:g}, not a share")
        visible = str(options.get("visible_device_list") or "")
        gpus = tuple(filter(None, map(str.strip, visible.split(","))))
        if options.get("allow_growth"):
            return Claim(0, gpus)
        return Claim(fraction or 1, gpus)

    def sees(self, gpu: str) -> bool:
        return not self.gpus or gpu in self.gpus

    def __str__(self) -> str:
        what = f"{self.share:g}" if self.share else "what it needs"
        of = _gpus(self.gpus) if self.gpus else "every GPU"
        return f"{'all' if self.share == 1 else what} of the memory of {of}"


_USUAL = 0.95  # the largest share, where none is declared
_SETTINGS = {"allow_growth", "per_process_gpu_memory_fraction", "visible_device_list"}


@dataclass(frozen=True)
class SessionMemory(Rule):
    """The session does not take all of every GPU's memory.

    TensorFlow 1 takes nearly all memory of every visible GPU when the session starts: a second
    program on the same machine fails, or runs on the CPU. `gpu_options.allow_growth`,
    `per_process_gpu_memory_fraction`, and `visible_device_list`, which leaves the other GPUs
    alone, change that; so does TF_FORCE_GPU_ALLOW_GROWTH=true in the environment.

    Most programs set no `gpu_options`, and are the only one on their machine: the rule is then
    not checked, unless `fraction` or `others` are declared.

    `fraction` is the largest share of a GPU's memory that may be taken. `others` are the programs
    that run on the same machine, each by its gpu_options: what they and this one take of a GPU is
    added up. What grows as it is needed adds nothing, and fails beside one that takes all. Of the
    programs beside it, TF_FORCE_GPU_ALLOW_GROWTH is not known.
    """

    name = "session-memory"
    kind = "configuration"
    requires = frozenset({Need.SESSION_CONFIG})

    fraction: float = _USUAL
    others: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigError(
                "fraction", f"{self.fraction} is not a share", "give one above 0, up to 1"
            )
        for options in self.others:
            try:
                Claim.of(options)
            except ValueError as error:
                raise ConfigError("others", str(error), "give it as in gpu_options") from None

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        session = placement.step.session or {}
        options = session.get("gpu_options") or {}
        if not isinstance(options, Mapping):
            return self.not_checked(
                "the gpu_options of the session configuration are not a mapping"
            )
        try:
            own = Claim.of(options)
        except ValueError as error:
            return self.not_checked(str(error))
        forced = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")
        declared = self.others or self.fraction != _USUAL
        if not (_SETTINGS & options.keys() or declared or forced in ("true", "false")):
            return self.not_checked(
                "the session configuration says nothing of the GPUs' memory, all of which "
                "TensorFlow then takes; if other programs need some, "
                "--set session-memory.fraction=0.9"
            )
        if forced == "true":
            own = own._replace(share=0)
        elif forced == "false":
            own = Claim.of({**options, "allow_growth": False})
        takes_some_whole = own.gpus and not options.get("per_process_gpu_memory_fraction")
        if own.share > self.fraction and not takes_some_whole:
            return self.verdict([self._finding(own)])
        note = "TF_FORCE_GPU_ALLOW_GROWTH lets the memory grow" if forced == "true" else _note(own)
        if not self.others:
            return self.verdict([], note)
        others = [Claim.of(options) for options in self.others]
        note = f"beside {plural(len(others), 'program')}: {note}"
        return self.verdict(list(self._together(own, others)), note)

    def _together(self, own: Claim, others: Sequence[Claim]) -> Iterator[Finding]:
        """The GPUs of which this program and those beside it take too much."""
        named = {gpu for claim in (own, *others) for gpu in claim.gpus}
        for gpu in sorted(named, key=lambda gpu: (len(gpu), gpu)) or [_EVERY]:
            beside = [claim for claim in others if claim.sees(gpu)]
            taken = round(sum(claim.share for claim in (own, *beside)), 6)
            takes_all = any(claim.share >= 1 for claim in (own, *beside))
            if own.sees(gpu) and beside and (taken > self.fraction or takes_all):
                yield self._too_much(gpu, own, beside, taken)

    def _finding(self, own: Claim) -> Finding:
        takes = f"{own.share:g}" if own.share < 1 else "all"
        of = _gpus(own.gpus) if own.gpus else "every visible GPU"
        return Finding(
            object="gpu_options",
            op="",
            evidence="configuration",
            expected=f"allow_growth, or at most {self.fraction:g} of the memory",
            found=f"{takes} of it",
            message=f"the session takes {takes} of the memory of {of} when it starts; a second "
            "program there fails",
            fix="set config.gpu_options.allow_growth = True, or "
            "per_process_gpu_memory_fraction to a share",
        )

    def _too_much(self, gpu: str, own: Claim, others: Sequence[Claim], taken: float) -> Finding:
        where = "every GPU" if gpu == _EVERY else f"GPU {gpu}"
        share = max(0.01, math.floor(100 * self.fraction / (1 + len(others))) / 100)
        return Finding(
            object="gpu_options" if gpu == _EVERY else f"/device:GPU:{gpu}",
            op="",
            evidence="configuration",
            expected=f"at most {self.fraction:g} of its memory for all programs",
            found=f"{taken:g} of it",
            message=f"this session takes {own}, and "
            f"{join_and(f'another {claim}' for claim in others)}: that adds up to "
            f"{100 * taken:g}% of the memory of {where}, and the program that starts last fails",
            fix="let each program see GPUs of its own (visible_device_list), or give each a "
            f"per_process_gpu_memory_fraction of {share:.2g}",
        )


def _gpus(indices: Sequence[str]) -> str:
    return f"GPU{'' if len(indices) == 1 else 's'} {join_and(indices)}"


def _note(claim: Claim) -> str:
    """What a session takes, where that is not a finding."""
    if not claim.share:
        return "the memory grows as it is needed"
    if claim.share == 1 and claim.gpus:
        return f"only {_gpus(claim.gpus)}"
    return f"{claim.share:g} of each GPU's memory"
