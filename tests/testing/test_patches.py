"""Patches of a test hold for the program that it places, or the test fails at once."""

from __future__ import annotations

import pytest
import tensorflow as tf

from placement_checks import assert_placeable, place

PROGRAM = """
import time
import tensorflow as tf
import data

WIDTH = 4
SETTINGS = {"width": 4}

class Config:
    width = 4

def width():
    return data.width() + WIDTH + SETTINGS["width"] + Config.width

def build(num_gpus=2):
    tf1 = tf.compat.v1
    x = tf1.placeholder(tf.float32, [64, width()], "x")
    with tf.device("/cpu:0"):
        w = tf1.get_variable("w", [width(), 1])
    for i, part in enumerate(tf.split(x, num_gpus)):
        with tf.device(f"/gpu:{i}"):
            tf.reduce_mean(part @ w)

def train(num_gpus=2):
    import later
    strategy = tf.distribute.MirroredStrategy([f"/gpu:{i}" for i in range(num_gpus)])
    with strategy.scope():
        w = tf.Variable(tf.ones([width() + later.width(), 1]), name="w")
        optimizer = tf.keras.optimizers.SGD(0.1)

    @tf.function
    def step(x):
        def replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(x @ w)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        strategy.run(replica, args=(x,))

    step(tf.ones([8, width() + later.width()]))

def train_on_file(num_gpus=2):
    data.read()
    train(num_gpus)
"""
DATA = """
def width():
    return 4

def read():
    open("nowhere.csv")
"""
TESTS = """
import os
import textwrap
import time
from unittest import mock
import pytest
import data, flags, later, other, train
from placement_checks import assert_training_equal, watch

def width(evidence):
    return next(each.shape[0] for each in evidence.variables if each.name.startswith("w"))

def test_function(place, monkeypatch):
    monkeypatch.setattr(data, "width", lambda: 5)
    monkeypatch.setattr(train, "WIDTH", 5)
    assert width(place(train.build)) == 18

def test_target(place, monkeypatch):
    monkeypatch.setattr(data, "width", lambda: 5)
    assert width(place("train.py:build")) == 17

def test_target_itself(place, monkeypatch):
    monkeypatch.setattr(train, "WIDTH", 5)
    place("train.py:build")

def test_eager_attribute(place, monkeypatch):
    monkeypatch.setattr(data, "width", lambda: 5)
    place(train.train)

def test_eager_target(place, monkeypatch):
    monkeypatch.setattr(data, "width", lambda: 5)
    place("train.py:train")

def test_eager_objects(place, monkeypatch):
    monkeypatch.setitem(train.SETTINGS, "width", 5)
    monkeypatch.setattr(train.Config, "width", 5)
    place(train.train)

def test_eager_modules(place, monkeypatch):
    monkeypatch.setattr(later, "width", lambda: 5)
    with mock.patch("data.width", return_value=5):
        place(train.train)

def test_eager_mock_dict(place):
    with mock.patch.dict(train.SETTINGS, width=5):
        place(train.train)

def test_eager_numbers(monkeypatch):
    monkeypatch.setattr(data, "width", lambda: 5)
    assert_training_equal(train.train, train.train)

def test_eager_failure(place, monkeypatch):
    monkeypatch.setattr(data, "read", lambda: None)
    place(train.train_on_file)

def test_eager_arguments(place, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--rate=1"])
    place(flags.train)

def test_unrelated_patches(place, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--rate=1"])
    monkeypatch.setattr("sys.copyright", "")
    monkeypatch.setattr(time, "ctime", lambda: "")
    monkeypatch.setattr(textwrap, "dedent", lambda: "")
    monkeypatch.setattr(other, "width", lambda: 5)
    monkeypatch.setenv("OF_TEST", "3")
    with mock.patch("data.width", return_value=5):
        pass
    assert width(place(train.train)) == 20

def test_block(place, monkeypatch):
    monkeypatch.setattr(data, "width", lambda: 5)
    with watch(gpus=2, eager=True) as watched:
        train.train()
    assert width(place(watched)) == 21
"""
PROCESS = "was captured in a process of its own, where the patches of this test do not hold: "
BLOCK = (
    "capture it in this process: call it in `with watch(gpus=2, eager=True) as watched:`, then "
    "place(watched); start pytest with --placement-gpus=2"
)
REFUSED = {
    "target_itself": "train.py:build was loaded again from its file, where the patches of this "
    "test do not hold: train.WIDTH has the original value; place the function itself, without a "
    "target",
    "eager_attribute": f"train {PROCESS}data.width has the original value; {BLOCK}",
    "eager_target": f"train.py:train {PROCESS}data.width has *",
    "eager_objects": f"train {PROCESS}train.Config.width and train.SETTINGS['width'] have *",
    "eager_modules": f"train {PROCESS}data.width and later.width have *",
    "eager_mock_dict": f"train {PROCESS}train.SETTINGS* has *",
    "eager_numbers": f"train {PROCESS}data.width has *",
    "eager_arguments": f"train {PROCESS}sys.argv has *",
    "eager_failure": "if it trains eagerly, it runs in a process of its own, where the patches of "
    f"this test do not hold: data.read; {BLOCK}",
}


def test_patches_hold_or_the_test_fails(pytester: pytest.Pytester) -> None:
    assert_placeable(place(lambda: tf.constant(1.0)))  # pytester forgets modules of its runs
    pytester.makeini("[pytest]\npythonpath = .")
    width = "def width():\n    return 4\n"
    pytester.makepyfile(train=PROGRAM, data=DATA, later=width, other=width, test_it=TESTS)
    pytester.makepyfile(flags=f"import argparse\n{PROGRAM}")

    result = pytester.runpytest_inprocess("--tb=short", "--placement-gpus=4")

    result.assert_outcomes(passed=4, failed=len(REFUSED))
    for test, message in REFUSED.items():
        escaped = message.replace("[", "[[]")
        result.stdout.fnmatch_lines([f"_* test_{test} _*", f"E   *{escaped}"])
