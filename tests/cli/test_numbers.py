"""``verify --reference --batch``: both programs run, and the report compares them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.commands import Run

from placement_checks.core.mistakes import AVERAGE

SMALL = "fixtures/sound/graph/styles.py:name_scopes"
NUMERIC = ("--rule", "gradients-equal", "--rule", "weights-equal")


@pytest.fixture
def sources(fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make paths in reports short, wherever the checkout is."""
    monkeypatch.chdir(fixtures.parent)
    return fixtures


def options(name: str, *parts: str) -> list[str]:
    given = dict(zip(("--reference", "--batch"), parts, strict=False))
    return [text for key, part in given.items() for text in (key, f"fixtures/{name}.py:{part}")]


@pytest.mark.smoke
@pytest.mark.usefixtures("sources")
def test_training_on_digits_is_equal_to_one_gpu(run: Run) -> None:
    """`tox run -e verify` compares the other programs for digits, also on four GPUs."""
    ran = run(
        "verify", "fixtures/programs/graph/mnist.py:build_towers_float64", "--format", "json",
        *options("programs/graph/mnist", "build_single_float64", "batch"), *NUMERIC,
    )  # fmt: skip

    (program,) = json.loads(ran.out)["programs"]
    assert ran.status == 0
    assert program["devices"] == "simulated"
    gradients, weights = program["rules"]
    assert [rule["state"] for rule in (gradients, weights)] == ["kept", "kept"]
    assert [rule["evidence"] for rule in (gradients, weights)] == ["executed", "executed"]
    assert len(gradients["figures"]) == 10
    assert {figure["state"] for figure in gradients["figures"]} == {"equal"}
    assert all(figure["error"] <= figure["limit"] for figure in gradients["figures"])
    assert len(weights["figures"]) == 32


@pytest.mark.usefixtures("sources")
def test_a_common_ratio_is_reported_once_with_a_saved_case(run: Run) -> None:
    target = "fixtures/defects/graph/sum_for_mean.py:build_towers"
    named = options("defects/graph/sum_for_mean", "build_single", "batch")

    ran = run("verify", target, *named, *NUMERIC)
    replayed = run("verify", target, *named[:2], "--batch", case(ran.out), *NUMERIC)

    assert ran.status == 1
    assert (
        "compared with fixtures/defects/graph/sum_for_mean.py:build_single, on CPU devices in "
        "place of GPUs"
    ) in ran.out
    assert "  BROKEN       gradients-equal" in ran.out
    assert (
        "fixtures/defects/graph/sum_for_mean.py:17: the gradient of fc1/weights is 2 times the "
        "reference's: the gradients of 2 towers are added up instead of averaged "
        "| (tf.add_n([grad for grad, _ in pairs]), pairs[0][1]) # <- not divided "
        "called from line 16 likewise 3 more: fc1/biases, fc2/weights, fc2/biases "
        "steps of gradient descent are 2 times as large; Adam hides the mistake, because it "
        "normalizes gradients "
        f"fix: average over towers before apply_gradients: {AVERAGE}; if the sum is "
        "intended, and the learning rate is divided by 2: --set gradients-equal.scale=2 "
    ) in ran.words
    assert "weights-equal: 8 findings follow from gradients-equal (--all shows them)" in ran.out
    assert "in eps" not in ran.out
    assert replayed.out == ran.out


def case(report: str) -> str:
    return report.split("--batch ")[1].split()[0]


@pytest.mark.usefixtures("sources")
def test_a_declared_sum_is_kept(run: Run) -> None:
    target = "fixtures/defects/graph/sum_for_mean.py:build_towers"
    named = options("defects/graph/sum_for_mean", "build_single", "batch")

    ran = run("verify", target, *named, *NUMERIC, "--set", "gradients-equal.scale=2")

    assert ran.status == 0
    assert "--batch" not in ran.out


@pytest.mark.usefixtures("sources")
def test_without_a_batch_function_rows_are_generated(run: Run) -> None:
    ran = run("verify", SMALL, "--reference", SMALL)

    assert ran.status == 0
    assert re.search(r"  KEPT +gradients-equal +4 variables, with relative differences ", ran.out)


@pytest.mark.usefixtures("sources")
def test_without_a_reference_the_numbers_are_not_checked(run: Run) -> None:
    batch = "fixtures/programs/graph/mnist.py:batch"
    ran = run("verify", SMALL, *NUMERIC)
    alone = run("verify", SMALL, "--batch", batch)

    assert ran.status == 2
    assert "no reference is given (--reference TARGET --batch TARGET)" in ran.out
    assert alone.status == 2
    assert alone.err == (
        f"placement-checks: --batch {batch} requires a reference "
        "program; name the program for one GPU: --reference train.py:build_single\n"
    )


@pytest.mark.usefixtures("sources")
def test_a_bad_reference_keeps_the_other_verdicts(run: Run) -> None:
    ran = run("verify", SMALL, "--reference", SMALL, "--format", "json")
    unknown = run("verify", SMALL, "--reference", f"{SMALL}_")

    document = json.loads(ran.out)
    (program,) = document["programs"]
    kept = [rule["rule"] for rule in program["rules"] if rule["state"] == "kept"]
    assert ran.status == 0  # for one GPU it has one tower
    assert "gradients-equal" in kept
    assert unknown.status == 2
    assert re.search(r"KEPT +variables-on-host ", unknown.out)
    assert unknown.err == (
        f"placement-checks: {SMALL}_: there is no function 'name_scopes_' in it; did you mean "
        "'name_scopes'?\n"
    )


@pytest.mark.usefixtures("sources")
def test_a_reference_with_towers_is_an_error_and_the_report_is_written(run: Run) -> None:
    ran = run(
        "verify", "fixtures/defects/graph/sum_for_mean.py:build_towers", "--format", "json",
        "--reference", "fixtures/programs/graph/autoencoder.py:build_towers",
        "--rule", "names-portable", "--rule", "gradients-equal",
    )  # fmt: skip

    document = json.loads(ran.out)
    names, gradients = document["programs"][0]["rules"]
    assert (names["state"], gradients["state"]) == ("broken", "not-checked")
    assert ran.status == 1
    assert "error" not in document
    assert "variables are compared by name" in gradients["reason"]


def test_a_saved_graph_is_not_run(
    run: Run, fixtures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tensorflow as tf

    monkeypatch.chdir(tmp_path)
    graph = tf.Graph()
    with graph.as_default(), tf.device("/gpu:0"):
        tf.sqrt(tf.compat.v1.get_variable("w", [2]))
    Path("graph.pb").write_bytes(graph.as_graph_def().SerializeToString())

    reference = ("--reference", f"{fixtures}/programs/graph/mnist.py:build_single")
    ran = run("verify", "graph.pb", *reference, *NUMERIC)

    assert ran.status == 2
    assert "graph.pb cannot be run: it is a graph without its program" in ran.out


@pytest.mark.usefixtures("sources")
def test_the_machine_decides_the_number_of_towers(run: Run) -> None:
    target = ("fixtures/defects/graph/divided_twice.py:build_towers", "--machine", "gpu*3")
    named = options("defects/graph/divided_twice", "build_single", "batch")

    ran = run("verify", *target, *named, *NUMERIC[:2])

    assert "it is divided by the number of towers, 3, once too often" in " ".join(ran.out.split())
    assert "--set gradients-equal.scale=0.3333333333333333\n" in ran.out
