"""Builds and places a program: its requested and assigned devices are evidence for rules."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core import limits
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.machines import Machine
from placement_checks.core.missing import FixedGpus, Missing
from placement_checks.core.op_types import INITIALIZATION_TESTS, NO_OP, VARIABLE_READS
from placement_checks.core.placement import Placement
from placement_checks.core.program import CapturedProgram, Program, TargetLike
from placement_checks.core.settings import DEFAULTS, Settings
from placement_checks.core.strategies import ONE_DEVICE, Strategy
from placement_checks.core.target import Loadable
from placement_checks.targets.gpu_constants import offer_constants
from placement_checks.util.progress import step
from placement_checks.util.resources import gc_paused
from placement_checks.verification.policy import declared_by

_DEFAULT_GPUS = 2
_REQUESTS_NO_DEVICE = VARIABLE_READS | INITIALIZATION_TESTS | {NO_OP}


def place(
    target: TargetLike,
    *,
    gpus: int | None = None,
    machine: Machine | str | None = None,
    soft: bool | None = None,
    args: Sequence[str] = (),
    v1: bool = False,
    let: Mapping[str, str] = MappingProxyType({}),
    limit: float | None = None,
    horovod: int = 0,
) -> Evidence:
    """Build a program or read a graph, and let the placer assign a device to each op.

    A whole program, ``train.py``, runs in its own process until its first training step. The last
    five arguments are for such a process. A function runs in its own process, too, if one of them
    is given.

    Args:
        target: a builder, a `Program`, a ``tf.Graph``, the path of a saved graph, or a target as
            on the command line (``train.py:build_towers``).
        gpus: the number of GPUs; by default 2. The builder gets this number, and each host or
            worker of the default machine has so many GPUs. The default is 1 if the program trains
            under a strategy with one device, or if a program for a cluster does not take the
            number of GPUs as an argument and requests only the first GPU of its tasks. If
            ``machine`` is given, its number of GPUs is used instead.
        machine: the devices, or their text form such as ``"worker*8: gpu*4"``; by default the
            smallest machine that has the requested devices.
        soft: whether the placer may use other devices than requested; by default the session
            configuration of the program, else False (the default of TensorFlow 1).
        args: command-line arguments; ``{gpus}`` is replaced by the number of GPUs, and
            ``{gpu_list}`` by ``0,1,…``. An argument with ``{each_gpu}`` is repeated for each GPU.
        v1: whether the program runs with the API of TensorFlow 1.
        let: values that replace assignments in the source, such as ``{"NUM_GPUS": "{gpus}"}``. For
            a function, its module is imported with these values.
        limit: the longest time until the first training step, in seconds; 300 by default.
        horovod: the number of ranks of a Horovod program, which have one GPU each. ``gpus`` is
            then not used, and ``machine`` must be None.

    Raises:
        UsageError: the target or machine is invalid, or ``gpus`` is below 1 or above 256.
        InputError: the target cannot be built, read or placed.
        PlacerError: the placer process died or hung.
    """
    from placement_checks.targets.forms import resolve
    from placement_checks.targets.importing import target_of_function

    settings = Settings(
        gpus=None if horovod else gpus,
        machine=machine,
        soft=soft,
        args=tuple(args),
        v1=v1,
        let=let,
        limit=limit,
        horovod=horovod or None,
    ).check()
    in_own_process = settings.of_process() != DEFAULTS
    if in_own_process and (callable(target) or isinstance(target, Program)):
        target = target_of_function(target)
    return request(resolve(target, settings), settings, for_one_gpu=True).placed()


@dataclass(frozen=True)
class Request:
    """A program to place.

    Attributes:
        built: the program.
        requested: its requested devices, and whether soft placement is allowed.
        machine: the devices to place it on.
        settings: its settings, with the policy that it declares itself.
        for_one_gpu: whether the program is also built for one GPU, for rules that use this build.
    """

    built: CapturedProgram
    requested: Placement
    machine: Machine
    settings: Settings
    for_one_gpu: bool

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence without assigned devices."""
        evidence = Evidence(self.requested, program=self.built, settings=self.settings)
        return with_single_gpu(evidence) if self.for_one_gpu else evidence

    def placed(self) -> Evidence:
        """Let the placer assign devices; errors are as for `place`."""
        from placement_checks.placer.placing import place_async

        graph_def = self.built.graph_def
        with (
            step(f"placing {self.requested.program}"),
            place_async(self.requested, graph_def, self.machine) as placed,
        ):
            evidence = self.evidence  # while the placer works
            with gc_paused():
                with contextlib.suppress(Exception):  # rules that need towers report the error
                    analyze(self.requested).prepare()
                return replace(evidence, placement=placed())


def request(program: Loadable, settings: Settings, *, for_one_gpu: bool = False) -> Request:
    """Build a program for the placer; errors are as for `place`.

    Args:
        program: the program or graph, resolved with the same settings.
        settings: the machine, the number of GPUs, and whether to place softly.
        for_one_gpu: as for `Request`.
    """
    gpus, soft = settings.gpus, settings.soft
    _check_installed()
    machine = settings.parse_machine()
    _start_placer()
    if settings.horovod:
        machine = Machine.of_ranks(settings.horovod)
    number = machine.towers if machine else gpus or _DEFAULT_GPUS
    from placement_checks.capture.programs import load  # imports TensorFlow

    built = load(program, number, machine, expects_one_gpu=for_one_gpu)
    placement = built.requested if soft is None else replace(built.requested, soft=soft)
    if gpus is None and _is_for_one_gpu(built, placement.strategy):
        number = 1
    if machine is None:
        machine = built.machine or Machine.smallest(_devices(placement), number, placement.program)
        if gpus is None and not (built.program and built.program.takes_num_gpus):
            # Most programs for clusters use one GPU in each task. A program that gets the number
            # of GPUs as an argument was built for the default number, and should use all of them.
            machine = machine.with_one_gpu_each(op.requested for op in placement.ops.values())
    limits.PLACED_TASKS.check(
        len(machine.tasks), placement.program, "name the tasks that a real cluster has"
    )
    machine = machine.limited(built.gpu_limits)
    return Request(built, placement, machine, _declared(settings, built), for_one_gpu)


def _is_for_one_gpu(built: CapturedProgram, strategy: Strategy | None) -> bool:
    """Whether a program trains under a strategy for one GPU, as a reference does.

    If the program hides all GPUs except one, a strategy for all visible GPUs has one replica, too,
    but does not count as a strategy for one GPU.
    """
    if strategy is None or strategy.gpus != 1:
        return False
    hides = built.visible is not None and built.visible.gpus < built.gpus
    return not hides or strategy.name == ONE_DEVICE


def requested(target: TargetLike, *, gpus: int = 2) -> Evidence:
    """Build a program or read a graph without placing it, and build it for one GPU.

    Args:
        target: as for `place`.
        gpus: the argument of the builder.

    Raises:
        UsageError: ``gpus`` is below 1 or above 256.
        InputError: the target cannot be built or read.
    """
    from placement_checks.targets.forms import resolve

    settings = Settings(gpus=gpus).check()
    return build(resolve(target), gpus, settings, for_one_gpu=True)


def build(
    program: Loadable, gpus: int, settings: Settings, *, for_one_gpu: bool = False
) -> Evidence:
    """Build a program or read a graph without placing it; arguments are as for `request`."""
    _check_installed()
    from placement_checks.capture.programs import load  # imports TensorFlow

    built = load(program, gpus, expects_one_gpu=for_one_gpu)
    evidence = Evidence(built.requested, program=built, settings=_declared(settings, built))
    return with_single_gpu(evidence) if for_one_gpu else evidence


def _check_installed() -> None:
    """Check that TensorFlow is installed, without importing it."""
    from placement_checks.tf.startup import check_installed

    check_installed()


def _declared(settings: Settings, program: CapturedProgram) -> Settings:
    """The settings, completed by the policy that a builder returned."""
    return replace(settings, policy=settings.policy.over(declared_by(program)))


def with_single_gpu(evidence: Evidence) -> Evidence:
    """Build the program of the evidence for one GPU, and add the result to the evidence.

    If its code sets the number of GPUs, the reason names the constants that may be this number.

    Raises:
        InputError: the program gets the number of GPUs, but ignores it.
    """
    if not evidence.program:
        return evidence
    single = single_gpu(evidence.program)
    if single:
        return replace(evidence, single_gpu=single.requested)
    if isinstance(single, FixedGpus) and evidence.program.program:
        with contextlib.suppress(Exception):  # rules that need towers report the error
            towers = len(analyze(evidence.placement).towers)
            single = offer_constants(single, evidence.program.program, towers)
    return replace(evidence, single_gpu=single)


def single_gpu(built: CapturedProgram) -> CapturedProgram | Missing:
    """The build of a program for one GPU; `Missing` if there is none besides ``built``."""
    from placement_checks.capture.programs import load_for_one_gpu

    other = load_for_one_gpu(built)
    if other is built:
        return Missing("the program itself was built for one GPU", "build it for several GPUs")
    return other


def _devices(placement: Placement) -> set[Device]:
    """The requested devices of a program.

    The GPU of an op is ignored if the op requests a job and is a no-op, or only reads or tests a
    variable. For such ops, a device function combines the job of the parameter server with the GPU
    of the worker, and the parameter server may have no GPU.
    """
    return {
        replace(op.requested, type=None, index=None)
        if op.requested.job and op.type in _REQUESTS_NO_DEVICE
        else op.requested
        for op in placement.ops.values()
    }


def prepare(*, placer: bool = True) -> None:
    """Import TensorFlow without its log lines; ``placer`` starts the placer at the same time.

    Raises:
        InputError: TensorFlow is not installed, or cannot be imported.
    """
    from placement_checks.tf.startup import check_installed, import_tensorflow

    check_installed()
    is_first = "tensorflow" not in sys.modules
    if placer:
        _start_placer()
    import_tensorflow()
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        is_command = main.__spec__.name == "placement_checks.__main__"
    else:
        is_command = Path(getattr(main, "__file__", None) or "").name == "placement-checks"
    if is_first and is_command:  # no program is loaded yet
        from placement_checks.capture.child_process.fork_server import fork_this_process

        fork_this_process(_clean_fork)


def _clean_fork() -> None:
    """Detach a fork of the command from the placer process, and unload the package click."""
    from placement_checks.placer.worker.client import phantom

    phantom.stop()
    for name in list(sys.modules):
        if name.partition(".")[0] == "click":
            del sys.modules[name]


def _start_placer() -> None:
    from placement_checks.placer.worker.client import phantom

    phantom.start()
