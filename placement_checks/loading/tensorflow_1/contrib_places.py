"""Where the parts of ``tf.contrib`` are today.

A place is a module, or what an attribute of one leads to: ``tf.`` stands for `tf.compat.v1`,
``python.`` for ``tensorflow.python``; others are packages of their own.
"""

from __future__ import annotations

# The packages of tf.contrib 1.15. Those without a place can be imported, as many programs import
# what they use only with some option, but nothing is found in them.
_NAMES = """
    all_reduce autograph batching bayesflow bigtable boosted_trees checkpoint cloud
    cluster_resolver coder compiler constrained_optimization copy_graph crf cudnn_rnn data
    decision_trees deprecated distribute distributions eager estimator factorization
    feature_column ffmpeg framework fused_conv gan graph_editor grid_rnn hadoop hooks ignite image
    input_pipeline integrate kafka keras kernel_methods kinesis labeled_tensor layers learn
    legacy_seq2seq libsvm linalg linear_optimizer lookup losses memory_stats metrics
    mixed_precision model_pruning mpi_collectives nccl nn opt optimizer_v2 periodic_resample
    predictor proto quantization quantize rate receptive_field recurrent reduce_slice_ops
    remote_fused_graph resampler rnn rpc saved_model seq2seq session_bundle signal slim solvers
    sparsemax specs staging stat_summarizer stateless summary tensor_forest tensorboard tensorrt
    testing text tfprof timeseries tpu training util
"""
PACKAGES = frozenset(_NAMES.split())

# By package, in the order in which its attributes are looked up.
PLACES = {
    "all_reduce": ("python.distribute.v1.all_reduce",),
    "autograph": ("tf.autograph",),
    "checkpoint": ("tf.train",),
    "cluster_resolver": ("tf.distribute.cluster_resolver",),
    "compiler": ("tf.xla.experimental",),
    "data": ("tf.data.experimental", "tf.data"),
    "distribute": ("tf.distribute", "tf.distribute.experimental"),
    "distributions": ("tf.distributions",),
    "eager": ("tf",),
    "estimator": ("tf.estimator",),
    "feature_column": ("tf.feature_column",),
    "framework": ("tf_slim", "tf_slim.ops.framework_ops", "tf.train", "tf", "tf.debugging"),
    "keras": ("tf.keras",),
    "layers": ("tf_slim.layers", "tf_slim", "tf.feature_column"),
    "linalg": ("tf.linalg",),
    "lookup": ("tf.lookup", "python.ops.lookup_ops"),
    "losses": ("tf_slim.losses", "tf.losses"),
    "metrics": ("tf_slim.metrics", "tf.metrics"),
    "mixed_precision": ("tf.mixed_precision", "tf.train"),
    "nccl": ("python.ops.nccl_ops",),
    "nn": ("tf.nn",),
    "quantization": ("tf.quantization",),
    "rnn": ("tf.nn.rnn_cell", "tf.nn"),
    "saved_model": ("tf.saved_model",),
    "signal": ("tf.signal",),
    "slim": ("tf_slim",),
    "staging": ("python.ops.data_flow_ops",),
    "stateless": ("tf.random",),
    "summary": ("python.ops.summary_ops_v2",),
    "training": ("tf_slim.training", "tf_slim.training.training", "tf_slim.training.evaluation"),
    "util": ("python.framework.tensor_util",),
}

_SHIMS = "placement_checks.loading.tensorflow_1.shims"

# Modules of tf.contrib that have another name today, by package and own name.
RENAMED = {
    "compiler.jit": f"{_SHIMS}.jit",
    "compiler.xla": "tf.xla.experimental",
    "framework.checkpoint_utils": "python.training.checkpoint_utils",
    "data.batching": f"{_SHIMS}.functions",
    "framework.nest": "python.util.nest",
    "graph_editor.select": f"{_SHIMS}.functions",
    "learn.mnist": f"{_SHIMS}.mnist",
    "memory_stats.memory_stats_ops": f"{_SHIMS}.functions",
    "seq2seq.basic_decoder": f"{_SHIMS}.decoders",
    "seq2seq.decoder": f"{_SHIMS}.decoders",
    "seq2seq.helper": f"{_SHIMS}.decoding_helpers",
    "seq2seq.loss": f"{_SHIMS}.functions",
    "training.device_setter": f"{_SHIMS}.load_balancing",
    "training.hparam": f"{_SHIMS}.hparams",
    "metrics.set_ops": "tf.sets",
    "tensorboard.projector": "tensorboard.plugins.projector",
    "tutorials.input_data": f"{_SHIMS}.mnist",
}

# Folders between a package and its modules, beside those that are named as the package.
FOLDERS = frozenset({"datasets", "mnist", "ops", "plugins", "python"})

# The packages of tensorflow.python that modules of tf.contrib have moved to.
MOVED_TO = ("ops", "framework", "training", "util")

# Names that are nowhere else, by package.
SHIMS = {
    "data.batch_and_drop_remainder": f"{_SHIMS}.functions.batch_and_drop_remainder",
    "graph_editor.get_backward_walk_ops": f"{_SHIMS}.functions.get_backward_walk_ops",
    "learn.ModeKeys": f"{_SHIMS}.functions.ModeKeys",
    "memory_stats.BytesInUse": f"{_SHIMS}.functions.no_memory_statistics",
    "memory_stats.BytesLimit": f"{_SHIMS}.functions.no_memory_statistics",
    "memory_stats.MaxBytesInUse": f"{_SHIMS}.functions.no_memory_statistics",
    "seq2seq.BasicDecoder": f"{_SHIMS}.decoders.BasicDecoder",
    "seq2seq.BasicDecoderOutput": f"{_SHIMS}.decoders.BasicDecoderOutput",
    "seq2seq.Decoder": f"{_SHIMS}.decoders.Decoder",
    "seq2seq.GreedyEmbeddingHelper": f"{_SHIMS}.decoding_helpers.GreedyEmbeddingHelper",
    "seq2seq.Helper": f"{_SHIMS}.decoding_helpers.Helper",
    "seq2seq.SampleEmbeddingHelper": f"{_SHIMS}.decoding_helpers.SampleEmbeddingHelper",
    "seq2seq.TrainingHelper": f"{_SHIMS}.decoding_helpers.TrainingHelper",
    "seq2seq.dynamic_decode": f"{_SHIMS}.decoders.dynamic_decode",
    "seq2seq.sequence_loss": f"{_SHIMS}.functions.sequence_loss",
    "seq2seq.tile_batch": f"{_SHIMS}.decoders.tile_batch",
    "training.GreedyLoadBalancingStrategy": f"{_SHIMS}.load_balancing.GreedyLoadBalancingStrategy",
    "training.HParams": f"{_SHIMS}.hparams.HParams",
    "training.byte_size_load_fn": f"{_SHIMS}.load_balancing.byte_size_load_fn",
}
