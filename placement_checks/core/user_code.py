"""The user's code: which frames of a stack belong to it, and errors that it raises."""

from __future__ import annotations

import contextlib
import os
import re
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from placement_checks.core.errors import (
    InputError,
    PlacementError,
    graph_error_causes,
    message_of,
)
from placement_checks.core.frames import Frame

_OURS = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(
    {
        str(Path(path).resolve()) + os.sep
        for scheme in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
        for path in [sysconfig.get_path(scheme)]
    }
    | {str(_OURS) + os.sep}
)
# The user's code outside of files: cells of Jupyter and Colab, the prompts of Python (`<stdin>`
# before Python 3.13) and of the module `code`, doctests, `exec`.
_UNSAVED = re.compile(
    r"<(ipython-input.*|python-input-\d+|stdin|console|doctest .*|string)>"
    r"|.*/ipykernel_\d+/\d+\.py|.*/ipython-input-[-\w]+\.py"
)
# The name of a file with AutoGraph's copy of a function, among temporary files.
AUTOGRAPH_FILE = "__autograph_generated_file"
# Code that Python generates for a dataclass looks like code given to `exec`.
_GENERATED = ("<string>", "__init__")


def call_user_code(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of the user. In a stack, the user's frames begin after this function."""
    return function(*args, **kwargs)


_CALL = call_user_code.__name__


def users_frames(stack: Iterable[Any], folder: Path | None) -> tuple[Frame, ...]:
    """The user's frames of a stack, the outermost first.

    Frames that led to the last `call_user_code` are left out. ``folder`` is as for `is_user_file`.
    """
    frames = [(frame.filename, frame) for frame in stack]  # most are not the user's
    for position in range(len(frames) - 1, -1, -1):
        if frames[position][0] == __file__ and frames[position][1].name == _CALL:
            frames = frames[position + 1 :]
            break
    here = current_folder()
    return tuple(
        Frame(_relative(file, here), frame.lineno, frame.name)
        for file, frame in frames
        if is_user_file(file, folder)
        and (file, frame.name) != _GENERATED
        and not is_autograph_copy(file)
    )


def is_autograph_copy(file: str) -> bool:
    """Whether a file has AutoGraph's copy of a function: users do not know its lines."""
    return Path(file).name.startswith(AUTOGRAPH_FILE)


def calling_frames() -> tuple[Frame, ...]:
    """The user's source lines that led to this call, the outermost first."""
    return users_frames(traceback.extract_stack(), None)


def users_line(stack: Iterable[Any], folder: Path | None = None) -> str:
    """The user's innermost source line of a stack; ``""`` without one."""
    frames = users_frames(stack, folder)
    return str(frames[-1]) if frames else ""


@lru_cache(maxsize=4096)
def is_user_file(file: str, folder: Path | None) -> bool:
    """Whether a file is the user's: outside of libraries, or in the directory of the program.

    ``folder`` is the directory of the program. It matters only if the program is installed in
    ``site-packages``, like a library. The file may be in an archive of modules. Code outside of
    files belongs to the user.
    """
    if _UNSAVED.fullmatch(file):
        return True
    path = Path(current_folder(), file).resolve()
    is_library = (
        str(path).startswith(_LIBRARIES) or "site-packages" in path.parts or _is_framework(path)
    )
    if is_library or not _exists(path):
        if folder is None or "site-packages" not in folder.parts:
            return False
        return path.is_relative_to(folder) and not path.is_relative_to(_OURS)
    return True


def is_of_other_repository(file: str, program: str) -> bool:
    """Whether a file belongs to another repository than a program and the current directory.

    An example is a clone of a library on ``PYTHONPATH``. Paths are relative to the current
    directory. A file outside of repositories belongs to the user.
    """
    here = current_folder()
    root = _repository(str(Path(here, file).parent))
    own = {_repository(here), _repository(str(Path(here, program).parent))}
    return root is not None and root not in own


@lru_cache(maxsize=4096)
def _repository(folder: str) -> Path | None:
    """The root of the repository of a directory; None outside of repositories."""
    path = Path(folder).resolve()
    roots = (each for each in (path, *path.parents) if (each / ".git").exists())
    return next(roots, None)


# Packages that call the user's code, or that the user's code calls to build ops.
_FRAMEWORKS = frozenset({"tensorflow", "keras", "tf_keras", "tf_slim", "absl", "numpy", "wrapt"})


def _is_framework(path: Path) -> bool:
    """Whether a file belongs to a framework in a directory of its own.

    ``pip install --target`` and some package managers install outside of ``site-packages``, maybe
    next to the user's files.
    """
    parts = path.parts
    return any(
        part in _FRAMEWORKS and _has_installed_packages(Path(*parts[:number]))
        for number, part in enumerate(parts)
    )


@lru_cache(maxsize=4096)
def _has_installed_packages(folder: Path) -> bool:
    return any(folder.glob("*.dist-info"))


def _exists(path: Path) -> bool:
    """Whether the path is a file, or lies in one, as modules of a zip archive do."""
    return path.is_file() or any(folder.is_file() for folder in path.parents)


def relative_path(file: str) -> str:
    """The path relative to the current directory; code outside of files keeps its name."""
    return _relative(file, current_folder())


def current_folder() -> str:
    """The directory that source lines in reports are relative to.

    The root if the current directory has been deleted. Then the lines have absolute paths.
    """
    try:
        return os.getcwd()  # noqa: PTH109  # called for each op; Path.cwd takes 15 us
    except FileNotFoundError:
        return os.sep


@lru_cache(maxsize=4096)
def _relative(file: str, folder: str) -> str:
    if _UNSAVED.fullmatch(file):
        return file
    path = Path(folder, file).resolve()
    return str(path) if folder == os.sep else os.path.relpath(path, folder)


_COLORS = re.compile(r"\x1b\[[\d;]*m")  # Keras 3 prints the line with the reason in bold
_AUTOGRAPH = "in user code:"
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
_KERAS_INTRODUCTION = "Exception encountered when calling"  # before the layer and the user's error


# Other exceptions without the base `Exception` end the test or the capture that runs the code.
_OF_BUILDERS = (Exception, SystemExit, GeneratorExit)


@contextlib.contextmanager
def users_code(
    object: str, what: str, folder: Path | None, fix: str = "", *, is_whole: bool = False
) -> Iterator[None]:
    """Run a user's code in this block.

    Args:
        object: the target or function that errors name.
        what: the code in words, such as "the builder".
        folder: the directory of the program, as for `is_user_file`.
        fix: the fix if no line of the user is at fault.
        is_whole: whether the code is a program with a process of its own, which Ctrl-C in a
            terminal does not reach. Then a `KeyboardInterrupt` comes from the code.

    Raises:
        InputError: the code raised, or called ``sys.exit``.
    """
    try:
        yield
    except PlacementError:
        raise
    except BaseException as error:
        is_ours = type(error).__module__.startswith("placement_checks.")
        if is_ours or not (is_whole or isinstance(error, _OF_BUILDERS)):
            raise
        raise _failed(object, f"{what} {_what_happened(error)}", error, folder, fix) from None


def _failed(
    object: str, message: str, error: BaseException, folder: Path | None, fix: str
) -> InputError:
    """The error for an exception of the user's code, with the user's frames."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if is_user_file(frame.filename, folder)
    ]
    lines = traceback.format_list(frames) + traceback.format_exception_only(error)
    places = [(frame.filename, str(frame.lineno)) for frame in frames]
    if message_of(error).startswith(_AUTOGRAPH):  # the frames are in the message
        places += [each for each in _FRAME.findall(str(error)) if is_user_file(each[0], folder)]
    return InputError(
        object,
        message,
        _hint(error)
        or (f"look at {relative_path(places[-1][0])}:{places[-1][1]}" if places else fix),
        details="".join(lines).rstrip(),
    )


def _hint(error: BaseException) -> str:
    """The fix for an error that an option avoids; ``""`` for other errors."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing == "horovod":
        return "pass --horovod 2 to run it as 2 ranks; Horovod need not be installed"
    return ""


def _what_happened(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"called sys.exit({', '.join(map(repr, error.args))})"
    reason = _reason(_COLORS.sub("", message_of(error)))
    return f"raised {type(error).__name__}" + (f": {reason}" if reason else "")


def _reason(message: str) -> str:
    """The line of a message that names the problem."""
    first, *more = [line.rstrip() for line in message.strip().splitlines() if line.strip()] or [""]
    if not more:
        return first
    if first == _AUTOGRAPH:  # followed by frames and the error
        lines = textwrap.dedent("\n".join(more)).splitlines()
        error = [line for line in lines if not line.startswith(("File ", " "))]
        return _reason("\n".join(error).partition(": ")[2])
    if causes := graph_error_causes(message):
        return causes[0]
    if first.startswith(_KERAS_INTRODUCTION):
        return more[0]
    return f"{first} {more[0].strip()}" if first.endswith(":") else first
