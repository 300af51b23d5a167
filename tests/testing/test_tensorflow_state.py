"""Changes of TensorFlow's global state do not reach the next test."""

from __future__ import annotations

import functools
import sys
import warnings

import pytest
import tensorflow  # noqa: F401
from support.forked import run_pytest_forked

from placement_checks.testing import tensorflow_state

LEAKS = """
import tensorflow as tf
from placement_checks import watch

tf1 = tf.compat.v1
kept = []


def test_leaves_a_graph():
    kept.append(tf.Graph().as_default())
    kept[-1].__enter__()
    assert not tf.executing_eagerly()


def test_is_eager_and_has_a_stack_of_its_own():
    assert tf.executing_eagerly()


def test_leaves_a_session():
    with tf.Graph().as_default():
        kept.append(tf1.InteractiveSession())


def test_has_no_default_session():
    assert tf1.get_default_session() is None


def test_turns_behavior_of_tensorflow_2_off():
    tf1.disable_v2_behavior()
    assert tf1.get_variable("v", []).op.type == "VariableV2"


def test_turns_a_part_of_it_off():
    tf1.disable_control_flow_v2()


def test_has_all_of_it():
    assert tf.executing_eagerly()
    assert tf.Variable(1.0).numpy() == 1.0
    assert {tf.TensorShape([1])[0]} == {1}
    assert tf1.control_flow_v2_enabled()
    with tf.Graph().as_default():
        assert tf1.get_variable("v", []).op.type == "VarHandleOp"
        tf.cond(tf1.placeholder(tf.bool, []), lambda: 1.0, lambda: 2.0)
        types = {op.type for op in tf1.get_default_graph().get_operations()}
        assert "Merge" not in types


def test_sets_dtypes_of_keras():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    tf.keras.backend.set_floatx("float64")


def test_has_the_default_dtypes_of_keras():
    assert tf.keras.mixed_precision.global_policy().name == "float32"
    assert tf.keras.backend.floatx() == "float32"


def test_sets_seed_and_soft_placement():
    tf.random.set_seed(3)
    tf.config.set_soft_device_placement(False)
    with tf.init_scope():
        pass
    tf1.get_default_graph()
    with tf1.get_default_graph().as_default():
        tf1.placeholder(tf.float32, name="left_behind")


def test_starts_afresh():
    from tensorflow.python.eager import context

    assert context.global_seed() is None
    assert tf.config.get_soft_device_placement()
    assert not tf1.get_default_graph().get_operations()


def test_a_builder_changes_nothing(place):
    def build():
        tf.config.set_soft_device_placement(False)
        tf1.disable_v2_behavior()
        tf1.placeholder(tf.float32)

    place(build)
    assert tf1.resource_variables_enabled()
    assert tf.config.get_soft_device_placement()
    assert tf.executing_eagerly()
"""


def test_a_change_on_import_of_a_module_is_reported(pytester: pytest.Pytester) -> None:
    """The change applies to the whole process, so also to tests of other modules."""
    test = """
        import tensorflow as tf

        def test_it(place):
            placement = place(lambda: tf.compat.v1.get_variable("v", []))
            assert placement.ops["v"].type == "VariableV2"
    """
    pytester.makepyfile(
        test_a=test, test_b=f"{test}\n        tf.compat.v1.disable_v2_behavior()\n"
    )

    result = run_pytest_forked(pytester)

    result.assert_outcomes(passed=2, warnings=0)
    result.stdout.fnmatch_lines(
        [
            "placement: the import of test_b.py called disable_v2_behavior(), which affects all "
            "tests; call it in a test or fixture instead"
        ]
    )


def test_leaks_are_undone_and_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LEAKS)

    result = run_pytest_forked(pytester, "-v")

    result.assert_outcomes(passed=12, warnings=4)
    result.stdout.fnmatch_lines(
        [
            "*PytestWarning: *::test_leaves_a_graph never closed an as_default() or "
            "InteractiveSession; it was undone",
            "*PytestWarning: *::test_leaves_a_session never closed an as_default() or "
            "InteractiveSession; it was undone",
            "*PytestWarning: *::test_turns_behavior_of_tensorflow_2_off called "
            "disable_v2_behavior(); it was undone",
            "*PytestWarning: *::test_turns_a_part_of_it_off called disable_control_flow_v2(); "
            "it was undone",
        ]
    )


OTHERS = """
import pytest
import tensorflow as tf

tf1 = tf.compat.v1


def test_sets():
    tf1.disable_v2_behavior()
    tf1.get_variable("v", [])
    tf.random.set_seed(3)


def test_finds_its_variable():
    assert not tf.executing_eagerly()
    assert [v.name for v in tf1.global_variables()] == ["v:0"]
{test}
"""
USERS = {
    "none": ("", True),
    "fixture": ("def test(place): pass", False),
    "own fixture of that name": (
        "@pytest.fixture\ndef place(): return 1\n\ndef test(place): pass",
        True,
    ),
}


@pytest.mark.parametrize("user", USERS)
def test_tests_that_do_not_use_the_package_keep_their_changes(
    pytester: pytest.Pytester, user: str
) -> None:
    """TensorFlow stays as these tests leave it, without a warning."""
    test, _ = USERS[user]
    pytester.makepyfile(OTHERS.format(test=test))

    result = run_pytest_forked(pytester, "-W", "error")

    result.assert_outcomes(passed=2 + bool(test), warnings=0)


@pytest.mark.parametrize("user", USERS)
def test_a_change_on_import_is_reported_to_users_of_the_package_only(
    pytester: pytest.Pytester, user: str
) -> None:
    test, is_silent = USERS[user]
    pytester.makepyfile(
        f"import pytest\nimport tensorflow as tf\ntf.compat.v1.disable_v2_behavior()\n{test}\n"
        "\ndef test_it(): pass\n"
    )

    result = run_pytest_forked(pytester)

    assert ("placement: the import of " in result.stdout.str()) is not is_silent


def test_an_unknown_version_of_tensorflow_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cached in ("_why_unsupported", "_warn_if_unsupported"):
        again = functools.cache(getattr(tensorflow_state, cached).__wrapped__)
        monkeypatch.setattr(tensorflow_state, cached, again)
    monkeypatch.delattr(sys.modules["tensorflow.python.eager.context"], "global_seed")

    gone = r"not undone: tensorflow: version .* has no tensorflow\.[\w.]+\.global_seed"
    with pytest.warns(UserWarning, match=gone):
        assert tensorflow_state.current_state() is None
    with warnings.catch_warnings(action="error"):
        assert tensorflow_state.global_change() == ""
        assert list(tensorflow_state.restore(None)) == []
