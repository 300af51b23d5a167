from __future__ import annotations

import copy
import pickle
import weakref
from contextlib import suppress
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks import Device
from placement_checks.core.errors import InputError

PARTS = [field.name for field in fields(Device)]

jobs = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,5}", fullmatch=True)
numbers = st.integers(0, 12)
types = st.sampled_from(["CPU", "GPU", "TPU", "XLA_GPU"])
# A device without a type cannot have an index, because it could not be written.
devices = st.builds(
    lambda job, replica, task, kind: Device(job, replica, task, *kind),
    st.none() | jobs,
    st.none() | numbers,
    st.none() | numbers,
    st.just((None, None)) | st.tuples(types, st.none() | numbers),
)


@given(devices)
def test_a_written_device_reads_back(device: Device) -> None:
    assert Device.parse(str(device)) == device


@given(devices)
def test_each_device_is_one_object(device: Device) -> None:
    parts = [getattr(device, part) for part in PARTS]

    for same in (
        Device(*parts),
        Device.parse(str(device)),
        replace(device, index=device.index),
        copy.deepcopy(device),
        pickle.loads(pickle.dumps(device)),
    ):
        assert same is device
    assert parts == [getattr(device, part) for part in PARTS]


def test_unused_devices_are_freed() -> None:
    used = Device("nobody", task=7)
    known = weakref.ref(used)
    del used

    assert known() is None


@given(st.sampled_from(["cpu", "gpu"]), numbers, st.data())
def test_spellings_of_one_device_are_equal(kind: str, index: int, data: st.DataObject) -> None:
    spelled = data.draw(
        st.sampled_from([f"/{kind}:{index}", f"{kind}:{index}", f"//device:{kind}:{index}/"])
    )
    cased = "".join(data.draw(st.sampled_from([letter, letter.upper()])) for letter in spelled)
    assert Device.parse(cased) == Device(type=kind.upper(), index=index)


@given(devices, st.randoms())
def test_parts_in_any_order(device: Device, random: Random) -> None:
    parts = str(device).split("/")
    random.shuffle(parts)
    assert Device.parse("/".join(parts)) == device


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("", Device()),
        ("/", Device()),
        ("/gpu", Device(type="GPU")),
        ("/gpu:*", Device(type="GPU")),
        ("/device:GPU:*", Device(type="GPU")),
        ("/job:*/replica:*/task:*/device:*:*", Device()),
        ("/job:ps/task:1", Device("ps", task=1)),
        ("/job:ps/replica:0/task:1/device:XLA_GPU:2", Device("ps", 0, 1, "XLA_GPU", 2)),
        ("/job:Worker_2/cpu:0", Device("Worker_2", type="CPU", index=0)),
    ],
)
def test_parse(text: str, device: Device) -> None:
    assert Device.parse(text) == device


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("/xpu:0", "xpu:0"),
        ("/job:ps/cpu:zero", "cpu:zero"),
        ("/gpu:-1", "gpu:-1"),
        ("/device:GPU", "device:GPU"),
        ("/job:/cpu:0", "job:"),
        ("/job:1st", "job:1st"),
        ("/cpu:0 ", "cpu:0 "),
        ("/replica:x", "replica:x"),
    ],
)
def test_parse_errors_name_the_part(text: str, part: str) -> None:
    with pytest.raises(InputError) as caught:
        Device.parse(text)
    assert caught.value.object == repr(text)
    assert caught.value.message == f"'{part}' is not part of a device name"
    assert caught.value.fix == "write it like /cpu:0, /gpu:1 or /job:ps/task:0/device:CPU:0"


@pytest.mark.parametrize(
    "text", ["/cpu:0/gpu:1", "/cpu:0/device:CPU:0", "/job:ps/job:ps", "/task:0/task:1"]
)
def test_a_repeated_part_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="names a part twice"):
        Device.parse(text)


@given(st.text() | st.text("/:*0123abcdegijkloprstuv"))
def test_parse_raises_nothing_but_input_errors(text: str) -> None:
    with suppress(InputError):
        Device.parse(text)


@given(devices, devices)
def test_over_fills_unspecified_parts(inner: Device, outer: Device) -> None:
    merged = inner.over(outer)
    for part in PARTS:
        stated = [getattr(device, part) for device in (inner, outer)]
        assert getattr(merged, part) == next(
            (value for value in stated if value is not None), None
        )


@given(devices, devices, devices)
def test_over_is_associative(inner: Device, middle: Device, outer: Device) -> None:
    assert inner.over(middle).over(outer) == inner.over(middle.over(outer))


@given(devices)
def test_over_nothing_changes_nothing(device: Device) -> None:
    assert device.over(Device()) == device == Device().over(device)


@given(devices)
def test_a_device_matches_itself_and_the_empty_pattern(device: Device) -> None:
    assert device.matches(device)
    assert device.matches(Device())


@given(devices, devices, devices)
def test_matches_is_transitive(pattern: Device, more: Device, most: Device) -> None:
    narrower = pattern.over(more)
    narrowest = narrower.over(most)
    assert narrower.matches(pattern)
    assert narrowest.matches(narrower)
    assert narrowest.matches(pattern)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("other", [None, "other"])
def test_no_match_if_a_part_differs_or_is_missing(part: str, other: str | None) -> None:
    whole: dict[str, Any] = dict(zip(PARTS, ("ps", 0, 1, "CPU", 0), strict=True))
    assert not Device(**{**whole, part: other}).matches(Device(**whole))
    assert not Device(**{**whole, part: other}).matches(Device(**{part: whole[part]}))


@given(devices)
def test_only_the_empty_device_is_false(device: Device) -> None:
    assert bool(device) == (str(device) != "")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("/job:localhost/replica:0/task:0/gpu:1", "/device:GPU:1"),
        ("/job:localhost/gpu", "/device:GPU:*"),
        ("/gpu:1", "/device:GPU:1"),
        ("/job:localhost/task:1/cpu:0", "/job:localhost/task:1/device:CPU:0"),
        ("/job:localhost/replica:1/cpu:0", "/job:localhost/replica:1/device:CPU:0"),
        ("/job:ps/replica:0/task:0/cpu:0", "/job:ps/replica:0/task:0/device:CPU:0"),
    ],
)
def test_short_leaves_out_the_local_host(text: str, short: str) -> None:
    assert Device.parse(text).short == short


@pytest.mark.parametrize(
    ("text", "is_gpu"), [("/gpu:1", True), ("/gpu", True), ("/cpu:0", False), ("/job:ps", False)]
)
def test_is_gpu(text: str, is_gpu: bool) -> None:
    assert Device.parse(text).is_gpu == is_gpu


def ordered(device: Device) -> list[list[str | int]]:
    """The parts as lists, which sort by themselves: an empty one first."""
    parts = (getattr(device, name) for name in PARTS)
    return [[] if part is None else [part] for part in parts]


@given(devices, devices)
def test_devices_have_a_total_order(one: Device, other: Device) -> None:
    assert (one < other) + (other < one) + (one == other) == 1


@given(st.lists(devices))
def test_devices_sort_by_parts_with_missing_parts_first(
    some: list[Device],
) -> None:
    assert [ordered(device) for device in sorted(some)] == sorted(map(ordered, some))


@given(devices, st.sets(st.integers(0, 999_999_999)))
def test_devices_of_one_type_sort_by_index(device: Device, indices: set[int]) -> None:
    kind = [replace(device, type="GPU", index=index) for index in indices]

    assert [device.index for device in sorted(kind)] == sorted(indices)
