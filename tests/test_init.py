from __future__ import annotations

import subprocess
import sys

import pytest

import placement_checks

_WITHOUT_TENSORFLOW = """
import sys
import placement_checks
from placement_checks.report import json, text
for name in set(placement_checks.__all__) - {"place"}:
    getattr(placement_checks, name)
assert "placement_checks.config" not in sys.modules
import placement_checks.config
assert "tensorflow" not in sys.modules
"""


def test_tensorflow_is_left_alone_by_all_but_place():
    subprocess.run([sys.executable, "-c", _WITHOUT_TENSORFLOW], check=True)


def test_public_names_are_listed():
    assert set(placement_checks.__all__) <= set(dir(placement_checks))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'placement_checks' has no attribute 'plcae'"):
        placement_checks.plcae  # noqa: B018
