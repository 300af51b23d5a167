"""The behaviour of TensorFlow 2 that programs may turn off, by ``disable_v2_behavior()`` or parts.

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

from placement_checks.loading.source_lines import is_users
from placement_checks.loading.tf_internals import process_state


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
            process_state.is_v2_behavior(),
            process_state.is_eager_by_default(),
            isinstance(tf.TensorShape([1])[0], int),
            tf.compat.v1.resource_variables_enabled(),
            process_state.is_tensor_equality(),
            process_state.is_control_flow_v2(),
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

    in_graph, eager = process_state.open_graphs() > 0, process_state.is_eager()
    if on and name in ("v2_behavior", "eager_execution"):
        # By hand: its own function refuses as soon as there is a graph.
        process_state.make_eager_by_default()
        process_state.set_eager(True)
    getattr(tf.compat.v1, f"{'enable' if on else 'disable'}_{name}")()
    if in_graph:
        process_state.set_eager(eager)


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
        and is_users(file, None)
        and _TURNED_OFF.search(Path(file).read_text(encoding="utf-8", errors="replace"))
    }
