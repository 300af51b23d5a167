"""Refuses system calls to this process and its children, as hardened systems do (seccomp(2))."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import NamedTuple

_SET_NO_NEW_PRIVILEGES, _SET_FILTER, _MODE_FILTER = 38, 22, 2  # prctl(2)
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of a packet filter
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000  # verdicts of the filter; _FAIL with an error number
_NUMBER, _ARGUMENTS = 0, 16  # offsets in the description of a call


class Call(NamedTuple):
    """System calls to refuse, with numbers of x86-64.

    Attributes:
        number: the number of the system call.
        argument: the index of an argument; None for all calls of this number.
        value: the value of this argument.
    """

    number: int
    argument: int | None = None
    value: int = 0


NAMESPACES = Call(272)  # unshare
SOCKET_FILTERS = Call(54, 2, 26)  # setsockopt with SO_ATTACH_FILTER


def refuse(*calls: Call) -> None:
    """Let these system calls fail with EPERM, in this thread and in all later children.

    Raises:
        OSError: this system allows no such filter.
    """
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOTSUP, "the numbers of system calls are for x86-64")
    program: list[tuple[int, int, int, int]] = []
    for call in calls:
        tests = [(_NUMBER, call.number)]
        if call.argument is not None:
            tests.append((_ARGUMENTS + 8 * call.argument, call.value))
        for index, (offset, value) in enumerate(tests):
            to_next_call = 2 * (len(tests) - index) - 1
            program += [(_LOAD, 0, 0, offset), (_JUMP_IF_EQUAL, 0, to_next_call, value)]
        program.append((_RETURN, 0, 0, _FAIL | errno.EPERM))
    program.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    header = struct.pack("HP", len(program), ctypes.addressof(code))
    c = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_FILTER, _MODE_FILTER, header)):
        if c.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
