"""Compares variables that a baseline tells by scope, because they are hundreds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from placement_checks.analysis.folded_variables import folded_by
from placement_checks.core.baseline.difference import Change
from placement_checks.core.baseline.values import Baseline, FoldedScope, HeldVariable
from placement_checks.util.text import joined
from placement_checks.verification.baselines.changes import Changes


def scopes_of(old: Baseline, new: Sequence[HeldVariable]) -> Mapping[str, str]:
    """The scope of the baseline that each new variable belongs to, by its name.

    By the beginning of its name; a scope of which none is left is paired with a new one of as many
    variables, in the order of data flow.
    """
    sizes = Counter[str]()
    for each in old.folded:
        sizes[each.scope] += each.count
    single = {variable.name for variable in old.variables}
    found: dict[str, str] = {}
    left: dict[str, list[str]] = defaultdict(list)
    depth = max((scope.count("/") for scope in sizes), default=0) + 1
    for variable in new:
        path = variable.name.split("/")[:-1]
        ends = range(len(path), -1, -1)
        scope = next((s for s in ("/".join(path[:end]) for end in ends) if s in sizes), None)
        if scope is not None and (scope or not path):
            found[variable.name] = scope
        elif variable.name not in single:
            left["/".join(path[:depth])].append(variable.name)
    unseen = [scope for scope in sizes if scope not in found.values()]
    for names in left.values():
        scope = next((scope for scope in unseen if sizes[scope] == len(names)), None)
        if scope is not None:
            unseen.remove(scope)
            found.update(dict.fromkeys(names, scope))
    return found


def compared(old: Baseline, new: Sequence[HeldVariable], scopes: Mapping[str, str]) -> Changes:
    """What differs between the variables told by scope."""
    members = [variable for variable in new if variable.name in scopes]
    _, now = folded_by(members, scopes.get)
    found = Changes()
    listed = {each.name for each in old.variables}
    by_scope: dict[str, list[HeldVariable]] = defaultdict(list)
    for variable in members:
        if variable.name not in listed:
            by_scope[scopes[variable.name]].append(variable)
    groups: dict[str, list[FoldedScope]] = defaultdict(list)
    for each in old.folded:
        groups[each.scope].append(each)
    told = _told(now)
    for scope, was in groups.items():
        mine = by_scope[scope]
        what = f"variables of {scope}/*" if scope else "variables without a scope"
        before, after = sum(each.count for each in was), len(mine)
        if before != after:
            change = Change("variable", what, _where(was), _spread(mine), note=f"were {before}")
            (found.new_there if after > before else found.gone).append(change)
        elif len(was) == 1:
            elsewhere = list(_elsewhere(was[0], mine))
            found.moved += elsewhere
            if not elsewhere and not _told(was) <= told:
                found.notes.append(f"{what} have other forms, or another order")
        elif Counter(_amounts(was)) != Counter((v.place, v.slots) for v in mine):
            found.moved.append(Change("variable", what, _where(was), _spread(mine)))
        elif not _told(was) <= told:
            note = "dealt in another order, or others"
            found.moved.append(Change("variable", what, _where(was), _spread(mine), note=note))
    return found


def _told(groups: Iterable[FoldedScope]) -> set[tuple[str, str, tuple[str, ...], str]]:
    return {(each.scope, each.place, each.slots, each.digest) for each in groups}


def _amounts(groups: Sequence[FoldedScope]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for group in groups:
        yield from [(group.place, group.slots)] * group.count


def _elsewhere(was: FoldedScope, new: Sequence[HeldVariable]) -> Iterator[Change]:
    for variable in new:
        if variable.place != was.place:
            yield Change(
                "variable", f"variable {variable.name}", was.place, variable.place, [variable.name]
            )
        elif variable.slots != was.slots and len(variable.slots) == len(was.slots):
            old, place = (joined(sorted(set(slots))) for slots in (was.slots, variable.slots))
            yield Change("slots", f"slots of {variable.name}", old, place, [variable.name])


def _where(groups: Sequence[FoldedScope]) -> str:
    return joined(f"{each.count} on {each.place}" for each in groups)


def _spread(variables: Sequence[HeldVariable]) -> str:
    places = Counter(variable.place for variable in variables)
    return joined(f"{count} on {place}" for place, count in places.items()) if places else ""
