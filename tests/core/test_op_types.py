"""The types of ops: TensorFlow has all that are named, and they are named in one place."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from placement_checks.core import op_types
from placement_checks.core.op_types import draws

NAMED = {
    name: {value} if isinstance(value, str) else set(value)
    for name, value in vars(op_types).items()
    if name.isupper() and isinstance(value, str | Collection)
}
OF_GRAPPLER = {"AutoReloadVariable"}  # core/grappler/op_types.cc alone knows it


@pytest.mark.parametrize("name", NAMED)
def test_tensorflow_has_every_type(name: str) -> None:
    from tensorflow.python.framework import op_def_registry

    assert [each for each in NAMED[name] - OF_GRAPPLER if not op_def_registry.get(each)] == []


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
