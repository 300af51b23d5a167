"""Reads logs, the parts of a large one in as many processes as there are processors."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

from placement_checks.core.errors import InputError
from placement_checks.logs.log import Log
from placement_checks.logs.sources import STDIN, Source
from placement_checks.logs.tally import Tally
from placement_checks.logs.torn import is_cut
from placement_checks.logs.transport import Unwrapper, in_pieces
from placement_checks.util.garbage import gc_paused

_CUT = "it ends in the middle of a record; copy it again when the process has ended"
Watch = Callable[[Source], None]


def processors() -> int:
    """How many processors there are for reading; 1 where a process cannot be forked."""
    if hasattr(os, "fork") and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return 1


def read_logs(
    names: str | Path | Sequence[str | Path],
    *,
    processes: int = 1,
    watch: Watch | None = None,
    packed: bool = True,
) -> Log:
    """Read one log, or several of one run: the copies in one pair with those in another.

    Args:
        names: a path or several; ``-`` is standard input. gzip is unpacked.
        processes: how many may read parts of a large file. Others than this one are forked, which
            is unsafe where threads run, as they do once TensorFlow is loaded.
        watch: called with the source after each block of it, to show how far it is.
        packed: whether a file may be compressed, and is refused if it is no text.

    Raises:
        InputError: a file does not exist, cannot be read, or is not text.
    """
    listed = [names] if isinstance(names, str | Path) else names
    with gc_paused():
        return _read([str(name) for name in listed], processes, watch, packed)


def _read(names: Sequence[str], processes: int, watch: Watch | None, packed: bool) -> Log:
    total = Tally()
    troubles: list[str] = []
    for name in names:
        source = Source(name, packed=packed)
        parts = [source] if in_pieces(source.sample) else source.parts(processes)
        others = [_Forked(part) for part in parts[1:]]
        first = _tally(parts[0], watch)
        tallies = [first, *(other.tally() for other in others)]
        if packed and source.is_binary and not any(tallies):
            raise InputError(name, "is a binary file, not a log", "name what the process printed")
        if parts[0].troubles and not any(tally.has_text for tally in tallies):
            raise InputError(name, f"has nothing that can be read: {parts[0].troubles[0]}")
        for tally in tallies:
            total.merge(tally)
        troubles += [f"{name}: {trouble}" for part in parts for trouble in part.troubles]
    return total.log(" + ".join(names), troubles)


def _tally(source: Source, watch: Watch | None = None) -> Tally:
    tally = Tally()
    unwrapper = Unwrapper()
    try:
        for packed in source.blocks():
            block = unwrapper.unwrap(packed)
            tally.add(block if source.ends else _uncut(block, source))
            if watch:
                watch(source)
    except KeyboardInterrupt:
        if source.name != STDIN:
            raise
        source.troubles.append("it was interrupted")
    if rest := unwrapper.rest():
        tally.add(_uncut(b"\n" + rest, source))
    tally.look_beyond(unwrapper.unwrap(block) for block in source.beyond())
    tally.fold()
    return tally


def _uncut(block: bytes, source: Source) -> bytes:
    """The end of a log without its last line, if that ends in the middle of a record."""
    end = block.rfind(b"\n")
    if not is_cut(block[end + 1 :]):
        return block
    if not source.troubles:
        source.troubles.append(_CUT)
    return block[:end]


class _Forked:
    """Reads a part in another process.

    Made by hand: importing `multiprocessing` costs as much as reading ten megabytes.
    """

    def __init__(self, part: Source) -> None:
        self._part = part
        self._pipe, sending = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(sending)
            return
        try:
            with os.fdopen(sending, "wb") as pipe:
                pickle.dump((_tally(part), part.troubles), pipe)
        finally:
            os._exit(0)

    def tally(self) -> Tally:
        """What it counted. Where it died, the part is read here."""
        tally: Tally
        try:
            with os.fdopen(self._pipe, "rb") as pipe:
                tally, self._part.troubles[:] = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError):
            tally = _tally(self._part.anew())
        os.waitpid(self._pid, 0)
        return tally
