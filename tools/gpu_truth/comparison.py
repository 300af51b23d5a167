"""Compares predicted placements with the GPUs of this machine, op by op.

Each program of `programs` is placed on two GPUs that need not exist, and runs on two GPUs of this
machine, or on two logical GPUs if the machine has only one GPU. `ASSUMPTIONS` lists the
assumptions of predictions about GPUs. The runs show whether these assumptions hold.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from placement_checks.core.devices import VISIBLE_GPUS, Device, local_gpus
from placement_checks.core.errors import InputError, as_error
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import COLLECTIVES, FUNCTION_CALLS, NO_OP
from placement_checks.core.settings import Settings
from placement_checks.placer.request import name_in_body
from placement_checks.run.doctor.devices import physical_devices
from placement_checks.targets.forms import resolve
from placement_checks.tf.startup import INSTALL_CUDA
from placement_checks.util.child import Ended
from placement_checks.util.privacy import without_private_names
from placement_checks.util.progress import step, track
from placement_checks.util.text import join_and, listed, plural
from placement_checks.verification.placing import place, request

from . import programs
from .machine import Observed, Worker
from .programs import GPUS, PROGRAMS, Program

# Parts of the placer's errors (core/common_runtime/placer.cc and colocation_graph.cc).
_REFUSALS = ("Cannot assign a device for operation", "Cannot place the graph", "Cannot colocate")
_ERROR = re.compile(r"\b[A-Z]+(_[A-Z]+)*: ")  # such as INVALID_ARGUMENT:
_Answer = tuple[Literal["seen", "different", "not answered"], str]  # with the reason
_MOST_UNITS = 8.0  # units in the last place; sums in different orders differ by a few units


@dataclass(frozen=True, slots=True)
class OpDifference:
    """An op on another device than predicted.

    Attributes:
        op: the name of the op.
        type: the type of the op.
        predicted: the predicted device.
        found: the device on this machine.
        executed: whether ``found`` is the device in the executed graph, after all rewrites, rather
            than the answer of the placer.
    """

    op: str
    type: str
    predicted: str
    found: str
    executed: bool


@dataclass(frozen=True)
class ComparedProgram:
    """A program whose prediction was compared with this machine.

    Attributes:
        name: the name of the program.
        subject: the parts of TensorFlow that it uses, in a sentence.
        state: ``same``, ``different``, ``failed`` if it did not run here, or ``skipped``.
        predicted: the number of ops in the prediction.
        ops: the number of compared ops; the log lacks the other ops, or lists them twice.
        differences: the ops on other devices than predicted.
        reason: why the program failed or was skipped, or how it differs apart from
            ``differences``; or ``""``.
    """

    name: str
    subject: str
    state: Literal["same", "different", "failed", "skipped"]
    predicted: int = 0
    ops: int = 0
    differences: Sequence[OpDifference] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether an assumption of predictions holds on this machine.

    Attributes:
        assumption: the assumption, as in docs/machines.md.
        state: ``seen`` if it holds here, ``different`` if it does not, or ``not answered``.
        reason: the observation, or why there is none.
    """

    assumption: str
    state: Literal["seen", "different", "not answered"]
    reason: str


@dataclass(frozen=True)
class GpuComparison:
    """Predictions for two GPUs, compared with the GPUs of this machine.

    Attributes:
        devices: the two GPUs that ran the programs, in words.
        programs: the compared programs.
        answers: an answer for each assumption.
    """

    devices: str
    programs: Sequence[ComparedProgram]
    answers: Sequence[Answer]

    @property
    def is_as_predicted(self) -> bool:
        """Whether all programs that could run here ran as predicted."""
        return all(program.state in ("same", "skipped") for program in self.programs) and all(
            answer.state != "different" for answer in self.answers
        )


@dataclass(frozen=True)
class _Predicted:
    """The prediction for a program.

    Attributes:
        devices: by op, its type and assigned device.
        moved: the ops that get another device than requested.
        refused: the ops that strict placement refuses.
    """

    devices: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Run:
    """A program with its prediction and its run on this machine.

    Attributes:
        program: the program.
        predicted: the prediction; empty if there is none.
        observed: the run.
        compared: the comparison of the prediction with the run.
    """

    program: Program
    predicted: _Predicted
    observed: Observed
    compared: ComparedProgram

    @property
    def in_session(self) -> bool:
        """Whether the program ran in a session."""
        return self.program.kind == "graph" and self.compared.state in ("same", "different")


def compare_with_gpus(*, simulated: bool = False) -> GpuComparison:
    """Compare predictions with the GPUs of this machine, which takes some minutes.

    Args:
        simulated: whether CPU devices replace the GPUs. This tests the comparison itself, and
            answers nothing about GPUs.

    Raises:
        InputError: TensorFlow is not installed, or finds no GPU.
    """
    if not simulated and not local_gpus():
        fix = "run this on a machine with an NVIDIA GPU; one GPU is enough"
        what = "has no GPU that this process may use"
        raise InputError("this machine", what, fix, is_predicate=True)
    gpus, types = ([], ["CPU"]) if simulated else _found_gpus()
    runs = []
    for kind in ("graph", "eager"):  # each in its own process, because both create devices
        of_kind = [program for program in PROGRAMS.values() if program.kind == kind]
        with (
            _hidden_gpus(len(gpus)) as visible,
            Worker(simulated=simulated, environment={VISIBLE_GPUS: visible}) as machine,
        ):
            for program in track(of_kind, f"{kind} program"):
                if reason := _not_possible(program, len(gpus), simulated):
                    runs.append(_skipped(program, reason))
                    continue
                with step(f"running {program.name}"):
                    observed = machine.run(program.name)
                runs.append(_compare(program, observed, simulated))
    if simulated:
        devices = f"{GPUS} CPU devices instead of GPUs"
        reason = "CPU devices replaced the GPUs"
        answers = [Answer(text, "not answered", reason) for text, _, _ in ASSUMPTIONS]
    else:
        devices = _description(gpus)
        found = _Findings(runs, types)
        answers = [Answer(text, *answer(found)) for text, _, answer in ASSUMPTIONS]
    return GpuComparison(devices, [run.compared for run in runs], answers)


@contextlib.contextmanager
def _hidden_gpus(count: int) -> Iterator[str]:
    """Hide the GPUs from this process, so that predictions use no memory of the GPUs.

    A loop with gradients, for example, starts the eager runtime while the graph is built, and the
    eager runtime would take the memory.

    Args:
        count: the number of GPUs that TensorFlow finds.

    Yields:
        The value of ``CUDA_VISIBLE_DEVICES`` for a process that may use the GPUs.
    """
    before = os.environ.get(VISIBLE_GPUS)
    os.environ[VISIBLE_GPUS] = "-1"
    try:
        yield before or ",".join(map(str, range(count))) or "-1"
    finally:
        if before is None:
            del os.environ[VISIBLE_GPUS]
        else:
            os.environ[VISIBLE_GPUS] = before


def _found_gpus() -> tuple[Sequence[str], Sequence[str]]:
    """The GPUs that TensorFlow finds, in words, and the types of all devices."""
    try:
        with step("starting the GPUs"):
            devices = physical_devices()
    except Ended as ended:
        fix = "test the driver with nvidia-smi"
        raise InputError("the GPUs", f"the process that started them {ended.how}", fix) from None
    gpus = [device.description for device in devices if device.type == "GPU"]
    if not gpus:
        raise InputError("TensorFlow", "finds no GPU", INSTALL_CUDA, is_predicate=True)
    return gpus, [device.type for device in devices]


def _description(gpus: Sequence[str]) -> str:
    if len(gpus) < GPUS:
        return f"{GPUS} logical GPUs of 1 {gpus[0]}"
    counts = Counter(gpus[:GPUS])
    return join_and(f"{number} {name}" for name, number in counts.items())


def _not_possible(program: Program, gpus: int, simulated: bool) -> str:
    """Why a program cannot run here; ``""`` if it can."""
    if simulated and not program.on_cpus:
        return "needs a GPU"
    return f"needs {program.physical} physical GPUs" if program.physical > max(gpus, 1) else ""


def _skipped(program: Program, reason: str) -> _Run:
    compared = ComparedProgram(program.name, _subject(program), "skipped", reason=reason)
    return _Run(program, _Predicted(), Observed(error=reason), compared)


def _subject(program: Program) -> str:
    return " ".join((program.run.__doc__ or "").split())


def _compare(program: Program, observed: Observed, simulated: bool) -> _Run:
    """Predict the placement of a program, and compare it with its run."""
    predicted = _Predicted()
    if program.is_predicted:
        try:
            predicted = _predict(program, simulated)
        except Exception as fault:
            reason = f"cannot be predicted: {as_error('', fault).fault}"
            return _Run(program, predicted, observed, _failed(program, reason))
    is_refused = any(part in observed.error for part in _REFUSALS)
    if observed.error and not is_refused:
        return _Run(program, predicted, observed, _failed(program, observed.error))
    matched = _match(predicted, observed)
    differences = [
        OpDifference(op, predicted.devices[op][0], predicted.devices[op][1], device, executed)
        for found, executed in ((matched, False), (observed.executed, True))
        for op, device in found.items()
        if op in predicted.devices and device != predicted.devices[op][1]
    ]
    reason = ""
    if predicted.refused and not observed.error:
        reason = f"ran here, but the prediction refuses {listed(sorted(predicted.refused))}"
    elif is_refused and not any(op in observed.error for op in predicted.refused):
        reason = f"refused here: {_first_line(observed.error)}"
    elif program.is_predicted and not matched and not predicted.refused:
        reason = "no predicted op has the same name in the log"
    compared = ComparedProgram(
        program.name,
        _subject(program),
        "different" if differences or reason else "same",
        len(predicted.devices),
        len(matched),
        differences,
        reason,
    )
    return _Run(program, predicted, observed, compared)


def _failed(program: Program, reason: str) -> ComparedProgram:
    return ComparedProgram(program.name, _subject(program), "failed", reason=_first_line(reason))


def _first_line(error: str) -> str:
    """The first line of an error; if it only introduces a list, with the first error listed."""
    first, *others = without_private_names(error).splitlines() or [""]
    if not first.endswith(":"):
        return first
    named = [line.strip() for line in others if line.strip()]
    errors = [line for line in named if _ERROR.search(line)]
    return " ".join([first, *(errors or named)[:1]])


def _predict(program: Program, simulated: bool) -> _Predicted:
    target = f"{programs.__name__}:{program.name}"
    soft = program.soft if program.kind == "graph" else None
    with step(f"predicting {program.name}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if simulated:
            asked = request(resolve(target), Settings(gpus=GPUS, soft=soft))
            graph = programs.import_on_cpus(asked.built.graph_def)
            cpus = Machine.local(0, cpus=GPUS + 1)
            evidence = place(graph, machine=cpus, soft=asked.requested.soft)
        else:
            evidence = place(target, gpus=GPUS, soft=soft)
    placement = evidence.placement
    if not placement.assigned and not placement.refusals:
        raise InputError("", str(placement.assigned))
    assigned = {op.name: op for op in placement.ops.values() if op.assigned}
    return _Predicted(
        {name: (op.type, str(op.assigned)) for name, op in assigned.items()},
        frozenset(name for name, op in assigned.items() if op.fallback_reason),
        frozenset(refusal.op for refusal in placement.refusals),
    )


def _match(predicted: _Predicted, observed: Observed) -> Mapping[str, str]:
    """The logged device of each predicted op, if the log has an op of the same name and type.

    The step of a strategy or of Keras may be a function that other functions call. The log then
    adds a prefix to the names of its ops. The prefix with the most matches is removed.
    """
    logged: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for node, (kind, device) in observed.placed.items():
        logged[name_in_body(node)].add((kind, device))
    prefixes: Counter[str] = Counter()
    devices: dict[tuple[str, str], str] = {}  # by the name and type of a node
    for name, placed in logged.items():
        if len(placed) > 1:
            continue  # a function that is called on several devices
        ((kind, device),) = placed
        devices[name, kind] = device
        for prefix, rest in _splits(name):
            if predicted.devices.get(rest, ("",))[0] == kind:
                prefixes[prefix] += 1
    if not prefixes:
        return {}
    ((prefix, _),) = prefixes.most_common(1)
    return {
        op: devices[prefix + op, kind]
        for op, (kind, _) in predicted.devices.items()
        if kind != NO_OP and (prefix + op, kind) in devices
    }


def _splits(name: str) -> Iterable[tuple[str, str]]:
    """All ways to split a name into a prefix of scopes, which may be empty, and the rest."""
    yield "", name
    for at, letter in enumerate(name):
        if letter == "/":
            yield name[: at + 1], name[at + 1 :]


class _Findings:
    """Answers whether each assumption holds, from the runs and the types of all devices."""

    def __init__(self, runs: Sequence[_Run], types: Sequence[str]) -> None:
        self._runs = {run.program.name: run for run in runs}
        self._types = types

    def placed_in_sessions(self) -> _Answer:
        runs = [run for run in self._runs.values() if run.in_session]
        if apart := [run.compared for run in runs if run.compared.reason]:
            reasons = "; ".join(f"{program.name}: {program.reason}" for program in apart)
            return "different", reasons
        return _answer(runs, [_wrong(run, executed=False) for run in runs])

    def kernels(self) -> _Answer:
        """Whether the same ops fall back to the CPU."""
        runs = [run for run in self._runs.values() if run.in_session and run.predicted.moved]
        wrong = [
            [each for each in _wrong(run, executed=False) if _changes_type(each)] for run in runs
        ]
        return _answer(runs, wrong, count=lambda run: len(run.predicted.moved))

    def device_types(self) -> _Answer:
        others = sorted(set(self._types) - {"CPU", "GPU"})
        if others:
            return "different", f"this machine also has {join_and(others)}"
        return "seen", "TensorFlow lists only CPU and GPU devices"

    def variables(self) -> _Answer:
        run = self._runs["variables_without_devices"]
        found = run.observed.facts.get("variables")
        if not found:
            return _unanswered(run)
        predicted = {
            name: run.predicted.devices[name][1] for name in found if name in run.predicted.devices
        }
        wrong = [
            f"{name} is on {_short(found[name])}, predicted on {_short(device)}"
            for name, device in predicted.items()
            if device != found[name]
        ]
        if wrong:
            return "different", join_and(wrong)
        return "seen", f"{join_and(predicted)} are on their predicted devices"

    def collectives(self) -> _Answer:
        runs = [
            run
            for run in self._runs.values()
            if run.program.name.startswith("mirrored_strategy") and run.observed.facts
        ]
        if not runs:
            return _unanswered(self._runs["mirrored_strategy"])
        notes = []
        for run in runs:
            predicted = _collectives(run.predicted.devices.values())
            used = _collectives(run.observed.placed.values())
            if predicted != used:
                return "different", f"{run.program.name} uses {used}, predicted {predicted}"
            hints = join_and(run.observed.facts["hints"]) or "no"
            notes.append(f"{run.program.name} uses {used} with {hints} hint")
        return "seen", "; ".join(notes)

    def sums(self) -> _Answer:
        run = self._runs["sums_of_nccl"]
        if "units" not in run.observed.facts:
            return _unanswered(run)
        units = run.observed.facts["units"]
        reason = f"the largest error is {units:.1f} units in the last place"
        return "seen" if units <= _MOST_UNITS else "different", reason

    def compiled(self) -> _Answer:
        run = self._runs["compiled_by_xla"]
        if run.compared.state == "failed":
            return _unanswered(run)
        calls = {
            node: device
            for node, (kind, device) in run.observed.placed.items()
            if kind in FUNCTION_CALLS
        }
        bodies = {
            call: {
                device
                for op, (kind, device) in run.predicted.devices.items()
                if op.startswith(f"{call}/") and kind != NO_OP
            }
            for call in calls
        }
        checked = {call: devices for call, devices in bodies.items() if devices}
        if not checked:
            return "not answered", "the log has no call that XLA compiles"
        apart = [call for call, devices in checked.items() if devices != {calls[call]}]
        if apart:
            return (
                "different",
                f"ops of {listed(apart)} are predicted on other devices than their call",
            )
        return "seen", f"{plural(len(checked), 'call')}, each on the same device as all its ops"

    def rewrites(self) -> _Answer:
        runs = [run for run in self._runs.values() if run.in_session and run.observed.executed]
        wrong = [_wrong(run, executed=True) for run in runs]
        return _answer(
            runs,
            wrong,
            count=lambda run: len(run.observed.executed.keys() & run.predicted.devices.keys()),
        )

    def kernels_run(self) -> _Answer:
        failed = [run for run in self._runs.values() if run.compared.state == "failed"]
        if failed:
            reasons = "; ".join(f"{run.program.name}: {run.compared.reason}" for run in failed)
            return "different", reasons
        ran = [run for run in self._runs.values() if run.compared.state != "skipped"]
        return "seen", f"{plural(len(ran), 'program')} ran; no large model was tried"

    def times(self) -> _Answer:
        return "not answered", "measure it: placement-checks time"


def _answer(
    runs: Sequence[_Run],
    wrong: Sequence[Sequence[OpDifference]],
    count: Callable[[_Run], int] = lambda run: run.compared.ops,
) -> _Answer:
    total = sum(map(count, runs))
    if not total:
        return "not answered", "no program ran"
    number = sum(map(len, wrong))
    programs = plural(len(runs), "program")
    if number:
        reason = (
            f"{number:,} of {plural(total, 'op')} of {programs} are not on their predicted devices"
        )
        return "different", reason
    return "seen", f"{plural(total, 'op')} of {programs}"


def _unanswered(run: _Run) -> _Answer:
    reason = run.compared.reason or "it returned no result"
    return "not answered", f"{run.program.name}: {reason}"


def _wrong(run: _Run, *, executed: bool) -> list[OpDifference]:
    return [each for each in run.compared.differences if each.executed == executed]


def _changes_type(difference: OpDifference) -> bool:
    devices = (Device.parse(difference.predicted), Device.parse(difference.found))
    return devices[0].type != devices[1].type


def _collectives(placed: Iterable[tuple[str, str]]) -> str:
    """The types of collective ops with their devices, in words."""
    found = sorted({(kind, device) for kind, device in placed if kind in COLLECTIVES})
    return join_and(f"{kind} on {_short(device)}" for kind, device in found) or "none"


def _short(device: str) -> str:
    return Device.parse(device).short


# The rows of the table in docs/machines.md: an assumption, the rules or commands that depend
# on it, and the method that answers whether it holds.
ASSUMPTIONS: Final[Sequence[tuple[str, str, Callable[[_Findings], _Answer]]]] = (
    (
        "a session on real GPUs places each node as the placer does for GPUs that need not exist",
        "every rule on placements",
        _Findings.placed_in_sessions,
    ),
    (
        "GPUs have the kernels that the installed wheel registers; memory, compute capability, "
        "NUMA node and links are not considered",
        "`no-fallback`, `placeable`",
        _Findings.kernels,
    ),
    (
        "the machine has no MIG slices, XLA devices or plug-in devices, unless its description "
        "names them",
        "the machine",
        _Findings.device_types,
    ),
    (
        "eager code puts a variable that requests no device on the first GPU, if its dtype has a "
        "kernel there",
        "`variables-on-host`, `slots-with-variables`",
        _Findings.variables,
    ),
    (
        "`MirroredStrategy` on GPUs sums with `CollectiveReduceV2` and the communication hint "
        "`nccl`, or with `NcclAllReduce` if configured",
        "`replicas-in-sync`, copies between GPUs",
        _Findings.collectives,
    ),
    (
        "NCCL and CPU devices compute the same sums, except for the last bits",
        "`gradients-equal`, `weights-equal`",
        _Findings.sums,
    ),
    (
        "all ops that XLA compiles into one unit are predicted on the device of this unit",
        "all placements in a step with `jit_compile`",
        _Findings.compiled,
    ),
    (
        "TensorFlow's rewrites after placement, such as layouts and fused ops, do not move the "
        "original ops",
        "all placements",
        _Findings.rewrites,
    ),
    (
        "all kernels run; limits of kernels, memory and drivers are not considered",
        "a program that fails at its first step",
        _Findings.kernels_run,
    ),
    (
        "the time of an op on a CPU predicts only order and overlap on GPUs",
        "`time`, [timing](timing.md)",
        _Findings.times,
    ),
)
