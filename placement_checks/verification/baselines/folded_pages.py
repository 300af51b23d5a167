"""Compares the variables of two baselines where either tells some by scope."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from placement_checks.core.baseline.difference import Change
from placement_checks.core.baseline.values import Baseline, FoldedScope, HeldVariable
from placement_checks.util.text import joined
from placement_checks.verification.baselines.changes import Changes

_Scopes = Mapping[str, Sequence[FoldedScope]]


@dataclass
class FoldedComparison:
    """Compares what is told by scope, and what the other lists of these scopes.

    Attributes:
        old: the one baseline.
        new: the other.
    """

    old: Baseline
    new: Baseline

    @property
    def old_single(self) -> tuple[HeldVariable, ...]:
        """The variables that the old one lists, of no scope that either tells as one."""
        return self._old[0]

    @property
    def new_single(self) -> tuple[HeldVariable, ...]:
        """Those of the new one."""
        return self._new[0]

    def new_name(self, old: str) -> str | None:
        """The new name of a variable that is told by scope; None if it is not."""
        scope = _scope_of(old, self._old[1])
        if scope is None or scope not in self._new_scopes:
            return None
        return self._new_scopes[scope] + old[len(scope) :]

    def changes(self) -> Changes:
        """What differs; where each variable is, only the other lines say."""
        found = Changes()
        before, after = self._old[1], self._new[1]
        for scope, was in before.items():
            new = self._new_scopes.get(scope)
            _compare(new or scope, was, [] if new is None else after[new], found)
        for scope in after.keys() - self._new_scopes.values():
            _compare(scope, [], after[scope], found)
        return found

    @cached_property
    def _old(self) -> tuple[tuple[HeldVariable, ...], _Scopes]:
        return self._parted(self.old)

    @cached_property
    def _new(self) -> tuple[tuple[HeldVariable, ...], _Scopes]:
        return self._parted(self.new)

    def _parted(self, page: Baseline) -> tuple[tuple[HeldVariable, ...], _Scopes]:
        """The variables that are listed, and the scopes, with what is listed of them."""
        folded = {each.scope for each in (*self.old.folded, *self.new.folded)}
        groups: dict[str, list[FoldedScope]] = defaultdict(list)
        for each in page.folded:
            groups[each.scope].append(each)
        single = []
        for variable in page.variables:
            scope = _scope_of(variable.name, folded)
            if scope is None:
                single.append(variable)
            else:
                size = variable.tensor.bytes or 0
                alone = FoldedScope(scope, 1, size, "", variable.place, variable.slots)
                groups[scope].append(alone)
        return tuple(single), groups

    @cached_property
    def _new_scopes(self) -> Mapping[str, str]:
        """What each scope is called now: those that are left and have as many are paired."""
        before, after = self._old[1], self._new[1]
        found = {scope: scope for scope in before if scope in after}
        left: dict[int, list[str]] = defaultdict(list)
        for scope, groups in after.items():
            if scope not in before:
                left[_count(groups)].append(scope)
        for scope, groups in before.items():
            if scope not in found and left[_count(groups)]:
                found[scope] = left[_count(groups)].pop(0)
        return found


def _scope_of(name: str, scopes: Container[str]) -> str | None:
    """The innermost of some scopes that a name is in; ``""`` is that of names without one."""
    path = name.split("/")[:-1]
    outer = ("/".join(path[:end]) for end in range(len(path), 0 if path else -1, -1))
    return next((scope for scope in outer if scope in scopes), None)


def _count(groups: Iterable[FoldedScope]) -> int:
    return sum(group.count for group in groups)


def _compare(
    scope: str, old: Sequence[FoldedScope], new: Sequence[FoldedScope], found: Changes
) -> None:
    what = f"variables of {scope}/*" if scope else "variables without a scope"
    change = Change("variable", what, _where(old), _where(new))
    before, after = _count(old), _count(new)
    if before != after:
        change = replace(change, note=f"were {before}" if before else "")
        (found.new_there if after > before else found.gone).append(change)
    elif _amounts(old) != _amounts(new):
        found.moved.append(change)
    elif _is_told(old) == _is_told(new) and _digests(old) != _digests(new):
        if len(old) == 1:
            found.notes.append(f"{what} have other forms, or another order")
        else:
            note = "dealt in another order, or others"
            found.moved.append(replace(change, note=note))


def _amounts(groups: Iterable[FoldedScope]) -> Counter[tuple[str, tuple[str, ...]]]:
    amounts = Counter[tuple[str, tuple[str, ...]]]()
    for group in groups:
        amounts[group.place, group.slots] += group.count
    return amounts


def _is_told(groups: Iterable[FoldedScope]) -> bool:
    """Whether the forms of any are told by a digest, so that they can be compared."""
    return any(group.digest for group in groups)


def _digests(groups: Iterable[FoldedScope]) -> set[tuple[str, tuple[str, ...], str]]:
    return {(group.place, group.slots, group.digest) for group in groups}


def _where(groups: Iterable[FoldedScope]) -> str:
    return joined(f"{each.count} on {each.place}" for each in groups)
