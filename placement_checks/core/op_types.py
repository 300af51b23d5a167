"""Properties of TensorFlow's op types: which hold variables, pass values on, draw random numbers …

Op types are named in this module only. Sets list the types that TensorFlow 2.15 and 2.21 register.
Patterns are used for families that new releases, or libraries of users, extend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

# --- Variables ---

# A resource variable is a handle to its value; a ref variable is a reference to its value.
VARIABLE_HANDLE = "VarHandleOp"
RESOURCE_VARIABLES = frozenset({VARIABLE_HANDLE})
# AutoReloadVariable is not registered, but Grappler, TensorFlow's graph optimizer, knows it.
REF_VARIABLES = frozenset({"VariableV2", "Variable", "AutoReloadVariable"})
VARIABLES = RESOURCE_VARIABLES | REF_VARIABLES
# Reads of a whole resource variable, and of some of its rows.
VARIABLE_READS = frozenset({"ReadVariableOp"})
VARIABLE_LOOKUPS = frozenset({"ResourceGather", "ResourceGatherNd"})
# Tests whether a resource or ref variable is initialized.
INITIALIZATION_TESTS = frozenset({"VarIsInitializedOp", "IsVariableInitialized"})

# --- Updates of variables ---

# Additions to a variable.
ADDITIONS = frozenset({"AssignAdd", "AssignAddVariableOp"})
# Changes of a whole variable.
ASSIGNS = ADDITIONS | {
    *("Assign", "AssignVariableOp", "AssignSub", "AssignSubVariableOp"),
    "AssignVariableXlaConcatND",
}
# Updates whose new value does not depend on the old value.
OVERWRITES = frozenset(
    [
        *("Assign", "AssignVariableOp", "AssignVariableXlaConcatND", "StridedSliceAssign"),
        *("ScatterUpdate", "ScatterNdUpdate", "ResourceScatterUpdate"),
        *("ResourceScatterNdUpdate", "ResourceStridedSliceAssign"),
    ]
)
_PARTIAL = (
    *("ScatterAdd", "ScatterSub", "ScatterMul", "ScatterDiv", "ScatterMin", "ScatterMax"),
    *("ScatterUpdate", "ScatterNdAdd", "ScatterNdSub", "ScatterNdMin", "ScatterNdMax"),
    *("ScatterNdUpdate", "StridedSliceAssign", "CountUpTo"),
)
# Not ScatterNdNonAliasingAdd and TensorScatterAdd, which yield a new tensor.
UPDATES = ASSIGNS | {*_PARTIAL, *(f"Resource{update}" for update in _PARTIAL)}
_GRADIENT_UPDATE = re.compile(r"(Resource)?(Sparse)?Apply[A-Z]\w*")


@cache
def is_gradient_update(kind: str) -> bool:
    """Whether the type is an optimizer's update, such as ApplyAdam. Libraries add such types."""
    return _GRADIENT_UPDATE.fullmatch(kind) is not None


def is_update(kind: str) -> bool:
    """Whether an op of this type changes the variable that is its first input."""
    return kind in UPDATES or is_gradient_update(kind)


SUBTRACTIONS = frozenset({"AssignSub", "AssignSubVariableOp"})

# Passes several values on, each as an output.
IDENTITY_N = "IdentityN"
# Consumers of a variable that neither update it nor compute with its value. The last three add a
# gradient to an accumulator. After an IdentityN, its consumers count as reads instead.
NOT_A_READ = INITIALIZATION_TESTS | {
    IDENTITY_N,
    *("Save", "SaveSlices", "SaveV2", "VariableShape"),
    *("DestroyResourceOp", "DestroyTemporaryVariable", "AccumulatorApplyGradient"),
    *("SparseAccumulatorApplyGradient", "ResourceAccumulatorApplyGradient"),
}

# Values from a checkpoint.
RESTORES = frozenset({"Restore", "RestoreSlice", "RestoreV2"})

# --- Other state, behind a handle, that persists between runs ---

# Ops that create an iterator. Ops that look one up, such as IteratorFromStringHandle, do not.
ITERATORS = frozenset(
    [
        *("Iterator", "IteratorV2", "OneShotIterator"),
        *("AnonymousIterator", "AnonymousIteratorV2", "AnonymousIteratorV3"),
        *("MultiDeviceIterator", "AnonymousMultiDeviceIterator", "AnonymousMultiDeviceIteratorV3"),
    ]
)
# Ops that assign a dataset, their first input, to an iterator.
ITERATOR_INITIALIZERS = frozenset({"MakeIterator", "MultiDeviceIteratorInit"})
QUEUES = frozenset(
    [
        *("FIFOQueue", "FIFOQueueV2", "PaddingFIFOQueue", "PaddingFIFOQueueV2"),
        *("PriorityQueue", "PriorityQueueV2", "RandomShuffleQueue", "RandomShuffleQueueV2"),
        "FakeQueue",
    ]
)
TABLES = frozenset(
    [
        *("HashTable", "HashTableV2", "MutableHashTable", "MutableHashTableV2"),
        *("MutableHashTableOfTensors", "MutableHashTableOfTensorsV2", "MutableDenseHashTable"),
        *("MutableDenseHashTableV2", "AnonymousHashTable", "AnonymousMutableHashTable"),
        *("AnonymousMutableHashTableOfTensors", "AnonymousMutableDenseHashTable"),
    ]
)
# Accumulators of gradients.
ACCUMULATORS = frozenset(
    {"ConditionalAccumulator", "SparseConditionalAccumulator", "ResourceConditionalAccumulator"}
)
# Readers of records in files.
READERS = frozenset(
    [
        *("TFRecordReader", "TFRecordReaderV2", "TextLineReader", "TextLineReaderV2"),
        *("FixedLengthRecordReader", "FixedLengthRecordReaderV2", "LMDBReader"),
        *("WholeFileReader", "WholeFileReaderV2", "IdentityReader", "IdentityReaderV2"),
    ]
)
# Not Stage, which stores values under a name, without a handle.
_OTHER_HOLDERS = {"Barrier", "Stack", "StackV2", "TensorArray", "TensorArrayV2", "TensorArrayV3"}
STATE_HOLDERS = VARIABLES | ITERATORS | QUEUES | TABLES | ACCUMULATORS | READERS | _OTHER_HOLDERS


def holds_state(kind: str) -> bool:
    """Whether an op holds state. TensorFlow's macro gives handles of libraries this suffix."""
    return kind in STATE_HOLDERS or kind.endswith("HandleOp")


# --- Input: sources of examples ---

# PlaceholderWithDefault need not be fed.
PLACEHOLDER = "Placeholder"
PLACEHOLDERS_TO_FEED = frozenset({PLACEHOLDER, "PlaceholderV2"})
PLACEHOLDERS = PLACEHOLDERS_TO_FEED | {"PlaceholderWithDefault"}
# Ops that put values into a staging area, and ops that take them out. They name the area.
STAGES = frozenset({"Stage", "MapStage", "OrderedMapStage"})
STAGE_OUTPUTS = frozenset(
    [
        *("Unstage", "MapUnstage", "MapUnstageNoKey"),
        *("OrderedMapUnstage", "OrderedMapUnstageNoKey"),
    ]
)
# Each run returns the next examples of a pipeline.
PIPELINE_OUTPUTS = frozenset(
    [
        *("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional"),
        "MultiDeviceIteratorGetNextFromShard",
        *("QueueDequeue", "QueueDequeueV2", "QueueDequeueMany", "QueueDequeueManyV2"),
        *("QueueDequeueUpTo", "QueueDequeueUpToV2", "BarrierTakeMany"),
        *("ReaderRead", "ReaderReadV2", "ReaderReadUpTo", "ReaderReadUpToV2"),
        *STAGE_OUTPUTS,
        *("InfeedDequeue", "InfeedDequeueTuple"),
    ]
)
# The next element of an iterator as an optional, and ops that test and open optionals.
OPTIONAL_ELEMENT = "IteratorGetNextAsOptional"
HAS_VALUE, OPTIONAL_VALUE = "OptionalHasValue", "OptionalGetValue"
OPTIONAL = "OptionalFromValue"  # packs tensors into one optional
EXAMPLE_SOURCES = PLACEHOLDERS | PIPELINE_OUTPUTS | {OPTIONAL_VALUE}
# Accumulated gradients, which are computed from examples.
GRADIENT_OUTPUTS = frozenset(
    {"AccumulatorTakeGradient", "SparseAccumulatorTakeGradient", "ResourceAccumulatorTakeGradient"}
)
# Decoders of images, audio and records. Not DecodeRaw and DecodePaddedRaw, which decode numbers.
DECODERS = frozenset(
    [
        *("DecodeJpeg", "DecodeAndCropJpeg", "DecodePng", "DecodeGif", "DecodeBmp", "DecodeImage"),
        *("DecodeJxl", "DecodeWebP", "DecodeWav", "DecodeBase64"),
        *("DecodeCSV", "DecodeCompressed", "DecodeJSONExample", "DecodeProtoV2"),
    ]
)
# Readers of input, besides datasets (`is_dataset`).
PIPELINE_OPS = ITERATORS | QUEUES | READERS | DECODERS | {"ReadFile"}
# A dataset from a generator function, which may call a pipeline on another device.
GENERATOR_DATASET = "GeneratorDataset"
ONE_SHOT_ITERATOR = "OneShotIterator"
SHARD_DATASET = "ShardDataset"
# Ops that MultiDeviceIterator and prefetch_to_device build on a device to prefetch batches.
PREFETCHERS = ITERATORS | {
    *(GENERATOR_DATASET, "PrefetchDataset", "OptionsDataset", "ModelDataset"),
    "MaxIntraOpParallelismDataset",
}
_DATASET = re.compile(r"(?!InitializeTable).*Dataset(V\d)?")


def is_dataset(kind: str) -> bool:
    """Whether the type creates or transforms a dataset. New releases add such types."""
    return _DATASET.fullmatch(kind) is not None


# --- Ops that pass their first input on unchanged ---

IDENTITY = "Identity"
IDENTITIES = frozenset({IDENTITY, IDENTITY_N})
# Control flow v1: ops that pass a value into a loop, or to one of two outputs.
ENTERS = frozenset({"Enter", "RefEnter"})
SWITCHES = frozenset({"Switch", "RefSwitch"})
# Ops that pass on handles and references. Merge and Exit are not among them, because a loop may
# have changed the value; NextIteration is not, because it leads back into its own loop.
PASSES_HANDLE = ENTERS | SWITCHES | {"Identity", "RefIdentity", "RefMerge"}
# Ops that pass on values too. IdentityN is not among them, because it has several values.
PASSES_VALUE = PASSES_HANDLE | {"StopGradient", "PreventGradient"}
# Cast changes only the dtype, so it is in none of the sets above.
CAST = "Cast"
# Ops that pass the value of a variable to the ops that compute with it.
PASSES_READ = PASSES_VALUE | VARIABLE_READS | {CAST}

# --- Ops that read only the shape of a value ---

# An empty list. While loops of TensorFlow 2 store in it the values that their gradients need.
EMPTY_LIST = "EmptyTensorList"

SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})
SHAPE_ONLY = SHAPES | {"ZerosLike", "OnesLike"}

# Ops that select from the second input where the first input is true, else from the third input.
SELECTS = frozenset({"Select", "SelectV2"})

# --- Sums, products and parts of tensors ---

ADDS = frozenset({"Add", "AddV2", "AddN", "AccumulateNV2"})
# Op types without kernels: TensorFlow replaces these ops before it places a graph.
REWRITTEN = frozenset({"AccumulateNV2"})
# TensorFlow sums gradients of rows of a variable by concatenation (gradients_util.py).
JOINS = frozenset({"Concat", "ConcatV2"})
# The factor may be the first or the second input.
PRODUCTS = frozenset({"Mul", "MulNoNan"})
# Division by the second input.
DIVISIONS = frozenset({"RealDiv", "Div", "DivNoNan"})
SCALES = PRODUCTS | DIVISIONS
# Pass on the value of the branch that runs, in control flow v1.
MERGES = frozenset({"Merge", "RefMerge"})
STOPS_GRADIENT = frozenset({"StopGradient", "PreventGradient"})
# Adds up rows with equal indices, such as the gradients of rows of a variable.
SUM_OF_ROWS = "UnsortedSegmentSum"
MINIMUM, MAXIMUM = "Minimum", "Maximum"
# Ops that limit every element of a tensor.
BOUNDS = frozenset({MINIMUM, MAXIMUM, "ClipByValue"})
# Ops that combine several tensors into one, and not by a sum.
COMBINES_WITHOUT_SUM = frozenset({"Max", MAXIMUM, "Min", MINIMUM, "Mul", "Prod"})
MATRIX_PRODUCT, TRANSPOSE = "MatMul", "Transpose"
CONVOLUTIONS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative"})
# Normalization by mean and variance of the rows.
BATCH_NORMS = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
ROOTS = frozenset({"Sqrt", "Rsqrt", "Pow"})  # of a variance, to get a standard deviation
SUM, MEAN, PROD, NEGATION, STACK = "Sum", "Mean", "Prod", "Neg", "Pack"
ADD_N, JOIN, CUT, DIVISION = "AddN", "ConcatV2", "SplitV", "RealDiv"
# Half the sum of squares, as used by tf.global_norm.
SUM_OF_SQUARES = "L2Loss"
# Slices, with the index of the sliced input. The other inputs select the part.
SLICE, INDEXED_SLICE = "Slice", "StridedSlice"
SPLITS = frozenset({"Split", "SplitV"})
CUTS: Mapping[str, int] = {"StridedSlice": 0, "Slice": 0, "SplitV": 0, "Split": 1, "Unpack": 0}
# The index of the input with the end or the size of the part.
ENDS_OF_CUTS: Mapping[str, int] = {"StridedSlice": 2, "Slice": 2, "SplitV": 1}
# These ops slice too, but the model may compute which rows, as the gate of a mixture of experts
# does.
PARTITIONS = frozenset({"DynamicPartition"})
# Lookups of rows, possibly repeated. They are not slices if the table holds weights.
GATHERS = frozenset({"Gather", "GatherV2"})
# Permutations of rows.
REORDERS = frozenset({"Roll", "Reverse", "ReverseV2", "ReverseSequence", "RandomShuffle"})
# Changes of the shape only.
RESHAPES = frozenset({"ExpandDims", "Squeeze", "Reshape", "Transpose"})
# Ops that take a part of a tensor, or change its form. Of a batch, the part is still rows.
TAKES_PART = CUTS.keys() | PARTITIONS | GATHERS | RESHAPES | IDENTITIES | {CAST}
# Ops whose output shares memory with the input, so that it shows later changes of a ref variable.
PASSES_BUFFER = PASSES_VALUE | IDENTITIES | {"Merge", *(RESHAPES - {"Transpose"})}
# Ops that combine the losses of several parts.
SUMS_UP = ADDS | JOINS | SCALES | RESHAPES | IDENTITIES | {SUM, MEAN, NEGATION, STACK, CAST}
# Sums and scalings that are the same for every row of a batch, and permutations of rows.
LINEAR = frozenset(
    [
        *(ADDS | JOINS | SCALES | CUTS.keys() | PARTITIONS | GATHERS | RESHAPES | IDENTITIES),
        *(SUM, MEAN, NEGATION, STACK, "UnsortedSegmentSum", "Unique", "ScatterNd"),
        *("Tile", "BroadcastTo", "Pad", CAST),
    ]
)

# --- Ops that compute nothing ---

NO_OP = "NoOp"
CONST = "Const"
EXITS = frozenset({"Exit", "RefExit"})
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
# Ops that hold, read or pass on values, or order other ops.
NO_COMPUTATION = frozenset(
    [
        *(VARIABLES | VARIABLE_READS | INITIALIZATION_TESTS | PLACEHOLDERS),
        *(PASSES_VALUE | EXITS | NEXT_ITERATIONS | IDENTITIES),
        *(NO_OP, CONST, "Merge", "LoopCond", "ControlTrigger", "VariableShape"),
        *("Assign", "AssignVariableOp"),
    ]
)
# Auxiliary ops. Their number differs between releases of TensorFlow, and after harmless changes.
GLUE = frozenset(
    [
        *(IDENTITIES | SHAPE_ONLY | RESHAPES | JOINS | VARIABLE_READS | INITIALIZATION_TESTS),
        *(CONST, NO_OP, CAST, STACK, SUM, "StopGradient", "PreventGradient", "GuaranteeConst"),
        *("StridedSlice", "Slice", "Fill", "Tile", "Range", "BroadcastTo"),
        *(
            "BroadcastGradientArgs",
            "ConcatOffset",
            "DynamicStitch",
            "InvertPermutation",
            "FloorDiv",
            "Maximum",
            "Prod",
        ),
    ]
)
# Ops that TensorFlow adds to the graphs that it runs on each device.
SENDS = frozenset({"Send", "_Send", "_HostSend"})
RECEIVES = frozenset({"Recv", "_Recv", "_HostRecv"})

# --- Calls, groups and collectives ---

LOOPS = frozenset({"While", "StatelessWhile"})
TWO_WAY_BRANCHES = frozenset({"If", "StatelessIf"})
BRANCHES = TWO_WAY_BRANCHES | {"Case", "StatelessCase"}
FUNCTION_CALL = "StatefulPartitionedCall"
FUNCTION_CALLS = frozenset({"PartitionedCall", FUNCTION_CALL})
CALLS = LOOPS | BRANCHES | FUNCTION_CALLS
# Ops that may contain a step. Loops are not among them, because one iteration is a step.
GROUPS = IDENTITIES | {NO_OP, "If", "Case", "StatefulPartitionedCall"}
# Ops that combine the inputs of all ops of a group. NcclReduce is not among them, because one op
# has all inputs, nor are broadcasts, which distribute the value of one op.
COLLECTIVES = frozenset(
    [
        *("NcclAllReduce", "CollectiveReduce", "CollectiveReduceV2", "CollectiveReduceV3"),
        *("CollectiveReduceScatterV2", "CollectiveGather", "CollectiveGatherV2"),
        *("CollectiveAllToAllV2", "CollectiveAllToAllV3"),
    ]
)
# Collectives that reduce, and collectives that concatenate rows. The versions V2 have the number
# of devices, the group key and the instance key as inputs, and the first versions as attributes.
REDUCTIONS = frozenset(
    {"NcclAllReduce", "CollectiveReduce", "CollectiveReduceV2", "CollectiveReduceV3"}
)
GATHERERS = frozenset({"CollectiveGather", "CollectiveGatherV2"})
NCCL_REDUCE, COLLECTIVE_REDUCE = "NcclAllReduce", "CollectiveReduceV2"
COLLECTIVE_GATHER = "CollectiveGatherV2"
COLLECTIVE_REDUCE_V1, COLLECTIVE_GATHER_V1 = "CollectiveReduce", "CollectiveGather"
# Ops that combine values of several devices, or distribute a value to them, on no single device.
AMONG_DEVICES = COLLECTIVES | {
    *("NcclReduce", "_NcclReduceRecv", "_NcclReduceSend"),
    *("NcclBroadcast", "_NcclBroadcastRecv", "_NcclBroadcastSend"),
    *("CollectiveBcastSend", "CollectiveBcastRecv"),
    *("CollectiveBcastSendV2", "CollectiveBcastRecvV2"),
}

# --- Random numbers ---

# Random ops with a seed in two attributes, and a state that advances.
RANDOM_SEEDED = frozenset(
    [
        *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
        *("ParameterizedTruncatedNormal", "Multinomial", "RandomGamma"),
        *("RandomPoisson", "RandomPoissonV2", "RandomShuffle", "RandomCrop"),
        *("SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2"),
    ]
)
# These ops have the same seeds, but are a separate set: towers may share the sampled classes on
# purpose.
CANDIDATE_SAMPLERS = frozenset(
    [
        *("AllCandidateSampler", "UniformCandidateSampler", "LogUniformCandidateSampler"),
        *("FixedUnigramCandidateSampler", "LearnedUnigramCandidateSampler"),
        "ThreadUnsafeUnigramCandidateSampler",
    ]
)
# Random ops that use the state of a generator, which is a variable. RngReadAndSkip is not among
# them, because it returns the state.
RANDOM_WITH_GENERATOR = frozenset(
    [
        *("StatefulUniform", "StatefulUniformInt", "StatefulUniformFullInt"),
        *("StatefulStandardNormal", "StatefulStandardNormalV2", "StatefulTruncatedNormal"),
        "StatefulRandomBinomial",
    ]
)
# Random ops that yield new numbers in every run.
RANDOM_STATEFUL = RANDOM_SEEDED | CANDIDATE_SAMPLERS | RANDOM_WITH_GENERATOR
# Random ops that take a seed, or a key made from a seed, as an input, with the index of this
# input.
RANDOM_STATELESS: Mapping[str, int] = {
    **dict.fromkeys(
        [
            *("StatelessRandomUniform", "StatelessRandomUniformV2"),
            *("StatelessRandomUniformInt", "StatelessRandomUniformIntV2"),
            *("StatelessRandomUniformFullInt", "StatelessRandomUniformFullIntV2"),
            *("StatelessRandomNormal", "StatelessRandomNormalV2"),
            *("StatelessTruncatedNormal", "StatelessTruncatedNormalV2"),
            "StatelessParameterizedTruncatedNormal",
            *("StatelessRandomGammaV2", "StatelessRandomGammaV3"),
            *("StatelessRandomPoisson", "StatelessRandomBinomial", "StatelessShuffle"),
        ],
        1,
    ),
    "StatelessMultinomial": 2,
    "StatelessSampleDistortedBoundingBox": 3,
}
RANDOM = RANDOM_STATEFUL | RANDOM_STATELESS.keys()
# Makes the key and the counter of a random op from a seed.
SEED_OF_KEY = "StatelessRandomGetKeyCounter"

# --- Summaries ---

# Ops that write the summary themselves. The other summary ops return a summary that the program
# writes.
SUMMARY_WRITES = frozenset(
    [
        *("WriteScalarSummary", "WriteHistogramSummary", "WriteImageSummary"),
        *("WriteAudioSummary", "WriteSummary"),
    ]
)
SUMMARIES = SUMMARY_WRITES | {
    *("ScalarSummary", "HistogramSummary", "ImageSummary", "AudioSummary", "AudioSummaryV2"),
    *("TensorSummary", "TensorSummaryV2"),
}
# Summaries of one number. The kind of a WriteSummary is in its metadata only.
SCALAR_SUMMARIES = frozenset({"ScalarSummary", "WriteScalarSummary"})
MERGE_SUMMARY = "MergeSummary"
# Ops that write, print, test or save values for people or for the next run, and need no GPU. Print
# is not among them, because it passes on a value of the model.
FOR_PEOPLE = SUMMARIES | {MERGE_SUMMARY, "Assert", "PrintV2"}
SAVERS = RESTORES | {
    *("Save", "SaveSlices", "SaveV2"),
    *("ShardedFilename", "ShardedFilespec", "MergeV2Checkpoints"),
}
