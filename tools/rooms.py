"""The picture of the rooms: the layers of import-linter's contract, and the imports between
rooms."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "placement_checks"
_OF_ALL = ("core", "util")  # imported by every room, so without arrows
_WIDTH, _HEIGHT = 150, 48  # of a room
_GAP, _FLOOR = 30, 96  # between rooms, and from floor to floor
_STYLE = """
  rect { fill: #f6f8fa; stroke: #57606a; stroke-width: 1.5 }
  .tensorflow { fill: #fff1d6; stroke: #9a6700 }
  text { font: 15px sans-serif; fill: #1f2328; text-anchor: middle }
  path { fill: none; stroke: #0969da; stroke-opacity: .45 }
"""


def floors() -> Sequence[Sequence[str]]:
    """The rooms in the order of pyproject.toml, from the top."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    return [[room.strip() for room in layer.split("|")] for layer in contract["layers"]]


def imports() -> set[tuple[str, str]]:
    """The imported rooms of each room; TensorFlow counts as a room."""
    found: set[tuple[str, str]] = set()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {
            name
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        others = {
            "tensorflow" if name.split(".")[0] == "tensorflow" else name.split(".")[1]
            for name in modules
            if name.split(".")[0] == "tensorflow" or name.startswith("placement_checks.")
        }
        found |= {(room, other) for other in others - {room}}
    return found


def picture_of_rooms() -> str:
    """An SVG with a box for each room, and an arrow from each room to the rooms that it
    imports."""
    found = imports()
    rows = floors()
    widest = max(map(len, rows))
    width = widest * (_WIDTH + _GAP) + _GAP
    places = {
        room: (
            (width - len(row) * (_WIDTH + _GAP) + _GAP) / 2 + column * (_WIDTH + _GAP),
            20 + floor * _FLOOR,
        )
        for floor, row in enumerate(rows)
        for column, room in enumerate(row)
    }
    arrows = [
        _arrow(places[room], places[other])
        for room, other in sorted(found)
        if room in places and other in places and other not in _OF_ALL
    ]
    boxes = [_box(room, place, (room, "tensorflow") in found) for room, place in places.items()]
    height = 20 + len(rows) * _FLOOR
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>The rooms of the package; rooms with TensorFlow are yellow</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{width}" height="{height}" style="fill: #fff; stroke: none"/>',
            *arrows,
            *boxes,
            "</svg>\n",
        )
    )


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """An arrow from the lower edge of a room to the upper edge of another."""
    x, y = start[0] + _WIDTH / 2, start[1] + _HEIGHT
    to_x, to_y = end[0] + _WIDTH / 2, end[1]
    bend = (to_y - y) / 2
    return (
        f'<path d="M{x:.0f} {y:.0f} C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} '
        f'{to_x:.0f} {to_y:.0f}"/>'
    )


def _box(room: str, place: tuple[float, float], has_tensorflow: bool) -> str:
    x, y = place
    kind = ' class="tensorflow"' if has_tensorflow else ""
    middle = x + _WIDTH / 2
    return (
        f'<rect{kind} x="{x:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>'
        f'<text x="{middle:.0f}" y="{y + 30:.0f}">{room}</text>'
    )
