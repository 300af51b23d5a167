"""A forked process of the tests is like a new interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.forked import run_forked

TELLS = """
import atexit
import os
import sys
import threading
import time
def late():
    time.sleep(0.1)
    print("a thread")
threading.Thread(target=late).start()
atexit.register(print, "the end")
path = sys.path[: next(n for n, each in enumerate(sys.path) if each.endswith(".zip"))]
print(__name__, sys.argv, path, os.getcwd(), os.environ["OURS"], repr(sys.stdin.read()))
sys.exit({status})
"""


@pytest.mark.parametrize("status", ["", "3", "'a message'"])
@pytest.mark.parametrize("start", [["-c"], ["-m", "tells"], ["tells.py"]], ids=" ".join)
def test_a_forked_process_is_like_a_new_one(tmp_path: Path, start: list[str], status: str) -> None:
    code = TELLS.replace("{status}", status)
    (tmp_path / "tells.py").write_text(code)
    arguments = [*start, *([code] if start == ["-c"] else []), "--one", "2"]
    environment = {**os.environ, "OURS": "is set", "PYTHONPATH": "/nowhere:/nor_there"}

    forked = run_forked(arguments, tmp_path, environment)
    new = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (forked.returncode, forked.stdout, forked.stderr) == (
        new.returncode, new.stdout, new.stderr,
    )  # fmt: skip
    assert forked.stdout.endswith("a thread\nthe end\n")


def test_tensorflow_is_loaded_and_has_run_nothing() -> None:
    code = "import sys; print('tensorflow' in sys.modules, 'pytest' in sys.modules);"
    code += "from tensorflow.python.eager import context; print(context.context()._initialized)"

    assert run_forked(["-c", code]).stdout == "True False\nFalse\n"
