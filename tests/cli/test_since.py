"""``diff --since``: programs compared with themselves at a git revision."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commands import Run
from support.documents import ROOT, blocks, without_figures
from support.outcomes import since_as
from support.repositories import commit, git, state, write
from support.schemas import valid
from support.tower_programs import MEAN, towers, whole

from placement_checks.core.revisions import ProgramChange, Since
from placement_checks.core.settings import Settings
from placement_checks.verification import since as revisions_since
from placement_checks.verification.since import compare_since

DOCS, FIXTURES = ROOT / "docs", ROOT / "fixtures"
OLD = towers()
RENAMED = towers(scope="net/dense")
MOVED = towers(scope="net/dense", tower_on="0")
SUM = towers(scope="net/dense", loss="tf.add_n(losses)")
SOUND = {
    "class.py:build_towers": "",
    "cluster.py:build_in_graph": "",
    "whole.py": "",
}
# The object that is at fault, and a rule that is newly broken or no longer checked.
MISTAKES = {
    "dealt.py:build_in_graph": ("4 of 5 variables are distributed to /job:ps", ""),
    "sum.py:build": ("objective of net/dense/weights", "gradients-averaged"),
    "last.py": ("tower 0", "every-tower-counts"),
}
WHOLES = ("whole.py", "last.py")


def refactored(name: str, change: str) -> str:
    """A program of fixtures/refactors with a change by default."""
    text = (FIXTURES / "refactors" / name).read_text()
    return text.replace('change=""', f"change={change!r}")


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text()


@pytest.fixture(scope="module")
def since(tmp_path_factory: pytest.TempPathFactory) -> Since:
    """Refactors in the working tree, compared with the commit before them."""
    home = tmp_path_factory.mktemp("since") / "project"
    mnist, cluster = fixture("programs/graph/mnist.py"), fixture("programs/workers/cluster.py")
    entries = [
        *(f"{{ target = {name!r}, args = ['{{gpus}}'] }}" for name in WHOLES),
        *(repr(name) for name in (*SOUND, *MISTAKES) if name not in WHOLES),
    ]
    commit(
        home,
        {
            "pyproject.toml": f"[tool.placement_checks]\nprograms = [{', '.join(entries)}]\n",
            "programs/graph/mnist.py": mnist,
            "class.py": mnist,
            **dict.fromkeys(("cluster.py", "dealt.py"), cluster),
            "sum.py": OLD,
            "towers.py": OLD,
            "model/towers.py": OLD,
            "whole.py": whole("from towers import build"),
            "last.py": whole("from model.towers import build"),
        },
    )
    write(
        home,
        {
            "class.py": refactored("mnist_in_a_class.py", ""),
            "cluster.py": refactored("cluster_in_loops.py", "stacked"),
            "dealt.py": refactored("cluster_in_loops.py", "dealt on"),
            "sum.py": SUM,
            "package/towers.py": RENAMED,
            "whole.py": whole("from package.towers import build"),
            "model/towers.py": OLD.replace(MEAN, "losses[-1]"),
        },
    )
    (home / "towers.py").unlink()
    before = state(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        found = compare_since("HEAD", [], Settings())
    shutil.rmtree(home / "package" / "__pycache__", ignore_errors=True)
    assert without_caches(state(home)) == without_caches(before)
    return found


def without_caches(files: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in files.items() if "__pycache__" not in name}


def program(since: Since, name: str) -> ProgramChange:
    (found,) = [each for each in since.programs if each.name == name]
    return found


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_refactor_changes_nothing(since: Since, name: str) -> None:
    found = program(since, name)

    assert (found.state, found.rules) == ("same", [])
    assert found.training is not None
    assert found.training.state == "proved", found.training
    assert found.difference is not None
    assert any("renamed" in note for note in found.difference.notes)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_refactor_is_found(since: Since, name: str) -> None:
    found, (object, rule) = program(since, name), MISTAKES[name]

    assert found.state == "changed"
    assert found.difference is not None
    (first, *_) = (*found.difference.gone, *found.difference.moved)
    assert first.what.startswith(object)
    rules = [change.new.rule for change in found.with_effect("broken", "unchecked")]
    assert rule in rules if rule else rules == []


def test_a_changed_objective_has_the_line_of_the_update(since: Since) -> None:
    difference = program(since, "sum.py:build").difference

    assert difference is not None
    (change,) = (each for each in difference.moved if each.kind == "objective")
    line = SUM.splitlines()[int(str(change.where).rpartition(":")[2]) - 1]
    assert "optimizer.minimize(loss" in line


def test_the_comparison_as_a_whole(since: Since) -> None:
    assert (since.status, since.errors, since.notes) == (1, [], [])
    document = valid("diff", since_as("json", since))
    assert [each["state"] for each in document["programs"]].count("same") == len(SOUND)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "project"
    commit(home, {"train.py": OLD})
    monkeypatch.chdir(home)
    return home


def since_head(run: Run, *arguments: str) -> Any:
    """Run the command, and return its status and the JSON document."""
    ran = run("diff", "--since", "HEAD", "--format", "json", *arguments)
    return ran.status, json.loads(ran.out)


def test_the_documented_report(run: Run, home: Path) -> None:
    write(home, {"train.py": SUM})

    ran = run("diff", "--since", "HEAD", "train.py:build")

    report = next(b.text for b in blocks(DOCS / "compare.md") if b.language == "text")
    printed = ran.out.partition("\n\n")[0].replace("  (the file has changed since)", "")
    assert printed == report.rstrip("\n")


def test_an_unchanged_program_is_the_same(run: Run, home: Path) -> None:
    ran = run("diff", "--since", "HEAD", "train.py:build")

    assert (ran.status, ran.err) == (0, "")
    head = git(home, "rev-parse", "HEAD")[:10]
    assert ran.out == (
        "train.py:build: nothing has moved: 88 ops placed as in HEAD\n"
        "training step, proved equal for every batch: 1 variable\n"
        "\n"
        f"1 program compared with HEAD ({head}): 1 same.\n"
    )


@pytest.mark.smoke
def test_a_moved_tower_in_text(run: Run, home: Path) -> None:
    write(home, {"train.py": MOVED})

    ran = run("diff", "--since", "HEAD", "train.py:build")

    assert ran.status == 1
    assert ran.out.startswith(
        "train.py:build: 1 moved, 0 new, 0 gone; 88 ops placed as in HEAD; 2 rules newly broken\n"
        "moved:\n"
        "  tower 1: /gpu:1 -> /gpu:0  ("
    )
    assert "\nnewly broken: no-idle-device (kept at HEAD)\n  train.py:12: /device:GPU:1" in ran.out
    assert "\ntraining step, proved equal for every batch: 1 variable\n" in ran.out


def test_a_fix_is_named_and_fails_nothing_else(run: Run, home: Path) -> None:
    commit(home, {"train.py": OLD.replace(MEAN, "tf.add_n(losses)")})
    write(home, {"train.py": OLD})

    status, document = since_head(run, "train.py:build")

    (found,) = document["programs"]
    assert [(rule["rule"], rule["effect"]) for rule in found["rules"]] == [
        ("equal-to-one-gpu", "kept"),
        ("gradients-averaged", "kept"),
    ]
    assert [change["kind"] for change in found["difference"]["moved"]] == ["objective"]
    assert status == 1


def test_a_rule_that_is_no_longer_checked_fails(run: Run, home: Path) -> None:
    no_step = OLD.replace('return {"train_op": train_op, "loss": losses}', "return train_op")
    write(home, {"train.py": no_step.replace("optimizer.minimize", "(lambda *_, **__: None)")})

    status, document = since_head(run, "train.py:build")

    (found,) = document["programs"]
    effects = {rule["rule"]: rule["effect"] for rule in found["rules"]}
    assert status == 1
    assert "unchecked" in effects.values()
    assert found["training"]["state"] == "not-checked"
    assert found["training"]["reason"] == "the training step of the program is not known"


def test_another_learning_rate_is_a_difference_of_training(run: Run, home: Path) -> None:
    write(home, {"train.py": OLD.replace("Optimizer(0.1)", "Optimizer(0.2)")})

    status, document = since_head(run, "train.py:build")

    (found,) = document["programs"]
    assert (status, found["state"], found["rules"]) == (1, "changed", [])
    (variable,) = found["training"]["variables"]
    assert (variable["variable"], variable["state"]) == ("fc/weights", "different")
    assert variable["text"] == "its learning rate is 0.2, but 0.1 at HEAD"
    line = OLD.splitlines()[int(variable["where"].rpartition(":")[2]) - 1]
    assert "optimizer.minimize(loss" in line


def test_a_program_that_the_revision_lacks_is_new(run: Run, home: Path) -> None:
    write(home, {"other.py": OLD, "train.py": OLD + "\n\ndef build_more():\n    return build()\n"})

    status, document = since_head(run, "other.py:build", "train.py:build_more", "train.py:build")

    assert (status, document["errors"]) == (0, [])
    states = {each["program"]: each["state"] for each in document["programs"]}
    assert states == {
        "other.py:build": "new",
        "train.py:build_more": "new",
        "train.py:build": "same",
    }


def test_a_new_program_alone_is_an_error(run: Run, home: Path) -> None:
    write(home, {"other.py": OLD})

    ran = run("diff", "--since", "HEAD", "other.py:build")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "placement-checks: other.py:build is not in HEAD, so there is nothing to compare; check "
        "the program alone with placement-checks verify, or name its old target with --old\n"
    )


def test_a_renamed_program_has_an_old_name(run: Run, home: Path) -> None:
    git(home, "mv", "train.py", "towers.py")

    status, document = since_head(run, "--old", "train.py:build", "towers.py:build")

    assert status == 0
    assert document["programs"][0]["difference"]["program"] == "towers.py:build"


def test_programs_of_the_configuration(run: Run, home: Path) -> None:
    entries = '[tool.placement_checks]\ngpus = {}\nprograms = ["train.py:build"{}]\n'
    commit(home, {"pyproject.toml": entries.format(2, ', "old.py:build"'), "old.py": OLD})
    write(home, {"pyproject.toml": entries.format(3, "")})

    status, document = since_head(run)

    assert status == 1  # a program is not checked any more
    assert [(each["program"], each["state"]) for each in document["programs"]] == [
        ("train.py:build", "same"),
        ("old.py:build", "gone"),
    ]


RANKS = """
import horovod.tensorflow as hvd
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()
hvd.init()
w = tf1.get_variable("w", [4, 1], use_resource=True)
loss = tf.reduce_mean(tf.matmul(tf1.random.uniform([8, 4]), w) ** 2)
optimizer = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1))
train = optimizer.minimize(loss)
with tf1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
    session.run(train)
"""


def test_both_revisions_have_the_ranks_of_the_working_tree(run: Run, home: Path) -> None:
    entries = '[tool.placement_checks]\nhorovod = {}\nprograms = ["ranks.py"]\n'
    commit(home, {"pyproject.toml": entries.format(2), "ranks.py": RANKS})
    write(home, {"pyproject.toml": entries.format(3)})

    status, document = since_head(run)

    (program,) = document["programs"]
    assert (status, program["state"], program["difference"]["notes"]) == (0, "same", [])


def test_an_invalid_configuration_of_the_revision(run: Run, home: Path) -> None:
    commit(home, {"pyproject.toml": "[tool.placement_checks]\nsfot = true\n"})
    write(home, {"pyproject.toml": ""})

    ran = run("diff", "--since", "HEAD", "train.py:build")

    assert (ran.status, ran.err) == (
        2,
        "placement-checks: pyproject.toml: tool.placement_checks.sfot at HEAD is not a known "
        "field; did you mean 'soft'?\n",
    )


def test_the_arguments_of_a_program_may_have_changed_too(run: Run, home: Path) -> None:
    entry = "[[tool.placement_checks.programs]]\ntarget = 'whole.py'\nargs = ['{}']\n"
    program = whole("from train import build")
    commit(home, {"pyproject.toml": entry.format("{gpus}"), "whole.py": program})
    write(
        home,
        {
            "pyproject.toml": entry.format("--gpus={gpus}"),
            "whole.py": program.replace("sys.argv[1]", "sys.argv[1].removeprefix('--gpus=')"),
        },
    )

    status, document = since_head(run)

    assert (status, document["errors"]) == (0, [])


NUMBERS = (
    OLD.replace("losses = []", "losses, inputs = [], []")
    .replace("            losses.", '            inputs.append({"x": x})\n            losses.')
    .replace('"loss": losses}', '"loss": losses, "inputs": inputs}')
    .replace("tf1.train.GradientDescentOptimizer(0.1)", "tf1.train.AdamOptimizer(0.1)")
)
# The gradient depends on how rows are divided among towers.
NORMALIZED = NUMBERS.replace("tf.matmul(x", "tf.matmul((x - tf.reduce_mean(x)) * 1.0")


def test_numbers_of_both_revisions(run: Run, home: Path) -> None:
    unchanged = {"rate.py": NUMBERS, "normalized.py": NORMALIZED, "renamed.py": NUMBERS}
    commit(home, {**unchanged, "whole.py": whole("from train import build")})
    write(
        home,
        {
            "rate.py": NUMBERS.replace("AdamOptimizer(0.1)", "AdamOptimizer(0.2)"),
            "normalized.py": NORMALIZED.replace("1.0", "1.01"),
            "renamed.py": NUMBERS.replace("fc/", "net/dense/"),
            "pyproject.toml": "[tool.placement_checks]\nprograms = ['rate.py:build', "
            "'normalized.py:build', 'renamed.py:build', "
            "{ target = 'whole.py', args = ['{gpus}'] }]",
        },
    )

    status, document = since_head(run, "--numbers")

    assert (status, document["errors"]) == (1, [])
    found = {each["program"].partition(".")[0]: each for each in document["programs"]}
    states = {name: (each["state"], each["numbers"]["state"]) for name, each in found.items()}
    assert states == {
        "rate": ("changed", "different"),
        "normalized": ("changed", "different"),
        "renamed": ("same", "equal"),
        "whole": ("same", "not-checked"),
    }
    texts = {name: each["numbers"]["text"] for name, each in found.items()}
    assert texts["rate"].startswith("gradients equal; weights differ for fc/weights")
    assert texts["normalized"].startswith("gradients differ for fc/weights (fc/weights by a ")
    assert without_figures(texts["renamed"]).startswith(
        "gradients: 1 variable, with relative differences of at most # eps; weights: 5 "
    )
    assert texts["whole"].startswith(
        "the numbers of two revisions cannot be compared: whole.py feeds its own rows, and "
    )


def test_data_that_git_does_not_hold(run: Run, home: Path) -> None:
    reading = f"rows = open('data/rows.txt').read()\n{OLD}"
    commit(home, {"train.py": reading, ".gitignore": "data\n"})
    write(home, {"data/rows.txt": "1"})

    failed = run("diff", "--since", "HEAD", "train.py:build")
    linked = run("diff", "--since", "HEAD", "--link", "data", "train.py:build")

    assert failed.status == 2
    assert failed.err.rstrip().endswith(
        "placement-checks: train.py at HEAD: loading it raised FileNotFoundError: [Errno 2] "
        "No such file or directory: 'data/rows.txt'; data is not committed at HEAD; use it from "
        "the working tree: --link data"
    )
    assert linked.status == 0


def test_a_revision_that_does_not_import(run: Run, home: Path) -> None:
    commit(home, {"train.py": "import nothing_of_this_name\n"})
    write(home, {"train.py": OLD})

    ran = run("diff", "--since", "HEAD", "train.py:build")

    assert ran.status == 2
    assert ran.err.rstrip().endswith(
        "placement-checks: train.py at HEAD: loading it raised ModuleNotFoundError: No "
        "module named 'nothing_of_this_name'; look at train.py:1"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--since", "HEAD", "train.py:build", "train.py:build"),
            "train.py:build is listed twice with the same arguments and machine; remove one of "
            "the two entries, or name one program: diff --since REV TARGET",
        ),
        (("--since", "HEAD"), "no target is given; name a target such as train.py:build_towers"),
        (
            ("--since", "HEAD", "--old", "a.py", "train.py:build", "b.py"),
            "--old needs exactly one TARGET, the program that had the old name; name it: "
            "placement-checks diff --since REV --old a.py TARGET",
        ),
        (
            ("--since", "nothing", "train.py:build"),
            "--since nothing is not a revision of this repository; name a branch, tag or commit, "
            "such as HEAD~1 or origin/main",
        ),
        (
            ("train.py:build",),
            "diff compares two targets, and 1 is given; run placement-checks diff OLD NEW, or "
            "compare with a git revision: --since HEAD",
        ),
        (
            ("--format", "markdown", "a.log", "b.log"),
            "--format markdown is for a comparison with a git revision; choose one of "
            "text, json and html, or add --since REV",
        ),
        (
            ("--link", "data", "a.log", "b.log"),
            "--link requires a git revision; add --since REV",
        ),
        (
            ("--since", "HEAD", "--", "--rows=8"),
            "-- --rows=8 is an argument for a program, but no program is named; name it "
            "first: placement-checks diff --since REV train.py -- --rows=8",
        ),
    ],
)
def test_wrong_usage(run: Run, home: Path, arguments: tuple[str, ...], message: str) -> None:
    ran = run("diff", *arguments)

    assert (ran.status, ran.out, ran.err) == (2, "", f"placement-checks: {message}\n")


def test_a_directory_that_the_revision_lacks(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, {"part/train.py": OLD})
    monkeypatch.chdir(home / "part")

    ran = run("diff", "--since", "HEAD", "train.py:build")

    assert (ran.status, ran.err) == (
        2,
        "placement-checks: part does not exist at HEAD; run the command from the top directory of "
        "the repository\n",
    )


@pytest.mark.parametrize(
    ("rules", "numbers", "rows"),
    [((), False, "of-towers"), ((), True, "all"), (("one-update",), False, "none")],
)
def test_rows_are_read_for_numbers(rules: tuple[str, ...], numbers: bool, rows: str) -> None:
    assert revisions_since._rows(Settings(rules=rules), numbers=numbers) == rows
