"""The fixture ``placement_log``, under every way of capturing."""

from __future__ import annotations

import pytest

TEST = """
import ctypes

DEVICE = "/job:localhost/replica:0/task:0/device:"


def printed(node, device):
    ctypes.CDLL(None).printf(f"{node}: (VarHandleOp): {DEVICE}{device}\\n".encode())


def test_fails(placement_log):
    from placement_checks import assert_variables_on_host

    printed("w", "GPU:0")
    assert_variables_on_host(placement_log.placement())


def test_passes(placement_log):
    from placement_checks import assert_variables_on_host

    printed("v", "CPU:0")
    printed("gpu", "GPU:0")
    assert_variables_on_host(placement_log.placement(), allow=("gpu",))


def test_sees_only_its_own(placement_log):
    printed("u", "CPU:0")
    assert list(placement_log.placement().ops) == ["u"]
"""


@pytest.mark.parametrize(
    "options",
    [(), ("-s",), ("--capture=sys",), ("--capture=tee-sys",), ("-n", "1")],
    ids=lambda options: " ".join(options) or "the default",
)
def test_every_way_of_capturing(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(TEST)

    result = pytester.runpytest_subprocess(*options)

    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["*variable w sits on /device:GPU:0, not on /device:CPU:0"])
    if options in ((), ("-s",), ("--capture=sys",)):
        result.stdout.fnmatch_lines(["*w: (VarHandleOp): /job:localhost/replica:0/task:0/*GPU:0"])
