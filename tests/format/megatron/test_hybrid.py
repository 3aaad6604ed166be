"""A HybridModel's checkpoint is read as that of the GPTModel that it computes.

The checkpoints are stand-ins for Megatron's own: a GPTModel's tensors under the names that a HybridModel has for
them.  A real one is in `tests/parity/test_hybrid_model.py`.
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.errors import FamilyError, FormatError
from intarsia.format.megatron.hybrid import gpt_arguments
from tests.checkpoints import read_dcp, write_dcp
from tests.family.configs import CASES
from tests.format.megatron.torch_dist.test_torch_dist import everything, iteration, made

ATTENTION = ("self_attention.", "input_layernorm.")
MODELS = [
    ("qwen3", "*-*-*-"),
    ("qwen3_moe, some dense", "*E*-|*E"),
    pytest.param("qwen3_next", "GEGEGE*E", marks=pytest.mark.slow),
]


def hybrid_names(name: str, x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor of a GPTModel, layer by layer, under its names in a HybridModel."""
    head, layers, rest = name.partition("decoder.layers.")
    if not layers:
        yield name.replace("final_layernorm", "final_norm"), x
        return
    number, _, part = rest.partition(".")
    alone = number.isdigit()
    for layer, one in [(int(number), x)] if alone else enumerate(x):
        part = part if alone else rest
        yield f"{head}{layers}{2 * layer + (not part.startswith(ATTENTION))}.{part}", one


def hybrid(place: Path, model: str, pattern: str, **args: Any) -> Path:
    """What a HybridModel would save of a small model and its optimizer."""
    made(place / "hf", model, states=True)
    intarsia.convert(place / "hf", place / "gpt", to="torch_dist")
    gpt = iteration(place / "gpt")
    names = [pair for name, x in read_dcp(gpt).items() for pair in hybrid_names(name, x)]
    assert len(dict(names)) == len(names)
    out = write_dcp(place / "hybrid", {name: x.clone() for name, x in names})
    shutil.copy(gpt / "metadata.json", out)
    common = torch.load(gpt / "common.pt", weights_only=False)
    layers = len(pattern.replace("|", ""))
    said = {"hybrid_layer_pattern": pattern, "num_layers": layers, "moe_layer_freq": 1} | args
    torch.save(common | {"args": Namespace(**vars(common["args"]) | said)}, out / "common.pt")
    return out


@pytest.mark.parametrize(("model", "pattern"), MODELS)
def test_a_hybrid_model_is_read_as_the_gpt_model_that_it_computes(
    model: str, pattern: str, tmp_path: Path
) -> None:
    found = hybrid(tmp_path, model, pattern)
    assert intarsia.verify(found, tmp_path / "gpt", config=CASES[model])
    assert everything(found, CASES[model]).keys() == everything(tmp_path / "gpt").keys()
    report = intarsia.convert(
        found, tmp_path / "cut", to="torch_dist", mesh="tp=2", config=CASES[model]
    )
    assert any("a HybridModel of" in note for note in report.notes)
    assert intarsia.verify(tmp_path / "cut", tmp_path / "gpt")
    (written,) = (tmp_path / "cut").glob("iter_*/common.pt")
    args = torch.load(written, weights_only=False)["args"]
    assert args.num_layers == CASES[model]["num_hidden_layers"]
    assert args.hybrid_layer_pattern is None


def test_the_configuration_is_made_of_the_arguments_of_a_hybrid_model(tmp_path: Path) -> None:
    found = hybrid(tmp_path, *MODELS[1])
    shutil.rmtree(tmp_path / "gpt")
    with intarsia.open(found) as checkpoint:
        assert checkpoint.family == "qwen3_moe"
        assert checkpoint.config["mlp_only_layers"] == [1]
        assert checkpoint.config["num_hidden_layers"] == 3


def test_the_layers_that_are_explained_are_those_on_disk(tmp_path: Path) -> None:
    found = hybrid(tmp_path, *MODELS[0])
    text = str(intarsia.explain(found, "model.layers.1.mlp.down_proj.weight"))
    assert "decoder.layers.3.mlp.linear_fc2.weight" in text


def test_a_pattern_of_another_model_is_not_taken_for_the_given_one(tmp_path: Path) -> None:
    found = hybrid(tmp_path, *MODELS[0])
    longer = CASES["qwen3"] | {"num_hidden_layers": 6}
    with pytest.raises(FamilyError, match="num_layers is 3"):
        intarsia.open(found, config=longer)


@pytest.mark.parametrize("pattern", ["**--", "-*-*", "M*-M*-", "*-*", "*-*-/MM", "", None])
def test_arguments_of_other_patterns_stay_as_they_are(pattern: str | None) -> None:
    args = {"num_layers": 9, "hybrid_layer_pattern": pattern}
    assert gpt_arguments(args) == args


def test_what_counts_layers_of_both_kinds_counts_those_of_attention() -> None:
    args = {
        "hybrid_override_pattern": "*-*E*-*E",
        "no_rope_freq": 3,
        "window_attn_skip_freq": [1, 1, 0, 1, 1, 1, 0, 1],
        "decoder_first_pipeline_num_layers": 2,
        "hidden_size": 8,
    }
    assert gpt_arguments(args) == {
        "hybrid_override_pattern": None,
        "num_layers": 4,
        "moe_layer_freq": [0, 1, 0, 1],
        "no_rope_freq": [0, 1, 0, 0],
        "window_attn_skip_freq": [1, 0, 1, 0],
        "decoder_first_pipeline_num_layers": None,
        "hidden_size": 8,
    }


def test_a_hybrid_model_of_megatron_fsdp_is_refused_with_what_to_do(tmp_path: Path) -> None:
    made(tmp_path / "hf", "qwen3")
    intarsia.convert(tmp_path / "hf", tmp_path / "gpt", to="fsdp_dtensor")
    (gpt,) = (tmp_path / "gpt").glob("iter_*")
    names = [pair for name, x in read_dcp(gpt).items() for pair in hybrid_names(name, x)]
    found = write_dcp(tmp_path / "hybrid", {name: x.clone() for name, x in names})
    with pytest.raises(FormatError, match="a HybridModel's, which is read from torch_dist alone"):
        intarsia.open(found, config=CASES["qwen3"])
