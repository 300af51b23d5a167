"""Each program has the TensorFlow behavior that it requests, whatever was loaded before."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from zipfile import ZipFile

import pytest
import tensorflow as tf

from placement_checks import place
from placement_checks.targets.forms import parse_target
from placement_checks.targets.importing import import_program
from placement_checks.tf.process_state import Behavior, GlobalState
from placement_checks.verification.running import with_numbers

tf1 = tf.compat.v1

BUILD = """
def build(num_gpus=2):
    return {"train_op": tf.compat.v1.get_variable("v", [])}
"""
IMPORT = "import tensorflow as tf\n"
OFF = f"{IMPORT}tf.compat.v1.disable_v2_behavior()\n"
EAGER = f"{IMPORT}assert tf.constant(1).numpy() == 1\n"
REF, RESOURCE = "VariableV2", "VarHandleOp"

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file into the directory of this test; returns its target."""

    def written(path: str, text: str = "") -> str:
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return f"{file}:build"

    return written


def made(target: str) -> str:
    """The type of the variable that a target creates; the process must be unchanged."""
    evidence = place(target)
    assert Behavior.current() == Behavior()
    assert tf.executing_eagerly()
    return evidence.ops["v"].type


def test_a_file_that_imports_from_an_archive(write: Write, tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with ZipFile(archive, "w") as modules:
        modules.writestr("module_in_archive.py", "")
    path = f"import sys\nsys.path.append({str(archive)!r})\nimport module_in_archive\n"

    assert made(write("off.py", OFF + path + BUILD)) == REF
    assert made(write("on.py", EAGER + BUILD)) == RESOURCE


@pytest.mark.parametrize("order", list(permutations(["on.py", "off.py", "in_part.py"])))
def test_a_file_does_not_change_what_another_builds(write: Write, order: tuple[str, ...]) -> None:
    part = f"{IMPORT}tf.compat.v1.disable_resource_variables()\n{EAGER}"
    texts = {"on.py": EAGER, "off.py": OFF, "in_part.py": part}
    targets = {name: write(name, texts[name] + BUILD) for name in order}

    found = {name: made(target) for name, target in [*targets.items(), *targets.items()]}

    assert found == {"on.py": RESOURCE, "off.py": REF, "in_part.py": REF}


POLICY_OF_KERAS = """
def build(num_gpus=2):
    layers = tf.keras.mixed_precision.global_policy().name, tf.keras.backend.floatx()
    return {"train_op": tf.compat.v1.get_variable(".".join(layers), [])}
"""
MIXED = f"{IMPORT}tf.keras.mixed_precision.set_global_policy('mixed_bfloat16')\n"
DOUBLE = f"{IMPORT}tf.keras.backend.set_floatx('float64')\n"


@pytest.mark.parametrize("order", list(permutations(["plain.py", "mixed.py", "double.py"])))
def test_a_file_does_not_change_the_dtypes_of_other_layers(
    write: Write, order: tuple[str, ...]
) -> None:
    texts = {"plain.py": IMPORT, "mixed.py": MIXED, "double.py": DOUBLE}
    targets = {name: write(name, texts[name] + POLICY_OF_KERAS) for name in order}

    found = {}
    for name, target in [*targets.items(), *targets.items()]:
        (found[name],) = {variable.name for variable in place(target).variables}
        assert Behavior.current() == Behavior()

    assert found == {
        "plain.py": "float32.float32",
        "mixed.py": "mixed_bfloat16.float32",
        "double.py": "float64.float64",
    }


def test_dtypes_of_a_builder_end_with_its_build(write: Write) -> None:
    build = POLICY_OF_KERAS.replace(
        "    layers =",
        "    tf.keras.mixed_precision.set_global_policy('mixed_float16')\n    layers =",
    )

    assert place(write("sets.py", IMPORT + build)).ops["mixed_float16.float32"]
    assert Behavior.current() == Behavior()


def test_files_without_a_switch_have_the_behavior_of_the_process(write: Write) -> None:
    first = write("first.py", IMPORT + BUILD)
    second = write("second.py", IMPORT + BUILD)
    asking = write("asking.py", OFF + BUILD)
    before = [made(first)]

    tf1.disable_v2_behavior()
    within = [place(target).ops["v"].type for target in (first, second, asking)]
    Behavior().restore()

    assert (before, within) == ([RESOURCE], [REF, REF, REF])
    assert [made(target) for target in (first, second, asking)] == [RESOURCE, RESOURCE, REF]


def test_a_builder_disables_the_behavior_for_itself(write: Write) -> None:
    off = "    tf.compat.v1.disable_v2_behavior()\n"
    first = write("first.py", IMPORT + BUILD.replace("    return", f"{off}    return"))
    second = write("second.py", EAGER + BUILD)

    assert [made(first), made(second), made(first)] == [REF, RESOURCE, REF]


def test_a_module_disables_the_behavior_for_its_importers(write: Write) -> None:
    """Also if the module is loaded already, or if the program turned the behavior off first."""
    write("model.py", OFF)
    first = write("first.py", f"{OFF}import model\n{BUILD}")
    second = write("second.py", f"{IMPORT}import model\n{BUILD}")
    elsewhere = write("elsewhere/second.py", EAGER + BUILD)

    assert [made(first), made(second), made(elsewhere)] == [REF, REF, RESOURCE]


def test_a_module_without_a_switch_affects_nothing(write: Write) -> None:
    write("model.py", "RATE = 0.1")
    first = write("first.py", f"{OFF}import model\n{BUILD}")
    second = write("second.py", f"import model\n{EAGER}{BUILD}")

    assert [made(first), made(second)] == [REF, RESOURCE]


def test_a_module_that_is_imported_late(write: Write) -> None:
    write("model.py", OFF)
    late = write("late.py", IMPORT + BUILD.replace("    return", "    import model\n    return"))

    assert [made(late), made(late)] == [REF, REF]


def test_modules_set_the_behavior_as_files_do(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("turned_off_module.py", OFF + BUILD)
    write("left_on_module.py", EAGER + BUILD)

    assert [made(f"{name}_module:build") for name in ("turned_off", "left_on")] == [REF, RESOURCE]


def test_modules_of_a_package_share_a_disabled_behavior(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("turned_off/__init__.py")
    write("turned_off/towers.py", OFF + BUILD)
    write("turned_off/single.py", "from turned_off.towers import build as build\n")

    assert [made(f"turned_off.{name}:build") for name in ("towers", "single")] == [REF, REF]


def test_in_a_graph_of_the_caller(write: Write) -> None:
    target = write("off.py", OFF + BUILD)

    with tf.Graph().as_default():
        import_program(parse_target(target))
        assert not tf.executing_eagerly()
    assert made(target) == REF


def test_a_batch_function_runs_as_its_file_was_loaded(write: Write) -> None:
    target = write(
        "train.py",
        OFF
        + """
import numpy as np

def towers(num_gpus):
    losses, inputs = [], []
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"), tf.compat.v1.variable_scope("", reuse=i > 0):
            x = tf.compat.v1.placeholder(tf.float32, [None, 3])
            with tf.device("/cpu:0"):
                w = tf.compat.v1.get_variable("w", [int(x.shape[1].value), 1])
            losses.append(tf.reduce_mean(tf.square(tf.matmul(x, w) - 1)))
        inputs.append({"x": x})
    with tf.device("/cpu:0"):
        loss = tf.add_n(losses) / num_gpus
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, colocate_gradients_with_ops=True)
    return {"train_op": train_op, "loss": losses, "inputs": inputs}

def build(num_gpus=2):
    return towers(num_gpus)

def single():
    return towers(1)

def batch(rng, n):
    with tf.compat.v1.Session() as session:  # without a graph of its own
        return {"x": session.run(tf.constant(rng.normal(size=(n, 3)).astype(np.float32)))}
""",
    )
    file = target.removesuffix(":build")

    measured = with_numbers(place(target), f"{file}:single", f"{file}:batch").measurement

    assert measured
    assert measured.trajectory
    assert not measured.saved
    assert Behavior.current() == Behavior()


def test_collected_sessions_end_no_later_graph() -> None:
    """The generators of their graphs would leave a mode that the later graph has entered."""
    before = GlobalState.current()
    sessions = [tf1.InteractiveSession(graph=tf.Graph()) for _ in range(2)]
    assert list(before.restore()) == ["never closed an as_default() or InteractiveSession"]

    with tf.Graph().as_default() as graph:
        sessions.clear()
        gc.collect()

        assert tf1.get_default_graph() is graph
    assert GlobalState.current() == before
