"""Training steps that are traced functions (`tf.function`), as ordinary graphs."""
