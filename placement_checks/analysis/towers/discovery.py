"""Towers: the copies of the model that a program trains, and the tower that each op works for.

The towers are found in this order:

1. *By strategy.* The GPUs of the replicas of a `tf.distribute` strategy are the towers.
2. *By loss.* Losses that share no value computed from examples and variables belong to different
   copies of the model (`analysis.towers.by_loss`). The copies are the towers, whichever devices
   they use: every tower may use tables, experts or layers on all GPUs. Copies that run on the same
   devices are micro-batches of one tower. The exception: if all copies run on one GPU of a machine
   that has a GPU for each copy, they are towers that were all placed on one GPU.
3. *By device.* If no loss is known, or the losses share a value, each GPU that computes with
   variables has a tower. If one GPU uses results that another GPU computed from variables of its
   own, both hold parts of one tower.

An op works for one tower, for several, or for the host. The first rule that applies decides:

1. A variable, an op that requests no GPU, and an op on the CPU work for the host. An op that
   requests no device follows the ops that it is colocated with.
2. A forward op works for a tower if its value reaches the losses of this tower only.
3. A forward op that is colocated with another op, or that depends on no example, works for the
   only tower that uses its value next, or else for the only tower that its inputs come from. If
   several towers use or feed it, so that neither tower exists, it works for none of them.
4. Any other forward op works for the tower on the GPU that it requests. The loss does not decide
   here: if the loss of tower 1 contains the loss of tower 0 by mistake, all ops of tower 0 reach
   both losses.
5. A backward op works for the tower of its forward op. If towers share the forward op, it works
   for the tower that its gradients come from, or else for the tower that uses its value.

Examples are the values that a tower computes with besides weights: fed, read from a pipeline,
random, or cached in variables.

Terms in this package: a *site* is a tower's share of one device (`Site`), `ModelCopies` are the
copies of the model by their losses, and `TowersByLoss` are the towers formed from these copies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from placement_checks.analysis.graph.backward import Backward
from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.analysis.graph.updates import Updates
from placement_checks.analysis.towers.by_loss import (
    Groups,
    ModelCopies,
    reachability_masks,
    single_tower,
)
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.op_types import (
    EXAMPLE_SOURCES,
    NOT_A_READ,
    PASSES_READ,
    PLACEHOLDERS,
    RANDOM,
    VARIABLES,
    is_update,
)
from placement_checks.core.placement import GLOBAL, TRAINABLE, Placement, producer_of


class Site(NamedTuple):
    """A device on which a tower computes.

    Attributes:
        device: the device that the ops of the tower request.
        copy: the number of the tower, if several towers found by loss use the device; else -1.
    """

    device: Device
    copy: int = -1


class GpuReads(NamedTuple):
    """The variables that are read at one site.

    Attributes:
        device: the device of the site.
        reads: the name of the first op that reads each variable, by the variable's name.
        site: the site.
    """

    device: Device
    reads: Mapping[str, str]
    site: Site


class Tower(NamedTuple):
    """One copy of the model.

    Attributes:
        sites: the sites where it runs; several if GPUs hold parts of it.
        reads: the name of the first op that reads each variable, by the variable's name.
    """

    sites: tuple[Site, ...]
    reads: Mapping[str, str]

    @property
    def devices(self) -> tuple[Device, ...]:
        """The GPUs that it runs on."""
        return tuple(site.device for site in self.sites)

    def __str__(self) -> str:
        devices = " and ".join(device.short for device in self.devices)
        copy = max(site.copy for site in self.sites)
        return devices if copy < 0 else f"{devices} (copy {copy + 1})"


class TowersByLoss(NamedTuple):
    """The towers that were found by loss.

    Attributes:
        losses: the loss ops of each tower.
        devices: the devices of each tower.
        main: the main device of each tower. The tower runs most of its ops there, not counting ops
            that every tower runs there.
        micro_batches: the number of copies of the model in each tower, all on the same devices.
    """

    losses: Groups
    devices: Sequence[tuple[Device, ...]]
    main: Sequence[Device]
    micro_batches: int = 1

    def site(self, tower: int, device: Device | None = None) -> Site:
        """Return the site of a tower on one of its devices; on its main device by default."""
        device = self.main[tower] if device is None else device
        users = sum(device in devices for devices in self.devices)
        return Site(device, tower if users > 1 else -1)

    def sites(self, tower: int) -> tuple[Site, ...]:
        """Return all sites of a tower."""
        return tuple(self.site(tower, device) for device in self.devices[tower])

    @property
    def by_site(self) -> Mapping[Site, int]:
        """The number of the tower at each site."""
        return {site: n for n in range(len(self.devices)) for site in self.sites(n)}


@lru_cache(maxsize=65536)
def requested_gpu(requested: Device) -> Device:
    """Return a requested device in full: a device without a job is on the local host."""
    return requested if requested.job else requested.over(LOCALHOST)


def towers_by_loss(
    placement: Placement, flow: DataFlow, copies: ModelCopies, in_model: Sequence[bool]
) -> TowersByLoss | None:
    """Find the towers by loss.

    Args:
        placement: the program.
        flow: the edges of the program.
        copies: the copies of the model.
        in_model: for each op whether it is a forward op that depends on variables and examples.

    Returns:
        The towers; None if the strategy or the requested devices determine them instead.
    """
    if len(copies.losses) < 2 or (placement.strategy and len(placement.strategy.replicas) > 1):
        return None
    places = _places(placement, flow, copies.losses, in_model)
    if not all(places):
        return None
    by_place: dict[frozenset[tuple[str, Device]], list[int]] = defaultdict(list)
    for number, place in enumerate(places):
        by_place[frozenset(place)].append(number)
    groups = list(by_place.values())
    if len(groups) == 1 and _are_crowded(placement, places):
        groups = [[number] for number in groups[0]]
    if len(groups) < 2 or len({len(group) for group in groups}) > 1:
        return None
    devices, main = _devices_of([places[group[0]] for group in groups])
    if len(set(main)) < len(main) and not _are_crowded(placement, places):
        # Copies with the same main device are tasks of one tower.
        by_device: dict[Device, list[int]] = defaultdict(list)
        for group, device in zip(groups, main, strict=True):
            by_device[device] += group
        groups = list(by_device.values())
        if len(groups) < 2 or len({len(group) for group in groups}) > 1:
            return None
        devices, main = _devices_of(
            [sum((places[number] for number in group), Counter()) for group in groups]
        )
    order = sorted(range(len(groups)), key=main.__getitem__)
    losses = [[op for copy in groups[number] for op in copies.losses[copy]] for number in order]
    devices, main = [devices[number] for number in order], [main[number] for number in order]
    if copies.likeness != "same" and (not copies.likeness or len(set(main)) < len(main)):
        return None
    batches = len(groups[0]) if len(groups) == len(by_place) else 1
    return TowersByLoss(losses, devices, main, batches)


def micro_batches(
    placement: Placement, flow: DataFlow, copies: ModelCopies, in_model: Sequence[bool]
) -> int:
    """Count the copies of the model on the same devices; 1 if they run on different devices."""
    if len(copies.losses) < 2 or copies.likeness != "same":
        return 1
    places = [frozenset(place) for place in _places(placement, flow, copies.losses, in_model)]
    return len(places) if len(set(places)) == 1 else 1


def _places(
    placement: Placement, flow: DataFlow, losses: Groups, in_model: Sequence[bool]
) -> Sequence[Counter[tuple[str, Device]]]:
    """Count the ops of each copy of the model, by type and requested GPU.

    If a copy uses no GPU, its ops on CPUs are counted. Ops that serve several copies are left out,
    as are ops that are colocated with another op, such as a lookup with its table: their device
    does not show where the copy runs.
    """
    reached = reachability_masks(flow, losses)
    on_gpus: list[Counter[tuple[str, Device]]] = [Counter() for _ in losses]
    on_cpus: list[Counter[tuple[str, Device]]] = [Counter() for _ in losses]
    for op, mask in enumerate(reached):
        copy = single_tower(mask)
        requested, colocated = placement.by_number[op].requested, placement.by_number[op].colocated
        if copy >= 0 and in_model[op] and requested.type is not None and not colocated:
            counts = on_gpus if requested.is_gpu else on_cpus
            counts[copy][flow.types[op], requested_gpu(requested)] += 1
    return [gpus or cpus for gpus, cpus in zip(on_gpus, on_cpus, strict=True)]


def _are_crowded(placement: Placement, places: Sequence[Counter[tuple[str, Device]]]) -> bool:
    """Whether all copies run on one GPU of a machine that has a GPU for each."""
    devices = {device for place in places for _, device in place}
    machine = placement.machine
    gpus = placement.gpus or (len(machine.gpus) if machine is not None else 0)
    return len(devices) == 1 and next(iter(devices)).is_gpu and gpus == len(places)


def _devices_of(
    places: Sequence[Counter[tuple[str, Device]]],
) -> tuple[Sequence[tuple[Device, ...]], Sequence[Device]]:
    """Return the devices of each tower, and its main device.

    A device belongs to a tower if the tower runs more ops of some type there than another tower.
    A GPU may hold an expert or a shard of a table for all towers; it belongs to the tower that
    runs its other ops there.
    """
    keys = frozenset().union(*places)
    shared = {key: min(place[key] for place in places) for key in keys}
    devices: list[tuple[Device, ...]] = []
    main: list[Device] = []
    for place in places:
        own: Counter[Device] = Counter()
        for (kind, device), count in place.items():
            own[device] += count - shared[kind, device]
        used = sorted(device for device, count in own.items() if count)
        most = max(own.values())
        devices.append(tuple(used or sorted(own)))
        main.append(min(device for device, count in own.items() if count == most))
    return devices, main


def serving_sites(
    placement: Placement,
    flow: DataFlow,
    backward_pass: Backward,
    examples: Sequence[int],
    by_loss: TowersByLoss | None,
    in_model: Sequence[bool],
) -> Sequence[Site | None]:
    """Find for each op the site of the tower that it works for.

    A backward op is at the site of its forward op if its tower was found by loss; otherwise it is
    at the site that it requests.

    Args:
        placement: the program.
        flow: the edges of the program.
        backward_pass: the backward pass of the program.
        examples: for each op whether its value depends on examples.
        by_loss: the towers that were found by loss.
        in_model: for each op whether it is a forward op that depends on variables and examples.

    Returns:
        For each op its site; None if it works for the host or for several towers.
    """
    backward = backward_pass.ops
    requests = {op.requested for op in placement.by_number}
    requested = {request: Site(requested_gpu(request)) for request in requests if request.is_gpu}
    sites = [requested.get(op.requested) for op in placement.by_number]
    unsure = [
        number
        for number, op in enumerate(placement.by_number)
        if (op.colocated or not examples[number])
        and sites[number] is not None
        and not backward[number]
    ]
    if by_loss is not None:
        unsure = _assign_by_loss(placement, flow, backward_pass, by_loss, in_model, sites, unsure)
    different = list(dict.fromkeys(site for site in sites if site is not None))
    if not unsure or len(different) < 2:
        return sites
    sure = [0] * len(sites)
    bits = {site: 1 << bit for bit, site in enumerate(different)}
    undecided = {*unsure, *flow.having(VARIABLES.__contains__)}
    for op, site in enumerate(sites):
        if site is not None and op not in undecided and not backward[op]:
            sure[op] = bits[site]
    # Backward ops and updates use the values of other ops, but do not decide where these belong.
    uses = list(flow.inputs)
    for op in (*backward_pass.numbers(), *flow.having(is_update)):
        uses[op] = []
    before = flow.propagate(sure, keep=sure)
    after = flow.propagate(sure, along=uses, to_inputs=True, keep=sure)
    for op in unsure:
        if after[op] or before[op]:
            bit = next((bit for bit in (after[op], before[op]) if bit.bit_count() == 1), 0)
            sites[op] = different[bit.bit_length() - 1] if bit else None
    return sites


def _assign_by_loss(
    placement: Placement,
    flow: DataFlow,
    backward: Backward,
    by_loss: TowersByLoss,
    in_model: Sequence[bool],
    sites: list[Site | None],
    unsure: Sequence[int],
) -> list[int]:
    """Assign each forward op that serves one tower to a site of this tower.

    Returns:
        The ops that the losses leave undecided.
    """
    reached = reachability_masks(flow, by_loss.losses)
    on_cpu = {device for device in by_loss.main if not device.is_gpu}
    shared_devices = {site.device for site in by_loss.by_site if site.copy >= 0}
    undecided = set(unsure)
    for op, mask in enumerate(reached):
        if backward.ops[op] or flow.types[op] in VARIABLES:
            continue
        site, tower = sites[op], single_tower(mask)
        device = None if site is None else site.device
        if device is None and in_model[op]:
            asked = placement.by_number[op].requested
            device = requested_gpu(asked) if asked.type is not None else None
            device = device if device in on_cpu else None
        if device is None:
            continue
        if tower >= 0:
            is_own = device in by_loss.devices[tower]
            sites[op] = by_loss.site(tower, device if is_own else None)
            undecided.discard(op)
        elif device in shared_devices:
            undecided.add(op)
    for op, (forward, _) in backward.forward.items():
        if sites[op] is not None and single_tower(reached[forward]) >= 0:
            sites[op] = sites[forward] or sites[op]
    return sorted(undecided)


class ReadsByGpu:
    """The variables that are read at each site, and the sites that hold parts of one tower.

    If towers are found by device, two sites hold parts of one tower if one computes a value from a
    variable, and the other combines this value with a variable, in the forward pass or in its
    gradients. Separate towers use each other's results only after their gradients are computed.
    Variables that all sites read do not count. The replicas of a strategy are never parts of one
    tower: they may exchange values, for example to normalize over all rows.

    The host may read a variable, for example in a lookup, or an op may read it once for several
    sites, for example to normalize a kernel. The variable then counts for the sites that use the
    result. A variable that only updates compute with, such as a velocity, is not read.

    Attributes:
        flow: the edges of the graph.
        readers: the ops that compute with the value of each variable, by its name.
        gpus: the variables that are read at each site, in the order of their devices.
        joined_gpus: pairs of indices into `gpus` whose sites hold parts of one tower.
    """

    def __init__(
        self,
        placement: Placement,
        flow: DataFlow,
        backward: Backward,
        updates: Updates,
        sites: Sequence[Site | None],
        by_loss: TowersByLoss | None = None,
    ) -> None:
        self.flow = flow
        self._ops = placement.by_number
        self._sites = sites
        self._strategy = placement.strategy
        self._backward = backward.ops
        self._updates = updates
        self._by_loss = by_loss
        named = map(producer_of, (*placement.step.objectives, *placement.step.losses))
        losses = [flow.number[name] for name in named if name in flow.number]
        ends = [*backward.numbers(), *losses]
        self._model = flow.reachable(ends) if ends else None
        self.readers = {
            variable.name: self._readers(flow.number[variable.name])
            for variable in placement.variables
        }
        self._add_readers_of_shared_results()
        reads: dict[Site, dict[str, str]] = defaultdict(dict)
        for variable, readers in self.readers.items():
            for reader in readers:
                site = sites[reader]
                if site is not None:
                    reads[site].setdefault(variable, self._ops[reader].name)
        self.gpus = [GpuReads(site.device, reads[site], site) for site in sorted(reads)]
        self.joined_gpus = (
            self._joined_gpus() if by_loss is None else self._parts_by_loss(by_loss.by_site)
        )

    def _readers(self, variable: int) -> list[int]:
        """Return the ops that compute with a variable's value, directly or after an identity op.

        Assignments, optimizer updates, savers and the like do not compute with it. If a function
        is called with the variable, the ops of its body count instead of the call.
        """
        flow = self.flow

        def passes_on(op: int) -> bool:
            return op == variable or flow.types[op] in PASSES_READ

        reached = flow.reachable([variable], flow.consumers, until=lambda op: not passes_on(op))
        return sorted(
            op
            for op in reached
            if not passes_on(op)
            and flow.types[op] not in NOT_A_READ
            and not is_update(flow.types[op])
            and op not in flow.calls
            and (self.in_loss(op) or op not in self.behind_updates)
        )

    def in_model(self, op: int) -> bool:
        """Whether a reader is part of the model: at a site, or on the way to a loss."""
        return self.in_loss(op) or self._sites[op] is not None

    def in_loss(self, op: int) -> bool:
        """Whether the value of an op reaches a loss or a gradient; true if none is known."""
        return self._model is None or op in self._model

    @cached_property
    def behind_updates(self) -> Collection[int]:
        """The ops that updates of the step depend on."""
        return self.flow.reachable(
            value
            for updates in self._updates.by_variable.values()
            for update in updates
            for value in update.values
        )

    def _add_readers_of_shared_results(self) -> None:
        """Add the first ops of each site that use a result of the host or of a shared op."""
        variables = list(self.readers)
        reached: dict[int, int] = {}
        for number, readers in enumerate(self.readers.values()):
            for op in readers:
                if self.in_loss(op) and not self._backward[op] and self._sites[op] is None:
                    reached[op] = reached.get(op, 0) | 1 << number
        if not reached:
            return
        for op, producers in enumerate(self.flow.inputs):
            mask = 0
            for producer in producers:
                mask |= reached.get(producer, 0)
            if not mask or self._backward[op]:
                continue
            if self._sites[op] is None:
                reached[op] = reached.get(op, 0) | mask
                continue
            for number in _bits(mask):
                readers = self.readers[variables[number]]
                if op not in readers:
                    readers.append(op)

    @cached_property
    def joined_forward(self) -> Collection[frozenset[int]]:
        """The pairs of sites, by index, that use each other's results in the forward pass.

        A joint loss also joins copies of a model in their gradients, but not in the forward pass.
        """
        return self._joined_gpus(forward=True)

    def _parts_by_loss(self, towers: Mapping[Site, int]) -> Collection[frozenset[int]]:
        """Return the pairs of sites of one tower, if the towers were found by loss."""
        sites: dict[int, list[int]] = defaultdict(list)
        for number, gpu in enumerate(self.gpus):
            if gpu.site in towers:
                sites[towers[gpu.site]].append(number)
        return {frozenset((first, other)) for first, *others in sites.values() for other in others}

    def _joined_gpus(self, *, forward: bool = False) -> Collection[frozenset[int]]:
        """Return the pairs of sites where one uses results of the other site's own variables."""
        if len(self.gpus) < 2:
            return set()
        shared = set.intersection(*(set(gpu.reads) for gpu in self.gpus))
        numbers = {gpu.site: number for number, gpu in enumerate(self.gpus)}
        own = [0] * len(self._ops)
        own_readers: list[tuple[int, int]] = []
        for variable, readers in self.readers.items():
            if variable in shared:
                continue
            for reader in readers:
                site = self._sites[reader]
                if site is not None and not (forward and self._backward[reader]):
                    number = numbers[site]
                    own[reader] |= 1 << number
                    own_readers.append((reader, number))
        if not own_readers:
            return set()
        masks = self.flow.propagate(own)
        pairs = {
            frozenset((number, other))
            for reader, number in own_readers
            for other in _bits(masks[reader] & ~(1 << number))
        }
        return {pair for pair in pairs if not all(map(self._is_replica, pair))}

    def _is_replica(self, number: int) -> bool:
        """Whether a replica of the strategy runs on a GPU."""
        replicas = () if self._strategy is None else self._strategy.replicas
        return any(self.gpus[number].device.matches(replica) for replica in replicas)

    def models(self, numbers: Sequence[int]) -> list[list[int]]:
        """Group the sites with these indices by the tower that they hold parts of."""
        found: dict[int, list[int]] = {number: [number] for number in numbers}
        for number, other in map(tuple, self.joined_gpus):
            if number in found and other in found and found[number] is not found[other]:
                joined = [*found[number], *found[other]]
                found.update(dict.fromkeys(joined, joined))
        return sorted({id(model): sorted(model) for model in found.values()}.values())

    def towers(self) -> list[Tower]:
        """Return the towers: first the towers found by loss, then copies on other GPUs."""
        by_loss = self._by_loss
        if by_loss is None:
            found, rest = [], list(range(len(self.gpus)))
        else:
            found = [by_loss.sites(number) for number in range(len(by_loss.losses))]
            used = {device for devices in by_loss.devices for device in devices}
            rest = [n for n, gpu in enumerate(self.gpus) if gpu.site.device not in used]
        found += [tuple(self.gpus[n].site for n in model) for model in self.models(rest)]
        return [self._tower(sites) for sites in found]

    def _tower(self, sites: tuple[Site, ...]) -> Tower:
        reads = {
            variable: reader
            for gpu in reversed(self.gpus)
            if gpu.site in sites
            for variable, reader in gpu.reads.items()
        }
        return Tower(sites, reads)


def _bits(mask: int) -> Iterator[int]:
    """Yield the positions of the bits that are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def tower_of_ops(
    placement: Placement,
    flow: DataFlow,
    backward: Backward,
    sites: Sequence[Site | None],
    towers: Mapping[Site, int],
) -> Sequence[int]:
    """Find for each op the number of the only tower that it works for, or -1.

    Args:
        placement: the program.
        flow: the edges of the program.
        backward: the backward pass of the program.
        sites: the result of `serving_sites`.
        towers: the number of the tower at each site.
    """
    found = [-1 if site is None else towers.get(site, -1) for site in sites]
    _follow_colocation(placement, flow, backward, found)
    _follow_forward(placement, flow, backward, sites, found)
    _follow_users(placement, flow, backward, sites, found)
    return found


def _follow_colocation(
    placement: Placement, flow: DataFlow, backward: Backward, found: list[int]
) -> None:
    """Assign forward ops that request no device to the tower of an op they are colocated with."""
    for here, op in enumerate(placement.by_number):
        if op.colocated and op.requested.type is None and not backward.ops[here]:
            numbers = map(flow.number.get, op.colocated)
            found[here] = next(
                (found[other] for other in numbers if other is not None and other < here), -1
            )


def _follow_forward(
    placement: Placement,
    flow: DataFlow,
    backward: Backward,
    sites: Sequence[Site | None],
    found: list[int],
) -> None:
    """Assign backward ops to the tower of their forward op.

    If towers share the forward op, assign them to the tower that their inputs come from.
    """
    for op, (forward, _) in backward.forward.items():
        if found[forward] >= 0:
            found[op] = found[forward]
        elif _is_shared_on_gpu(placement, sites, forward):
            found[op] = _single(
                found[source] for source in flow.inputs[op] if backward.ops[source]
            )


def _follow_users(
    placement: Placement,
    flow: DataFlow,
    backward: Backward,
    sites: Sequence[Site | None],
    found: list[int],
) -> None:
    """Assign backward ops to the tower that uses them, if their forward op has no tower.

    Examples are the zeros and shapes that the gradient of a variable needs, and inputs of the
    gradient of a shared op.
    """
    for op in reversed(list(backward.numbers())):
        forward, _ = backward.forward.get(op, (None, ""))
        if forward is None or flow.types[forward] in VARIABLES:
            follows = found[op] >= 0
        else:
            follows = found[op] < 0 and _is_shared_on_gpu(placement, sites, forward)
        if follows:
            user = _single(found[user] for user in flow.consumers[op] if backward.ops[user])
            found[op] = user if user >= 0 else found[op]


def _is_shared_on_gpu(placement: Placement, sites: Sequence[Site | None], op: int) -> bool:
    """Whether an op requests a GPU and works for several towers."""
    return sites[op] is None and placement.by_number[op].requested.is_gpu


def _single(towers: Iterable[int]) -> int:
    """Return the only tower in ``towers``; -1 if there is none, or more than one."""
    different = {tower for tower in towers if tower >= 0}
    return different.pop() if len(different) == 1 else -1


def depends_on_inputs(placement: Placement, flow: DataFlow) -> Sequence[int]:
    """Return for each op whether its value depends on examples.

    A placeholder for a scalar, such as a learning rate, holds no example.
    """

    def is_scalar(op: int) -> bool:
        outputs = placement.details.outputs(flow.names[op])
        return bool(outputs) and outputs[0].shape == ()

    sources = [
        op
        for op in flow.having((EXAMPLE_SOURCES | RANDOM).__contains__)
        if flow.types[op] not in PLACEHOLDERS or not is_scalar(op)
    ]
    cached = [flow.number[name] for name in cached_inputs(placement)]
    return flow.propagate(flow.marks([[*sources, *cached]]))


def cached_inputs(placement: Placement) -> frozenset[str]:
    """Return the variables that hold examples: they are neither saved nor trained, nor scalar.

    Such a variable holds a dataset in memory, or batches that were read ahead.
    """
    collected = placement.collected
    saved = collected.get(TRAINABLE, frozenset()) | collected.get(GLOBAL, frozenset())
    # Only the first of the copies that a strategy keeps is in a collection.
    if saved and placement.strategy is not None:
        saved |= placement.strategy.copies.keys()
    return frozenset(
        variable.name
        for variable in placement.variables
        if saved and variable.name not in saved and variable.shape
    )
