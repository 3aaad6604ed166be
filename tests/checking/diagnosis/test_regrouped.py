"""An order of groups that differs is called so, and not another layer's, which nearly always is equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import write_hf
from tests.quantised.models import llama
from tests.quantised.schemes import SCHEMES, Tensors

ORDER = "model.layers.1.mlp.up_proj.g_idx"


def made(path: Path, tensors: Tensors) -> Path:
    return write_hf(path, tensors, llama()[1] | {"quantization_config": SCHEMES["gptq"][1]})


@pytest.mark.parametrize("flipped", [False, True])
def test_columns_that_are_in_other_groups_are_no_other_layers(tmp_path: Path, flipped: bool) -> None:  # fmt: skip
    tensors = SCHEMES["gptq"][0](llama()[0])
    a = made(tmp_path / "a", tensors)
    random = torch.Generator().manual_seed(1)
    order = tensors[ORDER]
    tensors[ORDER] = order[torch.randperm(64, generator=random)].contiguous()
    b = made(tmp_path / "b", tensors)
    (found,) = intarsia.verify(b, a).different if flipped else intarsia.verify(a, b).different
    assert (found.tensor, found.kind) == (ORDER, "rows-permuted")
    count = int((order != tensors[ORDER]).sum())
    assert found.elements == count
    assert found.diagnosis == (
        f"{count} of 64 columns are in other groups; each group has as many columns in A as in B"
    )


def test_an_order_with_other_groups_is_not_explained_by_another_layers(tmp_path: Path) -> None:
    tensors = SCHEMES["gptq"][0](llama()[0])
    a = made(tmp_path / "a", tensors)
    tensors[ORDER] = torch.randint(0, 4, (64,), dtype=torch.int32, generator=torch.Generator().manual_seed(2))  # fmt: skip
    (found,) = intarsia.verify(a, made(tmp_path / "b", tensors)).different
    assert found.kind == "unexplained"


def test_orders_that_are_exchanged_with_their_layers_are_the_layers(tmp_path: Path) -> None:
    tensors = SCHEMES["gptq"][0](llama()[0])
    for k, name in enumerate(name for name in tensors if name.endswith("g_idx")):
        random = torch.Generator().manual_seed(k // 7)
        n = len(tensors[name])
        tensors[name] = tensors[name][torch.randperm(n, generator=random)].contiguous()
    a = made(tmp_path / "a", tensors)
    swapped = {
        n: tensors[n.replace(".0.", ".x.").replace(".1.", ".0.").replace(".x.", ".1.")]
        for n in tensors
    }
    report = intarsia.verify(a, made(tmp_path / "b", swapped))
    assert {fault.kind for fault in report.faults} == {"layers-permuted"}
