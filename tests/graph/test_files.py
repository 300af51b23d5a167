"""A saved graph in any format has the same placement as the live graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

from placement_checks import Machine, place
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.graph.files import load
from placement_checks.targets.forms import parse_target

tf1 = tf.compat.v1
KINDS = pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])


def build(use_resource: bool) -> tf.Tensor:
    with tf.device("/cpu:0"):
        w = tf1.get_variable("w", [4, 1], use_resource=use_resource)
        tf1.get_variable("step", [], use_resource=use_resource, trainable=False)
    with tf.device("/gpu:1"):
        return tf.matmul(tf1.placeholder(tf.float32, [None, 4], name="x"), w, name="product")


def devices(placement: Evidence) -> dict[str, str]:
    return {op.name: str(op.assigned) for op in placement.ops.values()}


@pytest.fixture
def graph(use_resource: bool) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        build(use_resource)
    return graph


@pytest.mark.smoke
@KINDS
@pytest.mark.parametrize("suffix", [".pb", ".pbtxt", ".meta"])
@pytest.mark.usefixtures("no_shapes")
def test_a_file_is_placed_like_its_graph(graph: tf.Graph, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"graph{suffix}"
    if suffix == ".pb":
        file.write_bytes(graph.as_graph_def().SerializeToString())
    elif suffix == ".pbtxt":
        file.write_text(text_format.MessageToString(graph.as_graph_def()))
    else:
        with graph.as_default():
            tf1.train.export_meta_graph(str(file))

    evidence = place(file)

    assert devices(evidence) == devices(place(graph))
    assert [variable[:] for variable in evidence.variables] == [
        ("w", "float32", (4, 1)),
        ("step", "float32", ()),
    ]
    assert evidence.placement.where("w") is None
    if suffix == ".meta":
        assert evidence.placement.collections == {GLOBAL: ("w", "step"), TRAINABLE: ("w",)}
    else:
        assert evidence.placement.collections == {}


def test_a_saved_model_of_version_1(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    with tf.Graph().as_default(), tf1.Session(config=SOFT) as session:
        with tf.device("/gpu:1"):
            x = tf1.placeholder(tf.float32, [None], name="x")
            y = tf.sqrt(x, name="y")
        with tf.device("/cpu:0"):
            tf1.get_variable("w", [1])
        session.run(tf1.global_variables_initializer())
        tf1.saved_model.simple_save(session, folder, {"x": x}, {"y": y})

    evidence = place(folder)

    y = evidence.ops["y"]
    assert not y.requested  # simple_save clears devices
    assert y.assigned == Machine.local().gpus[0]
    assert evidence.placement.collections[TRAINABLE] == ("w",)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [(["serve", "train"], "graph_1"), (["serve", "gpu"], "graph_0"), (["", "train"], "graph_1")],
)
def test_the_graph_for_training_of_a_saved_model_is_read(
    tags: list[str], expected: str, tmp_path: Path
) -> None:
    """Else the first graph that has ops."""
    model = saved_model_pb2.SavedModel()
    model.meta_graphs.add()  # without ops
    for number, tag in enumerate(tags):
        meta = model.meta_graphs.add()
        meta.meta_info_def.tags.append(tag)
        meta.graph_def.node.add(name=f"graph_{number}", op="NoOp")
    file = tmp_path / "saved_model.pb"
    file.write_bytes(model.SerializeToString())

    source = load(file, "saved_model.pb")

    assert [node.name for node in source.details.graph_def.node] == [expected]


def test_functions_of_a_saved_model_are_inlined(tmp_path: Path) -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            self.w = tf.Variable([[1.0]], name="w")

        @tf.function(input_signature=[tf.TensorSpec([None, 1])])
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            with tf.device("/gpu:1"):
                return tf.matmul(x, self.w, name="product")

    folder = str(tmp_path / "saved")
    model = Model()
    tf.saved_model.save(model, folder, signatures=model.__call__)

    evidence = place(folder, soft=True)

    (product,) = (op for op in evidence.ops.values() if op.type == "MatMul")
    assert product.name.endswith("/product")
    assert product.assigned is not None
    assert product.assigned.short == "/device:GPU:1"


def test_a_target_with_a_graph_suffix_is_a_path(tmp_path: Path) -> None:
    file = tmp_path / "towers.pbtxt"
    file.touch()

    target = parse_target(str(file))

    assert (target.kind, target.path) == ("graph", str(file))


SOFT = tf1.ConfigProto(allow_soft_placement=True)  # there is no GPU to run on
