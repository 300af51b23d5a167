"""Sums of gradients over ranks: the optimizers and tapes of `horovod.tensorflow`.

An optimizer of TensorFlow 1 reduces gradients in ``compute_gradients``, an optimizer of Keras
before it applies them, and a tape in ``gradient``. Reductions have the same names as in Horovod
0.28, because ranks find each other's gradients by these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.horovod.collectives import (
    Adasum,
    Average,
    ReduceOp,
    Sum,
    allgather_tensor,
    allreduce_tensor,
    allreduce_without_gradient,
    group_name,
    process,
    unsupported_error,
)

_Optimizer: Any = tf.compat.v1.train.Optimizer


class Compressor:
    """Converts a tensor before it is sent, and back; the base class changes nothing."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and the context that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, _ctx: Any) -> Any:
        """Convert a received tensor back."""
        return tensor


class _Half(Compressor):
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        if not tensor.dtype.is_floating:
            return tensor, tensor.dtype
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class Compression:
    """The ways to compress gradients."""

    none = Compressor
    fp16 = _Half


class Settings(NamedTuple):
    """How gradients are reduced; the fields are arguments of Horovod."""

    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: ReduceOp = Average
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    device_dense: str = ""
    device_sparse: str = ""
    scale_local_gradients: bool = True

    def check(self) -> None:
        """Raise ``ValueError`` for values that Horovod refuses, and `InputError` for Adasum."""
        if self.op == Adasum:
            raise unsupported_error("op=hvd.Adasum of gradients")
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if self.groups is not None and not isinstance(self.groups, list) and self.groups <= 0:
            raise ValueError("groups should be a non-negative integer or a list of lists")


def reduce_tensor(
    tensor: Any,
    settings: Settings,
    name: str | None,
    prescale: float,
    postscale: float,
    *,
    is_gradient: bool = False,
) -> Any:
    """Reduce a tensor, or `tf.IndexedSlices`, over all ranks.

    Slices are concatenated, not added. With ``is_gradient``, the result has no gradient function.

    Raises:
        NotImplementedError: slices are neither added nor averaged, or are scaled.
    """
    op = settings.op
    if isinstance(tensor, tf.IndexedSlices):
        if op not in (Sum, Average):
            raise NotImplementedError(f"{op} of tf.IndexedSlices: pass sparse_as_dense=True")
        if prescale != 1.0 or postscale != 1.0:
            raise NotImplementedError("a scale factor is not supported with tf.IndexedSlices")
        size = process().initialized_rank().size
        with tf.device(settings.device_sparse or None):
            values = allgather_tensor(tensor.values, None)
            indices = allgather_tensor(tensor.indices, None)
            if op == Average:
                values = values / tf.cast(size, values.dtype)
        return tf.IndexedSlices(values, indices, tensor.dense_shape)
    reduce = allreduce_without_gradient if is_gradient else allreduce_tensor
    with tf.device(settings.device_dense or None):
        sent, context = settings.compression.compress(tensor)
        received = reduce(sent, op, name, prescale, postscale)
        return settings.compression.decompress(received, context)


def reduce_gradients(
    gradients: Sequence[Any], variables: Sequence[Any], settings: Settings, scope: str
) -> list[Any]:
    """Reduce the gradients of variables over all ranks. A gradient may be None.

    The names of the reductions begin with ``scope``, followed by ``_Allreduce``.
    """
    predivide = settings.gradient_predivide_factor
    prescale, postscale = (1.0 / predivide, predivide) if settings.op == Average else (1.0, 1.0)
    if settings.sparse_as_dense:
        gradients = [
            tf.convert_to_tensor(each) if isinstance(each, tf.IndexedSlices) else each
            for each in gradients
        ]
    if process().initialized_rank().size == 1:
        return list(gradients)
    reduced: list[Any] = []
    with tf.name_scope(f"{scope}_Allreduce"):
        names = _group_names(gradients, variables, settings.groups)
        for gradient, name in zip(gradients, names, strict=True):
            if gradient is not None:
                # Horovod reduces gradients in a branch. Names contain the scope of the branch.
                with tf.name_scope("cond"):
                    gradient = reduce_tensor(
                        gradient, settings, name, prescale, postscale, is_gradient=True
                    )
            reduced.append(gradient)
    return reduced


def _group_names(
    gradients: Sequence[Any], variables: Sequence[Any], groups: Any
) -> Sequence[str | None]:
    """The name of the reduction of each gradient; None for the default.

    The gradients of a group are reduced together. The names contain the first and the last name of
    the group.
    """
    names: list[str | None] = [None] * len(gradients)
    if groups is None or tf.executing_eagerly():
        return names
    dense = [
        position
        for position, each in enumerate(gradients)
        if each is not None and not isinstance(each, tf.IndexedSlices)
    ]
    parts: list[list[int]]
    if isinstance(groups, list):
        of = {id(variable): position for position, variable in enumerate(variables)}
        parts = [[of[id(each)] for each in group if id(each) in of] for group in groups]
        parts = [[position for position in part if position in dense] for part in parts]
    else:
        size, more = divmod(len(dense), min(groups, len(dense) or 1))
        ends = [size * i + min(i, more) for i in range(min(groups, len(dense) or 1) + 1)]
        parts = [dense[begin:end] for begin, end in pairwise(ends)]
    for part in filter(None, parts):
        group = group_name([gradients[position] for position in part])
        for number, position in enumerate(part):
            names[position] = f"{group}_{number}"
    return names


def scale_local(gradient: Any, settings: Settings) -> Any:
    """Divide the gradient of a local variable by the number of ranks."""
    if gradient is None or not settings.scale_local_gradients:
        return gradient
    size = float(process().initialized_rank().size)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
    return gradient / size


class LocalVariables:
    """Local variables: their gradients are not reduced over ranks."""

    def __init__(self) -> None:
        self._by_id: dict[int, Any] = {}

    def add(self, variable: Any) -> None:
        self._by_id[id(variable)] = variable

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], settings: Settings, scope: str
    ) -> list[Any]:
        """Reduce the gradients of all variables that are not local."""
        shared = [i for i, variable in enumerate(variables) if id(variable) not in self._by_id]
        reduced = reduce_gradients(
            [gradients[i] for i in shared], [variables[i] for i in shared], settings, scope
        )
        by_position = dict(zip(shared, reduced, strict=True))
        return [
            by_position[i] if i in by_position else scale_local(gradient, settings)
            for i, gradient in enumerate(gradients)
        ]

    def reduce_pairs(
        self, pairs: Sequence[tuple[Any, Any]], settings: Settings, scope: str
    ) -> list[tuple[Any, Any]]:
        """Reduce gradients, each with its variable."""
        variables = [variable for _, variable in pairs]
        reduced = self.reduce([gradient for gradient, _ in pairs], variables, settings, scope)
        return list(zip(reduced, variables, strict=True))


class DistributedOptimizer1(_Optimizer):  # type: ignore[misc]
    """An optimizer of TensorFlow 1 that reduces gradients in ``compute_gradients``."""

    def __init__(self, optimizer: Any, name: str | None, use_locking: bool, settings: Settings):
        name = name or f"Distributed{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._settings = settings
        self._scope = name
        self._local = LocalVariables()

    def register_local_var(self, var: Any) -> None:
        """Make a variable local: do not reduce its gradient."""
        self._local.add(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Compute gradients with the optimizer, and reduce them."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        return self._local.reduce_pairs(pairs, self._settings, self._scope)

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method of the optimizer."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method of the optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method of the optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method of the optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def distributed_keras_optimizer(optimizer: Any, name: str | None, settings: Settings) -> Any:
    """Return a Keras 2 optimizer that reduces the gradients that it computes itself.

    ``fit`` calls ``minimize``, which computes and reduces gradients. As in Horovod, a training
    loop that calls ``apply_gradients`` with other gradients must reduce these gradients.

    Raises:
        InputError: the optimizer is an optimizer of Keras 3.
    """
    base = type(optimizer)
    scope = name or f"Distributed{base.__name__}"
    method = next(
        (each for each in ("_compute_gradients", "compute_gradients") if hasattr(base, each)), None
    )
    if method is None:
        raise InputError(
            "horovod",
            "hvd.DistributedOptimizer does not support optimizers of Keras 3: Horovod 0.28 would "
            "not average their gradients",
            "use hvd.DistributedGradientTape in your own training loop, or install Keras 2: it "
            "comes with TensorFlow 2.15",
        )
    local = LocalVariables()

    def compute(self: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        pairs = getattr(super(distributed, self), method)(*args, **kwargs)
        return local.reduce_pairs(pairs, settings, scope)

    def get_gradients(self: Any, loss: Any, params: Any) -> list[Any]:
        gradients = super(distributed, self).get_gradients(loss, params)
        return local.reduce(gradients, params, settings, scope)

    def register_local_var(_self: Any, var: Any) -> None:
        local.add(var)

    methods = {method: compute, "register_local_var": register_local_var}
    if hasattr(base, "get_gradients"):
        methods["get_gradients"] = get_gradients
    if method == "_compute_gradients":
        # Programs of TensorFlow 1 call it by the name without an underscore.
        methods["compute_gradients"] = compute
    distributed: Any = type(base.__name__, (base,), methods)
    return distributed.from_config(optimizer.get_config())


def distributed_tape(tape: Any, settings: Settings) -> Any:
    """Return a tape like ``tape`` that reduces gradients in its method ``gradient``."""
    base = type(tape)
    local = LocalVariables()

    class DistributedTape(base):  # type: ignore[misc, valid-type]
        def register_local_source(self, source: Any) -> None:
            local.add(source)

        def gradient(
            self,
            target: Any,
            sources: Any,
            output_gradients: Any = None,
            use_generic_names: bool = False,
        ) -> Any:
            if use_generic_names:
                raise unsupported_error("the argument use_generic_names of a tape")
            gradients = super().gradient(target, sources, output_gradients)
            flat = tf.nest.flatten(sources)
            reduced = local.reduce(
                tf.nest.flatten(gradients), flat, settings, "DistributedGradientTape"
            )
            return tf.nest.pack_sequence_as(sources, reduced)

    DistributedTape.__name__ = base.__name__
    distributed = DistributedTape.__new__(DistributedTape)
    distributed.__dict__.update(tape.__dict__)
    return distributed
