"""``python -m tools.generate`` writes `reference.pages`. Run it after a change of a rule.

``python -m tools.generate counter-on-host``, for a new rule, also writes the snapshots of its
verdicts, and the pages with verdicts of all rules.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from reference import ROOT, pages

from placement_checks.rules.registry import RULES

# Snapshots and pages with verdicts of all rules.
_WITH_ALL_RULES = ("tests/rules/test_requirements.py", "tests/fixtures/test_defects.py")
_PAGES_WITH_ALL_RULES = ("README.md", "docs/tutorial.md", "examples/from_one_gpu_to_two/README.md")


def main(*rules: str) -> None:
    for rule in rules:
        if rule not in RULES:
            sys.exit(f"there is no rule {rule}: add its module to placement_checks/rules")
    for path, content in pages().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(content(), encoding="utf-8")
    if rules:
        _run("tests.support.documents", *_PAGES_WITH_ALL_RULES)
        tests = [*map(_test_of, rules), *_WITH_ALL_RULES]
        _run("pytest", "-q", "--benchmark-disable", "--snapshot-update", *tests)


def _test_of(rule: str) -> str:
    *_, group, module = RULES[rule].__module__.split(".")
    return f"tests/rules/{group}/test_{module}.py"


def _run(module: str, *arguments: str) -> None:
    """Run a module of Python; if it fails, exit with its status."""
    completed = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=False)
    if completed.returncode:
        sys.exit(completed.returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
