"""The same log in every format that changes its lines: loggers, containers, colors."""

from __future__ import annotations

import codecs
import html
import itertools
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from placement_checks.logs import Log, Record, read_logs, sources
from placement_checks.logs.unwrap import Unwrapper

TIME = "2024-01-21T21:16:10.179741123Z"


@pytest.fixture(scope="module", params=["1.3.0", "2.15.1", "2.21.0"])
def printed(request: pytest.FixtureRequest, fixtures: Path) -> bytes:
    """The lines of a real log of both streams, with a record form of each generation."""
    folder = fixtures / "logs" / request.param
    name = "session.tty.log" if request.param != "1.3.0" else "session.stderr.log"
    content: bytes = (folder / name).read_bytes()
    return content.replace(b"\r\n", b"\n")


def read(folder: Path, text: bytes) -> Log:
    file = folder / "a.log"
    file.write_bytes(text)
    return read_logs([str(file)])


def each_line(mark: str) -> Callable[[bytes], bytes]:
    return lambda text: b"".join(mark.encode() + line for line in text.splitlines(keepends=True))


def fluent_json(text: bytes) -> bytes:
    """Like Docker's form, but without a newline in the text."""
    entries = ({"log": line, "stream": "stdout"} for line in text.decode().splitlines())
    return "\n".join(map(json.dumps, entries)).encode()


def journald_json(text: bytes) -> bytes:
    """journald writes binary text as the numbers of its bytes."""
    entries = (
        {"MESSAGE": list(line) if number % 2 else line.decode(), "_PID": "1"}
        for number, line in enumerate(text.splitlines())
    )
    return "\n".join(map(json.dumps, entries)).encode()


def docker_json(text: bytes) -> bytes:
    """Docker cuts lines at 16 KiB; here, every second line is cut in the middle."""

    def entry(piece: str) -> str:
        return json.dumps({"log": piece, "stream": "stderr", "time": TIME})

    entries: list[str] = []
    for number, line in enumerate(text.decode().splitlines(keepends=True)):
        cut = len(line) // 2 if number % 2 else 0
        entries += [entry(piece) for piece in (line[:cut], line[cut:]) if piece]
    return "\n".join(entries).replace(">", "\\u003e").encode()


def cri(text: bytes) -> bytes:
    """Pieces of lines of two streams, which alternate: each line is cut in the middle."""
    lines = text.decode().splitlines()
    out: list[str] = []
    for first, second in itertools.zip_longest(lines[::2], lines[1::2], fillvalue=""):
        a, b = len(first) // 2, len(second) // 3
        out += [
            f"{TIME} stdout P {first[:a]}",
            f"{TIME} stderr P {second[:b]}",
            f"{TIME} stdout F {first[a:]}",
            f"{TIME} stderr F {second[b:]}",
        ]
    return "\n".join(out).encode()


def colored(text: bytes) -> bytes:
    return b"".join(
        b"\x1b[32m" + line.rstrip(b"\n") + b"\x1b[0m\x1b[K\n"
        for line in text.splitlines(keepends=True)
    )


CARRIERS: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "CR alone": lambda text: text.replace(b"\n", b"\r"),
    "a progress bar that ends in CR": each_line(" 50%|#####     | 1/2 [00:01<00:01]\r"),
    "backspaces of a progress bar": each_line("1/2 [====>....]\b\b\b\b\b\b\b\b\b\b\b\b\b\b\b "),
    "UTF-16 of PowerShell": lambda text: codecs.BOM_UTF16_LE + text.decode().encode("utf-16-le"),
    "UTF-16, big end first": lambda text: codecs.BOM_UTF16_BE + text.decode().encode("utf-16-be"),
    "UTF-8 with a BOM": lambda text: codecs.BOM_UTF8 + text,
    "NUL bytes of a file cut while it was written": lambda text: b"\0" * 5000 + text,
    "bytes that are no UTF-8": each_line("\u2588 "),
    "invalid bytes": lambda text: text.replace(b"\n", b"\n\xff\xfe\x80 "),
    "colors": colored,
    "colors through syslog": each_line("#033[1;32m"),
    "docker json-file": docker_json,
    "docker json-file, colored": lambda text: docker_json(colored(text)),
    "Fluent Bit": fluent_json,
    "journalctl -o json": journald_json,
    "a text field that is there twice": lambda text: "\n".join(
        json.dumps({"message": line, "event": {"original": line}})
        for line in text.decode().splitlines()
    ).encode(),
    "colors as cat -v shows them": lambda text: colored(text).replace(b"\x1b", b"^["),
    "colors in a repr": lambda text: colored(text).replace(b"\x1b", b"\\x1b"),
    "colors that lost the escape": each_line("[32m"),
    "tput sgr0": each_line("\x1b(B\x1b[m"),
    "HTML": lambda text: b"<pre>" + html.escape(text.decode()).encode() + b"</pre>",
    "systemd": each_line("<6>"),
    "mpirun, with a blank": each_line("[1,0]<stdout>: "),
    "srun, with two digits": each_line(" 3: "),
    "pdsh": each_line("node1: "),
    "docker-compose": each_line("worker_1  | "),
    "Kubernetes CRI": cri,
    "kubectl logs --timestamps": each_line(f"{TIME} "),
    "kubectl logs --prefix": each_line("[pod/train-0/main] "),
    "GitHub Actions": lambda text: codecs.BOM_UTF8 + each_line(f"{TIME[:27]}Z ")(text),
    "gh run view --log": each_line(f"build\tRun tests\t{TIME[:27]}Z "),
    "mpirun --tag-output": each_line("[1,0]<stderr>:"),
    "srun --label": each_line("0: "),
    "syslog": each_line("Jan 21 21:16:10 gpu-host python[1234]: "),
    "journalctl -o short-iso": each_line("2024-01-21T21:16:10+0000 gpu-host python[1234]: "),
    "comment marks": each_line("# "),
    "a quoted mail": each_line("> > "),
    "a REPL": each_line(">>> "),
    "a notebook server": lambda text: text.replace(
        b"\n", b"\n[I 12:00:01.123 NotebookApp] Saving file at /Untitled.ipynb\n"
    ),
    "indentation": lambda text: textwrap.indent(text.decode(), "        ").encode(),
    "grep -n": lambda text: b"".join(
        b"%d:%b" % (number, line) for number, line in enumerate(text.splitlines(keepends=True), 1)
    ),
    "grep in several files": each_line("outputlog:"),
    "JSON of a logging service": lambda text: "\n".join(
        json.dumps({"severity": "INFO", "jsonPayload": {"message": line}})
        for line in text.decode().splitlines()
    ).encode(),
    "one string of JSON": lambda text: json.dumps({"stdout": text.decode()}).encode(),
    "the repr of bytes": lambda text: repr(text).encode(),
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_each_carrier_keeps_all_records(carrier: str, printed: bytes, tmp_path: Path) -> None:
    plain = read(tmp_path, printed)

    carried = read(tmp_path, CARRIERS[carrier](printed))

    assert len(plain.counts) > 100
    assert (carried.counts, carried.records, carried.torn) == (
        plain.counts,
        plain.records,
        plain.torn,
    )


def stacked(names: Iterable[str]) -> Callable[[bytes], bytes]:
    def carry(text: bytes) -> bytes:
        for name in names:
            text = CARRIERS[name](text)
        return text

    return carry


@pytest.mark.parametrize(
    "names",
    [
        ("colors", "docker-compose", "GitHub Actions", "CRLF"),
        ("mpirun --tag-output", "Kubernetes CRI"),
        ("srun --label", "kubectl logs --timestamps", "UTF-16 of PowerShell"),
        ("docker-compose", "docker json-file"),
    ],
    ids=", ".join,
)
def test_nested_carriers(names: Sequence[str], printed: bytes, tmp_path: Path) -> None:
    assert read(tmp_path, stacked(names)(printed)).counts == read(tmp_path, printed).counts


@pytest.mark.parametrize("carrier", ["docker-compose", "GitHub Actions", "mpirun --tag-output"])
def test_torn_records_after_prefixes_have_whole_copies(
    carrier: str, fixtures: Path, tmp_path: Path
) -> None:
    torn = (fixtures / "logs" / "2.15.1" / "session.log").read_bytes()
    plain = read(tmp_path, torn)

    carried = read(tmp_path, CARRIERS[carrier](torn))

    assert (carried.counts, carried.records, carried.torn) == (plain.counts, plain.records, 0)


def test_the_dots_of_pytest_are_not_part_of_a_name(tmp_path: Path) -> None:
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    text = f"tests/test_a.py .a: (Add): {device}\n..b/w: (Add): {device}\n./c: (Add): {device}\n"

    assert {record.node for record in read(tmp_path, text.encode()).counts} == {"a", "b/w", "./c"}


def test_names_may_be_numbers(tmp_path: Path) -> None:
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    text = f"m: (MatMul): {device}\n0: (Const): {device}\n1: (Mul): {device}\n"

    assert {record.node for record in read(tmp_path, text.encode()).counts} == {"m", "0", "1"}


@pytest.mark.parametrize("carry", [docker_json, cri], ids=["docker", "CRI"])
def test_pieces_across_blocks(
    carry: Callable[[bytes], bytes],
    fixtures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(carry((fixtures / "logs" / "2.15.1" / "session.tty.log").read_bytes()))

    whole = read_logs([str(log)])
    monkeypatch.setattr(sources, "BLOCK", 500)

    blocks = read_logs([str(log)])

    assert (blocks.counts, blocks.torn) == (whole.counts, 0)


def test_json_of_any_depth(tmp_path: Path) -> None:
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    deep = '{"a":' + "[" * 900 + f'"x: (Add): {device}"' + "]" * 900 + "}"

    assert read(tmp_path, deep.encode()).records == 1
    assert read(tmp_path, b'{"a":' + b"[" * 90_000).records == 0


DEVICE = "/job:localhost/replica:0/task:0/device:GPU:1"
RECORD = f"x: (Add): {DEVICE}"


@pytest.mark.parametrize(
    "carry", [docker_json, cri, fluent_json], ids=["docker", "CRI", "Fluent Bit"]
)
def test_line_ends_are_preserved(carry: Callable[[bytes], bytes]) -> None:
    lines = [f"x_{n}: (Add): {DEVICE}" for n in range(4)]
    unwrapper = Unwrapper()

    block = unwrapper.unwrap(carry("\n".join([*lines, ""]).encode()))

    assert (sorted(block.decode().split("\n")), unwrapper.rest()) == (lines, b"")


@pytest.mark.parametrize(
    "piece",
    [
        f"{TIME} stdout P ",
        '{"log":"y\\n","stream":"stdout"}\n{"stream":"stdout","log":"',
    ],
    ids=["CRI", "docker"],
)
def test_a_piece_of_an_unfinished_line(piece: str, tmp_path: Path) -> None:
    closing = '"}' if piece.startswith("{") else ""

    whole = read(tmp_path, f"{piece}{RECORD}{closing}".encode())
    torn = read(tmp_path, f"{TIME} {RECORD}\n{piece}{RECORD[:-9]}{closing}".encode())

    assert (whole.records, whole.unread) == (1, "")
    assert torn.records == 1
    assert "it ends in the middle of a record" in torn.unread


@pytest.mark.parametrize(
    "line",
    [
        {"log": RECORD},
        {"log": {"text": RECORD}, "stream": "stdout"},
        {"text": RECORD, "stream": "stdout"},
        {"a": [256], "b": [-1], "c": RECORD},
        {"MESSAGE": [0, *RECORD.encode(), 255]},
        {"log": f"\ud800 {RECORD}", "stream": "stdout"},
        {"message": f"\ud800 {RECORD}"},
    ],
)
def test_json_of_any_form(line: Mapping[str, Any], tmp_path: Path) -> None:
    assert list(read(tmp_path, json.dumps(line).encode()).counts) == [Record("x", "Add", DEVICE)]


@pytest.mark.parametrize("carry", [docker_json, cri], ids=["docker", "CRI"])
def test_pieces_of_records_without_a_copy(
    carry: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BLOCK", 500)
    log = tmp_path / "a.log"
    log.write_bytes(carry("".join(f"x_{n}: (Add): {DEVICE}\n" for n in range(99)).encode()))

    log_of_blocks = read_logs([log])

    assert (log_of_blocks.records, log_of_blocks.torn) == (99, 0)


@pytest.mark.parametrize("mark", ["\x1b(B", "\x1b[32m", "[32m", "\x9b32m", "\x1b]0;a title\x07"])
def test_each_color_code_is_removed(mark: str, tmp_path: Path) -> None:
    assert list(read(tmp_path, f"{mark}{RECORD}".encode()).counts) == [Record("x", "Add", DEVICE)]


def test_html_entities(tmp_path: Path) -> None:
    text = RECORD.replace("x", "a&gt;b").encode()

    assert list(read(tmp_path, text).counts) == [Record("a>b", "Add", DEVICE)]


def test_json_with_invalid_text(tmp_path: Path) -> None:
    text = b'{"log":"\xff ' + RECORD.encode() + b'\\n","stream":"stdout"}'

    assert read(tmp_path, text).records == 1


def test_lines_of_a_container_may_be_empty(tmp_path: Path) -> None:
    text = f"{TIME} stdout F\n{TIME} stdout F {RECORD}\n".encode()

    assert list(read(tmp_path, text).counts) == [Record("x", "Add", DEVICE)]
