"""A format that is wrong about places is refused before a byte is written, or read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import intarsia
from intarsia.conversion.arranged import check_arrangement
from intarsia.dtypes import BY_NAME
from intarsia.errors import CoverageError
from intarsia.format import added
from intarsia.format.arrangement import SlotColumns, SlotPlaces, Wrapped
from intarsia.format.base import Arrangement, Located, Slot
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from tests.checkpoints import leftovers, llama_config, model, write_hf
from tests.docs.test_add_a_format_page import followed

CONFIG = llama_config()
Npy: Any = followed()["Npy"]
NAME, OTHER = "model.embed_tokens.weight", "lm_head.weight"
U8 = BY_NAME["U8"]
Mistake = Callable[[Arrangement], Arrangement]


def moved(arranged: Arrangement, **changes: Any) -> Arrangement:
    """The first place of a tensor is another one."""
    first, *rest = arranged.slots[NAME]
    return replace(arranged, slots={**arranged.slots, NAME: (replace(first, **changes), *rest)})


def onto_another(arranged: Arrangement) -> Arrangement:
    other = arranged.slots[OTHER][0]
    return moved(arranged, file=other.file, start_bytes=other.start_bytes)


def half(arranged: Arrangement) -> Arrangement:
    return moved(arranged, box=Box((0, 0), (3, 20)))


def twice(arranged: Arrangement) -> Arrangement:
    slots = arranged.slots[NAME]
    return replace(arranged, slots={**arranged.slots, NAME: (*slots, slots[0])})


def nowhere(arranged: Arrangement) -> Arrangement:
    return replace(arranged, slots={k: v for k, v in arranged.slots.items() if k != NAME})


def without_length(arranged: Arrangement) -> Arrangement:
    return replace(arranged, files={k: v for k, v in arranged.files.items() if k != "rank_0.npy"})


def beyond_the_end(arranged: Arrangement) -> Arrangement:
    return replace(arranged, files={**arranged.files, "rank_0.npy": 1000})


def before_the_start(arranged: Arrangement) -> Arrangement:
    return moved(arranged, start_bytes=-4)


def under_a_fixed_part(arranged: Arrangement) -> Arrangement:
    slot = arranged.slots[NAME][0]
    return replace(arranged, fixed=[*arranged.fixed, (slot.file, slot.start_bytes + 1, b"0")])


def gap_over_another(arranged: Arrangement) -> Arrangement:
    slot = arranged.slots[NAME][0]
    return moved(arranged, gap_bytes=slot.start_bytes + 1)


def gap_behind_the_start(arranged: Arrangement) -> Arrangement:
    return moved(arranged, gap_bytes=-8)


def between_bytes(arranged: Arrangement) -> Arrangement:
    return moved(arranged, start_bytes=arranged.slots[NAME][0].start_bytes + 0.5)


def beyond_any_file(arranged: Arrangement) -> Arrangement:
    return replace(
        moved(arranged, start_bytes=(1 << 63) - 4), files=dict.fromkeys(arranged.files, 1 << 70)
    )


def before_any_file(arranged: Arrangement) -> Arrangement:
    return moved(arranged, start_bytes=-(1 << 63), gap_bytes=1)


def under_a_closing_file(arranged: Arrangement) -> Arrangement:
    return replace(arranged, closing={"rank_0.npy": b"", **arranged.closing})


@contextmanager
def registered(**methods: Any) -> Iterator[None]:
    added.register(type("Wrong", (Npy,), methods)())
    try:
        yield
    finally:
        added.unregister("npy")


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", model(CONFIG), CONFIG)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (onto_another, f"are those of {OTHER} and of {NAME}"),
        (gap_over_another, "bytes "),
        (half, f"`{NAME}`: .* elements are in none of"),
        (twice, f"`{NAME}`: parts .* overlap"),
        (nowhere, f"`{NAME}` has no place"),
        (without_length, "rank_0.npy holds `a fixed part`, and has no length"),
        (beyond_the_end, "of rank_0.npy, which has 1,000"),
        (before_the_start, r"bytes \[-4:"),
        (under_a_fixed_part, f"of rank_0.npy are those of {NAME} and of a fixed part"),
        (gap_behind_the_start, f"`{NAME}`: bytes .* lie outside of what is wrapped around them"),
        (between_bytes, r"places in files are whole numbers of bytes: \(0, \d+.5, 0\)"),
        (beyond_any_file, f"{NAME} lies where no file reaches"),
        (before_any_file, f"{NAME} lies where no file reaches"),
        (under_a_closing_file, "rank_0.npy is written last, but it also holds tensors"),
    ],
)
def test_places_that_are_wrong_are_refused(
    mistake: Mistake, said: str, src: Path, tmp_path: Path
) -> None:
    def arrange(self: Any, *given: Any) -> Arrangement:
        return mistake(Npy.arrange(self, *given))

    with registered(arrange=arrange), pytest.raises(CoverageError, match=said) as caught:
        intarsia.convert(src, tmp_path / "out", to="npy", mesh="tp=2,fsdp=3")
    assert (caught.value.hint or "").startswith("fix `arrange` of the format")
    assert not (tmp_path / "out").exists()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("in_columns", [False, True])
def test_a_byte_for_two_things_is_found_wherever_it_is(in_columns: bool) -> None:
    random = Random(0)
    found = Counter[bool]()
    for _ in range(400):
        slots = {name: _places(random) for name in "abc"}
        fixed = [("f", random.randrange(60), bytes(random.randrange(3)))]
        taken = Counter(
            (slot.file, k)
            for slot in chain(*slots.values())
            for before, length in [_around(slot)]
            for k in range(
                slot.start_bytes - before - slot.gap_bytes, slot.start_bytes - before + length
            )
        )
        taken.update((file, k) for file, at, data in fixed for k in range(at, at + len(data)))
        right = max(taken.values()) == 1 and all(0 <= k < 60 for _, k in taken)
        found[right] += 1
        arranged = Arrangement({"f": 60, "g": 60}, slots, fixed)
        if in_columns:
            arranged = replace(arranged, slots={**arranged.columns, "a": slots["a"]})
        targets = [Target(name, U8, Layout.of(name, (6,)), ()) for name in slots]
        with nullcontext() if right else pytest.raises(CoverageError, match="lays out its files"):
            check_arrangement("f", targets, arranged)
    assert min(found.values()) > 20


@pytest.mark.parametrize(
    ("first", "starts", "said"),
    [
        (0, [0, 6], ""),
        (1, [0, 6], "`a` has no place in the columns"),
        (-1, [0, 6], "`a` has no place in the columns"),
        (0, [0, 6.5], "whole numbers"),
        (0, [0, float("nan")], "whole numbers"),
    ],
)
def test_columns_hold_a_whole_number_for_each_slot(
    first: int, starts: list[float], said: str
) -> None:
    halves = Wrapped((Box((0,), (6,)), Box((6,), (6,))), (None, None))
    files, gaps = np.zeros((2, 2), np.int64)
    places = SlotPlaces(["f"], files, np.array(starts), gaps)
    # What is fixed has no bytes, and would do as the place of anything.
    arranged = Arrangement({"f": 60}, {"a": SlotColumns(halves, places, first)}, [("f", 30, b"")])
    targets = [Target("a", U8, Layout.of("a", (12,)), ())]
    with pytest.raises(CoverageError, match=said) if said else nullcontext():
        check_arrangement("f", targets, arranged)


def _around(slot: Slot) -> tuple[int, int]:
    """How many bytes are wrapped before elements, and how many there are with them."""
    wrapping = slot.wrapping
    return (wrapping.start_bytes, wrapping.length_bytes) if wrapping else (0, slot.box.size)


def _places(random: Random) -> tuple[Slot, ...]:
    """Places for six bytes in two files, at most of them with something around or before."""
    cut = random.choice([1, 2, 3])
    return tuple(
        Slot(
            Box((k,), (6 // cut,)),
            random.choice("fg"),
            random.randrange(2, 54),
            random.choice([None, SimpleNamespace(start_bytes=2, length_bytes=3 + 6 // cut)]),
            random.choice([0, 0, 1]),
        )
        for k in range(0, 6, 6 // cut)
    )


@pytest.mark.parametrize("by", [64, -64])
def test_elements_that_lie_outside_of_their_chunk_are_not_read(
    by: int, src: Path, tmp_path: Path
) -> None:
    def locate(self: Any, folder: Any, stored: Any, chunk: Any) -> Located:
        return Located(chunk.start_bytes + by)

    with registered():
        intarsia.convert(src, tmp_path / "npy", to="npy", mesh="fsdp=2")
    with registered(locate=locate):
        alone = intarsia.verify(tmp_path / "npy")
        assert not alone.sound
        assert "outside of its chunk" in alone.faults[0].text
        for use in (
            lambda: intarsia.convert(tmp_path / "npy", tmp_path / "back", to="hf"),
            lambda: intarsia.verify(src, tmp_path / "npy"),
            lambda: intarsia.open(tmp_path / "npy")[NAME][...],
        ):
            with pytest.raises(CoverageError, match=r"outside of its chunk") as caught:
                use()
            assert caught.value.hint == "fix `locate` of the format npy"
    assert not (tmp_path / "back").exists()
