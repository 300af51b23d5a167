"""Load TensorFlow's C library without the Python API, to start five times as fast.

Two child processes need only the C library: the placer runs TensorFlow's server, and shape
inference imports a graph. The library registers all ops and kernels except the ops of a few Python
modules, which load separate libraries. If a graph has such an op, `provide_kernels` runs
``tensorflow/__init__.py`` after all.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

from placement_checks.core.op_types import REWRITTEN

_NAME = "tensorflow"


def load() -> None:
    """Make the modules of the ``tensorflow`` package importable without running its ``__init__``.

    Raises:
        ModuleNotFoundError: TensorFlow is not installed.
    """
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named '{_NAME}'", name=_NAME)
    package = ModuleType(_NAME)
    package.__spec__, package.__file__ = spec, spec.origin
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[_NAME] = package


def version() -> str:
    """The version of TensorFlow, such as ``2.21.0``."""
    from tensorflow.python.client import pywrap_tf_session

    return str(pywrap_tf_session.__version__)


def import_graph(graph_def: Any) -> Any:
    """Import a GraphDef into a `tf.Graph`, with the shapes that TensorFlow infers.

    Raises:
        Exception: the graph is damaged; TensorFlow raises errors of many types.
    """
    from tensorflow.python.framework import importer, ops

    with ops.Graph().as_default() as graph:
        importer.import_graph_def(graph_def, name="")
    return graph


def provide_kernels(types: Iterable[str]) -> None:
    """Load the Python API if an op type has no kernel; a Python module may register one.

    The placer assumes that an op without any kernel can be placed anywhere.
    """
    if not _types_with_kernels().issuperset(types):
        load_whole()


def load_whole() -> None:
    """Load the Python API, and with it all ops and kernels, unless it is loaded already."""
    package = sys.modules[_NAME]
    if hasattr(package, "__version__"):
        return
    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)


@cache
def _types_with_kernels() -> frozenset[str]:
    from tensorflow.core.framework import kernel_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    data = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllRegisteredKernels())
    kernels = kernel_def_pb2.KernelList.FromString(data).kernel
    return REWRITTEN.union(kernel.op for kernel in kernels)
