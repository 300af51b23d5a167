"""The snippets of the documentation run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from textwrap import indent

import pytest
from support.documents import PAGES, ROOT, Block, blocks
from support.forked import run_pytest_forked

from placement_checks.run.timing.thread_pools import POOL

# The program of the snippets: towers, the same for one GPU, and a training loop.
TRAIN = """
import sys

import numpy as np
import tensorflow as tf
from model import average, towers
from numeric import batch, single

tf1 = tf.compat.v1


def build_single():
    return single(tf1.train.AdamOptimizer(0.01))


def build_towers(num_gpus=2):
    with tf.device("/cpu:0"):
        optimizer = tf1.train.AdamOptimizer(0.01)
    losses, inputs, gradients = towers(optimizer, num_gpus)
    with tf.device("/cpu:0"):
        train_op = optimizer.apply_gradients(average(gradients))
    return {"train_op": train_op, "loss": losses, "inputs": inputs}


def main(arguments=()):
    gpus = [int(each.partition("=")[2]) for each in arguments if each.startswith("--num_gpus=")]
    with tf.Graph().as_default(), tf1.Session() as session:
        program = build_towers(*gpus)
        rows = batch(np.random.default_rng(0), 8)
        session.run(tf1.global_variables_initializer())
        fed = {given[name]: rows[name] for given in program["inputs"] for name in given}
        session.run(program["train_op"], fed)


if __name__ == "__main__":
    main(sys.argv[1:])
"""
# The same under a strategy, for pages about these.
TRAIN_2 = """
from functions import train_mirrored as main
from functions import train_one_device as main_on_one_gpu
"""
# And in several workers.
TRAIN_3 = "from workers_mirrored import train as main\n"
# And with Horovod, which only a captured program can import.
TRAIN_4 = """
def main():
    import horovod_graph

    horovod_graph.train()


if __name__ == "__main__":
    main()
"""
# A program before and after it became one of TensorFlow 2.
OLD_AND_NEW = {
    "old": "from migration import batch, build_towers\n",
    "new": "from migration import train_mirrored\n",
}
# The files that the reader of a snippet has.
AT_HAND = """
import numpy as np
import pytest
import tensorflow as tf
import placement_checks
import train
from placement_checks import *
from train import *

"""
OF_PAGE = {
    "clusters.md": "from cluster import batch, build_in_graph as build\n\n",
    "logs.md": """
with tf.Graph().as_default() as graph:
    w = tf.compat.v1.get_variable("w", [])
    with tf.control_dependencies([w.initializer]):
        train_op = w.assign_add(1.0)
session = tf.compat.v1.Session("", graph, tf.compat.v1.ConfigProto(log_device_placement=True))

""",
}
# The snippet of a log: without a GPU every op is on a CPU, and no rule about that is kept. And
# of a timing: whether towers are faster depends on the load of the machine.
NOT_HERE = (
    "FAILED test_logs_*AssertionError: variables-on-host could*",
    "FAILED test_timing_*::test_towers_are_faster - AssertionError*",
)


def _snippets(*pages: str) -> Iterator[tuple[str, Block]]:
    """The snippets of the pages that are named, each with a name for a file of it."""
    for page in PAGES:
        for number, block in enumerate(blocks(page)):
            own = block.file  # a page's project
            if block.language == "python" and not own and page.name in pages:
                yield f"test_{page.stem}_{number}.py", block


STRATEGIES, WORKERS, RANKS = ("tensorflow_2.md",), ("clusters.md",), ("horovod.md",)
OTHERS = tuple(page.name for page in PAGES if page.name not in (*STRATEGIES, *WORKERS, *RANKS))


@pytest.mark.parametrize(
    ("pages", "train"),
    [(STRATEGIES, TRAIN_2), (WORKERS, TRAIN_3), (RANKS, TRAIN_4), (OTHERS, TRAIN)],
    ids=["strategies", "workers", "ranks", "others"],
)
def test_snippets_run(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    pages: tuple[str, ...],
    train: str,
) -> None:
    monkeypatch.setenv(POOL, "1")  # what is timed comes after sessions of other snippets
    fixtures = ROOT / "fixtures"
    folders = [*(fixtures / "programs").iterdir(), fixtures / "defects" / "graph"]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, [ROOT, *folders, pytester.path])))
    monkeypatch.setenv("CI", "true")  # pytest then cuts no line short
    pytester.makepyfile(train=train, **OLD_AND_NEW)
    log = (ROOT / "fixtures" / "logs" / "1.15.5" / "session.log").read_bytes()
    (pytester.path / "outputlog").write_bytes(log)
    found = dict(_snippets(*pages))
    assert found
    for file, block in found.items():
        before = f"{AT_HAND}{OF_PAGE.get(block.page.name, '')}"
        code = block.text
        if "def test_" not in code:
            code = f"def test_snippet():\n{indent(code, '    ')}"
        (pytester.path / file).write_text(f"{before}{code}", encoding="utf-8")

    result = run_pytest_forked(
        pytester,
        *("-q", "-p", "no:cacheprovider", "--benchmark-disable"),
        *("--placement-gpus=2", "--placement-update=force"),
    )

    failed = [line for line in result.outlines if line.startswith(("FAILED", "ERROR"))]
    assert [line for line in failed if not any(fnmatch(line, each) for each in NOT_HERE)] == []
    assert result.parseoutcomes()["passed"] >= max(len(found) - len(NOT_HERE), 1)


TABLES = [
    pytest.param(block.text, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page))
    if block.language == "toml"
]


@pytest.mark.parametrize("text", TABLES)
def test_tables_are_toml(text: str) -> None:
    assert tomllib.loads(text)
