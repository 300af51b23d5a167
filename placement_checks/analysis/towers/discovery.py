"""Towers: the copies of the model that a program trains, and the tower that each op works for.

The towers are found in this order:

1. *By strategy.* The GPUs of the replicas of a `tf.distribute` strategy are the towers.
2. *By loss.* Two losses belong to one copy of the model if both depend on a value that is computed
   from examples and variables; otherwise they belong to different copies
   (`analysis.towers.by_loss`). The copies are the towers, whichever devices they use: every tower
   may use tables, experts or layers on all GPUs. Copies that run on the same devices are
   micro-batches of one tower. The exception: if all copies run on one GPU of a machine that has a
   GPU for each copy, they are towers that were all placed on one GPU.
3. *By device.* If no loss is known, or all losses depend on a common value, each GPU that computes
   with variables has a tower. If a GPU uses a result that another GPU computed from variables that
   some GPUs do not read, both GPUs hold parts of one tower.

An op works for one tower, for several, or for the host. The first rule that applies decides:

1. A variable, an op that requests no GPU, and an op on the CPU work for the host. An op that
   requests no device follows the ops that it is colocated with.
2. A forward op works for a tower if its value reaches the losses of this tower only.
3. A forward op that is colocated with another op, or that depends on no example, works for the
   tower that uses its value next, if there is only one such tower. Otherwise it works for the
   tower that computes its inputs, if there is only one such tower. If there is none, but several
   towers use or feed the op, it works for no tower.
4. A forward op on the GPU of a joint loss that combines the outputs of towers works for none.
5. Any other forward op works for the tower on the GPU that it requests. The loss does not decide
   here: if the loss of tower 1 contains the loss of tower 0 by mistake, all ops of tower 0 reach
   both losses.
6. A backward op works for the tower of its forward op. If towers share the forward op, it works
   for the tower that its gradients come from, or else for the tower that uses its value.

Terms in this package: *examples* are all inputs of a tower except weights: values that are fed,
read from an input pipeline, drawn at random, or cached in variables. A *site* is a device on which
a tower computes; if several towers compute on one device, each has its own site there (`Site`).
`ModelCopies` are the copies of the model by their losses, and `TowersByLoss` are the towers formed
from these copies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple, cast

from placement_checks.analysis.graph.analysis import GraphAnalysis
from placement_checks.analysis.graph.data_flow import bits_of, connected_groups, union
from placement_checks.analysis.towers.by_loss import (
    Groups,
    ModelCopies,
    reachability_masks,
    single_tower,
)
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.ids import OpId, SiteIndex, TowerIndex
from placement_checks.core.op_types import NOT_A_READ, PASSES_READ, VARIABLES, is_update
from placement_checks.core.placement import Placement

OpCounts = Counter[tuple[str, Device]]  # the number of ops, by type and device


class Site(NamedTuple):
    """A device on which a tower computes.

    Attributes:
        device: the device that the ops of the tower request.
        tower: the number of the tower, if several towers found by loss use the device; else None.
    """

    device: Device
    tower: TowerIndex | None = None


class SiteReads(NamedTuple):
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
        towers = [site.tower for site in self.sites if site.tower is not None]
        return f"{devices} (copy {max(towers) + 1})" if towers else devices


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

    def site(self, tower: TowerIndex, device: Device | None = None) -> Site:
        """Return the site of a tower on one of its devices; on its main device by default."""
        device = self.main[tower] if device is None else device
        users = sum(device in devices for devices in self.devices)
        return Site(device, tower if users > 1 else None)

    def sites(self, tower: TowerIndex) -> tuple[Site, ...]:
        """Return all sites of a tower."""
        return tuple(self.site(tower, device) for device in self.devices[tower])

    @property
    def towers(self) -> Sequence[TowerIndex]:
        """The numbers of the towers."""
        return cast(Sequence[TowerIndex], range(len(self.devices)))

    @property
    def by_site(self) -> Mapping[Site, TowerIndex]:
        """The number of the tower at each site."""
        return {site: tower for tower in self.towers for site in self.sites(tower)}


@lru_cache(maxsize=65536)
def complete_device(requested: Device) -> Device:
    """Return a requested device with a job: a device without a job is on the local host."""
    return requested if requested.job else requested.over(LOCALHOST)


def towers_by_loss(graph: GraphAnalysis, copies: ModelCopies) -> TowersByLoss | None:
    """Find the towers by loss; None if the strategy or the requested devices determine them."""
    strategy = graph.placement.strategy
    if len(copies.losses) < 2 or (strategy is not None and len(strategy.replicas) > 1):
        return None
    counts = _count_ops(graph, copies.losses)
    if not all(counts):
        return None
    by_devices: dict[frozenset[tuple[str, Device]], list[int]] = defaultdict(list)
    for number, count in enumerate(counts):
        by_devices[frozenset(count)].append(number)
    groups = list(by_devices.values())
    are_crowded = _are_crowded(graph.placement, counts)
    if len(groups) == 1 and are_crowded:
        groups = [[number] for number in groups[0]]
    if not _are_even(groups):
        return None
    devices, main = _devices_of([counts[group[0]] for group in groups])
    if len(set(main)) < len(main) and not are_crowded:
        # Copies with the same main device compute different losses of one tower.
        by_main: dict[Device, list[int]] = defaultdict(list)
        for group, device in zip(groups, main, strict=True):
            by_main[device] += group
        groups = list(by_main.values())
        if not _are_even(groups):
            return None
        devices, main = _devices_of(
            [sum((counts[number] for number in group), Counter()) for group in groups]
        )
    if copies.likeness != "same" and (not copies.likeness or len(set(main)) < len(main)):
        return None
    order = sorted(range(len(groups)), key=main.__getitem__)
    return TowersByLoss(
        [[op for copy in groups[number] for op in copies.losses[copy]] for number in order],
        [devices[number] for number in order],
        [main[number] for number in order],
        micro_batches=len(groups[0]) if len(groups) == len(by_devices) else 1,
    )


def micro_batches(graph: GraphAnalysis, copies: ModelCopies) -> int:
    """Count the copies of the model on the same devices; 1 if they run on different devices."""
    if len(copies.losses) < 2 or copies.likeness != "same":
        return 1
    used = [frozenset(count) for count in _count_ops(graph, copies.losses)]
    return len(used) if len(set(used)) == 1 else 1


def _count_ops(graph: GraphAnalysis, losses: Groups) -> Sequence[OpCounts]:
    """Count the ops of each copy of the model, by type and requested GPU.

    If a copy uses no GPU, its ops on CPUs are counted. Ops that serve several copies are left out,
    as are ops that are colocated with another op, such as a lookup with its table: their device
    does not show where the copy runs.
    """
    on_gpus: list[OpCounts] = [Counter() for _ in losses]
    on_cpus: list[OpCounts] = [Counter() for _ in losses]
    for op, mask in enumerate(reachability_masks(graph.flow, losses)):
        copy = single_tower(mask)
        if copy is not None and graph.in_model[op]:
            _, kind, requested, _, _, colocated, *_ = graph.placement.by_number[op]
            if requested.type is not None and not colocated:
                counts = on_gpus if requested.is_gpu else on_cpus
                counts[copy][kind, complete_device(requested)] += 1
    return [gpus or cpus for gpus, cpus in zip(on_gpus, on_cpus, strict=True)]


def _are_even(groups: Sequence[Sequence[object]]) -> bool:
    """Whether there are several groups, all of the same size."""
    return len(groups) > 1 and len(set(map(len, groups))) == 1


def _are_crowded(placement: Placement, counts: Sequence[OpCounts]) -> bool:
    """Whether all copies run on one GPU of a machine that has a GPU for each."""
    devices = {device for count in counts for _, device in count}
    machine = placement.machine
    gpus = placement.gpus or (len(machine.gpus) if machine is not None else 0)
    return len(devices) == 1 and next(iter(devices)).is_gpu and gpus == len(counts)


def _devices_of(
    counts: Sequence[OpCounts],
) -> tuple[Sequence[tuple[Device, ...]], Sequence[Device]]:
    """Return the devices of each tower, and its main device.

    A device belongs to a tower if, for some op type, the tower runs more ops there than at least
    one other tower. A GPU that holds an expert or a shard of a table for all towers belongs only
    to the tower that also runs other ops on this GPU.
    """
    keys = frozenset().union(*counts)
    shared = {key: min(count[key] for count in counts) for key in keys}
    devices: list[tuple[Device, ...]] = []
    main: list[Device] = []
    for count in counts:
        own: Counter[Device] = Counter()
        for (kind, device), ops in count.items():
            own[device] += ops - shared[kind, device]
        used = [device for device in own if own[device]]
        devices.append(tuple(sorted(used or own)))
        main.append(min(own, key=lambda device: (-own[device], device)))
    return devices, main


def serving_sites(graph: GraphAnalysis, by_loss: TowersByLoss | None) -> Sequence[Site | None]:
    """Find for each op the site of the tower that it works for.

    A backward op is at the site of its forward op if its tower was found by loss; otherwise it is
    at the site that it requests.

    Args:
        graph: the program.
        by_loss: the towers that were found by loss.

    Returns:
        For each op its site; None if it works for the host or for several towers.
    """
    flow, ops, backward = graph.flow, graph.placement.by_number, graph.backward.ops
    requests = {op.requested for op in ops}
    requested = {request: Site(complete_device(request)) for request in requests if request.is_gpu}
    if (strategy := graph.placement.strategy) is not None:
        defaults = {request: strategy.default_gpu(request) for request in requests}
        requested |= {request: Site(gpu) for request, gpu in defaults.items() if gpu is not None}
    sites = [requested.get(op.requested) for op in ops]
    tentative = {
        number
        for number, op in zip(flow.ops, ops, strict=True)
        if (op.colocated or not graph.examples[number])
        and sites[number] is not None
        and not backward[number]
    }
    if by_loss is not None:
        _assign_by_loss(graph, by_loss, sites, tentative)
    different = list(dict.fromkeys(site for site in sites if site is not None))
    if not tentative or len(different) < 2:
        return sites
    bits = {site: 1 << bit for bit, site in enumerate(different)}
    not_sources = tentative.union(flow.having(VARIABLES.__contains__))
    sources = [
        0 if site is None or op in not_sources or backward[op] else bits[site]
        for op, site in enumerate(sites)
    ]
    # Backward ops and updates use the values of other ops, but do not decide where these belong.
    uses = list(flow.inputs)
    for op in (*graph.backward.numbers(), *flow.having(is_update)):
        uses[op] = []
    before = flow.propagate(sources, keep=sources)
    after = flow.propagate(sources, along=uses, to_inputs=True, keep=sources)
    for op in tentative:
        if after[op] or before[op]:
            bit = next((bit for bit in (after[op], before[op]) if bit.bit_count() == 1), 0)
            sites[op] = different[bit.bit_length() - 1] if bit else None
    return sites


def _assign_by_loss(
    graph: GraphAnalysis, by_loss: TowersByLoss, sites: list[Site | None], tentative: set[OpId]
) -> None:
    """Assign each forward op that serves one tower to a site of this tower.

    Afterwards ``tentative`` has the ops whose tower the losses do not determine.
    """
    flow, backward = graph.flow, graph.backward
    reached = reachability_masks(flow, by_loss.losses)
    on_cpu = {device for device in by_loss.main if not device.is_gpu}
    shared_devices = {site.device for site in by_loss.by_site if site.tower is not None}
    for op, mask in zip(flow.ops, reached, strict=True):
        if backward.ops[op] or flow.types[op] in VARIABLES:
            continue
        site, tower = sites[op], single_tower(mask)
        device = None if site is None else site.device
        if site is None and graph.in_model[op]:
            request = graph.placement.by_number[op].requested
            if request.type is not None and complete_device(request) in on_cpu:
                device = complete_device(request)
        if device is None:
            continue
        if tower is not None:
            is_own = device in by_loss.devices[tower]
            sites[op] = by_loss.site(tower, device if is_own else None)
            tentative.discard(op)
        elif device in shared_devices:
            tentative.add(op)
    for op, (forward, _) in backward.forward.items():
        if sites[op] is not None and single_tower(reached[forward]) is not None:
            sites[op] = sites[forward] or sites[op]


class ReadsBySite:
    """The variables that are read at each site, and the sites that hold parts of one tower.

    If towers are found by device, two sites hold parts of one tower if one site computes a value
    from a variable, and the other site combines this value with a variable, in the forward pass or
    in the backward pass. Separate towers use each other's results only after their gradients are
    computed. Only variables that some sites do not read count. The replicas of a strategy are
    never parts of one tower: they may exchange values, for example to normalize over all rows.

    The host may read a variable for several sites, for example in a lookup. So may an op on a GPU,
    for example to normalize a kernel. In both cases the sites that use the result read the
    variable. A variable that is used only by updates, such as a velocity, is read at no site.

    Attributes:
        sites: for each op its site, as found by `serving_sites`.
        readers: the ops that compute with the value of each variable, by its name.
        site_reads: the variables that are read at each site, in the order of the sites.
        site_indices: the indices into `site_reads`.
        joined_sites: the pairs of sites that hold parts of one tower, by index.
    """

    def __init__(
        self, graph: GraphAnalysis, sites: Sequence[Site | None], by_loss: TowersByLoss | None
    ) -> None:
        self._graph = graph
        self._flow = flow = graph.flow
        self.sites = sites
        self._by_loss = by_loss
        step = graph.placement.step
        ends = [
            *graph.backward.numbers(),
            *flow.known_ops((*step.objectives, *step.losses)),
        ]
        self._model = flow.reachable(ends) if ends else None
        self.readers = {
            variable.name: self._readers(flow.number[variable.name])
            for variable in graph.placement.variables
        }
        self._add_readers_of_shared_results()
        reads: dict[Site, dict[str, str]] = defaultdict(dict)
        for variable, readers in self.readers.items():
            for reader in readers:
                site = sites[reader]
                if site is not None:
                    reads[site].setdefault(variable, flow.names[reader])
        self.site_reads = [
            SiteReads(site.device, reads[site], site) for site in sorted(reads, key=_order)
        ]
        self.site_indices = cast(Sequence[SiteIndex], range(len(self.site_reads)))
        self.joined_sites = (
            set(map(frozenset, self._uses()))
            if by_loss is None
            else self._parts_by_loss(by_loss.by_site)
        )

    def _readers(self, variable: OpId) -> list[OpId]:
        """Return the ops that compute with a variable's value, directly or after an identity op.

        Assignments, optimizer updates, savers and the like do not compute with it. If a function
        is called with the variable, the ops of its body count instead of the call.
        """
        flow = self._flow

        def is_end(op: OpId) -> bool:
            return op != variable and flow.types[op] not in PASSES_READ

        return sorted(
            op
            for op in flow.reachable([variable], flow.consumers, until=is_end)
            if is_end(op)
            and flow.types[op] not in NOT_A_READ
            and not is_update(flow.types[op])
            and op not in flow.calls
            and (self.in_loss(op) or op not in self.behind_updates)
        )

    def in_model(self, op: OpId) -> bool:
        """Whether a reader is part of the model: at a site, or on the way to a loss."""
        return self.in_loss(op) or self.sites[op] is not None

    def in_loss(self, op: OpId) -> bool:
        """Whether the value of an op reaches a loss or a gradient; true if none is known."""
        return self._model is None or op in self._model

    @cached_property
    def behind_updates(self) -> Collection[OpId]:
        """The ops that updates of the step depend on."""
        updates = self._graph.updates
        return self._flow.reachable(chain.from_iterable(map(updates.values, updates.by_variable)))

    def _add_readers_of_shared_results(self) -> None:
        """Add the first ops of each site that use a result of the host or of a shared op."""
        backward, sites = self._graph.backward.ops, self.sites
        shared = [
            [op for op in readers if self.in_loss(op) and not backward[op] and sites[op] is None]
            for readers in self.readers.values()
        ]
        if not any(shared):
            return
        keep = [bool(backward[op]) or site is not None for op, site in enumerate(sites)]
        masks = self._flow.propagate(self._flow.marks(shared), keep=keep)
        variables = list(self.readers)
        for op, producers in zip(self._flow.ops, self._flow.inputs, strict=True):
            if sites[op] is not None and not backward[op]:
                for number in bits_of(union(masks[producer] for producer in producers)):
                    readers = self.readers[variables[number]]
                    if op not in readers:
                        readers.append(op)

    @cached_property
    def joined_forward(self) -> Collection[frozenset[SiteIndex]]:
        """The pairs of sites, by index, that use each other's results in the forward pass.

        If copies of a model have a joint loss, they use each other's results in the backward pass,
        but not in the forward pass.
        """
        return set(map(frozenset, self._uses(forward=True)))

    @cached_property
    def are_layers(self) -> bool:
        """Whether sites use results of other sites in the forward pass, all in one direction.

        Copies of a model that exchange values, such as moments of all rows, do so in both.
        """
        pairs = self._uses(forward=True)
        is_connected = len(connected_groups(self.site_indices, pairs)) == 1
        return is_connected and not any(pair[::-1] in pairs for pair in pairs)

    def _parts_by_loss(
        self, towers: Mapping[Site, TowerIndex]
    ) -> Collection[frozenset[SiteIndex]]:
        """Return the pairs of sites of one tower, if the towers were found by loss."""
        sites: dict[TowerIndex, list[SiteIndex]] = defaultdict(list)
        for number, each in zip(self.site_indices, self.site_reads, strict=True):
            if each.site in towers:
                sites[towers[each.site]].append(number)
        return {frozenset((first, other)) for first, *others in sites.values() for other in others}

    def _uses(self, *, forward: bool = False) -> Collection[tuple[SiteIndex, SiteIndex]]:
        """Return the pairs of sites where the first uses a result that the second computed.

        Results that are computed only from variables that all sites read do not count.
        """
        if len(self.site_reads) < 2:
            return set()
        shared = set.intersection(*(set(each.reads) for each in self.site_reads))
        numbers = {each.site: number for number, each in enumerate(self.site_reads)}
        own = [0] * len(self.sites)
        own_readers: list[tuple[OpId, int]] = []
        for variable in self.readers.keys() - shared:
            for reader in self.readers[variable]:
                site = self.sites[reader]
                if site is not None and not (forward and self._graph.backward.ops[reader]):
                    own[reader] |= 1 << numbers[site]
                    own_readers.append((reader, numbers[site]))
        if not own_readers:
            return set()
        masks = self._flow.propagate(own)
        pairs = {
            (self.site_indices[number], self.site_indices[other])
            for reader, number in own_readers
            for other in bits_of(masks[reader] & ~(1 << number))
        }
        strategy = self._graph.placement.strategy
        replicas = () if strategy is None else strategy.replicas
        of_replica = {
            number
            for number, each in enumerate(self.site_reads)
            if any(each.device.matches(replica) for replica in replicas)
        }
        return {pair for pair in pairs if not of_replica.issuperset(pair)}

    def group_by_tower(self, numbers: Sequence[SiteIndex]) -> list[list[SiteIndex]]:
        """Group the sites with these indices by the tower that they hold parts of."""
        pairs = [(min(pair), max(pair)) for pair in self.joined_sites if pair.issubset(numbers)]
        return connected_groups(numbers, pairs)

    def towers(self) -> list[Tower]:
        """Return the towers: first the towers found by loss, then copies on other GPUs."""
        by_loss = self._by_loss
        if by_loss is None:
            found, rest = [], list(self.site_indices)
        else:
            found = [by_loss.sites(tower) for tower in by_loss.towers]
            used = {device for devices in by_loss.devices for device in devices}
            rest = [
                number
                for number in self.site_indices
                if self.site_reads[number].device not in used
            ]
        found += [
            tuple(self.site_reads[n].site for n in model) for model in self.group_by_tower(rest)
        ]
        return [self._tower(sites) for sites in found]

    def _tower(self, sites: tuple[Site, ...]) -> Tower:
        reads: dict[str, str] = {}
        for each in reversed(self.site_reads):
            if each.site in sites:
                reads |= each.reads
        return Tower(sites, reads)


def _order(site: Site) -> tuple[Device, int]:
    return site.device, -1 if site.tower is None else site.tower


def tower_of_ops(
    graph: GraphAnalysis, reads: ReadsBySite, towers: Mapping[Site, TowerIndex]
) -> Sequence[TowerIndex | None]:
    """Find for each op the only tower that it works for; None for the host and several towers.

    Args:
        graph: the program.
        reads: the variables that are read at each site.
        towers: the number of the tower at each site.
    """
    flow, ops, backward, sites = graph.flow, graph.placement.by_number, graph.backward, reads.sites
    found = [None if site is None else towers.get(site) for site in sites]
    joint = _ops_of_joint_loss(graph, reads, found)

    def is_shared_on_gpu(op: OpId) -> bool:
        return (sites[op] is None or op in joint) and ops[op].requested.is_gpu

    def only_tower(neighbors: Iterable[OpId]) -> TowerIndex | None:
        different = {found[op] for op in neighbors if backward.ops[op]} - {None}
        return different.pop() if len(different) == 1 else None

    # A forward op that requests no device follows the ops that it is colocated with.
    for here, op in zip(flow.ops, ops, strict=True):
        if op.colocated and op.requested.type is None and not backward.ops[here]:
            numbers = (flow.number.get(name, here) for name in op.colocated)
            found[here] = next((found[other] for other in numbers if other < here), None)
    for number in joint:
        found[number] = None
    # A backward op follows its forward op. If towers share this op, it follows its inputs.
    for number, (forward, _) in backward.forward.items():
        if found[forward] is not None:
            found[number] = found[forward]
        elif is_shared_on_gpu(forward):
            found[number] = only_tower(flow.inputs[number])
    # Other backward ops follow the ops that use them, for instance the zeros and shapes that the
    # gradient of a variable needs, and inputs of the gradient of a shared op.
    for number in reversed(list(backward.numbers())):
        forward_op = backward.forward[number][0] if number in backward.forward else None
        if forward_op is None or flow.types[forward_op] in VARIABLES:
            follows = found[number] is not None
        else:
            follows = found[number] is None and is_shared_on_gpu(forward_op)
        if follows and (user := only_tower(flow.consumers[number])) is not None:
            found[number] = user
    return found


def _ops_of_joint_loss(
    graph: GraphAnalysis, reads: ReadsBySite, tower_of: Sequence[TowerIndex | None]
) -> Collection[OpId]:
    """Return the forward ops that combine the outputs of towers, on the GPUs of joint losses.

    There are none if each tower has a loss, or if a loss depends on one tower alone. If one of the
    ops computes with a variable, towers exchange values within the model instead, for example to
    normalize over all rows.
    """
    flow, losses, sites = graph.flow, graph.loss_ops, reads.sites
    gpus = {sites[loss] for loss in losses} - {None}
    if not gpus or len(losses) >= len({tower for tower in tower_of if tower is not None}):
        return ()
    own = [0] * len(tower_of)
    readers = {
        op
        for op in chain.from_iterable(reads.readers.values())
        if tower_of[op] is not None and not graph.backward.ops[op]
    }
    for op in readers:
        own[op] = 1 << cast(int, tower_of[op])
    behind = flow.propagate(own)
    if any(behind[loss].bit_count() < 2 for loss in losses):
        return ()
    joint = {
        op
        for op in flow.ops
        if behind[op].bit_count() > 1 and sites[op] in gpus and not graph.backward.ops[op]
    }
    return () if joint & readers else joint
