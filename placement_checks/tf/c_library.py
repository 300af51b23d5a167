"""TensorFlow's C library without its Python API, which takes five times as long to load.

For processes of ours that need no more: the placer's a server, that of shapes the import of a
graph. All ops and kernels are registered by the library, but for those that a Python module of
TensorFlow loads a library of their own for; where an op may be one of those, `provide_kernels`
runs ``tensorflow/__init__.py`` after all.
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
    """Let ``tensorflow`` be a package whose modules can be imported, without running its own code.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named '{_NAME}'", name=_NAME)
    package = ModuleType(_NAME)
    package.__spec__, package.__file__ = spec, spec.origin
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[_NAME] = package


def version() -> str:
    """Its version, such as ``2.21.0``."""
    from tensorflow.python.client import pywrap_tf_session

    return str(pywrap_tf_session.__version__)


def is_cuda_build() -> bool:
    """Whether it has kernels for GPUs."""
    from tensorflow.python.platform import build_info

    return bool(build_info.build_info["is_cuda_build"])


def import_graph(graph_def: Any) -> Any:
    """The `tf.Graph` of a GraphDef, with the shapes that TensorFlow infers.

    Raises:
        Exception: whatever a damaged graph leads to.
    """
    from tensorflow.python.framework import importer, ops

    with ops.Graph().as_default() as graph:
        importer.import_graph_def(graph_def, name="")
    return graph


def provide_kernels(types: Iterable[str]) -> None:
    """Load the Python API too if there is no kernel for an op type; it may bring one.

    The placer takes an op without any kernel for one that can go anywhere.
    """
    if not _with_kernels().issuperset(types):
        load_whole()


def load_whole() -> None:
    """Load the Python API, and with it all that TensorFlow registers, unless that was done."""
    package = sys.modules[_NAME]
    if hasattr(package, "__version__"):
        return
    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)


@cache
def _with_kernels() -> frozenset[str]:
    from tensorflow.core.framework import kernel_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    data = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllRegisteredKernels())
    kernels = kernel_def_pb2.KernelList.FromString(data).kernel
    return REWRITTEN.union(kernel.op for kernel in kernels)
