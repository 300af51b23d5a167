"""Parts of Keras that rules know by name, as they make ops that no line of the user's asks for."""

from __future__ import annotations

FIT = "fit"
TRAIN_ON_BATCH = "train_on_batch"
STEPPING = "a step of fit or train_on_batch"
NORMALISING = "BatchNormalization"
CLIPPING = "clipping of an optimizer"
