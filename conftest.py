"""Shared by all tests: the programs in fixtures/, and a pytest to run plugin tests in."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from placement_checks import LocalCluster

pytest_plugins = ["pytester", "support.tiers"]

# For `benchmarks` and `public_programs`. An installed package comes first.
sys.path.append(str(Path(__file__).parent))

# How long an example takes depends on what else the machine does: a busy machine fails no test.
# Each night there are more examples. A failure prints how to repeat it, and its seed is kept.
hypothesis.settings.register_profile(
    "placement_checks",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    max_examples=50 * int(os.environ.get("PLACEMENT_CHECKS_EXAMPLES", "1")),
    print_blob=True,
)
hypothesis.settings.load_profile("placement_checks")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What runs save goes into a folder of the test run, and not into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _collector() -> None:
    """The collector walks TensorFlow and the tests no more, which is a tenth of what they take."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of the programs that the suite is judged on."""
    return Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Two parameter servers and two workers, each with CPU:1 and CPU:2 in place of GPUs.

    For tests that leave every task as it is.
    """
    from placement_checks import local_cluster

    with local_cluster("ps*2; worker*2: cpu*3") as running:
        yield running
