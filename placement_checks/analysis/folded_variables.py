"""Variables by the hundreds, told by their scopes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from placement_checks.core.baseline.values import FoldedScope, HeldVariable

MOST_LISTED: Final = 500
ScopeOf = Callable[[str], str | None]


def folded(
    variables: Sequence[HeldVariable],
) -> tuple[Sequence[HeldVariable], Sequence[FoldedScope]]:
    """The variables to list one by one, and the others by scope, if there are too many."""
    if len(variables) <= MOST_LISTED:
        return variables, ()
    return folded_by(variables, _scopes(variables))


def folded_by(
    variables: Iterable[HeldVariable], scope_of: ScopeOf
) -> tuple[Sequence[HeldVariable], Sequence[FoldedScope]]:
    """Those that sit alike in one scope as one; one that sits alone is listed.

    Args:
        variables: in the order of data flow.
        scope_of: of the name of a variable; None if it is not to be folded.
    """
    single: list[HeldVariable] = []
    scopes: dict[str, list[HeldVariable]] = defaultdict(list)
    for variable in variables:
        scope = scope_of(variable.name)
        (single if scope is None else scopes[scope]).append(variable)
    found: list[FoldedScope] = []
    for scope, members in scopes.items():
        alike: dict[tuple[str, tuple[str, ...]], list[tuple[int, HeldVariable]]] = defaultdict(
            list
        )
        for at, variable in enumerate(members):
            alike[variable.place, variable.slots].append((at, variable))
        for (place, slots), group in alike.items():
            if len(group) == 1:
                single.append(group[0][1])
                continue
            size = sum(variable.tensor.bytes or 0 for _, variable in group)
            found.append(FoldedScope(scope, len(group), size, _digest(group), place, slots))
    return single, found


def _scopes(variables: Iterable[HeldVariable]) -> ScopeOf:
    """The scopes to fold by: the innermost of which there are few enough."""
    paths = [variable.name.split("/")[:-1] for variable in variables]
    depth = max(map(len, paths))
    while depth > 1 and len({tuple(path[:depth]) for path in paths}) > MOST_LISTED:
        depth -= 1

    return lambda name: "/".join(name.split("/")[:-1][:depth])


def _digest(group: Iterable[tuple[int, HeldVariable]]) -> str:
    forms = "\n".join(f"{at} {variable.form}" for at, variable in group)
    return hashlib.sha256(forms.encode("utf-8", "backslashreplace")).hexdigest()[:8]
