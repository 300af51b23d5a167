"""Gathering evidence: the number of calls of builders, and no change of the graph."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support import pairs

from placement_checks import Machine, place, with_numbers
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.errors import ConfigError
from placement_checks.core.settings import Settings
from placement_checks.placer.worker.client import PlacerProcess, Request
from placement_checks.rules.devices.placeable import Placeable
from placement_checks.targets.forms import resolve
from placement_checks.verification.placing import request, requested

Build = Callable[..., dict[str, Any]]
tf1 = tf.compat.v1


@pytest.fixture
def calls() -> Counter[str]:
    """How often each builder was called, and for how many GPUs."""
    return Counter()


@pytest.fixture
def towers(calls: Counter[str]) -> Build:
    def build(num_gpus: int = 2) -> dict[str, Any]:
        calls[f"towers {num_gpus}"] += 1
        return pairs.towers(num_gpus)

    return build


@pytest.fixture
def single(calls: Counter[str]) -> Build:
    def build() -> dict[str, Any]:
        calls["single"] += 1
        return pairs.single()

    return build


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_towers_are_built_for_two_numbers_of_gpus_and_the_reference_once(
    towers: Build, single: Build, calls: Counter[str]
) -> None:
    evidence = with_numbers(place(towers), single, pairs.batch)

    assert evidence.measurement
    assert evidence.trace
    assert calls == {"towers 2": 1, "towers 1": 1, "single": 1}


def cluster() -> None:
    with tf.device("/job:ps/cpu:0"):
        x = tf.constant(1.0)
    for task in range(2):
        with tf.device(f"/job:worker/task:{task}/gpu:0"):
            tf.sqrt(x)


def cluster_of(num_gpus: int) -> None:
    assert num_gpus == 2
    cluster()


@pytest.mark.parametrize(
    ("build", "gpus", "each"), [(cluster, None, 1), (cluster, 2, 2), (cluster_of, None, 2)]
)
def test_tasks_of_a_cluster_have_one_gpu_if_the_program_uses_one(
    build: Callable[..., None], gpus: int | None, each: int
) -> None:
    machine = request(resolve(build), Settings(gpus=gpus)).machine
    assert str(machine) == f"ps*1: cpu*1; worker*2: gpu*{each}"


def test_a_wrong_policy_names_its_program() -> None:
    def declaring() -> Mapping[str, Any]:
        return {"train_op": tf.no_op(), "policy": {"no-fallback": {"alow": []}}}

    with pytest.raises(ConfigError) as caught:
        place(declaring)
    assert str(caught.value) == (
        f"policy of {declaring.__qualname__}: no-fallback.alow is not a known field; did you mean "
        "'allow'?"
    )


def test_the_build_for_one_gpu_runs_while_the_placer_works(
    towers: Build, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = PlacerProcess.send
    built: list[list[str]] = []

    @contextlib.contextmanager
    def noted(process: PlacerProcess, request: Request) -> Iterator[Callable[[], Any]]:
        with asked(process, request) as answer:
            built.append(sorted(calls))

            def noted_answer() -> Any:
                built.append(sorted(calls))
                return answer()

            yield noted_answer

    monkeypatch.setattr(PlacerProcess, "send", noted)
    place(towers)

    assert built == [["towers 2"], ["towers 1", "towers 2"]]


def test_towers_are_analyzed_once_while_the_placer_works(towers: Build) -> None:
    evidence = place(towers)

    assert evidence.program
    assert analyze(evidence.placement) is analyze(evidence.program.requested)


def test_a_reference_that_is_the_same_function_is_not_built_again(
    towers: Build, calls: Counter[str]
) -> None:
    evidence = with_numbers(place(towers), towers, pairs.batch)

    assert evidence.measurement
    assert calls == {"towers 2": 1, "towers 1": 1}


def test_a_target_that_names_the_same_function_is_not_built_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import pathlib, tensorflow as tf\n"
        "def build(num_gpus=2):\n"
        "    with open('calls', 'a') as calls:\n"
        "        calls.write(f'{num_gpus} ')\n"
        "    tf.compat.v1.placeholder(tf.float32, name='x')\n"
    )

    with_numbers(requested("train.py:build"), "train.py:build")

    assert (tmp_path / "calls").read_text() == "2 1 "


def test_placing_and_running_do_not_change_the_graph() -> None:
    evidence = requested(pairs.towers)
    assert evidence.program
    before = evidence.program.graph_def.SerializeToString(deterministic=True)

    placed = place(pairs.towers)
    assert placed.program
    with_numbers(placed, pairs.single, pairs.batch)

    after = placed.program.graph_def.SerializeToString(deterministic=True)
    assert after == before


HIDING = """
import tensorflow as tf
tf1 = tf.compat.v1
{line}
def build(num_gpus):
    {setting}
    for gpu in range(num_gpus):
        with tf1.device(f"/gpu:{{gpu}}"):
            variable = tf1.get_variable(f"v{{gpu}}", [2], use_resource=False)
    return {{"train_op": variable, "config": tf1.ConfigProto({config})}}
"""


@pytest.mark.parametrize(
    ("parts", "hidden_by"),
    [
        ({"config": "device_count={'GPU': 1}"}, "device_count={'GPU': 1} in the ConfigProto"),
        (
            {"config": "gpu_options={'visible_device_list': '1'}"},
            "gpu_options.visible_device_list='1' in the ConfigProto",
        ),
        (
            {"line": "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'"},
            "CUDA_VISIBLE_DEVICES='0'",
        ),
        (
            {"setting": "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '3'"},
            "CUDA_VISIBLE_DEVICES='3'",
        ),
        (
            {
                "setting": "tf.config.set_visible_devices("
                "tf.config.list_physical_devices('GPU')[:1], 'GPU')"
            },
            "the call of set_visible_devices",
        ),
    ],
)
def test_a_program_hides_gpus_from_itself(
    parts: dict[str, str], hidden_by: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(HIDING.format_map({"line": "", "setting": "pass", "config": ""} | parts))
    evidence = place(f"{file}:build", gpus=2)
    machine = evidence.machine

    assert machine is not None
    assert str(machine) == "gpu*1"
    assert machine.hidden_by == hidden_by
    assert {refusal.op for refusal in evidence.placement.refusals} >= {"v1"}
    (finding, *_) = Placeable().judge(evidence).findings
    assert finding.fix == f"remove {hidden_by}, which hides /device:GPU:1 from the program"

    again = place(f"{file}:build", gpus=2)  # the file is not imported again
    other = tmp_path / "other.py"
    other.write_text(HIDING.format(line="", setting="pass", config=""))
    assert again.machine is not None
    assert again.machine.hidden_by == hidden_by
    assert place(f"{other}:build", gpus=2).machine == Machine.local(2)


HIDING_STRATEGY = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
import tensorflow as tf

def train():
    strategy = tf.distribute.{strategy}
    with strategy.scope():
        variable = tf.Variable([1.0])
        optimizer = tf.keras.optimizers.SGD()

    @tf.function
    def step():
        def replica():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * variable)
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

        strategy.run(replica)

    step()
"""


@pytest.mark.parametrize(
    ("strategy", "idle"), [("MirroredStrategy()", 1), ("OneDeviceStrategy('/gpu:0')", 0)]
)
def test_a_strategy_lacks_the_gpus_that_its_program_hides(
    strategy: str, idle: int, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(HIDING_STRATEGY.format(strategy=strategy))
    machine = place(f"{file}:train").machine

    assert machine is not None
    assert str(machine) == "gpu*1"
    assert len(machine.hidden_gpus) == idle


def train(*, soft: bool | None = None, config: Any = None, keras: bool = False) -> None:
    """Train in a session, or in the session that Keras creates."""
    if soft is not None:
        tf.config.set_soft_device_placement(soft)
    variable = tf1.get_variable("v", [], use_resource=False)
    step = tf1.train.GradientDescentOptimizer(1.0).minimize(variable * variable)
    if keras:
        session = import_module("tf_keras.src.backend").get_session()
    else:
        session = tf1.Session(config=config)
    session.run(tf1.global_variables_initializer())
    session.run(step)


@pytest.mark.parametrize(
    ("arguments", "soft"),
    [
        ({"soft": True}, True),
        ({}, False),  # also after another program
        ({"soft": False}, False),
        ({"soft": True, "config": tf1.ConfigProto()}, False),
        ({"config": tf1.ConfigProto(allow_soft_placement=True)}, True),
    ],
)
def test_sessions_have_the_soft_placement_of_tensorflow(
    arguments: dict[str, Any], soft: bool
) -> None:
    before = tf.config.get_soft_device_placement()
    assert place(partial(train, **arguments)).placement.soft is soft
    assert tf.config.get_soft_device_placement() is before


def test_keras_counts_no_gpus_of_this_machine() -> None:
    assert place(partial(train, keras=True), gpus=2).machine == Machine.local(2)
