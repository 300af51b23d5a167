"""The picture in a browser, and its interaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.baselines import moved
from support.graphs import op, placement
from support.pictures import data_of
from support.reports import broken, finding
from support.timings import timeline
from support.towers import gradient, host, on, program, split, variable

from placement_checks import Device, Op, Placement, Verdict, verify
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.core.results import PathStep
from placement_checks.core.trace import Trace
from placement_checks.report.page.data import difference_data
from placement_checks.verification.diff import compare

pytestmark = pytest.mark.nightly

Opened = Callable[..., Any]

NOTHING = "\N{EN DASH}"  # in a box without ops

SIZES = {f"tower_{i}/{name}/read": (1000,) for i in range(12) for name in ("conv/w", "fc/w")} | {
    gradient(i, name): (1000,) for i in range(12) for name in ("conv/w", "fc/w")
}


def sound(*changes: Op, **more: Any) -> Placement:
    return program(
        *changes,
        **{
            "gpus": (0, 1),
            "variables": ["conv/w", "fc/w"],
            "outputs": SIZES,
            "shapes": dict.fromkeys(("conv/w", "fc/w"), (1000,)),
            "collections": {key: ["conv/w", "fc/w"] for key in (TRAINABLE, GLOBAL)},
            **more,
        },
    )


def texts(page: Any, selector: str) -> Sequence[str]:
    """The texts of the visible elements that match a selector."""
    found = page.locator(selector).all()
    return [" ".join(each.inner_text().split()) for each in found if each.is_visible()]


def cells(page: Any) -> Sequence[Sequence[str]]:
    """The boxes of GPUs, row by row."""
    rows = page.locator("#lanes [role=row]").all()
    found = [texts(row, "[role=gridcell]") for row in rows]
    return [row for row in found if row]


def test_gpus_have_columns_and_layers_have_rows(opened: Opened) -> None:
    page = opened(data_of(sound(), judged=True))

    assert texts(page, "#lanes h3") == ["GPU:0", "GPU:1"]
    assert texts(page, "#lanes [role=rowheader]") == ["▸inputs", "▸conv 4.0 kB", "▸fc 4.0 kB"]
    assert cells(page) == [["1 op", NOTHING] * 2, ["1 op", "1 op"] * 2, ["2 ops", "2 ops"] * 2]
    assert texts(page, "h1") == [page.locator("h1").inner_text()]
    assert "KEPT" in page.locator("h1").inner_text()


def test_layers_of_a_model_in_a_scope_have_rows(opened: Opened) -> None:
    page = opened(data_of(program(variables=["model/conv/w", "model/fc/w"])))

    assert texts(page, "#lanes [role=rowheader]") == ["▸inputs", "▸conv 16 B", "▸fc 16 B"]


def test_the_host_shows_variables_and_computations(opened: Opened) -> None:
    page = opened(data_of(sound()))

    assert texts(page, ".host h3") == ["CPU:0"]
    assert texts(page, ".host .variable") == ["conv ● 4.0 kB", "fc ● 4.0 kB", "other ○ 16 B"]
    parts = texts(page, ".host h4")
    assert {"aggregated gradients", "update"} <= set(parts)


def test_arrows_show_their_bytes(opened: Opened) -> None:
    page = opened(data_of(sound()))

    assert texts(page, ".kind") == ["▼ parameters", "▲ gradients"]
    assert texts(page, ".amount") == ["8.0 kB"] * 4


def test_unknown_sizes_are_marked(opened: Opened) -> None:
    page = opened(data_of(sound(outputs={})))

    assert texts(page, ".amount") == ["?"] * 4
    assert "A step copies 8 tensors of unknown size between devices." in page.inner_text("body")
    assert "? of unknown size" in texts(page, "#legend > span")


def test_long_sizes_of_the_last_gpu_stay_inside(opened: Opened) -> None:
    long = {gradient(i, "conv/w"): (None, 123_000_000) for i in range(8)}

    page = opened(data_of(sound(gpus=range(8), outputs=SIZES | long)), width=900)

    amounts = page.locator(".amount").all()
    most = page.locator("#arrows").bounding_box()
    assert texts(page, ".amount")[-1] == "4.0 kB + 492 MB/row"
    assert most["width"] > 500
    for box in (each.bounding_box() for each in amounts):
        assert box["x"] + box["width"] <= most["x"] + most["width"] + 1


def test_an_ignored_tower_is_marked(opened: Opened) -> None:
    left_out = [host(f"sum/{name}", "AddN", gradient(1, name)) for name in ("conv/w", "fc/w")]

    page = opened(
        data_of(sound(), judged=True),
        data_of(program(*left_out, variables=["conv/w", "fc/w"], outputs=SIZES), judged=True),
    )
    page.get_by_role("button", name="train.py:build").nth(1).click()

    assert texts(page, ".amount.missing") == ["✕ none", "✕ none"]
    assert "none in a step" in texts(page, ".flag")[0]
    assert cells(page)[0][:2] == ["1 unused", NOTHING]


def test_an_idle_gpu_is_empty(opened: Opened) -> None:
    page = opened(data_of(sound(machine="gpu*3"), judged=True))

    assert texts(page, ".flag") == ["✕ idle"]
    assert texts(page, ".nothing") == ["nothing no op"]


def test_a_click_on_a_finding_highlights_ops_and_devices(opened: Opened) -> None:
    graph = sound()
    shown = finding(
        "fc/w",
        path=(PathStep("MatMul on /device:GPU:1", gradient(1, "fc/w")),),
        devices=(Device.parse("/gpu:1"),),
    )
    page = opened(data_of(graph, broken("some-rule", shown)))
    assert not texts(page, ".box.lit")

    page.locator(".finding .rule").click()

    assert texts(page, ".box.lit") == ["fc ● 4.0 kB ✕ ◂1", "2 ops ◂1"]
    assert texts(page, ".head.lit h3") == ["GPU:1"]
    assert "2 ops highlighted" in page.locator("#said").inner_text()
    page.get_by_role("button", name="clear marks").click()
    assert not texts(page, ".lit")


def test_the_object_of_a_finding_is_marked(opened: Opened) -> None:
    page = opened(data_of(sound(variable("fc/w", at="GPU:0")), judged=True))

    assert texts(page, "#lanes .variable.bad") == ["● 4.0 kB ✕"]
    assert texts(page, "#lanes .box.none")[0] == NOTHING


def test_a_doubt_is_no_finding(opened: Opened) -> None:
    doubt = finding("fc/w", message="fc/w keeps its value", is_doubt=True)
    page = opened(data_of(sound(), broken("some-rule", doubt, state="doubtful")))

    assert texts(page, "#findings h2") == ["1 doubt"]
    assert texts(page, "#findings .finding.doubt .rule") == ["some-rule"]
    assert not texts(page, ".bad")


def test_rows_without_findings_can_be_hidden(opened: Opened) -> None:
    other = on(1, "tower_1/fc/w/MatMul", "Tanh", "tower_1/conv/w/MatMul", "tower_1/fc/w/read")
    page = opened(data_of(sound(other), judged=True))
    assert len(cells(page)) == 3

    page.get_by_label("only rows with findings").check()

    assert texts(page, "#lanes [role=rowheader]") == ["▸fc 4.0 kB"]


def test_boxes_with_other_op_types_are_not_alike(opened: Opened) -> None:
    other = on(1, "tower_1/fc/w/MatMul", "Tanh", "tower_1/conv/w/MatMul", "tower_1/fc/w/read")

    page = opened(data_of(sound(other)))

    assert [text for row in cells(page) for text in row].count("2 ops") == 4
    labels = [each.get_attribute("aria-label") for each in page.locator("#lanes .odd").all()]
    assert labels == [
        f"GPU:{i}: fc, forward, as many ops as on other GPUs, but of other types, 2 ops"
        for i in (0, 1)
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [("tanh", "no match for tanh"), ("PLACEHOLDER", "2 ops found"), ("sum/fc", "1 op found")],
)
def test_search_finds_names_and_types(opened: Opened, text: str, found: str) -> None:
    page = opened(data_of(sound()))

    page.keyboard.press("/")
    page.keyboard.type(text)
    page.locator("#said", has_text="match" if "match" in found else "found").wait_for()

    assert page.locator("#said").inner_text() == found


def test_search_finds_lines_and_escape_clears_it(opened: Opened) -> None:
    page = opened(data_of(sound(lines={"tower_0/x": "train.py:12"})))

    page.get_by_role("searchbox").fill("train.py:12")
    page.locator("#details h2").wait_for()

    assert texts(page, "#details li") == ["tower_0/x Placeholder · on GPU:0 · train.py:12"]
    page.get_by_role("searchbox").press("Escape")
    assert not texts(page, "#details")
    assert page.get_by_role("searchbox").input_value() == ""


def test_a_row_opens_and_closes(opened: Opened) -> None:
    page = opened(data_of(sound()))
    row = page.get_by_role("button", name="conv", exact=False).and_(page.locator("[data-opens]"))
    assert row.get_attribute("aria-expanded") == "false"

    row.click()

    assert row.get_attribute("aria-expanded") == "true"
    assert "MatMul" in texts(page, "#lanes [role=rowheader]")
    page.keyboard.press("Enter")
    assert "MatMul" not in texts(page, "#lanes [role=rowheader]")


def test_a_box_shows_its_ops_and_requested_devices(opened: Opened) -> None:
    inputs = ("tower_0/conv/w/MatMul", "tower_0/fc/w/read")
    fallen = op("tower_0/fc/w/MatMul", "MatMul", "/gpu:0", "CPU:0", *inputs)
    page = opened(data_of(sound(fallen)))

    page.locator(".host .forward").click()

    assert "tower_0/fc/w/MatMul MatMul · on CPU:0 · requests /device:GPU:0" in texts(
        page, "#details li"
    )


def test_fallen_ops_are_marked_on_their_requested_device(opened: Opened) -> None:
    lost = {"fallback_reason": "it has no GPU kernel"}
    graph = placement(
        op("words", "StringToHashBucketFast", "/gpu:0", "CPU:0", **lost),
        op("sum", "AddN", "/gpu:0", "GPU:0", "words"),
    )
    page = opened(data_of(graph, verify(graph, only=["no-fallback"]).verdicts[0]))

    assert cells(page) == [["1 ↗ 1 fell to CPU:0"]]
    assert texts(page, ".host .away") == ["1 op, 1 requested on GPU:0 ✕"]


def test_an_arrow_names_its_layers(opened: Opened) -> None:
    page = opened(data_of(sound()))

    page.locator(".amount.gradients").first.click()

    assert texts(page, "#details .sums li") == [
        "GPU:0 → CPU:0: 8.0 kB in 2 copies",
        "conv: 4.0 kB in 1 copy",
        "fc: 4.0 kB in 1 copy",
    ]
    assert texts(page, "#lanes .lit") == ["1 op ◂1", "2 ops ◂1"]


def test_requested_and_actual_devices_can_be_shown(opened: Opened) -> None:
    fallen = op("tower_1/x", "Placeholder", "/gpu:1", "CPU:0")
    trace = Trace(8, [timeline({"/cpu:0": [("tower_1/x", 0.0, 1.0)]})], [])
    page = opened(data_of(Evidence(sound(fallen), trace=trace)))
    assert cells(page)[0] == ["1 op", NOTHING, NOTHING, NOTHING]

    page.get_by_label("requested", exact=True).check()
    assert cells(page)[0] == ["1 op", NOTHING, "1 op", NOTHING]
    assert not texts(page, ".amount")

    page.get_by_label("executed", exact=True).check()
    assert not texts(page, "#lanes .forward:not(.none)")
    assert page.locator("#timeline rect").count() == 1


def test_arrow_keys_move_between_boxes(opened: Opened) -> None:
    page = opened(data_of(sound()))
    boxes = "#lanes [role=gridcell] > button"
    assert page.locator(f"{boxes}[tabindex='0']").count() == 1

    page.locator(f"{boxes}[tabindex='0']").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)

    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("GPU:0: fc, forward")
    page.keyboard.press("Enter")
    assert texts(page, "#details h2") == ["GPU:0: fc, forward"]


def test_a_screen_reader_has_names_and_roles(opened: Opened) -> None:
    page = opened(data_of(sound(), judged=True))

    grid = page.get_by_role("grid")
    assert grid.get_by_role("columnheader").count() == 6
    assert grid.get_by_role("rowheader").count() == 3
    assert page.get_by_role("search").is_visible()
    assert page.get_by_role("heading", level=1).is_visible()
    nameless = page.evaluate(
        "[...document.querySelectorAll('button:not([hidden])')]"
        ".filter(each => !each.textContent.trim() && !each.getAttribute('aria-label')).length"
    )
    assert nameless == 0


def test_equal_gpus_share_a_lane(opened: Opened) -> None:
    gpus = range(12)
    extra = on(7, "tower_7/more", "Tanh", "tower_7/conv/w/MatMul")
    loss = on(7, "tower_7/loss", "Mean", "tower_7/fc/w/MatMul", "tower_7/more")
    page = opened(data_of(sound(extra, loss, gpus=gpus)))
    assert texts(page, "#lanes h3") == ["GPU:0 … GPU:11", "GPU:7"]
    assert "11 alike, each:" in texts(page, ".head .facts")[0]

    page.get_by_role("button", name="show all 12 GPUs").click()

    assert len(texts(page, "#lanes h3")) == 12


def test_several_programs_have_a_grid_of_links(opened: Opened) -> None:
    rule = Verdict("some-rule", "kept", "assigned")
    page = opened(
        data_of(sound(program="a.py"), rule),
        data_of(sound(program="b.py", machine="gpu*3"), broken("some-rule", finding("fc/w"))),
    )
    assert texts(page, "#programs tbody td") == ["✓", "✕"]

    page.get_by_role("button", name="b.py").click()

    assert texts(page, "#program") == ["b.py"]
    assert "b.py" in page.title()
    assert texts(page, "#programs [aria-current] th") == ["b.py"]


def test_a_log_is_drawn_by_name_scopes(opened: Opened) -> None:
    log = placement(
        *(
            op(f"tower_{i}/fc/{kind}", kind, assigned=f"GPU:{i}")
            for i in (0, 1)
            for kind in ("MatMul", "Add")
        ),
        op("fc/w", "VariableV2", assigned="CPU:0"),
        placer="log",
        requested=Missing("a log lacks requested devices"),
    )

    page = opened(data_of(log))

    assert texts(page, "#lanes [role=rowheader]") == ["▸tower"]
    assert cells(page) == [["2 ops", "2 ops"]]
    assert not texts(page, ".pass")


def test_moved_ops_are_highlighted_on_both_devices(opened: Opened) -> None:
    old = sound()
    new = moved(old, **{"tower_1/fc/w/MatMul": "/cpu:0"})

    page = opened(difference_data(compare(old, new), new, "1 moved", old))

    assert "DIFFERS" in page.locator("h1").inner_text()
    assert texts(page, "#lanes .away") == ["1 ↗ 1 went to CPU:0"]
    assert texts(page, ".host .lit") == ["fc 1 op, 1 from GPU:1 ◂1"]
    assert page.get_by_label("only rows with differences").is_visible()
    page.get_by_label("before", exact=True).check()
    assert texts(page, "#lanes .lit") == ["2 ops ◂1"]


def test_ops_that_left_a_host_are_shown(opened: Opened) -> None:
    old, new = sound(), sound(variable("fc/w", at="GPU:0"))

    page = opened(difference_data(compare(old, new), new, "1 moved", old))

    assert texts(page, ".host .away") == ["1 op ↗ GPU:0"]


def test_parts_of_a_split_model_are_one_tower(opened: Opened) -> None:
    page = opened(data_of(split()))

    assert texts(page, ".head .facts") == [f"{n} ops in a step, part of tower 0" for n in (3, 3)]
    assert not texts(page, ".odd, .missing:not(.amount)")


def test_mirrored_copies_lie_on_their_gpus(opened: Opened) -> None:
    page = opened(data_of(sound(mirrored=True)))

    assert texts(page, "#lanes .variable") == ["●● 32 B"] * 2
    assert texts(page, "#lanes [role=rowheader]")[:3] == ["variables", "▸inputs", "▸conv 32 B"]


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_page(opened: Opened, width: int, scheme: str) -> None:
    page = opened(data_of(sound(machine="gpu*3"), judged=True), width=width, scheme=scheme)

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    clipped = page.evaluate(
        "[...document.querySelectorAll('#lanes .cell')]"
        ".filter(each => each.scrollWidth > each.clientWidth + 1).length"
    )
    assert clipped == 0


def test_a_printed_page_has_picture_and_findings(opened: Opened) -> None:
    page = opened(data_of(sound(machine="gpu*3"), judged=True))

    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")

    assert not texts(page, "#bar")
    assert texts(page, "#lanes h3")
    assert texts(page, ".finding")
    assert page.evaluate("document.getElementById('picture').getBoundingClientRect().width") <= 701


def test_a_browser_that_cannot_decompress_says_so(opened: Opened) -> None:
    page = opened(data_of(sound()))
    old = page.context.browser.new_page()
    old.add_init_script("delete globalThis.DecompressionStream")

    old.goto(page.url)

    old.wait_for_selector("body[data-state=unreadable]")
    assert texts(old, "h1") == [
        "This browser cannot read the page. Open it with Chrome 80, Firefox 113, Safari 16.4 or a "
        "newer version."
    ]
    old.close()


def test_another_program_is_drawn_when_it_is_chosen(opened: Opened) -> None:
    page = opened(data_of(sound(), judged=True), data_of(sound(program="other.py"), judged=True))

    page.get_by_role("button", name="other.py").click()

    page.wait_for_function("document.title.startsWith('other.py')")
    assert texts(page, "#program") == ["other.py"]
    assert texts(page, "#programs tr.chosen th") == ["other.py"]
