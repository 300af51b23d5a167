"""The documentation names what exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md") for path in ROOT.glob(pattern)
)
# `loading.programs:load`, `analysis.data_flow:DataFlow.propagate`
NAMES = re.findall(
    r"`([a-z_]+(?:\.[a-z_]+)+):([\w.]+)`",
    (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
)


@pytest.mark.parametrize(("module", "name"), sorted(set(NAMES)))
def test_what_the_architecture_names_exists(module: str, name: str) -> None:
    file = ROOT / "placement_checks" / f"{module.replace('.', '/')}.py"

    assert name in set(_defined(ast.parse(file.read_text(encoding="utf-8")).body))


def _defined(body: list[ast.stmt], within: str = "") -> Iterator[str]:
    """The functions, classes, methods and variables of a module."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield f"{within}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _defined(node.body, f"{within}{node.name}.")
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield f"{within}{node.target.id}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_documentation_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))

    assert [
        link for link in links if "://" not in link and not (page.parent / link).exists()
    ] == []
