"""What the search says of single tensors, and what it leaves unsaid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.diagnosis import PATIENCE, evidence, sample, search
from intarsia.checking.pair.comparison import Comparison
from intarsia.run.budget import Budget
from tests.checkpoints import normal_tensor, write_hf

W = normal_tensor((48, 40), torch.float32, 3)


def compared(tmp_path: Path, x: torch.Tensor, y: torch.Tensor, name: str = "w") -> Comparison:
    a = write_hf(tmp_path / "a", {name: x.contiguous(), "other": torch.ones(3)})
    b = write_hf(tmp_path / "b", {name: y.contiguous(), "other": torch.ones(3)})
    return intarsia.verify(a, b)


def named(found: Comparison) -> list[str]:
    return [fault.kind for fault in found.faults]


def test_noise_is_explained_by_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, W, W + 0.01 * normal_tensor(W.shape, torch.float32, 4))
    assert named(found) == ["unexplained"]
    assert "nothing known explains" in found.different[0].diagnosis


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_steps_of_training_are_no_factor_and_no_constant(tmp_path: Path, dtype) -> None:
    step = 1 + 0.004 * normal_tensor(W.shape, torch.float32, 4)
    assert named(compared(tmp_path, W.to(dtype), (W * step).to(dtype))) == ["unexplained"]


def test_a_few_elements_are_no_block_of_a_rank(tmp_path: Path) -> None:
    other = W.clone()
    other[3, 5:8] = 9
    found = compared(tmp_path, W, other)
    assert named(found) == ["unexplained"]
    assert "row 3, columns 5 to 7" in found.different[0].diagnosis


def test_one_flipped_bit_is_called_that(tmp_path: Path) -> None:
    other = W.clone()
    other.view(torch.int32)[7, 7] ^= 1 << 12
    assert named(compared(tmp_path, W, other)) == ["bits-flipped"]


def test_numbers_without_their_signs_are_no_flipped_bits(tmp_path: Path) -> None:
    for name, a, b, side in (("b", W, W.abs(), "B is A"), ("a", W.abs(), W, "A is B")):
        (tmp_path / name).mkdir()
        found = compared(tmp_path / name, a, b)
        assert named(found) == ["signs-flipped"]
        assert found.different[0].diagnosis.startswith(f"{side} without its signs: explains")
    positive = W.abs() + 1
    other = positive.clone()
    other[5, 5] *= -1
    assert named(compared(tmp_path, positive, other)) == ["bits-flipped"]


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_norm_that_was_centred_on_another_value_is_rounded(
    tmp_path: Path, dtype: torch.dtype, by: int
) -> None:
    norm = normal_tensor((96,), torch.float32, 5).to(dtype)
    there = norm + by - by
    for name, x, y, said in (("b", norm, there, "B is A"), ("a", there, norm, "A is B")):
        (tmp_path / name).mkdir()
        found = compared(tmp_path / name, x, y)
        assert named(found) == ["rounded"]
        how = "less" if by < 0 else "plus"
        assert found.different[0].diagnosis.startswith(
            f"{said} rounded {how} one, and back: a norm"
        )


def test_integers_beside_a_rounded_tensor_are_not_asked_whether_they_were_rounded(
    tmp_path: Path,
) -> None:
    w, k = normal_tensor((32, 32), torch.float32, 1), torch.arange(512).reshape(16, 32)
    other = torch.randperm(512, generator=torch.Generator().manual_seed(1)).reshape(16, 32) * 3
    left = write_hf(tmp_path / "a", {"w": w, "k": k})
    right = write_hf(tmp_path / "b", {"w": w.half().float(), "k": other})
    kinds = {d.tensor: d.kind for d in intarsia.verify(left, right).different}
    assert kinds == {"w": "rounded", "k": "unexplained"}


def test_a_diagnosis_counts_what_it_explains(tmp_path: Path) -> None:
    other = W.reshape(2, 24, 40).flip(0).reshape(48, 40).clone()
    other[0, 0] += 1
    (difference,) = compared(tmp_path, W, other).different
    assert difference.kind == "shards-permuted"
    assert "explains 1,919 of 1,920 differing elements" in difference.diagnosis


def test_a_block_of_a_grid_is_named_on_both_axes(tmp_path: Path) -> None:
    other = W.clone()
    other[24:36, 20:] = normal_tensor((12, 20), torch.float32, 9)
    found = compared(tmp_path, W, other)
    assert named(found) == ["rank-stale"]
    assert "block 2 of 4 on axis 0 and block 1 of 2 on axis 1" in found.faults[0].text


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda x: x.T, "transposed"),
        (lambda x: x.reshape(24, 80), "reshaped"),
        (lambda x: x[:40], "rows-missing"),
        (lambda x: torch.cat([x, torch.zeros(16, 40)]), "rows-missing"),
        (lambda x: x[24:], "rows-missing"),
        (lambda x: torch.cat([x[:20], torch.zeros(5, 40), x[20:], torch.zeros(5, 40)]), "shifted"),
        (lambda x: torch.cat([x[7:], x[:9]]), "unexplained"),
        (lambda x: torch.ones(3, 3), "unexplained"),
    ],
)
def test_other_shapes_are_explained_too(tmp_path: Path, change, kind: str) -> None:
    found = compared(tmp_path, W, change(W))
    assert named(found) == [kind]
    assert found.different[0].kind == kind


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_what_is_cut_within_an_element_and_filled_up_is_zero_from_there_on(
    tmp_path: Path, kept: int
) -> None:
    raw = W.view(torch.uint8).reshape(-1).clone()
    raw[4 * 1130 + kept :] = 0
    other = raw.view(torch.float32).reshape(W.shape)
    found = compared(tmp_path / "1", W, other)
    assert named(found) == ["rank-zero"]
    said = "is zero where it differs, but for bytes of the first element"
    assert f"elements 1,130 to 1,919 of B {said}" in found.faults[0].text
    assert f"of A {said}" in compared(tmp_path / "2", other, W).faults[0].text
    other.view(-1)[1130] = 3.0
    assert named(compared(tmp_path / "3", W, other)) == ["rank-stale"]


def test_inverted_numbers_are_told(tmp_path: Path) -> None:
    scales = 1e-4 * (1 + torch.rand(48, 40, generator=torch.Generator().manual_seed(2)))
    found = compared(tmp_path, scales, 1 / scales)
    assert named(found) == ["scaled"]
    assert found.different[0].diagnosis.startswith("B is one divided by A: explains 1,920 of 1,920")


def test_rows_between_the_others_are_counted_on_the_side_that_has_them(tmp_path: Path) -> None:
    padded = torch.cat([torch.cat([x, torch.zeros(5, 40)]) for x in W.chunk(2)])
    said = "has 10 rows more, [24:29), [53:58); the others are those of"
    found, back = compared(tmp_path / "1", W, padded), compared(tmp_path / "2", padded, W)
    assert f"B {said} A" in found.different[0].diagnosis
    assert f"A {said} B" in back.different[0].diagnosis
    assert compared(tmp_path / "3", W, W[24:]).different[0].diagnosis.endswith("B is rows [24:48) of A")  # fmt: skip


@pytest.mark.parametrize(
    ("filled", "text"),
    [
        (lambda x: torch.cat([x[:20], torch.zeros(3, 40), x[20:-3]]), "rows from 20 on shifted by 3: explains"),
        (lambda x: torch.cat([x[:20], x[23:], torch.zeros(3, 40)]), "rows from 20 on shifted by -3: explains"),
        (lambda x: torch.cat([x[:20], 9 + x[:3], x[20:-3]]), "rows from 20 on shifted by 3; the rest is unexplained"),
    ],
)  # fmt: skip
def test_rows_that_are_put_between_others_shift_what_follows(tmp_path: Path, filled, text: str) -> None:  # fmt: skip
    found = compared(tmp_path, W, filled(W))
    assert found.different[0].diagnosis.startswith(text)
    assert named(found) == ["shifted"]


@pytest.mark.parametrize(
    ("name", "rows", "kind"),
    [
        ("model.embed_tokens.weight", 47, "padding"),
        ("lm_head.weight", 42, "padding"),
        ("lm_head.bias", 42, "padding"),
        ("embed_out.weight", 42, "padding"),
        ("lm_head.weight", 41, "rows-missing"),
        ("lm_head.weight", 24, "rows-missing"),
        ("model.layers.0.self_attn.q_proj.weight", 47, "rows-missing"),
    ],
)
def test_rows_that_one_side_lacks_are_padding_at_the_end_of_a_vocabulary_alone(
    tmp_path: Path, name: str, rows: int, kind: str
) -> None:
    found = compared(tmp_path, W, W[:rows].clone(), name)
    assert named(found) == [kind]
    assert (
        "ignore" not in found.faults[0].next or "if no token has these rows" in found.faults[0].next
    )


@pytest.mark.parametrize(
    ("equal", "columns", "kind"),
    [(0, 40, "padding"), (0, 2, "unexplained"), (1, 40, "unexplained")],
)
def test_last_rows_of_a_vocabulary_may_be_padding_where_they_differ_all_over(
    tmp_path: Path, equal: int, columns: int, kind: str
) -> None:
    other = W.clone()
    other[-6 : len(W) - equal, :columns] = normal_tensor((6 - equal, columns), torch.float32, 9)
    assert named(compared(tmp_path, W, other, "lm_head.weight")) == [kind]


@pytest.mark.parametrize(("rows", "kind"), [(11, "padding"), (12, "rank-zero")])
def test_last_rows_of_a_vocabulary_that_are_zero_are_padding_unless_they_are_a_quarter(
    tmp_path: Path, rows: int, kind: str
) -> None:
    other = W.clone()
    other[-rows:] = 0
    assert named(compared(tmp_path, W, other, "lm_head.weight")) == [kind]


def test_rearranged_and_rounded_at_once(tmp_path: Path) -> None:
    square = W[:40]
    (difference,) = compared(tmp_path, square, square.T.bfloat16()).different
    assert difference.kind == "transposed"
    assert "F32 in A, BF16 in B" in difference.diagnosis


def test_both_fused_projections_of_a_stack_swapped(tmp_path: Path) -> None:
    x = normal_tensor((4, 6, 10), torch.float32)
    halves = torch.cat(x.chunk(2, -1)[::-1], -1)
    assert named(compared(tmp_path, x, halves, "mlp.experts.gate_up_proj")) == ["gate-up-swapped"]


def test_names_that_stay_unexplained_are_not_searched_for_ever(tmp_path: Path) -> None:
    names = [f"model.layers.{k}.mlp.down_proj.weight" for k in range(6)]
    a = {n: normal_tensor((9, 7), torch.float32, k) for k, n in enumerate(names)}
    b = {n: normal_tensor((9, 7), torch.float32, 50 + k) for k, n in enumerate(names)}
    found = intarsia.verify(write_hf(tmp_path / "a", a), write_hf(tmp_path / "b", b))
    skipped = [d for d in found.different if "not searched" in d.diagnosis]
    assert len(skipped) == len(names) - PATIENCE
    (fault,) = found.faults
    assert fault.kind == "unexplained"
    assert len(fault.tensors) == len(names)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.reshape(4, 2, 6, 40).transpose(1, 2).reshape(48, 40),
        lambda x: torch.cat([x[24:], x[:24]]),
        lambda x: torch.cat([x[:24], normal_tensor((24, 40), torch.float32, 8)]),
        lambda x: x.reshape(-1).roll(5).reshape(48, 40),
        lambda x: x * 3,
    ],
    ids=["single rows", "shards", "stale", "flat", "scaled"],
)
def test_a_sample_and_small_windows_come_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change
) -> None:
    def told(found: Comparison) -> list[str]:
        return [f.kind + f.text for f in found.faults]

    whole = told(compared(tmp_path / "1", W, change(W)))
    for room in (evidence, search, sample):
        monkeypatch.setattr(room, "SMALL", 64)
    monkeypatch.setattr(sample, "SAMPLE_WIDTH", 16)
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: 700))
    assert told(compared(tmp_path / "2", W, change(W))) == whole


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_numbers_too_large_to_be_squared_are_searched_without_a_warning(tmp_path: Path) -> None:
    a, b = (1e200 * normal_tensor((40, 30), torch.float64, k) for k in range(2))
    assert named(compared(tmp_path, a, b)) == ["unexplained"]


def test_faults_go_to_json(tmp_path: Path) -> None:
    (fault,) = compared(tmp_path, W, -W).as_json()["faults"]
    assert fault["kind"] == "signs-flipped"
    assert fault["tensors"] == ["w"]
    assert {"where", "text"} <= fault.keys()
    assert re.fullmatch("[a-z]+(-[a-z]+)*", fault["kind"])
