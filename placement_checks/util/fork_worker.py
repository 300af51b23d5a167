"""The process that forks others, and what each of them does to be as good as a new one.

It has loaded already what all of them need, has a single thread, and runs nothing of what it has
loaded. `fork_server` has the side of the process that it works for.
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

from placement_checks.util.streams import flush

WORD = struct.Struct("=q")  # what is said of a process: its id, and at its end its return code
_DESCRIPTORS = 5  # of a request: its text, where the process is told of, its standard streams
_LONE = 1.0  # seconds at most after which a server ends whose owner is gone


class Request(NamedTuple):
    """What a process is to be.

    Attributes:
        module: whose ``main()`` it runs.
        arguments: what it finds in ``sys.argv``; the id of the server follows them.
        environment: all its variables.
        folder: where it works.
    """

    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str


def serve(descriptor: int, owner: int) -> NoReturn:
    """Fork a process for each request, until the owner is gone.

    Args:
        descriptor: of the socket by which requests come.
        owner: the process that asks, which has started this one.
    """
    gc.freeze()  # the collector writes into what it looks at, and what is written is copied
    control = socket.socket(fileno=descriptor)
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    running: dict[int, int] = {}  # by process, where it is told of
    while os.getppid() == owner:
        ready, _, _ = select.select([control.fileno(), woken], [], [], _LONE)
        if woken in ready:
            os.read(woken, 4096)
        _tell_ends(running)
        if control.fileno() in ready:
            message, given, *_ = socket.recv_fds(control, 1, _DESCRIPTORS)
            if not message:
                break
            asked, told, *streams = given
            pid = os.fork()
            if pid == 0:
                for own in (control.detach(), woken, wakes, told, *running.values()):
                    os.close(own)
                become(asked, streams)
            os.setpgid(pid, pid)  # before anybody knows of it
            running[pid] = told
            _tell(told, pid)
            for end in (asked, *streams):
                os.close(end)
    os._exit(0)


def _tell_ends(running: dict[int, int]) -> None:
    """Tell of each process that has ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = running.pop(pid)
        _tell(told, os.waitstatus_to_exitcode(status))
        os.close(told)


def _tell(told: int, word: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(told, WORD.pack(word))


def become(asked: int, streams: Sequence[int]) -> NoReturn:
    """Be the process that is asked for, forked already."""
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
        with open(asked, "rb") as file:
            file.seek(0)
            request: Request = pickle.load(file)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        tempfile.tempdir = None  # TMPDIR may be another
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
