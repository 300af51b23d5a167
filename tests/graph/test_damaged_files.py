"""Graph files with random damage are judged, or refused with an error; nothing else happens.

A failure prints the seed that creates the file again.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fuzzing import examples
from support.mutations import damage_bytes, damage_fields, of_kind, two_towers

from placement_checks import place
from placement_checks.core.errors import PlacementError
from placement_checks.verification.judging import verify
from placement_checks.verification.placing import requested

META = two_towers()
KINDS = pytest.mark.parametrize(
    "suffix", [".pb", ".pbtxt", ".meta", ""], ids=["graph", "text", "meta", "saved model"]
)
SEEDS = st.integers(0, 1 << 32)


def content(message: Any, suffix: str) -> bytes:
    if suffix == ".pbtxt":
        return str(text_format.MessageToString(message)).encode()
    return bytes(message.SerializeToString())


def judge(data: bytes, suffix: str, *, placed: bool = False) -> None:
    """Read a file with this content, and judge it."""
    with TemporaryDirectory() as folder, suppress(PlacementError):
        path = Path(folder) / (f"graph{suffix}" if suffix else "saved_model.pb")
        path.write_bytes(data)
        target = path if suffix else Path(folder)
        verify(place(target) if placed else requested(target))


@KINDS
@pytest.mark.usefixtures("no_shapes")
def test_complete_files_are_judged(suffix: str, tmp_path: Path) -> None:
    whole_is_judged(suffix, tmp_path)


def test_complete_files_are_judged_with_their_shapes(tmp_path: Path) -> None:
    whole_is_judged(".pb", tmp_path)


def whole_is_judged(suffix: str, folder: Path) -> None:
    path = folder / (f"graph{suffix}" if suffix else "saved_model.pb")
    path.write_bytes(content(of_kind(META, suffix), suffix))

    evidence = place(path if suffix else folder)

    assert not evidence.placement.refusals
    assert len(evidence.variables) == 5
    verify(evidence)


@KINDS
@pytest.mark.usefixtures("no_shapes")
@given(seed=SEEDS)
@settings(max_examples=examples(15), deadline=None)
def test_damaged_fields_are_judged_or_refused(suffix: str, seed: int) -> None:
    random = Random(seed)
    message = of_kind(META, suffix)
    damage_fields(message, random, random.randint(1, 8))

    judge(content(message, suffix), suffix)


@KINDS
@pytest.mark.usefixtures("no_shapes")
@given(seed=SEEDS)
@settings(max_examples=examples(15), deadline=None)
def test_damaged_bytes_are_judged_or_refused(suffix: str, seed: int) -> None:
    random = Random(seed)

    judge(damage_bytes(WHOLE[suffix], random, random.randint(1, 4)), suffix)


@pytest.mark.usefixtures("no_shapes")
@given(seed=SEEDS)
@settings(max_examples=examples(15), deadline=None)
def test_the_placer_works_afterwards(seed: int) -> None:
    random = Random(seed)
    message = of_kind(META, ".pb")
    damage_fields(message, random, random.randint(1, 3))

    judge(content(message, ".pb"), ".pb", placed=True)


WHOLE = {
    suffix: content(of_kind(META, suffix), suffix) for suffix in (".pb", ".pbtxt", ".meta", "")
}
