"""What a failing test shows of an error, without TensorFlow."""

from __future__ import annotations

import pytest
from support.forked import run_pytest_forked

TEST = """
import pytest
from placement_checks import assert_variables_on_host, read_logs
from placement_checks.core.errors import PlacerError
from placement_checks.logs import reading

def test_a_log_that_is_not_there():
    assert_variables_on_host(read_logs(["nope.log"]).placement())

@pytest.fixture
def log():
    return read_logs(["nope.log"])

def test_one_that_a_fixture_reads(log):
    pass

def test_an_internal_error(monkeypatch):
    def read(*_):
        raise PlacerError("the placer", "died")

    monkeypatch.setattr(reading, "Source", read)
    read_logs(["nope.log"])
"""
INTERNAL = "*placement_checks*logs*reading.py:*"


def test_frames_end_at_the_call_in_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_log=TEST)

    result = pytester.runpytest_inprocess("-k", "not internal")

    result.assert_outcomes(failed=1, errors=1)
    error = "E       placement_checks.core.errors.InputError: nope.log: there is no such file"
    result.stdout.fnmatch_lines(
        [">       return read_logs(*", error, "", "test_log.py:*: InputError"]
    )
    result.stdout.fnmatch_lines(
        [">       assert_variables_on_host(*", error, "", "test_log.py:*: InputError"]
    )
    result.stdout.no_fnmatch_line(INTERNAL)


@pytest.mark.parametrize(("test", "debug"), [("internal", ""), ("not_there", "1")])
def test_all_frames_are_shown_of_an_internal_error_or_on_request(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, test: str, debug: str
) -> None:
    if debug:
        monkeypatch.setenv("PLACEMENT_CHECKS_DEBUG", debug)
    pytester.makepyfile(test_log=TEST)

    result = pytester.runpytest_inprocess("-k", test)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([INTERNAL])


PROGRAM = """
import json

import pytest
import tensorflow as tf

tf1 = tf.compat.v1


def multiply(x, w):
    in_helper = "of the helper"
    return tf.matmul(x, w)


def build_wrong(num_gpus=2):
    in_builder = "of the builder"
    x = tf1.placeholder(tf.float32, [8, 3])
    return multiply(x, tf1.get_variable("w", [4, 1]))


def build_from_text(num_gpus=2):
    return json.loads("no json")


def build_skipped(num_gpus=2):
    pytest.skip("not now")


def build_failed(num_gpus=2):
    pytest.fail("by the builder")


def build(num_gpus=2):
    x = tf1.placeholder(tf.float32, [64, 4], "x")
    y = tf1.placeholder(tf.float32, [64, 1], "y")
    with tf.device("/cpu:0"):
        w = tf1.get_variable("w", [4, 1])
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
    gradients = []
    for i, (part, label) in enumerate(zip(tf.split(x, num_gpus), tf.split(y, num_gpus))):
        with tf.device(f"/gpu:{i}"):
            gradients += tf.gradients(tf.reduce_mean((part @ w - label) ** 2), w)
    with tf.device("/cpu:0"):
        mean = tf.add_n(gradients) / num_gpus
        return {"inputs": [{"x": x, "y": y}], "train_op": optimizer.apply_gradients([(mean, w)])}


def build_single():
    return build(1)


def batch_wrong(rng, n):
    in_batch = "of the batch function"
    raise KeyError("no data")


def batch_short(rng, n):
    return {"x": rng.normal(size=[n, 4])}
"""
CALLS = """
import pytest
import tensorflow as tf
import program
from placement_checks import assert_gradients_equal

def test_op(place):
    place(program.build_wrong)

def test_target(place):
    place("program.py:build_wrong")

def test_of_a_library(place):
    place(program.build_from_text)

def test_skipped(place):
    place(program.build_skipped)

def test_failed(place):
    place(program.build_failed)

def test_batch():
    assert_gradients_equal(program.build, program.build_single, program.batch_wrong)

def test_short_batch():
    assert_gradients_equal(program.build, program.build_single, program.batch_short)

def test_model(place):
    place(tf.keras.Sequential([tf.keras.layers.Dense(1)]))

def test_layer(place):
    place(tf.keras.layers.Dense(1))

def test_unnamed(place):
    place(program.build, 2)

def test_unknown(place):
    place(program.build, gpu=2)

def test_num_gpus(place):
    place(program.build, num_gpus=2)

def test_none(place):
    place(program.build, gpus=0)

def test_own_exception(place):
    try:
        raise ValueError("by the test")
    except ValueError:
        place("nowhere.py:build")

@pytest.fixture
def placed(place):
    return place(program.build_wrong)

def test_fixture(placed):
    pass

def test_subtest(subtests, place):
    with subtests.test():
        place(program.build_wrong)
"""
MATMUL = [
    "program.py:*: in build_wrong",
    "    return multiply(x, tf1.get_variable(*",
    "    def multiply(x, w):",
    ">       return tf.matmul(x, w)",
    "E       placement_checks.core.errors.InputError: *build_wrong: the builder raised "
    "ValueError: Dimensions must be equal*",
    "program.py:*: InputError",
]
ERROR = "E       placement_checks.core.errors.UsageError: "
SHOWN = {
    "test_op": ["test_it.py:7: *", *MATMUL],
    "test_target": ["test_it.py:10: *", *MATMUL],
    "test_of_a_library": ["program.py:*: in build_from_text", "*json*: in loads", "*decoder.py:*"],
    "test_failed": [
        ">       pytest.fail(*",
        "E       Failed: by the builder",
        "program.py:*: Failed",
    ],
    "test_batch": [
        "    def batch_wrong(rng, n):",
        ">       raise KeyError(*",
        "E *InputError: batch_wrong: batch(rng, *) raised KeyError: 'no data'; look at program.*",
    ],
    "test_short_batch": [
        ">       assert_gradients_equal(*",
        "E *InputError: batch_short: it returned no array for the input 'y'; add it to x",
        "",
        "test_it.py:*: InputError",
    ],
    "test_model": [
        ">       place(*",
        f"{ERROR}<Sequential * is a part of Keras, not the function that builds the program; pass "
        "a function that returns it with its data: *",
    ],
    "test_layer": [f"{ERROR}<Dense * is a part of Keras, not the function that builds *"],
    "test_unnamed": [
        f"{ERROR}place: its argument 2 needs a name; name it, such as place(build, gpus=2)"
    ],
    "test_unknown": [f"{ERROR}place has no argument 'gpu'; did you mean 'gpus'?"],
    "test_num_gpus": [f"{ERROR}place has no argument 'num_gpus'; did you mean 'gpus'?"],
    "test_none": [f"{ERROR}0 GPUs: one host has between 1 and 256; give 1 or more; *"],
    "test_own_exception": [
        "E           ValueError: by the test",
        "During handling of the above exception, another exception occurred:",
        "E *MissingTargetError: nowhere.py: there is no such file*",
    ],
    "test_fixture": [">       return place(program.build_wrong)", *MATMUL],
}


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Import the modules of these runs, because pytester forgets modules that a run imports."""
    from placement_checks import assert_placeable, place
    from placement_checks.run.compare import pair  # noqa: F401

    assert_placeable(place(lambda: __import__("tensorflow").constant(1.0)))


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\npythonpath = .")
    pytester.makepyfile(program=PROGRAM, test_it=CALLS)
    return pytester


@pytest.mark.parametrize("test", SHOWN)
def test_the_users_frames_are_shown_and_no_others(project: pytest.Pytester, test: str) -> None:
    result = project.runpytest_inprocess("-k", f"{test} or test_skipped")

    counts = result.parseoutcomes()
    assert (counts.pop("failed", 0), counts.pop("errors", counts.pop("error", 0))) in {
        (1, 0),
        (0, 1),
    }
    assert counts["skipped"] == 1
    result.stdout.fnmatch_lines(SHOWN[test])
    for frames in ("*placement_checks/*.py:*", "*contextlib.py:*", "*/tensorflow/*.py:*"):
        result.stdout.no_fnmatch_line(frames)


def test_local_variables_of_the_user_are_shown(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("-k", "test_op or test_batch", "--showlocals")

    result.stdout.fnmatch_lines(["in_helper  = 'of the helper'"])
    result.stdout.fnmatch_lines(["in_batch   = 'of the batch function'"])


@pytest.mark.parametrize("option", ["-n0", "--full-trace"])
def test_a_failing_subtest_shows_the_frames_of_the_user(
    project: pytest.Pytester, option: str
) -> None:
    pytest.importorskip("_pytest.subtests", reason="subtests are new in pytest 9")
    result = project.runpytest_inprocess("-k", "test_subtest", option)

    if option == "-n0":
        result.stdout.fnmatch_lines(MATMUL)
        result.stdout.no_fnmatch_line("*placement_checks/*.py:*")
    else:
        result.stdout.fnmatch_lines(["*placement_checks/*.py:*"])


def test_the_debugger_starts_in_the_code_of_the_user(project: pytest.Pytester) -> None:
    commands = b"p 'x ' + in_helper\nup\np 'y ' + in_builder\nup\nup\nq\n"

    result = run_pytest_forked(project, "--pdb", "-k", "test_op", typed=commands)

    result.stdout.fnmatch_lines(
        ["*'x of the helper'", "*'y of the builder'", "*test_it.py(7)test_op()"]
    )
