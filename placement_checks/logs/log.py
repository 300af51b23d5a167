"""The contents of a placement log, and their conversion to a `Placement`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.evidence import Evidence
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import Op, Placement
from placement_checks.core.variables import Variable, Variables
from placement_checks.logs.record_formats import Record
from placement_checks.util.text import plural, printable

_NO_REQUESTS = Missing(
    "a placement log has neither requested devices nor the inputs of ops",
    "add the program that printed the log: --graph train.py:build",
)
_NO_DEVICE_LIST = Missing(
    "the log does not list the machine's devices", "set their number with --gpus"
)


@dataclass(frozen=True, repr=False)
class Log:
    """The placements in a log, or in several logs of one run.

    Attributes:
        name: the file names, joined with ``+``.
        counts: how often each op was placed on each device. The two copies of a record, on stdout
            and stderr, count once.
        records: the number of records; both copies count.
        torn: the number of torn records that have no whole copy.
        torn_text: the beginning or end of one of these records.
        devices: the devices of the machine that the log lists.
        reason: the likely reason why there are no records; None if there are records.
        troubles: why parts of the input could not be read, one reason each.
    """

    name: str
    counts: Mapping[Record, int]
    records: int
    torn: int = 0
    torn_text: str = ""
    devices: frozenset[Device] = frozenset()
    reason: str | None = None
    troubles: Sequence[str] = ()

    def __repr__(self) -> str:
        torn = f", {self.torn:,} torn" if self.torn else ""
        return printable(f"Log({self.name}: {plural(self.records, 'record')}{torn})")

    @property
    def unread(self) -> str:
        """Which parts of the log could not be read, with the fix; ``""`` if all were read."""
        return "; ".join((*self.troubles, *([self.torn_message] if self.torn else ())))

    @property
    def torn_message(self) -> str:
        """The number of torn records, the text of one of them, and the fix."""
        is_torn, whose = ("is torn", "its") if self.torn == 1 else ("are torn", "their")
        place = f" (search for {self.torn_text!r})" if self.torn_text else ""
        return (
            f"{self.torn:,} of {plural(self.records + self.torn, 'record')} {is_torn}, and "
            f"{whose} other copy is missing{place}: log again with PYTHONUNBUFFERED=1, and copy "
            "whole lines"
        )

    @cached_property
    def moved(self) -> Mapping[str, Sequence[Record]]:
        """The nodes that were placed on several devices, with their records."""
        nodes = [node for node in map(itemgetter(0), self.counts) if node is not None]
        if len(set(nodes)) == len(nodes):  # quick, for most logs
            return {}
        found: dict[str, list[Record]] = defaultdict(list)
        for record in self.counts:
            if record.node is not None:
                found[record.node].append(record)
        return {
            node: records
            for node, records in found.items()
            if len({record.device for record in records}) > 1
        }

    def require_records(self) -> None:
        """Check that the log has records.

        Raises:
            InputError: there are no records; the message names the likely reason.
        """
        if self.reason:
            raise InputError(self.name, "has no placements", self.reason, is_predicate=True)

    def placement(
        self, machine: Machine | None = None, graph: Evidence | Placement | None = None
    ) -> Placement:
        """Convert the log to a placement, which can be judged and compared like other placements.

        An op that was placed on several devices has an entry for each device. Eager ops have no
        names; each combination of type and device has one entry.

        Args:
            machine: the machine on which the program ran. By default it has the devices that the
                log lists or uses. If the log has no GPU, the machine had no GPU either, and
                ``machine`` is ignored.
            graph: the program that printed the log, as returned by `place`. Its requested devices,
                inputs and source lines are added to the ops of the same name.

        Raises:
            InputError: the log lacks records, or all ops of ``graph``.
        """
        self.require_records()
        printed = None if graph is None else Evidence.wrap(graph).placement
        requested = printed or Placement(self.name, {}, requested=_NO_REQUESTS)
        ops = self._ops(printed)
        if printed and not any(op.assigned for op in ops.values()):
            raise InputError(
                self.name,
                f"has none of the {len(ops)} ops of {printed.program}",
                "is it the log of this program?",
                is_predicate=True,
            )
        own = Machine.from_devices(
            {op.assigned for op in ops.values() if op.assigned} | self.devices, self.name
        )
        listed = machine is not None or any(device.is_gpu for device in self.devices)
        variables = [
            Variable(key, "", None)
            for key, op in ops.items()
            if key not in requested.ops and op.type in VARIABLES
        ]
        return replace(
            requested,
            program=self.name,
            ops=ops,
            variables=Variables([*requested.variables, *variables]),
            machine=machine if machine and own.gpus else own,
            placer="log",
            assigned=True,
            all_devices=True if listed else _NO_DEVICE_LIST,
            complete=not self.unread or Missing(f"the log was not read in full: {self.unread}"),
        )

    def _ops(self, graph: Placement | None) -> dict[str, Op]:
        """The ops by name. Further devices of an op have their own entries, with longer keys."""
        ops: dict[str, Op] = dict(graph.ops) if graph else {}
        for record in self.counts:
            name = record.node if record.node is not None else f"{record.op} (eager)"
            op = graph.ops.get(name) if graph else Op(name, record.op or "")
            if op is not None:
                known = ops.get(op.name)
                again = f"{op.name} ({record.op}) {record.device}"
                key = again if known and known.assigned else op.name
                device = Device.parse(record.device) if record.device else None
                ops[key] = op._replace(assigned=device)
        return ops
