"""The impact of a finding. A module of its own, as the pytest plugin imports it in every run."""

from __future__ import annotations

from enum import IntEnum


class Impact(IntEnum):
    """What a finding means for the program. Reports show the lowest value first.

    Attributes:
        EXECUTION: the program fails or hangs.
        TRAINING: the program runs, and trains or reports something else than one GPU would.
        LAYOUT: the values are right; the program is slower, takes more memory, or depends on the
            machine.
    """

    EXECUTION = 1
    TRAINING = 2
    LAYOUT = 3
