"""What TensorFlow's op types do: which hold variables, pass values on, draw random numbers …

The only place where op types are named. A set has what TensorFlow 2.15 and 2.21 register; a
pattern stands only for a family to which releases, or libraries of users, add.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

# --- Variables ---

# A resource variable is a handle; a ref variable is its value, by reference.
VARIABLE_HANDLE = "VarHandleOp"
RESOURCE_VARIABLES = frozenset({VARIABLE_HANDLE})
# Grappler, TensorFlow's graph optimizer, knows AutoReloadVariable; the registry does not.
REF_VARIABLES = frozenset({"VariableV2", "Variable", "AutoReloadVariable"})
VARIABLES = RESOURCE_VARIABLES | REF_VARIABLES
# They read a resource variable: all of it, or rows of it.
VARIABLE_READS = frozenset({"ReadVariableOp"})
VARIABLE_LOOKUPS = frozenset({"ResourceGather", "ResourceGatherNd"})
# Whether a resource or ref variable has a value.
INITIALISATION_TESTS = frozenset({"VarIsInitializedOp", "IsVariableInitialized"})

# --- Updates of variables ---

# They add to a variable.
ADDITIONS = frozenset({"AssignAdd", "AssignAddVariableOp"})
# They change the whole variable.
ASSIGNS = ADDITIONS | {
    *("Assign", "AssignVariableOp", "AssignSub", "AssignSubVariableOp"),
    "AssignVariableXlaConcatND",
}
# They set what they change to a value, whatever it was before.
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
    """Whether it is an optimiser's update, such as ApplyAdam; libraries add to them."""
    return _GRADIENT_UPDATE.fullmatch(kind) is not None


def is_update(kind: str) -> bool:
    """Whether an op of this type changes the variable that is its first input."""
    return kind in UPDATES or is_gradient_update(kind)


# It passes several values on, each as its own output.
IDENTITY_N = "IdentityN"
# They take a variable, beside its updates, and compute nothing with its value; the last three
# add a gradient to an accumulator. What takes an output of an IdentityN reads by itself.
NOT_A_READ = INITIALISATION_TESTS | {
    IDENTITY_N,
    *("Save", "SaveSlices", "SaveV2", "VariableShape"),
    *("DestroyResourceOp", "DestroyTemporaryVariable", "AccumulatorApplyGradient"),
    *("SparseAccumulatorApplyGradient", "ResourceAccumulatorApplyGradient"),
}

# They yield what was saved in a checkpoint.
RESTORES = frozenset({"Restore", "RestoreSlice", "RestoreV2"})

# --- Other state that is kept from one run to the next, behind a handle ---

# Not ops that only look one up, such as IteratorFromStringHandle.
ITERATORS = frozenset(
    [
        *("Iterator", "IteratorV2", "OneShotIterator"),
        *("AnonymousIterator", "AnonymousIteratorV2", "AnonymousIteratorV3"),
        *("MultiDeviceIterator", "AnonymousMultiDeviceIterator", "AnonymousMultiDeviceIteratorV3"),
    ]
)
# They give a dataset to an iterator; the dataset is the first input.
ITERATOR_INITIALISERS = frozenset({"MakeIterator", "MultiDeviceIteratorInit"})
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
# They collect gradients until there are enough.
ACCUMULATORS = frozenset(
    {"ConditionalAccumulator", "SparseConditionalAccumulator", "ResourceConditionalAccumulator"}
)
# They read records from files.
READERS = frozenset(
    [
        *("TFRecordReader", "TFRecordReaderV2", "TextLineReader", "TextLineReaderV2"),
        *("FixedLengthRecordReader", "FixedLengthRecordReaderV2", "LMDBReader"),
        *("WholeFileReader", "WholeFileReaderV2", "IdentityReader", "IdentityReaderV2"),
    ]
)
# Not Stage: what it stores is found by name, without a handle.
_OTHER_HOLDERS = {"Barrier", "Stack", "StackV2", "TensorArray", "TensorArrayV2", "TensorArrayV3"}
STATE_HOLDERS = VARIABLES | ITERATORS | QUEUES | TABLES | ACCUMULATORS | READERS | _OTHER_HOLDERS


def holds_state(kind: str) -> bool:
    """Whether an op holds state; TensorFlow's macro gives handles of libraries this suffix."""
    return kind in STATE_HOLDERS or kind.endswith("HandleOp")


# --- Input: where examples come from ---

# Those without a default must be fed.
PLACEHOLDER = "Placeholder"
PLACEHOLDERS_TO_FEED = frozenset({PLACEHOLDER, "PlaceholderV2"})
PLACEHOLDERS = PLACEHOLDERS_TO_FEED | {"PlaceholderWithDefault"}
# Each run yields the next examples of a pipeline.
PIPELINE_OUTPUTS = frozenset(
    [
        *("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional"),
        "MultiDeviceIteratorGetNextFromShard",
        *("QueueDequeue", "QueueDequeueV2", "QueueDequeueMany", "QueueDequeueManyV2"),
        *("QueueDequeueUpTo", "QueueDequeueUpToV2", "BarrierTakeMany"),
        *("ReaderRead", "ReaderReadV2", "ReaderReadUpTo", "ReaderReadUpToV2"),
        *(
            "Unstage",
            "MapUnstage",
            "MapUnstageNoKey",
            "OrderedMapUnstage",
            "OrderedMapUnstageNoKey",
        ),
        *("InfeedDequeue", "InfeedDequeueTuple"),
    ]
)
# The next element of an iterator, if it has one; the others ask that, and open it.
OPTIONAL_ELEMENT = "IteratorGetNextAsOptional"
HAS_VALUE, OPTIONAL_VALUE = "OptionalHasValue", "OptionalGetValue"
EXAMPLE_SOURCES = PLACEHOLDERS | PIPELINE_OUTPUTS | {OPTIONAL_VALUE}
# They yield accumulated gradients: not examples, but computed from them.
GRADIENT_OUTPUTS = frozenset(
    {"AccumulatorTakeGradient", "SparseAccumulatorTakeGradient", "ResourceAccumulatorTakeGradient"}
)
# Of images, audio and records; not DecodeRaw and DecodePaddedRaw, whose input is numbers.
DECODERS = frozenset(
    [
        *("DecodeJpeg", "DecodeAndCropJpeg", "DecodePng", "DecodeGif", "DecodeBmp", "DecodeImage"),
        *("DecodeJxl", "DecodeWebP", "DecodeWav", "DecodeBase64"),
        *("DecodeCSV", "DecodeCompressed", "DecodeJSONExample", "DecodeProtoV2"),
    ]
)
# They read input, as datasets do (`is_dataset`).
PIPELINE_OPS = ITERATORS | QUEUES | READERS | DECODERS | {"ReadFile"}
# A dataset that a function generates, which may call a pipeline on another device.
GENERATOR_DATASET = "GeneratorDataset"
ONE_SHOT_ITERATOR = "OneShotIterator"
SHARD_DATASET = "ShardDataset"
# What MultiDeviceIterator and prefetch_to_device build on a device, to prefetch batches.
PREFETCHERS = ITERATORS | {
    *(GENERATOR_DATASET, "PrefetchDataset", "OptionsDataset", "ModelDataset"),
    "MaxIntraOpParallelismDataset",
}
_DATASET = re.compile(r"(?!InitializeTable).*Dataset(V\d)?")


def is_dataset(kind: str) -> bool:
    """Whether an op of this type makes or transforms a dataset; releases add to them."""
    return _DATASET.fullmatch(kind) is not None


# --- What passes its first input on unchanged ---

IDENTITY = "Identity"
IDENTITIES = frozenset({IDENTITY, IDENTITY_N})
# Control flow v1: into a loop, and to one of two outputs.
ENTERS = frozenset({"Enter", "RefEnter"})
SWITCHES = frozenset({"Switch", "RefSwitch"})
# A handle or reference. Not Merge and Exit, whose value a loop may have changed, nor
# NextIteration, which leads back into its own loop.
PASSES_HANDLE = ENTERS | SWITCHES | {"Identity", "RefIdentity", "RefMerge"}
# Values too. Not IdentityN, which has several.
PASSES_VALUE = PASSES_HANDLE | {"StopGradient", "PreventGradient"}
# It changes only the dtype; it is in none of the sets above.
CAST = "Cast"
# They hand a variable's value to what computes with it.
PASSES_READ = PASSES_VALUE | VARIABLE_READS | {CAST}

# --- What reads only the shape of a value ---

SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})
SHAPE_ONLY = SHAPES | {"ZerosLike", "OnesLike"}

# --- Sums, products and parts of tensors ---

ADDS = frozenset({"Add", "AddV2", "AddN", "AccumulateNV2"})
# They have no kernel: TensorFlow makes others of them before it places a graph.
REWRITTEN = frozenset({"AccumulateNV2"})
# TensorFlow adds up gradients of rows of a variable by joining them (gradients_util.py).
JOINS = frozenset({"Concat", "ConcatV2"})
# The factor may be the first or the second input.
PRODUCTS = frozenset({"Mul", "MulNoNan"})
# By the second input.
DIVISIONS = frozenset({"RealDiv", "Div", "DivNoNan"})
SCALES = PRODUCTS | DIVISIONS
# They bound every value of a tensor.
BOUNDS = frozenset({"Minimum", "Maximum", "ClipByValue"})
# They normalise by the mean and variance of the rows.
BATCH_NORMS = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
SUM, MEAN, PROD, NEGATION, STACK = "Sum", "Mean", "Prod", "Neg", "Pack"
ADD_N, JOIN, CUT, DIVISION = "AddN", "ConcatV2", "SplitV", "RealDiv"
# tf.global_norm adds these up: half the sum of squares.
SUM_OF_SQUARES = "L2Loss"
# They take a part of a tensor: the index of that input; the other inputs say which part.
CUTS: Mapping[str, int] = {"StridedSlice": 0, "Slice": 0, "SplitV": 0, "Split": 1, "Unpack": 0}
# Which of their inputs says where a part ends, or how large it is.
ENDS_OF_CUTS: Mapping[str, int] = {"StridedSlice": 2, "Slice": 2, "SplitV": 1}
# They take parts too, but the model may compute which, as the gate of a mixture of experts.
PARTITIONS = frozenset({"DynamicPartition"})
# They look rows up, any number of times each: not parts, where the table holds weights.
GATHERS = frozenset({"Gather", "GatherV2"})
# They put rows in another order.
REORDERS = frozenset({"Roll", "Reverse", "ReverseV2", "ReverseSequence", "RandomShuffle"})
# They change only the shape.
RESHAPES = frozenset({"ExpandDims", "Squeeze", "Reshape", "Transpose"})
# They yield what they are given where it is in memory: later changes of a ref variable too.
PASSES_BUFFER = PASSES_VALUE | IDENTITIES | {"Merge", *(RESHAPES - {"Transpose"})}
# The loss of several parts, or their mean, is made with these.
SUMS_UP = ADDS | JOINS | SCALES | RESHAPES | IDENTITIES | {SUM, MEAN, NEGATION, STACK, CAST}
# They add up or scale, the same for every row of a batch, or move rows.
LINEAR = frozenset(
    [
        *(ADDS | JOINS | SCALES | CUTS.keys() | PARTITIONS | GATHERS | RESHAPES | IDENTITIES),
        *(SUM, MEAN, NEGATION, STACK, "UnsortedSegmentSum", "Unique", "ScatterNd"),
        *("Tile", "BroadcastTo", "Pad", CAST),
    ]
)

# --- What computes nothing ---

NO_OP = "NoOp"
CONST = "Const"
EXITS = frozenset({"Exit", "RefExit"})
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
# They hold, read or pass on values, or order other ops.
NO_COMPUTATION = frozenset(
    [
        *(VARIABLES | VARIABLE_READS | INITIALISATION_TESTS | PLACEHOLDERS),
        *(PASSES_VALUE | EXITS | NEXT_ITERATIONS | IDENTITIES),
        *(NO_OP, CONST, "Merge", "LoopCond", "ControlTrigger", "VariableShape"),
        *("Assign", "AssignVariableOp"),
    ]
)
# They hold a graph together: of how many there are, releases and harmless changes decide.
GLUE = frozenset(
    [
        *(IDENTITIES | SHAPE_ONLY | RESHAPES | JOINS | VARIABLE_READS | INITIALISATION_TESTS),
        *(CONST, NO_OP, CAST, STACK, SUM, "StopGradient", "PreventGradient", "GuaranteeConst"),
        *(
            "StridedSlice",
            "Slice",
            "Fill",
            "Tile",
            "Range",
            "BroadcastTo",
            "BroadcastGradientArgs",
        ),
        *("ConcatOffset", "DynamicStitch", "InvertPermutation", "FloorDiv", "Maximum", "Prod"),
    ]
)
# TensorFlow adds them to the graphs that it runs on each device.
SENDS = frozenset({"Send", "_Send", "_HostSend"})
RECEIVES = frozenset({"Recv", "_Recv", "_HostRecv"})

# --- Calls, groups and collectives ---

LOOPS = frozenset({"While", "StatelessWhile"})
TWO_WAY_BRANCHES = frozenset({"If", "StatelessIf"})
BRANCHES = TWO_WAY_BRANCHES | {"Case", "StatelessCase"}
FUNCTION_CALL = "StatefulPartitionedCall"
FUNCTION_CALLS = frozenset({"PartitionedCall", FUNCTION_CALL})
CALLS = LOOPS | BRANCHES | FUNCTION_CALLS
# They may contain a step. Not loops: one iteration is a step, not the loop.
GROUPS = IDENTITIES | {NO_OP, "If", "Case", "StatefulPartitionedCall"}
# Each yields a combination of the inputs of all ops of its group. Not NcclReduce, which has all
# inputs itself, nor broadcasts, where one op gives the value.
COLLECTIVES = frozenset(
    [
        *("NcclAllReduce", "CollectiveReduce", "CollectiveReduceV2", "CollectiveReduceV3"),
        *("CollectiveReduceScatterV2", "CollectiveGather", "CollectiveGatherV2"),
        *("CollectiveAllToAllV2", "CollectiveAllToAllV3"),
    ]
)
# Of these, two that reduce, and one that joins rows; the last two are given the number of devices,
# the group and the instance as inputs. Their first versions have them as attributes.
NCCL_REDUCE, COLLECTIVE_REDUCE = "NcclAllReduce", "CollectiveReduceV2"
COLLECTIVE_GATHER = "CollectiveGatherV2"
COLLECTIVE_REDUCE_V1, COLLECTIVE_GATHER_V1 = "CollectiveReduce", "CollectiveGather"
# They bring values of several devices together, or spread one, on none of them alone.
AMONG_DEVICES = COLLECTIVES | {
    *("NcclReduce", "_NcclReduceRecv", "_NcclReduceSend"),
    *("NcclBroadcast", "_NcclBroadcastRecv", "_NcclBroadcastSend"),
    *("CollectiveBcastSend", "CollectiveBcastRecv"),
    *("CollectiveBcastSendV2", "CollectiveBcastRecvV2"),
}

# --- Random numbers ---

# With a seed in two attributes, and a state of their own that advances.
RANDOM_SEEDED = frozenset(
    [
        *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
        *("ParameterizedTruncatedNormal", "Multinomial", "RandomGamma"),
        *("RandomPoisson", "RandomPoissonV2", "RandomShuffle", "RandomCrop"),
        *("SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2"),
    ]
)
# Seeded too; a set of their own, as towers may share the sampled classes on purpose.
CANDIDATE_SAMPLERS = frozenset(
    [
        *("AllCandidateSampler", "UniformCandidateSampler", "LogUniformCandidateSampler"),
        *("FixedUnigramCandidateSampler", "LearnedUnigramCandidateSampler"),
        "ThreadUnsafeUnigramCandidateSampler",
    ]
)
# With the state of a generator, which is a variable. Not RngReadAndSkip, which only yields it.
RANDOM_WITH_GENERATOR = frozenset(
    [
        *("StatefulUniform", "StatefulUniformInt", "StatefulUniformFullInt"),
        *("StatefulStandardNormal", "StatefulStandardNormalV2", "StatefulTruncatedNormal"),
        "StatefulRandomBinomial",
    ]
)
# They draw new numbers in every run.
RANDOM_STATEFUL = RANDOM_SEEDED | CANDIDATE_SAMPLERS | RANDOM_WITH_GENERATOR
# Their numbers follow from a seed, or a key made from one: the index of that input.
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

# --- Summaries ---

# They write themselves; the others yield what the program writes.
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
# Always of one number; for WriteSummary only its metadata says of what.
SCALAR_SUMMARIES = frozenset({"ScalarSummary", "WriteScalarSummary"})
MERGE_SUMMARY = "MergeSummary"
# What they write, print, test or save is for people, or for the next run: no GPU has a part in it.
# Not Print, which passes on a value of the model.
FOR_PEOPLE = SUMMARIES | {MERGE_SUMMARY, "Assert", "PrintV2"}
SAVERS = RESTORES | {
    *("Save", "SaveSlices", "SaveV2"),
    *("ShardedFilename", "ShardedFilespec", "MergeV2Checkpoints"),
}
