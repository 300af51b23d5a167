"""Findings on the ranks of a Horovod program, which several rules share.

Ranks are processes that run the same program. Horovod matches the tensors of a collective by the
name of their op, so a collective waits forever if a rank has no op of this name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.mistakes import TowerKind
from placement_checks.core.op_types import EXAMPLE_SOURCES
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.ranks import INIT, JOB, RankRecord
from placement_checks.core.results import Finding
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import about
from placement_checks.rules.source_lines import blame_creation, blame_setting, unique_lines
from placement_checks.util.text import join_and, plural

_SAME_GRAPH = (
    "build the same graph in every rank, with names that do not depend on the rank; process "
    "results on the first rank alone, without collectives"
)
_NEVER_ENDS = "Horovod finds a collective by its name: the ranks wait for each other forever"


def tower_kind(placement: Placement) -> TowerKind:
    """Return the kind of a program's towers: replicas under a strategy, ranks of Horovod."""
    if placement.strategy is None:
        return "tower"
    return "rank" if placement.strategy.ranks else "replica"


def ranks_of(placement: Placement) -> Sequence[RankRecord]:
    """Return the records of the ranks of a Horovod program; empty for another program."""
    return placement.strategy.ranks if placement.strategy else ()


def ranks_text(numbers: Sequence[int]) -> str:
    """Name ranks: ``rank 1``, ``ranks 0 and 2``."""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {join_and(map(str, numbers))}"


def rank_of(strategy: Strategy, placement: Placement, op: str) -> int:
    """The rank of an op of the joint graph."""
    task = placement.ops[op].requested.task_device
    return next(n for n, each in enumerate(strategy.replicas) if each.task_device == task)


def unmet_collectives(
    placement: Placement, strategy: Strategy, incomplete: Sequence[Sequence[str]]
) -> Iterator[Finding]:
    """Yield a finding on the collectives that some ranks have, and other ranks lack.

    Args:
        placement: the joint graph.
        strategy: the ranks of the graph.
        incomplete: the members of each collective that some rank does not join.
    """
    by_ranks: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for members in incomplete:
        joining = tuple(sorted({rank_of(strategy, placement, name) for name in members}))
        by_ranks[joining].append(members[0])
    if not by_ranks:
        return
    waits = []
    for joining, names in by_ranks.items():
        absent = [n for n in range(len(strategy.replicas)) if n not in joining]
        more = f" and {plural(len(names) - 1, 'other')}" if names[1:] else ""
        verb = "waits" if len(joining) == 1 else "wait"
        waits.append(f"{ranks_text(joining)} {verb} in {names[0]}{more} for {ranks_text(absent)}")
    first = next(iter(by_ranks.values()))[0]
    yield Finding(
        **about(placement.ops[first]),
        ops=tuple(name for names in by_ranks.values() for name in names),
        message=f"the ranks have collectives of different names: {', and '.join(waits)}",
        devices=tuple(strategy.replicas),
        consequence=_NEVER_ENDS,
        fix=_SAME_GRAPH,
    )


def unmet_before_step(strategy: Strategy) -> Iterator[Finding]:
    """Compare the collectives that ranks run before the step; yield the first difference."""
    ran = [Counter(record.collectives) for record in strategy.ranks]
    for name in dict.fromkeys(each for record in strategy.ranks for each in record.collectives):
        times = max(count[name] for count in ran)
        joining = [n for n, count in enumerate(ran) if count[name] == times]
        absent = [n for n, count in enumerate(ran) if count[name] < times]
        if absent:
            runs = f"{'runs' if len(joining) == 1 else 'run'} {name}"
            do_not = f"{'does' if len(absent) == 1 else 'do'} not"
            if any(ran[n][name] for n in absent):
                runs, do_not = f"{runs} {times} times", "fewer times"
            yield Finding(
                **about(name),
                frames=unique_lines(strategy.ranks[joining[0]].frames.get(name, ())),
                message=f"before the first step, {ranks_text(joining)} {runs}, and "
                f"{ranks_text(absent)} {do_not}",
                devices=tuple(strategy.replicas[n] for n in (*joining, *absent)),
                consequence=_NEVER_ENDS,
                fix="run it in all ranks, outside of conditions on hvd.rank()",
            )
            return


def different_starts(placement: Placement, strategy: Strategy) -> Iterator[Finding]:
    """Yield findings on variables that start with different values on the ranks.

    These are trainable variables, and other parts of the model, such as a target network.
    """
    if not strategy.ranks:
        return
    first, trainable = strategy.ranks[0], placement.collected.get(TRAINABLE, placement.ops)
    for name, value in first.starts.items():
        if name not in placement.ops or name in first.broadcast:
            continue
        other = [
            n
            for n, record in enumerate(strategy.ranks)
            if record.starts.get(name, value) != value and name not in record.broadcast
        ]
        if other and (name in trainable or _is_of_model(placement, name)):
            yield Finding(
                **about(placement.ops[name]),
                frames=unique_lines(first.frames.get(name, ())) or blame_creation(placement, name),
                message=f"{name} starts with another value on {ranks_text(other)} than on rank 0, "
                "and no broadcast makes them equal",
                devices=tuple(strategy.replicas[n] for n in other),
                consequence="the ranks train different models, although they apply the same "
                "gradients, and only the model of the first rank is saved"
                if name in trainable
                else "each rank computes its loss with another value of it, so the ranks average "
                "the gradients of different losses",
                fix="broadcast after initialization: hvd.BroadcastGlobalVariablesHook(0), "
                "session.run(hvd.broadcast_global_variables(0)), or "
                "hvd.broadcast_variables(variables, root_rank=0)",
                group_key=tuple(other),
            )


def _is_of_model(placement: Placement, name: str) -> bool:
    """Whether the loss depends on a variable, and no value of it is made of examples.

    Statistics, and states that each rank keeps for its own examples, may differ. So may seeds.
    """
    analysis = analyze(placement)
    reads, flow = analysis.reads_by_site, analysis.flow
    is_float = any(each.name == name and "float" in each.dtype for each in placement.variables)
    written = (value for _, values in flow.writers.get(flow.number[name], ()) for value in values)
    return (
        is_float
        and bool(analysis.loss_ops)
        and any(map(reads.in_loss, reads.readers[name]))
        and not any(flow.types[op] in EXAMPLE_SOURCES for op in flow.reachable(written))
    )


def shared_gpus(placement: Placement, strategy: Strategy) -> Iterator[Finding]:
    """Yield a finding for each GPU that several ranks of one host compute on."""
    users: dict[int, list[int]] = defaultdict(list)
    for number, record in enumerate(strategy.ranks):
        for gpu in record.gpus or ():
            users[gpu].append(number)
    idle = [gpu for gpu in range(len(strategy.ranks)) if gpu not in users]
    for gpu, ranks in users.items():
        if len(ranks) < 2:
            continue
        unused = "GPU" if len(idle) == 1 else "GPUs"
        verb = "is" if len(idle) == 1 else "are"
        yield Finding(
            **about(f"GPU {gpu} of the host", "assigned"),
            frames=blame_setting(placement, "visible_device_list", "set_visible_devices")
            or unique_lines(strategy.ranks[ranks[0]].frames.get(INIT, ())),
            message=f"{ranks_text(ranks)} compute on GPU {gpu} of their host"
            + (f"; {unused} {join_and(map(str, idle))} {verb} idle" if idle else ""),
            devices=tuple(strategy.replicas[n] for n in ranks),
            consequence="they share its memory, and compute in turn",
            fix="select the GPU of the rank: config.gpu_options.visible_device_list = "
            "str(hvd.local_rank()), or tf.config.set_visible_devices(gpus[hvd.local_rank()], "
            f"'GPU'); if they share it on purpose: --set no-idle-device.allow=/job:{JOB}",
        )
