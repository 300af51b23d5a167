"""The types of ops: TensorFlow has all that are named, and they are named in one place."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from placement_checks.core import op_types
from placement_checks.core.op_types import draws, is_dataset

NAMED = {
    name: {value} if isinstance(value, str) else set(value)
    for name, value in vars(op_types).items()
    if name.isupper() and isinstance(value, str | Collection)
}
OF_GRAPPLER = {"AutoReloadVariable"}  # core/grappler/op_types.cc alone knows it
LATER = {"DecodeJxl", "DecodeWebP"}  # 2.21 has them, 2.15 has not


@pytest.mark.parametrize("name", NAMED)
def test_tensorflow_has_every_type(name: str) -> None:
    from tensorflow import __version__
    from tensorflow.python.framework import op_def_registry

    release = tuple(map(int, __version__.split(".")[:2]))
    excepted = OF_GRAPPLER | LATER if release < (2, 21) else OF_GRAPPLER

    assert [each for each in NAMED[name] - excepted if not op_def_registry.get(each)] == []


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


@pytest.mark.parametrize(
    "kind",
    [
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomCrop",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "TruncatedNormal",
        "StatelessMultinomial",
        "StatelessParameterizedTruncatedNormal",
        "StatelessRandomNormal",
        "StatelessRandomUniformFullIntV2",
        "StatelessTruncatedNormalV2",
        "StatefulRandomBinomial",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulUniformFullInt",
        "LogUniformCandidateSampler",
        "UniformCandidateSampler",
    ],
)
def test_ops_that_draw_numbers(kind: str) -> None:
    assert draws(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "MatMul",
        "RandomDataset",
        "RandomGammaGrad",
        "RandomShuffleQueueV2",
        "StatefulPartitionedCall",
        "StatelessIf",
        "StatelessRandomGetKeyCounter",
    ],
)
def test_ops_that_draw_no_numbers(kind: str) -> None:
    assert not draws(kind)
