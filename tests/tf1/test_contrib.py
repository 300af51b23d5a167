"""Names of ``tf.contrib`` are found on each path; the others raise an error."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import tensorflow as tf
import tf_slim

from placement_checks.tf1 import contrib, lazy_modules
from placement_checks.tf1.lazy_modules import UsedNames

Run = Callable[[str], dict[str, Any]]


def of(path: str) -> Any:
    """The object at a dotted path."""
    module, *names = path.split(" ")
    return reduce(getattr, names, importlib.import_module(module))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        # By the locations of its package.
        ("slim.conv2d", "tf_slim conv2d"),
        ("layers.xavier_initializer", "tf_slim.layers xavier_initializer"),
        ("layers.embedding_column", "tensorflow.compat.v1 feature_column embedding_column"),
        ("framework.arg_scope", "tf_slim arg_scope"),
        ("framework.get_or_create_global_step", "tf_slim get_or_create_global_step"),
        ("framework.list_variables", "tensorflow.compat.v1 train list_variables"),
        ("framework.is_tensor", "tensorflow.compat.v1 is_tensor"),
        ("losses.softmax_cross_entropy", "tf_slim.losses softmax_cross_entropy"),
        ("metrics.streaming_accuracy", "tf_slim.metrics streaming_accuracy"),
        ("training.create_train_op", "tf_slim.training.training create_train_op"),
        ("rnn.static_rnn", "tensorflow.compat.v1 nn static_rnn"),
        ("data.map_and_batch", "tensorflow.compat.v1 data experimental map_and_batch"),
        ("lookup.index_table_from_file", "tensorflow.python.ops.lookup_ops index_table_from_file"),
        ("nccl.all_sum", "tensorflow.python.ops.nccl_ops all_sum"),
        ("eager.Variable", "tensorflow.compat.v1 Variable"),
        ("util.constant_value", "tensorflow.python.framework.tensor_util constant_value"),
        ("staging.StagingArea", "tensorflow.python.ops.data_flow_ops StagingArea"),
        ("compiler.jit.experimental_jit_scope", "tensorflow.compat.v1 xla experimental jit_scope"),
        ("compiler.xla.compile", "tensorflow.compat.v1 xla experimental compile"),
        # By a module of the same name in the package.
        ("framework.nest.flatten", "tensorflow.python.util.nest flatten"),
        ("slim.losses.get_total_loss", "tf_slim.losses get_total_loss"),
        ("slim.nets.resnet_v1.resnet_v1_50", "tf_slim.nets.resnet_v1 resnet_v1_50"),
        ("metrics.set_ops.set_difference", "tensorflow.compat.v1 sets set_difference"),
        (
            "layers.python.layers.initializers.xavier_initializer",
            "tf_slim.layers.initializers xavier_initializer",
        ),
        (
            "framework.python.ops.variables.get_or_create_global_step",
            "tf_slim.ops.variables get_or_create_global_step",
        ),
        (
            "layers.python.layers.summaries.summarize_tensor",
            "tf_slim.layers.summaries summarize_tensor",
        ),
        (
            "nccl.python.ops.nccl_ops.all_sum",
            "tensorflow.python.ops.nccl_ops all_sum",
        ),
        (
            "all_reduce.python.all_reduce.build_ring_all_reduce",
            "tensorflow.python.distribute.v1.all_reduce build_ring_all_reduce",
        ),
        (
            "framework.python.framework.checkpoint_utils.load_variable",
            "tensorflow.python.training.checkpoint_utils load_variable",
        ),
    ],
)
def test_locations_of_names(run: Run, used: UsedNames, asked: str, found: str) -> None:
    package, _, name = f"tensorflow.contrib.{asked}".rpartition(".")

    by_attribute = run(f"import tensorflow as tf\nvalue = tf.contrib.{asked}")["value"]
    by_import = run(f"from {package} import {name} as value")["value"]
    by_module = run(f"import {package} as module\nvalue = module.{name}")["value"]

    assert by_attribute is by_import is by_module is of(found)
    assert used == UsedNames({f"tf.contrib.{asked}"}, [])


def test_a_function_with_the_name_of_its_module(run: Run, used: UsedNames) -> None:
    made = run(
        """
        import importlib
        import tensorflow as tf
        from tensorflow.contrib.framework.python.ops.arg_scope import add_arg_scope as of_module
        from tensorflow.contrib.framework.python.ops import add_arg_scope, arg_scope

        @add_arg_scope
        def layer(width=1):
            return width

        with arg_scope([layer], width=3):
            width = layer()
        module = importlib.import_module("tensorflow.contrib.framework.python.ops.arg_scope")
        by_attribute = tf.contrib.framework.python.ops.arg_scope
        """
    )

    assert made["width"] == 3
    assert made["arg_scope"] is made["by_attribute"] is tf_slim.arg_scope
    assert made["module"].arg_scope is tf_slim.arg_scope
    assert made["of_module"] is made["add_arg_scope"]
    assert used.missing == []


def test_layers_and_cells_of_keras_2(run: Run) -> None:
    made = run(
        """
        import tensorflow as tf
        cells = [tf.contrib.rnn.BasicLSTMCell, tf.nn.rnn_cell.BasicLSTMCell]
        """
    )

    assert made["cells"][0] is made["cells"][1]


def test_each_package_can_be_imported(run: Run, used: UsedNames) -> None:
    for package in contrib.PACKAGES:
        run(f"import tensorflow.contrib.{package}\nfrom tensorflow.contrib import {package}")

    assert used == UsedNames()


@pytest.mark.parametrize("location", sorted({*sum(contrib.LOCATIONS.values(), ())}))
def test_each_location_exists(run: Run, used: UsedNames, location: str) -> None:
    if location == "tf.estimator" and not hasattr(tf.compat.v1, "estimator"):
        pytest.skip("gone in TensorFlow 2.16")
    first, _, rest = location.partition(".")
    if first == "python":
        importlib.import_module(f"tensorflow.python.{rest}")
    elif first == "tf_slim":
        importlib.import_module(location)
    else:
        run(f"import tensorflow as tf\n{location}")


@pytest.mark.parametrize("shim", contrib.SHIMS)
def test_each_shim_exists(run: Run, used: UsedNames, shim: str) -> None:
    made = run(f"import tensorflow as tf\nvalue = tf.contrib.{shim}")

    assert callable(made["value"])
    assert used.found == {f"tf.contrib.{shim}"}


@pytest.mark.parametrize("renamed", sorted(set(contrib.RENAMED) - {"tutorials.input_data"}))
def test_each_renamed_module_exists(run: Run, renamed: str) -> None:
    package, _, name = renamed.partition(".")

    run(f"import tensorflow.contrib.{package}.python.ops.{name}")


SAID = "is not in this TensorFlow, and --v1 has no replacement"


@pytest.mark.parametrize(
    "missing",
    [
        "no_such",
        "gan.gan_model",
        "layers.no_such",
        "layers.python.layers.initializers.no_such",
        "slim.nets.no_such",
        "training.python.training.hparam.no_such",
    ],
)
def test_a_missing_name_is_reported_and_recorded(run: Run, used: UsedNames, missing: str) -> None:
    package, _, name = f"tensorflow.contrib.{missing}".rpartition(".")

    with pytest.raises(AttributeError) as asked:
        run(f"import tensorflow as tf\ntf.contrib.{missing}")
    with pytest.raises(ImportError) as imported:
        run(f"from {package} import {name}")
    with pytest.raises(ImportError) as whole:
        run(f"import {package}.{name}")

    assert str(asked.value) == str(imported.value) == str(whole.value)
    assert str(asked.value) == f"tf.contrib.{missing} {SAID}"
    assert used == UsedNames(set(), [f"tf.contrib.{missing}"])


def test_a_function_is_not_a_module(run: Run) -> None:
    with pytest.raises(ImportError, match=r"tf\.contrib\.layers\.xavier_initializer is not in"):
        run("import tensorflow.contrib.layers.xavier_initializer")


def test_a_program_that_handles_a_missing_name_continues(run: Run, used: UsedNames) -> None:
    made = run(
        """
        import tensorflow as tf
        try:
            from tensorflow.contrib.tpu.python.tpu import tpu_estimator
        except ImportError:
            tpu_estimator = None
        has_gan = hasattr(tf.contrib.gan, "gan_model")
        """
    )

    assert made["tpu_estimator"] is None
    assert not made["has_gan"]
    assert used.missing == [
        "tf.contrib.tpu.python.tpu.tpu_estimator",
        "tf.contrib.gan.gan_model",
    ]


def test_examples(run: Run, used: UsedNames) -> None:
    made = run(
        """
        import tensorflow as tf
        from tensorflow.examples.tutorials.mnist import input_data
        from tensorflow.contrib.learn.python.learn.datasets.mnist import read_data_sets
        import tensorflow.examples.tutorials.mnist.input_data as again
        """
    )

    assert made["input_data"].read_data_sets is made["read_data_sets"]
    assert made["again"] is made["input_data"]
    with pytest.raises(ImportError, match=r"tf\.examples\.tutorials\.word2vec is not in this"):
        run("from tensorflow.examples.tutorials import word2vec")


@pytest.fixture
def no_slim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_modules, "has_tf_slim", lambda: False)
    monkeypatch.setattr(lazy_modules, "tf_slim_modules", lambda *_: [])


@pytest.mark.parametrize(
    ("program", "needed"),
    [
        ("import tensorflow.contrib.slim as slim", "slim"),
        ("from tensorflow.contrib import slim", "slim"),
        ("import tensorflow as tf\ntf.contrib.slim", "slim"),
        ("import tensorflow as tf\ntf.contrib.layers.flatten", "layers.flatten"),
        ("from tensorflow.contrib.framework import arg_scope", "framework.arg_scope"),
        (
            "from tensorflow.contrib.layers.python.layers import initializers",
            "layers.python.layers.initializers",
        ),
    ],
)
@pytest.mark.usefixtures("no_slim")
def test_without_tf_slim(run: Run, used: UsedNames, program: str, needed: str) -> None:
    with pytest.raises(ImportError) as error:
        run(program)

    assert str(error.value) == (
        f"tf.contrib.{needed} needs tf_slim, which is not installed; pip install tf_slim"
    )
    assert used == UsedNames()


@pytest.mark.usefixtures("no_slim")
def test_other_names_are_found_without_tf_slim(run: Run, used: UsedNames) -> None:
    run("import tensorflow as tf\ntf.contrib.framework.nest.flatten\ntf.contrib.training.HParams")

    assert used.found == {"tf.contrib.framework.nest.flatten", "tf.contrib.training.HParams"}


def test_modules_of_slim_by_their_name() -> None:
    names = [module.__name__ for module in lazy_modules.tf_slim_modules("summaries", "layers")]

    assert names == ["tf_slim.layers.summaries", "tf_slim.summaries"]
    assert lazy_modules.tf_slim_modules("layers", "layers")[0].__name__.startswith(
        "tf_slim.layers"
    )
    assert not lazy_modules.tf_slim_modules("layers_test", "layers")
    assert tf_slim.__name__ == lazy_modules.TF_SLIM
