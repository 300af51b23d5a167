from collections.abc import Sequence
from typing import NamedTuple


class GradientCall(NamedTuple):
    objectives: Sequence[str] = ()
    weights: Sequence[str] = ()
    sources: Sequence[str] = ()
    gradients: Sequence[Sequence[str]] = ()
    stopped: Sequence[str] = ()
    ops: frozenset = frozenset()
