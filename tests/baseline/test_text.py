"""A baseline as text, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.growth import check_linear

from placement_checks.baseline.text import is_baseline, parse, render
from placement_checks.core import limits
from placement_checks.core.baseline import (
    PARTS,
    Address,
    Baseline,
    Copies,
    FoldedScope,
    HeldVariable,
)
from placement_checks.core.errors import InputError
from placement_checks.core.limits import Limit
from placement_checks.core.placement import Tensor

GPUS = ("/job:worker/task:0/gpu:0", "/job:worker/task:0/gpu:1", "/job:worker/task:1/gpu:0")
PS = "/job:ps/task:0/cpu:0"
CLUSTER = Baseline(
    "fixtures/programs/workers/cluster.py:build_in_graph",
    "ps*2; worker*2: gpu*2",
    "phantom",
    versions={"placement_checks": "0.1.0", "tensorflow": "2.21.0"},
    variables=(
        HeldVariable("fc1/weights", Tensor("float32", (4, 8)), PS, (PS,)),
        HeldVariable("fc1/biases", Tensor("float32", (None,)), PS, (PS, "/gpu:1")),
        HeldVariable("global_step", Tensor("int64", ()), PS),
        HeldVariable("unknown", Tensor("float32", None), PS),
    ),
    folded=(FoldedScope("block7", 1_200, 4_915_200, "1a2b3c4d", PS, (PS, PS)),),
    towers=GPUS,
    defaults={"input": "tower", "forward": "tower", "average": "variable", "apply": "variable"},
    exceptions={
        Address("forward", 0, "fc1/weights", "MatMul"): {"/job:ps/task:0/cpu:0": 0},
        Address("forward", 1, "fc1/weights", "MatMul"): {"/job:ps/task:0/cpu:0": 0},
        Address("average", -1, None, "Const"): {"tower": 2, "variable": 13},
        Address("average", -1, "", None): {"/job:worker/task:0/gpu:0": 0},
    },
    types={
        ("forward", 0): {"MatMul": 2, "Mean": 1},
        ("forward", 1): {"MatMul": 2, "Mean": 1},
        ("forward", 2): {"MatMul": 3},
        ("average", -1): {f"Long{number:02}Type": number for number in range(1, 15)},
    },
    copies={
        (GPUS[0], PS): Copies(2, 1_600, 0),
        (GPUS[1], PS): Copies(2, 1_600, 0),
        (PS, "/job:ps/task:1/cpu:0"): Copies(1, 8, 1),
    },
    objectives={
        "average of means": [f"fc{number}/biases" for number in range(1, 10)],
        "average of means + 0.05 L2Loss(variable)": ["fc1/weights"],
        "mean on tower 0": 1_200,
    },
)


def test_the_text_of_a_baseline() -> None:
    assert (
        render(CLUSTER).split("\n", 3)[3]
        == """\
program: fixtures/programs/workers/cluster.py:build_in_graph
machine: ps*2; worker*2: gpu*2
placed by: phantom, strict
versions: placement_checks 0.1.0, tensorflow 2.21.0

variables: 1204
  fc1/weights: float32[4,8]: /job:ps/task:0/cpu:0  + 1 slot
  fc1/biases: float32[?]: /job:ps/task:0/cpu:0  + 2 slots on /job:ps/task:0/cpu:0, /gpu:1
  global_step: int64[]: /job:ps/task:0/cpu:0
  unknown: float32: /job:ps/task:0/cpu:0
  block7/*: 1,200 variables, 4,915,200 bytes, forms 1a2b3c4d: /job:ps/task:0/cpu:0  + 2 slots

towers: 3
  0-1: /job:worker/task:0/gpu:0-1
  2: /job:worker/task:1/gpu:0

objective: 6 lines
  average of means:
    fc1/biases fc2/biases fc3/biases fc4/biases fc5/biases fc6/biases fc7/biases fc8/biases
    fc9/biases
  average of means + 0.05 L2Loss(variable):
    fc1/weights
  mean on tower 0: 1,200 variables

parts: 12 lines
  input: tower
  forward: tower
    but tower 0-1 fc1/weights MatMul: /job:ps/task:0/cpu:0
    each of tower 0-1: MatMul 2 Mean 1
    tower 2: MatMul 3
  average: variable
    but * Const: tower 2, variable 13
    but - *: /job:worker/task:0/gpu:0
    holds: Long01Type 1 Long02Type 2 Long03Type 3 Long04Type 4 Long05Type 5 Long06Type 6
      Long07Type 7 Long08Type 8 Long09Type 9 Long10Type 10 Long11Type 11 Long12Type 12
      Long13Type 13 Long14Type 14
  apply: variable

copies of one step: 2 lines
  /job:ps/task:0/cpu:0 -> /job:ps/task:1/cpu:0: 1 copy, 8 bytes, 1 of unknown size
  tower 0-1 -> /job:ps/task:0/cpu:0: 2 copies, 1,600 bytes

end: placement baseline
"""
    )


def test_written_and_read_back() -> None:
    assert parse(render(CLUSTER), "mnist.txt") == CLUSTER


texts = st.text(st.characters())
names = st.one_of(
    texts,
    st.sampled_from(
        ["*", "-", "tower", "variable", "a/*", "a/", "a: b", '"', "<<<<<<< a", "\u2028"]
    ),
)
places = st.sampled_from(["/cpu:0", "/gpu:0", "/gpu:1", "/gpu:10", PS, "/device:TPU:0", "nowhere"])
symbols = st.one_of(places, st.sampled_from(["tower", "variable"]))
sizes = st.integers(0, 10**15)
slots = st.lists(places, max_size=3).map(tuple)
shapes = st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3).map(tuple)
tensors = st.builds(Tensor, names, shapes)
variables = st.builds(HeldVariable, names, tensors, places, slots)
folded = st.builds(FoldedScope, names, st.integers(2, 9999), sizes, st.just("0a1b"), places, slots)
copies = st.builds(Copies, sizes, sizes, sizes)
objectives = st.dictionaries(
    st.sampled_from(
        ["mean", "3/4 mean on tower 0 + 1/4 mean on tower 1", "scalar^-1 (mean + Max)"]
    ),
    st.lists(names) | st.integers(0, 9999),
)


@st.composite
def baselines(draw: st.DrawFn) -> Baseline:
    towers = draw(st.lists(places, max_size=5))
    tower = st.integers(-1, len(towers) - 1)
    defaults = {
        part: draw(symbols) for part in draw(st.lists(st.sampled_from(PARTS), unique=True))
    }
    parts = st.sampled_from(list(defaults)) if defaults else st.nothing()
    counted = st.sampled_from(sorted({"input", "forward", "average"} & defaults.keys()) or [""])
    addresses = st.builds(Address, parts, tower, st.none() | names, st.none() | names)
    one = st.dictionaries(symbols, st.just(0), min_size=1, max_size=1)
    several = st.dictionaries(symbols, st.integers(1, 99), min_size=2, max_size=4)
    exceptions, types = {}, {}
    if defaults:
        exceptions = draw(st.dictionaries(addresses, one | several, max_size=5))
    if {"input", "forward", "average"} & defaults.keys():
        kinds = st.dictionaries(names, st.integers(1, 10**6), min_size=1, max_size=30)
        types = draw(st.dictionaries(st.tuples(counted, tower), kinds, max_size=4))
    return Baseline(
        draw(texts),
        draw(texts),
        draw(st.sampled_from(["phantom", "session", "log"])),
        draw(st.booleans()),
        draw(st.sampled_from([{}, CLUSTER.versions])),
        tuple(draw(st.lists(variables, max_size=4, unique_by=lambda each: each.name))),
        tuple(draw(st.lists(folded, max_size=3))),
        tuple(towers),
        defaults,
        exceptions,
        types,
        draw(st.dictionaries(st.tuples(places, places), copies, max_size=5)),
        draw(objectives),
    )


@given(baselines())
def test_any_names_are_written_and_read_back(baseline: Baseline) -> None:
    text = render(baseline)

    assert parse(text, "any.txt") == baseline
    text.encode()  # no half of a surrogate pair
    assert all(line.isprintable() for line in text.split("\n"))


@given(baselines())
def test_equal_baselines_have_equal_texts(baseline: Baseline) -> None:
    shuffled = replace(
        baseline,
        exceptions=dict([*baseline.exceptions.items()][::-1]),
        types=dict([*baseline.types.items()][::-1]),
        copies=dict([*baseline.copies.items()][::-1]),
        defaults=dict([*baseline.defaults.items()][::-1]),
    )

    assert render(shuffled) == render(baseline)


LINES = render(CLUSTER).split("\n")


@given(st.integers(0, len(LINES) - 1), texts)
def test_a_damaged_line_is_named_or_read(at: int, line: str) -> None:
    damaged = "\n".join([*LINES[:at], line, *LINES[at + 1 :]])

    with contextlib.suppress(InputError):
        assert isinstance(parse(damaged, "mnist.txt"), Baseline)


@given(st.one_of(st.just(CLUSTER), baselines()), st.data())
def test_a_file_that_is_cut_is_an_error(baseline: Baseline, data: st.DataObject) -> None:
    text = render(baseline)
    end = data.draw(st.integers(0, len(text) - 2))  # without the last newline, nothing is lost

    with pytest.raises(InputError, match=r"write it again: |is not a baseline"):
        parse(text[:end], "any.txt")


def test_every_byte_counts() -> None:
    text = render(CLUSTER)
    for end in range(len(text) - 1):
        with pytest.raises(InputError):
            parse(text[:end], "any.txt")


@given(st.one_of(st.just(CLUSTER), baselines()), st.data())
def test_lines_that_a_merge_loses_or_repeats_are_an_error(
    baseline: Baseline, data: st.DataObject
) -> None:
    """One line may be lost, another one may be there twice, also far from the first."""
    lines = render(baseline).split("\n")
    counted = [at for at, line in enumerate(lines) if line and not line.startswith("#")]
    kept = list(lines)
    lost = data.draw(st.none() | st.sampled_from(counted))
    twice = data.draw(st.sampled_from(counted) if lost is None else st.none())
    if twice is not None:
        kept.insert(data.draw(st.integers(1, len(lines))), lines[twice])
    if lost is not None:
        del kept[lost]

    with pytest.raises(InputError):
        parse("\n".join(kept), "any.txt")


@given(st.sampled_from([line for line in LINES if line.startswith(" ")]), st.data())
def test_a_line_in_place_of_another_one_is_not_silent(line: str, data: st.DataObject) -> None:
    """A bad merge can keep the number of lines."""
    at = data.draw(st.sampled_from([at for at, old in enumerate(LINES) if old.startswith(" ")]))

    with contextlib.suppress(InputError):
        parsed = parse("\n".join([*LINES[:at], line, *LINES[at + 1 :]]), "any.txt")
        assert (parsed == CLUSTER) == (line == LINES[at])


def test_windows_line_endings() -> None:
    assert parse(render(CLUSTER).replace("\n", "\r\n"), "mnist.txt") == CLUSTER


@pytest.mark.parametrize("mark", ["<<<<<<< HEAD", "=======", ">>>>>>> refactor", "||||||| base"])
@pytest.mark.parametrize("at", [0, 10])
def test_merge_conflict_markers_are_the_first_error(mark: str, at: int) -> None:
    text = "\n".join([*LINES[:at], mark, "what is this", *LINES[at:]])

    assert is_baseline(text)
    with pytest.raises(InputError) as raised:
        parse(text, "mnist.txt")
    assert str(raised.value) == (
        f"mnist.txt:{at + 1}: contains merge conflict markers; keep either side, then write it "
        "again: pytest --placement-update, or placement-checks verify PROGRAM --baseline . "
        "--update"
    )


def without(line: str) -> str:
    return "\n".join(each for each in LINES if not each.startswith(line))


def changed(old: str, new: str) -> str:
    assert old in render(CLUSTER)
    return render(CLUSTER).replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            changed("form 2:", "form 3:"),
            "mnist.txt:1 is a baseline of form 3, but this placement_checks reads form 2; "
            "install a newer placement_checks",
        ),
        (
            "{}",
            "mnist.txt:1 is not a baseline: it does not begin with '# placement baseline, form '",
        ),
        (
            "",
            "mnist.txt:1 is not a baseline: it does not begin with '# placement baseline, form '",
        ),
        (
            changed("form 2:", "form 1:"),
            "mnist.txt:1 is a baseline of form 1, but this placement_checks reads form 2; "
            "write it again: ",
        ),
        (changed("form 2:", f"form {'2' * 5000}:"), "mnist.txt:1 is not a baseline"),
        (without("machine"), "mnist.txt: the line 'machine:' is missing"),
        (
            render(CLUSTER).partition("copies of")[0],
            "mnist.txt: the section 'copies of one step' is missing, so the file is incomplete; ",
        ),
        (
            without("  /job:ps/task:0/cpu:0 -> "),
            "mnist.txt: the section 'copies of one step' must have 2 lines, but it has 1; ",
        ),
        (
            without("  apply: variable"),
            "mnist.txt: the section 'parts' must have 12 lines, but it has 11; ",
        ),
        (
            without("end:"),
            "mnist.txt: the last line, 'end: placement baseline', is missing, so the file is cut "
            "off; ",
        ),
        (
            without("  global_step"),
            "mnist.txt: the number of variables is 1204, but 1203 are listed",
        ),
        (
            changed("towers: 3", "towers: 4"),
            "mnist.txt: the number of towers is 4, but 3 are listed",
        ),
        (
            changed("  2: /job", "  5: /job"),
            "mnist.txt:18 cannot be parsed: 5: /job:worker/task:1/gpu:0",
        ),
        (
            changed("0-1: /job:worker/task:0/gpu:0-1", "0-99999999999: /gpu:0-99999999999"),
            "mnist.txt:17 cannot be parsed: 0-99999999999: /gpu:0-99999999999",
        ),
        (
            changed("tower 0-1 fc1", "tower 0-9999999999 fc1"),
            "mnist.txt:31 cannot be parsed: but tower 0-9999999999 fc1/weights MatMul: ",
        ),
        (
            changed("phantom, strict", "phantom"),
            "mnist.txt: the line 'placed by: phantom' must end with ', soft' or ', strict'",
        ),
        (changed("forward: ", "forwards: "), "mnist.txt:30 cannot be parsed: forwards: tower"),
        (
            changed("mean on tower 0: 1,200 variables", "mean on tower 0: many variables"),
            "mnist.txt:26 cannot be parsed: mean on tower 0: many variables",
        ),
        (changed("apply: ", "forward: "), "mnist.txt:40 cannot be parsed: forward: variable"),
        (
            changed("+ 2 slots on", "+ 3 slots on"),
            "mnist.txt:11 cannot be parsed: fc1/biases: float32[?]: /job:ps/task:0/cpu:0  + 3 ",
        ),
    ],
)
def test_malformed_lines_are_errors(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse(text, "mnist.txt")

    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith(("--baseline . --update", "newer placement_checks"))


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("train.py:build", "verify train.py:build --machine 'gpu*2' --baseline 'a b' --update"),
        ("x; rm -rf .", "verify PROGRAM --baseline 'a b' --update"),
        ("train.py --gpus {gpus}", "verify PROGRAM --baseline 'a b' --update"),
    ],
)
def test_the_error_names_the_command_that_writes_the_file(program: str, command: str) -> None:
    text = render(replace(CLUSTER, program=program, machine="gpu*2"))

    with pytest.raises(InputError) as raised:
        parse(text.replace("end:", ""), "a b/mnist.txt")

    assert raised.value.fix == (
        f"write it again: pytest --placement-update, or placement-checks {command}"
    )


LIMITED = {
    "digits": (changed("1,600 bytes", "1" * 19 + " bytes"), "18 digits of a number"),
    "many digits": (changed("1,600 bytes", "1" * 5000 + " bytes"), "18 digits of a number"),
    "dims": (changed("float32[4,8]", f"float32[{'4' * 5000}]"), "18 digits of a number"),
    "slots": (changed("+ 1 slot\n", "+ 1001 slots\n"), "1,000 slots of a variable"),
    "a line": (
        changed("fc1/weights: ", "a" * limits.BASELINE_LINE.most + ": "),
        "1,048,576 characters of a line",
    ),
    "blank lines": (changed("\n\n", "\n" * 1_000_002), "1,000,000 entries of a baseline"),
}


@pytest.mark.parametrize("kind", LIMITED)
def test_the_limits_of_a_baseline(kind: str) -> None:
    text, limit = LIMITED[kind]
    with pytest.raises(InputError) as raised:
        parse(text, "mnist.txt")

    assert str(raised.value).startswith("mnist.txt")
    assert limit in str(raised.value)


TOWERS = "towers: 1000\n  0-999: /gpu:0-999\n"


def test_ranges_of_towers_do_not_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BASELINE_ENTRIES", Limit(10_000, "entries of a baseline"))
    text = changed(
        "towers: 3\n  0-1: /job:worker/task:0/gpu:0-1\n  2: /job:worker/task:1/gpu:0\n", TOWERS
    )
    text = text.replace("tower 0-1 -> /job:ps/task:0/cpu:0", "tower 0-999 -> tower 0-999")

    with pytest.raises(InputError, match="exceeds the limit of 10,000 entries of a baseline"):
        parse(text, "mnist.txt")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "line",
    [
        lambda n: "  average of means:\n    " + " ".join(["fc/weights"] * n),
        lambda n: "  average of means:\n    " + '"' + "\\n" * n + '"',
        lambda n: "  average of means:\n    " + '"' * n,
    ],
    ids=["words", "a string", "quotation marks"],
)
def test_time_grows_with_the_length_of_a_line(line: Callable[[int], str]) -> None:
    def read(size: int) -> None:
        head = render(replace(CLUSTER, objectives={})).partition("objective")[0]
        text = f"{head}objective: 2 lines\n{line(size)}\n"
        with pytest.raises(InputError):
            parse(text, "mnist.txt")

    check_linear(read, 20_000)
