"""What looks odd and is honest is no fault; what differs from it by little is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import T5Config, T5ForConditionalGeneration

import intarsia
from intarsia.checking.alone.soundness import Soundness
from tests.checkpoints import llama_config, model, normal_tensor, write_hf
from tests.faults.sound import trained, weights, write

CONFIG = llama_config()
VOCABULARIES = ("model.embed_tokens.weight", "lm_head.weight")


def small(**changes: int) -> dict[str, torch.Tensor]:
    return {name: x * 0.05 for name, x in model(CONFIG | changes).items()}


def alone(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Soundness:
    tmp_path.mkdir(parents=True, exist_ok=True)
    save_file({n: x.contiguous() for n, x in tensors.items()}, tmp_path / "model.safetensors")
    return intarsia.verify(tmp_path)


def kinds(report: Soundness) -> list[str]:
    return sorted({fault.kind for fault in report.faults})


def test_zero_rows_that_pad_a_small_vocabulary_are_no_fault(tmp_path: Path) -> None:
    tensors = small(vocab_size=128)
    for name in VOCABULARIES:
        tensors[name][100:] = 0
    report = intarsia.verify(write_hf(tmp_path, tensors, CONFIG | {"vocab_size": 128}))
    assert report.sound, report
    assert "`lm_head.weight` ends with 28 zero rows, as padding does" in report.notes


@pytest.mark.parametrize(("rows", "lost"), [(128, 64), (128, 32), (96, 32), (4096, 1024)])
def test_zero_rows_that_are_a_rank_s_share_are_a_fault(
    rows: int, lost: int, tmp_path: Path
) -> None:
    tensors = small(vocab_size=rows)
    tensors["lm_head.weight"][rows - lost :] = 0
    report = intarsia.verify(write_hf(tmp_path, tensors, CONFIG | {"vocab_size": rows}))
    assert kinds(report) == ["zero-block"]


def test_equal_rows_at_the_end_of_a_vocabulary_are_noted(tmp_path: Path) -> None:
    tensors = small()
    tensors["lm_head.weight"][40:] = 0.125
    report = intarsia.verify(write_hf(tmp_path, tensors, CONFIG))
    assert report.sound, report
    assert any("`lm_head.weight` ends with 7 equal rows" in note for note in report.notes)


def test_positions_that_were_never_reached_have_no_moments(tmp_path: Path) -> None:
    table = normal_tensor((64, 24), torch.float32)
    reached = (torch.arange(64) < 32)[:, None]
    state = {
        f"optimizer.{k}.transformer.wpe.weight": torch.where(reached, x, 0)
        for k, x in (("exp_avg", 0.1 * table), ("exp_avg_sq", table.square()))
    }
    report = alone(tmp_path, {"transformer.wpe.weight": table} | state)
    assert report.sound, report


def test_distances_that_short_texts_never_have_leave_no_moments(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
    }
    net = T5ForConditionalGeneration(
        T5Config(**sizes, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0)
    )
    optimizer = torch.optim.AdamW(net.parameters())
    words = torch.arange(48).reshape(4, 12) % 32
    net(input_ids=words, labels=words).loss.backward()
    optimizer.step()
    intarsia.save(tmp_path / "run", net, optimizer)
    assert not kinds(intarsia.verify(tmp_path / "run"))


def test_a_part_that_was_unfrozen_later_may_be_steps_behind(tmp_path: Path) -> None:
    steps = {f"optimizer.step.visual.blocks.{k}.w": torch.tensor(3.0) for k in range(3)}
    steps |= {f"optimizer.step.model.layers.{k}.w": torch.tensor(9.0) for k in range(3)}
    report = alone(tmp_path / "sound", steps)
    assert report.sound, report
    assert any("visual.*" in note and "step 3" in note for note in report.notes)
    steps["optimizer.step.visual.blocks.1.w"] = torch.tensor(4.0)
    assert kinds(alone(tmp_path / "faulty", steps)) == ["steps-disagree"]


@pytest.mark.parametrize("apart", ["critic.", "model.visual."])
def test_models_beside_each_other_have_steps_of_their_own(apart: str, tmp_path: Path) -> None:
    other = "model.language." if apart.startswith("model.") else "actor."
    leaves = ["embed.weight", *(f"layers.{k}.w" for k in range(3)), "head.weight"]
    steps = {f"optimizer.step.{apart}{leaf}": torch.tensor(3.0) for leaf in leaves}
    steps |= {f"optimizer.step.{other}{leaf}": torch.tensor(9.0) for leaf in leaves}
    report = alone(tmp_path / "sound", steps)
    assert report.sound, report
    (note,) = [note for note in report.notes if "behind" in note]
    assert f"all of {apart}* is at step 3" in note
    for wrong in (f"{apart}head.weight", f"{apart}layers.1.w", f"{other}embed.weight"):
        faulty = steps | {f"optimizer.step.{wrong}": torch.tensor(5.0)}
        assert kinds(alone(tmp_path / wrong, faulty)) == ["steps-disagree"]


def test_main_weights_of_a_run_that_did_not_move_them_are_bf16_numbers(tmp_path: Path) -> None:
    """The first step of a warm-up has a learning rate of zero, and moments."""
    tensors = trained(weights(8))
    for name in tensors:
        if name.startswith("optimizer.master."):
            tensors[name] = tensors[name].bfloat16().float()
        if name.startswith("optimizer.step."):
            tensors[name] = torch.tensor(1.0)
    report = intarsia.verify(write(tensors, tmp_path / "first"))
    assert report.sound, report
    for name in tensors:
        if name.startswith("optimizer.step."):
            tensors[name] = torch.tensor(2.0)
    assert kinds(intarsia.verify(write(tensors, tmp_path / "second"))) == ["masters-rounded"]


def test_main_weights_that_went_through_fp16_are_told_as_such(tmp_path: Path) -> None:
    tensors = trained(weights(8))
    for name in list(tensors):
        if name.startswith("optimizer.master."):
            tensors[name] = (tensors[name] * (1 + 2**-9)).half().float()
            weight = name.removeprefix("optimizer.master.")
            tensors[weight] = tensors[name].half()
    (fault,) = intarsia.verify(write(tensors, tmp_path / "out")).faults
    assert fault.kind == "masters-rounded"
    assert "only fp16 numbers" in fault.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_that_was_never_written_is_told_by_its_numbers(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    tensors = small()
    tensors = {n: x.to(dtype) for n, x in tensors.items()}
    tensors["model.layers.1.mlp.up_proj.weight"][5, 3:7] = 3e23
    (fault,) = intarsia.verify(write_hf(tmp_path, tensors, CONFIG)).faults
    assert fault.kind == "value-implausible"
    assert fault.tensors == ("model.layers.1.mlp.up_proj.weight",)
    assert (fault.where, fault.elements) == ("[5, 3] first", 4)


def test_a_mask_s_large_numbers_are_no_weights(tmp_path: Path) -> None:
    mask = torch.full((8, 8), -3.4e38).triu(1)
    report = alone(tmp_path, {f"h.{k}.attn.mask": mask.clone() for k in range(3)})
    assert report.sound, report


def test_a_mask_of_infinities_is_no_weight(tmp_path: Path) -> None:
    mask = torch.triu(torch.full((16, 16), float("-inf")), 1)
    tensors = {"attn_mask": mask, "proj.weight": normal_tensor((16, 16), torch.float32)}
    assert alone(tmp_path, tensors).sound


def test_a_few_positions_that_no_token_has_are_no_fault(tmp_path: Path) -> None:
    table = normal_tensor((66, 16), torch.float32)
    table[:2] = 0
    assert alone(tmp_path / "two", {"decoder.embed_positions.weight": table}).sound
    table[:33] = 0
    report = alone(tmp_path / "half", {"decoder.embed_positions.weight": table})
    assert kinds(report) == ["zero-block"]


def test_a_last_norm_of_zeros_is_a_fault_where_no_other_norm_is_zero(tmp_path: Path) -> None:
    tensors = small()
    tensors["model.norm.weight"] = torch.zeros_like(tensors["model.norm.weight"])
    report = intarsia.verify(write_hf(tmp_path / "lost", tensors, CONFIG))
    assert [(f.kind, f.tensors) for f in report.faults] == [("zero-tensor", ("model.norm.weight",))]
    for name in tensors:
        if "norm" in name:
            tensors[name] = torch.zeros_like(tensors[name])
    assert intarsia.verify(write_hf(tmp_path / "fresh", tensors, CONFIG)).sound


def test_a_norm_beyond_all_norms_is_told(tmp_path: Path) -> None:
    tensors = small()
    tensors["model.layers.1.input_layernorm.weight"][3] = 3e30
    report = intarsia.verify(write_hf(tmp_path, tensors, CONFIG))
    assert kinds(report) == ["value-implausible"]
