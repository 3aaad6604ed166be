"""Which elements no sound item holds, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from intarsia.checking.alone.headers import read_headers
from intarsia.checking.survey.elements import Elements
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.items import SurveyItem, items_of
from intarsia.value.bits import bits_dtype
from tests.checkpoints import write_hf


def item_of(name: str, x: torch.Tensor, path: Path) -> SurveyItem:
    manifest = read_headers(write_hf(path, {name: x}, None), None).manifest
    assert manifest is not None
    (item,) = items_of(manifest)
    return item


@pytest.mark.parametrize(
    ("dtype", "sign", "absurd", "no_number"),
    [
        (torch.float64, 1 << 63, 0x4197_D784 << 32, 0x7FF0 << 48),
        (torch.float32, 1 << 31, 0x4CBE_BC20, 0x7F80_0000),
        (torch.bfloat16, 1 << 15, 0x4CBF, 0x7F80),
        (torch.float16, 1 << 15, None, 0x7C00),
        (torch.float8_e5m2, 1 << 7, None, 0x7C),
        (torch.float8_e4m3fn, 1 << 7, None, 0x7F),
    ],
)
def test_the_first_element_that_is_wrong_is_counted_and_the_last_that_is_not_is_not(
    dtype: torch.dtype, sign: int, absurd: int | None, no_number: int, tmp_path: Path
) -> None:
    item = item_of("optimizer.exp_avg_sq.w.weight", torch.ones(2, 4).to(dtype), tmp_path / "a")
    stats, elements = ItemStats(item), Elements.of(item)
    most = absurd or no_number
    bits = [0, sign, most - 1, most, no_number - 1, no_number, sign + 1, sign + no_number]
    block = np.array(bits, np.uint64).astype(bits_dtype(elements.dtype)).reshape(2, 4)
    elements.note_odd(stats, block, np.array([0, 1]), 0)
    assert elements.odd_from == most
    no_numbers = (2, (1, 1)) if absurd else (3, (0, 3))
    assert (stats.not_finite.count, stats.not_finite.first) == no_numbers
    assert stats.absurd.count == (2 if absurd else 0)
    assert (stats.negative.count, stats.negative.first) == (2, (1, 2))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_types_with_one_nan_have_no_other(dtype: torch.dtype, tmp_path: Path) -> None:
    item = item_of("w", torch.ones(16, 16).to(dtype), tmp_path / "a")
    stats, block = ItemStats(item), np.arange(256, dtype=np.uint8).reshape(16, 16)
    Elements.of(item).note_odd(stats, block, np.arange(16), 0)
    assert (stats.not_finite.count, stats.not_finite.first) == (1, (8, 0))
    assert not Elements.of(item).odd_from, "any of them may be odd"
