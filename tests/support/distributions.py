"""Installed distributions that are not part of this repository."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def installed(folder: Path, name: str, rules: Mapping[str, str], **modules: str) -> None:
    """Write a distribution into a directory on the path.

    Args:
        folder: serves as site-packages.
        name: the name of the distribution.
        rules: its entry points for rules.
        modules: the source of modules, by name.
    """
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "".join(f"{rule} = {value}\n" for rule, value in rules.items())
    (info / "entry_points.txt").write_text(f"[placement_checks.rules]\n{points}")
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)


OPS_ON = '''
from dataclasses import dataclass

from placement_checks import Device, Evidence, Finding, Need, Rule, Verdict


@dataclass(frozen=True)
class OpsOn(Rule):
    """Every op of one type is on one device.

    `type` names the type, `device` the device.
    """

    name = "ops-on"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED})

    type: str = "MatMul"
    device: str = "/gpu:0"
    strict: bool = False

    def check(self, evidence: Evidence) -> Verdict:
        wanted = Device.parse(self.device)
        return self.verdict(
            [
                Finding(op.name, op.type, "assigned", f"{op.name} is on {op.assigned.short}",
                        f"put it on {wanted.short}")
                for op in evidence.ops.values()
                if op.type == self.type and not op.assigned.matches(wanted)
            ]
        )
'''
