"""The numbers of ops and towers, as types that cannot be mixed up.

At run time they are plain integers: only type checkers distinguish them. `DataFlow` has the
numbers of the ops, and `TowerAnalysis` the numbers of the towers. An operation on masks yields an
`int`, so functions that only read a mask accept any `int`.
"""

from __future__ import annotations

from typing import NewType

OpId = NewType("OpId", int)  # the index of an op in the order of building
TowerIndex = NewType("TowerIndex", int)  # the index of a tower
TowerMask = NewType("TowerMask", int)  # a set of towers: bit i is set for tower i
SiteIndex = NewType("SiteIndex", int)  # an index into `ReadsBySite.site_reads`
