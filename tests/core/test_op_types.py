"""The types of ops: TensorFlow has all that are named, and they are named in one place."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

from placement_checks.core import op_types
from placement_checks.core.op_types import RANDOM_STATELESS, is_dataset

NAMED = {
    name: {value} if isinstance(value, str) else set(value)
    for name, value in vars(op_types).items()
    if name.isupper() and isinstance(value, str | Collection)
}
OF_GRAPPLER = {"AutoReloadVariable"}  # core/grappler/op_types.cc alone knows it
TABLES = {
    "core/op_types.py",
    "graph/graph_def.py",
    "graph/inlining.py",
    "run/graph_rewrites.py",
}
TERMS = "step/"  # a room that gives op types other meanings: ops of terms
WORDS = {
    ("__init__.py", "Log"),  # classes of the package
    ("__init__.py", "Variable"),
    ("capture/child_process/ranks.py", "Min"),  # reductions of Horovod
    ("core/ranks.py", "Sum"),
    ("horovod/collectives.py", "Max"),
    ("horovod/collectives.py", "Min"),
    ("logs/__init__.py", "Log"),
    ("tf1/renamed.py", "Assert"),  # names of Python
    ("tf1/renamed.py", "Variable"),
}
LATER = {"DecodeJxl", "DecodeWebP"}  # 2.21 has them, 2.15 has not


def test_tensorflow_has_every_type() -> None:
    from tensorflow import __version__
    from tensorflow.python.framework import op_def_registry

    release = tuple(map(int, __version__.split(".")[:2]))
    excepted = OF_GRAPPLER | LATER if release < (2, 21) else OF_GRAPPLER

    missing = {
        name: absent
        for name, kinds in NAMED.items()
        if (absent := {kind for kind in kinds - excepted if not op_def_registry.get(kind)})
    }
    assert not missing, str(missing)


@pytest.mark.parametrize(
    ("kind", "one"),
    [
        ("TFRecordDatasetV2", True),
        ("ExperimentalMapDataset", True),
        ("DatasetCardinality", False),
        ("InitializeTableFromDataset", False),
    ],
)
def test_datasets(kind: str, one: bool) -> None:
    assert is_dataset(kind) == one


def test_seeds_match_the_op_definitions_of_tensorflow() -> None:
    from tensorflow.python.framework import op_def_registry

    inputs = {kind: op_def_registry.get(kind).input_arg for kind in RANDOM_STATELESS}

    assert {inputs[kind][at].name for kind, at in RANDOM_STATELESS.items()} == {"seed", "key"}


def test_only_op_types_names_types() -> None:
    """Except in tables of actions by type, and in words that are types by chance."""
    from tensorflow.python.framework import op_def_registry

    package = Path(op_types.__file__).parents[1]
    quoted = {
        (str(file.relative_to(package)), node.value)
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = {
        (file, word) for file, word in quoted if op_def_registry.get(word) or word in OF_GRAPPLER
    }

    found = {(file, word) for file, word in named if file not in TABLES}
    assert {(file, word) for file, word in found if not file.startswith(TERMS)} == WORDS
