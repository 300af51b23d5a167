from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, NamedTuple

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.discovery import SiteReads
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import MirroredVariable, variable_layout
from placement_checks.analysis.variables.roles import roles
from placement_checks.analysis.variables.slots import find_slots
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.ids import SiteIndex
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing, NotApplicable
from placement_checks.core.op_types import RANDOM_SEEDED, RESTORES
from placement_checks.core.placement import GLOBAL, TRAINABLE, Placement
from placement_checks.core.results import Finding, PathStep, Verdict
from placement_checks.core.target import Script
from placement_checks.rules.base import (
    NUMBERED_NAME,
    Rule,
    matches_any,
    unless_allowed,
)
from placement_checks.rules.catalog import state_mistake
from placement_checks.rules.ranks import tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import (
    blame_selection,
    made_by_tf_variable,
    shared_variables,
)
from placement_checks.util.text import join_and, listed, plural


@dataclass(frozen=True)
class VariablesShared(Rule):
    """All towers read the same variables.

    A tower with its own weights trains them separately. Nothing fails, but the averaged gradients
    belong to different weights. The usual causes are tf.Variable instead of get_variable, a
    variable scope that is not reused (or is named after the tower), and a layer that is built
    again for each tower.

    There are two kinds of findings. By data flow: two GPUs read different variables of the same
    shape, dtype and use, and the GPUs do not hold parts of one model. Two GPUs hold parts of one
    model if one GPU uses results of the other before gradients are combined. By collections: the
    program is built with 1 and with N towers, and TRAINABLE_VARIABLES and GLOBAL_VARIABLES must
    not grow. An optimizer slot may only be added along with its variable.

    Mirrored variables are shared too: each tower has a copy, and the same sum of gradients updates
    all copies. A copy is a finding if its update takes another sum, such as the gradients of its
    own tower, or if it has no update. If copies take the same gradients, but combine them in other
    terms, the rule is not checked. Each tower may have its own variables that belong to copies:
    slots, averages, statistics and frozen weights. If there are copies, it may also have variables
    that no loss depends on, such as a counter. With or without copies, it may have accumulators:
    variables that only add up values to show, or that add up gradients until a step applies the
    sum and empties the variables. It may also have scalars that weigh its loss or its gradients,
    if the step does not change them.

    Copies that the program makes itself must start equal. Random initial values with seeds of
    their own are a finding in a whole program, unless an op assigns one copy to another, or
    restores a copy that has another name in the checkpoint. A function does not show what runs
    before the first step, nor do values that the program feeds to its variables. Then a note
    mentions the copies.

    A variable in TRAINABLE_VARIABLES must also be in GLOBAL_VARIABLES. Otherwise it is trained,
    but global_variables_initializer() does not set it and a Saver does not save it. Copies may be
    local: they are set to the first copy's values, which are saved.

    `layout` declares whether the trainable variables of the program are mirrored or central; any
    other layout is then a finding. By default, each variable is judged by its actual layout.

    `allow` lists variables, or patterns such as tower_*/bn/*, that each tower has separately on
    purpose, or that have another layout than declared.
    """

    name = "variables-shared"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.UNSHARED
    requires = frozenset({Need.REQUESTED, Need.VARIABLES})
    uses = frozenset({Need.SINGLE_GPU})
    intended = "each tower has its own copy of these variables, trained separately"
    threads = (
        "tensorflow/models#2206: do the towers of Inception have separate weights?",
        "brain-research/self-attention-gan#13: a switch for sharing that nothing reads",
        "kuza55/keras-extras#13: are the weights of the copies shared?",
    )

    allow: tuple[str, ...] = ()
    layout: Literal["", "central", "mirrored"] = ""

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis, actual = analyze(placement), variable_layout(placement)
        reads = analysis.reads_by_site
        towers = len(analysis.towers)
        single = _single_gpu_program(evidence)
        in_global = {*placement.collected.get(GLOBAL, ()), *actual.copies, *actual.diverging}
        not_saved = [
            state_mistake(placement, name, mistakes.NOT_SAVED, {"variable": name})
            for name in placement.collections.get(TRAINABLE, ())
            if name not in in_global
        ]
        if len(reads.site_reads) < 2 and not single and not not_saved:
            where = (
                f"on {reads.site_reads[0].device.short} only" if reads.site_reads else "on no GPU"
            )
            reason = (
                f"variables are read {where}, and the program cannot be compared with its build "
                f"for one GPU: {single}"
            )
            return self.without((NotApplicable if len(reads.site_reads) == 1 else Missing)(reason))
        # All GPUs hold parts of one model if the program has one loss, or one loss for each
        # micro-batch, or if each GPU passes its results on to the next one. A joint loss of
        # several towers does not count as one loss.
        has_one_loss = len(analysis.loss_ops) == 1 or analysis.micro_batches > 1
        has_one_loss |= bool(analysis.loss_ops) and reads.are_layers
        is_one_model = has_one_loss and analysis.by_loss is None and towers == 1
        may_grow = {
            name
            for name, role in roles(placement).items()
            if (role.devices and name not in actual.strays)
            or role.kind in ("accumulator", "weight")
            or (role.kind == "unused" and actual.mirrored)
            if role.kind != "split" or is_one_model or towers > 1
        }
        diverging = {finding.object: finding for finding in _diverging_copies(placement)}
        known = {*may_grow, *diverging}
        if single:
            known.update(variable.name for variable in single.variables)
        copies = {
            copy.variable: copy
            for copy in _copies(placement, grows=bool(single) and not is_one_model)
            if copy.variable not in known and not matches_any(copy.variable, self.allow)
        }
        right = shared_variables(
            placement, {*copies, *(copy.original for copy in copies.values())}
        )
        starts = list(_unequal_starts(placement))
        program = evidence.program
        # A function, and values that are fed, do not show how variables start.
        is_whole = (
            not isinstance(program, Missing)
            and isinstance(program.program, Script)
            and not program.sets_fed_values
        )
        findings = [*diverging.values(), *(starts if is_whole else ())]
        findings += [_duplicate(placement, right, copy) for copy in copies.values()]
        if single:
            slots = _variables_by_slot(placement)
            may_grow |= {name for name in slots if _is_of_one_optimizer(placement, slots[name])}
            findings += [
                _additional(placement, right, variable, is_slot=bool(slots.get(variable)))
                for variable in _added_variables(placement, single, {*copies, *diverging}, slots)
                if variable not in may_grow
            ]
        if self.layout == "mirrored":
            findings += _central_variables(placement)
        elif self.layout == "central":
            findings += _mirrored_variables(placement)
        findings = unless_allowed(findings, self.allow) + not_saved
        if self.layout and towers < 2 and not findings:
            reason = f"the layout is declared {self.layout}, but there are no two towers to judge"
            return self.without((NotApplicable if towers == 1 else Missing)(reason))
        note = _collection_sizes(placement, single)
        if actual.mirrored:
            note = f"{actual}; {note}"
        if starts and not is_whole:
            note += (
                f"; holds only if the program assigns {starts[0].object} and other copies before "
                "the first step, since they start with random values of their own"
            )
        if not single and reads.joined_sites:
            note += "; GPUs that use each other's results count as parts of one model"
        if actual.unproved and not findings:
            unproved = sorted(actual.unproved[0].copies.values())
            return self.not_checked(
                f"{join_and(unproved)} are copies that take the same gradients, but not in the "
                "same terms: they may drift apart",
                note,
                fix="update all copies by one tensor, such as the mean of the gradients",
            )
        return self.verdict(findings, note)


def _single_gpu_program(evidence: Evidence) -> Placement | Missing:
    """Return the program built for one GPU, if its collections can be compared."""
    placement, single = evidence.placement, evidence.single_gpu
    if not single:
        return single
    towers, single_towers = (
        len(analyze(each).reads_by_site.site_reads) for each in (placement, single)
    )
    if 1 < towers <= single_towers:
        return Missing(f"built for one GPU, the program still has {single_towers} towers")
    if not any(placement.collections.values()):
        return Missing("no variable is in a collection")
    return single


class _Copy(NamedTuple):
    """A variable that one tower reads where another tower reads the original."""

    variable: str
    tower: SiteReads
    original: str
    original_tower: SiteReads


def _copies(placement: Placement, *, grows: bool) -> Iterator[_Copy]:
    """Pair the variables that not all towers read, by their use and in the order of creation.

    GPUs that hold parts of one model count as one tower, and each part is paired with a part of
    the first tower. If the collections grow with the number of GPUs (``grows``), GPUs that hold
    parts of the only model are paired as towers.
    """
    reads = analyze(placement).reads_by_site
    gpus = reads.site_reads
    names = placement.collected
    in_collections = {*names.get(TRAINABLE, ()), *names.get(GLOBAL, ())}
    # Variables have the same use if the same op type reads them. Variables in no collection are
    # local, such as a metric's.
    own: dict[tuple[object, ...], dict[SiteIndex, list[str]]]
    own = defaultdict(lambda: defaultdict(list))
    for name, *shape_and_dtype in placement.variables:
        readers = [number for number in reads.site_indices if name in gpus[number].reads]
        if 0 < len(readers) < len(gpus) and (not names or name in in_collections):
            reader = placement.ops[gpus[readers[0]].reads[name]].type
            use = (*shape_and_dtype, _is_trained(placement, name), reader)
            own[use][readers[0]].append(name)
    for by_gpu in own.values():
        models = reads.group_by_tower(sorted(by_gpu))
        if len(models) == 1 and grows:
            models = [[number] for number in sorted(by_gpu)]
        first, *others = models
        for model in others:
            for number, partner in zip(model, [*first, *first[:1] * len(model)], strict=False):
                for original, copy in zip(by_gpu[partner], by_gpu[number], strict=False):
                    if original not in gpus[number].reads:
                        yield _Copy(copy, gpus[number], original, gpus[partner])


def _added_variables(
    placement: Placement,
    single: Placement,
    reported: Collection[str],
    slots: Mapping[str, set[str]],
) -> Iterator[str]:
    """Yield the variables that exist with N towers and not with one.

    A slot of a reported variable is left out. If the program for one GPU uses other names, new
    variables are matched with removed variables by shape and dtype, and only unmatched variables
    are yielded.
    """
    names, before = (
        {name for key in _COLLECTIONS for name in program.collections.get(key, ())}
        for program in (placement, single)
    )
    shapes = {variable.name: variable[1:] for variable in placement.variables}
    removed = Counter(
        variable[1:]
        for variable in single.variables
        if variable.name in before and variable.name not in names
    )
    new = [name for name in shapes if name in names - before and name not in reported]
    for name in new:
        if removed[shapes[name]]:
            removed[shapes[name]] -= 1
        elif not slots.get(name, set()) & {*reported, *new}:
            yield name


def _variables_by_slot(placement: Placement) -> dict[str, set[str]]:
    """Return the variables of each slot: their updates take it, or it is colocated with them."""
    held, variables = find_slots(placement).held, {each.name for each in placement.variables}
    return {
        name: {*held.get(name, ()), *variables.intersection(placement.ops[name].colocated)}
        for name in variables
    }


def _is_of_one_optimizer(placement: Placement, variables: Collection[str]) -> bool:
    """Whether each of the variables is updated once, with the gradients of all towers.

    Then their slots belong to another optimizer than on one GPU.
    """
    gradients = gradient_flow(placement)
    updates = [gradients.trained.get(name, ()) for name in variables]
    every = analyze(placement).all_towers
    return bool(updates) and all(
        len(each) == 1 and gradients.towers(each[0]) == every for each in updates
    )


def _diverging_copies(placement: Placement) -> Iterator[Finding]:
    """Yield findings on copies with a different update than most copies of the variable."""
    analysis = analyze(placement)
    for group in variable_layout(placement).mirrored:
        others = list(group.copies.values())
        for tower, name in group.diverging.items():
            facts = {"copy": name, "tower": analysis.towers[tower], "others": listed(others)}
            yield state_mistake(
                placement,
                name,
                mistakes.COPY_OF_OTHER_SUM,
                {**facts, "update": _update_text(placement, name)},
                path=tuple(
                    PathStep(f"{step.variable} <- {analysis.flow.names[step.op]}", step.variable)
                    for variable in (name, others[0])
                    for step in analysis.updates.by_variable.get(variable, ())
                ),
                devices=analysis.towers[tower].devices,
            )


def _unequal_starts(placement: Placement) -> Iterator[Finding]:
    """Yield findings on copies that start with other random values than the first copy.

    Only copies that the program itself makes are judged: a strategy makes its copies equal.
    """
    made_by_strategy = placement.strategy.copies if placement.strategy else {}
    for group in variable_layout(placement).mirrored:
        (_, first), *others = sorted(group.copies.items())
        if first in made_by_strategy:
            continue
        draws = {name: _initial_draws(placement, name, group) for name in group.copies.values()}
        for tower, name in others:
            drawn, of_first = draws[name], draws[first]
            if drawn is None or of_first is None or drawn == of_first:
                continue
            yield state_mistake(
                placement,
                name,
                mistakes.OTHER_START,
                {"copy": name, "first": first},
                group_key=tower,
                devices=analyze(placement).towers[tower].devices,
            )


def _initial_draws(
    placement: Placement, name: str, group: MirroredVariable
) -> Sequence[Hashable] | None:
    """The keys of the random ops of a variable's initial value, in order.

    None if the variable may start in another way: it takes the value of another copy, a checkpoint
    has it under another name, or several ops set it before the step.
    """
    analysis = analyze(placement)
    flow, details = analysis.flow, placement.details
    others = {flow.number[each] for each in group.copies.values()} - {flow.number[name]}
    initializers = []
    for writer, values in flow.writers.get(flow.number[name], ()):
        if analysis.updates.in_step[writer]:
            continue
        behind = flow.reachable(values)
        if any(flow.types[op] in RESTORES for op in behind):
            if any(name.encode() in (details.value(flow.names[op]) or ()) for op in behind):
                continue
            return None  # perhaps the copies restore the same value
        if not others.isdisjoint(behind):
            return None
        initializers.append(behind)
    if len(initializers) != 1:
        return None
    draws = [op for op in sorted(initializers[0]) if flow.types[op] in RANDOM_SEEDED]
    return [analysis.draw_key(op) for op in draws]


def _update_text(placement: Placement, name: str) -> str:
    analysis, gradients = analyze(placement), gradient_flow(placement)
    updates = gradients.trained.get(name, ())
    if not updates:
        return "no update by a gradient"
    towers = union(map(gradients.towers, updates))
    if towers == analysis.all_towers:
        return "an update by another sum of gradients"
    return f"an update by the gradients of {analysis.names_of(towers) if towers else 'no tower'}"


def _central_variables(placement: Placement) -> Iterator[Finding]:
    analysis, layout = analyze(placement), variable_layout(placement)
    # A saved graph may lack collections: then the variables that gradients update are judged.
    trainable = placement.collected.get(TRAINABLE, gradient_flow(placement).trained)
    for variable in placement.variables:
        name, readers = variable.name, layout.readers.get(variable.name, 0)
        if name in trainable and readers.bit_count() > 1:
            declared = f"if one variable is intended: --set variables-shared.allow={name}"
            facts = {"variable": name, "towers": analysis.names_of(readers), "declared": declared}
            yield state_mistake(placement, name, mistakes.NOT_MIRRORED, facts, group_key=readers)


def _mirrored_variables(placement: Placement) -> Iterator[Finding]:
    analysis = analyze(placement)
    for group in variable_layout(placement).mirrored:
        (_, first), *others = sorted(group.copies.items())
        for tower, name in others:
            declared = "if copies are intended: --set variables-shared.layout=mirrored"
            facts = {"copy": name, "first": first, "tower": analysis.towers[tower]}
            yield state_mistake(
                placement,
                name,
                mistakes.NOT_CENTRAL,
                {**facts, "declared": declared},
                devices=analysis.towers[tower].devices,
            )


_COLLECTIONS = {TRAINABLE: "trainable", GLOBAL: "global"}


def _collection_sizes(placement: Placement, single: Placement | Missing) -> str:
    """Return the sizes of the collections with one tower and with N, for the note."""
    sizes = {key: len(placement.collections.get(key, ())) for key in _COLLECTIONS}
    summary = f"{sizes[TRAINABLE]:,} trainable and {plural(sizes[GLOBAL], 'global variable')}"
    if not single:
        reason = f"only the data flow was checked: {single.reason}"
        return f"{summary}; {reason}" if placement.collections else reason
    gpus = (placement.machine and len(placement.machine.gpus)) or "several"
    before = {key: len(single.collections.get(key, ())) for key in _COLLECTIONS}
    if before == sizes:
        return f"{summary} with 1 tower and with {gpus} towers"
    return "; ".join(
        f"{kind} variables: {before[key]:,} with 1 tower, {sizes[key]:,} with {gpus} towers"
        for key, kind in _COLLECTIONS.items()
    )


def _duplicate(placement: Placement, right: Sequence[str], copy: _Copy) -> Finding:
    """Return the finding on a variable that a tower reads instead of the original."""
    tower, other = copy.tower.device.short, copy.original_tower.device.short
    updates = analyze(placement).updates
    noun, trained = tower_kind(placement), _is_trained(placement, copy.variable)
    separate = "separate variables"
    if trained and (updates.unknown or copy.variable in updates.by_variable):
        separate = "trained separately"
        effect = (
            f"each {noun} learns only from its own part of each batch; evaluation and export use "
            f"the weights of one {noun}"
        )
    elif trained:
        effect = (
            f"no step updates it: the {noun} computes gradients of weights that keep their "
            "initial values"
        )
    else:
        effect = (
            f"each {noun} has its own value, and evaluation reads one of them, which has seen "
            f"only the examples of that {noun}"
        )
    if (odd := _odd_copy(placement, copy)) is not None:
        return odd
    by_tf_variable = made_by_tf_variable(placement, copy.variable)
    numbered = None if by_tf_variable else _tower_number(placement, copy)
    mistake = mistakes.NAMED_APART if numbered else mistakes.BUILT_APART
    facts = {"tower": tower, "copy": copy.variable, "other": other, "original": copy.original}
    return state_mistake(
        placement,
        copy.variable,
        mistakes.MADE_APART if by_tf_variable else mistake,
        {**facts, "separate": separate, "effect": effect, "name": numbered},
        path=(
            PathStep(
                f"{copy.original} -> {copy.original_tower.reads[copy.original]} ({other})",
                copy.original,
            ),
            PathStep(
                f"{copy.variable} -> {copy.tower.reads[copy.variable]} ({tower})", copy.variable
            ),
        ),
        group_key=(trained, by_tf_variable, numbered),
        ops=(copy.variable, copy.original),
        against=() if by_tf_variable else tuple(right),
        devices=(copy.tower.device, copy.original_tower.device),
    )


def _odd_copy(placement: Placement, copy: _Copy) -> Finding | None:
    """Return the finding on a copy whose update lacks towers, if other variables have copies."""
    analysis, gradients = analyze(placement), gradient_flow(placement)
    names = (copy.variable, copy.original)
    odd = [
        name
        for name in names
        if union(map(gradients.towers, gradients.trained.get(name, ()))) != analysis.all_towers
    ]
    updates = gradients.trained.get(odd[0], ()) if len(odd) == 1 else ()
    if not updates or not variable_layout(placement).mirrored:
        return None
    ops = [analysis.flow.names[update.op] for update in updates]
    other = next(name for name in names if name != odd[0])
    return state_mistake(
        placement,
        odd[0],
        mistakes.COPY_LEFT_OUT,
        {"copy": odd[0], "update": _update_text(placement, odd[0]), "other": other},
        path=tuple(PathStep(f"{odd[0]} <- {op}", op) for op in ops),
        ops=tuple(ops),
        frames=blame_selection(placement, ops),
        devices=(copy.tower.device, copy.original_tower.device),
    )


def _tower_number(placement: Placement, copy: _Copy) -> str | None:
    """Return the part of the original's name that contains the number of its tower.

    The result is None if the two names differ by more than the numbers of their towers. A
    number that only makes a name unique, as in dense_1 and dense_3, is not a tower number.
    """
    parts = zip_longest(copy.original.split("/"), copy.variable.split("/"), fillvalue="")
    different = [pair for pair in parts if pair[0] != pair[1]]
    if len(different) != 1:
        return None
    original, duplicate = (NUMBERED_NAME.fullmatch(part) for part in different[0])
    if original is None or duplicate is None or original[1] != duplicate[1]:
        return None
    gpus = [tower.device for tower in analyze(placement).reads_by_site.site_reads]
    distance = gpus.index(copy.tower.device) - gpus.index(copy.original_tower.device)
    return different[0][0] if int(duplicate[2]) - int(original[2]) == distance else None


def _additional(
    placement: Placement, right: Sequence[str], variable: str, *, is_slot: bool
) -> Finding:
    """Return the finding on a variable that the program for one GPU does not have."""
    gpus = analyze(placement).reads_by_site.site_reads
    readers = [tower.device for tower in gpus if variable in tower.reads]
    names = [device.short for device in readers]
    by = ""
    if readers:
        read = "the tower on {} reads" if len(readers) == 1 else "the towers on {} read"
        by = f"; {read.format(join_and(names))} it"
    mistake, declared = mistakes.ADDED_BY_ONE, ""
    if is_slot:
        mistake = mistakes.OPTIMIZER_OF_EACH
    elif len(readers) != 1:
        mistake, declared = (
            mistakes.ADDED,
            "if it is intended: --set variables-shared.allow=PATTERN",
        )
    return state_mistake(
        placement,
        variable,
        mistake,
        {"variable": variable, "readers": by, "declared": declared},
        group_key=tuple(names),
        devices=tuple(readers),
        against=tuple(right),
    )


def _is_trained(placement: Placement, variable: str) -> bool:
    trainable = placement.collected.get(TRAINABLE)
    return trainable is None or variable in trainable
