"""The server process that forks workers; `fork_server` is its client.

The server has imported the modules that all workers need. It has a single thread and calls nothing
of these modules, so that a fork is as good as a new process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

from placement_checks.util.processes import adopt_orphans, end_descendants
from placement_checks.util.streams import flush

WORD = struct.Struct("=q")  # a message about a worker: its ID, and later its return code
_DESCRIPTORS = 5  # of a request: its file, the pipe for messages, three standard streams
_OWNER_CHECK = 1.0  # seconds between checks for the owner


class Request(NamedTuple):
    """A request for a worker."""

    module: str  # the module with the `main()` that the worker calls
    arguments: Sequence[str]  # `sys.argv[1:]`; the ID of the server is appended
    environment: Mapping[str, str]  # all environment variables
    folder: str  # the working directory


def serve(descriptor: int, owner: int, *, ends_orphans: bool = False) -> NoReturn:
    """Fork a worker for each request, until the owner is gone.

    Args:
        descriptor: the socket for requests.
        owner: the ID of the process that sends requests, which is this process's parent.
        ends_orphans: whether to kill the processes that a worker has left when it ends.
    """
    gc.freeze()  # a collection writes to all objects, and a fork would copy their memory
    control = socket.socket(fileno=descriptor)
    wakeup, signals = os.pipe()
    for end in (wakeup, signals):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
    running: dict[int, int] = {}  # the pipe for messages, by process
    if ends_orphans:
        adopt_orphans()
    while os.getppid() == owner:
        ready, _, _ = select.select([control.fileno(), wakeup], [], [], _OWNER_CHECK)
        if wakeup in ready:
            os.read(wakeup, 4096)
        _report_ends(running, ends_orphans=ends_orphans)
        if control.fileno() in ready:
            message, given, *_ = socket.recv_fds(control, 1, _DESCRIPTORS)
            if not message:
                break
            request, messages, *streams = given
            pid = os.fork()
            if pid == 0:
                for own in (control.detach(), wakeup, signals, messages, *running.values()):
                    os.close(own)
                become(request, streams)
            os.setpgid(pid, pid)  # before the owner knows the worker
            running[pid] = messages
            _send(messages, pid)
            for end in (request, *streams):
                os.close(end)
    _report_ends(running, ends_orphans=ends_orphans)
    os._exit(0)


def _report_ends(running: dict[int, int], *, ends_orphans: bool) -> None:
    """Send the return codes of workers that have ended."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    if ended and ends_orphans:
        end_descendants(running.keys() - ended.keys())
    for pid in ended.keys() & running.keys():
        messages = running.pop(pid)
        _send(messages, os.waitstatus_to_exitcode(ended[pid]))
        os.close(messages)


def _send(messages: int, word: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the owner does not wait for this worker
        os.write(messages, WORD.pack(word))


def become(request_file: int, streams: Sequence[int]) -> NoReturn:
    """Turn this fork into the requested worker, and run it."""
    status = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for handled in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(handled, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        with open(request_file, "rb") as file:
            file.seek(0)
            request: Request = pickle.load(file)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        tempfile.tempdir = None  # TMPDIR may have changed
        module = import_module(request.module)
        sys.modules["__main__"] = module
        sys.argv = [str(module.__file__), *request.arguments, str(os.getppid())]
        module.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            flush()
        os._exit(status)
