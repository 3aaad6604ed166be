"""Classes for question answering, of which some call the inner model `transformer`, are read and written as Transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES

import intarsia
from intarsia.family import ANSWERING, model_types

SIZES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 32, "num_experts": 4, "moe_intermediate_size": 8,
    "num_experts_per_tok": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def class_of(model_type: str) -> Any:
    name = MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES.get(model_type)
    return getattr(transformers, name) if name else None


def test_they_are_those_of_the_installed_transformers() -> None:
    kinds = {x: class_of(x) for x in model_types()}
    renamed = [x for x, kind in kinds.items() if kind and kind.base_model_prefix == "transformer"]
    assert sorted(renamed) == sorted(ANSWERING)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen3_moe"])
def test_a_model_goes_to_dcp_and_back_and_is_loaded(model_type: str, tmp_path: Path) -> None:
    kind = class_of(model_type)
    config = transformers.AutoConfig.for_model(model_type, **SIZES)
    model = kind(config)
    model.save_pretrained(tmp_path / "src")
    assert intarsia.verify(tmp_path / "src")
    intarsia.convert(tmp_path / "src", tmp_path / "dcp", to="dcp")
    assert intarsia.verify(tmp_path / "src", tmp_path / "dcp")
    config_json = str(tmp_path / "src" / "config.json")
    intarsia.convert(tmp_path / "dcp", tmp_path / "out", to="hf", dialect="hf", config=config_json)
    back, said = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(said.values())
    loaded = kind(config)
    intarsia.load(tmp_path / "src", into=loaded)
    for other in (back, loaded):
        held = other.state_dict()
        assert all(torch.equal(x, held[name]) for name, x in model.state_dict().items())
