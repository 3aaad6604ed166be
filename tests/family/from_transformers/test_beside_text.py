"""Vision towers keep up with the dialect of the text part, whichever of the two has more layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import intarsia
from tests.checkpoints import assert_same, read_hf

TEXT = {
    "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 64, "head_dim": 4, "max_position_embeddings": 64,
}  # fmt: skip
TOWER = {"hidden_size": 16, "intermediate_size": 24, "patch_size": 8, "num_attention_heads": 2}


def gemma3(text: int, vision: int) -> Any:
    config = transformers.Gemma3Config(
        text_config=TEXT | {"num_hidden_layers": text},
        vision_config=TOWER | {"num_hidden_layers": vision, "image_size": 16},
        mm_tokens_per_image=4,
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def mistral3(text: int, vision: int) -> Any:
    tower = TOWER | {"model_type": "pixtral", "num_hidden_layers": vision, "head_dim": 8}
    config = transformers.Mistral3Config(
        text_config=TEXT | {"model_type": "mistral", "num_hidden_layers": text},
        vision_config=tower | {"image_size": 16},
    )
    return transformers.Mistral3ForConditionalGeneration(config)


@pytest.mark.parametrize("layers", [(1, 4), (4, 1)])
@pytest.mark.parametrize("make", [gemma3, mistral3])
def test_the_modules_names_are_its_own_and_lead_back(
    tmp_path: Path, make: Any, layers: tuple[int, int]
) -> None:
    model = make(*layers)
    model.save_pretrained(tmp_path / "hub")
    intarsia.convert(tmp_path / "hub", tmp_path / "module", to="hf", dialect="hf-module")
    state = model.state_dict()
    found = read_hf(tmp_path / "module")
    assert_same(found, {name: x for name, x in state.items() if name in found})
    assert state.keys() - found.keys() <= {"lm_head.weight"}
    intarsia.convert(tmp_path / "module", tmp_path / "back", to="hf", dialect="hf")
    assert_same(read_hf(tmp_path / "back"), read_hf(tmp_path / "hub"))
    with torch.device("meta"):
        into = type(model)(model.config)
    intarsia.load(tmp_path / "hub", into=into)
    assert_same(into.state_dict(), state)
