"""Runs of sessions that are not the program's own: made up, of pipelines, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from placement_checks.core.pipelines import pipeline_outputs
from placement_checks.loading.origins import dims
from placement_checks.loading.tf_internals.sessions_run import options_buffer

tf1 = tf.compat.v1

_PIPELINE_LIMIT = 10_000  # milliseconds


def rows_of_pipelines(
    run: Callable[..., list[Any]], session: Any, roots: Iterable[str]
) -> Mapping[str, Any]:
    """What a step would take from queues and iterators, by the names of tensors.

    They are filled by now. Where they give nothing in time, or fail, nothing is known of the rows.
    """
    graph = session.graph
    names = pipeline_outputs(graph.as_graph_def().node, roots)
    if not names:
        return {}
    tensors = [graph.get_tensor_by_name(name) for name in names]
    try:
        with options_buffer(tf1.RunOptions(timeout_in_ms=_PIPELINE_LIMIT)) as options:
            values = run(session, None, [], tensors, {}, options, None)
    except tf.errors.OpError:
        return {}
    return dict(zip(names, values, strict=True))


def callable_of_run(_: Callable[..., Any]) -> Callable[..., Any]:
    """`make_callable`, with callables that call `run`."""

    # Programs may name its arguments.
    def make_callable(
        session: Any,
        fetches: Any,
        feed_list: Any = None,
        accept_options: bool = False,  # noqa: ARG001
    ) -> Callable[..., Any]:
        def call(*values: Any, **options: Any) -> Any:
            feeds = dict(zip(feed_list or (), values, strict=True))
            return session.run(fetches, feeds, **options)

        return call

    return make_callable


# Programs may name its arguments.
def begin_partial_run(_session: Any, fetches: Any, feeds: Any = None) -> dict[Any, Any]:  # noqa: ARG001
    """A handle for `run_next_part`: what was fed so far.

    TensorFlow runs all that the feeds allow, also what is fetched by a later part, such as a step.
    """
    return {}


def run_next_part(
    session: Any, handle: dict[Any, Any], fetches: Any, feed_dict: Any = None
) -> Any:
    """What a part of a run gives, on what was fed to it and to the parts before."""
    handle.update(feed_dict or {})
    return session.run(fetches, handle)


def soft(written: Any) -> Any:
    """The configuration with which a session for GPUs can run on the CPU."""
    config = tf1.ConfigProto()
    config.CopyFrom(written)
    config.allow_soft_placement = True
    config.gpu_options.visible_device_list = ""
    rewrites = config.graph_options.rewrite_options
    rewrites.cpu_layout_conversion = rewrites.NCHW_TO_NHWC
    return config


def made_up(tensor: tf.Tensor) -> Any:
    """A result of the right dtype and shape, all zeros; of an unknown dimension 1.

    Of texts none, where their number is not known: the names of variables without a value, which
    supervisors wait for.
    """
    unknown = 0 if tensor.dtype == tf.string else 1
    sizes = [unknown if size is None else size for size in dims(tensor.shape) or ()]
    dtype = tensor.dtype.as_numpy_dtype
    value = np.full(sizes, b"" if tensor.dtype == tf.string else 0, dtype)
    return value[()]  # a scalar is none of rank 0
