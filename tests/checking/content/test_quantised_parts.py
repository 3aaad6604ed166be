"""What a part of a quantised weight says, the others must be: orders of groups, shapes, bitsandbytes' states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from tests.checkpoints import write_hf
from tests.quantised.models import llama
from tests.quantised.schemes import SCHEMES, Tensors

UP = "model.layers.1.mlp.up_proj."
STATE = f"{UP}weight.quant_state.bitsandbytes__nf4"
Change = Callable[[Tensors], None]


def made(scheme: str, **said: Any) -> tuple[Tensors, dict[str, Any]]:
    tensors, config = llama()
    make, declared = SCHEMES[scheme]
    return make(tensors), config | {"quantization_config": declared | said}


def group_of_the_third_column(group: int) -> Change:
    def change(tensors: Tensors) -> None:
        tensors[f"{UP}g_idx"][2] = group

    return change


def other_shape(*shape: int) -> Change:
    return lambda tensors: tensors.update({f"{UP}weight_shape": torch.tensor(shape)})


def state(**said: Any) -> Change:
    def change(tensors: Tensors) -> None:
        text = json.loads(bytes(tensors[STATE].tolist())) | said
        tensors[STATE] = torch.tensor([*json.dumps(text).encode()], dtype=torch.uint8)

    return change


WRONG: list[tuple[str, Change, str]] = [
    ("gptq", group_of_the_third_column(4), "column 2 into group 4, and `{UP}scales` has 4 groups"),
    ("gptq", group_of_the_third_column(-1), "column 2 into group -1"),
    ("int4", other_shape(64, 64), "says [64, 64], which codes of shape [96, 8]"),
    ("int4", other_shape(96, 72), "says [96, 72], which codes of shape [96, 8]"),
    ("int4", other_shape(96, 63), "says [96, 63], the configuration gives [96, 64]"),
    ("nf4", state(quant_type="fp4"), "says 'fp4', its name 'nf4'"),
    ("nf4", state(shape=[96, 96]), "says [96, 96], and `{UP}weight` holds 6,144 codes"),
    ("nf4", state(shape=[64, 96]), "says [64, 96], the configuration gives [96, 64]"),
    ("nf4 in bf16", state(blocksize=128), "says blocks of 128, which are 48, and `{UP}weight.absmax` has 96"),
    ("nf4", lambda t: t.update({STATE: torch.zeros(9, dtype=torch.uint8)}), "is no JSON"),
    ("nf4", lambda t: t.update({STATE: torch.full((200_000,), ord("["), dtype=torch.uint8)}), "is no JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "change", "text"), WRONG)
@pytest.mark.one_in(3)
def test_a_part_that_contradicts_the_others_is_one_fault_in_every_format(
    tmp_path: Path, scheme: str, change: Change, text: str
) -> None:
    tensors, config = made(scheme)
    assert intarsia.verify(write_hf(tmp_path / "sound", tensors, config))
    change(tensors)
    hf = write_hf(tmp_path / "hf", tensors, config)
    intarsia.convert(hf, tmp_path / "dcp", to="dcp", mesh="tp=2")
    for path in (hf, tmp_path / "dcp"):
        (fault,) = intarsia.verify(path).faults
        assert (fault.kind, len(fault.tensors)) == ("parts-contradict", 1)
        assert text.format(UP=UP) in fault.text


def test_groups_in_the_order_of_activations_are_sound_and_so_is_no_order(tmp_path: Path) -> None:
    tensors, config = made("gptq", desc_act=True)
    for name in (name for name in tensors if name.endswith("g_idx")):
        order = torch.randperm(len(tensors[name]), generator=torch.Generator().manual_seed(1))
        tensors[name] = tensors[name][order].contiguous()
    assert intarsia.verify(write_hf(tmp_path / "gptq", tensors, config))
    tensors, config = made("int4")
    for name in [name for name in tensors if name.endswith("weight_packed")]:
        words = tensors[name].shape[1] * 8
        order = torch.full((words,), -1, dtype=torch.int32)
        tensors[name.replace("packed", "g_idx")] = order
    assert intarsia.verify(write_hf(tmp_path / "no order", tensors, config))
    tensors[f"{UP}weight_g_idx"] = torch.arange(64, dtype=torch.int32) // 16
    (fault,) = intarsia.verify(write_hf(tmp_path / "beyond", tensors, config)).faults
    assert "32 of 64 columns into groups that do not exist" in fault.text


@pytest.mark.parametrize(
    ("scheme", "said", "text"),
    [
        ("nf4", {"bnb_4bit_quant_type": "fp4"}, "codes of bitsandbytes nf4, and the configuration says bitsandbytes fp4 4 bits"),
        ("nf4", {"load_in_4bit": False, "load_in_8bit": True}, "codes of bitsandbytes nf4, and the configuration says bitsandbytes 8 bits"),
        ("int8", {"load_in_4bit": True}, "codes of bitsandbytes 8 bits, and the configuration says bitsandbytes 4 bits"),
        ("int8", {"quant_method": "gptq"}, "codes of bitsandbytes 8 bits, and the configuration says gptq"),
        ("gptq", {"quant_method": "fp8"}, "codes of gptq or awq or eetq, and the configuration says fp8"),
        ("torchao", {"quant_method": "quanto"}, "codes of torchao, and the configuration says quanto"),
    ],
)  # fmt: skip
def test_a_configuration_that_declares_other_codes_is_a_fault(
    tmp_path: Path, scheme: str, said: dict[str, Any], text: str
) -> None:
    tensors, config = made(scheme, **said)
    faults = intarsia.verify(write_hf(tmp_path / "hf", tensors, config)).faults
    (fault,) = [fault for fault in faults if fault.kind == "config-contradicts"]
    assert (fault.where, len(fault.tensors)) == ("config.json", 14)
    assert text in fault.text
