"""``tf.contrib.compiler.jit``."""

from __future__ import annotations

import tensorflow as tf

experimental_jit_scope = tf.compat.v1.xla.experimental.jit_scope
