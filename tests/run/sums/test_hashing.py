"""Sums of parts, in any cut and any order, are the sum of the whole."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.layout import Layout, chunk, concat
from intarsia.run.sums.checksum import fold, remainder, shift
from intarsia.run.sums.hashing import Sum, sum_layout, sum_run
from intarsia.run.sums.mixing import odd_numbers
from intarsia.run.sums.pages import PAGE

some = settings(max_examples=60, deadline=None)


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def by_definition(data: np.ndarray) -> Sum:
    """The two sums as the design says them, one word at a time."""
    padded = data.tobytes() + bytes(-len(data) % 8)
    words = [int.from_bytes(padded[k : k + 8], "little") for k in range(0, len(padded), 8)]
    total = sum(split_mix(i // PAGE) * word for i, word in enumerate(words))
    crc = zlib.crc32(data.tobytes()) ^ zlib.crc32(bytes(len(data)))
    return Sum(total % 2**64, crc, len(data))


def split_mix(number: int) -> int:
    """The key with this number: SplitMix64 as published, and odd."""
    z = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) | 1


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 8 * PAGE - 1, 8 * PAGE, 8 * PAGE + 3, 300_001])
def test_a_run_has_the_sums_of_the_definition(count: int) -> None:
    data = noise(count)
    assert sum_run(data, 0, count) == by_definition(data)


@some
@given(st.lists(st.integers(0, 80_000), max_size=6), st.randoms(use_true_random=False))
def test_a_run_cut_anywhere_adds_up_in_any_order(cuts: list[int], order: random.Random) -> None:
    data = noise(80_000)
    edges = sorted({0, 80_000, *cuts})
    parts = [sum_run(data[lo:hi], lo, 80_000) for lo, hi in pairwise(edges)]
    order.shuffle(parts)
    assert sum(parts, Sum()) == sum_run(data, 0, 80_000)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Layout], int]:
    """A tensor's shape, layouts that hold each of its elements once, and an element's bytes."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    parts = [Layout.of("w", shape)]
    for _ in range(draw(st.integers(0, 4))):
        layout = parts.pop(draw(st.integers(0, len(parts) - 1)))
        axis = draw(st.integers(0, len(layout.shape) - 1))
        kind = draw(st.sampled_from(["chunk", "permute", "flat", "strided"]))
        if kind == "chunk":
            parts += chunk(layout, draw(st.integers(1, 4)), axis)
        elif kind == "permute":
            parts.append(layout.permute(*draw(st.permutations(range(len(layout.shape))))))
        elif kind == "flat":
            at = draw(st.integers(0, layout.size))
            flat = layout.reshape(-1)
            parts += [flat.narrow(0, 0, at), flat.narrow(0, at, layout.size)]
        else:
            halves = [chunk(c, 2, axis) for c in chunk(layout, 3, axis)]
            parts += [concat([h[k] for h in halves if len(h) > k], axis) for k in (0, 1)]
    order = draw(st.permutations(parts))
    return shape, [x for x in order if x.size], draw(st.sampled_from([1, 2, 4, 8]))


@settings(max_examples=200, deadline=None)
@given(partitions())
def test_any_pieces_in_any_order_add_up_to_the_whole(case) -> None:
    shape, layouts, itemsize = case
    size = int(np.prod(shape))
    data = noise(size * itemsize)
    elements = data.reshape(size, itemsize)
    total = Sum()
    for layout in layouts:
        local = np.zeros((layout.size, itemsize), np.uint8)
        for piece in layout.pieces:
            for at, to in pairs(piece):
                local[at] = elements[to]
        total += sum_layout(layout, local.reshape(-1), itemsize, {"w": size})["w"]
    assert total == sum_run(data, 0, size * itemsize)


def pairs(piece) -> list[tuple[int, int]]:
    found = [(piece.at, piece.to)]
    for loop in piece.loops:
        found = [(a + k * loop.at, t + k * loop.to) for a, t in found for k in range(loop.n)]
    return found


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("columns", [24, 1500, 40_000])
def test_columns_of_many_rows_add_up(ranks: int, columns: int) -> None:
    """Short runs are summed together, long ones one by one."""
    rows = 400_000 // columns
    whole = noise(rows * columns * 2).view(np.uint16).reshape(rows, columns)
    total = Sum()
    for layout in chunk(Layout.of("w", (rows, columns)), ranks, 1):
        at = layout.pieces[0].to
        local = np.ascontiguousarray(whole[:, at : at + layout.shape[1]])
        total += sum_layout(layout, local.view(np.uint8).reshape(-1), 2, {"w": whole.size})["w"]
    assert total == sum_run(whole.view(np.uint8).reshape(-1), 0, whole.nbytes)


def test_a_transposed_tensor_has_the_sums_of_the_tensor() -> None:
    whole = noise(700 * 300 * 2).view(np.uint16).reshape(700, 300)
    layout = Layout.of("w", (700, 300)).transpose(0, 1)
    local = np.ascontiguousarray(whole.T).view(np.uint8).reshape(-1)
    found = sum_layout(layout, local, 2, {"w": whole.size})["w"]
    assert found == sum_run(whole.view(np.uint8).reshape(-1), 0, whole.nbytes)


def test_an_element_that_a_buffer_repeats_counts_once() -> None:
    data = noise(6)
    layout = Layout.of("w", (1, 6)).expand(0, 3)
    assert sum_layout(layout, np.tile(data, 3), 1, {"w": 6})["w"] == sum_run(data, 0, 6)


def test_a_buffer_at_an_odd_address_has_the_same_sums() -> None:
    data = noise(600_001)
    assert sum_run(data[1:], 0, 600_000) == sum_run(data[1:].copy(), 0, 600_000)


def differs(changed: np.ndarray, data: np.ndarray) -> bool:
    a, b = sum_run(changed, 0, len(data)), sum_run(data, 0, len(data))
    return a.pages != b.pages or a.crc != b.crc


def test_every_flipped_bit_changes_both_sums() -> None:
    data = noise(203)
    before = sum_run(data, 0, len(data))
    for bit in range(8 * len(data)):
        changed = data.copy()
        changed[bit // 8] ^= 1 << bit % 8
        after = sum_run(changed, 0, len(data))
        assert after.pages != before.pages
        assert after.crc != before.crc


@some
@given(st.data(), st.sampled_from([1, 2, 4, 8]))
def test_elements_that_change_places_change_the_sums(data, itemsize: int) -> None:
    count = 20_000
    values = noise(count * itemsize).reshape(count, itemsize)
    i, j = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    changed = values.copy()
    changed[[i, j]] = values[[j, i]]
    equal = np.array_equal(changed, values)
    assert equal or differs(changed.reshape(-1), values.reshape(-1))


@some
@given(st.data())
def test_blocks_that_are_swapped_zeroed_repeated_or_moved_change_the_sums(data) -> None:
    values = noise(200_000)
    length = data.draw(st.integers(1, 60_000))
    a, b = data.draw(st.tuples(st.integers(0, 69_999), st.integers(130_000, 140_000 - 1)))
    swapped, zeroed, repeated = values.copy(), values.copy(), values.copy()
    swapped[a : a + length], swapped[b : b + length] = values[b : b + length], values[a : a + length]  # fmt: skip
    zeroed[a : a + length] = 0
    repeated[b : b + length] = values[a : a + length]
    moved = np.concatenate([values[:a], np.zeros(1, np.uint8), values[a:-1]])
    for changed in (swapped, zeroed, repeated, moved):
        assert np.array_equal(changed, values) or differs(changed, values)


def test_signs_that_flip_in_pairs_change_the_sums() -> None:
    """The top bits of two words cancel modulo 2**64, whatever the keys: the other sum sees them."""
    values = noise(8 * 1000).view(np.uint64)
    changed = values.copy()
    changed[[3, 700]] ^= np.uint64(1 << 63)
    before, after = (sum_run(x.view(np.uint8), 0, 8000) for x in (values, changed))
    assert before.pages == after.pages
    assert before.crc != after.crc


def test_words_that_change_places_within_a_page_change_the_sums() -> None:
    """Their page adds up to the same: the other sum sees them."""
    values = noise(8 * PAGE).view(np.uint64)
    changed = values[np.random.default_rng(1).permutation(PAGE)]
    before, after = (sum_run(x.view(np.uint8), 0, 8 * PAGE) for x in (values, changed))
    assert before.pages == after.pages
    assert before.crc != after.crc


def test_pages_that_change_places_change_both_sums() -> None:
    values = noise(8 * PAGE * 3).reshape(3, -1)
    before, after = (sum_run(x.reshape(-1), 0, values.size) for x in (values, values[[1, 0, 2]]))
    assert before.pages != after.pages
    assert before.crc != after.crc


def _part(cut: tuple[int, int]) -> Sum:
    return sum_run(noise(100_000)[cut[0] : cut[1]], cut[0], 100_000)


def test_the_sums_of_two_processes_add_up() -> None:
    with get_context("spawn").Pool(2) as pool:
        first, second = pool.map(_part, [(0, 33_333), (33_333, 100_000)])
    assert second + first == sum_run(noise(100_000), 0, 100_000)


@given(st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=20), st.integers(3, 9))
def test_remainders_fold_to_that_of_the_bytes_between_zeros(rows: list[bytes], stride: int) -> None:
    whole = b"".join(bytes(stride - 3) + row for row in rows)
    folded = fold(np.array([remainder(row) for row in rows], np.uint32), stride)
    assert int(folded) == remainder(whole)


@given(st.binary(max_size=50), st.integers(0, 3000))
def test_a_remainder_shifts_over_zeros(data: bytes, count: int) -> None:
    assert shift(remainder(data), count) == remainder(data + bytes(count))


def test_the_keys_are_odd() -> None:
    assert all(int(key) & 1 for key in odd_numbers(np.arange(1000)))
