"""What configurations say, whichever way they are spelled, and where two of them contradict."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.family import model_types
from intarsia.family.config.defaults import defaults_of
from intarsia.family.config.meaning import contradictions, meaning_of
from tests.checkpoints import llama_config

ROPE = {"rope_type": "yarn", "rope_theta": 77.0, "factor": 4.0}


def fields(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [c.field for c in contradictions(a, b)]


@pytest.mark.parametrize("model_type", sorted({*model_types()} - {"kimi_k2"}))
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    from transformers.models.auto import configuration_auto as auto

    made = auto.CONFIG_MAPPING[model_type]()
    theirs = getattr(made, "text_config", made).to_dict()
    theirs = meaning_of({"model_type": model_type, **theirs})
    unused = {"sliding_window"} if theirs.get("use_sliding_window") is False else set()
    for name, value in defaults_of(model_type).items():
        if name not in {"rope_parameters", *unused}:
            assert theirs[name] == value, name
    rope = dict(theirs["rope_parameters"])
    assert rope == meaning_of({"model_type": model_type})["rope_parameters"]


def test_one_rotation_in_three_spellings() -> None:
    new = llama_config(rope_parameters=ROPE)
    old = llama_config(rope_theta=77, rope_scaling={"type": "yarn", "factor": 4})
    assert meaning_of(new)["rope_parameters"] == meaning_of(old)["rope_parameters"]
    assert not contradictions(new, old)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"rope_theta": 5e5}, "rope_parameters.rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_parameters.rope_type"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_parameters.rope_theta"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)  # fmt: skip
def test_a_field_with_two_values(change: dict[str, Any], field: str) -> None:
    stored = llama_config(sliding_window=None)
    assert field in fields(stored, stored | change)
    assert field in fields(stored | change, stored)


def test_what_one_leaves_out_has_the_default_of_transformers() -> None:
    said = llama_config(rope_theta=10000.0, hidden_act="silu")
    assert not contradictions(said, llama_config())
    assert fields(llama_config(rope_theta=77), llama_config()) == ["rope_parameters.rope_theta"]


def test_harmless_fields_may_differ() -> None:
    other = {
        "transformers_version": "4.1",
        "torch_dtype": "float16",
        "use_cache": False,
        "_name_or_path": "x",
    }
    mine = {"transformers_version": "5.2", "dtype": "bfloat16", "eos_token_id": 7}
    assert not contradictions(llama_config(**other), llama_config(**mine))


def test_a_text_configuration_beside_its_wrapper() -> None:
    text = llama_config(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"])
    outer = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"],
             "text_config": text, "vision_config": {"depth": 2}}  # fmt: skip
    assert not contradictions(outer, text)
    assert fields(outer, text | {"hidden_size": 24}) == ["hidden_size"]
    other = outer | {"vision_config": {"depth": 3}}
    assert fields(outer, other) == ["vision_config.depth"]


def test_the_older_spelling_of_a_rotation_goes_before_the_newer_as_in_transformers() -> None:
    both = llama_config(
        rope_scaling={"type": "linear", "factor": 4.0},
        rope_parameters={"rope_type": "yarn", "factor": 2.0},
    )
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    assert meaning_of(both)["rope_parameters"] == rope


def test_a_rotation_by_layer_has_defaults_in_each_part() -> None:
    said = {"sliding_attention": {"rope_type": "default", "rope_theta": 77.0}}
    rope = meaning_of({"model_type": "gemma3_text", "rope_parameters": said})["rope_parameters"]
    assert rope["full_attention"] == {"rope_type": "default", "rope_theta": 1000000.0}
    assert rope["sliding_attention"]["rope_theta"] == 77.0


def test_what_a_wrapped_text_leaves_out_is_the_default_of_its_own_type() -> None:
    wrapper = {"model_type": "mistral3", "text_config": {"model_type": "mistral", "hidden_size": 8}}
    found = meaning_of(wrapper)
    assert (found["rms_norm_eps"], found["sliding_window"]) == (1e-6, 4096)
    assert found["rope_parameters"]["rope_theta"] == 10000.0
