"""The files of a capture: its journal, and the temporary directory of the program.

Both have random paths in the directory for temporary files. The program learns only the path of
its own directory. While the journal's directory exists, files of the user may be set aside in
hidden directories of the same name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from placement_checks.capture.child_process.file_journal import (
    Contents,
    create_journal,
    put_back,
    read,
)
from placement_checks.core.errors import InputError
from placement_checks.util.temporary import abandoned_directories, lock_directory
from placement_checks.util.text import listed

_PREFIX = "placement_checks_capture_"
_JOURNAL = "journal"


class CaptureFiles(NamedTuple):
    """The files of a capture, which several processes open."""

    control: Path  # the directory of the journal
    journal: int  # a descriptor of the journal, which stays valid if the program deletes its path
    lock: int  # a descriptor. While a process has it open, the files belong to a running capture.

    @staticmethod
    def create() -> CaptureFiles:
        """Create the files of a new capture, and restore files of captures that were killed.

        Raises:
            InputError: files cannot be created, or files of a killed capture cannot be restored.
        """
        parent = Path(os.path.realpath(tempfile.gettempdir()))
        recover(parent)
        control = parent / f"{_PREFIX}{secrets.token_hex(8)}"
        try:
            control.mkdir(mode=0o700)
            lock = lock_directory(control)
            temporary = parent / f"placement_checks_{secrets.token_hex(8)}"
            journal = create_journal(control / _JOURNAL, temporary)
            temporary.mkdir(mode=0o700)
        except OSError as error:
            shutil.rmtree(control, ignore_errors=True)
            raise InputError(
                str(parent),
                f"temporary files cannot be created there: {error.strerror}",
                "free space there, or set TMPDIR to another directory",
            ) from None
        return CaptureFiles(control, journal, lock)

    @staticmethod
    def open(control: Path, lock: int) -> CaptureFiles:
        """Open the files of a capture that another process has created."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        return CaptureFiles(control, os.open(control / _JOURNAL, flags, 0o600), lock)

    @property
    def hidden(self) -> str:
        """The name of the directories with files that are set aside."""
        return f".{self.control.name}"

    def read(self) -> Contents:
        """Read the journal."""
        return read(self.journal)

    def put_back(self) -> Sequence[Path]:
        """Restore the user's files; return their paths. The program must have ended.

        Raises:
            InputError: a file cannot be restored.
        """
        near = [Path.cwd(), Path("~").expanduser(), self.control]
        return put_back(self.journal, self.hidden, near)

    def delete_temporary(self) -> None:
        """Delete the temporary directory of the program, and its files."""
        if temporary := self.read().temporary:
            for directory, _, _ in os.walk(temporary):
                with contextlib.suppress(OSError):
                    Path(directory).chmod(0o700)  # the program may have restricted it
            shutil.rmtree(temporary, ignore_errors=True)

    def delete(self) -> None:
        """Delete all files. Files that are still set aside could then not be restored."""
        self.delete_temporary()
        shutil.rmtree(self.control, ignore_errors=True)

    def close(self) -> None:
        for descriptor in (self.journal, self.lock):
            os.close(descriptor)


@cache
def recover(parent: Path) -> None:
    """Restore the files that killed captures of this user have set aside.

    Raises:
        InputError: a file cannot be restored. It stays set aside.
    """
    for control, lock in abandoned_directories(parent, _PREFIX):
        files = CaptureFiles.open(control, os.dup(lock))
        try:
            if restored := files.put_back():
                what = listed(list(map(str, restored)))
                print(f"placement-checks: restored after a killed run: {what}", file=sys.stderr)
            files.delete()
        finally:
            files.close()
