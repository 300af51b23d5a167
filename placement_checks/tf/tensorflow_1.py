"""What programs of TensorFlow 1 ask for."""

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
    """A module below ``tensorflow.python``, such as ``ops.nccl_ops``; None where it is gone."""
    return module_or_none(f"tensorflow.python.{path}")


def legacy_keras(package: str) -> ModuleType:
    """Keras 2 with the names of TensorFlow 1: of the package ``keras``, or of ``tf_keras``."""
    return cast(ModuleType, existing_module(f"{package}.api._v1.keras"))


def legacy_layers(keras: ModuleType) -> ModuleType:
    """What `tf.layers` is, of a `legacy_keras`."""
    return cast(ModuleType, existing(_legacy(keras), "layers"))


def legacy_cells(keras: ModuleType) -> ModuleType:
    """What `tf.nn.rnn_cell` is, of a `legacy_keras`."""
    return cast(ModuleType, existing(_legacy(keras), "rnn_cell"))


def around_normalization_layers(around: Around) -> Patched:
    """Patch the module in which ``tensorflow.python.layers`` looks for batch normalisation."""
    return patched(
        existing_module("tensorflow.python.layers.normalization"), "normalization", around
    )


def around_device_specs(around: Around) -> Patched:
    """Patch the class that ``tensorflow.python.framework.device`` has for names of devices."""
    return patched(existing_module("tensorflow.python.framework.device"), "DeviceSpec", around)


def _legacy(keras: ModuleType) -> Any:
    return existing(existing(keras, "__internal__"), "legacy")
