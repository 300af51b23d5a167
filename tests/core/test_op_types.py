"""Which types of ops draw random numbers: those of TensorFlow's own list."""

from __future__ import annotations

import pytest

from placement_checks.core.op_types import draws


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
