"""Files without a graph and malicious graphs raise an error with their name; none hangs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from placement_checks import place
from placement_checks.core.errors import InputError
from placement_checks.core.limits import CALL_DEPTH, INLINED_OPS, Limit
from placement_checks.core.placement import TRAINABLE
from placement_checks.verification.judging import verify
from placement_checks.verification.placing import requested

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def graph() -> Any:
    """A GraphDef with variables of both kinds, a constant and a product on a GPU."""
    with tf.Graph().as_default() as graph:
        with tf.device("/cpu:0"):
            handle = tf1.get_variable("handle", [4, 1], use_resource=True)
            tf1.get_variable("ref", [4, 1], use_resource=False)
        with tf.device("/gpu:1"):
            x = tf1.placeholder(tf.float32, [None, 4], name="x")
            tf.add(tf.matmul(x, handle, name="product"), tf.constant([1.0, 2.0], name="constant"))
    return graph.as_graph_def()


def node(graph: Any, name: str) -> Any:
    return next(candidate for candidate in graph.node if candidate.name == name)


def save(graph: Any, name: str = "graph.pb") -> str:
    Path(name).write_bytes(graph.SerializeToString())
    return name


def refused(target: str | Path) -> str:
    """The error of `ask` and `place` for a target; the placer must not run."""
    with pytest.raises(InputError) as asked:
        requested(target)
    with pytest.raises(InputError) as placed:
        place(target)
    assert str(asked.value) == str(placed.value)
    return str(asked.value)


def function(graph: Any, name: str, *calls: str, device: str = "") -> None:
    """Add a function that calls others."""
    added = graph.library.function.add()
    added.signature.name = name
    added.node_def.add(name="n", op="NoOp", device=device)
    for number, called in enumerate(calls):
        call(added.node_def, f"call_{number}", called)


def call(nodes: Any, name: str, called: str) -> None:
    added = nodes.add(name=name, op="StatefulPartitionedCall")
    added.attr["f"].func.name = called
    for types in ("Tin", "Tout"):
        added.attr[types].list.SetInParent()


def doubled(graph: Any, levels: int) -> Any:
    """Add functions that each call the next one twice, and a call of the first one."""
    for level in range(levels):
        function(graph, f"f{level}", *[f"f{level + 1}"] * 2)
    function(graph, f"f{levels}")
    call(graph.node, "call", "f0")
    return graph


def test_functions_that_call_the_next_one_twice_are_counted_not_expanded(graph: Any) -> None:
    assert refused(save(doubled(graph, 40))) == (
        "graph.pb: the calls of its functions expand to more than 10^12 ops, but at most "
        "2,000,000 are placed; build a part of the program, or nest fewer calls"
    )


def test_a_known_number_of_ops_is_reported(graph: Any) -> None:
    for number in range(3):
        call(graph.node, f"more_{number}", "f0")

    assert "expand to 16,777,204 ops" in refused(save(doubled(graph, 20)))


def test_ops_are_counted_as_expanded(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = len(graph.node) + 1
    target = save(doubled(graph, 5))
    nested = len(requested(target).ops) - own

    monkeypatch.setattr("placement_checks.core.limits.INLINED_OPS", Limit(nested, "ops"))
    assert len(requested(target).ops) == own + nested
    monkeypatch.setattr("placement_checks.core.limits.INLINED_OPS", Limit(nested - 1, "ops"))
    assert f"expand to {nested} ops" in refused(target)


def test_repeated_calls_count_repeatedly(graph: Any) -> None:
    inner = INLINED_OPS.most // 1000
    for number in range(1000):
        call(graph.node, f"call_{number}", "large")
    function(graph, "large")
    for number in range(inner):
        graph.library.function[0].node_def.add(name=f"n{number}", op="NoOp")

    assert "expand to 2,001,000 ops" in refused(save(graph))


RECURSION = "but calls must be inlined to be placed; write the recursion as a loop"


def test_functions_that_call_themselves(graph: Any) -> None:
    function(graph, "f", "f")
    call(graph.node, "call", "f")

    assert refused(save(graph)) == f"graph.pb: its function 'f' calls itself, {RECURSION}"


def test_functions_that_call_each_other(graph: Any) -> None:
    names = [f"f{number}" for number in range(12)]
    for name in names:  # one path for each permutation of twelve
        function(graph, name, *names[1:])
    call(graph.node, "call", "f0")

    assert f"its function 'f1' calls itself, {RECURSION}" in refused(save(graph))


def test_a_function_called_by_its_name(graph: Any) -> None:
    added = graph.library.function.add()
    added.signature.name = "f"
    added.node_def.add(name="n", op="f")
    graph.node.add(name="call", op="f")

    assert "its function 'f' calls itself" in refused(save(graph))


def test_recursion_that_nothing_calls_is_accepted(graph: Any) -> None:
    function(graph, "f", "f")

    assert "call" not in requested(save(graph)).ops


@pytest.mark.parametrize("order", [1, -1], ids=["first to last", "last to first"])
def test_calls_nested_too_deep_are_refused(graph: Any, order: int) -> None:
    for level in range(CALL_DEPTH.most):
        function(graph, f"f{level}", f"f{level + 1}")
    function(graph, f"f{CALL_DEPTH.most}")
    for level in range(CALL_DEPTH.most)[::order]:
        call(graph.node, f"call_{level}", f"f{level}")

    assert refused(save(graph)) == (
        "graph.pb: its functions call each other more than 100 levels deep; "
        "build the program with less deeply nested calls"
    )

    del graph.node[-CALL_DEPTH.most :]
    call(graph.node, "call", "f1")
    assert "call" + "/call_0" * (CALL_DEPTH.most - 1) + "/n" in requested(save(graph)).ops


def test_deeply_nested_dataset_functions_are_allowed(graph: Any) -> None:
    """They are compared with others, but not inlined."""
    for level in range(2000):
        added = graph.library.function.add()
        added.signature.name = f"f{level}"
        added.node_def.add(name="n", op="MapDataset").attr["f"].func.name = f"f{level + 1}"
    graph.node.add(name="map", op="MapDataset").attr["f"].func.name = "f0"

    assert requested(save(graph)).placement.details.attributes("map").keys() == {"f"}


def test_a_name_both_in_a_body_and_the_graph(graph: Any) -> None:
    function(graph, "f")
    call(graph.node, "call", "f")
    graph.node.add(name="call/n", op="Const").attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(3)
    )

    asked = requested(save(graph))

    assert asked.ops["call/n"].type == "Const"
    assert asked.placement.details.value("call/n") == ("int32", (), 3)


def unnamed(graph: Any) -> None:
    graph.node.add(op="NoOp")


def doubly_named(graph: Any) -> None:
    graph.node.add(name="x", op="NoOp")


def dtype_of(name: str, dtype: int) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        node(graph, name).attr["dtype"].type = dtype

    return change


def no_dtype(graph: Any) -> None:
    del node(graph, "handle").attr["dtype"]


def device_in_a_body(graph: Any) -> None:
    function(graph, "f", device="bogus")
    call(graph.node, "call", "f")


UNKNOWN = (
    f"which TensorFlow {tf.__version__} does not know; read the file with the version of "
    "TensorFlow that wrote it"
)
NO_GRAPHS = [
    (unnamed, " has an op without a name; write the file again; TensorFlow writes no such graph"),
    (
        doubly_named,
        " has two ops of the name 'x'; write the file again; TensorFlow writes no such graph",
    ),
    (dtype_of("handle", 9999), f": its variable 'handle' has the dtype number 9999, {UNKNOWN}"),
    (dtype_of("ref", 9999), f": its variable 'ref' has the dtype number 9999, {UNKNOWN}"),
    (dtype_of("ref", -5), f": its variable 'ref' has the dtype number -5, {UNKNOWN}"),
    (no_dtype, f": its variable 'handle' has the dtype number 0, {UNKNOWN}"),
    (device_in_a_body, ": op 'call/n' requests the device 'bogus', but 'bogus' is not part of a"),
]


@pytest.mark.parametrize(("change", "message"), NO_GRAPHS)
def test_a_file_that_is_not_a_graph_is_refused(
    graph: Any, change: Callable[[Any], None], message: str
) -> None:
    change(graph)

    assert refused(save(graph)).startswith(f"graph.pb{message}")


def add_op(op: str, *inputs: str, **attributes: int) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        added = graph.node.add(name="added", op=op, input=inputs)
        for key, value in {"T": 1, **attributes}.items():
            setattr(added.attr[key], "type" if key == "T" else "i", value)

    return change


def class_of(kind: str, value: Any) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        attribute = node(graph, "product").attr["_class"]
        if kind == "list.s":
            attribute.list.s.append(value)
        elif kind == "list.i":
            attribute.list.i.append(value)
        else:
            setattr(attribute, kind, value)

    return change


def constant(**fields: Any) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        tensor = node(graph, "constant").attr["value"].tensor
        if "size" in fields:
            tensor.tensor_shape.dim[0].size = fields["size"]
            tensor.tensor_content = b""
            tensor.float_val.append(1)
        for key in fields.keys() - {"size"}:
            setattr(tensor, key, fields[key])

    return change


def variable_of_size(size: int) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        for dim in node(graph, "handle").attr["shape"].shape.dim:
            dim.size = size

    return change


def library(name: str) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        graph.library.function.add().signature.name = name
        graph.library.gradient.add(function_name="nowhere", gradient_func="nowhere_either")

    return change


STRANGE = {
    "an input that no op has": add_op("Identity", "nowhere"),
    "a control input that no op has": add_op("NoOp", "^nowhere"),
    "an empty input": add_op("Identity", ""),
    "its own input": add_op("Identity", "added"),
    "an output beyond the last": add_op("Identity", "x:99"),
    "an output before the first": add_op("Identity", "x:-1"),
    "a count beyond all bounds": add_op("AddN", "x", N=1 << 60),
    "a count below none": add_op("AddN", "x", N=-1),
    "an unknown op": add_op("NoSuchOp"),
    "an op of no type": add_op(""),
    "an op of no dtype": add_op("Identity", "x", T=9999),
    "a call of nothing": add_op("StatefulPartitionedCall"),
    "a branch of nothing": add_op("If", "x"),
    "a loop of nothing": add_op("While", "x"),
    "a case of nothing": add_op("Case", "x"),
    "colocation with a number": class_of("i", 4),
    "colocation with a text": class_of("s", b"loc:@handle"),
    "colocation with numbers": class_of("list.i", 4),
    "colocation with no text": class_of("list.s", b"loc:@\xff\xfe"),
    "colocation with no op": class_of("list.s", b"loc:@nowhere"),
    "a constant of no dtype": constant(dtype=9999),
    "a constant cut short": constant(tensor_content=b"\0\0\0"),
    "a constant beyond all bounds": constant(size=10**12),
    "a constant below none": constant(size=-7),
    "a variable beyond all bounds": variable_of_size(1 << 62),
    "a variable below none": variable_of_size(-7),
    "functions without a name": library(""),
    "gradients of no function": library("f"),
}


@pytest.mark.usefixtures("no_shapes")
@pytest.mark.parametrize("kind", STRANGE)
def test_a_graph_with_invalid_parts_is_judged(graph: Any, kind: str) -> None:
    """Rules judge its requests; the placer reports unknown ops."""
    STRANGE[kind](graph)
    if kind.startswith("a call") or kind.endswith("of nothing"):
        function(graph, "f")
    target = save(graph)

    for evidence in (requested(target), place(target)):
        verify(evidence)
        assert evidence.placement.details.attributes("constant").keys() == {"dtype"}
        evidence.placement.details.value("constant")


def test_shapes_that_crash_shape_inference() -> None:
    """TensorFlow aborts if a shape has another type than declared."""
    with tf.Graph().as_default() as live:
        x = tf1.placeholder(tf.float32, [4], name="x")
        tf.reshape(x, tf.constant([2, 2], name="shape"), name="reshaped")
    graph = live.as_graph_def()
    assert requested(save(graph)).placement.details.outputs("reshaped") == [("float32", (2, 2))]

    node(graph, "shape").attr["value"].tensor.dtype = 1
    asked = requested(save(graph))

    assert asked.placement.details.outputs("reshaped") == ()
    verify(asked)


@pytest.mark.parametrize("entry", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe"], ids=["noise", "no text"])
@pytest.mark.parametrize("key", ["variables", "trainable_variables", "global_step"])
def test_an_unreadable_collection(graph: Any, key: str, entry: bytes) -> None:
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta.collection_def[key].bytes_list.value.append(entry)

    message = refused(save(meta, "graph.meta"))

    assert message.startswith(f"graph.meta: its collection '{key}' cannot be read: ")
    assert message.endswith("; write the file again, it may be damaged")


def test_collections_of_another_kind_are_ignored(graph: Any) -> None:
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta.collection_def[TRAINABLE].node_list.value.append("handle")
    meta.collection_def["train_op"].bytes_list.value.append(b"\xff")

    asked = requested(save(meta, "graph.meta"))

    assert asked.placement.collections[TRAINABLE] == ()
    assert asked.placement.step.train_ops == ()


@pytest.mark.parametrize("tags", [("", ""), ("train", "")], ids=["first", "train"])
def test_the_nonempty_graph_of_a_saved_model_is_read(graph: Any, tags: tuple[str, str]) -> None:
    saved = saved_model_pb2.SavedModel()
    for tag in tags:
        saved.meta_graphs.add().meta_info_def.tags.append(tag)
    saved.meta_graphs[1].graph_def.CopyFrom(graph)
    saved.meta_graphs[1].collection_def[TRAINABLE].bytes_list.value.append(
        variable_pb2.VariableDef(variable_name="handle:0").SerializeToString()
    )
    Path("saved").mkdir()
    save(saved, "saved/saved_model.pb")

    asked = requested("saved")

    assert len(asked.ops) == len(graph.node)
    assert asked.placement.collections[TRAINABLE] == ("handle",)


def test_a_saved_model_without_ops() -> None:
    Path("saved").mkdir()
    saved = saved_model_pb2.SavedModel()
    saved.meta_graphs.add()
    save(saved, "saved/saved_model.pb")

    assert refused("saved").startswith("saved cannot be read as a graph: it contains no ops")


def nested(levels: int) -> str:
    inner = "i: 1"
    for _ in range(levels):
        inner = f'func {{ name: "f" attr {{ key: "k" value {{ {inner} }} }} }}'
    return f'node {{ name: "a" op: "NoOp" attr {{ key: "k" value {{ {inner} }} }} }}'


TEXTS = {
    "deep": (nested(40), "Error parsing message"),
    "bottomless": (nested(2000), "its nesting is too deep"),
    "one long line": ("node { name: " + "9" * 10_000, "1:14 : 'node { name: 999"),
    "no text": (
        'node { name: "\\377" }',
        "1:21 : 'node { name: \"\\377\" }': Couldn't parse string",
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_that_is_not_a_graph_is_refused(kind: str) -> None:
    text, reason = TEXTS[kind]
    Path("graph.pbtxt").write_text(text)

    message = refused("graph.pbtxt")

    assert message.startswith(f"graph.pbtxt cannot be read as a graph: {reason}")
    assert len(message) < 300


def test_a_text_graph_with_invalid_parts(graph: Any) -> None:
    doubly_named(graph)
    Path("graph.pbtxt").write_text(text_format.MessageToString(graph))

    assert "has two ops of the name 'x'" in refused("graph.pbtxt")


def test_a_placement_log_is_not_a_graph() -> None:
    Path("train.log").write_text("x: (NoOp): /job:localhost/replica:0/task:0/device:CPU:0")

    assert refused("train.log") == (
        "train.log is neither a Python file nor a saved graph; for a placement log, pass "
        "read_logs(['train.log']).placement()"
    )


PATHS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, " is a pipe or device, not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), " is a pipe or device, not a file"),
    "loop": (lambda path: path.symlink_to(path), ": its symbolic links form a loop"),
    "nothing": (
        lambda path: path.symlink_to("nowhere"),
        ": it is a symbolic link to 'nowhere', which does not exist",
    ),
}


@pytest.mark.parametrize("suffix", [".pb", ".pbtxt", ".meta"])
@pytest.mark.parametrize("kind", PATHS)
def test_a_path_that_is_not_a_file_is_refused(kind: str, suffix: str) -> None:
    make, reason = PATHS[kind]
    make(Path(f"graph{suffix}"))

    fix = "replace the link" if "symbolic" in reason else "check the path"
    assert refused(f"graph{suffix}") == f"graph{suffix}{reason}; {fix}"


def test_a_saved_model_that_is_not_a_file_is_refused() -> None:
    Path("saved").mkdir()
    os.mkfifo("saved/saved_model.pb")

    assert refused("saved") == "saved is a directory without a saved_model.pb; name a SavedModel"


def test_a_file_without_read_permission(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = save(graph)
    monkeypatch.setattr(os, "access", lambda path, _: str(path) != target)  # root reads all

    assert refused(target) == "graph.pb cannot be read: permission denied; check the path"


def test_a_path_with_another_suffix() -> None:
    Path("graph.bin").touch()

    assert refused(Path("graph.bin")) == (
        "graph.bin is not a saved graph; name a file .pb, .pbtxt, .meta"
    )


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"], ids=["too long", "with a zero"])
@pytest.mark.parametrize("form", ["{}.pb", "{}.py:build", "{}/train.py:build", "{}", "./{}"])
def test_an_invalid_file_name(name: str, form: str) -> None:
    assert "there is no such file" in refused(form.format(name)) or form == "{}"


def test_large_clusters_are_refused_before_they_are_placed(graph: Any) -> None:
    target = save(graph)
    with pytest.raises(InputError) as raised:
        place(target, machine="w*1001")
    assert str(raised.value) == (
        "graph.pb exceeds the limit of 1,000 tasks of a machine on which a graph is placed; name "
        "the tasks that a real cluster has"
    )

    for job in range(200):
        graph.node.add(name=f"n{job}", op="NoOp", device=f"/job:j{job}/task:9999")
    with pytest.raises(InputError, match=r"^graph\.pb exceeds the limit of 10,000 tasks"):
        place(save(graph))
