"""What TensorFlow's types of ops are: which hold variables, pass values on, draw numbers …

The one place where they are named. A set has what TensorFlow 2.15 and 2.21 register; a pattern
stands only for a family to which releases, or libraries of users, add.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

# --- Variables ---

# A resource variable is a handle; a ref variable is its value, by reference.
RESOURCE_VARIABLES = frozenset({"VarHandleOp"})
# TensorFlow's own optimizer knows AutoReloadVariable, which its registry has not.
REF_VARIABLES = frozenset({"VariableV2", "Variable", "AutoReloadVariable"})
VARIABLES = RESOURCE_VARIABLES | REF_VARIABLES
# The value of a resource variable, all of it.
VARIABLE_READS = frozenset({"ReadVariableOp"})
# Rows of a resource variable.
VARIABLE_LOOKUPS = frozenset({"ResourceGather", "ResourceGatherNd"})
# Whether a variable has a value: of resource and of ref variables.
INITIALISATION_TESTS = frozenset({"VarIsInitializedOp", "IsVariableInitialized"})

# --- What else holds state from one run of an op to the next, behind a handle ---

# Not those that only find one that is there, such as IteratorFromStringHandle.
ITERATORS = frozenset(
    [
        *("Iterator", "IteratorV2", "OneShotIterator"),
        *("AnonymousIterator", "AnonymousIteratorV2", "AnonymousIteratorV3"),
        *("MultiDeviceIterator", "AnonymousMultiDeviceIterator", "AnonymousMultiDeviceIteratorV3"),
    ]
)
# They hand a dataset to an iterator, in this order.
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
        *("HashTable", "HashTableV2", "AnonymousHashTable"),
        *("MutableHashTable", "MutableHashTableV2", "AnonymousMutableHashTable"),
        *("MutableHashTableOfTensors", "MutableHashTableOfTensorsV2"),
        *("AnonymousMutableHashTableOfTensors", "AnonymousMutableDenseHashTable"),
        *("MutableDenseHashTable", "MutableDenseHashTableV2"),
    ]
)
# Of gradients, until there are enough of them.
ACCUMULATORS = frozenset(
    {"ConditionalAccumulator", "SparseConditionalAccumulator", "ResourceConditionalAccumulator"}
)
# Of files.
READERS = frozenset(
    [
        *("TFRecordReader", "TFRecordReaderV2", "TextLineReader", "TextLineReaderV2"),
        *("FixedLengthRecordReader", "FixedLengthRecordReaderV2", "LMDBReader"),
        *("WholeFileReader", "WholeFileReaderV2", "IdentityReader", "IdentityReaderV2"),
    ]
)
# Not Stage: what it puts away is found by name, and no handle leads there.
STATE_HOLDERS = frozenset(
    [
        *(VARIABLES | ITERATORS | QUEUES | TABLES | ACCUMULATORS | READERS),
        *("Barrier", "Stack", "StackV2", "TensorArray", "TensorArrayV2", "TensorArrayV3"),
    ]
)


def holds_state(kind: str) -> bool:
    """Whether it is a holder; TensorFlow's macro for the handles of libraries names them so."""
    return kind in STATE_HOLDERS or kind.endswith("HandleOp")


# --- Where examples come from ---

# One without a default is fed, or does not run.
PLACEHOLDERS_TO_FEED = frozenset({"Placeholder", "PlaceholderV2"})
PLACEHOLDERS = PLACEHOLDERS_TO_FEED | {"PlaceholderWithDefault"}
# Each run of them takes the next examples of a pipeline.
PIPELINE_OUTPUTS = frozenset(
    [
        *("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional"),
        "MultiDeviceIteratorGetNextFromShard",
        *("QueueDequeue", "QueueDequeueV2", "QueueDequeueMany", "QueueDequeueManyV2"),
        *("QueueDequeueUpTo", "QueueDequeueUpToV2", "BarrierTakeMany"),
        *("ReaderRead", "ReaderReadV2", "ReaderReadUpTo", "ReaderReadUpToV2"),
        *("Unstage", "MapUnstage", "MapUnstageNoKey"),
        *("OrderedMapUnstage", "OrderedMapUnstageNoKey"),
        *("InfeedDequeue", "InfeedDequeueTuple"),
    ]
)
EXAMPLE_SOURCES = PLACEHOLDERS | PIPELINE_OUTPUTS
# No examples, but what others have made of them.
GRADIENT_OUTPUTS = frozenset(
    {"AccumulatorTakeGradient", "SparseAccumulatorTakeGradient", "ResourceAccumulatorTakeGradient"}
)
# Of pictures, sounds, records; not DecodeRaw and DecodePaddedRaw, which are given numbers.
DECODERS = frozenset(
    [
        *("DecodeJpeg", "DecodeAndCropJpeg", "DecodePng", "DecodeGif", "DecodeBmp", "DecodeImage"),
        *("DecodeJxl", "DecodeWebP", "DecodeWav", "DecodeBase64"),
        *("DecodeCSV", "DecodeCompressed", "DecodeJSONExample", "DecodeProtoV2"),
    ]
)
# They read input; beside them there are datasets.
PIPELINE_OPS = ITERATORS | QUEUES | READERS | DECODERS | {"ReadFile"}
# A dataset that is made by a function, which may call a pipeline on another device.
GENERATOR_DATASET = "GeneratorDataset"
# What MultiDeviceIterator and prefetch_to_device build for a device, to fetch batches ahead.
PREFETCHERS = ITERATORS | {
    *(GENERATOR_DATASET, "PrefetchDataset", "OptionsDataset", "ModelDataset"),
    "MaxIntraOpParallelismDataset",
}
_DATASET = re.compile(r"(?!InitializeTable).*Dataset(V\d)?")


def is_dataset(kind: str) -> bool:
    """Whether an op of this type makes a dataset, or takes one; releases add to them."""
    return _DATASET.fullmatch(kind) is not None


# --- What passes its first input on as it is ---

# The second of several values, each as an output of its own.
IDENTITIES = frozenset({"Identity", "IdentityN"})
# Into a loop of control flow v1.
ENTERS = frozenset({"Enter", "RefEnter"})
# Of control flow v1, to one of two outputs.
SWITCHES = frozenset({"Switch", "RefSwitch"})
# A handle or reference. Merge and Exit pass values, which a loop may have changed; NextIteration
# leads back to where it came from.
PASSES_HANDLE = ENTERS | SWITCHES | {"Identity", "RefIdentity", "RefMerge"}
# A value too. Not IdentityN, whose outputs are several values.
PASSES_VALUE = PASSES_HANDLE | {"StopGradient", "PreventGradient"}
# To another type: said where it is meant as well.
CAST = "Cast"

# --- What looks at the shape of a value alone ---

SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})
SHAPE_ONLY = SHAPES | {"ZerosLike", "OnesLike"}

# --- Sums, products and parts ---

ADDS = frozenset({"Add", "AddV2", "AddN", "AccumulateNV2"})
# The gradients of rows of one variable are added up by being joined (gradients_util.py).
JOINS = frozenset({"Concat", "ConcatV2"})
# By a factor, which may be the second input or the first.
SCALES = frozenset({"Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan"})
# They take a part of a tensor: which input that is; the others say where the part is.
CUTS: Mapping[str, int] = {"StridedSlice": 0, "Slice": 0, "SplitV": 0, "Split": 1, "Unpack": 0}
# They take parts too; what decides which may be computed by the model, as a gate of experts is.
PARTITIONS = frozenset({"DynamicPartition"})
# They look rows up, as many as they are asked for: no part, where the table holds weights.
GATHERS = frozenset({"Gather", "GatherV2"})
# They change the form of a tensor alone.
RESHAPES = frozenset({"ExpandDims", "Squeeze", "Reshape", "Transpose"})
# They add up or scale, and so do the same to every row of a batch; or move rows.
LINEAR = frozenset(
    [
        *(ADDS | JOINS | SCALES | CUTS.keys() | PARTITIONS | GATHERS | RESHAPES | IDENTITIES),
        *("Sum", "Mean", "Neg", "UnsortedSegmentSum", "Pack", "Unique", "ScatterNd"),
        *("Tile", "BroadcastTo", CAST),
    ]
)

# --- What computes nothing ---

NO_OP = "NoOp"
CONST = "Const"
EXITS = frozenset({"Exit", "RefExit"})
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
# They hold or yield what is there, pass it on, or keep the order.
NO_COMPUTATION = frozenset(
    [
        *(VARIABLES | VARIABLE_READS | INITIALISATION_TESTS | PLACEHOLDERS),
        *(PASSES_VALUE | EXITS | NEXT_ITERATIONS | IDENTITIES),
        *(NO_OP, CONST, "Merge", "LoopCond", "ControlTrigger", "VariableShape"),
        *("Assign", "AssignVariableOp"),
    ]
)
# TensorFlow's own, in the graphs that it runs on each device.
SENDS = frozenset({"Send", "_Send", "_HostSend"})
RECEIVES = frozenset({"Recv", "_Recv", "_HostRecv"})

# --- What changes a variable ---

ADDITIONS = frozenset({"AssignAdd", "AssignAddVariableOp"})
# All of it.
ASSIGNS = ADDITIONS | {
    *("Assign", "AssignVariableOp", "AssignSub", "AssignSubVariableOp"),
    "AssignVariableXlaConcatND",
}
_PARTLY = (
    *("ScatterAdd", "ScatterSub", "ScatterMul", "ScatterDiv", "ScatterMin", "ScatterMax"),
    *("ScatterUpdate", "ScatterNdAdd", "ScatterNdSub", "ScatterNdMin", "ScatterNdMax"),
    *("ScatterNdUpdate", "StridedSliceAssign", "CountUpTo"),
)
# Not ScatterNdNonAliasingAdd and TensorScatterAdd, which make another tensor.
UPDATES = ASSIGNS | {*_PARTLY, *(f"Resource{update}" for update in _PARTLY)}
_BY_GRADIENT = re.compile(r"(Resource)?(Sparse)?Apply[A-Z]\w*")


@cache
def is_gradient_update(kind: str) -> bool:
    """Whether it is an optimiser's update, such as ApplyAdam; libraries of ops add to them."""
    return _BY_GRADIENT.fullmatch(kind) is not None


def is_update(kind: str) -> bool:
    """Whether an op of this type changes the variable that is its first input."""
    return kind in UPDATES or is_gradient_update(kind)


# What takes a variable, beside its updates, and computes nothing with its value; the last three
# add a gradient to an accumulator.
NOT_A_READ = INITIALISATION_TESTS | {
    *("Save", "SaveSlices", "SaveV2", "VariableShape"),
    *("DestroyResourceOp", "DestroyTemporaryVariable", "AccumulatorApplyGradient"),
    *("SparseAccumulatorApplyGradient", "ResourceAccumulatorApplyGradient"),
}

# --- What calls functions, or groups other ops ---

BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
LOOPS = frozenset({"While", "StatelessWhile"})
CALLS = BRANCHES | LOOPS | {"PartitionedCall", "StatefulPartitionedCall"}
# What a step may be put into. Not loops: a turn of one is a step, and the rest of it is none.
GROUPS = IDENTITIES | {NO_OP, "If", "Case", "StatefulPartitionedCall"}
# Each yields what all of its kind and key are given. Not NcclReduce, which is given all itself,
# nor the broadcasts, of which one gives.
COLLECTIVES = frozenset(
    [
        *("NcclAllReduce", "CollectiveReduce", "CollectiveReduceV2", "CollectiveReduceV3"),
        *("CollectiveReduceScatterV2", "CollectiveGather", "CollectiveGatherV2"),
        *("CollectiveAllToAllV2", "CollectiveAllToAllV3"),
    ]
)

# --- Summaries ---

# They write by themselves; the others yield what the program writes.
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
# Surely of one number; of WriteSummary only its metadata tell.
SCALAR_SUMMARIES = frozenset({"ScalarSummary", "WriteScalarSummary"})
MERGE_SUMMARY = "MergeSummary"

# --- Random numbers ---

# With a seed of their own, which two attributes hold, and a state that goes on.
RANDOM_SEEDED = frozenset(
    [
        *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
        *("ParameterizedTruncatedNormal", "Multinomial", "RandomGamma"),
        *("RandomPoisson", "RandomPoissonV2", "RandomShuffle", "RandomCrop"),
        *("SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2"),
    ]
)
# Seeded too; apart, as towers may well be compared with the same classes.
CANDIDATE_SAMPLERS = frozenset(
    [
        *("AllCandidateSampler", "UniformCandidateSampler", "LogUniformCandidateSampler"),
        *("FixedUnigramCandidateSampler", "LearnedUnigramCandidateSampler"),
        "ThreadUnsafeUnigramCandidateSampler",
    ]
)
# With the state of a generator, a variable. Not RngReadAndSkip, which only hands the state on.
RANDOM_WITH_GENERATOR = frozenset(
    [
        *("StatefulUniform", "StatefulUniformInt", "StatefulUniformFullInt"),
        *("StatefulStandardNormal", "StatefulStandardNormalV2", "StatefulTruncatedNormal"),
        "StatefulRandomBinomial",
    ]
)
# They draw anew whenever they run.
RANDOM_STATEFUL = RANDOM_SEEDED | CANDIDATE_SAMPLERS | RANDOM_WITH_GENERATOR
# They draw what their seed says, or the key that was made of one: which input that is.
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
