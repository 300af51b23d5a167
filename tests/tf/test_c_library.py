"""TensorFlow's C library without its Python API has the same ops and kernels."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.lite.experimental.microfrontend.python.ops import (
    audio_microfrontend_op as audio_frontend,
)

from placement_checks import place
from placement_checks.placer import placing
from placement_checks.placer.worker.client import PlacerProcess, phantom

REGISTERED = """
import json
from placement_checks.tf import c_library

c_library.load()
from tensorflow.core.framework import kernel_def_pb2, op_def_pb2
from tensorflow.python.client import pywrap_tf_session as c_api

def registered():
    kernels, ops = kernel_def_pb2.KernelList(), op_def_pb2.OpList()
    kernels.ParseFromString(c_api.TF_GetBuffer(c_api.TF_GetAllRegisteredKernels()))
    ops.ParseFromString(c_api.TF_GetBuffer(c_api.TF_GetAllOpList()))
    return {(op.name, "") for op in ops.op} | {  # some are registered twice
        (kernel.op, kernel.device_type + str(kernel.constraint)) for kernel in kernels.kernel
    }

light = registered()
c_library.load_whole()
whole = registered()
print(json.dumps([len(light), sorted(light - whole), sorted(whole - light)]))
"""
OF_PYTHON_MODULES = {"AudioMicrofrontend", "SobolSample"}  # SobolSample in TensorFlow 2.15


def test_all_ops_and_kernels_are_registered_except_in_python_modules() -> None:
    output = subprocess.run(
        [sys.executable, "-c", REGISTERED], check=True, capture_output=True, text=True
    ).stdout
    number, fewer, more = json.loads(output)

    assert number > 10_000
    assert not fewer
    assert {op for op, _ in more} <= OF_PYTHON_MODULES


def test_an_op_of_such_a_module_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = PlacerProcess(phantom._environment)
    monkeypatch.setattr(placing, "phantom", process)

    def build() -> None:
        tf.raw_ops.SobolSample(dim=2, num_results=4, skip=0)
        audio_frontend.audio_microfrontend(tf.zeros([1000], tf.int16))

    try:
        ops = place(build).ops.values()
    finally:
        process.stop()
    assert {op.type: str(op.assigned) for op in ops if op.type in OF_PYTHON_MODULES} == (
        dict.fromkeys(OF_PYTHON_MODULES, "/job:localhost/replica:0/task:0/device:CPU:0")
    )
