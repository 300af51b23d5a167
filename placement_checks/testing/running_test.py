"""What the pytest plugin tells the assertions of the test that runs. Loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placement_checks.core.devices import Devices
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.results import Verdict


# Called with every verdict; the plugin adds one, for its summary.
observers: list[Callable[[Evidence, Verdict], None]] = []
# Where programs are run whose numbers are compared; the plugin sets what its option says.
devices: Devices = "auto"
# Whether messages name all that was found; the plugin sets it for ``-vv``.
all_findings = False
