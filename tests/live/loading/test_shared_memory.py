"""A memory that a model has under two names gets one content, or the load is refused before it begins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import intarsia
from intarsia import CoverageError, PrecisionError
from intarsia.family import table_for
from tests.checkpoints import llama_config, model, write_hf
from tests.family.configs import DENSE, LATENT, ROUTED, of
from tests.live.megatron_fsdp_cases import hf_with_optimizer

UNTIED = llama_config(num_hidden_layers=1)
TIED = UNTIED | {"tie_word_embeddings": True}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def tied_model(dtype: torch.dtype = torch.bfloat16) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**TIED)).to(dtype)


def bytes_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: x.clone() for n, x in module.state_dict().items()}


@pytest.mark.parametrize("config", [UNTIED, TIED], ids=["untied", "tied"])
def test_a_head_of_its_own_does_not_go_into_a_tied_model(config: Any, tmp_path: Path) -> None:
    tensors = model(UNTIED)
    source = write_hf(tmp_path / "hf", tensors, config)
    into = tied_model()
    before = bytes_of(into)
    with pytest.raises(CoverageError) as refused:
        intarsia.load(source, into=into)
    text = str(refused.value)
    assert f"`{HEAD}`" in text
    assert f"`{EMBEDDING}`" in text
    assert f"{47 * 20:,} elements" in text
    assert "strict=False" in text
    assert all(torch.equal(x, before[n]) for n, x in into.state_dict().items())
    report = intarsia.load(source, into=into, strict=False)
    assert report.unused == [HEAD]
    assert torch.equal(into.lm_head.weight, tensors[EMBEDDING])


def test_a_tied_tensor_that_the_model_does_not_take_is_left_out_only_where_it_is_equal(
    tmp_path: Path,
) -> None:
    tensors = model(UNTIED)
    source = write_hf(tmp_path / "hf", tensors, TIED)
    equal = write_hf(tmp_path / "equal", tensors | {HEAD: tensors[EMBEDDING].clone()}, TIED)
    whole = tied_model()
    parameters = dict(whole.named_parameters())
    assert HEAD not in parameters
    for into in (parameters, whole.model):
        with pytest.raises(CoverageError, match=f"1 tensors of .* are not in the model: {HEAD}"):
            intarsia.load(source, into=into)
        assert intarsia.load(source, into=into, strict=False).unused == [HEAD]
        assert intarsia.load(equal, into=into).unused == []
    head = {HEAD: torch.zeros_like(tensors[HEAD])}
    with pytest.raises(CoverageError, match=f"are not in the model: .*{EMBEDDING}"):
        intarsia.load(source, into=head)
    assert EMBEDDING not in intarsia.load(equal, into=head, strict=False).unused


def test_the_copy_of_a_prediction_layer_stands_for_no_embedding(tmp_path: Path) -> None:
    config = of("deepseek_v3", DENSE, ROUTED, LATENT, num_nextn_predict_layers=1)
    table = table_for(config)
    assert table is not None
    tensors = {name: torch.randn(shape) for name, shape in table.logical.items()}
    tensors |= {name: tensors[to].clone() for name, to in table.tied.items()}
    source = write_hf(tmp_path / "hf", tensors, config)
    norm = {"model.norm.weight": torch.zeros_like(tensors["model.norm.weight"])}
    unused = intarsia.load(source, into=norm, strict=False).unused
    assert {EMBEDDING, HEAD} <= {*unused}


def test_the_head_of_a_t5_that_is_always_tied_goes_where_the_hint_says(tmp_path: Path) -> None:
    """Transformers ties every new T5, whatever its configuration says, and loads an untied one as it is."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=24, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2)
    saved, into = T5ForConditionalGeneration(config), T5ForConditionalGeneration(config)
    saved.lm_head.weight = nn.Parameter(torch.randn(24, 8))
    saved.save_pretrained(tmp_path)
    step = "lm_head.weight = torch.nn.Parameter(lm_head.weight.clone())"
    with pytest.raises(CoverageError, match=re.escape(step)):
        intarsia.load(tmp_path, into=into)
    exec(step, {"torch": torch, "lm_head": into.lm_head})
    intarsia.load(tmp_path, into=into)
    assert torch.equal(into.lm_head.weight, saved.lm_head.weight)
    assert torch.equal(into.shared.weight, saved.shared.weight)


def test_one_row_that_differs_is_found(tmp_path: Path) -> None:
    tensors = model(UNTIED)
    tensors[HEAD] = tensors[EMBEDDING].clone()
    source = write_hf(tmp_path / "same", tensors, UNTIED)
    into = tied_model()
    report = intarsia.load(source, into=into)
    assert not report.unused
    assert torch.equal(into.lm_head.weight, tensors[EMBEDDING])
    tensors[HEAD][46, 19] += 1
    with pytest.raises(CoverageError, match=r"1 elements\n  first: \[46, 19\]"):
        intarsia.load(write_hf(tmp_path / "other", tensors, UNTIED), into=into)


def test_any_two_names_of_one_memory_are_compared(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(3.0)}
    save_file(tensors, tmp_path / "model.safetensors")
    memory = torch.zeros(2, 3)
    intarsia.load(tmp_path, into={"a": memory, "b": memory[0]})
    assert torch.equal(memory, tensors["a"])
    with pytest.raises(CoverageError, match=r"`a` and `b` share memory"):
        intarsia.load(tmp_path, into={"a": memory, "b": memory[1]})
    with pytest.raises(CoverageError, match=r"share memory"):
        intarsia.load(tmp_path, into={"a": memory, "b": memory[1]}, strict=False)


def test_the_last_row_of_a_view_with_gaps_is_part_of_it(tmp_path: Path) -> None:
    save_file({"columns": torch.ones(4, 2), "row": torch.zeros(4)}, tmp_path / "model.safetensors")
    memory = torch.full((4, 4), 7.0)
    with pytest.raises(CoverageError, match="share memory"):
        intarsia.load(tmp_path, into={"columns": memory[:, :2], "row": memory[3]})
    assert (memory == 7).all()


def test_memory_that_interleaves_without_touching_is_filled(tmp_path: Path) -> None:
    tensors = {"a": torch.rand(4, 2), "b": torch.rand(4, 3)}
    save_file(tensors, tmp_path / "model.safetensors")
    memory = torch.zeros(4, 5)
    intarsia.load(tmp_path, into={"a": memory[:, :2], "b": memory[:, 2:]})
    assert torch.equal(memory, torch.cat([tensors["a"], tensors["b"]], 1))
    with pytest.raises(CoverageError, match="share memory"):
        intarsia.load(tmp_path, into={"a": memory[:, :2], "b": memory[:, 1:4]})


def test_a_model_in_fp32_takes_main_weights_that_round_to_the_weights(tmp_path: Path) -> None:
    tensors = model(TIED)
    source = hf_with_optimizer(tmp_path / "hf", tensors, TIED)
    into = tied_model(torch.float32)
    report = intarsia.load(source, into=into)
    state = load_file(source / "optimizer" / "model.safetensors")
    assert torch.equal(into.model.norm.weight, state["optimizer.master.model.norm.weight"])
    assert not report.changed
    tensors["model.norm.weight"][3] += 1
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    before = bytes_of(into)
    with pytest.raises(PrecisionError, match=r"1 elements of 1 weights.*\n.*norm.weight\[3\]"):
        intarsia.load(source, into=into)
    assert all(torch.equal(x, before[n]) for n, x in into.state_dict().items())
    narrow = tied_model()
    intarsia.load(source, into=narrow)
    assert torch.equal(narrow.model.norm.weight, tensors["model.norm.weight"])


def test_a_load_counts_what_it_rounds_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    save_file({"w": torch.tensor([1.0, 1.001, 1e-30])}, tmp_path / "model.safetensors")
    report = intarsia.load(tmp_path, into={"w": torch.empty(3, dtype=torch.float16)})
    (changed,) = report.changed
    assert (changed.tensor, changed.rounded, changed.underflowed) == ("w", 2, 1)
    assert "2 of 3 elements" in str(report)
    wide = intarsia.load(tmp_path, into={"w": torch.empty(3, dtype=torch.float64)})
    assert not wide.changed
    assert not wide.notes
    save_file({"w": torch.tensor([1.0, 7e4])}, tmp_path / "model.safetensors")
    with pytest.raises(PrecisionError, match=r"`w`\[1\] is 70000.0, which F16 cannot hold"):
        intarsia.load(tmp_path, into={"w": torch.empty(2, dtype=torch.float16)})


@pytest.mark.parametrize(
    "view",
    [torch.zeros(3, 1).expand(3, 4), torch.zeros(6).unfold(0, 4, 1), torch.zeros(1).expand(3, 4)],
    ids=["expanded", "sliding", "one"],
)
def test_a_view_whose_elements_share_memory_is_refused(view: torch.Tensor, tmp_path: Path) -> None:
    intarsia.save(tmp_path / "a", {"x": torch.arange(12.0).reshape(3, 4)})
    with pytest.raises(CoverageError, match="several elements share memory"):
        intarsia.load(tmp_path / "a", into={"x": view})
    assert not view.any()


class Expanded(nn.Module):
    """A module with a buffer whose elements are one, and another under two names."""

    def __init__(self, number: float, base: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("one", torch.tensor([number]).expand(2, 3))
        self.register_buffer("again", self.one if base is None else base.expand(3))
        if base is not None:
            self.register_buffer("base", base)


def test_a_buffer_that_was_expanded_is_filled(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "same", Expanded(7.0))
    model = Expanded(1.0)
    intarsia.load(tmp_path / "same", into=model)
    assert model.one.tolist() == [[7.0] * 3] * 2
    assert model.again is model.one
    intarsia.save(tmp_path / "other", {"one": torch.arange(6.0).reshape(2, 3)})
    model = Expanded(1.0)
    del model.again
    intarsia.load(tmp_path / "other", into=model)
    assert torch.equal(model.one, torch.arange(6.0).reshape(2, 3))


def test_a_buffer_that_is_expanded_from_another_of_the_model_is_refused(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "a", Expanded(7.0, torch.tensor([2.0])))
    model = Expanded(1.0, base := torch.tensor([3.0]))
    with pytest.raises(CoverageError, match="`again` is a view in which several elements"):
        intarsia.load(tmp_path / "a", into=model)
    assert base.tolist() == [3.0]


def test_views_whose_elements_lie_between_each_other_are_filled(tmp_path: Path) -> None:
    wanted = torch.arange(6.0).reshape(2, 3)
    intarsia.save(tmp_path / "a", {"x": wanted})
    for strides in ((3, 2), (2, 4), (1, 2), (10, 3)):
        x = torch.zeros(30).as_strided((2, 3), strides)
        intarsia.load(tmp_path / "a", into={"x": x})
        assert torch.equal(x, wanted), strides
