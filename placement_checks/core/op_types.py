"""Ops that draw random numbers."""

from __future__ import annotations

import re

# With a seed of their own, which two attributes hold.
SEEDED = re.compile(
    r"^(Random(Uniform|UniformInt|StandardNormal|Gamma|Poisson|Shuffle|Crop)|"
    r"TruncatedNormal|ParameterizedTruncatedNormal|Multinomial|SampleDistortedBoundingBox)(V\d)?$"
)
# With a seed that is given to them, or the key and counter that were made of one.
STATELESS = re.compile(
    r"^Stateless(Random(?!Get)|TruncatedNormal|ParameterizedTruncated|Multinom)"
)
# With the state of a generator, or candidates to sample from.
_OTHERS = re.compile(
    r"^Stateful(Uniform|StandardNormal|TruncatedNormal|Random)|^\w*CandidateSampler$"
)


def draws(kind: str) -> bool:
    """Whether an op of this type yields random numbers."""
    return any(pattern.match(kind) for pattern in (SEEDED, STATELESS, _OTHERS))
