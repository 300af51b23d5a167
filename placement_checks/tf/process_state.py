"""The global state of TensorFlow in this process and thread, as programs may change it.

`Behavior` is the TensorFlow 2 behavior that programs turn off by ``disable_v2_behavior()`` or a
more specific function, and the dtypes that programs set for layers of Keras. This behavior is
global to the process, so a program that changes it during its import would change the graphs of
other programs. `own_behavior` loads and builds each program with the behavior of this program, as
in a separate process.

`GlobalState` covers all of the state; the pytest plugin restores it after each test.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, cast

from placement_checks.core.user_code import is_user_file
from placement_checks.tf.keras import KerasDtypes, changed_dtypes, restore_dtypes
from placement_checks.tf.patching import eager_context, existing, existing_in, existing_module


@dataclass(frozen=True)
class Behavior:
    """Switches of TensorFlow 2 behavior, named like their functions; defaults as in TensorFlow."""

    # All of TensorFlow 2. The first field: its functions change the other switches.
    v2_behavior: bool = True
    eager_execution: bool = True  # ops outside of graphs run at once
    v2_tensorshape: bool = True  # the sizes in a shape are numbers, not `Dimension` objects
    # `tf.compat.v1.get_variable` creates resource variables instead of ref variables.
    resource_variables: bool = True
    tensor_equality: bool = True  # `==` of tensors compares their elements
    control_flow_v2: bool = True  # branches and loops are functions, not Switch and Merge ops
    # The dtypes of new Keras layers, such as `mixed_float16`, if they are not the defaults.
    keras_dtypes: tuple[KerasDtypes, ...] = ()

    @staticmethod
    def current() -> Behavior:
        """The behavior of this process; the default if TensorFlow is not loaded yet."""
        if "tensorflow" not in sys.modules:
            return Behavior()
        import tensorflow as tf

        control_flow = "tensorflow.python.ops.control_flow_util"
        return Behavior(
            v2_behavior=existing_in("tensorflow.python.tf2", "enabled")(),
            eager_execution=is_eager_by_default(),
            v2_tensorshape=isinstance(tf.TensorShape([1])[0], int),
            resource_variables=tf.compat.v1.resource_variables_enabled(),
            tensor_equality=existing(tf.Tensor, "_USE_EQUALITY"),
            # `tf.compat.v1.control_flow_v2_enabled` would create a default graph.
            control_flow_v2=existing_in(control_flow, "ENABLE_CONTROL_FLOW_V2"),
            keras_dtypes=changed_dtypes(),
        )

    def changing_call(self) -> str:
        """The call that changed this behavior, such as ``disable_v2_behavior()``, or ``""``."""
        current = Behavior.current()
        for name in _SWITCHES:
            if getattr(current, name) != getattr(self, name):
                return f"{'enable' if getattr(current, name) else 'disable'}_{name}()"
        return ""

    def restore(self) -> None:
        """Give the process this behavior."""
        # Keras 2 sets dtypes only while the TensorFlow 2 behavior is on.
        if is_version_2 := Behavior.current().v2_behavior:
            restore_dtypes(self.keras_dtypes)
        for name in _SWITCHES:
            on = getattr(self, name)
            if getattr(Behavior.current(), name) != on:
                _switch(name, on=on)
        if not is_version_2:
            restore_dtypes(self.keras_dtypes)


_SWITCHES = tuple(switch.name for switch in fields(Behavior) if isinstance(switch.default, bool))
_CHANGING_CALL = re.compile(
    rf"\b(disable_({'|'.join(_SWITCHES)})|set_(global_policy|dtype_policy|floatx))\b"
)

# The behavior of each program; None for a program that has the behavior of the process.
_program_behaviors: dict[Hashable, Behavior | None] = {}
# By directory or package: the behavior that its shared modules set. They are loaded only once.
_shared_behaviors: dict[Hashable, Behavior] = {}


def _switch(name: str, *, on: bool) -> None:
    import tensorflow as tf

    in_graph, eager = open_graph_count() > 0, is_eager()
    if on and name in ("v2_behavior", "eager_execution"):
        # The functions of these switches raise an error if a graph exists.
        make_eager_by_default()
        set_eager(True)
    getattr(tf.compat.v1, f"{'enable' if on else 'disable'}_{name}")()
    if in_graph:
        set_eager(eager)


@contextlib.contextmanager
def own_behavior(program: Hashable, shared: Hashable) -> Iterator[None]:
    """Run a program's code in this block with the behavior that it set while it was loaded.

    A program that sets no behavior has the behavior of the process. ``shared`` is the directory or
    package of the program. If another module of the user turns a behavior off, this applies to all
    programs of the same directory or package that are loaded later.
    """
    before = Behavior.current()
    loaded_before = set(sys.modules)
    requested = _program_behaviors.get(program, _shared_behaviors.get(shared))
    own = requested or before
    own.restore()
    try:
        yield
    finally:
        after = Behavior.current()
        new_modules = sys.modules.keys() - loaded_before
        files = set() if after == Behavior() else _files_with_changing_call(new_modules)
        if files - {str(program)}:
            _shared_behaviors[shared] = after
        if files or program not in _program_behaviors:
            _program_behaviors[program] = after if files or requested or after != own else None
        before.restore()


def _files_with_changing_call(modules: Iterable[str]) -> set[str]:
    """The files of the user's modules that turn some behavior off, or set dtypes of Keras."""
    found = set()
    for module in map(sys.modules.__getitem__, modules):
        file = getattr(module, "__file__", None) or ""
        if file.endswith(".py") and is_user_file(file, None):
            with contextlib.suppress(OSError):  # an empty file
                if _CHANGING_CALL.search(inspect.getsource(module)):  # it may be in an archive
                    found.add(file)
    return found


@dataclass(frozen=True)
class GlobalState:
    """The global state of TensorFlow; the defaults are its state after import."""

    depth: int = 0  # the number of open graphs (`as_default`) in this thread
    sessions: int = 0  # the number of open default sessions in this thread
    behavior: Behavior = field(default_factory=Behavior)  # the switches of TensorFlow 2 behavior
    eager: bool = True  # whether this thread runs eagerly
    empty: bool = True  # whether the global default graph holds no ops
    seed: int | None = None  # the global seed of eager code
    soft: bool = True  # whether soft placement is on

    @staticmethod
    def current() -> GlobalState:
        """The state of this process and thread."""
        import tensorflow as tf

        return GlobalState(
            open_graph_count(),
            len(_session_stack()),
            Behavior.current(),
            tf.executing_eagerly(),
            _is_global_graph_empty(),
            global_seed(),
            tf.config.get_soft_device_placement(),
        )

    def restore(self) -> Iterator[str]:
        """Restore the state; yields a phrase for each change that would break later code.

        The seed, soft placement, dtypes of Keras and an empty default graph are restored without a
        phrase, because correct code changes them too.
        """
        import tensorflow as tf

        left_open = open_graph_count() - self.depth
        for _ in range(left_open):
            close_graph()
        if close_default_sessions(self.sessions) or left_open > 0:
            yield "never closed an as_default() or InteractiveSession"
        if call := self.behavior.changing_call():
            self.behavior.restore()
            yield f"called {call}"
        restore_dtypes(self.behavior.keras_dtypes)
        if tf.executing_eagerly() != self.eager:
            set_eager(self.eager)
            if left_open <= 0:
                yield f"turned eager execution {'off' if self.eager else 'on'}"
        if self.empty and self.depth == 0 and not _is_global_graph_empty():
            tf.compat.v1.reset_default_graph()
        if global_seed() != self.seed:
            set_global_seed(self.seed)
        if tf.config.get_soft_device_placement() != self.soft:
            tf.config.set_soft_device_placement(self.soft)


def is_eager_by_default() -> bool:
    """Whether threads start with eager execution."""
    context = existing_module("tensorflow.python.eager.context")
    return bool(existing(context, "default_execution_mode") == existing(context, "EAGER_MODE"))


def make_eager_by_default() -> None:
    """Do what `tf.compat.v1.enable_eager_execution` does, also if a graph exists already."""
    context = existing_module("tensorflow.python.eager.context")
    existing(context, "default_execution_mode")
    context.default_execution_mode = existing(context, "EAGER_MODE")


def is_eager() -> bool:
    """Whether this thread runs eagerly; the first call fixes the thread's default."""
    return bool(existing(existing(eager_context(), "_thread_local_data"), "is_eager"))


def set_eager(on: bool) -> None:
    """Turn eager execution on or off in this thread."""
    is_eager()
    existing(eager_context(), "_thread_local_data").is_eager = on


@contextlib.contextmanager
def restore_soft_placement() -> Iterator[None]:
    """Restore soft placement after this block, and whether a program has set it.

    If no program has set it, sessions without a configuration use it only in eager mode.
    """
    import tensorflow as tf

    context, soft = eager_context(), tf.config.get_soft_device_placement()
    before = existing(context, "_soft_device_placement")
    try:
        yield
    finally:
        # Unconditionally: if the eager runtime starts inside a graph, soft placement is turned
        # off, but the getter still returns True.
        tf.config.set_soft_device_placement(soft)
        context._soft_device_placement = before


def open_graph_count() -> int:
    """The number of ``as_default`` blocks of graphs that are open in this thread."""
    return len(existing(_graph_stack(), "stack"))


def close_graph() -> None:
    """End the innermost ``as_default`` of this thread."""
    switches = existing(eager_context(), "context_switches")
    existing(_graph_stack(), "stack").pop()
    switches.pop()


# The end of an abandoned session's `as_default` would remove later sessions and graphs from the
# stacks of this thread, so these sessions are kept alive.
_ended_sessions: list[Any] = []


def close_default_sessions(depth: int) -> bool:
    """End the default sessions of this thread, except the first ``depth``.

    An `InteractiveSession` that is never closed stays the default session.

    Returns:
        Whether there were any.
    """
    sessions = _session_stack()
    left_open = sessions[depth:]
    del sessions[depth:]
    _ended_sessions.extend(left_open)
    return bool(left_open)


@contextlib.contextmanager
def own_default_sessions() -> Iterator[None]:
    """End the default sessions that are opened and not closed in this block."""
    depth = len(_session_stack())
    try:
        yield
    finally:
        close_default_sessions(depth)


def _session_stack() -> list[Any]:
    stack = existing_in("tensorflow.python.framework.stack", "_default_session_stack")
    return cast("list[Any]", existing(stack, "stack"))


def global_graph() -> Any:
    """The default graph outside of all ``as_default`` blocks; None if it does not exist yet.

    `tf.compat.v1.get_default_graph` would create it.
    """
    return existing(_graph_stack(), "_global_default_graph")


def _is_global_graph_empty() -> bool:
    graph = global_graph()
    return graph is None or not graph.get_operations()


def _graph_stack() -> Any:
    return existing_in("tensorflow.python.framework.ops", "_default_graph_stack")


def global_seed() -> int | None:
    """The seed of eager code; `tf.compat.v1.get_seed` would draw a number from it."""
    return cast("int | None", existing_in("tensorflow.python.eager.context", "global_seed")())


def set_global_seed(seed: int | None) -> None:
    """Set the seed of eager code; `tf.random.set_seed` in a graph sets the graph's seed."""
    existing_in("tensorflow.python.eager.context", "set_global_seed")(seed)
