"""Give this process a network of its own, so that no other process can reach its ports.

TensorFlow's server listens before this package can close its port. In a network namespace with
only a loopback device (network_namespaces(7)), no other process can connect first. Root needs
CAP_SYS_ADMIN to create a network namespace. Other users need a user namespace
(user_namespaces(7)), which some systems forbid.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # unshare(2)
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1  # netdevice(7)


def leave_shared() -> bool:
    """Move this process to a network of its own; return False if the system forbids it.

    The process must have one thread. A forked child tries it first, because a failed attempt
    cannot be undone.
    """
    trial = os.fork()
    if trial == 0:
        os._exit(0 if _try_to_leave() else 1)
    return os.waitpid(trial, 0)[1] == 0 and _try_to_leave()


def _try_to_leave() -> bool:
    user, group = os.getuid(), os.getgid()
    # Root gets no user namespace, in which root could not read the files of other users.
    kind = _CLONE_NEWNET if user == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    if ctypes.CDLL(None).unshare(kind) != 0:
        return False
    try:
        if user != 0:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("16sh14x", b"lo", _IFF_UP)  # ifreq
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
    except OSError:
        return False
    return True
