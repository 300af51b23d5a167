"""A project with one test module, as a user would write it.

It is run in this process, which has TensorFlow and a placer.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from placement_checks import assert_placeable, place

SOUND = """
import tensorflow as tf

tf1 = tf.compat.v1


def build_towers(num_gpus=2):
    gradients = []
    with tf.device("/cpu:0"):
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=i > 0):
            x = tf1.placeholder(tf.float32, [None, 8])
            with tf.device("/cpu:0"):
                w = tf1.get_variable("w", [8, 1])
            gradients.append(optimizer.compute_gradients(tf.reduce_sum(x @ w)))
    with tf.device("/cpu:0"):
        average = [(tf.add_n([g for g, _ in pairs]), pairs[0][1]) for pairs in zip(*gradients)]
        return optimizer.apply_gradients(average)
"""
DEFECTIVE = """
import tensorflow as tf

tf1 = tf.compat.v1


def build_towers(num_gpus=2):
    gradients = []
    with tf.device("/cpu:0"):
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"):
            x = tf1.placeholder(tf.float32, [None, 8])
            w = tf1.get_variable(f"w_{i}", [8, 1])
            gradients.append(optimizer.compute_gradients(tf.reduce_sum(x @ w), [w]))
    with tf.device("/cpu:0"):
        average = [(tf.add_n([g for g, _ in pairs]), pairs[0][1]) for pairs in zip(*gradients)]
        return optimizer.apply_gradients(average)
"""
TESTS = """
from placement_checks import assert_variables_on_host, assert_variables_shared
from train import build_towers


def test_on_host(place):
    assert_variables_on_host(place(build_towers, gpus=2))


def test_shared(place):
    assert_variables_shared(place(build_towers, gpus=2))
"""


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Import the modules of these runs, because pytester forgets modules that a run imports."""
    assert_placeable(place(lambda: tf.constant(1.0)))


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\npythonpath = .")
    return pytester


def write(project: pytest.Pytester, program: str, tests: str = TESTS) -> None:
    project.makepyfile(train=program, test_towers=tests)


@pytest.mark.smoke
def test_a_sound_program_passes(project: pytest.Pytester) -> None:
    write(project, SOUND)

    result = project.runpytest_inprocess("--junit-xml=report.xml")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*placement checks*", "rules: 2 kept, 0 broken, 0 not checked, on gpu*2 (phantom)"]
    )
    assert (project.path / "report.xml").read_text().count('<property name="placement"') == 2


def defects() -> list[str]:
    """The lines about the defective program, in any order."""
    lines = DEFECTIVE.strip().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "get_variable(" in text)
    program = "train:build_towers"
    return [
        f"E *AssertionError: variables-on-host is broken by {program} on gpu?2: 2 findings",
        f"E *train.py:{line}: variable w_0 sits on /device:GPU:0, not on /device:CPU:0; "
        "it requests /device:GPU:0",
        "E * likewise 1 more: w_1",
        f"E *AssertionError: variables-shared is broken by {program} on gpu?2: 1 finding",
        f"E *train.py:{line}: the tower on /device:GPU:1 reads w_1, but the tower on *",
        "E *| w = tf1.get_variable(*",
    ]


@pytest.mark.smoke
def test_a_defective_program_fails_and_names_variable_and_line(project: pytest.Pytester) -> None:
    write(project, DEFECTIVE)

    result = project.runpytest_inprocess()

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines_random(
        [*defects(), "rules: 0 kept, 2 broken, 0 not checked, on gpu?2 (phantom)"]
    )


@pytest.mark.parametrize(("option", "everything"), [("-v", False), ("-vv", True)])
def test_the_option_sets_the_detail_of_messages(
    project: pytest.Pytester, option: str, everything: bool
) -> None:
    project.makepyfile(
        "import pytest\n"
        "from placement_checks.testing import running_test\n"
        "@pytest.fixture\n"
        "def in_fixture():\n"
        "    return running_test.current().all_findings\n"
        "def test_messages(in_fixture):\n"
        "    in_test = running_test.current().all_findings\n"
        f"    assert (in_fixture, in_test) == ({everything}, {everything})\n"
    )

    project.runpytest_inprocess(option).assert_outcomes(passed=1)


def test_the_plugin_can_be_disabled(project: pytest.Pytester) -> None:
    write(project, SOUND)

    result = project.runpytest_inprocess("-p", "no:placement")

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*fixture 'place' not found*"])
    result.stdout.no_fnmatch_line("*placement checks*")


def test_marks_set_rules_and_machine(project: pytest.Pytester) -> None:
    write(
        project,
        DEFECTIVE,
        """
import pytest
from train import build_towers


@pytest.mark.placement_checks("placeable", "no-idle-device", gpus=4)
def test_kept(place):
    assert len(place(build_towers).machine.gpus) == 4


@pytest.mark.placement_checks("variables-on-host", machine="gpu*1")
def test_broken(place):
    place(build_towers)


@pytest.mark.placement_gpu(3)
def test_gpus(place):
    assert str(place(build_towers).machine) == "gpu*3"


@pytest.mark.placement_checks("variables-shared")
def test_not_checked(place):
    place("train.py:build_towers", gpus=1)
""",
    )

    result = project.runpytest_inprocess()

    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "E *variables-on-host is broken by train:build_towers on gpu?1: 1 finding",
            "E *variables-shared could not be checked on train.py:build_towers: variables are "
            "read on /device:GPU:0 only, and the program cannot be compared with its build for "
            "one GPU: the program itself was built for one GPU; build it for several GPUs",
        ]
    )


def test_the_configuration_counts_in_tests_too(project: pytest.Pytester) -> None:
    project.makepyprojecttoml(
        "[tool.pytest.ini_options]\npythonpath = ['.']\n"
        "[tool.placement_checks]\ngpus = 3\n"
        "policy.variables-on-host.device = ['/gpu:0', '/gpu:1', '/gpu:2']\n"
    )
    (project.path / "tox.ini").unlink()
    write(
        project,
        DEFECTIVE,
        """
import pytest
from placement_checks import assert_variables_on_host
from train import build_towers


def test_configured(place):
    evidence = place(build_towers)
    assert str(evidence.machine) == "gpu*3"
    assert_variables_on_host(evidence)
    with pytest.raises(AssertionError):
        assert_variables_on_host(evidence, "/cpu:0")
""",
    )

    project.runpytest_inprocess().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("setting", "passes"),
    [
        ("without = ['variables-on-host', 'variables-shared']", True),
        ("rules = ['placeable', 'no-fallback']", True),
        ("gpus = 2", False),
    ],
)
def test_all_rules_are_the_rules_that_the_configuration_selects(
    project: pytest.Pytester, setting: str, passes: bool
) -> None:
    project.makepyprojecttoml(
        f"[tool.pytest.ini_options]\npythonpath = ['.']\n[tool.placement_checks]\n{setting}\n"
    )
    (project.path / "tox.ini").unlink()
    write(
        project,
        DEFECTIVE,
        """
import pytest
from placement_checks import assert_rules
from train import build_towers


def test_all(place):
    assert_rules(place(build_towers))


def test_named(place):
    with pytest.raises(AssertionError, match="variables-on-host is broken"):
        assert_rules(place(build_towers), "variables-on-host")
""",
    )

    project.runpytest_inprocess().assert_outcomes(passed=1 + passes, failed=1 - passes)


def test_a_mark_for_one_gpu_leaves_tower_rules_unchecked(
    project: pytest.Pytester,
) -> None:
    write(
        project,
        SOUND,
        """
import pytest
from train import build_towers


@pytest.mark.placement_checks("variables-shared", "losses-apart", gpus=1)
def test_kept(place):
    place(build_towers)


@pytest.mark.placement_checks("variables-shared", machine="gpu*1")
def test_written(place):
    place(build_towers)


@pytest.mark.placement_checks("session-memory", gpus=1)
def test_not_checked_for_another_reason(place):
    place(build_towers)


@pytest.mark.placement_checks("variables-shared")
def test_of_two(place):
    place(build_towers, gpus=1)
""",
    )

    result = project.runpytest_inprocess()

    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "E *session-memory could not be checked on train:build_towers: *",
            "E *variables-shared could not be checked on train:build_towers: variables are read "
            "on /device:GPU:0 only, and the program cannot be compared with its build for one "
            "GPU: the program itself was built for one GPU; build it for several GPUs",
            "rules: 0 kept, 0 broken, 5 not checked, *",
        ]
    )


def test_reference_and_batch_have_the_api_of_the_program(project: pytest.Pytester) -> None:
    programs = """
import tensorflow as tf

FLAGS = tf.flags.FLAGS


def build(num_gpus=2):
    gradients = []
    x = tf.placeholder(tf.float32, [64, 8], "x")
    with tf.device("/cpu:0"):
        w = tf.get_variable("w", [8, 1])
    for i, part in enumerate(tf.split(x, num_gpus)):
        with tf.device(f"/gpu:{i}"):
            gradients += tf.gradients(tf.reduce_mean((part @ w) ** 2), w)
    with tf.device("/cpu:0"):
        mean = tf.add_n(gradients) / num_gpus
        return tf.train.GradientDescentOptimizer(0.1).apply_gradients([(mean, w)])


def single():
    return build(1)


def batch(rng, n):
    with tf.Graph().as_default(), tf.Session() as session:
        return {"x": session.run(tf.random_normal([n, 8], seed=1))}
"""
    tests = """
from placement_checks import assert_rules


def test_numbers(place):
    evidence = place(
        "train.py:build", v1=True, reference="train.py:single", batch="train.py:batch"
    )
    assert_rules(evidence, "gradients-equal")
"""
    write(project, programs, tests)

    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_invalid_programs_and_machines(project: pytest.Pytester) -> None:
    write(
        project,
        SOUND,
        """
import sys

import pytest
from train import build_towers

from placement_checks import assert_variables_shared, with_numbers
from placement_checks.core.errors import InputError, UsageError

CALLS = {
    "5": lambda place: place(5),
    "None": lambda place: place(None),
    "machine 4": lambda place: place(build_towers, machine=4),
    "machine 'gpuu'": lambda place: place(build_towers, machine="gpuu"),
    "gpus='2'": lambda place: place(build_towers, gpus="2"),
    "gpus=2.0": lambda place: place(build_towers, gpus=2.0),
    "gpus=True": lambda place: place(build_towers, gpus=True),
    "3": lambda place: place(build_towers, reference=3),
    "batch [1]": lambda place: place(build_towers, reference=build_towers, batch=[1]),
    "batch": lambda place: place(build_towers, batch="train.py:batch"),
    "<function": lambda place: assert_variables_shared(build_towers),
    "<function build_towers": lambda place: with_numbers(build_towers, build_towers),
}


@pytest.mark.parametrize("object", CALLS)
def test_usage(place, object):
    with pytest.raises(UsageError) as raised:
        CALLS[object](place)
    assert raised.value.object.startswith(object)
    assert raised.value.fix


def test_code_that_exits(place):
    place(lambda: sys.exit(0))
""",
    )

    result = project.runpytest_inprocess()

    result.assert_outcomes(passed=12, failed=1)
    result.stdout.fnmatch_lines(
        ["E *InputError: *<lambda>: the builder called sys.exit(0); look at test_towers.py:*"]
    )
