"""``python -m tools.generate`` writes `reference.pages`. Run it after a change of a rule."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from reference import ROOT, pages


def main() -> None:
    for path, content in pages().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(content(), encoding="utf-8")


if __name__ == "__main__":
    main()
