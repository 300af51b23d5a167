"""Programs for GPUs on CPU devices, to compare predictions with a machine without GPUs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from placement_checks.graph.graph_def import all_nodes
from placement_checks.tf.simulated_devices import to_simulated


def on_cpus(graph_def: Any) -> tf.Graph:
    """Import a GraphDef with ``CPU:i+1`` for ``GPU:i``; the GraphDef is not changed."""
    copied = type(graph_def)()
    copied.CopyFrom(graph_def)
    for node in all_nodes(copied):
        node.device = to_simulated(node.device)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(copied, name="")
    return graph
