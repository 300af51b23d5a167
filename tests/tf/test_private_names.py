"""The private names of TensorFlow that the package uses exist, and only `tf` knows them.

Patched names are in `test_patches.py`. How TensorFlow uses private names is checked each night, in
`test_private_behavior.py` and `tests/capture/eager/test_private_behavior.py`.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import tensorflow as tf

import placement_checks
from placement_checks.core.errors import InputError
from placement_checks.tf import graphs
from placement_checks.tf.patching import existing_in
from placement_checks.tf.process_state import GlobalState

tf1 = tf.compat.v1

PACKAGE = Path(placement_checks.__file__).parent
# The modules of the placer run in processes that load only the C library.
KNOWS_NAMES = (
    "tf/",
    "capture/child_process/spawned.py",  # of multiprocessing
    "tf/c_library.py",
    "placer/worker/gpu_less_server.py",
    "testing/markers.py",  # of pytest
    "testing/patches.py",  # of pytest and unittest.mock
)


def looked_up(name: str) -> Iterator[tuple[str, str]]:
    """The constant arguments of `existing_in` in a module."""
    module = import_module(f"placement_checks.tf.{name}")
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="existing_in"), args=[*arguments]):
                text = f"({','.join(map(ast.unparse, arguments))})"
                with contextlib.suppress(NameError):  # a local variable
                    yield eval(text, vars(module))


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "least"),
    [("distribution", 4), ("eager", 6), ("graphs", 2), ("patching", 1), ("process_state", 5)],
)
def test_looked_up_names_exist(name: str, least: int) -> None:
    found = [existing_in(*names) for names in looked_up(name)]

    assert len(found) >= least


def test_the_state_of_the_process_can_be_read() -> None:
    tf1.reset_default_graph()

    assert GlobalState.current() == GlobalState()


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def test_a_backward_op_has_its_forward_op(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, name="x")
    tf1.gradients(tf.tanh(x), x)
    backward = graph.get_operation_by_name("gradients/Tanh_grad/TanhGrad")

    assert graphs.original_op(backward).name == "Tanh"
    assert graphs.original_op(x.op) is None


def test_an_op_knows_the_device_scopes_around_it() -> None:
    with tf.Graph().as_default(), tf.device("/cpu:0"), tf1.device(lambda op: op.device):
        inner, outer = graphs.device_scopes(tf.constant(1.0).op)

    assert (outer.obj, outer.filename) == ("/cpu:0", __file__)
    assert inner.obj == f"<lambda><{__file__}, {inner.lineno}>"
    assert inner.lineno == outer.lineno > 0


def test_a_function_has_its_body(graph: tf.Graph) -> None:
    tf.function(tf.tanh)(tf1.placeholder(tf.float32, []))
    (function,) = graph.as_graph_def().library.function

    body = graphs.function_body(graph, function.signature.name)

    assert "Tanh" in {op.type for op in body.get_operations()}
    assert graphs.function_body(graph, "no_such_function") is None


def test_the_kernels_of_an_op_type() -> None:
    kernels = graphs.kernels_of("MatMul")

    of_cpu = [kernel for kernel in kernels if kernel.device_type == "CPU"]
    taken = {
        number
        for kernel in of_cpu
        for constraint in kernel.constraint
        for number in constraint.allowed_values.list.type
    }
    assert tf.float32.as_datatype_enum in taken
    assert tf.string.as_datatype_enum not in taken


def test_the_definition_of_an_op_type() -> None:
    definition = graphs.definition_of("AssignVariableOp")

    assert [argument.name for argument in definition.input_arg] == ["resource", "value"]
    assert graphs.definition_of("NoSuchOp") is None


def test_a_missing_module_and_a_missing_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow.python.framework.kernels", None)

    with pytest.raises(InputError, match=r"has no tensorflow\.python\.framework\.kernels, which"):
        graphs.kernels_of("MatMul")
    with pytest.raises(InputError, match=r"has no object\._original_op, which"):
        graphs.original_op(object())


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def named(tree: ast.AST) -> Iterator[str]:
    """The names of imported modules, and of attributes of objects other than ``self``."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[_, name, *_]):
                yield from [str(name.value)] if isinstance(name, ast.Constant) else []
            case ast.Constant(value=str(text)) if not private(text):
                yield text
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute():
                yield node.attr


def own(tree: ast.AST) -> Iterator[str]:
    """The attributes that the classes of a module define."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef():
                yield node.name
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
                yield node.attr
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def test_no_other_module_uses_private_names() -> None:
    # Names of os, sys and named tuples.
    public = {"_exit", "_current_frames", "_replace", "_asdict"}
    uses = []
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith(KNOWS_NAMES):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        allowed = {*own(tree), *public}
        uses += [
            f"{file}: {name}"
            for name in named(tree)
            if name.startswith(("tensorflow.python", "keras.src"))
            or name == "__internal__"
            or (private(name) and name not in allowed)
        ]

    assert not uses, "\n".join(uses)
