"""Errors of user code are reported with the most useful line of their message, and the source
line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import tensorflow as tf

from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.user_code import is_user_file, users_code


def input_error(code: Callable[[], object], fix: str = "") -> InputError:
    with pytest.raises(InputError) as raised, users_code("train.py:build", "it", None, fix):
        code()
    return raised.value


def raising(error: BaseException) -> Callable[[], object]:
    def code() -> None:
        raise error

    return code


def traced() -> None:
    def inner(x: tf.Tensor) -> tf.Tensor:
        raise ValueError("the real reason\nand more of it")

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return inner(x)

    with tf.Graph().as_default():
        outer(tf.constant(1.0))


def a_layer_that_does_not_fit() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    with tf.Graph().as_default():
        model.build((None, 4))
        model(tf.zeros([2, 5]))


KERAS = "Exception encountered when calling layer 'dense' (type Dense).\n\n"
SUMMARIES = {
    "one line": "one line",
    "the reason\n\nand what it was called with:\n  x=1": "the reason",
    "\n  indented\n": "indented",
    "these are missing:\n  fc1/weights\n  fc2/weights": "these are missing: fc1/weights",
    f"{KERAS}\x1b[1mInput 0 does not fit\x1b[0m\n\nArguments received:\n  • x=1": (
        "Input 0 does not fit"
    ),
    'in user code:\n\n    File "a.py", line 1, in f  *\n        g(x)\n\n    '
    + "ValueError: "
    + KERAS.replace("\n", "\n    ")
    + "Input 0 does not fit\n    \n    Arguments received:\n      • x=1\n": "Input 0 does not fit",
    "Graph execution error:\n\nDetected at node 'Pool' defined at (most recent call last):\n"
    "    File \"NHWC.py\", line 3, in main\nNode: 'Pool'\nno kernel\n\t [[Pool]]": "no kernel",
    "2 root error(s) found.\n  (0) INVALID_ARGUMENT: first\n\t [[a]]\n  (1) CANCELLED: second": (
        "first"
    ),
    "Graph execution error:\n\nNode: 'Pool'": "Graph execution error: Node: 'Pool'",
    "in user code:\n\n    nothing that is known": "",
}


@pytest.mark.parametrize("message", SUMMARIES)
def test_the_most_useful_line_of_a_message(message: str) -> None:
    expected = f"it raised ValueError: {SUMMARIES[message]}".removesuffix(": ")

    assert input_error(raising(ValueError(message))).message == expected


def test_errors_of_tensorflow_and_keras() -> None:
    assert input_error(traced).message == "it raised ValueError: the real reason"
    summary = input_error(a_layer_that_does_not_fit).message
    assert summary.startswith("it raised ValueError: Input 0 ")
    assert "\x1b" not in summary


@pytest.mark.parametrize(
    ("exits", "deed"),
    [
        (lambda: sys.exit(0), "called sys.exit(0)"),
        (lambda: sys.exit(), "called sys.exit()"),
        (lambda: sys.exit("no data"), "called sys.exit('no data')"),
    ],
)
def test_code_that_exits(exits: Callable[[], None], deed: str) -> None:
    line = inspect.getsourcelines(exits)[1]
    error = input_error(exits)

    assert error.message == f"it {deed}"
    fix = error.fix.rpartition("/")[2]
    assert fix.startswith("test_users_code.py:")
    assert abs(int(fix.rpartition(":")[2]) - line) <= 1
    assert error.details.splitlines()[-1].startswith("SystemExit")


def test_another_fix_without_a_user_line(tmp_path: Path) -> None:
    library = tmp_path / "site-packages/library.py"
    library.parent.mkdir()

    def call(folder: Path) -> str:
        names = {"users_code": users_code, "folder": folder}
        source = "with users_code('o', 'it', folder, 'give it an x'):\n    raise AssertionError"
        with pytest.raises(InputError) as raised:
            exec(compile(source, str(library), "exec"), names)
        return str(raised.value)

    assert call(tmp_path) == "o: it raised AssertionError; give it an x"
    assert call(library.parent).endswith("site-packages/library.py:2")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UsageError("", "no")])
def test_keyboard_interrupts_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, users_code("train.py:build", "it", None):
        raise error
    assert raised.value is error


def test_a_skip_in_a_builder_skips_the_test() -> None:
    with pytest.raises(pytest.skip.Exception), users_code("train.py:build", "it", None):
        pytest.skip("no data here")


def test_frameworks_in_a_directory_of_their_own_are_libraries(tmp_path: Path) -> None:
    """``pip install --target`` may install the user's package into the same directory."""
    libraries = ("lib/tensorflow/python/ops.py", "lib/keras/src/layer.py")
    others = (
        "lib/trainer/train.py",
        "lib/train.py",
        "work/tensorflow/train.py",
        "lib/x/keras/a.py",
    )
    for file in (*libraries, *others):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    for name in ("tensorflow-2.21.0", "keras-3.15.1", "trainer-1.0"):
        (tmp_path / "lib" / f"{name}.dist-info").mkdir()

    def users(files: Iterable[str]) -> list[bool]:
        return [is_user_file(str(tmp_path / file), None) for file in files]

    assert users(libraries) == [False, False]
    assert all(users(others))
