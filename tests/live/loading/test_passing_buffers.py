"""Buffers that no checkpoint holds, after a load into a model on `meta`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import GemmaConfig, GemmaForCausalLM, GPT2Config, GPT2LMHeadModel

import intarsia
from intarsia.live.loading.materialise import materialise

GEMMA = GemmaConfig(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, pad_token_id=0,
)  # fmt: skip
IDS = torch.arange(1, 9)[None]


def on_meta(kind: Any, config: Any) -> Any:
    with torch.device("meta"):
        return kind(config)


def test_a_scale_beside_a_parameter_is_computed(tmp_path: Path) -> None:
    GemmaForCausalLM(GEMMA).save_pretrained(tmp_path)
    model = on_meta(GemmaForCausalLM, GEMMA)
    report = intarsia.load(tmp_path, into=model)
    assert report.complete
    wanted = GemmaForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(model.eval()(IDS).logits, wanted(IDS).logits)


class Inner(nn.Module):
    """Buffers of several types beside a parameter, in a model with its own initialisation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        for name, dtype in {
            "turn": torch.complex64,
            "mask": torch.bool,
            "ids": torch.int64,
        }.items():
            self.register_buffer(name, torch.empty(3, dtype=dtype), persistent=False)
        self.register_buffer("partly", torch.empty(4), persistent=False)
        self.register_buffer("scalar", torch.empty(()), persistent=False)


class Model(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Inner):
            module.weight.data.normal_()
            module.turn.fill_(1j)  # type: ignore[operator]
            module.mask.fill_(True)  # type: ignore[operator]
            module.ids.copy_(torch.arange(3))  # type: ignore[operator]
            module.scalar.fill_(2.5)  # type: ignore[operator]
            module.partly[:2] = 1.0  # type: ignore[index]


class Outer(Model):
    def _init_weights(self, module: nn.Module) -> None:
        raise KeyError("a module of another model")


def test_the_nearest_model_around_a_module_computes_its_buffers() -> None:
    model = on_meta(lambda inner: Outer(Model(inner())), Inner)
    torch.rand(1)  # not where seeding leaves it
    drawn = torch.random.get_rng_state()
    left = materialise(model)
    inner = model.inner.inner
    assert left == ["inner.inner.partly"]  # only a part of it was written
    assert inner.turn.tolist() == [1j, 1j, 1j]
    assert inner.mask.tolist() == [True, True, True]
    assert inner.ids.tolist() == [0, 1, 2]
    assert float(inner.scalar) == 2.5
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_weights_with_values_are_not_drawn_anew() -> None:
    inner = Inner()
    for name in list(inner._buffers):
        inner._buffers[name] = inner._buffers[name].to("meta")  # type: ignore[union-attr]
    model = Model(inner)
    materialise(model)
    assert inner.weight.tolist() == [1.0, 1.0]
    assert not inner.ids.is_meta


@pytest.mark.parametrize("extra", ["transformer.h.0.attn.bias", "transformer.rotary_emb.inv_freq"])
def test_a_buffer_on_disk_that_the_model_computes_is_passed_over(
    tmp_path: Path, extra: str
) -> None:
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {extra: torch.ones(1, 1, 16, 16)}, file, {"format": "pt"})
    model = on_meta(GPT2LMHeadModel, config)
    if extra.endswith("inv_freq"):  # GPT-2 computes no such thing
        with pytest.raises(intarsia.IntarsiaError, match=r"1 tensors of .* are not in the model"):
            intarsia.load(tmp_path, into=model)
        return
    report = intarsia.load(tmp_path, into=model)
    assert any(extra in note and "the model computes" in note for note in report.notes)


@pytest.mark.parametrize("kind", [nn.Buffer, nn.Parameter])
def test_a_passing_name_of_what_a_state_dict_has_has_its_memory(kind: Any, tmp_path: Path) -> None:
    def made() -> Any:
        inner, model = nn.Module(), nn.Module()
        model.table = kind(torch.rand(3))
        inner.register_buffer("again", model.table, persistent=False)
        return nn.ModuleList([inner, model])

    wanted = made()
    intarsia.save(tmp_path / "ck", wanted)
    with torch.device("meta"):
        model = made()
    assert intarsia.load(tmp_path / "ck", into=model).complete
    assert model[0].again is model[1].table
    assert type(model[1].table) is type(wanted[1].table)
    assert torch.equal(model[1].table, wanted[1].table)


def test_no_dtensor_is_drawn(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = on_meta(GemmaForCausalLM, GEMMA)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        assert materialise(model) == []
    finally:
        distributed.destroy_process_group()
    assert not [str(x.message) for x in recwarn if "DTensor random" in str(x.message)]
