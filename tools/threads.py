"""Public threads on the mistakes that rules detect.

The page of a rule lists them. Each was read before it was added, and has a short summary in our
own words.
"""

from __future__ import annotations

from collections.abc import Mapping

THREADS: Mapping[str, Mapping[str, str]] = {
    "placeable": {
        "tensorflow/tensorflow#2292": "the MNIST tutorial pinned to a GPU is refused",
        "tensorflow/tensorflow#22476": "a scalar summary under a GPU has no kernel there",
        "tensorflow/models#5522": "a slot is refused since one op of its group has no GPU kernel",
    },
    "no-fallback": {
        "tensorflow/tensorflow#29342": "the effect of soft placement, and that it is invisible",
        "tensorflow/tensorflow#636": "soft placement is on, but an op fails",
    },
    "variables-on-host": {
        "tflearn/tflearn#459": "variables sit on GPU 0 despite a CPU scope",
        "tensorflow/tensorflow#5390": "the same with one of two versions of slim",
        "tensorflow/tensorflow#9517": "layers have no argument for the device of variables",
    },
    "created-in-scope": {
        "huggingface/transformers#8448": "slots under another scope than their variables",
        "dmonterom/face_recognition_TF2#4": "a layer's weights created outside of the scope",
    },
    "variables-shared": {
        "tensorflow/models#2206": "do the towers of Inception have separate weights?",
        "brain-research/self-attention-gan#13": "a switch for sharing that nothing reads",
        "kuza55/keras-extras#13": "are the weights of the copies shared?",
    },
    "slots-with-variables": {
        "openai/universe-starter-agent#67": "Adam's slots looked for in a placement log with grep",
    },
    "no-idle-device": {
        "tensorflow/tensor2tensor#17": "all GPUs except the first are at 0 %, with full memory",
        "tensorflow/tensorflow#42764": "ops for GPU 1 run on GPU 0",
    },
    "inputs-distinct": {
        "edvardHua/PoseEstimationForMobile#55": "do all towers see the same examples?",
        "tensorflow/models#1538": "a queue on each GPU: 1,700 images/s instead of 8,000",
    },
    "losses-apart": {
        "tensorflow/models#342": "losses collected without a scope, from all towers",
        "keras-team/keras#7178": "the more GPUs, the higher the loss: a penalty for each copy",
    },
    "gradients-colocated": {
        "tensorflow/tensorflow#16328": "gradients are computed on GPU 0 by default",
        "keras-team/keras#3620": "all gradient matrices on GPU 0, and how Keras changed that",
    },
    "averaging-on-host": {
        "tensorflow/models#2152": "a review about the device of averages",
    },
    "replicas-in-sync": {
        "tensorflow/tensorflow#23792": "assigning under MirroredStrategy needs an aggregation",
    },
    "aggregated-before-clipped": {
        "tensorflow/tensorflow#33929": "why clipping was disabled under strategies",
        "LeelaChessZero/lczero-training#162": "each GPU clipped to its own norm, and the fix",
        "horovod/horovod#1346": "clipping before or after the sum, by framework",
    },
    "one-update": {
        "JayYip/m3tl#12": "a step counter that grows by two",
        "auroua/InsightFace_TF#45": "the same: an increment in addition to apply_gradients",
    },
    "loss-of-all-towers": {
        "tensorflow/tensorflow#2994": "the CIFAR-10 tutorial prints the last tower's loss",
    },
    "files-apart": {
        "horovod/horovod#58": "all workers save in the directory of MonitoredTrainingSession",
        "apcode/tensorflow_fasttext#3": "processes race to write checkpoints to the same file",
    },
    "trainables-trained": {
        "tensorflow/tensorflow#13403": "a None gradient of a variable that no loss reads",
        "tensorpack/tensorpack#373": "a warning: no gradient with respect to an embedding",
    },
    "names-portable": {
        "Kyubyong/tacotron#80": "trained on 8 GPUs, not found by the program for one GPU",
        "tensorpack/tensorpack#325": "a checkpoint of several GPUs, loaded for prediction",
    },
    "update-ops-run": {
        "argman/EAST#112": "only the updates of the last GPU's batch norm",
        "tensorflow/tensorflow#7439": "the choice of the towers with updates",
        "horovod/horovod#49": "the usual practice: the updates of one tower",
    },
    "transfer-budget": {
        "tensorflow/tensorflow#1397": "two GPUs take 28 s, one GPU takes 19 s",
        "tensorflow/tensorflow#4881": "a step is slower because ops moved to the CPU",
        "tensorflow/models#2018": "slim is slower on several GPUs than on one",
    },
    "shards-balanced": {
        "tensorflow/tensorflow#24953": "one of four servers has nearly all of the traffic",
        "tensorflow/tensorflow#45291": "even numbers of variables, uneven traffic",
    },
    "session-memory": {
        "hunkim/DeepLearningZeroToAll#116": "an example takes all GPUs of a shared server",
        "tensorflow/tensorflow#8170": "a program that fails because another has the memory",
    },
    "gradients-equal": {
        "tensorflow/benchmarks#466": "one variable update sums gradients, another averages them",
        "tensorflow/tensorflow#35333": "too small gradients under a strategy",
        "keras-team/keras#16285": "on x GPUs the loss is 1/x",
    },
    "weights-equal": {
        "tensorflow/tensorflow#14486": "fine-tuning on towers is much worse, with unknown cause",
    },
}
