"""Code that more than one rule tells the user to write."""

from __future__ import annotations

AVERAGE = (
    "[(tf.add_n([grad for grad, _ in pairs]) / num_gpus, pairs[0][1]) "
    "for pairs in zip(*tower_grads)]"
)
REUSE = "with tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), reuse=i > 0):"
# Under a strategy, in the function that each replica runs.
ADD_UP = (
    "add up the gradients of all replicas first, as optimizer.apply_gradients does, or "
    "tf.distribute.get_replica_context().all_reduce('SUM', gradients)"
)
