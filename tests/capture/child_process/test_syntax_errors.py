"""Errors for scripts that are not valid Python 3 have one line, and name Python 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from placement_checks.capture.child_process.source_edits import SourceValues
from placement_checks.core.errors import InputError


def error_of(source: str | bytes) -> InputError:
    text = source.encode() if isinstance(source, str) else source
    with pytest.raises(InputError) as error:
        SourceValues({}).compile_main(Path("train.py"), text)
    return error.value


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("print 'loss', loss", "a print statement"),
        ("print loss", "a print statement"),
        ("exec 'a = 1'", "an exec statement"),
        ("exec code in names", "an exec statement"),
        ("raise ValueError, 'no data'", "raise ERROR, VALUE"),
        ("x = `loss`", "backticks"),
        ("y = 1 <> 2", "the operator <>"),
        ("y = 10L", "a long number such as 10L"),
        ("y = 0xFFl", "a long number such as 10L"),
        ("os.chmod(x, 0755)", "an octal number such as 0755"),
        ("x = ur'a'", "a string with the prefix ur"),
        ("def f(a, (b, c)): pass", "a parameter in parentheses"),
        ("key = lambda (a, b): a", "a parameter in parentheses"),
    ],
)
def test_code_of_python_2(line: str, what: str) -> None:
    assert str(error_of(f"import os\n\n{line}\n")) == (
        f"train.py:3 is written in Python 2: it has {what}; "
        "convert it to Python 3, for example with 2to3; placement-checks does not convert it"
    )


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("try:\n    pass\nexcept IOError, e:\n    pass", 3, "except ERROR, NAME"),
        ("try:\n    pass\nexcept (A, B), e:\n    pass", 3, "except ERROR, NAME"),
        ("if x:\n\ty = 1\n        z = 2\n", 3, "mixed tabs and spaces"),
        ("if x:\n        y = 1\n\tz = 2\n", 3, "mixed tabs and spaces"),
    ],
)
def test_code_of_python_2_on_several_lines(source: str, line: int, what: str) -> None:
    error = error_of(source)
    assert (error.object, error.message) == (
        f"train.py:{line}",
        f"is written in Python 2: it has {what}",
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x = 1 +", "invalid syntax"),
        ("x = (1", "'(' was never closed"),
        ("return 3", "'return' outside function"),
        ("x = 3a", "invalid decimal literal"),
        ("raise ValueError('a, b') from", "invalid syntax"),
        ("x = 'a", "unterminated string literal (detected at line 2)"),
    ],
)
def test_other_syntax_errors_do_not_mention_python_2(line: str, reason: str) -> None:
    assert str(error_of(f"import os\n{line}")) == (
        f"train.py:2 is not valid Python 3: {reason}; run it with python to see why"
    )


def test_a_file_with_another_encoding() -> None:
    error = error_of("import os\nx = 'é'\n".encode("latin-1"))
    assert error.object == "train.py"
    assert error.message == "is not valid utf-8: it contains the byte 0xe9"
    assert "# -*- coding: latin-1 -*-" in error.fix


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"# coding: no-such\nx = 1", "is not valid Python 3: unknown encoding: no-such"),
        (b"-" * 100_000 + b"1", "cannot be compiled: it is nested too deeply"),
    ],
)
def test_errors_without_a_line(source: bytes, reason: str) -> None:
    error = error_of(source)
    assert (error.object, error.message) == ("train.py", reason)


def test_a_file_of_bytes() -> None:
    assert "null bytes" in error_of(b"\x7fELF\0\0").message
