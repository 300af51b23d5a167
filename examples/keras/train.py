"""A Keras model, trained by `fit` under `MirroredStrategy`.

python train.py --epochs 2
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf

FEATURES, CLASSES = 64, 10
GLOBAL_BATCH = 64  # rows, of which each GPU gets its part


def model():
    """A classifier with a hidden layer, compiled; its variables are where the strategy says."""
    network = tf.keras.Sequential(
        [
            tf.keras.layers.Input([FEATURES]),
            tf.keras.layers.Dense(32, activation="relu", name="hidden"),
            tf.keras.layers.Dense(CLASSES, name="logits"),
        ]
    )
    network.compile(
        optimizer=tf.keras.optimizers.SGD(0.05, momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network


def data(batches=10):
    """Random rows, each of a class that one of its features tells, in global batches."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=batches * GLOBAL_BATCH)
    x = rng.normal(0, 0.3, size=(len(labels), FEATURES)).astype(np.float32)
    x[np.arange(len(labels)), labels] += 1
    return tf.data.Dataset.from_tensor_slices((x, labels)).batch(GLOBAL_BATCH, drop_remainder=True)


def train(epochs=1):
    """On all GPUs that there are."""
    tf.keras.utils.set_random_seed(1)
    with tf.distribute.MirroredStrategy().scope():
        network = model()
    network.fit(data(), epochs=epochs)


def train_on_one_gpu():
    """Without a strategy: what the replicas are held against."""
    tf.keras.utils.set_random_seed(1)
    model().fit(data())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    train(parser.parse_args().epochs)
