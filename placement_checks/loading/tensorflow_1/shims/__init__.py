"""Parts of ``tf.contrib`` and ``tensorflow.examples`` that stand nowhere else."""
