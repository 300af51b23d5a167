"""``python -m tools.screenshot`` updates docs/picture.png with Debian's Chromium."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "picture.png"
CHROMIUM = "/usr/bin/chromium"
PROGRAM = "fixtures/defects/graph/last_tower_only.py:build_towers"
_WIDTH, _HEIGHT = 1240, 890
_COLORS = 64  # enough for a page, and a third of the bytes


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "page.html"
        command = ["verify", PROGRAM, "--gpus", "4", "--format", "html", "--output", str(page)]
        module = [sys.executable, "-m", "placement_checks"]
        subprocess.run([*module, *command], cwd=ROOT, check=False)  # 1: a rule is broken
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        tab.goto(page.as_uri())
        tab.wait_for_selector("body[data-state]")  # the data are decompressed
        shot = tab.screenshot()
        chromium.close()
    Image.open(BytesIO(shot)).quantize(_COLORS).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
