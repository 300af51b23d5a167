"""The properties of tests in pytest's JUnit XML, with and without xdist."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

TESTS = """
import pytest
from placement_checks import assert_variables_on_host, read_logs

LINE = "w: (VariableV2): /job:localhost/replica:0/task:0/device:{}:0\\n"

@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_log(device, tmp_path):
    log = tmp_path / "outputlog"
    log.write_text(LINE.format(device) + LINE.format("GPU").replace("w", "a").replace("V", "v"))
    assert_variables_on_host(read_logs([log]).placement())
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=" ".join)
def test_a_property_has_the_program_the_machine_and_the_state_of_a_rule(
    pytester: pytest.Pytester, workers: list[str]
) -> None:
    pytester.makepyfile(TESTS)

    pytester.runpytest_subprocess(*workers, "--junit-xml=report.xml").assert_outcomes(
        passed=1, failed=1
    )

    cases = ET.parse(pytester.path / "report.xml").getroot().iter("testcase")
    properties = {}
    for case in cases:
        (found,) = case.iter("property")
        assert found.attrib["name"] == "placement"
        facts = json.loads(found.attrib["value"])
        assert facts.pop("program").endswith("outputlog")
        properties[case.attrib["name"]] = facts
    on = {"on": "gpu*1 (log)", "rule": "variables-on-host"}
    assert properties == {
        "test_log[CPU]": {**on, "state": "kept"},
        "test_log[GPU]": {**on, "state": "broken"},
    }
