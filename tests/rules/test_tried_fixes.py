"""A fix of the catalog, applied to a program with the mistake, ends all findings on training."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

import pytest

from placement_checks import place, verify
from placement_checks.core import mistakes
from placement_checks.core.impact import Impact
from placement_checks.core.mistakes import AVERAGE, CATALOG, Mistake
from placement_checks.core.results import Finding
from placement_checks.verification.running import with_numbers

# Towers; each part may be replaced.
PROGRAM = Template("""
import placement_checks
import tensorflow as tf
tf1 = tf.compat.v1

def batch(rng, n):
    x = rng.normal(size=[n, 8]).astype("float32")
    tokens = rng.integers(1, 10, [n, 1]).astype("float32")
    return {"x": x, "y": 1 + x[:, :1] ** 2, "tokens": tokens}

def build(num_gpus):
    with tf.device("/cpu:0"):
        optimizer = tf1.train.GradientDescentOptimizer(0.05)
        step = tf1.train.get_or_create_global_step()
        names = {"w1": [8, 8], "w2": [8, 8], "w3": [8, 1]}
        variables = [tf1.get_variable(name, shape) for name, shape in names.items()]
        w1, w2, w3 = variables
    losses, feeds, grads, counts = [], [], [], []
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"):
            shapes = {"x": [None, 8], "y": [None, 1], "tokens": [None, 1]}
            feeds.append({name: tf1.placeholder(tf.float32, shapes[name]) for name in shapes})
            x, y, tokens = feeds[$own].values()
            $labels
            hidden = $activation(tf.matmul(tf.nn.relu(tf.matmul(x, w1)), w2))
            penalty = 0.1 * tf.add_n([tf.nn.l2_loss(each) for each in variables])
            error = tf.math.squared_difference(tf.matmul(hidden, w3), y)
            loss = $loss
            losses.append(loss)
            pairs = [(tf.convert_to_tensor(g), v) for g, v in optimizer.compute_gradients(loss)]
            $of_tower
            grads.append(pairs)
    with tf.device("/cpu:0"):
        mean = [
            (tf.add_n([g for g, _ in pairs]) / num_gpus, pairs[0][1]) for pairs in zip(*grads)
        ]
        sums = [(tf.add_n([g for g, _ in pairs]), pairs[0][1]) for pairs in zip(*grads)]
        mean = $combined
        train_op = $applied
        train_op = $after
    return {"train_op": train_op, "loss": losses, "inputs": feeds}
""")
RIGHT: Mapping[str, str] = {
    "own": "i",
    "labels": "pass",
    "activation": "tf.nn.relu",
    "loss": "tf.reduce_mean(error)",
    "of_tower": "pass",
    "combined": "mean",
    "applied": "optimizer.apply_gradients(mean)",
    "after": "train_op",
}
PENALIZED = {"loss": "tf.reduce_mean(error) + penalty"}
SUMMED_ERROR = "tf.reduce_sum(error * tokens) / tf.reduce_sum(tokens)"
WEIGHTED = "[(tf.add_n([g * w for (g, _), w in zip(p, {})]), p[0][1]) for p in zip(*grads)]"
CLIPPED = "[(tf.clip_by_norm(g, 0.1), v) for g, v in {}]"
DECAYED = "[(g + 0.1 * v, v) for g, v in {}]"
# The mistake, the parts of the program that make it, and the parts after the fix.
EDITS: Mapping[str, tuple[Mistake, Mapping[str, str], Mapping[str, str]]] = {
    "a sum": (mistakes.SUM, {"combined": "sums"}, {}),
    "a sum that is a coefficient": (mistakes.COEFFICIENT, {"combined": "sums"}, {}),
    "a sum of losses": (
        mistakes.SUM_OF_LOSSES,
        {"applied": "optimizer.minimize(tf.add_n(losses), colocate_gradients_with_ops=True)"},
        {
            "applied": "optimizer.minimize(tf.add_n(losses) / num_gpus, "
            "colocate_gradients_with_ops=True)"
        },
    ),
    "two divisions": (mistakes.DIVIDED, {"loss": "tf.reduce_mean(error) / num_gpus"}, {}),
    "divided losses": (
        mistakes.LOSSES_DIVIDED,
        {"loss": "tf.reduce_mean(error) / num_gpus + penalty"},
        PENALIZED,
    ),
    "a factor": (mistakes.SCALED, {"combined": "[(3 * g, v) for g, v in mean]"}, {}),
    "a loss scale": (
        mistakes.LOSS_SCALE,
        {"loss": "128 * tf.reduce_mean(error)"},
        {"loss": "128 * tf.reduce_mean(error)", "combined": "[(g / 128, v) for g, v in mean]"},
    ),
    "a clip in each tower": (
        mistakes.CHANGED_IN_TOWERS,
        {"of_tower": f"pairs = {CLIPPED.format('pairs')}"},
        {"combined": CLIPPED.format("mean")},
    ),
    "counts of towers": (
        mistakes.OWN_COUNTS,
        {"loss": SUMMED_ERROR},
        {
            "loss": SUMMED_ERROR,
            "of_tower": "counts.append(tf.reduce_sum(tokens))",
            "combined": "placement_checks.average_gradients(grads, weights=counts)",
        },
    ),
    "a maximum": (
        mistakes.COMBINED,
        {
            "combined": "[(tf.reduce_max(tf.stack([g for g, _ in p]), 0), p[0][1]) "
            "for p in zip(*grads)]"
        },
        {},
    ),
    "labels of other rows": (mistakes.MOVED, {"labels": "y = tf.roll(y, 1, 0)"}, {}),
    "gradients of other variables": (
        mistakes.PAIRED,
        {"combined": "[(mean[1][0], w1), (mean[0][0], w2), mean[2]]"},
        {},
    ),
    "a penalty in each tower": (
        mistakes.PENALTY_REPEATED,
        {"loss": "tf.reduce_mean(error) / num_gpus + penalty", "combined": "sums"},
        PENALIZED,
    ),
    "a part of a penalty": (
        mistakes.PENALTY_TOO_SMALL,
        {"loss": "tf.reduce_mean(error) + penalty / num_gpus"},
        PENALIZED,
    ),
    "decay in each tower": (
        mistakes.DECAY,
        {
            "of_tower": f"pairs = {DECAYED.format('[(g / num_gpus, v) for g, v in pairs]')}",
            "combined": "sums",
        },
        {"combined": DECAYED.format("mean")},
    ),
    "two terms": (
        mistakes.TERMS,
        {
            "loss": "tf.reduce_mean(error) / num_gpus + tf.reduce_mean(tf.abs(hidden))",
            "combined": "sums",
        },
        {"loss": "tf.reduce_mean(error) + tf.reduce_mean(tf.abs(hidden))"},
    ),
    "a term of one tower": (
        mistakes.MISSING_TERM,
        {"loss": "tf.reduce_mean(error) + (0 if i else tf.reduce_mean(tf.abs(hidden)))"},
        {"loss": "tf.reduce_mean(error) + tf.reduce_mean(tf.abs(hidden))"},
    ),
    "unequal weights": (mistakes.UNEVEN, {"combined": WEIGHTED.format("[0.75, 0.25]")}, {}),
    "unequal weights of parts": (
        mistakes.UNEVEN_PARTS,
        {"combined": WEIGHTED.format("[0.75, 0.25]")},
        {},
    ),
    "another sign in a tower": (
        mistakes.OPPOSED,
        {"loss": "tf.reduce_mean(error) * (-1 if i else 1)"},
        {},
    ),
    "no weight of a tower": (mistakes.ONE_TOWER, {"combined": WEIGHTED.format("[1.0, 0.0]")}, {}),
    "the last tower alone": (
        mistakes.LEFT_OUT,
        {"combined": "grads[-1] if num_gpus > 1 else mean"},
        {},
    ),
    "a part of the batch": (
        mistakes.PART_LEFT_OUT,
        {"combined": "grads[-1] if num_gpus > 1 else mean"},
        {},
    ),
    "a part that no op uses": (
        mistakes.PART_UNUSED,
        {"labels": "x, y = (tf.split(v, min(num_gpus, 2))[0] for v in (x, y))"},
        {},
    ),
    "one tower twice": (
        mistakes.LEFT_OUT_OF_SUM,
        {"combined": "[((p[0][0] + p[0][0]) / 2, p[0][1]) for p in zip(*grads)]"},
        {},
    ),
    "one variable of one tower": (
        mistakes.LEFT_OUT_OF_LOOP,
        {"combined": "[*mean[:2], grads[0][2]]"},
        {},
    ),
    "a stopped gradient": (
        mistakes.FROZEN,
        {
            "labels": "w1 = w1 if i == 0 else tf.cast(x[0, 0] > 1e9, tf.float32) * w1 + "
            "tf.stop_gradient(w1)"
        },
        {},
    ),
    "another function": (
        mistakes.OTHER_FUNCTION,
        {"activation": "(tf.nn.tanh if i else tf.nn.relu)"},
        {},
    ),
    "a variable that is not updated": (
        mistakes.NOT_UPDATED,
        {"combined": "mean[:2] if num_gpus > 1 else mean"},
        {},
    ),
    "a counter of towers": (
        mistakes.COUNTER,
        {"after": "tf.group(train_op, step.assign_add(num_gpus))"},
        {"after": "tf.group(train_op, step.assign_add(1))"},
    ),
    "a counter of towers, in the graph": (
        mistakes.COUNTED_BY_MORE,
        {"after": "tf.group(train_op, step.assign_add(num_gpus))"},
        {"after": "tf.group(train_op, step.assign_add(1))"},
    ),
    "a second update": (
        mistakes.REPEATED,
        {"after": "tf.group(train_op, *[v.assign_sub(0.01 * g) for g, v in mean])"},
        {},
    ),
}

BATCHES = "batches = tf1.data.make_one_shot_iterator(pipeline())"
REUSED = "tf1.variable_scope(tf1.get_variable_scope(), reuse=i > 0)"
# The same for programs of fixtures/defects/graph, with the changes of their text.
FIXTURES: Mapping[str, tuple[Mistake, Sequence[tuple[str, str]]]] = {
    "unequal_unweighted": (
        mistakes.SIZES,
        [
            ("import tensorflow as tf\n", "import placement_checks\nimport tensorflow as tf\n"),
            (
                "apply_gradients(average(tower_grads))",
                "apply_gradients(placement_checks.average_gradients("
                "tower_grads, weights=[tf.shape(x)[0] for x, _ in parts]))",
            ),
        ],
    ),
    "rows_of_first_tower": (
        mistakes.ROWS_PAIRED,
        [
            (
                "tf.reduce_mean(tf.stack([grad.values for grad in grads]), axis=0)",
                "tf.concat([g.values for g in grads], 0) / num_gpus",
            ),
            ("grads[0].indices", "tf.concat([g.indices for g in grads], 0)"),
        ],
    ),
    "apply_per_tower": (
        mistakes.APPLIED_BY_EACH,
        [
            (
                "[optimizer.apply_gradients(pairs) for pairs in tower_grads]",
                f"[optimizer.apply_gradients({AVERAGE})]",
            )
        ],
    ),
    "momentum_per_tower": (
        mistakes.STATE_OF_EACH,
        [
            ("feeds, moved = [], [], []", "feeds, moved, grads = [], [], [], []"),
            (
                "moved = [momentum.assign(0.9 * momentum.read_value() + gradient)]",
                "grads.append(gradient)",
            ),
            (
                '    with tf.device("/cpu:0"), tf.control_dependencies(moved):\n        train_op',
                '    with tf.device("/cpu:0"):\n'
                "        mean = tf.add_n(grads) / num_gpus\n"
                "        moved = [momentum.assign(0.9 * momentum.read_value() + mean)]\n"
                '    with tf.device("/cpu:0"), tf.control_dependencies(moved):\n        train_op',
            ),
        ],
    ),
    "shared_beta_powers": (
        mistakes.STATE_OF_OPTIMIZER,
        [("for group in groups", "for group in (averaged,)")],
    ),
    "step_counted_twice": (
        mistakes.COUNTED_AGAIN,
        [("tf.group(update, counted)", "update")],
    ),
    "step_not_counted": (
        mistakes.NOT_COUNTED,
        [
            (
                "apply_gradients(average(tower_grads))",
                "apply_gradients(average(tower_grads), "
                "global_step=tf1.train.get_or_create_global_step())",
            )
        ],
    ),
    "same_slice": (
        mistakes.EQUAL_ROWS,
        [
            (
                "x[:rows], y[:rows]",
                "x[i * rows : (i + 1) * rows], y[i * rows : (i + 1) * rows]",
            )
        ],
    ),
    "same_batch": (
        mistakes.EQUAL_BATCH,
        [
            ("x, y = tf1.data.make_one_shot_iterator(pipeline()).get_next()", BATCHES),
            (
                "            loss = loss_of(",
                '            with tf.device("/cpu:0"):\n'
                "                x, y = batches.get_next()\n"
                "            loss = loss_of(",
            ),
        ],
    ),
    "same_shard": (mistakes.SAME_SHARD, [("shard(num_gpus, 0)", "shard(num_gpus, i)")]),
    "pipeline_per_tower": (
        mistakes.SAME_DATA,
        [
            ("x, y = tf1.data.make_one_shot_iterator(pipeline()).get_next()  # <- again", "pass"),
            (
                "    losses, tower_grads = [], []\n",
                f"    losses, tower_grads = [], []\n    {BATCHES}\n",
            ),
            (
                "            loss = loss_of(",
                '            with tf.device("/cpu:0"):\n'
                "                x, y = batches.get_next()\n"
                "            loss = loss_of(",
            ),
        ],
    ),
    "iterator_on_gpu": (
        mistakes.INPUT_ON_GPU,
        [
            (
                f"            {call}",
                f'            with tf.device("/cpu:0"):\n                {call}',
            )
            for call in (
                "iterator = tf1.data.Iterator.from_structure(",
                "tf1.add_to_collection(",
                "x, y = iterator.get_next()",
            )
        ],
    ),
    "losses_collection": (
        mistakes.LOSS_OF_OTHER,
        [
            ("with tower(i):", "with tower(i) as scope:"),
            ('tf1.get_collection("losses")', 'tf1.get_collection("losses", scope)'),
        ],
    ),
    "penalties_collection": (
        mistakes.PENALTY_OF_OTHER,
        [
            ("with tower(i):", "with tower(i) as scope:"),
            ('tf1.get_collection("penalties")', 'tf1.get_collection("penalties", scope)'),
        ],
    ),
    "layer_on_other_gpu": (
        mistakes.LOSS_ON_OTHER_GPU,
        [('with tf.device("/gpu:1"):  # <- not the tower\'s own\n        return', "return")],
    ),
    "same_dropout_seed": (mistakes.EQUAL_SEEDS, [("seed=7", "seed=7 + i")]),
    "same_stateless_seed": (mistakes.EQUAL_STATELESS_SEEDS, [("seed=[1, 2]", "seed=[1, i]")]),
    "one_mask": (
        mistakes.ONE_DRAW,
        [("16)) * mask", "16)) * tf.nn.dropout(tf.ones([ROWS, 16]), rate=0.5)")],
    ),
    "loss_of_other_network": (
        mistakes.OTHER_LOSS,
        [('losses[i]["critic" if i else name]', "losses[i][name]")],
    ),
    "towers_differ": (
        mistakes.OTHER_OP,
        [("tf.nn.relu(hidden) if i == 0 else tf.tanh(hidden)", "tf.nn.relu(hidden)")],
    ),
    "scope_per_tower": (
        mistakes.NAMED_APART,
        [
            ('tf1.variable_scope(f"tower_{i}")', REUSED),
            ("compute_gradients(loss, own)", "compute_gradients(loss)"),
        ],
    ),
    "autoencoder_naive": (
        mistakes.MADE_APART,
        [
            (
                'tf1.Variable(initial, name="weights")',
                'tf1.get_variable("weights", initializer=initial)',
            ),
            (
                'tf1.Variable(tf.zeros([depth]), name="bias")',
                'tf1.get_variable("bias", initializer=tf.zeros([depth]))',
            ),
            ("with tf.name_scope(name)", "with tf1.variable_scope(name)"),
            ('tf.name_scope(f"tower_{i}")', f'tf.name_scope(f"tower_{{i}}"), {REUSED}'),
            ("compute_gradients(loss, own)", "compute_gradients(loss)"),
        ],
    ),
    "update_with_rest": (mistakes.SECOND_UPDATE, [("tf.group(*rest)", "update")]),
    "copy_on_its_own": (
        mistakes.COPY_LEFT_OUT,
        [("[*means[:-1], gradients[i][-1]] if i else means", "means")],
    ),
    "optimizer_per_tower": (
        mistakes.OPTIMIZER_OF_EACH,
        [
            (
                "    losses, feeds, updates = [], [], []\n",
                "    losses, feeds, tower_grads = [], [], []\n"
                '    with tf.device("/cpu:0"):\n'
                "        optimizer = tf1.train.AdamOptimizer(0.01)\n",
            ),
            ('optimizer = tf1.train.AdamOptimizer(0.01, name=f"Adam{i}")', "pass"),
            (
                "updates.append(optimizer.apply_gradients(gradients))",
                "tower_grads.append(gradients)",
            ),
            (
                '    return {"train_op": tf.group(*updates)',
                '    with tf.device("/cpu:0"):\n'
                f"        train_op = optimizer.apply_gradients({AVERAGE})\n"
                '    return {"train_op": train_op',
            ),
        ],
    ),
    "trainable_not_global": (
        mistakes.NOT_SAVED,
        [(", collections=[tf1.GraphKeys.TRAINABLE_VARIABLES]", "")],
    ),
}


def findings(towers: str, single: str, batch: str) -> list[Finding]:
    """The findings on the training of a program, compared with one for one GPU."""
    evidence = place(towers)
    if batch:
        evidence = with_numbers(evidence, single, batch, without=["towers-overlap"])
    found = (each for verdict in verify(evidence).verdicts for each in verdict.findings)
    return [each for each in found if each.impact is Impact.TRAINING]


def inserted(text: str) -> re.Pattern[str]:
    """A pattern of a text in which facts are inserted."""
    return re.compile(".*?".join(map(re.escape, re.split(r"\{\w+\}", text))), re.DOTALL)


def stated(mistake: Mistake, found: Sequence[Finding]) -> bool:
    return any(
        inserted(mistake.what).search(each.message)
        and inserted(mistake.fix_for("tower")).search(each.fix)
        for each in found
    )


EACH_CHANGE = ("a sum", "decay in each tower", "a clip in each tower", "a counter of towers")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in EACH_CHANGE else pytest.mark.nightly)
        for name in EDITS
    ],
)
def test_a_fix_ends_the_findings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mistake, wrong, right = EDITS[name]
    Path("wrong.py").write_text(PROGRAM.substitute({**RIGHT, **wrong}))
    Path("right.py").write_text(PROGRAM.substitute({**RIGHT, **right}))

    found = findings("wrong.py:build", "right.py:build", "right.py:batch")

    assert stated(mistake, found), [(each.message, each.fix) for each in found]
    assert findings("right.py:build", "right.py:build", "right.py:batch") == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", FIXTURES)
def test_a_fix_ends_the_findings_on_a_fixture(
    name: str, tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(fixtures / "defects" / "graph", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    mistake, edits = FIXTURES[name]
    text = Path(f"{name}.py").read_text()
    has_batch = "import batch" in text
    fixed = text
    for old, new in edits:
        assert old in fixed
        fixed = fixed.replace(old, new)
    Path("fixed.py").write_text(fixed)

    wrong, right = (
        findings(f"{each}:build_towers", f"{each}:build_single", f"{each}:batch" * has_batch)
        for each in (f"{name}.py", "fixed.py")
    )

    assert stated(mistake, wrong), [(each.message, each.fix) for each in wrong]
    assert right == []


def test_each_mistake_has_a_tried_fix_or_a_decision_of_the_user() -> None:
    tried = {row[0].key for row in EDITS.values()} | {row[0].key for row in FIXTURES.values()}

    assert {mistake.key for mistake in CATALOG if not mistake.decision} == tried
