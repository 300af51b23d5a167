"""Gathers the evidence that rules judge: what a program requests, and where its ops are placed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.core.devices import Device, Devices, checked_gpus, local_gpus
from placement_checks.core.errors import UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import INITIALISATION_TESTS, NO_OP, VARIABLE_READS
from placement_checks.core.placement import Placement
from placement_checks.core.program import BuiltProgram, Target
from placement_checks.core.script import Script
from placement_checks.util.progress import step
from placement_checks.util.resources import gc_paused

_REQUESTS_NO_DEVICE = VARIABLE_READS | INITIALISATION_TESTS | {NO_OP}


def place(
    target: Target,
    *,
    gpus: int = 2,
    machine: Machine | str | None = None,
    soft: bool | None = None,
    devices: Devices = "auto",
    args: Sequence[str] = (),
    v1: bool = False,
    let: Mapping[str, str] = MappingProxyType({}),
    limit: float | None = None,
) -> Evidence:
    """The device that each op of a program or graph requests, and the one the placer assigns.

    A program that is named as a whole, ``train.py``, is run until its first training step, in a
    process of its own. The last four arguments are for it.

    Args:
        target: a builder, a `Program`, a ``tf.Graph``, the path of a saved graph, or any of them
            as the command line names it (``train.py:build_towers``).
        gpus: the number of GPUs that the builder gets, and that a host or worker has.
        machine: the devices, or their written form such as ``"worker*8: gpu*4"``; by default the
            smallest machine that the graph's device names need.
        soft: whether the placer may use other devices than requested; by default what the
            program's session configuration says, else not (TensorFlow 1's default).
        devices: ``auto`` asks the placer of this machine's GPUs where these are the devices,
            ``real`` asks no other, ``simulated`` never does.
        args: the arguments of its command line; in them ``{gpus}`` stands for the number of GPUs,
            ``{gpu_list}`` for ``0,1,…``.
        v1: whether it means TensorFlow 1 by ``import tensorflow``.
        let: values of names that its source holds, such as ``{"NUM_GPUS": "{gpus}"}``.
        limit: seconds that it may take until its first training step; 300 by default.

    Raises:
        UsageError: the target or machine is not valid, or ``gpus`` is below 1 or above 256.
        InputError: the target cannot be built, read or placed.
        PlacerError: the placer process died or hung.
    """
    from placement_checks.targets.names import script_from_target

    program = script_from_target(target, args, v1=v1, let=let, limit=limit)
    return request(program, gpus=gpus, machine=machine, soft=soft).placed(devices)


@dataclass(frozen=True)
class Request:
    """What is sent to the placer: a program, what it asks for, and the machine.

    Attributes:
        built: the program.
        requested: the devices that it requests, and whether it may be placed softly.
        machine: the devices.
    """

    built: BuiltProgram
    requested: Placement
    machine: Machine

    @cached_property
    def evidence(self) -> Evidence:
        """What is known of the program before it is placed."""
        return _evidence_of(self.built, self.requested)

    def placed(self, devices: Devices = "auto") -> Evidence:
        """Where the placer puts the ops; as for `place`."""
        from placement_checks.placer.placing import place_async

        graph_def = self.built.graph_def
        with (
            step(f"placing {self.requested.program}"),
            place_async(self.requested, graph_def, self.machine, devices) as placed,
        ):
            evidence = self.evidence  # while the placer works
            with gc_paused():
                self._analyse()
                return replace(evidence, placement=placed())

    def _analyse(self) -> None:
        """Analyse the towers; where that fails, the rules that need it tell."""
        with contextlib.suppress(Exception):
            analyse(self.requested).prepare()


def request(
    target: Target,
    *,
    gpus: int = 2,
    machine: Machine | str | None = None,
    soft: bool | None = None,
) -> Request:
    """What `place` sends to the placer; the arguments are the same."""
    checked_gpus(gpus)
    _check(target)
    if isinstance(machine, str):
        machine = Machine.parse(machine)
    elif not isinstance(machine, Machine | None):
        raise UsageError(
            f"machine {machine!r:.60}",
            "is not a machine",
            "write it like 'gpu*4' or 'worker*8: gpu*4'",
        )
    _start_placer()
    if machine is not None:
        gpus = machine.towers
    built = _load(target, gpus, machine)
    placement = built.requested if soft is None else replace(built.requested, soft=soft)
    if placement.strategy is not None and placement.strategy.gpus == 1:
        gpus = 1  # it is for one, as a reference is
    machine = machine or built.machine or Machine.smallest(_devices(placement), gpus)
    return Request(built, placement, machine)


def requested(target: Target, *, gpus: int = 2) -> Evidence:
    """The device that each op of a program or graph requests; no placer is asked.

    Args:
        target: as for `place`.
        gpus: the number of GPUs that the builder gets.

    Raises:
        UsageError: ``gpus`` is below 1 or above 256.
        InputError: the target cannot be built or read.
    """
    checked_gpus(gpus)
    _check(target)
    built = _load(target, gpus)
    return _evidence_of(built, built.requested)


def _load(target: Target, gpus: int, machine: Machine | None = None) -> BuiltProgram:
    from placement_checks.capture.programs import load

    return load(target, gpus, machine)


def _evidence_of(built: BuiltProgram, requested: Placement) -> Evidence:
    single = single_gpu(built)
    return Evidence(
        requested,
        program=built,
        single_gpu=single.requested if single else single,
        policy=built.step.policy,
    )


def single_gpu(built: BuiltProgram) -> BuiltProgram | Missing:
    """The program for one GPU; missing where it is that, or cannot be."""
    other = built.for_gpus(1)
    return Missing("it was built for one GPU") if other is built else other


def _check(target: Target) -> None:
    """Check a target as far as that needs no TensorFlow, and that it is there for the rest.

    Raises:
        InputError: it names nothing that can be loaded, or TensorFlow is not installed.
    """
    from placement_checks.targets.names import check_target
    from placement_checks.tf.startup import check_installed

    if isinstance(target, Script):
        target = target.target
    if isinstance(target, str | Path):
        check_target(target)
    check_installed()


def _devices(placement: Placement) -> set[Device]:
    """The devices that a program asks for.

    An op that only follows a variable does not ask for a GPU, nor does one that computes nothing:
    under a device function both get the variable's job and the worker's GPU, which the parameter
    server need not have.
    """
    return {
        replace(op.requested, type=None, index=None)
        if op.requested.job and op.type in _REQUESTS_NO_DEVICE
        else op.requested
        for op in placement.ops.values()
    }


def prepare(*, placer: bool = True) -> None:
    """Load TensorFlow, without its log lines; ``placer`` starts the placer process beside it.

    Raises:
        InputError: TensorFlow is not installed, or does not load.
    """
    from placement_checks.tf.startup import check_installed, import_tensorflow

    check_installed()
    is_first = "tensorflow" not in sys.modules
    if placer:
        _start_placer()
    import_tensorflow()
    if is_first and _is_command():
        from placement_checks.capture.child_process.fork_server import fork_this_process

        fork_this_process(_let_go)


def _is_command() -> bool:
    """Whether this process is the command, which holds nothing yet of any program."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name == "placement_checks.__main__"
    return Path(getattr(main, "__file__", None) or "").name == "placement-checks"


def _let_go() -> None:
    """Leave a fork of the command without its placer process, and its libraries not imported."""
    from placement_checks.placer.worker.client import phantom

    phantom.stop()
    for name in list(sys.modules):
        if name.partition(".")[0] == "click":
            del sys.modules[name]


def _start_placer() -> None:
    """Let the placer process load TensorFlow meanwhile, where no GPU here could answer instead."""
    from placement_checks.placer.worker.client import phantom

    if not local_gpus():
        phantom.start()
