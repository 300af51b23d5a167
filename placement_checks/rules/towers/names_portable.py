from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from placement_checks.analysis.graph.analysis import is_local
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.roles import roles
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.ids import TowerIndex
from placement_checks.core.placement import GLOBAL, TRAINABLE, Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import (
    NUMBERED_NAME,
    Rule,
    about,
    first_of_each,
    matches_any,
    unless_allowed,
)
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import (
    locate,
    made_by_tf_variable,
    shared_variables,
)
from placement_checks.util.text import nearest, plural

_Shape = tuple[int | None, ...] | None


@dataclass(frozen=True)
class NamesPortable(Rule):
    """A checkpoint saved on one GPU can be restored on several GPUs, and the reverse.

    A checkpoint stores variables by name. The program for one GPU, or a later program with other
    scopes, does not find a variable that is named tower_0/conv1/weights.

    With a reference (the program for one GPU), each variable of the reference must exist in the
    program with the same name and shape, and each trained variable of the program must exist in
    the reference. Without a reference, no variable may be named after a tower or device.

    A variable is named after a tower if a part of its name has a number, only ops of one tower are
    in the scope of that name, and each other tower has one scope of the same name with another
    number: tower_0 and tower_1, but not conv1 and conv2 of one model. Slots are named after their
    variables and are not reported separately.

    Copies of mirrored variables must be named after towers, and are not findings. A checkpoint
    needs only one of the copies, and the rule compares the first copy with the reference. Local
    variables are in no checkpoint, and a tower's accumulators need not be in one. A checkpoint of
    TensorFlow 2 (tf.train.Checkpoint, Keras) stores objects instead of names: names may differ
    between two such programs.

    `allow` lists variables, or patterns, that have such names on purpose.
    """

    name = "names-portable"
    kind = "requested"
    uses = frozenset({Need.REFERENCE})
    states = FactKind.NAME
    intended = "a checkpoint has these names, which the program for one GPU lacks"
    threads = (
        "Kyubyong/tacotron#80: trained on 8 GPUs, not found by the program for one GPU",
        "tensorpack/tensorpack#325: a checkpoint of several GPUs, loaded for prediction",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement, reference = evidence.placement, evidence.reference
        one_tower = Need.TWO_TOWERS.missing(evidence)
        if one_tower is not None and not reference:
            return self.without(one_tower)
        if not placement.variables and not (reference and reference.variables):
            return self.not_checked("neither the graph nor its reference has variables")
        findings = self._named_after_towers(placement) if one_tower is None else []
        if reference and not (placement.step.traced and reference.step.traced):
            findings += unless_allowed(_differences(placement, reference), self.allow)
        return self.verdict(first_of_each(findings), plural(len(placement.variables), "variable"))

    def _named_after_towers(self, placement: Placement) -> list[Finding]:
        analysis = analyze(placement)
        scopes = _tower_scopes(analysis)
        named: dict[str, str] = {}
        for name in _checkpointed(placement):
            outer = accumulate(name.split("/")[:-1], "{}/{}".format)
            scope = next((each for each in outer if each in scopes), None)
            is_slot = name.rpartition("/")[0] in named
            if scope and not is_slot and not matches_any(name, self.allow):
                named[name] = scope
        right = shared_variables(placement, named)
        return [
            _named_after_tower(analysis, right, name, scope, scopes[scope])
            for name, scope in named.items()
        ]


def _named_after_tower(
    analysis: TowerAnalysis, right: Sequence[str], variable: str, scope: str, number: int
) -> Finding:
    tower = analysis.towers[number]
    is_tf_variable = made_by_tf_variable(analysis.placement, variable)
    return Finding(
        **about(analysis.placement.ops[variable]),
        message=f"variable {variable} is named after the tower on {tower}: {scope}/ contains its "
        "ops",
        consequence="the program for one GPU does not find it in a checkpoint",
        fix="use tf.compat.v1.get_variable in place of tf.Variable: it does not add the tower's "
        "tf.name_scope to names"
        if is_tf_variable
        else "use tf.name_scope in place of tf.compat.v1.variable_scope around each tower: "
        "get_variable does not add it to names",
        devices=tower.devices,
        against=() if is_tf_variable else tuple(right),
    )


def _tower_scopes(analysis: TowerAnalysis) -> dict[str, TowerIndex]:
    """Return the scopes of single towers, if each tower has one such scope, with the tower."""
    towers_in: dict[str, int] = defaultdict(int)
    for op, mask in enumerate(analysis.own_towers):
        towers = mask & analysis.all_towers
        if towers and not analysis.backward.ops[op]:
            scope = analysis.flow.names[op].rpartition("/")[0]
            while scope and towers & ~towers_in[scope]:
                towers_in[scope] |= towers
                scope = scope.rpartition("/")[0]
    # The scopes with equal towers, by the outer scope and the name with and without its number.
    siblings: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    of_tower: dict[str, tuple[str, str]] = {}
    for scope, within in towers_in.items():
        outer, _, name = scope.rpartition("/")
        numbered = NUMBERED_NAME.fullmatch(name)
        for stem in {name, numbered[1] if numbered else name}:
            siblings[outer, stem][within] += 1
        if numbered and within.bit_count() == 1:
            of_tower[scope] = outer, numbered[1]
    return {
        scope: TowerIndex(towers_in[scope].bit_length() - 1)
        for scope, stem in of_tower.items()
        if all(siblings[stem][1 << tower] == 1 for tower in range(len(analysis.towers)))
    }


def _checkpointed(placement: Placement) -> Iterator[str]:
    """Yield the variables that a checkpoint holds, without copies for single towers."""
    for variable in placement.variables:
        role = roles(placement)[variable.name]
        of_all_towers = role.tower is None or not role.devices
        if of_all_towers and not is_local(placement, variable.name):
            yield variable.name


def _differences(placement: Placement, reference: Placement) -> Iterator[Finding]:
    """Yield findings on variables that differ from the reference, or exist in one program only."""
    program = reference.program
    shapes, reference_shapes = analyze(placement).shapes, analyze(reference).shapes
    saved = reference.collected.get(GLOBAL) or reference_shapes.keys()
    same_names = f"give the variables the names that {program} gives them"
    for name, shape in reference_shapes.items():
        is_slot = name.rpartition("/")[0] in reference_shapes.keys() - shapes.keys()
        if name in shapes and not _may_be_equal(shapes[name], shape):
            yield Finding(
                **about(placement.ops[name]),
                message=f"variable {name} has shape {shapes[name]}, but shape {shape} in "
                f"{program}",
                consequence="a checkpoint of one cannot be restored into the other",
                fix="give both the same shape",
            )
        elif roles(reference)[name].kind == "accumulator":
            continue  # a checkpoint need not have it
        elif name in saved and name not in shapes and not is_slot:
            near = nearest(name, sorted(shapes.keys() - reference_shapes.keys()))
            located = placement if name in placement.ops else reference
            finding = Finding(
                **about(located.ops[name]),
                message=f"{program} has a variable {name}, but this program does not"
                + (f"; {near} may be the same variable" if near else ""),
                consequence=f"the value that {program} trained is silently not restored",
                fix=same_names,
            )
            yield from locate([finding], located)
    trained = set(placement.collected.get(TRAINABLE, ()))
    for group in variable_layout(placement).mirrored:  # a checkpoint holds one copy of each
        copies = list(group.copies.values())
        is_first_new = reference_shapes.keys().isdisjoint(copies)
        trained.difference_update(copies[1:] if is_first_new else copies)
    for name in shapes:
        is_accumulator = roles(placement)[name].kind == "accumulator"
        if name in trained and name not in reference_shapes and not is_accumulator:
            yield Finding(
                **about(placement.ops[name]),
                message=f"variable {name} is trainable, but {program} has no variable of this "
                "name",
                group_key="new",
                consequence=f"a checkpoint of {program} cannot be restored: it lacks this "
                "variable",
                fix=same_names,
            )


def _may_be_equal(shape: _Shape, other: _Shape) -> bool:
    if shape is None or other is None:
        return True
    return len(shape) == len(other) and all(
        None in sizes or sizes[0] == sizes[1] for sizes in zip(shape, other, strict=True)
    )
