"""Two faults at once are both named, in one tensor and in several; what is no fault is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.pair.comparison import Comparison
from tests.checkpoints import normal_tensor, write_hf
from tests.faults.mistakes import (
    block_of,
    blocks,
    by_group,
    each,
    experts,
    heads,
    interleaved,
    layers,
    older,
    to_pairs,
    together,
)
from tests.faults.reference import DENSE, MOE, Config, Tensors, weights

GATED = ("gate_proj", "up_proj")
Damage = Callable[..., Tensors]


def swapped(config: Config, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return y, x


def bf16(x: torch.Tensor, *_: object) -> torch.Tensor:
    return x.bfloat16().float()


def held(tmp_path: Path, *damages: Damage, config: Config = DENSE, turned: bool = False):
    """What is said of a model after one damage upon the other, as B or as A."""
    tensors = weights(config)
    wrong = dict(tensors)
    for damage in damages:
        wrong |= {n: t.clone().contiguous() for n, t in damage(wrong, config, None).items()}
    a = write_hf(tmp_path / "a", wrong if turned else tensors, config)
    b = write_hf(tmp_path / "b", tensors if turned else wrong, config)
    return intarsia.verify(a, b)


def kinds(found: Comparison) -> set[str]:
    return {fault.kind for fault in found.faults}


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (together(GATED, swapped), each("gate_proj|up_proj", bf16), {"gate-up-swapped", "rounded"}),
        (together(GATED, swapped), each("gate_proj", block_of(1, 4, older)), {"gate-up-swapped", "rank-stale"}),
        (together(GATED, interleaved(2)), each("up_proj", block_of(1, 2, torch.zeros_like)), {"gate-up-interleaved", "rank-zero"}),
        (together(("q_proj", "k_proj", "v_proj"), by_group), each("(q|k|v)_proj", bf16), {"qkv-permuted", "rounded"}),
        (each("(q|k)_proj", to_pairs), each("(q|k)_proj", lambda x, c, r: x * 0.3), {"rope-permuted", "scaled"}),
        (each("k_proj", lambda x, c, r: x.T), each("k_proj", bf16), {"transposed", "rounded"}),
        (each("(gate|up)_proj", blocks([2, 0, 3, 1])), each("(gate|up)_proj", bf16), {"shards-permuted", "rounded"}),
        (each("q_proj", heads), each("q_proj", block_of(2, 4, older)), {"heads-permuted", "rank-stale"}),
        (layers(lambda i, n: max(i - 1, 0)), each(r"layers.*proj", bf16), {"layers-shifted", "rounded"}),
        (together(GATED, swapped), each("q_proj", block_of(1, 2, older)), {"gate-up-swapped", "rank-stale"}),
    ],
)  # fmt: skip
@pytest.mark.one_in(8)
def test_two_faults_are_both_named(
    tmp_path: Path, first: Damage, second: Damage, named: set[str], turned: bool
) -> None:
    found = held(tmp_path, first, second, turned=turned)
    assert kinds(found) == named, [str(f) for f in found.faults]


def test_experts_that_moved_and_were_scaled(tmp_path: Path) -> None:
    scaled = each("experts", lambda x, c, r: x * 0.5)
    found = held(tmp_path, experts(lambda e, n, i: n - 1 - e), scaled, config=MOE)
    assert kinds(found) == {"experts-permuted", "scaled"}
    first, second = found.faults
    assert {*first.tensors} == {*second.tensors}


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
def test_one_ranks_block_on_every_rank_is_named_on_either_side(
    tmp_path: Path, turned: bool
) -> None:
    found = held(tmp_path, each("gate_proj", blocks([1, 1, 1, 1])), turned=turned)
    assert kinds(found) == {"rank-duplicated"}


@pytest.mark.parametrize(("by", "told"), [(3, "3 rows too late"), (-2, "2 rows too early")])
def test_a_fused_tensor_cut_in_the_wrong_place(tmp_path: Path, by: int, told: str) -> None:
    def cut(config: Config, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cat([x, y]).roll(-by, 0).split(len(x))

    found = held(tmp_path, together(GATED, cut))
    assert kinds(found) == {"split-misplaced"}
    assert told in found.faults[0].text


@pytest.mark.parametrize("names", [GATED, GATED[:1], GATED[1:]])
@pytest.mark.parametrize("by", [1, -1])
def test_rows_that_moved_inside_of_a_tensor_were_not_cut_out_of_a_fused_one(
    tmp_path: Path, names: tuple[str, ...], by: int
) -> None:
    tensors = {
        f"model.layers.0.mlp.{name}.weight": normal_tensor((160, 24), torch.float32, k)
        for k, name in enumerate(GATED)
    }
    rolled = {n: x.roll(by, 0) if any(w in n for w in names) else x for n, x in tensors.items()}
    a, b = (write_hf(tmp_path / n, t) for n, t in (("a", tensors), ("b", rolled)))
    (fault,) = intarsia.verify(a, b).faults
    assert fault.text.startswith(f"rows shifted by {by} around the end")


@pytest.mark.parametrize("turned", [False, True])
def test_rotary_pairs_and_halves_are_named_on_the_side_that_has_them(
    tmp_path: Path, turned: bool
) -> None:
    found = held(tmp_path, each("(q|k)_proj", to_pairs), turned=turned)
    told = "pairs of A are halves in B" if turned else "halves of A are pairs in B"
    assert all(fault.text.startswith(f"rotary {told}, ") for fault in found.faults)
    assert kinds(found) == {"rope-permuted"}


def test_moves_and_rounding_are_found_between_element_types(tmp_path: Path) -> None:
    tensors = weights(DENSE)
    moved = layers(lambda i, n: max(i - 1, 0))(tensors, DENSE, None)
    narrow = {n: t.clone().bfloat16() for n, t in (tensors | moved).items()}
    a = write_hf(tmp_path / "a", tensors, DENSE)
    found = intarsia.verify(a, write_hf(tmp_path / "b", narrow, DENSE))
    assert "layers-shifted" in kinds(found)
    assert kinds(found) <= {"layers-shifted", "rounded", "dtype-changed", "unexplained"}
    (shifted,) = [f for f in found.faults if f.kind == "layers-shifted"]
    assert sum("proj" in n for n in shifted.tensors) == 7 * 3


@pytest.mark.parametrize("axis", [0, 1])
def test_a_shuffle_of_thousands_of_rows_is_held_against_every_element(
    tmp_path: Path, axis: int
) -> None:
    x = normal_tensor((6000, 24) if axis == 0 else (24, 6000), torch.float32, 1)
    y = x.index_select(axis, torch.randperm(6000, generator=torch.Generator().manual_seed(2)))
    y[(17, 5) if axis == 0 else (20, 17)] += 1
    a, b = (write_hf(tmp_path / n, {"w": t}) for n, t in (("a", x), ("b", y)))
    (fault,) = intarsia.verify(a, b).faults
    assert fault.kind == "rows-permuted"
    explained, differing = map(
        int, re.findall(r"[\d,]+(?= of|\sdiffering)", fault.text.replace(",", ""))[-2:]
    )
    # A row whose hash differs counts as unexplained as a whole.
    assert 0 < differing - explained <= (24 if axis == 0 else 1)


def test_tensors_made_anew_are_called_constant(tmp_path: Path) -> None:
    found = held(tmp_path, each("layernorm", lambda x, c, r: torch.ones_like(x)))
    assert kinds(found) == {"constant"}
    assert "every element of B is 1" in found.faults[0].text


@pytest.mark.parametrize("noise", [1e-3, 1e-2])
@pytest.mark.one_in(2)
def test_noise_that_was_rounded_is_not_called_rounding(tmp_path: Path, noise: float) -> None:
    found = held(
        tmp_path, each("proj", lambda x, c, r: bf16(x + noise * 0.1 * older(x).sub(x)))
    )  # fmt: skip
    assert kinds(found) == {"unexplained"}


def test_short_vectors_of_coarse_numbers_are_no_shuffle_of_each_other(tmp_path: Path) -> None:
    x = (1 + normal_tensor((512,), torch.float32, 1) / 8).bfloat16()
    y = (1 + normal_tensor((512,), torch.float32, 2) / 8).bfloat16()
    a, b = (write_hf(tmp_path / n, {"norm.weight": t}) for n, t in (("a", x), ("b", y)))
    assert kinds(intarsia.verify(a, b)) == {"unexplained"}


def test_rows_turned_around_the_end_are_shifted(tmp_path: Path) -> None:
    found = held(tmp_path, each("embed_tokens", lambda x, c, r: x.roll(-2, 0)))
    assert kinds(found) == {"shifted"}
    assert "rows shifted by -2 around the end" in found.faults[0].text


@pytest.mark.parametrize("by", [1, -1])
def test_a_turn_by_one_row_is_told_as_one(tmp_path: Path, by: int) -> None:
    found = held(tmp_path, each("embed_tokens", lambda x, c, r: x.roll(by, 0)))
    assert kinds(found) == {"shifted"}
    assert f"rows shifted by {by} around the end" in found.faults[0].text


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
def test_zeros_beside_other_zeros_are_no_copy_of_them(tmp_path: Path, turned: bool) -> None:
    x = normal_tensor((96, 64), torch.float32, 1)
    x[80:] = 0
    y = x.clone()
    y[48:64] = 0
    pair = [write_hf(tmp_path / n, {"w": t}) for n, t in (("a", x), ("b", y))]
    (fault,) = intarsia.verify(*(pair[::-1] if turned else pair)).faults
    assert fault.kind == "rank-zero"
    assert f"block 3 of 6 on axis 0 of {'A' if turned else 'B'} is zero" in fault.text


def test_a_block_that_differs_from_ones_is_not_called_constant(tmp_path: Path) -> None:
    x, y = torch.ones(96, 64), torch.ones(96, 64)
    y[40:44] = 2
    a, b = (write_hf(tmp_path / n, {"w": t}) for n, t in (("a", x), ("b", y)))
    assert "constant" not in kinds(intarsia.verify(a, b))


def test_second_moments_in_the_wrong_order_and_rounded(tmp_path: Path) -> None:
    x = normal_tensor((64, 64), torch.float32, 1) ** 2
    y = bf16(torch.cat([x[32:], x[:32]]))
    a, b = (write_hf(tmp_path / n, {"w": t}) for n, t in (("a", x), ("b", y)))
    assert kinds(intarsia.verify(a, b)) == {"shards-permuted", "rounded"}


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
def test_the_side_that_was_rounded_is_told_in_one_fault(tmp_path: Path, turned: bool) -> None:
    shifted, narrow = layers(lambda i, n: max(i - 1, 0)), each(r"layers.*proj", bf16)
    found = held(tmp_path, shifted, narrow, turned=turned)
    (told,) = [f.text for f in found.faults if f.kind == "rounded"]
    assert told.startswith("A is B rounded to BF16" if turned else "B is A rounded to BF16")


def test_rows_that_the_other_side_does_not_hold_have_no_number(tmp_path: Path) -> None:
    x = normal_tensor((32, 24), torch.float32, 1)
    y = x[torch.randperm(32, generator=torch.Generator().manual_seed(2))]
    y[4:8] = 0
    a, b = (write_hf(tmp_path / n, {"w": t}) for n, t in (("a", x), ("b", y)))
    (fault,) = intarsia.verify(a, b).faults
    assert fault.kind == "rows-permuted"
    assert re.search(r"\[(\d+, ){4}(\?, ){4}(\d+, ){4}…\] of A, \? for what A does not", fault.text)
