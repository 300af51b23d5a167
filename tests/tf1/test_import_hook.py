"""Programs and libraries import different ``tensorflow`` modules with their submodules."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.tf1 import stand_in
from placement_checks.tf1.activate import as_tensorflow_1
from placement_checks.tf1.lazy_modules import UsedNames

Run = Callable[[str], dict[str, Any]]

OURS = "placement_checks.graph.train_step"


def test_a_program_gets_the_stand_in_by_any_import(run: Run) -> None:
    made = run(
        """
        import importlib
        import sys
        import tensorflow
        import tensorflow as tf
        import tensorflow.python.framework.ops
        same = [tensorflow, importlib.import_module("tensorflow"), sys.modules["tensorflow"],
                __import__("tensorflow"), __import__("tensorflow.nn")]
        """
    )

    assert all(module is made["tf"] for module in made["same"])
    assert made["tf"] is not tf


@pytest.mark.usefixtures("used")
def test_modules_of_this_package_import_the_installed_tensorflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, OURS, raising=False)

    module = importlib.import_module(OURS)

    assert vars(module)["tf"] is tf


def importing(source: str, **importer: Any) -> dict[str, Any]:
    exec(source, importer)
    return importer


@pytest.mark.parametrize(
    "importer",
    [
        {"__name__": "placement_checks.tf1.made_up"},
        {"__name__": "__main__", "__package__": "placement_checks.capture.child_process"},
        {"__name__": "keras.src.callbacks.tensorboard"},
        {"__name__": "tensorflow.python.made_up"},
        {"__name__": "tf_keras"},
    ],
    ids=str,
)
@pytest.mark.usefixtures("used")
def test_code_for_version_2_imports_the_installed_tensorflow(importer: dict[str, str]) -> None:
    run = importing(
        "import tensorflow as whole\n"
        "import tensorflow.summary as summary\n"
        "from tensorflow.experimental import dtensor\n"
        "from tensorflow.python.framework import ops\n"
        "import tensorflow.python.framework.dtypes as dtypes\n",
        **importer,
    )

    assert run["whole"] is tf
    assert run["summary"] is tf.summary
    assert run["dtensor"] is tf.experimental.dtensor
    assert run["ops"].Graph is tf.Graph
    assert run["dtypes"].float32 is tf.float32


@pytest.mark.parametrize(
    "importer",
    [
        {"__name__": "__main__", "__package__": None},
        {"__name__": "train", "__package__": ""},
        {"__name__": "keras_models.resnet", "__package__": "keras_models"},
        {"__name__": "tensorflow_utils"},
        {},
    ],
    ids=str,
)
def test_other_code_gets_the_stand_in(used: UsedNames, importer: dict[str, str]) -> None:
    run = importing("import tensorflow as whole\nimport tensorflow.summary as summary", **importer)

    assert run["whole"].__version__ == "1.15.5"
    assert run["summary"].merge_all is tf.compat.v1.summary.merge_all


@pytest.mark.usefixtures("used")
def test_imports_in_another_thread() -> None:
    made: list[ModuleType] = []

    def work() -> None:
        import tensorflow

        made.append(tensorflow)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert made[0].__version__ == "1.15.5"


def test_public_modules_have_version_1(run: Run) -> None:
    made = run(
        """
        import tensorflow.gfile as gfile
        import tensorflow.train
        from tensorflow.losses import get_total_loss
        from tensorflow.nn.rnn_cell import BasicLSTMCell
        from tensorflow.keras.layers import Dense
        import tensorflow.keras.backend as K
        import tensorflow.compat.v1 as v1
        import tensorflow as tf
        assert tensorflow.train.MomentumOptimizer is v1.train.MomentumOptimizer
        assert tf.nn.rnn_cell.BasicLSTMCell is BasicLSTMCell
        """
    )

    assert made["gfile"].Open is tf.compat.v1.gfile.Open
    assert made["get_total_loss"] is tf.compat.v1.losses.get_total_loss
    assert made["Dense"].__module__.startswith(("tf_keras.src", "keras.src.layers.core"))
    assert made["K"].learning_phase
    assert made["v1"] is tf.compat.v1


def test_compat_v1_is_one_module(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.compat.v1.config, "list_physical_devices", "patched")
    made = run(
        """
        import tensorflow.compat.v1 as by_name
        import tensorflow.compat.v2
        from tensorflow.compat import v1
        from tensorflow.compat.v1.config import list_physical_devices
        """
    )

    assert made["by_name"] is made["v1"] is tf.compat.v1
    assert made["tensorflow"].compat.v2 is tf.compat.v2
    assert made["list_physical_devices"] == "patched"


def test_all_names_of_a_module(run: Run) -> None:
    made = run("from tensorflow.train import *\nfrom tensorflow import *")

    assert made["AdamOptimizer"] is tf.compat.v1.train.AdamOptimizer
    assert made["get_variable"] is tf.compat.v1.get_variable


def test_a_module_that_never_existed(run: Run, used: UsedNames) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'tensorflow\.no_such'"):
        run("import tensorflow.no_such")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'tensorflow\.gfile\.no_such'"):
        run("import tensorflow.gfile.no_such")
    with pytest.raises(
        ModuleNotFoundError, match=r"No module named 'tensorflow\.python\.no_such'"
    ):
        run("import tensorflow.python.no_such")


def test_a_package_first_imported_in_the_block() -> None:
    """It stays an attribute of TensorFlow, as after any import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(tf, "core", raising=False)
        with as_tensorflow_1():
            exec("import tensorflow.core.framework.graph_pb2", {"__name__": "program"})

        assert tf.core is sys.modules["tensorflow.core"]


def test_tensorflow_is_always_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that finds no module would import TensorFlow again."""
    is_own = stand_in.StandIn.is_own
    seen: list[bool] = []

    def noting(self: stand_in.StandIn, name: str) -> bool:
        seen.append("tensorflow" in sys.modules)
        return is_own(self, name)

    monkeypatch.setattr(stand_in.StandIn, "is_own", noting)
    with as_tensorflow_1():
        pass

    assert seen
    assert all(seen)
