"""Print the lines that reports name for the defect programs, and their distance to the mistake.

The table is made of the snapshots of the tests, so nothing is run:

    python -m tools.named_lines
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from syrupy.extensions.amber.serializer import AmberDataSerializer

SNAPSHOTS = Path(__file__).parents[1] / "tests" / "fixtures" / "__snapshots__"
_NAME = re.compile(r"test_\w+\[([^][]+)\]\[lines\]|test_(\w+)\[lines\]")
_ENTRY = re.compile(r"'([\w-]+): (.*), ([^,]*)',")


class NamedLine(NamedTuple):
    """A line that a rule names.

    Attributes:
        program: the snapshot file, and the defect.
        rule: the rule.
        line: the line, such as ``line 12``.
        distance: ``exact``, the number of lines to the marked line, or why there is none.
    """

    program: str
    rule: str
    line: str
    distance: str

    @property
    def kind(self) -> str:
        """The distance as a class: exact, within one line, within three lines or elsewhere."""
        if self.distance in ("exact", "called from it"):
            return self.distance
        number = abs(int(self.distance)) if self.distance[0] in "+-" else 4
        return "next line" if number == 1 else "within three" if number <= 3 else "elsewhere"


def named_lines() -> Iterator[NamedLine]:
    """The lines in the snapshots of the defect programs."""
    for path in sorted(SNAPSHOTS.glob("*.ambr")):
        for snapshot in AmberDataSerializer.read_file(str(path)):
            if (name := _NAME.fullmatch(snapshot.name)) and isinstance(snapshot.data, str):
                program = f"{path.stem.removeprefix('test_')}: {name[1] or name[2]}"
                yield from (NamedLine(program, *each) for each in _ENTRY.findall(snapshot.data))


def main() -> None:
    lines = list(named_lines())
    for each in lines:
        print(f"{each.program:45} {each.rule:26} {each.line:22} {each.distance}")
    print(f"{len(lines)} lines: {dict(Counter(each.kind for each in lines).most_common())}")


if __name__ == "__main__":
    main()
