"""Names, paths and links in the documentation exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from package_page import headings, links

ROOT = Path(__file__).parents[1]
_PATTERNS = ("*.md", "docs/*.md", "[a-z]*/**/README.md")
PAGES = sorted({path for pattern in _PATTERNS for path in ROOT.glob(pattern)})
# `loading.programs:load`, `analysis.data_flow:DataFlow.propagate`
NAMES = re.findall(
    r"`([a-z_]+(?:\.[a-z_]+)+):([\w.]+)`",
    (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
)


def test_names_in_the_architecture_exist() -> None:
    wrong = [f"{module}:{name}" for module, name in NAMES if name not in _names_in(module)]

    assert len(NAMES) > 100
    assert not wrong, "\n".join(wrong)


@cache
def _names_in(module: str) -> frozenset[str]:
    """The names that a module of the package defines; none if there is no such module."""
    path = ROOT / "placement_checks" / module.replace(".", "/")
    files = filter(Path.exists, (path.with_suffix(".py"), path / "__init__.py"))
    return frozenset(
        name for file in files for name in _defined(ast.parse(file.read_text("utf-8")).body)
    )


def _defined(body: list[ast.stmt], within: str = "") -> Iterator[str]:
    """The functions, classes, methods and variables of a module."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield f"{within}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _defined(node.body, f"{within}{node.name}.")
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield f"{within}{node.target.id}"


def test_links_of_the_documentation_are_valid() -> None:
    assert not "\n".join(_wrong_links())


def _wrong_links() -> Iterator[str]:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for page, text in texts.items():
        for link in links(text):
            to = urlsplit(link)
            target = (page.parent / to.path).resolve() if to.path else page
            if to.scheme:
                continue
            if not target.exists():
                yield f"{page.relative_to(ROOT)}: {link} does not exist"
            elif to.fragment and to.fragment not in headings(texts[target]):
                yield f"{page.relative_to(ROOT)}: {link} has no such heading"


# `tests/rules/test_examples.py`, placement_checks/rules/base.py
PATH = re.compile(
    r"(?<![\w./-])(?:placement_checks|tests|benchmarks|public_programs|tools|fixtures|examples|docs)/[\w./-]{2,}[\w/](?![\w*])"
)
# `rules.base`, `logs/record_formats.py`
ROOMS = "|".join(
    path.parent.name
    for path in (ROOT / "placement_checks").glob("*/__init__.py")
    if path.parent.name not in ("tf", "horovod")  # `tf.function` is TensorFlow's
)
MODULE = re.compile(rf"`((?:{ROOMS})(?:[./][a-z_0-9]+)+?)(?:\.py)?(?::[\w.]+)?`")
NOT_OURS = ("core/profiler/internal/advisor", "graph.meta")  # of TensorFlow; a file
EXAMPLE = re.compile("counter.on.host")  # the rule that CONTRIBUTING.md adds


def test_paths_in_the_documentation_exist() -> None:
    wrong = []
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        text = page.read_text(encoding="utf-8")
        wrong += [
            f"{page.relative_to(ROOT)}: {path}"
            for path in PATH.findall(text)
            if not any(base.joinpath(path).exists() for base in (ROOT, page.parent, ROOT / "docs"))
            and not re.search("[A-Z]{3}", Path(path).stem)
            and not EXAMPLE.search(path)
        ]
    assert not wrong, "\n".join(wrong)


def test_modules_in_the_documentation_exist() -> None:
    wrong = []
    for page in (ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for module in MODULE.findall(page.read_text(encoding="utf-8")):
            path = ROOT / "placement_checks" / module.replace(".", "/")
            if module in NOT_OURS:
                continue
            if not path.with_suffix(".py").exists() and not path.exists():
                wrong.append(f"{page.name}: {module}")
    assert not wrong, "\n".join(wrong)
