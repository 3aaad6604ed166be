"""Vision towers keep up with the dialect of the text part, whichever of the two has more layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import intarsia
from tests.checkpoints import assert_same, read_hf, write_hf

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


def trained(model: Any, folder: Path) -> Path:
    """The module's own state dict with a state of each parameter, as torch's optimizers keep it."""
    weights = {name: x.detach().clone() for name, x in model.state_dict().items()}
    state = {f"optimizer.exp_avg.{name}": 2 * x.detach() for name, x in model.named_parameters()}
    config = json.loads(model.config.to_json_string(use_diff=False))
    return write_hf(folder, weights | state, config)


def test_a_tower_under_other_names_is_compared_and_its_state_with_it(tmp_path: Path) -> None:
    module = trained(gemma3(1, 2), tmp_path / "module")
    intarsia.convert(module, tmp_path / "hub", to="hf", dialect="hf")
    for a, b in ((module, tmp_path / "hub"), (tmp_path / "hub", module)):
        report = intarsia.verify(a, b)
        assert report.equal
        assert (report.only_in_a, report.only_in_b) == ((), ())
        assert any("other names than on the hub" in note for note in report.notes)
        assert any("the roots of their digests differ" in note for note in report.notes)
    hub = intarsia.digest(tmp_path / "hub")
    assert hub.root != intarsia.digest(module).root
    assert ["its root is another" in note for note in hub.notes] == [True]
    tensors = read_hf(tmp_path / "hub")
    edited = next(
        name for name in tensors if "vision_tower" in name and name.endswith("q_proj.bias")
    )
    tensors[edited][3] += 1
    write_hf(tmp_path / "edited", tensors, json.loads((module / "config.json").read_text()))
    report = intarsia.verify(tmp_path / "edited", module)
    assert [(d.tensor, d.elements) for d in report.different] == [(edited, 1)]
    assert not any("tie" in d.diagnosis for d in report.different)
    keys = edited.replace("q_proj", "k_proj")
    tensors[edited][3] -= 1
    tensors[edited], tensors[keys] = tensors[keys] + 1, tensors[edited] + 2
    write_hf(tmp_path / "moved", tensors, json.loads((module / "config.json").read_text()))
    for a, b in ((tmp_path / "moved", module), (module, tmp_path / "moved")):
        assert len(intarsia.verify(a, b).different) == 2


def test_a_tower_that_one_side_lacks_is_missed(tmp_path: Path) -> None:
    module = trained(gemma3(1, 2), tmp_path / "module")
    intarsia.convert(module, tmp_path / "hub", to="hf", dialect="hf")
    tensors = read_hf(tmp_path / "hub")
    lost = next(name for name in tensors if "vision_tower" in name and name.endswith("q_proj.bias"))
    del tensors[lost]
    write_hf(tmp_path / "less", tensors, json.loads((module / "config.json").read_text()))
    report = intarsia.verify(tmp_path / "less", module)
    missed = [name for name in report.only_in_b if not name.startswith("optimizer.")]
    assert (report.equal, report.only_in_a, missed) == (False, (), [lost])
