"""After an edit, inputs, control inputs and colocations name the right ops."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.flat_graphs import flattened, function, graph, node
from support.random_functions import graphs, values

from placement_checks.graph.edits import (
    colocated_ops,
    redirect,
    rename_functions,
    rename_input,
    rename_ops,
)


def references(each: Any) -> tuple[str, list[str], list[str]]:
    return each.name, list(each.input), list(colocated_ops(each))


def test_a_renamed_op_has_its_new_name_everywhere() -> None:
    nodes = [
        node("a", "Split", "x", bound=["a"]),
        node("b", "AddN", "a", "a:1", "ab", "^a", bound=["ab", "a"]),
    ]
    rename_ops(nodes, partial(rename_input, names={"a": "new/a"}))

    assert list(map(references, nodes)) == [
        ("new/a", ["x"], ["new/a"]),
        ("b", ["new/a", "new/a:1", "ab", "^new/a"], ["ab", "new/a"]),
    ]


def test_a_redirected_tensor_and_a_replaced_op() -> None:
    nodes = [node("b", "AddN", "a", "a:1", "ab", "^a", "^c", bound=["a", "c"])]
    redirect(nodes, {"a:1": "new", "a": "other:2"}, {"a": "end"})

    assert references(nodes[0]) == ("b", ["other:2", "new", "ab", "^end", "^c"], ["end", "c"])


def test_functions_are_renamed_where_they_are_called() -> None:
    inner = function("inner", ["a"], [node("n", "Neg", "a")], {"r": "n:y:0"})
    outer = function("outer", ["b"], [node("call", "inner", "b")], {"s": "call:r:0"})
    branch = node("branch", "If", "x", "x", then_branch="outer", else_branch="inner")
    case = node("case", "Case", "x", "x")
    for name in ("inner", "missing"):
        case.attr["branches"].list.func.add(name=name)
    graph_def = graph([node("x", "Placeholder"), branch, case], inner, outer)

    rename_functions(graph_def, lambda name: f"w_{name}")

    assert [each.signature.name for each in graph_def.library.function] == ["w_inner", "w_outer"]
    assert graph_def.library.function[1].node_def[0].op == "w_inner"
    _, branch, case = graph_def.node
    assert branch.attr["then_branch"].func.name == "w_outer"
    assert [each.name for each in case.attr["branches"].list.func] == ["w_inner", "missing"]


@given(graphs(), st.booleans())
def test_names_do_not_change_values(graph_def: Any, has_slash: bool) -> None:
    before = values(graph_def)
    names = {each.name: f"{'new/' * has_slash}_{each.name}" for each in graph_def.node}
    constants = [each.name for each in graph_def.node if each.op in ("Const", "Placeholder")]
    for name in constants:  # a constant has the number of its name
        names[name] = f"new/{name}"
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)

    rename_ops(copy.node, partial(rename_input, names=names))
    rename_functions(copy, lambda function: f"new_{function}")

    assert values(copy) == {rename_input(tensor, names): value for tensor, value in before.items()}
    assert flattened(copy).graph_def.library == flattened(graph_def).graph_def.library
    back = {new: old for old, new in names.items()}
    rename_ops(copy.node, partial(rename_input, names=back))
    rename_functions(copy, lambda function: function.removeprefix("new_"))
    assert copy == graph_def
