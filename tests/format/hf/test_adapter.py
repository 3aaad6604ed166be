"""An adapter whose configuration or factors are of any other form is refused in words of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import intarsia
from intarsia.errors import FamilyError

AT = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIG = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]}


def written(
    path: Path, a: tuple[int, ...] = (4, 16), b: tuple[int, ...] = (16, 4), **said: Any
) -> Path:
    path.mkdir()
    factors = {f"{AT}.lora_A.weight": torch.randn(a), f"{AT}.lora_B.weight": torch.randn(b)}
    save_file(factors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(CONFIG | said))
    return path


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"r": [4]}, r"has rank 4, the configuration says \[4\]"),
        ({"r": 8, "rank_pattern": {"q_proj": [4]}}, r"has rank 4, the configuration says \[4\]"),
        ({"rank_pattern": {"q_proj": 8}}, "has rank 4, the configuration says 8"),
        ({"rank_pattern": {r"0\.self_attn\.q_proj": 8}}, "has rank 4, the configuration says 8"),
        ({"r": 8, "rank_pattern": {"1.self_attn.q_proj": 4}}, "the configuration says 8"),
        ({"r": 8, "rank_pattern": {"proj": 4, "k_proj": 4}}, "the configuration says 8"),
        (
            {"rank_pattern": {"v_proj": 4, "self_attn.q_proj": 2, "q_proj": 4}},
            "configuration says 2",
        ),
        ({"target_modules": [1, "k_proj"]}, r"is no target of the configuration \(1, k_proj\)"),
        ({"layers_to_transform": [[0]]}, r"is in no layer of layers_to_transform \(\[\[0\]\]\)"),
    ],
)
def test_settings_of_other_forms_are_contradictions(
    tmp_path: Path, said: dict[str, Any], text: str
) -> None:
    assert intarsia.verify(written(tmp_path / "sound"))
    with pytest.raises(FamilyError, match=text):
        intarsia.open(written(tmp_path / "a", **said))


@pytest.mark.parametrize(("a", "b"), [((4,), (16, 4)), ((4, 16), (16,)), ((), ())])
def test_factors_that_are_no_matrices_are_named_with_their_shapes(
    tmp_path: Path, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    with pytest.raises(FamilyError, match=r"have shapes \[.*\] and \[.*\], which are no matrices'"):
        intarsia.open(written(tmp_path / "a", a, b))


@pytest.mark.parametrize(
    "patterns",
    [
        {"q_proj": 4},
        {"model.layers.0.self_attn.q_proj": 4, "q_proj": 2},
        {"^model.layers.0.self_attn.q_proj": 4},
        {r"layers\.\d\.self_attn\.q_proj": 4},
        {"k_proj": 2, r".*\.(q|v)_proj": 4},
        {"(a+)+$": 4},
        {"(": 2, "q_proj": 4},
    ],
)
def test_a_rank_is_that_of_the_first_pattern_that_the_module_s_name_ends_with(
    tmp_path: Path, patterns: dict[str, int]
) -> None:
    assert intarsia.verify(written(tmp_path / "a", r=8, rank_pattern=patterns))
