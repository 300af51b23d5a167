"""An assertion for each rule: ``assert_no_fallback`` asserts the rule ``no-fallback``.

Type checkers and editors read ``assertions.pyi``.
"""

from __future__ import annotations

from placement_checks.rules.registry import NAMES, RULES
from placement_checks.testing.assertion_factory import assertion_name, make_assertion

globals().update(
    {assertion_name(RULES[name]): make_assertion(RULES[name], __name__) for name in NAMES}
)
