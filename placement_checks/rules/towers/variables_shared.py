"""Findings on mirrored variables: copies that do not take what the others take.

Findings on variables that lie otherwise to the towers than a program declares.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.towers.discovery import GpuReads, ReadsByGpu
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.roles import roles
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import is_gradient_update
from placement_checks.core.placement import GLOBAL, TRAINABLE, Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.variables import Variable
from placement_checks.rules.base import REUSE, Rule, matches_any
from placement_checks.rules.requirements import Need
from placement_checks.rules.tower_variables import (
    Copy,
    OwnVariables,
    gpu_count,
    is_trained,
    not_checkpointed,
)
from placement_checks.util.text import join_and, plural


def copies_apart(placement: Placement) -> Iterator[Finding]:
    """Findings on the copies that another sum updates than the others, or none."""
    for group in variable_layout(placement).mirrored:
        for tower, name in group.diverging.items():
            yield _apart(placement, name, tower, list(group.copies.values()))


def _apart(placement: Placement, name: str, tower: int, others: list[str]) -> Finding:
    analysis = analyse(placement)
    given = _update(placement, name)
    shown = join_and([*others[:3], *([f"{len(others) - 3} more"] if len(others) > 3 else [])])
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected=f"an update by the same gradients as {shown}",
        found=given,
        path=tuple(
            f"{update.variable} <- {analysis.flow.names[update.op]}"
            for variable in (name, others[0])
            for update in analysis.updates.by_variable.get(variable, ())
        ),
        message=f"{name} is the copy that the tower on {analysis.towers[tower]} reads, and gets "
        f"{given}, where its copies {shown} all take the same sum",
        consequence="the copies drift apart: the towers train different models",
        fix="apply the sum of all towers' gradients to every copy",
    )


def _update(placement: Placement, name: str) -> str:
    """By what a variable is updated, as text."""
    analysis, gradients = analyse(placement), gradient_flow(placement)
    updates = gradients.trained.get(name, ())
    if not updates:
        return "no update by a gradient"
    towers = 0
    for update in updates:
        towers |= gradients.towers(update)
    if towers == analysis.all_towers:
        return "an update by another sum of gradients"
    return f"an update by the gradients of {analysis.names_of(towers) if towers else 'no tower'}"


def not_as_declared(
    placement: Placement, declared: Literal["", "central", "mirrored"]
) -> Iterator[Finding]:
    """Findings on the trainable variables of which there is one where each tower should have a
    copy, or the other way round; none if nothing is declared.
    """
    if declared == "mirrored":
        yield from _central(placement)
    elif declared == "central":
        yield from _mirrored(placement)


def _central(placement: Placement) -> Iterator[Finding]:
    analysis, layouts = analyse(placement), variable_layout(placement)
    # A saved graph may have lost its collections: then those that gradients update.
    trainable = placement.collected.get(TRAINABLE, gradient_flow(placement).trained)
    for variable in placement.variables:
        name, readers = variable.name, layouts.readers.get(variable.name, 0)
        if name in trainable and readers.bit_count() > 1:
            yield Finding(
                object=name,
                op=placement.ops[name].type,
                evidence="requested",
                expected="a copy for each tower",
                found="one variable for several towers",
                message=f"{name} is one variable, which {analysis.names_of(readers)} read, where "
                "each is to have a copy",
                consequence="its value is sent to the other GPUs in every step",
                fix="make it once for each tower, in a variable scope of the tower's own, and "
                f"apply the same sum to all; if one is meant: --set variables-shared.allow={name}",
                alike=("central", readers),
            )


def _mirrored(placement: Placement) -> Iterator[Finding]:
    analysis = analyse(placement)
    for group in variable_layout(placement).mirrored:
        (_, first), *others = sorted(group.copies.items())
        for tower, name in others:
            yield Finding(
                object=name,
                op=placement.ops[name].type,
                evidence="requested",
                expected=f"{first}, for all towers",
                found="a copy for one tower",
                message=f"{name} is the copy that the tower on {analysis.towers[tower]} has of "
                f"{first}, where one variable is to be shared",
                consequence="every GPU holds the variable, and its slots, once more",
                fix=f"build each tower under `{REUSE}`; if copies are meant: "
                "--set variables-shared.layout=mirrored",
                alike="mirrored",
            )


@dataclass(frozen=True)
class VariablesShared(Rule):
    """All towers read the same variables.

    A tower that has weights of its own trains them by itself: nothing fails, and the gradients
    that are averaged belong to different weights. The usual causes are tf.Variable instead of
    get_variable, a variable scope that is not reused (or is named after the tower), and a layer
    that is built again for each tower.

    There are two kinds of findings. By data flow: two variables of the same shape, dtype and use
    are each read on another GPU, and these GPUs do not hold parts of one model: neither uses what
    is computed on the other before gradients are brought together. By collections: the program
    is built with 1 and with N towers, and TRAINABLE_VARIABLES and GLOBAL_VARIABLES must not grow.
    An optimiser slot may only be added along with its variable.

    Mirrored variables are shared too: each tower has a copy, and the same sum of gradients updates
    all of them. A finding is the copy that takes another sum, such as its own tower's gradients,
    or none. What goes with copies may be each tower's own: slots, averages, statistics and frozen
    weights. So may be variables in which each tower adds up what is only shown, or its gradients,
    until a step takes them and they are emptied.

    What is in TRAINABLE_VARIABLES must be in GLOBAL_VARIABLES as well: a variable that is not is
    trained, but global_variables_initializer() does not set it and a Saver does not save it.
    Copies may be local: they are set to the values of the first, and saved as that one.

    `layout` declares once for the program how its trainable variables lie to the towers, mirrored
    or central; what lies otherwise is a finding then. Without it each is judged by what it is.

    `allow` lists variables, or patterns such as tower_*/bn/*, that towers have of their own on
    purpose, or that lie otherwise than declared.
    """

    name = "variables-shared"
    kind = "requested"
    requires = frozenset({Need.REQUESTED, Need.VARIABLES})

    allow: tuple[str, ...] = ()
    layout: Literal["", "central", "mirrored"] = ""

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        parts = analyse(placement).reads_by_gpu
        single = _informative(evidence)
        if not placement.variables:
            return self.not_checked("the graph has no variables")
        not_global = [not_checkpointed(placement, variable) for variable in _not_global(placement)]
        if len(parts.gpus) < 2 and single is None and not not_global:
            where = f"on {parts.gpus[0].device.short} only" if parts.gpus else "on no GPU"
            reason = f"variables are read {where}, and {_why_not(evidence)}"
            return self.not_checked(reason, one_tower=len(parts.gpus) == 1)
        of_single = {variable.name for variable in single.variables} if single else set()
        mirrored = variable_layout(placement).mirrored
        strays = variable_layout(placement).strays
        is_one_model = _is_one_model(placement)
        may_grow = {
            name
            for name, role in roles(placement).items()
            if (role.devices and name not in strays) or role.kind == "accumulator"
            if role.kind != "split" or is_one_model or len(analyse(placement).towers) > 1
        }
        apart = {finding.object: finding for finding in copies_apart(placement)}
        known = {*of_single, *may_grow, *apart}
        copies = {
            copy.variable: copy
            for copy in _copies(placement, parts, informed=single is not None and not is_one_model)
            if copy.variable not in known and not self._is_allowed(copy.variable)
        }
        own = OwnVariables(placement, {*copies, *(copy.original for copy in copies.values())})
        findings = [each for name, each in apart.items() if not self._is_allowed(name)]
        findings += [own.duplicate_finding(copy) for copy in copies.values()]
        if single is not None:
            slots = _primaries(placement)
            findings += [
                own.additional_finding(variable, slot=bool(slots.get(variable)))
                for variable in _grown(placement, single, {*copies, *apart}, slots)
                if variable not in may_grow and not self._is_allowed(variable)
            ]
        findings += [
            finding
            for finding in not_as_declared(placement, self.layout)
            if not self._is_allowed(finding.object)
        ]
        towers = len(analyse(placement).towers)
        if self.layout and towers < 2 and not findings and not not_global:
            reason = f"it is declared {self.layout}, and there are no two towers to tell that of"
            return self.not_checked(reason, one_tower=towers == 1)
        note = _counts(evidence, single)
        if mirrored:
            note = f"{variable_layout(placement)}; {note}"
        if single is None and parts.joined_gpus:
            note += "; GPUs that use each other's results were taken for parts of one model"
        return self.verdict([*findings, *not_global], note)

    def _is_allowed(self, variable: str) -> bool:
        return matches_any(variable, self.allow)


def _is_one_model(placement: Placement) -> bool:
    """Whether all GPUs hold parts of one model, which has one loss, or one for each micro-batch.

    A joint loss of towers is the sum of a loss for each.
    """
    analysis = analyse(placement)
    is_one = len(analysis.loss_ops) == 1 or analysis.micro_batches > 1
    return is_one and analysis.by_loss is None and len(analysis.towers) == 1


def _informative(evidence: Evidence) -> Placement | None:
    """The program built for one GPU, if it is another program than the one for many."""
    placement, single = evidence.placement, evidence.single_gpu
    if not single or 1 < len(analyse(placement).reads_by_gpu.gpus) <= len(
        analyse(single).reads_by_gpu.gpus
    ):
        return None
    return single if any(placement.collections.values()) else None


def _why_not(evidence: Evidence) -> str:
    if not evidence.single_gpu:
        return str(evidence.single_gpu)
    towers = len(analyse(evidence.single_gpu).reads_by_gpu.gpus)
    if 1 < len(analyse(evidence.placement).reads_by_gpu.gpus) <= towers:
        return f"built for one GPU it still has {towers} towers"
    return "no variable is in a collection"


def _copies(placement: Placement, parts: ReadsByGpu, informed: bool) -> Iterator[Copy]:
    """Pair the variables that not all towers read, by their use and in the order of creation.

    GPUs that hold parts of one model count as one tower: the parts of the others are paired with
    those of the first. Where the collections prove that there are too many variables, such
    GPUs are taken for towers all the same if there are no others.
    """
    towers = parts.gpus
    own: dict[tuple[object, ...], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for variable in placement.variables:
        readers = [number for number, tower in enumerate(towers) if variable.name in tower.reads]
        if 0 < len(readers) < len(towers) and not _is_local(placement, variable.name):
            use = _use(placement, variable, towers[readers[0]])
            own[use][readers[0]].append(variable.name)
    for by_tower in own.values():
        models = parts.models(sorted(by_tower))
        if len(models) == 1 and informed:
            models = [[number] for number in sorted(by_tower)]
        first, *others = models
        for model in others:
            for number, of in zip(model, [*first, *first[:1] * len(model)], strict=False):
                for original, copy in zip(by_tower[of], by_tower[number], strict=False):
                    if original not in towers[number].reads:
                        yield Copy(copy, towers[number], original, towers[of])


def _use(placement: Placement, variable: Variable, tower: GpuReads) -> tuple[object, ...]:
    """What must be equal for two variables to be copies: shape, dtype, whether it is trained,
    and the op that reads it.
    """
    reader = placement.ops[tower.reads[variable.name]].type
    return (variable.shape, variable.dtype, is_trained(placement, variable.name), reader)


def _is_local(placement: Placement, variable: str) -> bool:
    """Whether the program keeps a variable out of the collections, such as a metric's."""
    names = placement.collected
    return bool(names) and not any(variable in names.get(key, ()) for key in (TRAINABLE, GLOBAL))


def _grown(
    placement: Placement,
    single: Placement,
    doubled: Collection[str],
    slots: Mapping[str, set[str]],
) -> Iterator[str]:
    """Variables that the program has with N towers and not with one, slots of such left out.

    A program that names its variables otherwise for one tower has as many gone as new: those are
    matched by shape and dtype.
    """
    names = {name for key in (TRAINABLE, GLOBAL) for name in placement.collections.get(key, ())}
    before = {name for key in (TRAINABLE, GLOBAL) for name in single.collections.get(key, ())}
    shapes = {variable.name: variable[1:] for variable in placement.variables}
    gone = Counter(
        variable[1:]
        for variable in single.variables
        if variable.name in before and variable.name not in names
    )
    more = names - before
    new = [
        variable.name
        for variable in placement.variables
        if variable.name in more and variable.name not in doubled
    ]
    for name in new:
        if gone[shapes[name]]:
            gone[shapes[name]] -= 1
        elif not slots.get(name, set()) & {*doubled, *new}:
            yield name


def _primaries(placement: Placement) -> dict[str, set[str]]:
    """For every optimiser slot the variables it serves: those its update op takes before it."""
    variables = {variable.name for variable in placement.variables}
    found: dict[str, set[str]] = defaultdict(set)
    for op in placement.ops.values():
        if not is_gradient_update(op.type):
            continue
        primary, *slots = (producer_of(source) for source in op.inputs)
        for slot in variables.intersection(slots):
            found[slot].add(primary)
    for variable in variables:  # averages and slots whose update does not show them
        found[variable].update(variables.intersection(placement.ops[variable].colocated))
    return found


def _not_global(placement: Placement) -> Iterator[str]:
    copies = variable_layout(placement)
    in_global = {*placement.collected.get(GLOBAL, ()), *copies.copies, *copies.diverging}
    return (name for name in placement.collections.get(TRAINABLE, ()) if name not in in_global)


def _counts(evidence: Evidence, single: Placement | None) -> str:
    """The sizes of the collections with one tower and with N, and by what the rule judged."""
    placement = evidence.placement
    if single is None:
        how = f"judged by data flow only: {_why_not(evidence)}"
        return f"{_sizes(placement)}; {how}" if placement.collections else how
    gpus = gpu_count(placement) or "more"
    if all(_size(single, key) == _size(placement, key) for key in _COLLECTIONS):
        return f"{_sizes(placement)} with 1 tower and with {gpus}"
    return ", ".join(
        f"{plural(_size(single, key), f'{kind} variable')} with 1 tower and "
        f"{_size(placement, key):,} with {gpus}"
        for key, kind in _COLLECTIONS.items()
    )


def _sizes(placement: Placement) -> str:
    trainable, in_global = (_size(placement, key) for key in _COLLECTIONS)
    return f"{trainable:,} trainable and {plural(in_global, 'global variable')}"


def _size(placement: Placement, key: str) -> int:
    return len(placement.collections.get(key, ()))


_COLLECTIONS = {TRAINABLE: "trainable", GLOBAL: "global"}
