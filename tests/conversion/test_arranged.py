"""A format that is wrong about places is refused before a byte is written, or read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia.errors import CoverageError
from intarsia.format import added
from intarsia.format.base import Arrangement, Located
from intarsia.mesh import Box
from tests.checkpoints import leftovers, llama_config, model, write_hf
from tests.docs.test_add_a_format_page import followed

CONFIG = llama_config()
Npy: Any = followed()["Npy"]
NAME, OTHER = "model.embed_tokens.weight", "lm_head.weight"
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
    assert caught.value.hint == "fix `arrange` of the format npy; nothing was written"
    assert not (tmp_path / "out").exists()
    assert leftovers(tmp_path) == []


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
