"""Generates the table of fixtures/README.md: the programs that break each rule."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from placement_checks.rules.registry import NAMES

ROOT = Path(__file__).parents[1]
_TESTS = ROOT / "tests" / "fixtures"


def fixture_table() -> str:
    """A table of rules, each with the programs of fixtures/ that break it."""
    programs: dict[str, list[str]] = defaultdict(list)
    for name, row in _rows("test_defects.py"):
        assert isinstance(row, ast.Dict)
        for rule in _strings(row.keys):
            programs[rule].append(_in_defects(name))
    for name, row in _rows("test_functions_defects.py"):
        assert isinstance(row, ast.Tuple)
        for rule in _strings(row.elts[:1]):
            programs[rule].append(f"`defects/eager/functions_defects.py:{name}`")
    for dictionary, file in (("DEFECTS", "horovod_graph"), ("EAGER_DEFECTS", "horovod_eager")):
        for name, row in _rows("test_horovod.py", dictionary):
            assert isinstance(row, ast.Tuple)
            for rule in _strings(row.elts[:1]):
                programs[rule].append(f"`defects/workers/{file}_defects.py:{name}`")
    for name, row in _rows("test_numeric_defects.py"):
        assert isinstance(row, ast.Call)
        for rule, expected in zip(("gradients-equal", "weights-equal"), row.args, strict=False):
            if not (isinstance(expected, ast.Name) and expected.id == "EQUAL"):
                programs[rule].append(_in_defects(name))
    for name, row in _rows("test_numeric_defects.py", "SEEN_IN_THE_GRAPH"):
        assert isinstance(row, ast.List)
        for rule in _strings(row.elts):
            programs[rule].append(_in_defects(name))
    for name, _ in _rows("test_overlap_defects.py"):
        programs["towers-overlap"].append(_in_defects(name))
    rows = "\n".join(
        f"| {rule} | {', '.join(programs[rule]) or '*only programs in tests*'} |" for rule in NAMES
    )
    return f"| rule | programs that break it |\n|---|---|\n{rows}\n"


def _in_defects(name: str) -> str:
    file, _, builder = name.partition(":")
    return f"`defects/graph/{file}.py{builder and ':'}{builder}`"


def _rows(test: str, dictionary: str = "DEFECTS") -> list[tuple[str, ast.expr]]:
    """The entries of a dictionary in a test module."""
    for node in ast.parse((_TESTS / test).read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        is_target = isinstance(target, ast.Name) and target.id == dictionary
        if is_target and isinstance(value, ast.Dict):
            return list(zip(_strings(value.keys), value.values, strict=True))
    raise ValueError(f"{test} has no dictionary {dictionary}")


def _strings(nodes: object) -> list[str]:
    return [
        node.value
        for node in nodes  # type: ignore[attr-defined]
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
