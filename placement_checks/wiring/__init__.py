"""How the towers of a placement are wired: what depends on what, read from the graph alone."""

from placement_checks.wiring.contributions import contributions
from placement_checks.wiring.towers import Part, Parts, Tower
from placement_checks.wiring.updates import Update
from placement_checks.wiring.wiring import Blended, Wiring, wiring

__all__ = ["Blended", "Part", "Parts", "Tower", "Update", "Wiring", "contributions", "wiring"]
