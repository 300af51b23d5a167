"""What is global to a thread or to the process, as programs may change it.

The behaviour of TensorFlow 2 that programs may turn off, by ``disable_v2_behavior()`` or parts.

It is global to the process, so that a program which turns it off while it is loaded would change
what others build. Each is built with its own behaviour, as in a process of its own.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from placement_checks.core.user_code import is_user_file
from placement_checks.tf.patching import eager_context, existing, existing_in, existing_module


def is_v2_behavior() -> bool:
    """Whether `tf.compat.v1.disable_v2_behavior` was not called."""
    return bool(existing_in("tensorflow.python.tf2", "enabled")())


def is_eager_by_default() -> bool:
    """Whether threads begin with eager execution."""
    context = existing_module("tensorflow.python.eager.context")
    return bool(existing(context, "default_execution_mode") == existing(context, "EAGER_MODE"))


def make_eager_by_default() -> None:
    """`tf.compat.v1.enable_eager_execution`, which refuses as soon as there is a graph."""
    context = existing_module("tensorflow.python.eager.context")
    existing(context, "default_execution_mode")
    context.default_execution_mode = existing(context, "EAGER_MODE")


def is_tensor_equality() -> bool:
    """Whether ``==`` of tensors compares their elements."""
    return bool(existing(existing_in("tensorflow", "Tensor"), "_USE_EQUALITY"))


def is_control_flow_v2() -> bool:
    """Whether branches and loops are functions.

    `tf.compat.v1.control_flow_v2_enabled` would make a default graph, and answers for that.
    """
    return bool(existing_in("tensorflow.python.ops.control_flow_util", "ENABLE_CONTROL_FLOW_V2"))


def is_eager() -> bool:
    """Whether this thread runs eagerly; settles with what it began, as all eager code does."""
    return bool(existing(existing(eager_context(), "_thread_local_data"), "is_eager"))


def set_eager(on: bool) -> None:
    """Turn it on or off."""
    is_eager()
    existing(eager_context(), "_thread_local_data").is_eager = on


def open_graphs() -> int:
    """How many graphs were made the default one of this thread, and are still."""
    return len(existing(_graph_stack(), "stack"))


def close_graph() -> None:
    """End the innermost ``as_default`` of this thread."""
    switches = existing(eager_context(), "context_switches")
    existing(_graph_stack(), "stack").pop()
    switches.pop()


def global_graph() -> Any:
    """The default graph outside of all `open_graphs`; None where it was not made yet.

    `tf.compat.v1.get_default_graph` would make it.
    """
    return existing(_graph_stack(), "_global_default_graph")


def global_seed() -> int | None:
    """The seed of eager code; `tf.compat.v1.get_seed` would draw from it."""
    return cast("int | None", existing_in("tensorflow.python.eager.context", "global_seed")())


def set_global_seed(seed: int | None) -> None:
    """Set it; `tf.random.set_seed` sets that of the default graph where there is one."""
    existing_in("tensorflow.python.eager.context", "set_global_seed")(seed)


def _graph_stack() -> Any:
    return existing_in("tensorflow.python.framework.ops", "_default_graph_stack")


@dataclass(frozen=True)
class Behaviour:
    """What is on, by the names of the functions that switch it; the defaults are TensorFlow's.

    Attributes:
        v2_behavior: all of it; it comes first, as its functions switch the others.
        eager_execution: ops outside of graphs run at once.
        v2_tensorshape: the sizes in a shape are numbers, not ``Dimension`` objects.
        resource_variables: what `tf.compat.v1.get_variable` makes, instead of ref variables.
        tensor_equality: ``==`` of tensors compares their elements.
        control_flow_v2: branches and loops are functions, not Switch and Merge ops.
    """

    v2_behavior: bool = True
    eager_execution: bool = True
    v2_tensorshape: bool = True
    resource_variables: bool = True
    tensor_equality: bool = True
    control_flow_v2: bool = True

    @staticmethod
    def now() -> Behaviour:
        """The behaviour of this process; the default where TensorFlow is not loaded yet."""
        if "tensorflow" not in sys.modules:
            return Behaviour()
        import tensorflow as tf

        return Behaviour(
            is_v2_behavior(),
            is_eager_by_default(),
            isinstance(tf.TensorShape([1])[0], int),
            tf.compat.v1.resource_variables_enabled(),
            is_tensor_equality(),
            is_control_flow_v2(),
        )

    def changed(self) -> str:
        """The call that has changed it since, such as ``disable_v2_behavior()``; or ``""``."""
        now = Behaviour.now()
        for name in _NAMES:
            if getattr(now, name) != getattr(self, name):
                return f"{'enable' if getattr(now, name) else 'disable'}_{name}()"
        return ""

    def restore(self) -> None:
        """Set the process to this behaviour."""
        for name in _NAMES:
            on = getattr(self, name)
            if getattr(Behaviour.now(), name) != on:
                _switch(name, on=on)


_NAMES = tuple(switch.name for switch in fields(Behaviour))
_TURNED_OFF = re.compile(rf"\bdisable_({'|'.join(_NAMES)})\b")

# By program, where None follows the process; and by the modules that programs share, which are not
# loaded again for the next program.
_of_programs: dict[Hashable, Behaviour | None] = {}
_of_shared: dict[Hashable, Behaviour] = {}


def _switch(name: str, *, on: bool) -> None:
    import tensorflow as tf

    in_graph, eager = open_graphs() > 0, is_eager()
    if on and name in ("v2_behavior", "eager_execution"):
        # By hand: its own function refuses as soon as there is a graph.
        make_eager_by_default()
        set_eager(True)
    getattr(tf.compat.v1, f"{'enable' if on else 'disable'}_{name}")()
    if in_graph:
        set_eager(eager)


@contextlib.contextmanager
def own_behaviour(program: Hashable, shared: Hashable) -> Iterator[None]:
    """Run code of a program in this block, with the behaviour that it set when it was loaded.

    A program that sets none has the behaviour of the process.

    Args:
        program: the file or module that is loaded, or was.
        shared: the folder or package of modules that it may import. One that turns something
            off, and is there already, holds for every program that is loaded later.
    """
    before = Behaviour.now()
    loaded_before = set(sys.modules)
    requested = _of_programs[program] if program in _of_programs else _of_shared.get(shared)
    own = requested or before
    own.restore()
    try:
        yield
    finally:
        after = Behaviour.now()
        files = (
            set()
            if after == Behaviour()
            else _files_that_turn_off(sys.modules.keys() - loaded_before)
        )
        if files - {str(program)}:
            _of_shared[shared] = after
        if files or program not in _of_programs:
            _of_programs[program] = after if files or requested or after != own else None
        before.restore()


def _files_that_turn_off(modules: Iterable[str]) -> set[str]:
    """The files of those of the user's modules that turn something off."""
    files = {getattr(sys.modules[name], "__file__", None) or "" for name in modules}
    return {
        file
        for file in files
        if file.endswith(".py")
        and is_user_file(file, None)
        and _TURNED_OFF.search(Path(file).read_text(encoding="utf-8", errors="replace"))
    }
