"""The placer agrees with TensorFlow's dump of a local session, node by node."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from placer.zoo import GRAPHS, PROGRAMS
from support.builders import builder_of

from placement_checks import Machine, place
from placement_checks.placer.request import name_in_body
from placement_checks.run.runnable import gpu_scope

CPUS = 3
NAMES = [graph.__name__ for graph in GRAPHS] + [
    program.partition(":")[2] + str(i) for i, program in enumerate(PROGRAMS)
]


@pytest.fixture(scope="module")
def graphs(fixtures: Path) -> dict[str, tf.Graph]:
    """The zoo, with CPU:1 and CPU:2 for the GPUs of the programs."""
    builders = dict(
        zip(
            NAMES,
            [*GRAPHS, *(builder_of(f"{fixtures}/{program}") for program in PROGRAMS)],
            strict=True,
        )
    )
    found = {}
    for name, build in builders.items():
        with tf.Graph().as_default() as found[name], gpu_scope(CPUS - 1, devices="simulated"):
            build()
    return found


@pytest.fixture(scope="module")
def answers(
    graphs: dict[str, tf.Graph], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str] | str]:
    folder = tmp_path_factory.mktemp("oracle")
    for name, graph in graphs.items():
        (folder / f"{name}.pb").write_bytes(graph.as_graph_def().SerializeToString())
    script = Path(__file__).parent / "oracle.py"
    subprocess.run([sys.executable, script, folder, str(CPUS)], check=True, capture_output=True)
    found: dict[str, dict[str, str] | str]
    found = json.loads((folder / "answers.json").read_text())
    return found


@pytest.mark.parametrize("soft", [False, True], ids=["strict", "soft"])
@pytest.mark.parametrize("name", NAMES)
def test_every_node_agrees_with_a_local_session(
    graphs: dict[str, tf.Graph],
    answers: dict[str, dict[str, str] | str],
    name: str,
    soft: bool,
) -> None:
    expected = answers[f"{name} {'soft' if soft else 'strict'}"]
    evidence = place(graphs[name], machine=Machine.local(0, cpus=CPUS), soft=soft)

    if isinstance(expected, str):
        assert evidence.placement.refusals
        assert any(refusal.op in expected for refusal in evidence.placement.refusals)
    else:
        assert not evidence.placement.refusals
        names = [op.name for op in graphs[name].get_operations()]
        assert {op: str(evidence.ops[op].assigned) for op in names} == {
            op: expected[op] for op in names
        }


def test_a_session_on_gpus_placed_each_op_as_predicted(fixtures: Path) -> None:
    """A session on two logical GPUs of an NVIDIA H200 placed the same graph in the same way."""
    logs = fixtures / "logs"
    truth = json.loads((logs / "2.21.0/session.gpus.truth.json").read_text())
    logged = {name_in_body(node): device for node, _, device, _ in truth["ops"]}
    with pytest.MonkeyPatch.context() as patch, tf.Graph().as_default() as graph:
        patch.syspath_prepend(str(logs / "programs"))
        program = importlib.import_module("session")
        _, _, logits = program.build(0, program.GPUS)
        program.evaluation(logits, program.GPUS[0])
        tf.compat.v1.global_variables_initializer()

    ops = place(graph, gpus=2, soft=False).ops

    assert len(ops) > 150
    assert {name: str(op.assigned) for name, op in ops.items()} == {
        name: logged[name] for name in ops
    }
