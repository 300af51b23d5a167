"""A suite spread over two environments that are reached over sockets, as over hosts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

_TESTS = """
import os
import pytest
from placement_checks import Device, Machine, Op, Placement, Variable, assert_variables_on_host

@pytest.mark.parametrize("number", range(6))
def test_placed(number, record_property):
    record_property("environment", os.environ["ENVIRONMENT"])
    put = Device.parse("/job:localhost/replica:0/task:0/cpu:0")
    variable = Op("v", "VarHandleOp", Device.parse("/cpu:0"), assigned=put)
    assert_variables_on_host(
        Placement("train.py", {"v": variable}, [Variable("v", "float32", ())],
                  machine=Machine.local(2), placer="phantom", assigned=True)
    )
"""


def port_of(log: Path) -> str:
    """The port that a server listens on."""
    for _ in range(300):
        if match := re.search(r"'127\.0\.0\.1', (\d+)", log.read_text()):
            return match[1]
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture
def environments(tmp_path: Path) -> Iterator[list[str]]:
    """Two servers for xdist's workers, each with an environment of its own; their specs."""
    servers = []
    specs = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "test_all.py").write_text(_TESTS)
        log = folder / "server.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [sys.executable, "-u", "-m", "execnet.script.socketserver", "127.0.0.1:0"],
                cwd=folder,
                env={"ENVIRONMENT": name},
                stdout=output,
                stderr=output,
            )
        servers.append(server)
        specs += ["--tx", f"socket=127.0.0.1:{port_of(log)}//chdir={folder}"]
    yield specs
    for server in servers:
        server.kill()
        server.wait()


def test_results_of_two_environments_are_merged(
    pytester: pytest.Pytester, environments: list[str]
) -> None:
    pytester.makepyfile(test_all=_TESTS)

    ran = pytester.runpytest_subprocess(
        *environments, "--dist", "load", "--junitxml=all.xml", "-p", "no:cacheprovider"
    )

    ran.assert_outcomes(passed=6)
    ran.stdout.fnmatch_lines(["rules: 6 kept, 0 broken, 0 not checked, on gpu[*]2 (phantom)"])
    document = ElementTree.parse(pytester.path / "all.xml")
    properties = (element.attrib for element in document.iter("property"))
    where = [entry["value"] for entry in properties if entry["name"] == "environment"]
    assert len(where) == 6
    assert set(where) == {"one", "other"}
