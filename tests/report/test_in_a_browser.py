"""A page in a real browser: it is safe, it can be read and used by keys, and it stays quick."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import intarsia
from intarsia.checking.fault import Fault
from intarsia.checking.pair.comparison import Comparison, Difference
from intarsia.format.registry import read_manifest
from intarsia.report.content import of_comparison, of_inspection
from intarsia.report.write import write_page
from tests.checkpoints import model, write_hf
from tests.report.browser import Browser, chromium
from tests.report.made import CONFIG, HOSTILE, Q, V, faulty, hostile, large, manifest_of

CELLS = "document.querySelectorAll('.grid .cell')"
TITLE = "document.getElementById('detail-title').textContent"
DETAIL = "document.getElementById('detail').textContent"
FOCUS = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
ENTER = {"key": "Enter", "code": 13, "text": "\r"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chromium()
    root = tmp_path_factory.mktemp("browser")
    write_hf(root / "good", model(CONFIG), CONFIG)
    faulty(root / "bad")
    intarsia.convert(root / "good", root / "sharded", to="dcp", mesh="tp=2,fsdp=2")
    found = intarsia.verify(root / "sharded", root / "bad")
    story = of_comparison(found, read_manifest(root / "sharded"), read_manifest(root / "bad"))
    write_page(root / "pair.html", story)
    write_page(root / "hostile.html", of_inspection(hostile()))
    return root


@pytest.fixture(scope="module")
def browser(pages: Path) -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


def test_hostile_names_are_shown_and_nothing_of_them_runs(browser: Browser, pages: Path) -> None:
    browser.open(pages / "hostile.html")
    title = browser.run("document.title")
    assert title.startswith("complete")
    count = browser.run(f"{CELLS}.length")
    for k in range(count):
        browser.run(f"{CELLS}[{k}].click()")
    shown = browser.run("document.body.innerText")
    assert "</script>" in shown
    assert "\\u202e" in shown
    assert "\u202e" not in shown
    assert browser.run("document.title") == title
    assert browser.run("document.querySelectorAll('img, iframe, b').length") == 0
    assert browser.run("document.scripts.length") == 2
    assert browser.complaints == []
    assert browser.requests == [(pages / "hostile.html").as_uri()]


def test_every_hostile_name_can_be_asked_for_by_address(browser: Browser, pages: Path) -> None:
    for name in HOSTILE[:6]:
        browser.open(pages / "hostile.html", f"tensor={quote(name)}")
        assert browser.run(TITLE) == name


def test_the_policy_stops_what_the_page_did_not_bring(browser: Browser, pages: Path) -> None:
    browser.open(pages / "hostile.html")
    browser.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')"
    )
    browser.run("new Promise((done) => setTimeout(done, 100))")
    assert any("Content Security Policy" in text for text in browser.complaints)
    assert browser.run("document.title") != "1"


def test_the_map_marks_each_state_by_a_sign_and_by_words(browser: Browser, pages: Path) -> None:
    browser.open(pages / "pair.html")
    label = f"[...{CELLS}].filter((c) => c.textContent === '%s').map((c) => c.ariaLabel)"
    assert browser.run(label % "≠") == [
        "self_attn.q_proj.weight, layer 1: different",
        "self_attn.v_proj.weight, layer 0: different",
    ]
    assert browser.run(label % "∅") == ["input_layernorm.weight, layer 2: absent"]
    legend = browser.run("document.querySelector('.legend').innerText")
    assert [word for word in ("equal", "different", "absent") if word in legend] == [
        "equal", "different", "absent",
    ]  # fmt: skip
    assert browser.complaints == []


def test_arrow_keys_walk_the_map_and_enter_chooses(browser: Browser, pages: Path) -> None:
    browser.open(pages / "pair.html")
    assert browser.run(f"[...{CELLS}].filter((c) => c.tabIndex === 0).length") == 1
    browser.run(f"[...{CELLS}].find((c) => c.ariaLabel.startsWith('self_attn.q_proj')).focus()")
    browser.press("ArrowRight", 39)
    assert browser.run(FOCUS) == "self_attn.q_proj.weight, layer 1: different"
    browser.press(**ENTER)
    assert browser.run(TITLE) == Q
    assert browser.run("document.getElementById('status').textContent").startswith(f"{Q}: diff")
    assert browser.run(FOCUS) == "self_attn.q_proj.weight, layer 1: different"
    assert browser.run(f"[...{CELLS}].filter((c) => c.tabIndex === 0).length") == 1
    browser.press("End", 35)
    assert browser.run(FOCUS) == "self_attn.q_proj.weight, layer 2: equal"
    browser.press("Home", 36)
    assert browser.run(FOCUS) == "self_attn.q_proj.weight, layer 0: equal"


def test_the_first_tab_reaches_the_skip_link_and_focus_can_be_seen(
    browser: Browser, pages: Path
) -> None:
    browser.open(pages / "pair.html")
    browser.press("Tab", 9)
    assert browser.run(FOCUS) == "Skip to the map"
    box = "document.activeElement.getBoundingClientRect()"
    assert browser.run(f"{box}.left") >= 0
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_chosen_tensor_shows_its_files_blocks_and_bytes(browser: Browser, pages: Path) -> None:
    browser.open(pages / "pair.html", f"tensor={Q}")
    text = browser.run(DETAIL)
    assert "Where it lies in A" in text
    assert "Where it lies in B" in text
    for rank in range(4):
        assert f"__{rank}_0.distcp" in text
        assert f"rank {rank}" in text
    manifest = read_manifest(pages / "sharded")
    chunk = manifest.sources[Q][0].chunks[0]
    assert f"{chunk.start_bytes:,}" in text
    assert "Elements that differ: 1, first at [3, 4]" in text


def test_the_name_in_a_fault_chooses_its_tensor(browser: Browser, pages: Path) -> None:
    browser.open(pages / "pair.html")
    browser.run(
        f"[...document.querySelectorAll('.fault button')].find((b) => b.textContent === '{V}').click()"
    )
    assert browser.run(TITLE) == V
    assert browser.run("document.activeElement.id") == "detail"


def test_a_search_finds_tensors_by_parts_of_their_names(browser: Browser, pages: Path) -> None:
    browser.open(pages / "pair.html")
    browser.run("document.getElementById('search').focus()")
    browser.call("Input.insertText", text="1 Q_PROJ")
    browser.run("new Promise((done) => setTimeout(done, 300))")
    found = browser.run("[...document.querySelectorAll('.results button')].map((b) => b.innerText)")
    assert found == [f"{Q} (different)"]


def test_rows_without_anything_wrong_can_be_hidden(browser: Browser, pages: Path) -> None:
    browser.open(pages / "pair.html")
    rows = "document.querySelectorAll('.grid tbody tr').length"
    assert browser.run(rows) > 3
    browser.run("document.querySelector('.tick input').click()")
    assert browser.run(rows) == 3


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_the_page_is_never_wider_than_the_window(browser: Browser, pages: Path, width: int) -> None:
    for page, tensor in (("pair.html", Q), ("hostile.html", HOSTILE[0])):
        browser.open(pages / page, f"tensor={quote(tensor)}", width)
        assert browser.run("document.documentElement.scrollWidth") == width


def test_dark_and_light_have_their_own_colours_and_motion_can_be_refused(
    browser: Browser, pages: Path
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.open(pages / "pair.html", color_scheme="light", reduced_motion="reduce")
    light = browser.run(ground)
    assert browser.run("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    browser.open(pages / "pair.html", color_scheme="dark")
    assert browser.run(ground) != light


def test_optimizer_state_is_built_when_it_is_opened(browser: Browser, tmp_path: Path) -> None:
    names = ["layers.0.w", "optimizer.exp_avg.layers.0.w", "optimizer.exp_avg.layers.1.w"]
    write_page(tmp_path / "state.html", of_inspection(manifest_of(dict.fromkeys(names, (2, 2)))))
    browser.open(tmp_path / "state.html")
    assert browser.run(f"{CELLS}.length") == 1
    browser.run("document.querySelector('details > summary').click()")
    browser.run("new Promise((done) => setTimeout(done, 100))")
    assert browser.run(f"{CELLS}.length") == 3
    browser.run(f"{CELLS}[2].click()")
    assert browser.run(TITLE) == names[2]


def test_a_map_of_many_rows_and_layers_is_turned_page_by_page(
    browser: Browser, tmp_path: Path
) -> None:
    names = [f"layers.{7 * k}.w{k}" for k in range(300)]
    write_page(tmp_path / "wide.html", of_inspection(manifest_of(dict.fromkeys(names, (1,)))))
    browser.open(tmp_path / "wide.html")
    first = "document.querySelector('.grid tbody th').textContent"
    assert browser.run("document.querySelectorAll('.grid tbody tr').length") == 100
    assert browser.run("document.querySelectorAll('.grid thead th').length") == 129
    assert browser.run(first) == "w0"
    turn = "[...document.querySelectorAll('.pager button')].find((b) => b.textContent === '%s')"
    browser.run(f"{turn % 'Later rows'}.click()")
    assert browser.run(first) == "w100"
    assert browser.run(FOCUS) == "Later rows"
    assert browser.run("document.body.innerText.includes('rows 101 to 200 of 300')")


def test_seventy_thousand_tensors_open_at_once_and_take_few_elements(
    browser: Browser, tmp_path: Path
) -> None:
    write_page(tmp_path / "large.html", of_inspection(large()))
    started = time.monotonic()
    browser.open(tmp_path / "large.html")
    assert time.monotonic() - started < 30  # a second or so where nothing else runs
    assert browser.run("document.querySelectorAll('*').length") < 3000
    many = f"[...{CELLS}].find((c) => c.classList.contains('many'))"
    assert browser.run(f"{many}.ariaLabel").endswith("all 384: stored")
    browser.run(f"{many}.click()")
    assert browser.run(TITLE) == "mlp.experts.*.gate_proj.weight, layer 0: 384 experts"
    assert browser.run("document.querySelectorAll('.experts button').length") == 384
    browser.run("document.querySelectorAll('.experts button')[77].click()")
    assert ".experts.77." in browser.run(TITLE)
    assert browser.complaints == []


@pytest.fixture(scope="module")
def deep(pages: Path) -> Path:
    """94 layers of 128 experts whose names are in the order of the alphabet, as files hold them."""
    shapes = {
        f"model.layers.{k}.mlp.experts.{e}.{part}_proj.weight": (2, 2)
        for k in range(94)
        for e in range(128)
        for part in ("gate", "up", "down")
    }
    a = manifest_of(dict(sorted(shapes.items())))
    swapped = [n for n in shapes if n.startswith("model.layers.70.") and "down" not in n]
    different = tuple(
        Difference(n, 4, (0, 0), 0.5, "gate and up swapped, <b>bold</b>") for n in sorted(swapped)
    )
    faults = (Fault("gate-up-swapped", tuple(sorted(swapped)), "layer 70", "explains all"),)
    found = Comparison(
        "a", "b", len(shapes), 4 * len(shapes), (), (), different, ("x cannot be judged",), faults
    )
    write_page(pages / "deep.html", of_comparison(found, a, a))
    return pages / "deep.html"


def test_a_difference_far_to_the_right_is_a_press_away(browser: Browser, deep: Path) -> None:
    browser.open(deep)
    links = "document.querySelectorAll('.shortcuts button')"
    assert browser.run(f"[...{links}].map((b) => b.textContent)") == ["70"]
    browser.run(f"{links}[0].click()")
    assert browser.run(FOCUS).startswith("mlp.experts.*.gate_proj.weight, layer 70: all 128")
    box = "document.activeElement.getBoundingClientRect()"
    assert browser.run(f"{box}.right < innerWidth && {box}.left > 200")
    browser.run("document.querySelector('.tick input').click()")
    assert browser.run("[...document.querySelectorAll('.grid thead th')].map((h) => h.innerText)") == [
        "layer", "70",
    ]  # fmt: skip
    assert browser.complaints == []


def test_experts_stand_in_the_order_of_their_numbers(browser: Browser, deep: Path) -> None:
    browser.open(deep)
    browser.run(f"{CELLS}[0].click()")
    shown = browser.run("[...document.querySelectorAll('.experts button')].map((b) => b.innerText)")
    assert shown == [str(k) for k in range(128)]


def test_hundreds_of_differences_leave_the_map_in_reach(browser: Browser, deep: Path) -> None:
    browser.open(deep)
    assert browser.run("document.documentElement.scrollHeight") < 2500
    table = "document.querySelector('[role=region][aria-label=\"Different tensors\"]')"
    assert browser.run(f"{table}.tabIndex") == 0
    assert browser.run(f"{table}.scrollHeight > {table}.clientHeight")
    assert "<b>bold</b>" in browser.run(f"{table}.innerText")
    assert "x cannot be judged" in browser.run("document.body.innerText")
    assert browser.run("document.querySelector('.fault details').open") is False
    assert browser.run("document.querySelector('.fault summary').innerText") == "256 tensors"


def test_every_control_has_a_name_and_a_role(browser: Browser, deep: Path) -> None:
    """What a screen reader is told, by the browser's own account of it."""
    browser.open(deep)
    browser.run(f"{CELLS}[0].click()")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    told = [
        (n["role"]["value"], n.get("name", {}).get("value", ""))
        for n in nodes
        if not n.get("ignored")
    ]
    roles = {role for role, _ in told}
    assert {"banner", "main", "contentinfo", "grid", "search", "searchbox", "status"} <= roles
    needing = ("button", "link", "searchbox", "checkbox", "grid", "region", "heading")
    assert [node for node in told if node[0] in needing and not node[1].strip()] == []
