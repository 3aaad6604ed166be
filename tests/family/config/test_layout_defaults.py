"""Sizes that a configuration leaves out, beside the classes of the installed Transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from intarsia.errors import FamilyError
from intarsia.family import model_types, table_for
from intarsia.family.config.fields import Fields
from intarsia.family.config.layout_defaults import layout_defaults_of
from intarsia.format.megatron.configuration.config_to_arguments import arguments_of_config
from tests.family.configs import CASES, DENSE, LATENT, LEFT_OUT, ROUTED, of

HAS_TO_BE_GIVEN = {
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "num_experts", "num_local_experts", "n_routed_experts",
}  # fmt: skip


def class_defaults(model_type: str) -> dict[str, Any]:
    kind = CONFIG_MAPPING[model_type]
    if "text_config" in getattr(kind, "sub_configs", {}):
        kind = type(kind().get_text_config())
    found = {field.name: field.default for field in dataclasses.fields(kind)}
    return found | {new: found[old] for new, old in kind.attribute_map.items() if old in found}


@pytest.mark.parametrize("model_type", sorted({*model_types()} - {"kimi_k2"}))
def test_each_size_is_the_one_that_transformers_takes(model_type: str) -> None:
    theirs = class_defaults(model_type)
    if model_type == "glm4_moe_lite":  # it has lists of layers, and makes them so
        theirs["first_k_dense_replace"] = 1
    for name, size in layout_defaults_of(model_type).items():
        assert theirs[name] == size, name


def test_every_size_that_a_table_reads_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, set[str]] = {}
    plain = Fields.number

    def number(self: Fields, *names: str, default: int | None = None) -> int:
        read.setdefault(self.family, set()).update(names)
        return plain(self, *names, default=default)

    monkeypatch.setattr(Fields, "number", number)
    for case in CASES.values():
        table_for(case | {"note": "not from the cache"})
    for model_type, names in read.items():
        theirs, ours = class_defaults(model_type), layout_defaults_of(model_type)
        for name in names - HAS_TO_BE_GIVEN - {"decoder_sparse_step"}:
            assert name in ours or type(theirs.get(name)) is not int, f"{model_type}: {name}"


@pytest.mark.parametrize(
    ("left_out", "config"),
    [
        ("num_key_value_heads", of("cwm", DENSE, num_attention_heads=16, num_key_value_heads=8)),
        ("num_key_value_heads", of("gemma2", DENSE, num_attention_heads=8, num_key_value_heads=4)),
        ("num_key_value_heads", of("seed_oss", DENSE, num_attention_heads=16, num_key_value_heads=8)),
        ("head_dim", of("qwen3", DENSE, head_dim=128)),
        ("n_shared_experts", of("deepseek_v3", DENSE, ROUTED, LATENT, n_shared_experts=1)),
        ("first_k_dense_replace", of("deepseek_v3", DENSE, ROUTED, LATENT, num_hidden_layers=5, first_k_dense_replace=3)),
        ("q_lora_rank", of("deepseek_v3", DENSE, ROUTED, LATENT, q_lora_rank=1536)),
        ("n_shared_experts", of("glm4_moe", DENSE, ROUTED, n_shared_experts=1)),
        ("first_k_dense_replace", of("glm4_moe_lite", DENSE, ROUTED, LATENT, first_k_dense_replace=1)),
    ],
)  # fmt: skip
def test_a_field_left_out_means_what_the_class_has(left_out: str, config: dict[str, Any]) -> None:
    cut = {name: value for name, value in config.items() if name != left_out}
    whole, trimmed = table_for(config), table_for(cut)
    assert whole is not None
    assert trimmed is not None
    assert trimmed.logical == whole.logical
    assert arguments_of_config(cut).args == arguments_of_config(config).args


def test_null_is_not_left_out() -> None:
    config = of("cwm", DENSE, num_key_value_heads=None)
    table = table_for(config)
    assert table is not None
    assert table.logical["model.layers.0.self_attn.k_proj.weight"] == (40, 24)


def test_mlp_layer_types_say_which_layers_are_dense() -> None:
    kinds = ["dense", "sparse", "dense"]
    config = of("glm4_moe_lite", DENSE, ROUTED, LATENT, mlp_layer_types=kinds,
                first_k_dense_replace=LEFT_OUT)  # fmt: skip
    table = table_for(config)
    assert table is not None
    dense = [f"model.layers.{i}.mlp.gate_proj.weight" in table.logical for i in range(3)]
    assert dense == [True, False, True]
    with pytest.raises(
        FamilyError, match=r"first_k_dense_replace is 2, mlp_layer_types has .* \[0, 2\]"
    ):
        table_for(config | {"first_k_dense_replace": 2})


def test_words_for_layers_after_the_last_are_passed_over() -> None:
    """Prediction layers have a word too in some files, and Transformers reads that of each layer it makes."""
    config = of(
        "glm4_moe_lite", DENSE, ROUTED, LATENT, mlp_layer_types=["dense", "sparse", "sparse"]
    )
    more = config | {"mlp_layer_types": [*config["mlp_layer_types"], "sparse"]}
    ours, theirs = table_for(config), table_for(more)
    assert ours is not None
    assert theirs is not None
    assert ours.logical == theirs.logical
    assert arguments_of_config(more).args == arguments_of_config(config).args
    with pytest.raises(FamilyError, match="mlp_layer_types has 2 entries, num_hidden_layers is 3"):
        table_for(config | {"mlp_layer_types": ["dense", "sparse"]})
