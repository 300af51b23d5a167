"""The attributes that this package replaces temporarily, each with its purpose.

`patching.patched` applies only these patches. `tests/tf/test_patches.py` compares them with the
installed TensorFlow and Keras, and ``docs/developing.md`` shows the list as a table.

If two entries have the same attribute, they are applied in the order of this list: programs call
the replacement of the later entry, which calls the replacement of the earlier entry.
"""

from __future__ import annotations

import pkgutil
import sys
from enum import Enum, unique
from typing import Any

_K2, _K3 = "Keras 2", "Keras 3"
_APPLY = "record applied gradients"
_FAKE = "show fake GPUs"
_SIMULATE, _CLUSTER = "open CPUs that simulate GPUs", "simulate the cluster"
_COMPILED = "record models before they train"
_FILES = "preserve the user's files"
_HELD = "hold back changes of early captures"
_WRITES = "record the files that ranks of Horovod write"

_V1 = "tensorflow:compat.v1"
_TF = "tensorflow.python"
_KERAS = "keras.src"
_CONTEXT = f"{_TF}.eager.context:Context"
_FUNCTION = f"{_TF}.eager.polymorphic_function"
_FUNCTION_VARIABLE = f"{_FUNCTION}.polymorphic_function:UnliftedInitializerVariable"
_SESSION = f"{_TF}.client.session:BaseSession"
_C_SESSION = f"{_TF}.client.pywrap_tf_session"
_C_FILES = f"{_TF}.lib.io._pywrap_file_io"
_VARIABLES = f"{_TF}.ops.resource_variable_ops"
_COLLECTIVES = f"{_TF}.ops.collective_ops"
_DISTRIBUTE = f"{_TF}.distribute"
_DISTRIBUTED = f"{_DISTRIBUTE}.values:DistributedVariable"
_AGGREGATING = f"{_DISTRIBUTE}.ps_values:AggregatingVariable"
_EXTENDED = f"{_DISTRIBUTE}.distribute_lib:StrategyExtendedV2"
_REPLICA = f"{_DISTRIBUTE}.distribute_lib:ReplicaContext"
_LINES = "keep the user's source lines"
_THREAD = f"{_DISTRIBUTE}.mirrored_run:_MirroredReplicaThread"
_KEYS = f"{_DISTRIBUTE}.cross_device_utils:CollectiveKeys"
_RESOLVER = f"{_DISTRIBUTE}.cluster_resolver.tfconfig_cluster_resolver"
_WORKERS = f"{_DISTRIBUTE}.collective_all_reduce_strategy:CollectiveAllReduceExtended"
_SERVERS = f"{_DISTRIBUTE}.parameter_server_strategy_v2:ParameterServerStrategyV2"
_COORDINATOR = f"{_DISTRIBUTE}.coordinator.cluster_coordinator"


@unique
class Patch(Enum):
    """A patch of one attribute.

    Attributes:
        owner: the module or class that has the attribute, in the form of `pkgutil.resolve_name`.
        attribute: the name of the function, method or class.
        purpose: the purpose of the replacement.
        only: the version of Keras that has the attribute; ``""`` if all versions have it.
    """

    owner: str
    attribute: str
    purpose: str
    only: str

    def __init__(self, owner: str, attribute: str, purpose: str, only: str = "") -> None:
        self.owner, self.attribute, self.purpose, self.only = owner, attribute, purpose, only

    @property
    def path(self) -> str:
        """The dotted path of the attribute, such as ``tensorflow.Graph.device``."""
        return f"{self.owner.replace(':', '.')}.{self.attribute}"

    @property
    def is_loaded(self) -> bool:
        """Whether the package of the attribute is imported in a version that has the attribute."""
        package = sys.modules.get(self.owner.partition(":")[0].partition(".")[0])
        version = str(getattr(package, "__version__", "2"))
        return package is not None and self.only in ("", f"Keras {version[0]}")

    def find_owner(self) -> Any:
        """Import the module and return the owner.

        Raises:
            ImportError, AttributeError: the installed version lacks the owner.
        """
        return pkgutil.resolve_name(self.owner)

    # Graphs and gradients
    NEW_GRAPH = "tensorflow:Graph", "__init__", "record the graphs of a program"
    GRADIENTS = f"{_TF}.ops.gradients_util", "_GradientsHelper", "record gradients"
    TAPE = "tensorflow:GradientTape", "gradient", "record gradients"
    TAPE_MODE = "tensorflow:GradientTape", "gradient", "note whether the program trains eagerly"
    MERGE_CALL = _REPLICA, "merge_call", "record gradients across replicas"
    OP_GRADIENT = f"{_TF}.eager.backprop", "_gradient_function", "record forward ops"
    V1_APPLY = f"{_V1}.train.Optimizer", "apply_gradients", _APPLY
    KERAS_3_APPLY = "keras:optimizers.Optimizer", "apply", _APPLY, _K3
    KERAS_2_APPLY = "keras:optimizers.Optimizer", "apply_gradients", _APPLY, _K2
    KERAS_2_LEGACY_APPLY = "keras:optimizers.legacy.Optimizer", "apply_gradients", _APPLY, _K2
    TF_KERAS_APPLY = "tf_keras:optimizers.Optimizer", "apply_gradients", _APPLY
    TF_KERAS_LEGACY_APPLY = "tf_keras:optimizers.legacy.Optimizer", "apply_gradients", _APPLY

    # Sessions
    NEW_SESSION = _SESSION, "__init__", "record sessions"
    RUN = _SESSION, "_do_run", "record runs, and stop at the training step"
    MAKE_CALLABLE = _SESSION, "make_callable", "let callables call `run`"
    MAKE_KERAS_CALLABLE = _SESSION, "_make_callable_from_options", "let callables call `run`"
    PARTIAL_RUN_SETUP = _SESSION, "partial_run_setup", "let partial runs call `run`"
    PARTIAL_RUN = _SESSION, "partial_run", "let partial runs call `run`"

    # Training in functions and in Keras
    CALL = f"{_FUNCTION}.concrete_function:ConcreteFunction", "_call_flat", "skip training steps"
    NEW_FUNCTION = (
        f"{_FUNCTION}.polymorphic_function:Function",
        "__init__",
        "record functions before their first call",
    )
    CONVERSION = f"{_TF}.autograph.core.config", "CONVERSION_RULES", "do not convert the stand-in"
    KERAS_2_FIT = f"{_KERAS}.engine.training_v1:Model", "fit", "detect training", _K2
    KERAS_2_BATCH = f"{_KERAS}.engine.training_v1:Model", "train_on_batch", "detect training", _K2
    TF_KERAS_FIT = "tf_keras.src.engine.training_v1:Model", "fit", "detect training"
    TF_KERAS_BATCH = "tf_keras.src.engine.training_v1:Model", "train_on_batch", "detect training"
    MODEL_COMPILE = "keras:Model", "compile", _COMPILED
    TF_KERAS_MODEL_COMPILE = "tf_keras:Model", "compile", _COMPILED
    MODEL_FIT = "keras:Model", "fit", _WRITES
    TF_KERAS_MODEL_FIT = "tf_keras:Model", "fit", _WRITES

    # Eager ops and variables
    ITERATE = f"{_TF}.data.ops.dataset_ops:DatasetV2", "_apply_debug_options", "end iterators soon"
    FAST_OP = f"{_TF}.pywrap_tfe", "TFE_Py_FastPathExecute", "return zeros for GPU-only ops"
    SLOW_OP = f"{_TF}.eager.execute", "execute", "return zeros for GPU-only ops"
    NEW_HANDLE = _VARIABLES, "_variable_handle_from_shape_and_dtype", "record devices"
    NEW_VARIABLE = f"{_VARIABLES}:BaseResourceVariable", "__init__", "record variables"
    NEW_FUNCTION_VARIABLE = _FUNCTION_VARIABLE, "__init__", "record initial values"
    NEW_DISTRIBUTED = _DISTRIBUTED, "__init__", "record components"
    NEW_AGGREGATING = _AGGREGATING, "__init__", "record components"
    NEW_KERAS_3 = f"{_KERAS}.backend.tensorflow.core:Variable", "_initialize", "record names", _K3

    # Strategies
    NEW_STRATEGY = f"{_DISTRIBUTE}.distribute_lib:StrategyBase", "__init__", "record strategies"
    REDUCE_SEVERAL = _EXTENDED, "batch_reduce_to", "record reductions"
    REDUCE = _EXTENDED, "reduce_to", "record reductions"
    ALL_REDUCE = _REPLICA, "all_reduce", "record reductions"
    NEW_THREAD = _THREAD, "__init__", _LINES
    MERGE = f"{_DISTRIBUTE}.mirrored_run:_MirroredReplicaContext", "_merge_call", _LINES
    NEW_REPLICA = _THREAD, "__init__", "record the replicas of ops"
    REPLICA_MERGE = _REPLICA, "merge_call", "record the replicas of ops"
    NEW_KEYS = _KEYS, "__init__", "number the groups of all strategies"
    MIRRORED_DEVICES = f"{_DISTRIBUTE}.mirrored_strategy", "all_local_devices", _FAKE
    CENTRAL_DEVICES = f"{_DISTRIBUTE}.device_util", "local_devices_from_num_gpus", _FAKE

    # Device scopes
    EAGER_SCOPE = _CONTEXT, "device", _SIMULATE
    EAGER_CLUSTER_SCOPE = _CONTEXT, "device", _CLUSTER
    GRAPH_SCOPE = "tensorflow:Graph", "device", _SIMULATE
    GRAPH_CLUSTER_SCOPE = "tensorflow:Graph", "device", _CLUSTER

    # Queries for GPUs
    LIST_PHYSICAL = _CONTEXT, "list_physical_devices", _FAKE
    LIST_LOGICAL = _CONTEXT, "list_logical_devices", _FAKE
    GET_VISIBLE = _CONTEXT, "get_visible_devices", _FAKE
    SET_VISIBLE = _CONTEXT, "set_visible_devices", _FAKE
    NUM_GPUS = _CONTEXT, "num_gpus", _FAKE
    GET_MEMORY_GROWTH = _CONTEXT, "get_memory_growth", _FAKE
    SET_MEMORY_GROWTH = _CONTEXT, "set_memory_growth", _FAKE
    GET_LOGICAL = _CONTEXT, "get_logical_device_configuration", _FAKE
    SET_LOGICAL = _CONTEXT, "set_logical_device_configuration", _FAKE
    DEVICE_DETAILS = _CONTEXT, "get_device_details", _FAKE
    MEMORY_INFO = _CONTEXT, "get_memory_info", _FAKE
    MEMORY_STATS = _CONTEXT, "reset_memory_stats", _FAKE
    LIST_LOCAL = f"{_TF}.client._pywrap_device_lib", "list_devices", _FAKE
    LIST_OF_SESSION = _SESSION, "list_devices", _FAKE
    LOAD_LIBRARY = "ctypes:CDLL", "__init__", "fake NVIDIA's library NVML"

    # Clusters
    READ_TF_CONFIG = _RESOLVER, "_load_tf_config", "check TF_CONFIG"
    CONFIGURE_COLLECTIVES = _CONTEXT, "configure_collective_ops", _CLUSTER
    CONFIGURE_COORDINATION = _CONTEXT, "configure_coordination_service", _CLUSTER
    ENABLE_COLLECTIVES = _CONTEXT, "enable_collective_ops", _CLUSTER
    START_WORKER = _WORKERS, "_initialize_multi_worker", "record the worker's server"
    WORKER_DEVICES = _WORKERS, "_initialize_local_devices", "use the devices of this process"
    FIRST_VALUE = _WORKERS, "_get_variable_creator_initial_value", "compute the chief's values"
    CHECK_HEALTH = _WORKERS, "_start_check_health_thread", _CLUSTER
    BROADCAST_SEND = _COLLECTIVES, "broadcast_send", _CLUSTER
    ALL_REDUCE_OP = _COLLECTIVES, "all_reduce_v2", _CLUSTER
    ALL_GATHER_OP = _COLLECTIVES, "all_gather_v2", _CLUSTER
    CONNECT = _SERVERS, "_connect_to_cluster", "record the coordinator's server"
    COUNT_WORKER_GPUS = f"{_SERVERS}Extended", "_set_num_gpus", _FAKE
    SCHEDULE = f"{_COORDINATOR}:Cluster", "schedule", "run scheduled functions at once"
    CREATE_RESOURCE = f"{_COORDINATOR}:Worker", "_schedule_resource", "create resources at once"
    PROCESS_QUEUE = f"{_COORDINATOR}:Worker", "_process_queue", _CLUSTER
    PREEMPTION = f"{_COORDINATOR}:WorkerPreemptionHandler", "_preemption_handler", _CLUSTER
    NEW_SERVER = "tensorflow:distribute.Server", "__init__", "record servers"
    C_NEW_SERVER = _C_SESSION, "TF_NewServer", "record servers, and start none"
    C_START_SERVER = _C_SESSION, "TF_ServerStart", "start no server"
    C_STOP_SERVER = _C_SESSION, "TF_ServerStop", "start no server"
    C_SERVER_TARGET = _C_SESSION, "TF_ServerTarget", "return the recorded address"
    C_JOIN_SERVER = _C_SESSION, "TF_ServerJoin", "refuse parameter servers"

    # Files
    C_DELETE = _C_FILES, "DeleteFile", _FILES
    C_DELETE_TREE = _C_FILES, "DeleteRecursively", _FILES
    C_RENAME = _C_FILES, "RenameFile", _FILES
    C_COPY = _C_FILES, "CopyFile", _FILES
    C_WRITE = _C_FILES, "WritableFile", _FILES
    C_CREATE = _C_FILES, "CreateDir", _FILES
    C_CREATE_TREE = _C_FILES, "RecursivelyCreateDir", _FILES
    NEW_RECORD_FILE = "tensorflow:io.TFRecordWriter", "__init__", _FILES
    CACHE_FILE = "tensorflow:data.Dataset", "cache", _FILES
    NEW_EVENT_FILE = f"{_TF}.client._pywrap_events_writer", "EventsWriter", _FILES
    WRITE_FILE = "tensorflow:io", "write_file", _FILES
    WRITE_CHECKPOINT = f"{_TF}.checkpoint.functional_saver:MultiDeviceSaver", "save", _FILES
    EXISTS = "posixpath", "exists", _HELD
    IS_FILE = "posixpath", "isfile", _HELD
    PATH_EXISTS = "pathlib:Path", "exists", _HELD
    PATH_IS_FILE = "pathlib:Path", "is_file", _HELD
    C_EXISTS = _C_FILES, "FileExists", _HELD
    SAVE_CHECKPOINT = f"{_V1}.train.Saver", "save", "save no checkpoints"

    # Source code and TensorFlow 1
    MODULE_CODE = "importlib.machinery:SourceFileLoader", "get_code", "edit values (`--let`)"
    IMPORT = "builtins", "__import__", "give programs TensorFlow 1 (`--v1`)"
    V1_KERAS = _V1, "keras", "load Keras 2", _K3
    V1_LAYERS = _V1, "layers", "load Keras 2", _K3
    V1_CELLS = f"{_V1}.nn", "rnn_cell", "load Keras 2", _K3
    V1_NORMALIZATION = f"{_TF}.layers.normalization", "normalization", "load Keras 2"
    V1_DEVICE_SPEC = f"{_TF}.framework.device", "DeviceSpec", "restore the class of version 1"


# The modules to which `tf1` adds names that newer versions lack, with a description of the names.
# A name that a module still has is not replaced.
EXTENDED_MODULES = {
    "collections": "the abstract classes that Python 3.10 removed",
    "fractions": "`gcd`",
    "inspect": "`getargspec`",
    "numpy": "aliases that numpy 1.24 and 2.0 removed",
    "scipy.misc": "image functions",
    "time": "`clock`",
    f"{_TF}.framework.graph_util": "names that moved",
    f"{_TF}.framework.ops": "names that moved",
    f"{_TF}.ops.array_ops": "names that moved",
    f"{_TF}.ops.control_flow_ops": "names that moved",
    f"{_TF}.ops.functional_ops": "names that moved",
    f"{_TF}.ops.random_ops": "names that moved",
    f"{_TF}.ops.variable_scope": "names that moved",
    f"{_TF}.ops.variables": "names that moved",
    f"{_TF}.pywrap_tensorflow": "names that moved",
    f"{_TF}.util.nest": "names that moved",
}
