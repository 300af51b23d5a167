"""The assertions on numbers, called as in a user's test."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support import pairs

from placement_checks import (
    assert_gradients_equal,
    assert_towers_overlap,
    assert_training_equal,
    assert_weights_equal,
    verify,
    with_numbers,
)
from placement_checks.core.errors import ConfigError, InputError
from placement_checks.verification.placing import requested

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a test writes stays in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def twice(num_gpus: int = 2, **options: Any) -> dict[str, object]:
    """Towers with doubled gradients."""
    return pairs.towers(num_gpus, loss=lambda x, y: 2 * pairs.squared_error(x, y), **options)


def hidden(num_gpus: int = 2) -> dict[str, object]:
    return twice(num_gpus, optimizer=lambda: tf1.train.AdamOptimizer(0.1))


Batch = Callable[..., Any]
adam = partial(pairs.towers, 1, optimizer=lambda: tf1.train.AdamOptimizer(0.1))


@pytest.mark.parametrize("batch", [pairs.batch, None])
def test_sound_towers_pass(batch: Batch | None) -> None:
    assert_gradients_equal(pairs.towers, pairs.single, batch, gpus=3)
    assert_training_equal(pairs.towers, pairs.single, batch, steps=4)


def test_programs_without_train_op_are_compared() -> None:
    """Without a train op there are gradients, and no step."""

    def towers(num_gpus: int = 2) -> dict[str, object]:
        return {**pairs.towers(num_gpus), "train_op": None}

    placement = with_numbers(requested(towers), partial(towers, 1), pairs.batch)

    states = {verdict.rule: verdict for verdict in verify(placement).verdicts}
    assert states["gradients-equal"].state == "kept"
    assert states["towers-overlap"].state == "not-checked"
    assert "declares no train_op" in str(states["towers-overlap"].reason)


def test_towers_that_take_turns_are_reported(fixtures: Path) -> None:
    turns, single, batch = (
        f"{fixtures}/defects/graph/towers_in_turn.py:{part}"
        for part in ("build_towers", "build_single", "batch")
    )
    assert_towers_overlap(pairs.towers, pairs.single, pairs.batch)

    with pytest.raises(AssertionError) as error:
        assert_towers_overlap(turns, single, batch)

    headline, *finding = str(error.value).splitlines()
    assert headline == f"towers-overlap is broken by {turns}: 1 finding"
    text = "the tower on /device:GPU:1 overlaps with the tower on /device:GPU:0"
    assert text in " ".join(" ".join(finding).split())


def test_a_difference_has_ratio_cause_line_fix_and_case() -> None:
    with pytest.raises(AssertionError) as error:
        assert_gradients_equal(hidden, adam, pairs.batch)

    headline, *findings, kept = str(error.value).splitlines()
    assert headline == f"gradients-equal is broken by {__name__}:hidden: 2 findings"
    text = " ".join(" ".join(findings).split())
    assert (
        ": the gradient of w is 2 times the reference's: mul multiplies the loss by 2, and its "
        "gradients are not divided by it"
    ) in text
    assert "likewise 1 more: b " in text
    assert "fix: divide the gradients of each tower by the factor before they are applied" in text
    match = re.fullmatch(r"  the rows and initial values are saved \(\d+ kB\): batch='(.+)'", kept)
    assert match
    assert Path(match[1]).name.startswith("hidden-")
    with pytest.raises(AssertionError, match=r"is 2 times the\s+reference's"):
        assert_gradients_equal(hidden, adam, match[1])


def test_declared_differences_pass() -> None:
    assert_gradients_equal(hidden, adam, pairs.batch, scale=2)
    assert_training_equal(hidden, adam, pairs.batch, scale=2)
    assert_gradients_equal(hidden, adam, pairs.batch, allow=["w"], scale=2)


def test_arguments_precede_the_policy_of_the_program() -> None:
    def declared(num_gpus: int = 2) -> dict[str, object]:
        return {**hidden(num_gpus), "policy": {"gradients-equal": {"scale": 2}}}

    assert_gradients_equal(declared, adam, pairs.batch)
    with pytest.raises(AssertionError, match=r"is 2 times the\s+reference's"):
        assert_gradients_equal(declared, adam, pairs.batch, scale=1)


def test_training_finds_mistakes_outside_gradients() -> None:
    def counted_by(step: int, num_gpus: int = 2) -> dict[str, object]:
        made = pairs.towers(num_gpus)
        counter = tf1.train.get_or_create_global_step()
        with tf.device("/cpu:0"):
            counting = counter.assign_add(tf.constant(step, tf.int64))
        return {**made, "train_op": tf.group(made["train_op"], counting)}

    by_towers, single = partial(counted_by, 2), partial(counted_by, 1, 1)

    assert_gradients_equal(by_towers, single, pairs.batch)
    with pytest.raises(AssertionError) as error:
        assert_training_equal(by_towers, single, pairs.batch)
    assert (
        "variable 'global_step' differs from the reference after 1 step: that step changes it by "
        "2, but by 1 in the reference"
    ) in " ".join(str(error.value).split())


def test_weights_are_compared_alone() -> None:
    def forgetful(num_gpus: int = 2) -> dict[str, object]:
        made = pairs.towers(num_gpus)
        with tf.control_dependencies([made["train_op"]]), tf.device("/cpu:0"):
            (weights, *_) = tf1.trainable_variables()
            return {**made, "train_op": weights.assign(tf.zeros_like(weights))}

    assert_weights_equal(pairs.towers, pairs.single, pairs.batch, steps=4)
    with pytest.raises(AssertionError, match="weights-equal is broken by"):
        assert_weights_equal(partial(forgetful, 2), pairs.single, pairs.batch)
    assert_weights_equal(partial(forgetful, 2), partial(forgetful, 1), pairs.batch)


def test_a_test_without_comparison_fails() -> None:
    def silent(num_gpus: int = 2) -> dict[str, object]:
        return {"train_op": pairs.towers(num_gpus)["train_op"]}

    with pytest.raises(AssertionError, match="gradients-equal could not be checked on"):
        assert_gradients_equal(silent, pairs.single, pairs.batch)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'scael'"):
        assert_gradients_equal(pairs.towers, pairs.single, pairs.batch, scael=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"gradients-equal\.scale: 'two' does not fit"):
        assert_gradients_equal(pairs.towers, pairs.single, pairs.batch, scale="two")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="2 steps are too few to show later mistakes; give 3 or more"
    ):
        assert_training_equal(pairs.towers, pairs.single, pairs.batch, steps=2)
    with pytest.raises(InputError, match=r"batch\.txt is not a saved case"):
        assert_gradients_equal(pairs.towers, pairs.single, Path("batch.txt"))
