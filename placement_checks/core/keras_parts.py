"""Parts of Keras that create ops without a line of the user, as rules and reports name them."""

from __future__ import annotations

FIT = "fit"
TRAIN_ON_BATCH = "train_on_batch"
STEPPING = "a step of fit or train_on_batch"
NORMALIZATION = "BatchNormalization"
CLIPPING = "clipping of an optimizer"
