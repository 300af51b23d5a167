from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Fields, Rule, about
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_setting
from placement_checks.util.text import join_and, plural

_EVERY_GPU = "every"  # all GPUs, if no program lists its GPUs
_DEFAULT_FRACTION = 0.95  # the largest share that is allowed by default
_SETTINGS = {"allow_growth", "per_process_gpu_memory_fraction", "visible_device_list"}


@dataclass(frozen=True)
class SessionMemory(Rule):
    """The session does not take all memory of every GPU.

    TensorFlow 1 takes nearly all memory of every visible GPU when the session starts: a second
    program on the same machine fails, or runs on the CPU. To prevent this, set
    `gpu_options.allow_growth`, `per_process_gpu_memory_fraction`, or `visible_device_list`, which
    leaves the other GPUs free, or TF_FORCE_GPU_ALLOW_GROWTH=true in the environment.

    Most programs set no `gpu_options`, and are the only program on their machine: the rule is then
    not checked, unless `fraction` or `others` are declared.

    `fraction` is the largest share of a GPU's memory that a session may take. `others` lists the
    programs that run on the same machine, each by its gpu_options: the rule adds up the shares of
    all programs on a GPU. Memory that grows on demand adds nothing to the sum, but a program that
    needs it fails next to a program that takes all memory. The rule ignores
    TF_FORCE_GPU_ALLOW_GROWTH in the environment of the other programs, because it is unknown.
    """

    name = "session-memory"
    kind = "configuration"
    requires = frozenset({Need.SESSION_CONFIG})
    intended = "the session takes all memory of its GPUs, and other programs on them fail"
    threads = (
        "hunkim/DeepLearningZeroToAll#116: an example takes all GPUs of a shared server",
        "tensorflow/tensorflow#8170: a program that fails because another has the memory",
    )

    fraction: float = _DEFAULT_FRACTION
    others: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigError(
                "fraction", f"{self.fraction} is not a share", "give a number above 0, up to 1"
            )
        for options in self.others:
            try:
                Claim.from_options(options)
            except ValueError as error:
                raise ConfigError(
                    "others",
                    str(error),
                    "write each program as {'per_process_gpu_memory_fraction': 0.5}",
                ) from None

    def intended_fields(self, _evidence: Evidence, _verdict: Verdict) -> Iterator[Fields]:
        """Yield all memory."""
        yield {"fraction": 1.0}

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        session = placement.step.session or {}
        options = session.get("gpu_options") or {}
        if not isinstance(options, Mapping):
            return self.not_checked(
                "the gpu_options of the session configuration are not a mapping",
                fix="return a tf.compat.v1.ConfigProto from the function that builds the graph: "
                "{'config': config}",
            )
        try:
            own = Claim.from_options(options)
        except ValueError as error:
            return self.not_checked(str(error), fix="set a number from 0 to 1")
        forced = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")
        declared = self.others or self.fraction != _DEFAULT_FRACTION
        if not (_SETTINGS & options.keys() or declared or forced in ("true", "false")):
            return self.not_checked(
                "the session configuration does not limit GPU memory, so TensorFlow takes all of "
                "it",
                fix="if other programs need GPU memory, --set session-memory.fraction=0.9",
            )
        if forced == "true":
            own = own._replace(share=0)
        elif forced == "false":
            own = Claim.from_options({**options, "allow_growth": False})
        owns_some_gpus = own.gpus and not options.get("per_process_gpu_memory_fraction")
        if own.share > self.fraction and not owns_some_gpus:
            frames = blame_setting(placement, *sorted(_SETTINGS & options.keys()))
            return self.verdict([self._finding(own, frames)])
        note = "TF_FORCE_GPU_ALLOW_GROWTH lets the memory grow" if forced == "true" else _note(own)
        if not self.others:
            return self.verdict([], note)
        others = [Claim.from_options(options) for options in self.others]
        note = f"with {plural(len(others), 'other program')} on the machine: {note}"
        return self.verdict(list(self._shared_gpu_findings(own, others)), note)

    def _finding(self, own: Claim, frames: tuple[str, ...]) -> Finding:
        takes = f"{own.share:g}" if own.share < 1 else "all"
        gpus = _gpus_text(own.gpus) if own.gpus else "every visible GPU"
        summary = f"the session takes {takes} of the memory of {gpus} when it starts"
        return Finding(
            **about("gpu_options", "configuration"),
            frames=frames,
            message=f"{summary}; a second program on the same GPUs fails",
            fix="set config.gpu_options.allow_growth = True, or "
            f"per_process_gpu_memory_fraction to at most {self.fraction:g}",
        )

    def _shared_gpu_findings(self, own: Claim, others: Sequence[Claim]) -> Iterator[Finding]:
        named = {gpu for claim in (own, *others) for gpu in claim.gpus}
        for gpu in sorted(named, key=lambda gpu: (len(gpu), gpu)) or [_EVERY_GPU]:
            sharing = [claim for claim in others if claim.sees(gpu)]
            total = round(sum(claim.share for claim in (own, *sharing)), 6)
            takes_all = any(claim.share >= 1 for claim in (own, *sharing))
            if not (own.sees(gpu) and sharing and (total > self.fraction or takes_all)):
                continue
            subject, where = f"/device:GPU:{gpu}", f"GPU {gpu}"
            if gpu == _EVERY_GPU:
                subject, where = "gpu_options", "every GPU"
            share = max(0.01, math.floor(100 * self.fraction / (1 + len(sharing))) / 100)
            yield Finding(
                **about(subject, "configuration"),
                message=f"on {where}, this session takes {own.share_text} of the memory, and "
                f"{'another program takes' if len(sharing) == 1 else 'other programs take'} "
                f"{join_and(claim.share_text for claim in sharing)}: {100 * total:g}% in total, "
                "so the program that starts last fails",
                fix="give each program its own GPUs (visible_device_list), or set "
                f"per_process_gpu_memory_fraction to {share:.2g} in each",
                group_key=total,
            )


class Claim(NamedTuple):
    """The memory that a session takes of each visible GPU when it starts.

    Attributes:
        share: the share of the memory, from 0 to 1; 0 if it grows on demand.
        gpus: the indices of the visible GPUs; empty for all.
    """

    share: float
    gpus: Sequence[str]

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> Claim:
        """Return the claim of a session with these ``gpu_options``.

        Raises:
            ValueError: TensorFlow does not accept a value; the message names the option.
        """
        fraction = options.get("per_process_gpu_memory_fraction", 0)
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise ValueError(f"per_process_gpu_memory_fraction is {fraction!r}, not a number")
        if not fraction >= 0:  # NaN too
            raise ValueError(
                f"per_process_gpu_memory_fraction is {fraction:g}, and must be 0 or more"
            )
        visible = str(options.get("visible_device_list") or "")
        gpus = tuple(filter(None, map(str.strip, visible.split(","))))
        if options.get("allow_growth"):
            return Claim(0, gpus)
        return Claim(fraction or 1, gpus)

    def sees(self, gpu: str) -> bool:
        return not self.gpus or gpu in self.gpus

    @property
    def share_text(self) -> str:
        if not self.share:
            return "a growing part"
        return "all" if self.share == 1 else f"{self.share:g}"


def _gpus_text(indices: Sequence[str]) -> str:
    return f"GPU{'' if len(indices) == 1 else 's'} {join_and(indices)}"


def _note(claim: Claim) -> str:
    if not claim.share:
        return "the memory of the session grows on demand"
    if claim.share == 1 and claim.gpus:
        return f"the session uses only {_gpus_text(claim.gpus)}"
    return f"the session takes {claim.share_text} of each GPU's memory"
