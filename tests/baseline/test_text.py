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
from placement_checks.core.baseline import (
    PARTS,
    Address,
    Baseline,
    Copies,
    HeldVariable,
)
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Tensor

GPUS = ("/job:worker/task:0/gpu:0", "/job:worker/task:0/gpu:1", "/job:worker/task:1/gpu:0")
PS = "/job:ps/task:0/cpu:0"
CLUSTER = Baseline(
    "fixtures/programs/workers/cluster.py:build_in_graph",
    "ps*2; worker*2: gpu*2",
    "phantom",
    versions={"placement_checks": "0.1.0", "tensorflow": "2.21.0"},
    variables=(
        HeldVariable("fc1/weights", Tensor("float32", (4, 8)), PS, (PS,), "mean"),
        HeldVariable("fc1/biases", Tensor("float32", (None,)), PS, (PS, "/gpu:1")),
        HeldVariable("global_step", Tensor("int64", ()), PS),
        HeldVariable("unknown", Tensor("float32", None), PS),
    ),
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
        ("average", -1): {"AddN": 4, "RealDiv": 4},
    },
    copies={
        (GPUS[0], PS): Copies(2, 1_600, 0),
        (GPUS[1], PS): Copies(2, 1_600, 0),
        (PS, "/job:ps/task:1/cpu:0"): Copies(1, 8, 1),
    },
)


def test_the_text_of_a_baseline() -> None:
    assert (
        render(CLUSTER).split("\n", 3)[3]
        == """\
placement_baseline = 4
program = "fixtures/programs/workers/cluster.py:build_in_graph"
machine = "ps*2; worker*2: gpu*2"
placer = "phantom"
soft = false
versions = { placement_checks = "0.1.0", tensorflow = "2.21.0" }

variables = [
  { name = "fc1/weights", dtype = "float32", shape = [4, 8], device = "PS", slots = ["PS"], \
objective = "mean" },
  { name = "fc1/biases", dtype = "float32", shape = [-1], device = "PS", slots = ["PS", \
"/gpu:1"], objective = "" },
  { name = "global_step", dtype = "int64", shape = [], device = "PS", objective = "" },
  { name = "unknown", dtype = "float32", device = "PS", objective = "" },
]

towers = [
  "/job:worker/task:0/gpu:0",
  "/job:worker/task:0/gpu:1",
  "/job:worker/task:1/gpu:0",
]

parts = [
  { part = "input", device = "tower" },
  { part = "forward", device = "tower" },
  { part = "average", device = "variable" },
  { part = "apply", device = "variable" },
]

exceptions = [
  { part = "forward", towers = "0-1", layer = "fc1/weights", type = "MatMul", device = "PS" },
  { part = "average", type = "Const", device = { tower = 2, variable = 13 } },
  { part = "average", layer = "", device = "/job:worker/task:0/gpu:0" },
]

ops = [
  { part = "forward", towers = "0-1", types = { MatMul = 2, Mean = 1 } },
  { part = "forward", towers = "2", types = { MatMul = 3 } },
  { part = "average", types = { AddN = 4, RealDiv = 4 } },
]

copies = [
  { source = "PS", to = "/job:ps/task:1/cpu:0", copies = 1, bytes = 8, unknown = 1 },
  { source = "/job:worker/task:0/gpu:0", to = "PS", copies = 2, bytes = 1600 },
  { source = "/job:worker/task:0/gpu:1", to = "PS", copies = 2, bytes = 1600 },
]

lines = { variables = 4, towers = 3, parts = 4, exceptions = 3, ops = 3, copies = 3 }
""".replace('"PS"', f'"{PS}"')
    )


def test_written_and_read_back() -> None:
    assert parse(render(CLUSTER), "mnist.toml") == CLUSTER


# TOML has no half of a surrogate pair; that test is apart.
texts = st.text(st.characters(exclude_categories=["Cs"]))
names = st.one_of(
    texts, st.sampled_from(["", "tower", "a/", "a: b", '"', "\\", "<<<<<<< a", "\x7f", "\u2028"])
)
places = st.sampled_from(["/cpu:0", "/gpu:0", "/gpu:1", "/gpu:10", PS, "/device:TPU:0", "nowhere"])
symbols = st.one_of(places, st.sampled_from(["tower", "variable"]))
sizes = st.integers(0, 10**15)
slots = st.lists(places, max_size=3).map(tuple)
shapes = st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3).map(tuple)
tensors = st.builds(Tensor, names, shapes)
variables = st.builds(HeldVariable, names, tensors, places, slots, names)
copies = st.builds(Copies, sizes, sizes, sizes)


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
        tuple(towers),
        defaults,
        exceptions,
        types,
        draw(st.dictionaries(st.tuples(places, places), copies, max_size=5)),
    )


@given(baselines())
def test_any_names_are_written_and_read_back(baseline: Baseline) -> None:
    text = render(baseline)

    assert parse(text, "any.toml") == baseline
    assert all(line.isprintable() for line in text.split("\n"))


@given(st.text())
def test_a_name_that_is_no_unicode_is_written_in_one_way(name: str) -> None:
    text = render(replace(CLUSTER, program=f"\udc80{name}"))

    text.encode()
    assert render(parse(text, "any.toml")) == text


@given(baselines())
def test_equal_baselines_have_equal_texts(baseline: Baseline) -> None:
    shuffled = replace(
        baseline,
        exceptions={
            address: dict([*places.items()][::-1])
            for address, places in [*baseline.exceptions.items()][::-1]
        },
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
        assert isinstance(parse(damaged, "mnist.toml"), Baseline)


@given(st.one_of(st.just(CLUSTER), baselines()), st.data())
def test_a_file_that_is_cut_is_an_error(baseline: Baseline, data: st.DataObject) -> None:
    text = render(baseline)
    end = data.draw(st.integers(0, len(text) - 2))  # without the last newline, nothing is lost

    with pytest.raises(InputError, match="write it again: "):
        parse(text[:end], "any.toml")


def test_every_byte_counts() -> None:
    text = render(CLUSTER)
    for end in range(0, len(text) - 1, 3):
        with pytest.raises(InputError):
            parse(text[:end], "any.toml")


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
        parse("\n".join(kept), "any.toml")


@given(st.sampled_from([line for line in LINES if line.startswith(" ")]), st.data())
def test_a_line_in_place_of_another_one_is_not_silent(line: str, data: st.DataObject) -> None:
    """A bad merge can keep the number of lines."""
    at = data.draw(st.sampled_from([at for at, old in enumerate(LINES) if old.startswith(" ")]))

    with contextlib.suppress(InputError):
        parsed = parse("\n".join([*LINES[:at], line, *LINES[at + 1 :]]), "any.toml")
        assert (parsed == CLUSTER) == (line == LINES[at])


def test_windows_line_endings() -> None:
    assert parse(render(CLUSTER).replace("\n", "\r\n"), "mnist.toml") == CLUSTER


def test_comments_and_blank_lines_are_skipped() -> None:
    text = render(CLUSTER).replace("  { part", "\n  # a reason\n  { part")

    assert parse(text, "mnist.toml") == CLUSTER


@pytest.mark.parametrize("mark", ["<<<<<<< HEAD", "=======", ">>>>>>> refactor", "||||||| base"])
@pytest.mark.parametrize("at", [0, 12])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_merge_conflict_markers_are_the_first_error(mark: str, at: int, end: str) -> None:
    text = end.join([*LINES[:at], mark, "what is this", *LINES[at:]])

    assert is_baseline(text)
    with pytest.raises(InputError) as raised:
        parse(text, "mnist.toml")
    assert str(raised.value).startswith(
        f"mnist.toml:{at + 1}: contains merge conflict markers; keep either side, then write it "
        "again: pytest --placement-update, or placement-checks verify "
    )


def without(line: str) -> str:
    return "\n".join(each for each in LINES if not each.startswith(line))


def without_section(name: str) -> str:
    before, _, after = render(CLUSTER).partition(f"\n{name} = [\n")
    return before + after.partition("\n]\n")[2]


def changed(old: str, new: str) -> str:
    assert old in render(CLUSTER)
    return render(CLUSTER).replace(old, new, 1)


OLD_FORM = """\
# placement baseline, form 2: the devices of this program's variables and ops. Review it like code.
program: train.py:build
machine: gpu*2
placed by: phantom, strict
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            changed("placement_baseline = 4", "placement_baseline = 5"),
            "mnist.toml:4 is a baseline of form 5, but this placement_checks reads form 4; "
            "install a newer placement_checks",
        ),
        (
            OLD_FORM,
            "mnist.toml:1 is a baseline of form 2, but this placement_checks reads form 4; write "
            "it again: pytest --placement-update, or placement-checks verify train.py:build "
            "--machine 'gpu*2' --baseline . --update",
        ),
        ("{}", "mnist.toml is not a baseline: it has no line 'placement_baseline = 4'"),
        ("", "mnist.toml is not a baseline: it has no line 'placement_baseline = 4'"),
        (
            changed("baseline = 4", f"baseline = {'3' * 5000}"),
            "mnist.toml is not a baseline: it has no line",
        ),
        (
            without("machine"),
            "mnist.toml is not a valid baseline: object missing required field `machine`, so the "
            "file is incomplete",
        ),
        (
            without_section("exceptions"),
            "mnist.toml is not a valid baseline: object missing required field `exceptions`, so "
            "the file is incomplete; ",
        ),
        (
            render(CLUSTER).partition("\ncopies")[0],
            "mnist.toml is not a valid baseline: object missing required field `copies`, so ",
        ),
        (
            render(CLUSTER).partition("  { source")[0],
            "mnist.toml is not valid TOML: Invalid value (at end of document); write it again: ",
        ),
        (
            without("lines"),
            "mnist.toml is not a valid baseline: object missing required field `lines`, so the ",
        ),
        (
            changed(", copies = 3 }", " }"),
            "mnist.toml:49 is not a valid baseline: object missing required field `copies`, at "
            "`lines`; ",
        ),
        (
            without('  { name = "global_step"'),
            "mnist.toml:11 is not a valid baseline: it has 3 lines, but `lines` states 4, at "
            "`variables`; ",
        ),
        (
            changed('  "/job:worker/task:1/gpu:0",\n', '  "/job:worker/task:1/gpu:0",\n' * 2),
            "mnist.toml:18 is not a valid baseline: it has 4 lines, but `lines` states 3, at "
            "`towers`; ",
        ),
        (
            changed("slots =", "slot ="),
            "mnist.toml:12 is not a valid baseline: object contains unknown field `slot`, at "
            "`variables[0]`; ",
        ),
        (
            changed("soft = false", "soft = false\nloud = true"),
            "mnist.toml:9 is not a valid baseline: object contains unknown field `loud`; ",
        ),
        (
            changed("bytes = 8", 'bytes = "8"'),
            "mnist.toml:44 is not a valid baseline: expected `int`, got `str`, at "
            "`copies[0].bytes`; ",
        ),
        (
            changed("bytes = 8", "bytes = 0x" + "f" * 5000),
            "mnist.toml:44 is not a valid baseline: ",
        ),
        (
            changed("bytes = 8", "bytes = " + "1" * 5000),
            "mnist.toml is not valid TOML: a number has too many digits; ",
        ),
        (
            changed("[4, 8]", "[" * 5000),
            "mnist.toml is not valid TOML: its values are nested too deeply; ",
        ),
        (
            changed('towers = "2", types', 'towers = "5", types'),
            "mnist.toml:39 is not a valid baseline: `5` are not towers of this program, at "
            "`ops[1]`; ",
        ),
        (
            changed('towers = "2", types', 'towers = "0-99999999999", types'),
            "mnist.toml:39 is not a valid baseline: `0-99999999999` are not towers of this ",
        ),
        (
            changed('towers = "2", types', 'towers = "1-2", types'),
            "mnist.toml:39 is not a valid baseline: it repeats an earlier line, at `ops[1]`; ",
        ),
        (
            changed('part = "forward", device', 'part = "forwards", device'),
            "mnist.toml:26 is not a valid baseline: `forwards` is not a part of a step, at ",
        ),
        (
            changed('part = "apply", device', 'part = "input", device'),
            "mnist.toml:28 is not a valid baseline: it repeats an earlier line, at `parts[3]`; ",
        ),
        (
            changed('part = "forward", towers = "2"', 'part = "backward", towers = "2"'),
            "mnist.toml:39 is not a valid baseline: `backward` is not in the section `parts`, at ",
        ),
        (
            changed('name = "unknown"', 'name = "global_step"'),
            "mnist.toml:15 is not a valid baseline: it repeats an earlier line, at ",
        ),
        (
            changed('source = "/job:worker/task:0/gpu:1"', 'source = "/job:worker/task:0/gpu:0"'),
            "mnist.toml:46 is not a valid baseline: it repeats an earlier line, at `copies[2]`; ",
        ),
        (
            changed("{ tower = 2, variable = 13 }", "{ tower = 2 }"),
            "mnist.toml:33 is not a valid baseline: expected `object` of length >= 2, at "
            "`exceptions[1].device`; ",
        ),
    ],
)
def test_damaged_documents_are_errors(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse(text, "mnist.toml")

    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith(("--baseline . --update", "newer placement_checks"))


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("train.py:build", "verify train.py:build --machine 'gpu*2' --baseline 'a b' --update"),
        ("x; rm -rf .", "verify PROGRAM --baseline 'a b' --update"),
        ("train.py --gpus {gpus}", "verify PROGRAM --baseline 'a b' --update"),
        ('train.py" #', "verify PROGRAM --baseline 'a b' --update"),
    ],
)
def test_the_error_names_the_command_that_writes_the_file(program: str, command: str) -> None:
    text = render(replace(CLUSTER, program=program, machine="gpu*2"))

    with pytest.raises(InputError) as raised:
        parse(text.replace("lines =", "line ="), "a b/mnist.toml")

    assert raised.value.fix == (
        f"write it again: pytest --placement-update, or placement-checks {command}"
    )


def test_the_error_names_a_line_with_comments_above_it() -> None:
    text = render(CLUSTER).replace("  { source", "\n  # a reason\n  { source")

    with pytest.raises(InputError, match=r"mnist.toml:49 is not a valid baseline: expected `int`"):
        parse(text.replace("copies = 2, bytes", "copies = [], bytes", 1), "mnist.toml")


LIMITED = {
    "towers": (
        render(replace(CLUSTER, towers=("/gpu:0",) * 100_001)),
        "100,000 devices of a machine",
    ),
    "a key": (changed("soft", "soft" + ".a" * 200_000), "100 parts of a key of a TOML file"),
}


@pytest.mark.parametrize("kind", LIMITED)
def test_the_limits_of_a_baseline(kind: str) -> None:
    text, limit = LIMITED[kind]
    with pytest.raises(InputError) as raised:
        parse(text, "mnist.toml")

    assert str(raised.value).startswith("mnist.toml")
    assert limit in str(raised.value)


def test_ranges_of_towers_do_not_multiply() -> None:
    """A thousand lines of ten thousand towers each would be ten million entries."""
    exceptions = {
        Address("forward", 9_999, f"w{number}", None): {"/cpu:0": 0} for number in range(1_000)
    }
    many = replace(CLUSTER, towers=("/gpu:0",) * 10_000, exceptions=exceptions)
    text = render(many).replace('towers = "9999"', 'towers = "0-9999"')

    with pytest.raises(InputError, match="exceeds the limit of 1,000,000 towers of all lines"):
        parse(text, "mnist.toml")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "line",
    [
        lambda n: "x = [" + '"fc/weights",' * n,
        lambda n: 'x = "' + "\\n" * n,
        lambda n: 'x = "' + '""' * n,
        lambda n: "x = " + "a." * n,
        lambda n: 'x = "' + "a. " * n,
        lambda n: "x" + " " * n,
        lambda n: "<" * n + "\nx = 0" + "=" * n,
        lambda n: 'program = "' + '\n"program = "' * n,
        lambda n: "variables = [" * n,
    ],
    ids=["items", "a string", "quotes", "a key", "keys", "blanks", "marks", "heads", "lists"],
)
def test_time_grows_with_the_length_of_a_line(line: Callable[[int], str]) -> None:
    def read(size: int) -> None:
        with pytest.raises(InputError):
            parse(f"{LINES[3]}\n{line(size)}", "mnist.toml")

    check_linear(read, 20_000)
