"""Names that Transformers finds are taken whatever their age and head; what it would make anew is named."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import transformers

from intarsia.errors import FamilyError
from intarsia.family.from_transformers.model_names import ModelNames
from intarsia.family.from_transformers.rules import shapes_on_disk

BERT: dict[str, Any] = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 20, "max_position_embeddings": 8,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 8, "d_kv": 4, "d_ff": 12,
    "num_layers": 2, "num_heads": 2, "vocab_size": 20,
}  # fmt: skip
ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_moe", "architectures": ["Ernie4_5_MoeForCausalLM"], "hidden_size": 8,
    "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": 20, "moe_num_experts": 3, "moe_k": 2, "moe_intermediate_size": 4,
    "moe_layer_start_index": 0, "moe_num_shared_experts": 1, "tie_word_embeddings": False,
}  # fmt: skip


def names_of(config: dict[str, Any], **changes: Any) -> list[str]:
    """What `save_pretrained` writes."""
    return [*shapes_on_disk(ModelNames.of(config | changes, ()).model)]


def judged(config: dict[str, Any], names: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Names that are not found, those of layers that are missed, and other parameters."""
    model = ModelNames.of(config, names)
    taken = model.taken(names)
    layers, others = model.missing(taken)
    return [n for n in names if n not in taken], [*layers], others


@pytest.mark.parametrize("config", [BERT, T5, ERNIE], ids=lambda c: c["model_type"])
def test_what_a_model_saves_is_all_found(config: dict[str, Any]) -> None:
    model = ModelNames.of(config, ()).model
    module = [name for name in model.shapes if name not in model.tied]
    for names in (names_of(config), module):
        assert judged(config, names) == ([], [], [])


def test_a_class_of_another_type_is_not_asked_for_its_names() -> None:
    # Transformers saves ShieldGemma2 as a Gemma3, whose names are others, and loads it by its type.
    with pytest.raises(FamilyError, match="BertForMaskedLM, which is no class for 'electra'"):
        ModelNames.of(BERT | {"model_type": "electra"}, ())


def test_names_of_old_and_buffers_of_old_are_no_fault() -> None:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    names = names_of(BERT)
    for new, was in old.items():
        names = [name.replace(new, was) for name in names]
    buffer = "bert.embeddings.position_ids"
    assert judged(BERT, [*names, buffer]) == ([buffer], [], [])


def test_a_model_without_its_head_or_with_another_one_is_found() -> None:
    base = names_of(BERT, architectures=["BertModel"])
    strange, layers, others = judged(BERT, base)
    assert strange == [name for name in base if name.startswith("pooler.")]
    assert layers == []
    assert others
    assert all(name.startswith("cls.") for name in others)
    headed = names_of(BERT, architectures=["BertForSequenceClassification"])
    assert judged(BERT, headed)[1] == []


def test_without_a_class_nothing_of_the_layers_is_missed() -> None:
    config = T5 | {"architectures": None}
    encoder = names_of(T5, architectures=["T5EncoderModel"])
    assert judged(config, encoder)[1] == []
    assert judged(T5, encoder)[1], "its class has a decoder"


def test_without_a_class_the_names_may_be_those_of_the_base_model() -> None:
    config = {"model_type": "llama4_text", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 20, "num_local_experts": 2,
              "intermediate_size_mlp": 8}  # fmt: skip
    base = names_of(config, architectures=["Llama4TextModel"])
    assert judged(config, base)[0] == []


@pytest.mark.parametrize("fused", [False, True])
def test_experts_and_layers_that_are_not_stored_are_missed_by_the_names_of_the_hub(
    fused: bool,
) -> None:
    names = [*ModelNames.of(ERNIE, ()).model.shapes] if fused else names_of(ERNIE)
    less = [name for name in names if not name.startswith("model.layers.1.")]
    disk = [name for name in names_of(ERNIE) if name.startswith("model.layers.1.")]
    strange, layers, others = judged(ERNIE, less)
    assert (strange, sorted(layers), others) == ([], sorted(disk), [])
    lost = "model.layers.0.mlp.experts.gate_up_proj" if fused else "model.layers.0.mlp.experts.2."
    found = judged(ERNIE, [name for name in names if not name.startswith(lost)])[1]
    halves = ("gate_proj", "up_proj") if fused else ("down_proj", "gate_proj", "up_proj")
    experts = range(3) if fused else [2]
    at = "model.layers.0.mlp.experts"
    assert {*found} == {f"{at}.{k}.{half}.weight" for k in experts for half in halves}


def test_a_section_is_what_stands_before_names_of_the_model() -> None:
    names = names_of(ERNIE)
    model = ModelNames.of(ERNIE, ())
    assert model.sections([f"net.weights.{name}" for name in names]) == {"net.weights": len(names)}
    assert model.sections(["step", "discriminator.0.weight"]) == {}
    two = [*(f"a.{name}" for name in names), *(f"b.module.{name}" for name in names[:3])]
    assert model.sections(two) == {"a": len(names), "b.module": 3}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"auto_map": {"AutoModel": "code.Model"}}, "by auto_map"),
        *(
            ({"vision_config": {"backbone_config": value}}, "by backbone_config")
            for value in (
                {"model_type": "timm_backbone"},
                {"model_type": "mine"},
                {"depth": 2},
                "resnet50",
            )
        ),
        ({"architectures": ["RewardModel"]}, "no class RewardModel"),
        ({"model_type": "no_such_type"}, "unknown to Transformers"),
        ({"num_attention_heads": 3}, "cannot build"),
    ],
)
def test_what_transformers_cannot_tell_is_not_judged(change: dict[str, Any], match: str) -> None:
    with pytest.raises(FamilyError, match=match):
        ModelNames.of(BERT | change, ())


def test_a_backbone_of_transformers_has_the_shapes_that_its_configuration_gives() -> None:
    backbone = {
        "model_type": "resnet",
        "embedding_size": 6,
        "hidden_sizes": [8, 12],
        "depths": [1, 1],
    }
    config = {
        "model_type": "upernet", "architectures": ["UperNetForSemanticSegmentation"], "hidden_size": 8,
        "backbone_config": backbone | {"out_features": ["stage1", "stage2"], "backbone": "else/where"},
        "auxiliary_in_channels": 8, "auxiliary_channels": 4,
    }  # fmt: skip
    shapes = ModelNames.of(config | {"backbone_config": backbone}, ()).model.shapes
    assert shapes["backbone.embedder.embedder.convolution.weight"] == (6, 3, 7, 7)
    with pytest.raises(FamilyError, match=r"by backbone$"):
        ModelNames.of(config, ())


def test_a_head_of_numbered_modules_may_be_another() -> None:
    config = {
        "model_type": "wav2vec2", "architectures": ["Wav2Vec2ForXVector"], "hidden_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 8,
        "conv_dim": [8, 8], "conv_kernel": [3, 3], "conv_stride": [2, 2], "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
    }  # fmt: skip
    strange, layers, others = judged(config, names_of(config, architectures=["Wav2Vec2Model"]))
    assert (strange, layers) == ([], [])
    assert any(name.startswith("tdnn.0.") for name in others)


@pytest.mark.parametrize("prefix", ["dinov2.", ""])
def test_a_tensor_that_transformers_splits_is_all_its_parts(prefix: str) -> None:
    config = {
        "model_type": "dinov2", "architectures": ["Dinov2ForImageClassification"], "hidden_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4, "use_swiglu_ffn": True,
    }  # fmt: skip
    names = [prefix + name.removeprefix("dinov2.") for name in names_of(config)]
    names = [name.replace(f"{prefix}classifier", "classifier") for name in names]
    assert any("weights_in" in name for name in names)
    assert judged(config, names) == ([], [], [])
    less = [name for name in names if "weights_in.weight" not in name]
    assert len(judged(config, less)[1]) == 1


def test_building_a_model_prints_nothing() -> None:
    records, handler = list[logging.LogRecord](), logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger, was = logging.getLogger("transformers"), transformers.logging.get_verbosity()
    logger.addHandler(handler)
    transformers.logging.set_verbosity_warning()
    try:
        ModelNames.of(BERT | {"architectures": ["BertLMHeadModel"]}, ())
        assert transformers.logging.get_verbosity() == transformers.logging.WARNING
        assert records == []
    finally:
        transformers.logging.set_verbosity(was)
        logger.removeHandler(handler)
