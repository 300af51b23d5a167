"""Block-buffered stdout, cut anywhere, between whole lines of stderr; cut and wrapped lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement_checks.core import limits
from placement_checks.logs import Log, Record, read_logs
from placement_checks.logs.reading import Tally
from placement_checks.logs.unwrap import Unwrapper

HOST = "/job:localhost/replica:0/task:0/device"
DATED = "2018-10-21 18:30:00.140665: I tensorflow/core/common_runtime/placer.cc:922] "
ABSL = "I0000 00:00:1795000000.179741   19303 placer.cc:162] "
OLD = "I tensorflow/core/common_runtime/simple_placer.cc:841] "

# Names that begin and end like each other: the hardest case.
names = st.lists(st.sampled_from(["a", "b", "a_1", "ab"]), min_size=1, max_size=4).map("/".join)
placed = st.builds(
    Record,
    names,
    st.sampled_from(["Add", "AddV2", "MatMul"]),
    st.builds(f"{HOST}:{{}}:{{}}".format, st.sampled_from(["CPU", "GPU"]), st.integers(0, 12)),
)


def read(*blocks: str) -> Log:
    tally = Tally()
    for block in blocks:
        tally.add(b"\n" + block.encode())
    return tally.log("a log")


def printed(records: Sequence[Record], prefix: str, size: int) -> str:
    """The log of a process: stderr line by line, stdout in blocks of ``size``."""
    file, held = "", ""
    for node, op, device in records:
        held += f"{node}: ({op}): {device}\n"
        while len(held) >= size:
            file, held = file + held[:size], held[size:]
        file += f"{prefix}{node}: ({op}): {device}\n"
    return file + held


@given(st.lists(placed, min_size=1, max_size=40), st.sampled_from([DATED, ABSL, OLD]), st.data())
def test_torn_records_have_whole_copies(
    records: Sequence[Record], prefix: str, data: st.DataObject
) -> None:
    size = data.draw(st.integers(100, 400), label="size")

    log = read(printed(records, prefix, size))

    assert (log.counts, log.records, log.torn) == (Counter(records), 2 * len(records), 0)


@given(st.lists(placed, min_size=1, max_size=40), st.data())
def test_torn_records_across_blocks_have_whole_copies(
    records: Sequence[Record], data: st.DataObject
) -> None:
    lines = printed(records, DATED, 150).splitlines()
    border = data.draw(st.integers(0, len(lines)), label="border")

    log = read("\n".join(lines[:border]), "\n".join(lines[border:]))

    assert (log.counts, log.torn) == (Counter(records), 0)


@given(st.lists(placed, min_size=1, max_size=40), st.data())
def test_torn_records_without_copies_are_counted(
    records: Sequence[Record], data: st.DataObject
) -> None:
    """Without the copies on stderr, only other lines of stderr tear the records."""
    size = data.draw(st.integers(100, 400), label="size")
    warning = DATED.replace(": I ", ": W ") + "a warning"
    text = printed(records, "", size)  # stdout alone
    stdout = "".join(f"{node}: ({op}): {device}\n" for node, op, device in records)
    blocks = [stdout[at : at + size] for at in range(0, len(stdout), size)]
    text = f"{warning}\n".join(blocks)

    log = read(text)

    assert set(log.counts) <= set(records)
    assert log.records + log.torn >= len(records) - (len(blocks) - 1)


@pytest.mark.parametrize(
    ("head", "tail", "device"),
    [
        ("x: (Add): " + HOST + ":GPU:1", "", "GPU:1"),
        ("x: (Add): " + HOST + ":GPU:1", "0", "GPU:10"),
        ("x: (Add): " + HOST + ":GPU:", "1", "GPU:1"),
        ("x", ": (Add): " + HOST + ":GPU:1", "GPU:1"),
        ("x: (A", "dd): " + HOST + ":GPU:1", "GPU:1"),
    ],
)
def test_records_cut_at_any_position(head: str, tail: str, device: str) -> None:
    record = f"x: (Add): {HOST}:{device}"

    log = read(f"{head}{DATED}{record}\n{tail}\n")

    assert (log.counts, log.records, log.torn) == (
        {Record("x", "Add", f"{HOST}:{device}"): 1},
        2,
        0,
    )


def test_the_end_of_a_torn_name_is_not_a_node() -> None:
    log = read(
        f"tower_1/lo{DATED}tower_1/logits: (MatMul): {HOST}:GPU:1\n"
        f"gits: (MatMul): {HOST}:GPU:1\n"
        f"{DATED}b: (Add): {HOST}:GPU:0\nb: (Add): {HOST}:GPU:0\n"
    )

    assert {record.node for record in log.counts} == {"tower_1/logits", "b"}


def test_a_lost_newline_does_not_make_a_device_2017() -> None:
    log = read(f"a: (Add): /job:localhost/replica:0/task:0/cpu:0{DATED}b: (Add){HOST}:CPU:0")

    assert {record.device for record in log.counts} == {f"{HOST}:CPU:0"}
    assert log.torn == 0


def test_a_record_without_its_end() -> None:
    log = read(f"x: (Add): /job:localhost/repl{DATED}y: (Add): {HOST}:CPU:0\n\n\n")

    assert ({record.node for record in log.counts}, log.torn) == ({"y"}, 1)
    assert log.unread == (
        "1 of 2 records is torn, and its other copy is missing (search for 'x: (Add): "
        "/job:localhost/repl'): log again with PYTHONUNBUFFERED=1, and copy whole lines"
    )


def test_a_cut_last_line() -> None:
    log = read(f"y: (Add): {HOST}:CPU:0\nx: (Add): {HOST}:CP")

    assert ({record.node for record in log.counts}, log.torn) == ({"y"}, 1)


def test_a_progress_bar_before_a_log_line_is_not_a_record() -> None:
    log = read(f"Epoch 1/10{DATED}y: (Add): {HOST}:CPU:0\ny: (Add): {HOST}:CPU:0\n")

    assert (list(log.counts), log.torn) == ([Record("y", "Add", f"{HOST}:CPU:0")], 0)


@pytest.mark.parametrize("word", ["...", "Loading...", "1705871770.179741: ", "12:"])
def test_other_text_costs_no_record(word: str) -> None:
    log = read(
        f"{word}{DATED.replace(': I ', ': W ')}a warning\nconv/w: (VarHandleOp): {HOST}:CPU:0"
    )

    assert (list(log.counts), log.torn) == ([Record("conv/w", "VarHandleOp", f"{HOST}:CPU:0")], 0)


def test_only_torn_records_give_a_reason() -> None:
    log = read(f"ok{DATED.replace(': I ', ': W ')}a warning\nconv/w: (VarHandleOp): {HOST}:CPU:0")

    assert (log.counts, log.torn) == ({}, 1)
    assert log.reason is not None
    assert log.reason.startswith("every record in it is torn (1 in all)")


def test_text_before_a_name_is_detected_by_the_other_copy() -> None:
    record = f"w/k: (MatMul): {HOST}:CPU:0"
    log = read(f"loss: 2.30{record}\n{DATED}{record}\n")

    assert (log.counts, log.records) == ({Record("w/k", "MatMul", f"{HOST}:CPU:0"): 1}, 2)


@pytest.mark.parametrize("op", ["|Const", "C|onst", "Cons|t", "Const|"])
def test_a_torn_beginning_before_other_text(op: str) -> None:
    begin, end = op.split("|")
    record = f"tower_1/Shape: (Const): {HOST}:CPU:2"
    log = read(
        f"tower_1/Shape: ({begin}the loss is 0.26\n{DATED}{record}\n=== 1 failed ===\n"
        f"{end}): {HOST}:CPU:2\n"
    )

    assert (log.counts, log.records, log.torn) == (
        {Record("tower_1/Shape", "Const", f"{HOST}:CPU:2"): 1},
        2,
        0,
    )


def test_an_interrupted_block_adds_no_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: bytes) -> None:
        raise KeyboardInterrupt

    tally = Tally()
    tally.add(f"\nx: (Add): {HOST}:CPU:0".encode())
    monkeypatch.setattr("placement_checks.logs.reading.read", interrupt)

    with pytest.raises(KeyboardInterrupt):
        tally.add(b"\nstep 1\nExecuting op x] in device y")

    assert tally.log("a log").records == 1


@pytest.mark.parametrize(
    "text",
    [
        f"x: (Add): /{'a' * 20_000} z\n" + "1\n" * 2_000,
        "0: " * 30_000,
        f"placer.cc:1] {'a' * 300_000}: (Add): {HOST}:GPU:0\ny: (Add): {HOST}:GPU:0\n",
        "".join(f"{DATED}x_{n}: (Add): {HOST}:GPU:0\n" for n in range(30_000))
        + f"z: (Add): {HOST}:GPU:0\n",
        "".join(f"x{n}: (A\n" for n in range(40_000)),
        "{\n" * 50_000,
        ": (Add): " * 30_000,
        "/job:localhost/replica:0/task:0/" * 20_000,
    ],
    ids=[
        "a long head",
        "labels",
        "a long name",
        "one without a copy",
        "many heads",
        "braces",
        "many ops",
        "many devices",
    ],
)
def test_time_for_torn_records_is_linear(text: str) -> None:
    begin = time.process_time()

    read(Unwrapper().unwrap(text.encode()).decode())

    assert time.process_time() - begin < 8  # seconds; quadratic time would take minutes


def test_a_copy_decides_whether_an_index_is_complete() -> None:
    one, ten = (f"x: (Add): {HOST}:GPU:{index}" for index in (1, 10))
    log = read(f"{one}{DATED}{one}\n0\n{DATED}{ten}\n{ten}\n")

    assert log.counts == {Record("x", "Add", f"{HOST}:GPU:{index}"): 1 for index in (1, 10)}
    assert (log.records, log.torn) == (4, 0)


WARNING = DATED.replace(": I ", ": W ") + "a warning\n"
Y = f"y: (Add): {HOST}:CPU:0"


@pytest.mark.parametrize(
    "head",
    [
        "tower_1/lo",
        "tower_1/logits: ",
        "tower_1/logits: (Mat",
        "tower_1/logits: (MatMul): /job:local",
        "tower_1/logits: (MatMul): /job:localhost/replica:0/task:0/gp",
        "tower_1/logits: (MatMul): /job:localhost/replica:0/task:0/device:GPU:",
        "# tower_1/logits: (MatMul): /job:local",
    ],
)
def test_a_torn_beginning_with_a_whole_copy_is_not_lost(head: str) -> None:
    log = read(f"{Y}\n{DATED}{Y}\n{DATED}tower_1/logits: (MatMul): {HOST}:GPU:1\n{head}{WARNING}")

    assert ([record.node for record in log.counts], log.torn) == (["y", "tower_1/logits"], 0)


def test_a_torn_beginning_with_a_copy_on_its_line_is_not_lost() -> None:
    log = read(f"# y: (Add): /job:local{DATED}{Y}\n")

    assert (log.counts, log.records, log.torn) == ({Record("y", "Add", f"{HOST}:CPU:0"): 1}, 2, 0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"x: (Add): /job:local{WARNING}", id="no copy at all"),
        pytest.param(f"{DATED}x: (Mul): {HOST}:CPU:0\nx: (Add): /job:local{WARNING}", id="an op"),
        pytest.param(f"{DATED}x: (Add): {HOST}:CPU:0\nx: (Add): /job:ps{WARNING}", id="a device"),
        pytest.param(
            f"{DATED}x: (Add): {HOST}:CPU:0\nx: (Add): {HOST}:CPU:0\nx: (Add): /job:lo{WARNING}",
            id="its copy is another's",
        ),
        pytest.param(f"{DATED}x: (Add): /job:lo\nx: (Add): {HOST}:CPU:0\n", id="of stderr"),
        pytest.param(f"y/k: (Add): {HOST}:CPU:0\ny{WARNING}", id="a name, without copies"),
        pytest.param(
            f"{DATED}{Y}\n{Y}\nz: (Add): {HOST}:CPU:0\ny{WARNING}", id="a name, a copy is missing"
        ),
        pytest.param(f"{DATED}{Y}\n{Y}\n{Y}\ny: (Add): /job:lo{WARNING}", id="more than copies"),
        pytest.param(f"{DATED}{Y}\n{DATED}y: (Add): /job:lo\n", id="of stderr alone"),
    ],
)
def test_a_torn_beginning_without_a_copy_is_lost(text: str) -> None:
    assert read(text).torn == 1


def test_a_word_is_not_a_beginning_if_all_records_have_copies() -> None:
    """The word is the beginning of some records that have no copy on stdout."""
    log = read(f"ok{WARNING}{Y}\n{DATED}{Y}\n")

    assert (log.records, log.torn) == (2, 0)


def test_a_torn_beginning_next_to_a_torn_record_is_not_lost() -> None:
    """The end of the torn record, w/y, looks like a separate record."""
    log = read(f"v/{DATED}v/w/{Y}\nw/{Y}\nste{WARNING}p 50\n")

    assert (log.counts, log.torn) == ({Record("v/w/y", "Add", f"{HOST}:CPU:0"): 1}, 0)


def test_a_copy_belongs_to_one_torn_beginning() -> None:
    log = read(f"{DATED}{Y}\n{DATED}{Y}\ny: (Add): /job:lo{WARNING}")

    assert (log.counts, log.records, log.torn) == ({Record("y", "Add", f"{HOST}:CPU:0"): 2}, 3, 0)


def test_an_ambiguous_beginning() -> None:
    copies = "".join(f"{DATED}x: ({op}): {HOST}:CPU:0\n" for op in ("Abs", "Add"))

    log = read(f"x: (A{WARNING}x: (Abs{WARNING}{copies}")

    assert (log.records, log.torn) == (4, 0)


def test_a_word_is_not_an_eager_record() -> None:
    log = read(f"Exec{WARNING}{DATED}Executing op Add in device {HOST}:CPU:0\n")

    assert (log.records, log.torn) == (1, 0)


def test_more_torn_beginnings_than_copies() -> None:
    log = read(f"y: (A{WARNING}y: (Add): /job:lo{WARNING}{DATED}{Y}\n")

    assert (log.counts, log.records, log.torn) == ({Record("y", "Add", f"{HOST}:CPU:0"): 1}, 2, 1)


@pytest.mark.parametrize(
    ("text", "records"),
    [
        (f"x: (Add): {HOST}:GPU:1y: (Mul): {HOST}:CPU:0\n", ["x 1", "y 0"]),
        (f"x: (Add): {HOST}:GPU:1the loss is 0.3\n\n", ["x 1"]),
        (f"x: (Add): {HOST}:GPU:1the loss is 0.3\nz: (Add): {HOST}:CPU:0\n", ["x 1", "z 0"]),
        (f"x: (Add): {HOST}:GPU:1y: (Mul): {HOST}:CPU:0z: (Add): {HOST}:CPU:0\n",
         ["x 1", "y 0", "z 0"]),
        (f"x: (f.g): {HOST}:GPU:1y: (f<lambda>): {HOST}:CPU:0\n", ["x 1", "y 0"]),
        # The index is torn; the other copy has it.
        (f"x: (Add): {HOST}:GPU:1the loss\n0\n{DATED}x: (Add): {HOST}:GPU:10\n", ["x 10"]),
    ],
)  # fmt: skip
def test_a_lost_or_late_newline(text: str, records: Sequence[str]) -> None:
    log = read(text)

    found = [f"{record.node} {record.device.rpartition(':')[2]}" for record in log.counts]
    assert sorted(found) == records
    assert log.torn == 0


def test_an_ambiguous_index_is_torn() -> None:
    one_or_two_digits = read(f"x: (Add): {HOST}:GPU:12y: (Mul): {HOST}:CPU:0\n")
    goes_on_below = read(f"x: (Add): {HOST}:GPU:1the loss is 0.3\n0\n")

    assert (one_or_two_digits.counts, one_or_two_digits.torn) == ({}, 2)
    assert (goes_on_below.counts, goes_on_below.torn) == ({}, 1)


@pytest.mark.parametrize("op", ["f.g", "f<lambda>", "f[x]", "förlust"])
@settings(deadline=None)
@given(data=st.data())
def test_torn_records_of_functions_of_any_name(op: str, data: st.DataObject) -> None:
    records = [Record(f"x_{n}", op, f"{HOST}:GPU:{n}") for n in range(9)]
    size = data.draw(st.integers(100, 400), label="size")

    log = read(printed(records, DATED, size))

    assert (log.counts, log.records, log.torn) == (Counter(records), 18, 0)
    assert read(f"x: ({op}): /job:loc{WARNING}").torn == 1


@pytest.mark.parametrize("head", ["y: (Add): /job:lo", "logits"])
@pytest.mark.parametrize("end", [WARNING, WARNING + "step 1\n" * 3], ids=["last", "before text"])
def test_torn_records_of_several_logs_are_counted(head: str, end: str, tmp_path: Path) -> None:
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    logs[0].write_text(f"x: (Add): {HOST}:CPU:0\n{head}{end}")
    logs[1].write_text(f"z: (Add): {HOST}:CPU:0\n")

    assert read_logs(logs).torn == read_logs(logs[:1]).torn == 1


def test_a_name_without_a_copy_differs_from_longer_names() -> None:
    log = read(f"{DATED}x/y: (Add): {HOST}:CPU:0\nx/y: (Add): {HOST}:CPU:0\n{Y}\n")

    assert {record.node: count for record, count in log.counts.items()} == {"x/y": 1, "y": 1}


@pytest.mark.parametrize("text", ["4", "30", "2.30"])
@pytest.mark.parametrize("name", ["y", "y/k"])
def test_long_text_before_a_name(text: str, name: str) -> None:
    log = read(f"{text}{name}: (Add): {HOST}:CPU:0\n{DATED}{name}: (Add): {HOST}:CPU:0\n")

    assert (log.counts, log.records) == ({Record(name, "Add", f"{HOST}:CPU:0"): 1}, 2)


@pytest.mark.parametrize("mark", ["node1: ", "outputlog:"])
def test_a_prefix_of_many_lines_is_not_a_torn_name(mark: str) -> None:
    assert read(f"{Y}\n" + f"{mark}{WARNING}" * 2).torn == 0


def test_the_torn_one_of_two_records_on_a_line_is_not_lost() -> None:
    x = f"x: (Mul): {HOST}:CPU:0"

    log = read(f"# {x} y: (Add): /job:lo{WARNING}{DATED}{x}\n{DATED}{Y}\n")

    assert (log.records, log.torn) == (4, 0)


def test_equal_beginnings_on_several_devices() -> None:
    copies = "".join(f"{DATED}y: (Add): {HOST}:GPU:{index}\n" for index in range(4))

    log = read(f"y: (Add): /job:lo{WARNING}" * 4 + copies)

    assert (log.records, log.torn) == (8, 0)


def test_a_whole_record_does_not_continue_after_other_lines() -> None:
    log = read(f"x: (Add): {HOST}:GPU:1{WARNING}step 1\n0\n")

    assert (log.counts, log.torn) == ({Record("x", "Add", f"{HOST}:GPU:1"): 1}, 0)


@pytest.mark.parametrize("begin", ["", DATED])
@pytest.mark.parametrize(
    "record",
    [
        Y,
        "y: /job:localhost/replica:0/task:0/cpu:0",
        "Executing op Add in device /job:localhost/replica:0/task:0/device:CPU:0",
    ],
)
def test_a_log_that_ends_within_a_record(begin: str, record: str, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for end in ("Add", "Add): ", "/job:lo", "device:CPU:"):
        if end in record:
            log.write_text(f"{Y}\n{begin}{record[: record.rindex(end) + len(end)]}")
            assert "it ends in the middle of a record" in read_logs([log]).unread, end
    log.write_text(f"{Y}\n{begin}{record}")
    assert read_logs([log]).unread == ""


def test_a_record_before_other_text_and_a_log_line() -> None:
    log = read(f"x: (Add): {HOST}:CPU:0 is done {DATED}{Y}\n")

    assert ({record.node for record in log.counts}, log.torn) == ({"x", "y"}, 0)


def test_a_record_with_text_after_it_is_whole() -> None:
    log = read(f"x: (Add): {HOST}:CPU:0 is done\nstep 1\n")

    assert (log.records, log.torn) == (1, 0)


@pytest.mark.parametrize(
    "text",
    [
        f"tower_1/Shape: (Constep 1\nst): {HOST}:CPU:0",
        f"tower_1/Shape: (Const)step 1\n: {HOST}:CPU:0",
        f"tower_1/Shapestep 1\n: (Const): {HOST}:CPU:0",
        f"tower_1/Shape: (Const): /jstep 1\n{HOST.removeprefix('/j')}:CPU:0",
        f"tower_1/Shape: (Const): /job:lstep 1\n{HOST.removeprefix('/job:l')}:CPU:0",
    ],
)
def test_a_record_torn_by_other_text_is_counted(text: str) -> None:
    log = read(f"{Y}\n{text}\n")
    copied = read(f"{Y}\n{DATED}{Y}\n{DATED}tower_1/Shape: (Const): {HOST}:CPU:0\n{text}\n")

    assert ([record.node for record in log.counts], log.torn) == (["y"], 1)
    assert log.torn_text in text
    assert (list(copied.counts), copied.records, copied.torn) == (
        [Record("y", "Add", f"{HOST}:CPU:0"), Record("tower_1/Shape", "Const", f"{HOST}:CPU:0")],
        4,
        0,
    )


@pytest.mark.parametrize("blank", [1, 2])
def test_records_that_are_wrapped_at_a_blank_are_counted(blank: int) -> None:
    """A whole copy, on either stream, replaces the wrapped record."""
    record = f"x: (Add): {HOST}:GPU:1"
    words = record.split(" ")
    wrapped = " ".join(words[:blank]) + "\n" + " ".join(words[blank:])

    log = read(f"{Y}\n{wrapped}\n")

    assert (list(log.counts), log.torn) == ([Record("y", "Add", f"{HOST}:CPU:0")], 1)
    for prefix in ("", DATED):
        assert read(f"{prefix}{record}\n{wrapped}\n").torn == 0


def test_text_that_is_not_a_wrapped_record() -> None:
    log = read(f"{Y}\nresults of (test):\n{HOST}:GPU:1\n(GPU:1): {HOST}\n")

    assert (log.records, log.torn) == (1, 0)


@pytest.mark.parametrize("mark", ["> ", "[pod/train-0/main] ", "python[1234]: "])
def test_torn_records_in_quotes_have_whole_copies(mark: str) -> None:
    records = [Record(f"tower_{n % 3}/x_{n}", "Add", f"{HOST}:GPU:{n % 3}") for n in range(40)]
    text = printed(records, DATED, 250)

    log = read("".join(f"{mark}{line}\n" for line in text.splitlines()))

    assert (log.counts, log.torn) == (Counter(records), 0)


def test_a_cut_record_of_stderr_behind_a_mark() -> None:
    log = read(f"[pod/train-0/main] {DATED}x: (Add): /job:lo\n[pod/train-0/main] {Y}\n")

    assert (log.records, log.torn, log.torn_text) == (1, 1, "x: (Add)")


def test_the_number_of_different_torn_records_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LOG_TORN", limits.Limit(3, "torn records"))
    heads = "".join(f"x_{n}: (Add): /job:lo{WARNING}" for n in range(9))
    pairs = "".join(f"x_{n}: (A{WARNING}dd): {HOST}:GPU:1\n" for n in range(9))

    assert read(f"{Y}\n{heads}{pairs}").torn == 18


def test_a_tail_in_the_next_block_is_not_another_op() -> None:
    log = read(f"{Y}\ntower_1/lo{WARNING}", f"gits: (MatMul): {HOST}:GPU:1\n")

    assert (list(log.counts), log.torn) == ([Record("y", "Add", f"{HOST}:CPU:0")], 1)


def test_equal_lines_with_a_torn_record_are_counted_in_each_block() -> None:
    line = f"{Y} x: (Add): /job:lo is torn\n"

    assert read(line, line).torn == 2
