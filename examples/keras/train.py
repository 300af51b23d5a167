"""A Keras model, trained by `fit` under `MirroredStrategy`.

python train.py --epochs 2
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf

FEATURES, CLASSES = 64, 10
GLOBAL_BATCH = 64  # rows; each GPU gets a part


def model():
    """A compiled classifier with a hidden layer.

    The strategy decides the devices of its variables.
    """
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
    """Random rows in global batches. One of the features of a row determines its class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=batches * GLOBAL_BATCH)
    x = rng.normal(0, 0.3, size=(len(labels), FEATURES)).astype(np.float32)
    x[np.arange(len(labels)), labels] += 1
    return tf.data.Dataset.from_tensor_slices((x, labels)).batch(GLOBAL_BATCH, drop_remainder=True)


def train(epochs=1):
    """Train on all GPUs."""
    tf.keras.utils.set_random_seed(1)
    with tf.distribute.MirroredStrategy().scope():
        network = model()
    network.fit(data(), epochs=epochs)


def train_on_one_gpu():
    """Train without a strategy: the reference for the replicas."""
    tf.keras.utils.set_random_seed(1)
    model().fit(data())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    train(parser.parse_args().epochs)
