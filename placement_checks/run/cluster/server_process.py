"""The process that serves all tasks of a local cluster.

Run as ``python -m placement_checks.run.cluster.server_process PARENT``.

It imports TensorFlow once, then forks a process for each task before TensorFlow starts threads. It
reads the tasks from one line of JSON on standard input, and writes a line of JSON to standard
output for each task that serves or ends. All tasks end when standard input or the
process PARENT ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any, NoReturn

from placement_checks.util.child import end_with_parent
from placement_checks.util.loopback import close_to_others
from placement_checks.util.resources import freeze_loaded
from placement_checks.util.streams import quiet_stderr

SERVING = "serving"
_PR_SET_PDEATHSIG = 1  # prctl(2)
_IOLBF = 1  # setvbuf(3): by line


def main() -> None:
    request = json.loads(sys.stdin.readline())
    with quiet_stderr(), freeze_loaded():
        import tensorflow  # noqa: F401

    running: dict[int, tuple[str, int]] = {}
    starting = []
    for task in request["tasks"]:
        ready_read, ready_write = os.pipe()
        process = os.fork()
        if process == 0:
            _serve(request["spec"], ready_write, **task)
        os.close(ready_write)
        running[process] = (task["job"], task["index"])
        starting.append((ready_read, process))
    for ready_read, process in starting:
        with open(ready_read) as stream:
            answer = stream.read()
        job, index = running[process]
        _send({"job": job, "index": index, "pid": process, "answer": answer})
    end_with_parent()  # after the forks, because it starts a thread
    reporter = threading.Thread(target=_report_ends, args=(running,), daemon=True)
    reporter.start()
    sys.stdin.read()
    for process in list(running):
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(process, signal.SIGKILL)
    reporter.join()


def _report_ends(running: dict[int, tuple[str, int]]) -> None:
    while running:
        process, status = os.waitpid(-1, 0)
        job, index = running.pop(process)
        _send({"job": job, "index": index, "ended": os.waitstatus_to_exitcode(status)})


def _serve(
    spec: dict[str, list[str]], ready_write: int, *, job: str, index: int, cpus: int, log: str
) -> NoReturn:
    """Serve one task forever; report on ``ready_write`` that it serves, or why it does not."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # TensorFlow prints the placement log from C, which would buffer the end of the log.
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)
    import tensorflow as tf

    try:
        config = tf.compat.v1.ConfigProto(device_count={"CPU": cpus, "GPU": 0})
        server: Any = tf.distribute.Server(spec, job_name=job, task_index=index, config=config)
        close_to_others(int(server.target.rpartition(":")[2]))
        answer = SERVING
    except (tf.errors.OpError, OSError) as error:
        answer = str(getattr(error, "message", error))
    os.write(ready_write, answer.encode())
    os.close(ready_write)
    while True:
        signal.pause()


def _send(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
