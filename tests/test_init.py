from __future__ import annotations

import subprocess
import sys

import pytest

import placement_checks

_WITHOUT_TENSORFLOW = """
import sys
import placement_checks
from placement_checks.report import json, text
runs = {"average_gradients", "mean_of_stacked", "simulated_gpus"}
for name in set(placement_checks.__all__) - runs:
    getattr(placement_checks, name)
assert "tensorflow" not in sys.modules
assert "numpy" not in sys.modules
"""


def test_loading_the_names_loads_no_tensorflow_but_for_what_runs_it() -> None:
    subprocess.run([sys.executable, "-c", _WITHOUT_TENSORFLOW], check=True)


def test_public_names_are_listed() -> None:
    assert set(placement_checks.__all__) <= set(dir(placement_checks))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'placement_checks' has no attribute 'plcae'"):
        placement_checks.plcae  # noqa: B018
