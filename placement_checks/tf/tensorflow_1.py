"""Modules that programs of TensorFlow 1 need."""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

from placement_checks.tf.patching import (
    Around,
    Patched,
    existing,
    existing_module,
    patched,
)
from placement_checks.util.imports import module_or_none


def internal_module(path: str) -> ModuleType | None:
    """A module below ``tensorflow.python``, such as ``ops.nccl_ops``; None if it is missing."""
    return module_or_none(f"tensorflow.python.{path}")


def legacy_keras(package: str) -> ModuleType:
    """Keras 2 with the names of TensorFlow 1, from the package ``keras`` or ``tf_keras``."""
    return cast(ModuleType, existing_module(f"{package}.api._v1.keras"))


def legacy_layers(keras: ModuleType) -> ModuleType:
    """`tf.layers`, from a `legacy_keras`."""
    return cast(ModuleType, existing(_legacy(keras), "layers"))


def legacy_cells(keras: ModuleType) -> ModuleType:
    """`tf.nn.rnn_cell`, from a `legacy_keras`."""
    return cast(ModuleType, existing(_legacy(keras), "rnn_cell"))


def _legacy(keras: ModuleType) -> Any:
    return existing(existing(keras, "__internal__"), "legacy")


def around_normalization_layers(around: Around) -> Patched:
    """Patch the module from which ``tensorflow.python.layers`` takes batch normalization."""
    owner = existing_module("tensorflow.python.layers.normalization")
    return patched(owner, "normalization", around)


def around_device_specs(around: Around) -> Patched:
    """Patch the ``DeviceSpec`` class of ``tensorflow.python.framework.device``."""
    return patched(existing_module("tensorflow.python.framework.device"), "DeviceSpec", around)
