"""Checks that programs can be checked on this machine, by trying each part once.

A check never raises an exception: a failure is its result. Private names are removed from error
messages, because users send the results to others.
"""

from __future__ import annotations

import os
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from placement_checks.core.checkup import Check, Checkup
from placement_checks.core.devices import VISIBLE_GPUS, local_gpus, present_gpus
from placement_checks.core.errors import InputError, as_error
from placement_checks.core.versions import versions
from placement_checks.tf.keras import LEGACY_KERAS, comes_with_keras_2, uses_tf_keras
from placement_checks.tf.startup import INSTALL_CUDA, build_info, limit_of_installation
from placement_checks.util.child import Ended
from placement_checks.util.privacy import without_private_names
from placement_checks.util.progress import step
from placement_checks.util.resources import available_memory
from placement_checks.util.text import file_size, join_and, plural
from placement_checks.verification.judging import verify
from placement_checks.verification.placing import place, prepare
from placement_checks.verification.running import with_numbers

_GPUS = 8  # simulated GPUs in the check of the placer
_SAMPLE = "placement_checks.run.doctor.sample"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"  # environment variable of TensorFlow
_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
_LEAST_MEMORY = 2_000_000_000  # bytes; `verify` takes about 1.1 GB for a small program
_OLDEST, _NEWEST = (2, 15), (2, 21)  # versions of TensorFlow that the tests run with


def examine() -> Checkup:
    """Check this machine, which takes about ten seconds."""
    return Checkup(list(_checks()))


def _checks() -> Iterator[Check]:
    yield _tried("python", _python)
    yield _tried("memory", _memory)
    yield _tried("files", _files)
    tensorflow = _tried("tensorflow", _tensorflow)
    yield tensorflow
    if tensorflow.state == "missing":
        return
    yield _tried("keras", _keras)
    placer = _tried("placer", _placer)
    yield placer
    if placer.state != "missing":
        yield _tried("isolation", _isolation)
    yield _tried("programs", _programs)
    yield _tried("numbers", _numbers)
    yield _tried("GPUs", _gpus)
    if local_gpus():
        yield _tried("GPU memory", _gpu_memory)


def _tried(name: str, check: Callable[[], Check]) -> Check:
    """The result of a check; an exception becomes the result."""
    try:
        with step(f"checking {name}"):
            return check()
    except Exception as fault:
        error = as_error("", fault)
        message = error.message if error.object == name else error.fault
        found = ": ".join([message, *error.details.splitlines()[-1:]])
        return Check(name, "missing", without_private_names(found), error.fix)


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return Check("python", "ok", found)
    fix = "check placements on Linux x86-64, the only system with GPU kernels in its wheel"
    return Check("python", "limited", found, fix)


def _tensorflow() -> Check:
    limit = limit_of_installation()
    try:
        build = build_info()
        prepare(placer=False)  # the check of the placer measures its start
    except InputError as error:
        reason = error.message if limit is None else limit.reason.removeprefix("tensorflow ")
        return Check("tensorflow", "missing", reason, error.fix)
    version = versions()["tensorflow"] or "of an unknown version"
    if limit is not None:  # the check of the placer has the fix
        return Check("tensorflow", "limited", f"{version}, a build without GPU kernels")
    found = f"{version}, with GPU kernels for CUDA {build.get('cuda_version', '')}".rstrip()
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if number and not _OLDEST <= number <= _NEWEST:
        tested = " to ".join(".".join(map(str, each)) for each in (_OLDEST, _NEWEST))
        found = f"{found}; this package is tested with {tested}"
        return Check("tensorflow", "limited", found, "install one of these versions")
    return Check("tensorflow", "ok", found)


def _keras() -> Check:
    name = "tf_keras" if uses_tf_keras() else "keras"
    chosen = f", chosen by {LEGACY_KERAS}" if uses_tf_keras() else ""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = f"{name} is not installed{chosen}: programs that use Keras cannot be checked"
        return Check("keras", "limited", found, f"pip install {name}")
    generation = 2 if uses_tf_keras() or comes_with_keras_2() else 3
    return Check("keras", "ok", f"{name} {version}, Keras {generation}{chosen}")


def _memory() -> Check:
    free = available_memory()
    cores = plural(len(os.sched_getaffinity(0)), "core")
    if free is None:
        return Check("memory", "ok", f"{cores}; the free memory is unknown")
    found = f"{file_size(free)} free, {cores}"
    if free < _LEAST_MEMORY:
        fix = f"free memory: a small program needs about {file_size(_LEAST_MEMORY)}"
        return Check("memory", "limited", found, fix)
    return Check("memory", "ok", found)


def _files() -> Check:
    """Whether files can be written. Temporary files are required, the cache is not."""
    from placement_checks.run.feeding.batches import case_directory

    try:
        tempfile.TemporaryFile().close()
    except OSError:
        found = "no writable directory for temporary files"
        return Check("files", "missing", found, "set TMPDIR to a writable directory")
    try:
        directory = case_directory()
        while not directory.exists():
            directory = directory.parent
        tempfile.TemporaryFile(dir=directory).close()
    except (OSError, RuntimeError):
        found = "the cache directory is read-only: failed comparisons are not saved"
        return Check("files", "limited", found, "set XDG_CACHE_HOME to a writable directory")
    return Check("files", "ok", "temporary files and the cache can be written")


def _placer() -> Check:
    begin = time.monotonic()
    placement = place(f"{_SAMPLE}:build", gpus=_GPUS).placement
    seconds = time.monotonic() - begin
    if not placement.assigned:
        return Check("placer", "missing", placement.assigned.reason, placement.assigned.fix)
    on_gpus = {op.assigned for op in placement.ops.values() if op.assigned and op.assigned.is_gpu}
    if len(on_gpus) != _GPUS:
        found = f"placed ops of {_GPUS} towers on {plural(len(on_gpus), 'GPU')}"
        return Check("placer", "missing", found, "report this as a bug")
    ops = plural(len(placement.ops), "op")
    found = f"started, and placed {ops} on {_GPUS} GPUs that do not exist, in {seconds:.1f} s"
    return Check("placer", "ok", found)


def _isolation() -> Check:
    """Whether other users of this machine can reach the placer that `_placer` has started."""
    from placement_checks.placer.worker.client import phantom
    from placement_checks.placer.worker.main import OPEN_PORT, SHARED_NETWORK

    shared = f"{SHARED_NETWORK} is set" if SHARED_NETWORK in os.environ else "no network namespace"
    match phantom.isolation:
        case "own-network":
            return Check("isolation", "ok", "the placer has a network of its own")
        case "filtered":
            found = f"{shared}, but the port of the placer is closed to other users"
            return Check("isolation", "ok", found)
        case "open":
            found = f"{shared}, and {OPEN_PORT} is set: other users can reach the placer"
            return Check("isolation", "limited", found, f"unset {OPEN_PORT}")
    return Check("isolation", "limited", "unknown, because the placer has ended")


def _programs() -> Check:
    from placement_checks.run.doctor import sample

    begin = time.monotonic()
    evidence = place(sample.__file__, gpus=2, args=["{gpus}"])
    seconds = time.monotonic() - begin
    ops = plural(len(evidence.ops), "op")
    found = f"captured a whole program of {ops} at its first training step, in {seconds:.1f} s"
    return Check("programs", "ok", found)


def _numbers() -> Check:
    begin = time.monotonic()
    evidence = place(f"{_SAMPLE}:build", gpus=2)
    rules = ("gradients-equal", "weights-equal")
    evidence = with_numbers(
        evidence, f"{_SAMPLE}:build", f"{_SAMPLE}:batch", devices="simulated", only=rules
    )
    seconds = time.monotonic() - begin
    for verdict in verify(evidence, only=rules).verdicts:
        if verdict.state != "kept":
            found = f"{verdict.rule} is {verdict.state.replace('-', ' ')} for a sound program"
            reason = verdict.reason or verdict.findings[0].message
            return Check("numbers", "missing", without_private_names(f"{found}: {reason}"))
    found = f"2 towers on CPU devices trained like 1 GPU, in {seconds:.1f} s"
    return Check("numbers", "ok", found)


def _gpus() -> Check:
    present, visible = present_gpus(), local_gpus()
    if not present:
        return Check("GPUs", "ok", "none here, and none are needed")
    if not visible:
        found = f"{VISIBLE_GPUS} hides {plural(present, 'GPU')}; none are needed"
        return Check("GPUs", "ok", found)
    driver = f"driver {_driver_version()}"
    hide = f"use CPU devices instead: {VISIBLE_GPUS}=-1"
    from placement_checks.run.doctor.devices import physical_devices

    try:
        gpus = [device.description for device in physical_devices() if device.type == "GPU"]
    except Ended as ended:
        reason = f"a process that started the GPUs {ended.how} ({driver})"
        return Check("GPUs", "limited", reason, f"test the driver with nvidia-smi, or {hide}")
    if len(gpus) < visible:
        reason = f"TensorFlow finds {len(gpus)} of {plural(visible, 'GPU')} ({driver})"
        return Check("GPUs", "limited", reason, f"{INSTALL_CUDA}; or {hide}")
    names = join_and(f"{number} {name}" for name, number in Counter(gpus).items())
    return Check("GPUs", "ok", f"{names}, {driver}")


def _gpu_memory() -> Check:
    """Whether a process takes all memory of its GPUs, so that no other process can use them."""
    if os.environ.get(GROWTH, "").lower() == "true":
        return Check("GPU memory", "ok", f"grows as needed ({GROWTH})")
    found = "a process that runs a program takes all memory of its GPUs, unless the program sets "
    fix = f"to run several processes on one GPU, set {GROWTH}=true"
    return Check("GPU memory", "ok", f"{found}allow_growth", fix)


def _driver_version() -> str:
    try:
        text = _DRIVER_VERSION.read_text()
    except OSError:
        return "unknown"
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return found[1] if found else "unknown"
