from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.towers import on, program, variable

from placement_checks import Placement
from placement_checks.report.page.layout import Scope, strip_common_scopes, variable_scopes


def with_names(*names: str, towers: Mapping[str, int] | None = None) -> Placement:
    """A program with GPUs that read variables: all, or only one."""
    only = towers or {}
    ops = [variable(name) for name in names]
    readers = [
        on(gpu, f"tower_{gpu}/reads/{name}", "MatMul", f"tower_{gpu}/x", name)
        for name in names
        for gpu in (0, 1)
        if only.get(name, gpu) == gpu
    ]
    joined = [
        on(
            gpu,
            f"tower_{gpu}/loss",
            "AddN",
            *(each.name for each in readers if each.name[6] == str(gpu)),
        )
        for gpu in (0, 1)
    ]
    return program(*ops, *readers, *joined)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("fc1/weights", ("fc1",)),
        ("block1/conv2/kernel", ("block1", "conv2")),
        ("w0", ("w0",)),
        ("embedding/table/part_3", ("embedding",)),
    ],
)
def test_a_layer_is_the_scope_of_its_variables(name: str, scope: tuple[str, ...]) -> None:
    assert variable_scopes(with_names(name))[name] == scope


def test_mirrored_copies_are_one_layer() -> None:
    found = variable_scopes(program(variables=["fc/w"], mirrored=True))

    assert found["v0/fc/w"] == found["v1/fc/w"] == ("fc",)


def test_variables_of_each_tower_are_aligned() -> None:
    towers = {"tower_0/fc/w": 0, "tower_1/fc/w": 1}

    found = variable_scopes(with_names(*towers, towers=towers))

    assert found["tower_0/fc/w"] == found["tower_1/fc/w"] == ("fc",)


def test_variables_of_one_tower_keep_their_names() -> None:
    found = variable_scopes(with_names("tower_0/fc/w", towers={"tower_0/fc/w": 0}))

    assert found["tower_0/fc/w"] == ("tower_0", "fc")


def test_numbered_names_have_the_name_of_the_first_tower() -> None:
    towers = {"dense/kernel": 0, "dense_1/kernel": 1}

    found = variable_scopes(with_names(*towers, towers=towers))

    assert set(found.values()) >= {("dense",)}


@pytest.mark.parametrize(
    ("scope_of", "found"),
    [
        pytest.param({}, {}, id="no variables"),
        pytest.param(
            {"net/fc1/w": ("net", "fc1"), "net/fc2/w": ("net", "fc2")},
            {"net/fc1/w": ("fc1",), "net/fc2/w": ("fc2",)},
            id="a model in a scope",
        ),
        pytest.param(
            {"m/net/fc1/w": ("m", "net", "fc1"), "m/net/emb": ("m", "net")},
            {"m/net/fc1/w": ("fc1",), "m/net/emb": ("emb",)},
            id="a variable next to its layers",
        ),
        pytest.param(
            {"fc/w": ("fc",), "fc/b": ("fc",)}, {"fc/w": ("fc",), "fc/b": ("fc",)}, id="one layer"
        ),
        pytest.param(
            {"net/fc/w": ("net", "fc"), "net/fc/b": ("net", "fc")},
            {"net/fc/w": ("fc",), "net/fc/b": ("fc",)},
            id="one layer in a scope",
        ),
        pytest.param(
            {"a/b/w": ("a", "b"), "c/b/w": ("c", "b")},
            {"a/b/w": ("a", "b"), "c/b/w": ("c", "b")},
            id="nothing in common",
        ),
    ],
)
def test_the_scope_of_a_whole_model_is_not_a_layer(
    scope_of: Mapping[str, Scope], found: Mapping[str, Scope]
) -> None:
    assert strip_common_scopes(scope_of) == found
