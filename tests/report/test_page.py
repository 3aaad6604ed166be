"""A page is one file that loads nothing, and no name in it becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from intarsia.checking.alone.soundness import Soundness
from intarsia.checking.fault import Fault
from intarsia.checking.pair.comparison import Comparison, Difference
from intarsia.errors import visible
from intarsia.report.content import of_comparison, of_inspection, of_soundness
from intarsia.report.page import LISTED, page_of
from tests.report.made import HOSTILE, hostile, large, manifest_of


class Seen(HTMLParser):
    """Every element, with its attributes and text, as a browser's parser would cut the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.text.setdefault(tag, []).append("")
        if tag not in ("meta", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.text[self._open[-1]][-1] += data


def hostile_pages() -> list[str]:
    a = hostile()
    faults = tuple(
        Fault("not-finite", (n, *HOSTILE[:7]), f"where {n}", f"text {n}") for n in HOSTILE
    )
    different = tuple(Difference(n, 3, (0, 1), float("nan"), f"diagnosis {n}") for n in HOSTILE)
    pair = Comparison(a.path, a.path, 1, 1, HOSTILE[:2], HOSTILE[2:3], different, HOSTILE, faults)
    return [
        page_of(of_inspection(a)),
        page_of(of_soundness(Soundness(a.path, 1, 1, faults, HOSTILE), a)),
        page_of(of_soundness(Soundness(a.path, 0, 0, faults, HOSTILE), None)),
        page_of(of_comparison(pair, a, a)),
    ]


@pytest.fixture(scope="module", params=range(4), ids=["inspect", "alone", "unreadable", "pair"])
def page(request: pytest.FixtureRequest) -> str:
    return hostile_pages()[request.param]


def test_hostile_names_become_no_element_and_no_attribute(page: str) -> None:
    seen = Seen(page)
    tags = [tag for tag, _ in seen.elements]
    assert tags.count("script") == 2
    assert tags.count("style") == tags.count("h1") == tags.count("main") == 1
    assert not {"img", "svg", "b", "iframe", "object", "link", "form", "base"} & set(tags)
    for tag, attributes in seen.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")


def test_every_character_of_a_page_can_be_seen(page: str) -> None:
    assert not [c for c in page.replace("\n", "") if not c.isprintable()]


def test_the_policy_admits_the_pages_own_script_and_style_and_nothing_else(page: str) -> None:
    seen = Seen(page)
    policy = next(a["content"] for tag, a in seen.elements if a.get("http-equiv"))
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for rule, text in (
        ("script-src", seen.text["script"][-1]),
        ("style-src", seen.text["style"][0]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_the_data_hold_every_name_as_it_can_be_shown() -> None:
    told = data(hostile_pages()[0])
    assert [name_of(told, t) for t in range(len(HOSTILE))] == [visible(name) for name in HOSTILE]


def data(page: str) -> dict:
    return json.loads(Seen(page).text["script"][0])


def name_of(told: dict, t: int) -> str:
    kind, words, layered, expert = told["rows"][told["row"][t]]
    numbers = [told["layer"][t]] * layered + [told["expert"][t]] * expert
    tail = "".join(f"{n}{word}" for n, word in zip(numbers, words[1:], strict=True))
    return (f"optimizer.{kind}." if kind else "") + words[0] + tail


def test_faults_are_written_out_and_point_to_their_tensors() -> None:
    a = manifest_of({"layers.0.w": (2,), "layers.1.w": (2,)})
    fault = Fault("not-finite", ("layers.1.w", "elsewhere"), "[1] first", "1 of 2 is NaN")
    page = page_of(of_soundness(Soundness("a", 2, 4, (fault,)), a))
    seen = Seen(page)
    assert seen.text["h3"] == ["not-finite"]
    assert "NaN or infinity among the weights" in page
    assert ("code", {"data-tensor": "1"}) in seen.elements
    assert data(page)["state"] == [0, 3]
    assert data(page)["faults"] == [["not-finite", "1 of 2 is NaN", [1]]]


def test_a_tensor_that_only_a_fault_knows_of_is_on_the_map() -> None:
    a = manifest_of({"layers.0.w": (2,)})
    fault = Fault("tensor-missing", ("layers.0.lost", "layers.0.w"), "layers.0", "not stored")
    told = data(page_of(of_soundness(Soundness("a", 1, 2, (fault,)), a)))
    assert [name_of(told, t) for t in range(2)] == ["layers.0.w", "layers.0.lost"]
    assert told["state"] == [2, 2]
    assert told["shapes"][told["shape"][1]] is None


def test_thousands_of_differences_are_cut_short_in_words_and_whole_in_the_data() -> None:
    names = [f"layers.{k}.w" for k in range(LISTED + 50)]
    a = manifest_of(dict.fromkeys(names, (2,)))
    different = tuple(Difference(n, 1, (0,), 1.0, "") for n in names)
    page = page_of(of_comparison(Comparison("a", "b", 250, 500, (), (), different), a, a))
    assert "… and 50 more" in page
    assert data(page)["state"] == [1] * len(names)


def test_landmarks_headings_and_a_skip_link_are_there() -> None:
    seen = Seen(hostile_pages()[3])
    tags = [tag for tag, _ in seen.elements]
    assert {"header", "main", "footer", "noscript"} <= set(tags)
    ids = {a.get("id") for _, a in seen.elements}
    links = [str(a["href"])[1:] for tag, a in seen.elements if tag == "a"]
    assert links[0] == "map"
    assert set(links) <= ids
    labelled = [a["aria-labelledby"] for _, a in seen.elements if "aria-labelledby" in a]
    assert set(labelled) <= ids
    assert dict(seen.elements)["html"] == {"lang": "en"}


def test_the_page_of_a_large_model_is_compact() -> None:
    manifest = large(layers=20)
    page = page_of(of_inspection(manifest))
    assert len(manifest.stored) > 23_000
    assert len(page) < 100 * len(manifest.stored)
    assert len(data(page)["rows"]) == 5
    assert not re.search(r"experts\.\d+\.gate_proj", page)
