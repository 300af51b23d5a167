"""A network of its own for this process, in which nobody else can reach its ports.

TensorFlow's server listens before its port can be closed. In a network namespace with nothing but
a loopback device (network_namespaces(7)) nobody else can connect first. Root needs CAP_SYS_ADMIN
for it, other users a namespace in which they have it (user_namespaces(7)), which some systems
forbid.
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
    """Move this process, which has one thread, to a network of its own; False if it cannot.

    It is tried in a fork first: halfway there would be no way back.
    """
    trial = os.fork()
    if trial == 0:
        os._exit(0 if _try_to_leave() else 1)
    return os.waitpid(trial, 0)[1] == 0 and _try_to_leave()


def _try_to_leave() -> bool:
    user, group = os.getuid(), os.getgid()
    # A namespace of users would take from root the right to read the files of others.
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
