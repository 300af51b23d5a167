"""One record on one line: every known form, and text that only looks like a record."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from placement_checks.logs import Record, text_of
from placement_checks.logs.record_formats import read, read_common

HOST = "/job:localhost/replica:0/task:0"
GPU = f"{HOST}/device:GPU:1"


def found(line: str | bytes) -> list[Record]:
    return [reading.record for reading in read(line.encode() if isinstance(line, str) else line)]


@pytest.mark.parametrize(
    ("line", "record", "logged"),
    [
        pytest.param(f"dense/W/read: {HOST}/gpu:1", ("dense/W/read", None, GPU), False, id="A"),
        pytest.param(
            f"I tensorflow/core/common_runtime/simple_placer.cc:818] dense/W: {HOST}/gpu:1",
            ("dense/W", None, GPU),
            True,
            id="A, stderr",
        ),
        pytest.param(f"t/logits: (MatMul): {GPU}", ("t/logits", "MatMul", GPU), False, id="B1"),
        pytest.param(
            f"t/logits: (MatMul): {HOST}/gpu:1", ("t/logits", "MatMul", GPU), False, id="B1, old"
        ),
        pytest.param(
            f"I tensorflow/core/common_runtime/placer.cc:922] t/logits: (MatMul){GPU}",
            ("t/logits", "MatMul", GPU),
            True,
            id="B2",
        ),
        pytest.param(
            "I c:\\tf_jenkins\\home\\simple_placer.cc:847] Adam/beta1: (Const)/job:ps/replica:0/"
            "task:3/cpu:0",
            ("Adam/beta1", "Const", "/job:ps/replica:0/task:3/device:CPU:0"),
            True,
            id="B2, Windows",
        ),
        pytest.param(
            f"I tensorflow/core/common_runtime/placer.cc:114] x: (_Arg): {GPU}",
            ("x", "_Arg", GPU),
            True,
            id="C",
        ),
        pytest.param(
            f"placer.cc:162] while/merge/_4: (Merge): {GPU}",
            ("while/merge/_4", "Merge", GPU),
            True,
            id="C, absl",
        ),
        pytest.param(
            f"Executing op Reshape in device {GPU}", (None, "Reshape", GPU), False, id="D, cell"
        ),
        pytest.param(
            "I tensorflow/core/common_runtime/eager/execute.cc:1987] Executing op "
            f"__inference_step_31 on task {GPU}",
            (None, "__inference_step_31", GPU),
            True,
            id="D, remote",
        ),
        pytest.param(
            f"I tensorflow/core/common_runtime/placer.cc:135] conv1/Relu(Relu) placed on: {GPU}",
            ("conv1/Relu", "Relu", GPU),
            True,
            id="V",
        ),
        pytest.param(
            f"mean_squared_error: {HOST}/gpu:1",
            ("mean_squared_error", None, GPU),
            False,
            id="loss",
        ),
        pytest.param(
            f"I tensorflow/core/common_runtime/simple_placer.cc:289] device: {HOST}/gpu:1",
            ("device", None, GPU),
            True,
            id="A, a node called device",
        ),
        pytest.param(
            f"Executing op __wrapped__Sum_device_{HOST}/device:CPU:0_10 in device {GPU}",
            (None, f"__wrapped__Sum_device_{HOST}/device:CPU:0_10", GPU),
            False,
            id="D, a device in the op",
        ),
        pytest.param("p: (Op): ", ("p", "Op", ""), False, id="unplaced"),
        pytest.param("p: (Op): (unspecified)", ("p", "Op", ""), False, id="unspecified"),
        pytest.param("Executing op Op in device ", (None, "Op", ""), False, id="D, unplaced"),
        pytest.param(
            f"x: (Op): {HOST}/device:MY_DEVICE:12",
            ("x", "Op", f"{HOST}/device:MY_DEVICE:12"),
            False,
            id="pluggable device",
        ),
        pytest.param(
            f"x: (Op): {HOST}/spu:0",
            ("x", "Op", f"{HOST}/device:SPU:0"),
            False,
            id="old, any type",
        ),
        pytest.param(
            f"foo>bar_1.x-y/_7: (Foo>Bar): {GPU}",
            ("foo>bar_1.x-y/_7", "Foo>Bar", GPU),
            False,
            id="all signs of names",
        ),
        pytest.param(f"_SOURCE: (NoOp): {GPU}", ("_SOURCE", "NoOp", GPU), False, id="internal"),
        pytest.param(
            f"Executing op __inference_förlust_31 in device {GPU}",
            (None, "__inference_förlust_31", GPU),
            False,
            id="D, a function's name in any language",
        ),
    ],
)
def test_a_record_of_every_form_is_read(
    line: str, record: tuple[str | None, str | None, str], logged: bool
) -> None:
    (reading,) = read(line.encode())

    assert (reading.record, reading.logged) == (Record(*record), logged)


@pytest.mark.parametrize(
    "lead",
    [
        "# ",
        "    ",
        "\t",
        ">>> ",
        "> ",
        "//",
        "In [3]: ",
        "`",
        "[I 12:00:01.123 NotebookApp] ",
        "name_1  | ",
        "[1,0]<stderr>:",
        "0: ",
        "Oct 21 18:30:00 gpu-host python[1234]: ",
        "2018-10-21T18:30:00.140665Z ",
        "INFO:root:",
        "outputlog:",
        "outputlog:12:",
        "12:",
        "[pod/train-0/main] ",
        "<pre>",
        "<td><b>",
        "<6>",
        " 50%|#####     | 1/2 [00:01<00:01]",
    ],
)
@pytest.mark.parametrize("text", [f"x: (Add): {GPU}", f"Executing op Add in device {GPU}"])
def test_text_before_a_record_does_not_matter(lead: str, text: str) -> None:
    (record,) = found(lead + text)

    assert record == Record("x" if text.startswith("x") else None, "Add", GPU)


@pytest.mark.parametrize(
    "rest", ["...", ".", '"', "\\n", "'", "`", ",", " ", ") ", "\t# a remark"]
)
def test_text_after_a_record_does_not_matter(rest: str) -> None:
    assert found(f"x: (Add): {GPU}{rest}") == [Record("x", "Add", GPU)]


@pytest.mark.parametrize(
    "node",
    [
        "9", ".a", "a>b", "a-/>.b", "a//b", "a.", "a/b-", "x-y_z/.w", "A" * 600,
    ],
)  # fmt: skip
def test_every_valid_op_name(node: str) -> None:
    assert found(f"{node}: (Add): {GPU}") == [Record(node, "Add", GPU)]
    assert found(f"placer.cc:125] {node}: (Add){GPU}") == [Record(node, "Add", GPU)]


@pytest.mark.parametrize(
    "op",
    [
        # Op types of kernels, and names of functions, which may be anything.
        "Add", "_Arg", "Addons>Resampler", "A>B>C", "my_f", "f.g", "f-g", "f/g", "f<lambda>",
        "f[x]", "__inference_<lambda>_120", "förlust", "损失", "f,g=1", "f'g", 'f"g', "F" * 600,
    ],
)  # fmt: skip
def test_every_valid_op_type(op: str) -> None:
    record = Record("x", op, GPU)

    assert found(f"x: ({op}): {GPU}") == [record]
    assert found(f"I tensorflow/core/common_runtime/placer.cc:922] x: ({op}){GPU}") == [record]
    assert found(f"placer.cc:135] x({op}) placed on: {GPU}") == [record]


def test_control_characters_in_an_op_type_are_escaped() -> None:
    assert found(f"x: (a\u202eb): {GPU}".encode()) == [Record("x", "a\\u202eb", GPU)]
    assert found(b"x: (a\xffb): " + GPU.encode()) == [Record("x", "a\\xffb", GPU)]


@pytest.mark.parametrize(
    "kind",
    [
        "CPU", "GPU", "XLA_CPU", "XLA_GPU", "XLA_CPU_JIT", "TPU", "TPU_SYSTEM", "COMPOSITE",
        "CUSTOM", "METAL", "DML", "NPU", "SYCL", "VE", "HPU", "XPU", "MyNpu", "npu910", "N", "_X",
    ],
)  # fmt: skip
def test_every_type_of_device(kind: str) -> None:
    device = f"/job:tpu_worker/replica:0/task:3/device:{kind}:12"

    assert found(f"x: (Add): {device}") == [Record("x", "Add", device)]
    assert found(f"Executing op Add on task {device}") == [Record(None, "Add", device)]


@pytest.mark.parametrize("first", [f"x: (Add): {GPU}", f"Executing op Add in device {GPU}"])
@pytest.mark.parametrize(
    "second",
    [f"y: (Mul): {HOST}/device:CPU:0", "y: (Mul): ", f"_y/k: (Mul): {HOST}/gpu:0 and more",
     f".y: (Mul): {GPU}", f"Executing op Mul in device {GPU}", "Epoch 1/10", "the loss is 0.3"],
)  # fmt: skip
def test_two_records_on_a_line_with_text_after_one(first: str, second: str) -> None:
    """If a newline is lost or late, only the first digit of an index is certain."""
    records = found(f"{first}{second}")

    assert records[:1] == found(first)
    assert records[1:] == (found(second) if "/job:" in second else [])


def test_many_records_on_a_line() -> None:
    lines = [f"x_{n}: (Add): {HOST}/device:GPU:{n % 8}" for n in range(1000)]

    assert [record.node for record in found("".join(lines))] == [f"x_{n}" for n in range(1000)]


@pytest.mark.parametrize("rest", ['"', "`,"])
def test_text_after_a_record_without_a_type(rest: str) -> None:
    assert found(f"x: {HOST}/gpu:1{rest}") == [Record("x", None, GPU)]
    assert found(f"x: {HOST}/gpu:1{rest} is there") == []


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_container_mark_is_not_a_word(stream: str) -> None:
    assert found(f"2024-01-21T21:16:10Z {stream} F x: {HOST}/gpu:1") == [Record("x", None, GPU)]


def test_a_mark_may_be_before_any_name() -> None:
    assert found(f"<6>foo>bar: (Add): {GPU}") == [Record("foo>bar", "Add", GPU)]


def test_several_records_on_a_line() -> None:
    line = rf'"a: (Add): {GPU}\nb: (Mul): {GPU}\r\nc: (Sub): {GPU}\n"'

    assert [record.node for record in found(line)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "line",
    [
        f"{GPU} -> device: 0, name: Tesla K40c, pci bus id: 0000:02:00.0",
        f"{HOST}/device:XLA_GPU:0 -> device: XLA_GPU device",
        f"Created TensorFlow device ({GPU} with 11439 MB memory) -> physical GPU (device: 0)",
        "I tensorflow/core/common_runtime/simple_placer.cc:697] Ignoring device specification "
        "/device:GPU:0 for node 'q' because the input edge from 'p' is a reference connection and "
        f"already has a device field set to {HOST}/device:CPU:0",
        "  Root Member(assigned_device_name_index_=1 requested_device_name_='' "
        f"assigned_device_name_='{GPU}' resource_device_name_='']",
        "VarHandleOp: GPU CPU ",
        f"  step (VariableV2) {GPU}",
        f"  w (VarHandleOp) {GPU} framework assigned device={GPU}",
        "Cannot assign a device for operation 'x': Operation was explicitly assigned to "
        f"/device:GPU:3 but available devices are [ {HOST}/device:CPU:0, {GPU} ].",
        f"tensorflow.python.framework.errors.InvalidArgumentError: {HOST}/gpu:1 unknown device.",
        f"InvalidArgumentError: {HOST}/gpu:1",
        "Could not satisfy explicit device specification '/gpu:9' because no devices matching "
        f"that specification are registered in this process; available devices: {HOST}/cpu:0",
        f"INFO:tensorflow:Using MirroredStrategy with devices ('{GPU}',)",
        "Initialize GrpcChannelCache for job worker -> {0 -> localhost:2222}",
        f'  device: "{GPU}"',
        f"device: {GPU}",
        f"w.device: {GPU}",
        f"devices: {HOST}/gpu:1",
        f"    x: requested: '{GPU}' assigned: '{GPU}'",
        f"tf.Tensor(1.0, shape=(), dtype=float32) on {GPU}",
        f"w:0: {HOST}/gpu:1",
        f"w:0: (VarHandleOp): {GPU}",
        f"conv/w:0: {HOST}/gpu:1",
        f"conv/w:0: (VarHandleOp): {GPU}",
        f"x: (Add {GPU}",
        f"x: (Add{GPU}",
        f'[[Node: MatMul = MatMul[T=DT_FLOAT, _device="{GPU}"](a, b)]]',
        f"}}}}placed on: {GPU}",
        f"f(a b) placed on: {GPU}",
        f"x: : {HOST}/gpu:1",
        "x: (Add): /job:localhost/replica:0/task:0/device:GP",
        "x: (Add): /job:localhost/replica:0/task:0/device:GPU:",
        f"x: (Add): {GPU}/more",
        f"x: (Add): {HOST}/device:GPU:9999999999",
        f"x: (Add): {HOST}/device:GPU:12y: (Add): {HOST}/device:GPU:12z",  # GPU:1 and 2y?
        f"x: (Add): {HOST}/device:GPU:0100 steps",
        f"2018-10-21 18:30:00.140665: W tensorflow/core/foo.cc:12] NotFound: {HOST}/gpu:1",
        f"E0000 00:00:1795000000.179741   19303 foo.cc:12] run: (Foo): {GPU}",
        "x: (Add): /gpu:1",
        f": (Add): {GPU}",
        f"x: (): {GPU}",
        f"x: (not an op): {GPU}",
        "Traceback (most recent call last):",
        "a note (with brackets): ",
        f"3 ops went to server: {HOST}/gpu:1",
        "see 2 of the notes: (Add): ",
        f"running in device {GPU}",
        f"running on task {GPU}",
        f"Executing op of two words in device {GPU}",
        f"Executing op  in device {GPU}",
        f"Executing op Add in {GPU}",
        "",
    ],
)
def test_text_that_looks_like_a_record(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(
    ("text", "record"),
    [
        (f"x: (Add): {GPU}", Record("x", "Add", GPU)),
        (f"x: (Add){GPU}", Record("x", "Add", GPU)),
        (f"x: {HOST}/gpu:1", Record("x", None, GPU)),
        (f"x: {GPU}", None),
        (f"x: : {HOST}/gpu:1", None),
        (f"# x: (Add): {GPU}", None),
        (f"x: (Add): {GPU} ", None),
        (f"-x: (Add): {GPU}", None),
        (f"[a] x: (Add): {GPU}", None),
        (f"devices: {HOST}/gpu:1", None),
        (f"x: (Add: {GPU}", None),
        (f"x: Add): {GPU}", None),
    ],
)
def test_common_forms_are_read_quickly(text: str, record: Record | None) -> None:
    assert read_common(text.encode()) == record


@given(st.binary(max_size=300))
@example(b"\xff\xfe: (Add): /job:localhost/replica:0/task:0/cpu:0")
@example(b": (): /job:a/replica:0/task:0/cpu:0")
@example(b"] : (Add)/job:a/replica:0/task:0/cpu:0")
def test_any_bytes_are_read(line: bytes) -> None:
    for reading in read(line):
        assert read(text_of(reading.record).encode())


pieces = st.sampled_from(
    ["x", ": (", "Add", "): ", ")", GPU, f"{HOST}/gpu:1", " ", "/job:", "] ", "Executing op ",
     " in device ", " placed on: ", "placer.cc:1] ", "(unspecified)", "\\n", "2018-10-21 18:30:00"]
)  # fmt: skip


@given(st.lists(pieces, max_size=12).map("".join))
def test_any_pieces_of_records_are_read(line: str) -> None:
    for record in found(line):
        assert record.device in ("", GPU)
        assert record.node is None or " " not in record.node


nodes = st.from_regex(r"[A-Za-z0-9._][A-Za-z0-9_.\-/>]{0,30}", fullmatch=True)
ops = st.from_regex(r"[A-Za-z0-9_>]{1,20}", fullmatch=True)
devices = st.builds(
    "/job:{}/replica:{}/task:{}/device:{}:{}".format,
    st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True),
    st.integers(0, 99),
    st.integers(0, 9999),
    st.from_regex(r"[A-Z][A-Z0-9_]{0,9}", fullmatch=True),
    st.integers(0, 255),
)


@given(nodes, ops, devices | st.just(""))
def test_form_c_reads_back(node: str, op: str, device: str) -> None:
    record = Record(node, op, device)

    assert found(text_of(record)) == [record]
    assert found(f"I tensorflow/core/common_runtime/placer.cc:125] {text_of(record)}") == [record]


@given(ops, devices | st.just(""))
def test_form_d_reads_back(op: str, device: str) -> None:
    assert found(text_of(Record(None, op, device))) == [Record(None, op, device)]


@given(nodes.filter(lambda node: "device" not in node.lower() and "r" not in node), devices)
def test_form_a_reads_back(node: str, device: str) -> None:
    assert found(text_of(Record(node, None, device))) == [Record(node, None, device)]


@pytest.mark.parametrize("piece", ["x", "x: (", "/job:a", "x/", " ", ": (Add): ", "] ", "-", "1"])
def test_reading_time_is_linear_in_the_line(piece: str) -> None:
    """The time for a line of a megabyte must not be quadratic."""
    line = (piece * (1_000_000 // len(piece)) + f": (Add): {GPU}").encode()
    begin = time.process_time()

    read(line)

    assert time.process_time() - begin < 8  # seconds; quadratic time would take minutes
