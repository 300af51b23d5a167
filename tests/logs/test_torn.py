"""Block-buffered stdout, cut anywhere, between whole lines of stderr."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.logs import Log, Record
from placement_checks.logs.tally import Tally

HOST = "/job:localhost/replica:0/task:0/device"
DATED = "2018-10-21 18:30:00.140665: I tensorflow/core/common_runtime/placer.cc:922] "
ABSL = "I0000 00:00:1795000000.179741   19303 placer.cc:162] "
OLD = "I tensorflow/core/common_runtime/simple_placer.cc:841] "

# Names that begin and end like each other: the worst there can be.
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
    """What a process leaves in a file: stderr line by line, stdout in blocks of ``size``."""
    file, held = "", ""
    for node, op, device in records:
        held += f"{node}: ({op}): {device}\n"
        while len(held) >= size:
            file, held = file + held[:size], held[size:]
        file += f"{prefix}{node}: ({op}): {device}\n"
    return file + held


@given(st.lists(placed, min_size=1, max_size=40), st.sampled_from([DATED, ABSL, OLD]), st.data())
def test_every_record_is_put_together(records, prefix, data):
    size = data.draw(st.integers(100, 400), label="size")

    log = read(printed(records, prefix, size))

    assert (log.counts, log.records, log.torn) == (Counter(records), 2 * len(records), 0)


@given(st.lists(placed, min_size=1, max_size=40), st.data())
def test_also_over_the_border_of_two_blocks(records, data):
    lines = printed(records, DATED, 150).splitlines()
    border = data.draw(st.integers(0, len(lines)), label="border")

    log = read("\n".join(lines[:border]), "\n".join(lines[border:]))

    assert (log.counts, log.torn) == (Counter(records), 0)


@given(st.lists(placed, min_size=1, max_size=40), st.data())
def test_what_cannot_be_proved_is_counted_and_not_guessed(records, data):
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
def test_cut_anywhere(head, tail, device):
    record = f"x: (Add): {HOST}:{device}"

    log = read(f"{head}{DATED}{record}\n{tail}\n")

    assert (log.counts, log.records, log.torn) == (
        {Record("x", "Add", f"{HOST}:{device}"): 1},
        2,
        0,
    )


def test_the_end_of_a_torn_name_is_no_node_of_its_own():
    log = read(
        f"tower_1/lo{DATED}tower_1/logits: (MatMul): {HOST}:GPU:1\n"
        f"gits: (MatMul): {HOST}:GPU:1\n"
        f"{DATED}b: (Add): {HOST}:GPU:0\nb: (Add): {HOST}:GPU:0\n"
    )

    assert {record.node for record in log.counts} == {"tower_1/logits", "b"}


def test_a_lost_newline_does_not_make_a_device_2017():
    log = read(f"a: (Add): /job:localhost/replica:0/task:0/cpu:0{DATED}b: (Add){HOST}:CPU:0")

    assert {record.device for record in log.counts} == {f"{HOST}:CPU:0"}
    assert log.torn == 0


def test_a_record_whose_rest_never_comes():
    log = read(f"x: (Add): /job:localhost/repl{DATED}y: (Add): {HOST}:CPU:0\n\n\n")

    assert ({record.node for record in log.counts}, log.torn) == ({"y"}, 1)


def test_a_last_line_that_is_cut_short():
    log = read(f"y: (Add): {HOST}:CPU:0\nx: (Add): {HOST}:CP")

    assert ({record.node for record in log.counts}, log.torn) == ({"y"}, 1)


def test_a_progress_bar_before_a_log_line_is_no_record():
    log = read(f"Epoch 1/10{DATED}y: (Add): {HOST}:CPU:0\ny: (Add): {HOST}:CPU:0\n")

    assert (list(log.counts), log.torn) == ([Record("y", "Add", f"{HOST}:CPU:0")], 0)
