"""A mapped load gives the numbers that any load gives, leaves the file alone, and refuses what cannot be mapped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3MoeConfig

import intarsia
from intarsia.errors import ChangedError, FormatError, UsageError

LLAMA: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip


def llama(dtype: torch.dtype = torch.bfloat16, **more: Any) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        LlamaConfig(**LLAMA, **more), dtype=dtype
    )
    return model


def on_meta(model: PreTrainedModel) -> PreTrainedModel:
    with torch.device("meta"):
        found: PreTrainedModel = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype)
    return found


def same(a: nn.Module, b: nn.Module) -> bool:
    held, wanted = a.state_dict(), b.state_dict()
    return held.keys() == wanted.keys() and all(torch.equal(held[n], wanted[n]) for n in wanted)


def mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("begin", ["meta", "memory"])
def test_a_mapped_model_is_the_model(tied: bool, begin: str, tmp_path: Path) -> None:
    wanted = llama(tie_word_embeddings=tied)
    wanted.save_pretrained(tmp_path / "hf")
    model = on_meta(wanted) if begin == "meta" else llama(tie_word_embeddings=tied)
    report = intarsia.load(tmp_path / "hf", into=model, mapped=True)
    assert same(model, wanted)
    assert report.complete
    assert report.mapped_bytes == report.held_bytes > 0
    assert str(tmp_path / "hf" / "model.safetensors") in mapped_files()
    tokens = torch.arange(6)[None]
    assert torch.equal(model(tokens).logits, wanted(tokens).logits)
    assert tied == (model.lm_head.weight is model.model.embed_tokens.weight)


def test_training_a_mapped_model_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    wanted = llama(torch.float32)
    wanted.save_pretrained(tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    before = file.read_bytes()
    model = on_meta(wanted)
    intarsia.load(tmp_path / "hf", into=model, mapped=True)
    for each in (wanted, model):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each(torch.arange(6)[None], labels=torch.arange(6)[None]).loss.backward()
        optimizer.step()
    assert same(model, wanted)
    assert not torch.equal(*(x[0] for x in weights(model, tmp_path)))
    assert file.read_bytes() == before
    intarsia.save(tmp_path / "saved", model)
    again = on_meta(wanted)
    intarsia.load(tmp_path / "saved", into=again)
    assert same(again, wanted)


def weights(model: PreTrainedModel, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with intarsia.open(folder / "hf") as checkpoint:
        return model.lm_head.weight, checkpoint["lm_head.weight"][...]


def test_a_live_checkpoint_is_mapped_with_its_optimizer_read(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    intarsia.save(tmp_path / "dcp", model, optimizer)
    again = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    other = torch.optim.AdamW(again.parameters())
    report = intarsia.load(tmp_path / "dcp", again, other, mapped=True)
    assert same(again, model)
    assert report.state_tensors == 12
    assert report.mapped_bytes == sum(x.nbytes for x in model.parameters()) < report.held_bytes
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(optimizer.state[a]["exp_avg"], other.state[b]["exp_avg"])


def test_a_model_of_inference_mode_is_mapped(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "a", wanted := nn.Linear(4, 4))
    with torch.inference_mode():
        model = nn.Linear(4, 4)
    intarsia.load(tmp_path / "a", into=model, mapped=True)
    assert same(model, wanted)


def test_no_gradient_goes_back_through_weights_that_were_mapped_since(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    intarsia.save(tmp_path / "a", model)
    loss = model(torch.ones(2, 4)).sum()
    intarsia.load(tmp_path / "a", into=model, mapped=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    model(torch.ones(2, 4)).sum().backward()


def test_a_file_that_takes_the_place_of_a_mapped_one_changes_nothing(tmp_path: Path) -> None:
    wanted = llama()
    wanted.save_pretrained(tmp_path / "hf")
    model = on_meta(wanted)
    intarsia.load(tmp_path / "hf", into=model, mapped=True)
    llama().save_pretrained(tmp_path / "other")
    file = tmp_path / "hf" / "model.safetensors"
    os.replace(tmp_path / "other" / "model.safetensors", file)
    file.unlink()
    assert same(model, wanted)


class Untied(nn.Module):
    """Two names of one memory that are two objects."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(4, 4))
        self.b = nn.Parameter(self.a.detach())


def refusals(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    wide, part = torch.zeros(8, 4), torch.zeros(4, 4).t()
    return {
        "stores F32, the model has BF16": ({"w": torch.zeros(4, 4, dtype=torch.bfloat16)}, {}),
        "a part of other memory": ({"w": wide[:4]}, {}),
        "not in row-major order": ({"w": part}, {}),
    }


@pytest.mark.parametrize("why", refusals(Path()))
def test_what_cannot_be_mapped_is_refused_and_left_as_it_was(why: str, tmp_path: Path) -> None:
    intarsia.save(tmp_path / "ck", {"w": torch.ones(4, 4)})
    into, named = refusals(tmp_path)[why]
    with pytest.raises(UsageError, match=f"`w` cannot be mapped: .*{why}"):
        intarsia.load(tmp_path / "ck", into=into, mapped=True, **named)
    assert not into["w"].any()


def test_two_tensors_of_one_memory_are_refused(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "ck", {"a": torch.ones(4, 4), "b": torch.ones(4, 4)})
    with pytest.raises(UsageError, match="`b` cannot be mapped: it shares its memory with `a`"):
        intarsia.load(tmp_path / "ck", into=Untied(), mapped=True)


def test_a_state_dict_is_mapped_only_where_no_module_would_be_left_behind(tmp_path: Path) -> None:
    wanted = nn.Linear(4, 4)
    intarsia.save(tmp_path / "ck", wanted)
    model = nn.Linear(4, 4)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    state = model.state_dict()
    with pytest.raises(UsageError, match="`weight` cannot be mapped: tensors outside of the dict"):
        intarsia.load(tmp_path / "ck", into=state, mapped=True)
    assert all(torch.equal(state[name], x) for name, x in before.items())
    del model
    assert intarsia.load(tmp_path / "ck", into=state, mapped=True).mapped_bytes
    assert all(torch.equal(state[name], x) for name, x in wanted.state_dict().items())
    plain = {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}
    assert intarsia.load(tmp_path / "ck", into=plain, mapped=True).mapped_bytes == 80


def test_fused_experts_are_refused(tmp_path: Path) -> None:
    config = Qwen3MoeConfig(
        **LLAMA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "hf")
    with pytest.raises(UsageError, match="one contiguous stretch"):
        intarsia.load(tmp_path / "hf", into=on_meta(model), mapped=True)


def test_a_file_that_is_too_short_or_changes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intarsia.save(tmp_path / "ck", {"w": torch.ones(400, 40)})
    from intarsia.live import load as loading

    proven = loading.map_tensors
    file = tmp_path / "ck" / "__0_0.distcp"

    def late(*given: Any) -> int:
        os.truncate(file, 100)
        return proven(*given)

    monkeypatch.setattr(loading, "map_tensors", late)
    with pytest.raises((ChangedError, FormatError)):
        intarsia.load(tmp_path / "ck", into={"w": torch.zeros(400, 40)}, mapped=True)


def test_a_tensor_that_begins_within_an_element_is_refused(tmp_path: Path) -> None:
    header = json.dumps(
        {
            "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "w": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        }
    ).encode()
    header = header.ljust(-(-len(header) // 8) * 8)
    (tmp_path / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(9)
    )
    into = {"a": torch.ones(1, dtype=torch.uint8), "w": torch.ones(2)}
    with pytest.raises(UsageError, match="within an element"):
        intarsia.load(tmp_path, into=into, mapped=True)
    assert into["w"].all()


def test_a_shard_that_is_a_stretch_is_mapped_and_one_that_is_not_is_refused(tmp_path: Path) -> None:
    wanted = llama()
    wanted.save_pretrained(tmp_path)
    up, down = (f"model.layers.1.mlp.{name}_proj.weight" for name in ("up", "down"))
    rows = {up: torch.zeros(24, 32, dtype=torch.bfloat16)}
    intarsia.load(tmp_path, into=rows, mesh={"tp": 2}, rank=1, strict=False, mapped=True)
    assert torch.equal(rows[up], wanted.state_dict()[up][24:])
    columns = {down: torch.zeros(32, 24, dtype=torch.bfloat16)}
    with pytest.raises(UsageError, match="one contiguous stretch"):
        intarsia.load(tmp_path, into=columns, mesh={"tp": 2}, rank=1, strict=False, mapped=True)
