"""An assertion for each rule: ``assert_no_fallback`` asserts the rule ``no-fallback``.

Type checkers and editors read ``assertions.pyi``.
"""

from __future__ import annotations

from collections.abc import Callable

from placement_checks.rules.registry import NAMES, RULES

_RULES = {f"assert_{name.replace('-', '_')}": name for name in NAMES}


def __getattr__(name: str) -> Callable[..., None]:
    """Make the assertion when it is first used, so that only its rule is imported."""
    if name not in _RULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from placement_checks.testing.assertion_factory import make_assertion

    globals()[name] = assertion = make_assertion(RULES[_RULES[name]], __name__)
    return assertion


def __dir__() -> list[str]:
    return sorted([*globals(), *_RULES])
