"""Hostile files: logs, baselines, graphs, configurations and saved cases from a stranger.

None may cost hours or gigabytes, raise a traceback of ours, write control characters, or pass in
silence. The command runs in a process that is used again, because starting it takes longer than
most trials. For files that need no TensorFlow, the process forks for each trial.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from .base import ROOT, Execution, Outcome, Trial

_SECONDS = 60.0  # more is a fault; a graph that ends the placer takes three starts of TensorFlow
_MEGABYTES = 1500.0  # TensorFlow alone takes 500
_KILLED = 180.0  # seconds until the command is ended
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]")
_STATUSES = (0, 1, 2)

Write = Callable[[Path], object]


@dataclass(frozen=True)
class _Case:
    """A hostile file.

    Attributes:
        name: what is hostile.
        write: writes the file, given its path.
        allowed: the exit statuses that are right.
        file: the name of the file.
    """

    name: str
    write: Write
    allowed: Collection[int] = _STATUSES
    file: str = ""


def trials(seed: int, count: int) -> Iterator[Trial]:
    """Yield trials of all kinds of files in turn."""
    sys.path.append(str(ROOT / "tests"))  # for `support`
    kinds: list[tuple[str, Callable[[Path, str], list[str]], Iterator[_Case], bool]] = [
        ("log", lambda _, name: ["verify", name], _logs(Random(seed), verifies=True), False),
        (
            "log",
            lambda _, name: ["log", name, "--format", "json"],
            _logs(Random(seed + 1), verifies=False),
            False,
        ),
        ("configuration", lambda *_: ["verify", "good.log"], _configurations(seed), False),
        ("baseline", _compare_baseline, _baselines(Random(seed)), True),
        ("graph", lambda _, name: ["verify", name], _graphs(Random(seed)), True),
        ("case", _use_case, _saved_cases(Random(seed)), True),
    ]
    left = count
    for kind, arguments, cases, needs_tensorflow in kinds:
        for case in cases:
            if not left:
                return
            left -= 1
            yield Trial(
                "files", f"{kind}: {case.name}", partial(_run, case, arguments, needs_tensorflow)
            )


def _run(
    case: _Case, arguments: Callable[[Path, str], list[str]], needs_tensorflow: bool
) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="trial_") as name:
        folder = Path(name)
        file = case.file or "file"
        (folder / "good.log").write_bytes(_GOOD_LOG)
        case.write(folder / file)
        worker = _worker(needs_tensorflow)
        done = worker.run(arguments(folder, file), folder)
    wrong = ""
    if done.status not in case.allowed:
        wrong = f"status {done.status}: {(done.err or done.out)[-300:]}"
    elif match := _CONTROL.search(done.out + done.err):
        wrong = f"writes {match[0]!r}"
    elif done.seconds > _SECONDS:
        wrong = f"takes {done.seconds:.0f} s"
    elif done.megabytes > _MEGABYTES:
        wrong = f"takes {done.megabytes:.0f} MB"
    return Outcome(
        wrong_verdict=wrong,
        traceback=done.traceback,
        seconds=done.seconds,
        megabytes=done.megabytes,
    )


# The process that runs the commands


class _Worker:
    """A process that runs commands one after the other; a new one starts if it ends."""

    def __init__(self, needs_tensorflow: bool) -> None:
        self._mode = "inline" if needs_tensorflow else "fork"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, arguments: list[str], folder: Path) -> Execution:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE.format(root=str(ROOT), mode=self._mode)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                process_group=0,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            )
        assert process.stdin
        assert process.stdout
        begin = time.monotonic()
        answer: dict[str, Any] = {}
        try:
            process.stdin.write(json.dumps([arguments, str(folder)]).encode() + b"\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], _KILLED)[0]:
                answer = json.loads(process.stdout.readline() or b"{}")
        except BrokenPipeError:
            pass
        if not answer:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return Execution(-9, "", "", time.monotonic() - begin, 0.0)
        return Execution(**answer)


@cache
def _worker(needs_tensorflow: bool) -> _Worker:
    return _Worker(needs_tensorflow)


_SERVE = """
import sys
sys.path.insert(0, {root!r})
from tools.trials.files import serve
serve({mode!r})
"""


def serve(mode: str) -> None:
    """Run commands: each line of standard input is a list of arguments, and a directory."""
    from placement_checks import cli

    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    if mode == "inline":
        import tensorflow  # noqa: F401
    else:
        from placement_checks.cli import log, verify  # noqa: F401
        from placement_checks.rules.registry import RULES  # noqa: F401
    for line in sys.stdin.buffer:
        arguments, folder = json.loads(line)
        measure = _inline if mode == "inline" else _forked
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            call = partial(_call, cli.main, arguments, folder, out.fileno(), err.fileno())
            status, megabytes, seconds = measure(call)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read(1 << 22).decode(errors="replace"))
        answer = {
            "status": status,
            "out": texts[0],
            "err": texts[1],
            "seconds": seconds,
            "megabytes": megabytes,
        }
        answers.write(json.dumps(answer).encode() + b"\n")


def _call(main: Callable[[], None], arguments: list[str], folder: str, out: int, err: int) -> int:
    saved = [os.dup(1), os.dup(2)]
    here = Path.cwd()
    os.chdir(folder)
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.argv = ["placement-checks", *arguments]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.chdir(here)
        for stream, old in zip((1, 2), saved, strict=True):
            os.dup2(old, stream)
            os.close(old)
    return 0


def _inline(call: Callable[[], int]) -> tuple[int, float, float]:
    began = time.monotonic()
    Path("/proc/self/clear_refs").write_text("5")  # the largest memory counts from here
    status = call()
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return status, int(peak[1]) / 1024 if peak else 0.0, time.monotonic() - began


def _forked(call: Callable[[], int]) -> tuple[int, float, float]:
    """Run in a fork. The seconds are CPU time, which other processes change little."""
    child = os.fork()
    if not child:
        try:
            status = call()
        except BaseException:
            status = 70
        os._exit(status)
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1024, seconds


def _text(text: str) -> Write:
    return lambda path: path.write_text(text)


def _bytes(data: bytes) -> Write:
    return lambda path: path.write_bytes(data)


def _special_paths() -> Iterator[tuple[str, Write]]:
    yield "a link to itself", lambda path: path.symlink_to(path)
    yield "two links to each other", _link_in_a_circle
    yield "a link to nothing", lambda path: path.symlink_to("nowhere")
    yield "a directory", lambda path: path.mkdir()


def _link_in_a_circle(path: Path) -> None:
    other = path.with_name("other")
    other.symlink_to(path)
    path.symlink_to(other)


# Logs

_GPU = "/job:localhost/replica:0/task:0/device:GPU:{}"
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_GOOD_LOG = "".join(
    [
        *(f"{_GPU.format(gpu)} -> device: {gpu}, name: K40, pci bus id: 0\n" for gpu in range(2)),
        *(f"w{number}: (VariableV2): {_CPU}\n" for number in range(4)),
        *(
            f"tower_{gpu}/x_{number}: (MatMul): {_GPU.format(gpu)}\n"
            for gpu in range(2)
            for number in range(20)
        ),
    ]
).encode()
_FRAGMENTS = [
    *(b"x", b"tower_1/w", b": (", b"MatMul", b"): ", b")", b"/job:", b" ", b"\n", b"\\n"),
    *(_GPU.format(1).encode(), b"/job:ps/replica:0/task:1/cpu:0", b"/job:localhost/repl"),
    *(b"GPU:1y", b"9" * 30, b"\x1b[31m", b"["),
    *(b"ca:0/task:0/device:GPU:1\n", b"(unspecified)", b"\xf6", b"\xe2\x80\xae", b"\0"),
    *(b"2018-10-21 18:30:00.140665: ", b"I tensorflow/core/placer.cc:922] ", b"W a/b.cc:1] "),
    *(b"I0000 00:00:1795000000.179741   19303 placer.cc:162] ", b"Executing op ", b" in device "),
    *(b" on task ", b" placed on: ", b"Device mapping:\n", b" -> device: 0", b"\r", b"\x1b]"),
    *(b'{"log":"', b'","stream":"stdout"}', b'{"message":"', b'"}', b"&gt;", b"stdout F "),
    *(b"2024-01-21T21:16:10Z ", b"stderr P ", b"0: ", b"[1,0]<stderr>:", b"worker_1  | ", b"\t"),
]  # fmt: skip
_RECORD = "x{0}: (MatMul): /job:localhost/replica:0/task:0/device:GPU:{1}\n"


def _logs(random: Random, *, verifies: bool) -> Iterator[_Case]:
    """Yield logs. The command ``log`` prints records of a log that was cut, with a warning."""
    lines = _GOOD_LOG.split(b"\n")
    for _ in range(40):
        end = random.randrange(len(_GOOD_LOG))
        cut = _GOOD_LOG[:end]
        last = cut.rpartition(b"\n")[2]
        whole = not last or last in lines
        is_torn = verifies and b": (" in last and not whole
        yield _Case(f"cut at {end}", _bytes(cut), (1, 2) if is_torn else _STATUSES)
    for number in range(70):
        unit = b"".join(random.choices(_FRAGMENTS, k=random.randint(1, 4)))
        head = random.choice([b"", b"x: (", b"Executing op ", b"a: (B): "])
        size = random.choice([1 << 16, 1 << 19, 1 << 21])
        yield _Case(
            f"{number}: {size >> 10} kB of {unit!r:.50}", _bytes(head + unit * (size // len(unit)))
        )
    for number in range(30):
        damaged = bytearray(_GOOD_LOG)
        for _ in range(random.randint(1, 6)):
            at = random.randrange(len(damaged))
            damaged[at : at + random.randrange(30)] = random.choice(_FRAGMENTS)
        packed = random.random() < 0.3
        data = bytearray(gzip.compress(damaged) if packed else damaged)
        if packed and random.random() < 0.7:
            data[random.randrange(10, len(data))] ^= 1 << random.randrange(8)
        yield _Case(f"{number}: damaged{', compressed' if packed else ''}", _bytes(bytes(data)))
    device = _GPU.format(0)
    for name, text in {
        "many devices after a beginning": f"x: ({device} " + f"{device} " * 40_000,
        "many devices in one line": device * 40_000,
        "GPU 9999": _RECORD.format("", 9999),
        "thirty tasks with GPU 9999": "".join(
            f"x{task}: (A): /job:w/replica:0/task:{task}/device:GPU:9999\n" for task in range(30)
        ),
        "many tasks": "".join(
            f"x{task}: (A): /job:w/replica:0/task:{task}/device:GPU:255\n" for task in range(9999)
        ),
        "many jobs": "".join(
            f"x: (A): /job:w{job}/replica:0/task:9/device:GPU:1\n" for job in range(20_000)
        ),
        "a long job": f"x: (A): /job:{'w' * 2_000_000}/replica:0/task:0/device:GPU:0\n" * 3,
        "a long name": f"{'x' * 2_000_000}: (A): {device}\n" * 3,
        "a long type": f"x: ({'A' * 2_000_000}): {device}\n" * 3,
        "a long number": f"x: (A): {device}{'0' * 100_000}\n",
        "listed devices": "".join(
            f"/job:w/replica:0/task:{n}/device:GPU:7 -> device: 0\n" for n in range(50_000)
        ),
        "streams": "".join(
            json.dumps({"log": "x" * 200, "stream": str(n)}) + "\n" for n in range(20_000)
        ).replace("x", "y\\n", 1),
        "pieces of streams": "".join(
            f"2024-01-21T21:16:10Z std{'out' if n % 2 else 'err'} P {'x' * 90}\n"
            for n in range(20_000)
        ),
        "nested JSON": "[" * 100_000 + "\n" + '{"a":' * 100_000,
        "JSON of objects": '{"a":[' + "{}," * 400_000 + "0]}\n",
        "heads": "".join(f"h{n}: (A): /job:lo\n" for n in range(100_000)),
        "equal heads and records": "".join(
            f"2018-10-21 18:30:00.140665: I core/placer.cc:922] {'a' * (n % 900)}{n}: (A): "
            f"{device}\n{'a' * (n % 900)}2018-10-21 18:30:00.140665: I a/b.cc:1] y\n"
            for n in range(12_000)
        ),
    }.items():
        yield _Case(name, _text(text))
    for name, unit in {
        "NUL": b"\0",
        "a": b"a",
        "a record": _GOOD_LOG,
        "brackets": b"[" * 99 + b"\n",
    }.items():
        yield _Case(f"a bomb of {name}", partial(_write_bomb, unit))
    yield _Case("a bomb of different records", _write_different_records)
    for name, write in _special_paths():
        yield _Case(name, write, (2,))


def _write_bomb(unit: bytes, path: Path) -> None:
    piece = unit * ((1 << 20) // len(unit))
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(piece)


def _write_different_records(path: Path) -> None:
    with gzip.open(path, "wt", compresslevel=6) as file:
        for number in range(1_200_000):
            file.write(_RECORD.format(number, number % 8))


# Configurations

_TABLE = "[tool.placement_checks]\n"


def _configurations(seed: int) -> Iterator[_Case]:
    random = Random(seed)
    good = (
        f'{_TABLE}gpus = 2\nrules = ["no-idle-device"]\n'
        'policy.no-idle-device.allow = ["/gpu:1"]\nprograms = ["good.log"]\n'
    )
    name = "pyproject.toml"
    for number in range(40):
        changed = bytearray(good.encode())
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(changed))
            changed[at : at + random.randrange(4)] = bytes(
                random.choices(range(256), k=random.randrange(4))
            )
        yield _Case(f"{number}: damaged", _bytes(bytes(changed)), file=name)
    many = 150_000
    # Programs are not read if a target is named.
    accepted = {
        *("keys of many parts", "a program that does not exist", "a long target"),
        *("a NUL in a target", "nested arguments"),
    }
    for what, text in {
        "a key of many parts": f"{'a.' * many}b = 1",
        "a table of many parts": f"[{'a.' * many}b]",
        "a quoted key of many parts": '"\\"".' * 60_000 + "b = 1",
        "keys of many parts": "".join(f"k{n}.{'a.' * 90}b = 1\n" for n in range(2000)),
        "nested arrays": f"{_TABLE}rules = {'[' * many}",
        "nested tables": f"{_TABLE}policy = {'{a=' * many}",
        "many digits": f"{_TABLE}gpus = {'1' * many}",
        "a large number": f"{_TABLE}gpus = {'1' * 4000}",
        "a number without end": f"{_TABLE}limit = inf",
        "not a number": f"{_TABLE}limit = nan",
        "many programs": f"{_TABLE}programs = [{'1, ' * many}]",
        "many tables": "[[tool.placement_checks.programs]]\n" * 10_000,
        "many unknown fields": _TABLE + "".join(f"field{n} = 1\n" for n in range(10_000)),
        "many rules": f"{_TABLE}rules = {[f'rule{n}' for n in range(9000)]}",
        "a long string": f'{_TABLE}machine = "{"x" * 400_000}"',
        "many jobs": f'{_TABLE}machine = "{"; ".join(f"w{n}*9999: gpu*9" for n in range(2000))}"',
        "many groups": f'{_TABLE}machine = "{"; ".join("w*1" for n in range(50_000))}"',
        "too large": "#" * (1 << 20),
        "escape sequences": _TABLE + 'gpus = "\\u001b[31m\\u202e"',
        "a long target": f'{_TABLE}programs = ["{"x" * 100_000}.py:f"]',
        "a NUL in a target": f'{_TABLE}programs = ["x\\u0000.py:f"]',
        "nested arguments": f'{_TABLE}programs = ["good.py:f(a={"[" * 50_000})"]',
        "a program that does not exist": f'{_TABLE}reference = "nothing.py:f"',
        "not UTF-8": f"{_TABLE}# \udcff",
        "a field of another type": f"{_TABLE}policy = 7",
        "a table that is a list": "tool = []",
        "an array of tool": "[[tool]]\nplacement_checks = 1",
    }.items():
        allowed = _STATUSES if what in accepted else (2,)
        yield _Case(what, partial(_write_raw, text), allowed, file=name)
    for what, write in _special_paths():
        yield _Case(what, write, _STATUSES if what == "a directory" else (2,), file=name)
    if os.geteuid() == 0:
        yield _Case("of another user", _write_of_another_user, (2,), file=name)


def _write_raw(text: str, path: Path) -> None:
    path.write_bytes(text.encode(errors="surrogateescape"))


def _write_of_another_user(path: Path) -> None:
    path.write_text(f'{_TABLE}reference = "evil.py:build"\n')
    os.chown(path, 5432, 5432)


# Graphs


@cache
def _good_graph() -> Any:
    from support.mutations import two_towers

    return two_towers()


def _graph_bytes(graph: Any) -> Write:
    return lambda path: path.write_bytes(graph.SerializeToString())


def _graphs(random: Random) -> Iterator[_Case]:
    from google.protobuf import text_format
    from support.mutations import damage_bytes, damage_fields, of_kind
    from tensorflow.core.framework import graph_pb2

    for number in range(70):
        suffix = random.choice([".pb", ".pbtxt", ".meta"])
        message = of_kind(_good_graph(), suffix)
        fields = random.random() < 0.6
        if fields:
            damage_fields(message, random, random.randint(1, 8))
        data = (
            text_format.MessageToString(message).encode()
            if suffix == ".pbtxt"
            else message.SerializeToString()
        )
        if not fields:
            data = damage_bytes(data, random, random.randint(1, 4))
        what = "fields" if fields else "bytes"
        yield _Case(f"{number}: damaged {what}", _bytes(data), file=f"graph{suffix}")

    def graph(*nodes: dict[str, Any]) -> Any:
        made = graph_pb2.GraphDef()
        for node in nodes:
            made.node.add(**{"op": "NoOp", **node})
        return made

    def jobs(count: int, task: int, gpu: int = 0) -> Any:
        return graph(
            *(
                {"name": f"n{job}", "device": f"/job:j{job}/task:{task}/device:GPU:{gpu}"}
                for job in range(count)
            )
        )

    calls = graph_pb2.GraphDef()
    for level in range(60):
        function = calls.library.function.add()
        function.signature.name = f"f{level}"
        for number in range(2):
            function.node_def.add(name=f"n{number}", op=f"f{level + 1}")
    calls.node.add(name="call", op="f0")
    fan = graph({"name": "x", "op": "Placeholder"})
    fan.node.add(name="sum", op="AddN", input=["x"] * 200_000)
    chain = graph(
        {"name": "x0", "op": "Placeholder"},
        *({"name": f"x{n}", "op": "Identity", "input": [f"x{n - 1}"]} for n in range(1, 20_000)),
    )
    classes = graph(*({"name": f"n{n}"} for n in range(2000)))
    for node in classes.node:
        node.attr["_class"].list.s.extend(f"loc:@n{n}".encode() for n in range(50))
    loop = graph(
        {"name": "a", "op": "Identity", "input": ["b"]},
        {"name": "b", "op": "Identity", "input": ["a"]},
    )
    names = graph(
        *(
            {"name": name}
            for name in ("\x1b[31mred", "\u202eabc", "a\nb", "\x9b31m", "<script>", "|a|", "`a`")
        )
    )
    special = {
        "many jobs with task 9999": jobs(200, 9999),
        "one job with task 9999": jobs(1, 9999),
        "many jobs": jobs(9000, 0),
        "some jobs": jobs(1000, 0),
        "more jobs than tasks": jobs(20_000, 0),
        "GPU 999999999": jobs(3, 0, 999_999_999),
        "calls that double": calls,
        "many inputs": fan,
        "a long chain": chain,
        "many classes": classes,
        "a loop": loop,
        "names": names,
        "a long name": graph({"name": "x" * 5_000_000}),
        "a long device": graph({"name": "x", "device": "/job:" + "w" * 5_000_000}),
        "many parts of a device": graph({"name": "x", "device": "/gpu:0" * 500_000}),
        "a long input": graph({"name": "x", "op": "Identity", "input": ["y" * 5_000_000]}),
        "many control inputs": graph({"name": "x"}, {"name": "y", "input": ["^x"] * 300_000}),
    }
    refused = {
        *(
            "many jobs with task 9999",
            "one job with task 9999",
            "many jobs",
            "more jobs than tasks",
        ),
        *("calls that double",),
    }
    for name, message in special.items():
        allowed = (2,) if name in refused else _STATUSES
        yield _Case(name, _graph_bytes(message), allowed, file="graph.pb")
    for name, text in {
        "deep text": "library { function { node_def { attr { value { func { " * 3000,
        "an unclosed string": 'node { name: "' + "x" * 3_000_000,
        "many fields": "node { }" * 100_000,
        "many digits": "versions { producer: " + "1" * 1_000_000 + " }",
        "escapes": 'node { name: "' + "\\377" * 500_000 + '" }',
        "comments": "#\n" * 500_000,
        "empty": "",
    }.items():
        yield _Case(name, _text(text), (2,), file="graph.pbtxt")
    for suffix in (".pb", ".meta"):
        yield _Case(f"zeros{suffix}", _bytes(bytes(1 << 20)), (2,), file=f"graph{suffix}")
        yield _Case(
            f"noise{suffix}", _bytes(random.randbytes(1 << 20)), (2,), file=f"graph{suffix}"
        )
        for name, write in _special_paths():
            yield _Case(f"{name}{suffix}", write, (2,), file=f"graph{suffix}")


# Baselines


@cache
def _good_baseline() -> str:
    with tempfile.TemporaryDirectory(prefix="trial_") as name:
        folder = Path(name)
        _write_program(folder)
        done = _worker(True).run(
            ["verify", "train.py:towers", "--baseline", ".", "--update"], folder
        )
        file = next(folder.glob("*.gpu-2.toml"), None)
        if file is None:
            raise RuntimeError(f"no baseline was written: {done.err}{done.out}")
        return file.read_text()


def _write_program(folder: Path) -> None:
    (folder / "train.py").write_text(_PROGRAM)


_PROGRAM = """
import tensorflow as tf

tf1 = tf.compat.v1


def towers(num_gpus=2):
    gradients, inputs = [], []
    with tf.device("/cpu:0"):
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
    for i in range(num_gpus):
        with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=i > 0):
            x = tf1.placeholder(tf.float32, [None, 8])
            inputs.append({"x": x})
            with tf.device("/cpu:0"):
                w = tf1.get_variable("w", [8, 1])
            gradients.append(optimizer.compute_gradients(tf.reduce_mean(x @ w)))
    with tf.device("/cpu:0"):
        average = [
            (tf.add_n([g for g, _ in pairs]) / num_gpus, pairs[0][1]) for pairs in zip(*gradients)
        ]
        return {"train_op": optimizer.apply_gradients(average), "inputs": inputs}


def single():
    return towers(1)
"""


def _compare_baseline(folder: Path, name: str) -> list[str]:
    _write_program(folder)
    return ["diff", name, "train.py:towers"]


def _baselines(random: Random) -> Iterator[_Case]:
    good = _good_baseline()
    lines = good.splitlines(keepends=True)
    yield _Case("good", _text(good), (0,))
    yield _Case("Windows", _bytes(good.replace("\n", "\r\n").encode()), (0,))
    yield _Case("a byte order mark", _bytes(b"\xef\xbb\xbf" + good.encode()), (0,))
    for end in sorted(random.sample(range(len(good) - 1), 40)):
        yield _Case(f"cut at {end}", _text(good[:end]), (2,))
    counted = [at for at, line in enumerate(lines) if line.strip() and not line.startswith("#")]
    for at in counted:
        yield _Case(f"without line {at}", _text("".join(lines[:at] + lines[at + 1 :])), (2,))
        yield _Case(f"line {at} twice", _text("".join(lines[: at + 1] + lines[at:])), (2,))
    for number in range(20):
        text = bytearray(good.encode())
        for _ in range(random.randint(1, 3)):
            text[random.randrange(len(text))] = random.randrange(256)
        yield _Case(f"{number}: damaged", _bytes(bytes(text)))

    def changed(old: str, new: str) -> Write:
        if old not in good:
            raise ValueError(old)
        return _text(good.replace(old, new, 1))

    towers = 'towers = [\n  "/gpu:0",\n  "/gpu:1",\n]\n'

    def with_towers(count: int) -> str:
        many = "".join(f'  "/gpu:{at}",\n' for at in range(count))
        text = good.replace(towers, f"towers = [\n{many}]\n", 1)
        return text.replace("towers = 2,", f"towers = {count},", 1)

    form = "placement_baseline = "
    everywhere = "exceptions = [\n" + "".join(
        f'  {{ part = "forward", towers = "0-99998", layer = "w{at}", device = "/cpu:0" }},\n'
        for at in range(99_999)
    )
    for name, write, allowed in (
        ("an older form", changed(f"{form}3", "# placement baseline, form 2: "), (2,)),
        ("a newer form", changed(f"{form}3", f"{form}4"), (2,)),
        ("a form of many digits", changed(f"{form}3", form + "3" * 5000), (2,)),
        ("many towers", _text(with_towers(100_000)), (1, 2)),
        ("too many towers", _text(with_towers(200_000)), (2,)),
        (
            "exceptions that multiply",
            _text(
                with_towers(99_999)
                .replace("exceptions = [\n", everywhere)
                .replace("exceptions = []\n", everywhere + "]\n")
            ),
            (2,),
        ),
        ("a long line", changed('program = "', 'program = "' + "x" * 5_000_000), (0, 1, 2)),
        ("many words", changed('machine = "', 'machine = "' + "gpu*2; " * 100_000), (2,)),
        ("many digits", changed("variables = 1", "variables = " + "1" * 5000), (2,)),
        ("a key of many parts", changed("soft = ", "soft" + ".a" * 1_000_000 + " = "), (2,)),
        ("nested lists", changed("towers = ", "towers = " + "[" * 1_000_000), (2,)),
        ("an unknown key", changed("soft = ", "loud = true\nsoft = "), (2,)),
        ("many lines", _text(good + "\n" * 3_000_000), (0, 2)),
        ("a large file", _text(good + "# x\n" * 20_000_000), (2,)),
        ("conflict", _text("<<<<<<< HEAD\n" + good), (2,)),
        ("text behind the end", _text(good + "parts = []\n"), (2,)),
        ("NUL", changed("/gpu:0", "/gpu:\0"), (1, 2)),
        ("not UTF-8", _bytes(good.encode().replace(b"train", b"tr\xffin", 1)), (2,)),
        ("escape sequences", changed('program = "', 'program = "\\u001b[31m'), (0,)),
        ("only the title", _text(lines[0]), (2,)),
    ):
        yield _Case(name, write, allowed)
    for name, write in _special_paths():
        yield _Case(name, write, (2,))


# Saved cases


def _use_case(folder: Path, name: str) -> list[str]:
    _write_program(folder)
    return [
        *("verify", "train.py:towers", "--reference", "train.py:single", "--batch", name),
        *("--rule", "gradients-equal"),
    ]


def _npy(shape: str, content: bytes = bytes(64), descr: str = "'<f4'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + content


def _npz(*members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def _saved_cases(random: Random) -> Iterator[_Case]:
    good = _npz(("0/x.npy", _npy("(2, 8)")), ("start/w.npy", _npy("(8, 1)", bytes(32))))
    name = "case.npz"
    for end in sorted(random.sample(range(len(good)), 15)):
        yield _Case(f"cut at {end}", _bytes(good[:end]), (2,), file=name)
    for number in range(30):
        changed = bytearray(good)
        for _ in range(random.randint(1, 4)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        yield _Case(f"{number}: damaged", _bytes(bytes(changed)), file=name)
    bomb = _npz(("0/x.npy", bytes(1 << 27)), compression=zipfile.ZIP_DEFLATED)
    pickled = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x05touch\x85R."
    for what, data in {
        "empty": b"",
        "a compression bomb": bomb,
        "a large shape": _npz(("0/x.npy", _npy("(1000000000000,)"))),
        "a shape of many digits": _npz(("0/x.npy", _npy(f"({'1' * 5000},)"))),
        "a negative shape": _npz(("0/x.npy", _npy("(-2, -8)"))),
        "a deep header": _npz(("0/x.npy", _npy("(" * 9000))),
        "a pickle": _npz(("0/x.npy", _npy("(1,)", pickled, "'|O'"))),
        "many arrays": _npz(*((f"0/x{n}.npy", _npy("(0,)", b"")) for n in range(20_001))),
        "many batches": _npz(*((f"{n}/x.npy", _npy("(2, 8)")) for n in range(20_000))),
        "paths": _npz(("../../x.npy", _npy("(2, 8)"))),
        "equal names": _npz(("0/x.npy", _npy("(2, 8)"))) * 2,
        "not a number": _npz(
            ("0/x.npy", _npy("(2, 8)", b"\xff" * 64)), ("start/w.npy", _npy("(8, 1)", bytes(32)))
        ),
        "no batch": _npz(("start/w.npy", _npy("(8, 1)", bytes(32)))),
        "no initial values": _npz(("0/x.npy", _npy("(2, 8)"))),
        "escape sequences": _npz(("0/\x1b[31m.npy", _npy("(2, 8)"))),
    }.items():
        yield _Case(what, _bytes(data), file=name)
    for what, write in _special_paths():
        yield _Case(what, write, (2,), file=name)
