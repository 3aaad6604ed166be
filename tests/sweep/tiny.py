"""A tiny configuration of any model type of Transformers, shrunk from its own defaults by field names.

Layers that differ in what lists say of them are all kept.  A few types have rules of their own
between fields, which no name tells: `_SPECIAL` gives them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

VOCABULARY = 128
WIDTH, HEADS, HEAD, INNER, LAYERS = 64, 4, 16, 96, 2

_IGNORED = re.compile(
    r"architectures|transformers_version|id2label|label2id|dtype|torch_dtype|_name_or_path|problem_type"
)
_TOKEN = re.compile(r".*token_id(s|x)?|.*token_index|.*_id|.*_index|.*_idx")
_PLACES = re.compile(r".*(layers?|layers_indices|indexes|idxs|layer_ids)")
"""Fields that hold numbers of layers."""

_RULES: tuple[tuple[str, int], ...] = (
    (r".*vocab_size.*|.*vocab|num_embeddings|codebook_size", VOCABULARY),
    (r"(num_)?(hidden_|encoder_|decoder_|n_)?layers?|depth|num_blocks|.*num_(hidden_|lstm_)?layers|"
     r"resampler_depth|.*n_layers?|num_layers_per_stack|.*add_layers", LAYERS),
    (r"qk_head_dim", 24),
    (r"qk_rope_head_dim|rotary_dim", 8),
    (r".*(head_dim|head_size|d_head|dim_head|d_kv|kv_channels|headdim)", HEAD),
    (r"(n_)?mamba_(n_|num_)?heads", 2 * HEADS),
    (r".*(key_value_heads|kv_heads|kv_n_heads|num_query_groups|key_heads)", HEADS // 2),
    (r".*heads?", HEADS),
    (r".*(lora_rank|lowrank|_rank)", 24),
    (r".*(num|n)_(local_|routed_|zero_)?experts?|zero_expert_num|num_experts", HEADS),
    (r".*(experts_per_tok(en)?|topk|top_k|moe_k)", 2),
    (r"moe_intermediate_size|.*expert.*(intermediate|hidden).*|share_expert_dim", INNER // 2),
    (r".*(intermediate.*size.*|ffn_dim|ffn_hidden_size|d_ff|dff|dim_ff|d_inner|mlp_dim|feed_forward_size)", INNER),
    (r".*(n_groups?|topk_group|num_expert_group|ngroups)", 1),
    (r".*(state_size|d_state)", HEAD),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r"image_size|crop_size|max_resolution", 32),
    (r"patch_size", 8),
    (r".*position_embeddings|n_positions|.*n_ctx|.*max_.*positions|max_seq_len|seq_len", 64),
    (r".*channels?", 32),
    (r".*(hidden_size.*|hidden_dim|d_model|n_embd|dim_model|emb(ed)?(ding)?_(dim|size)|output_dim|projection_dim|"
     r"projector_.*dim|lru_width|input_dim|mid_dim|embedding_size|proj_dim|input_size)", WIDTH),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), size) for pattern, size in _RULES)
_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth")
_PAIRS = (("num_attention_heads", "num_key_value_heads"), ("n_head", "num_kv_heads"))
_ABSENT = {"head_dim": HEAD, "num_key_value_heads": HEADS, "compress_ratio": 2, "token_budget": 8}

_THREE = {"rope_parameters": {"mrope_section": [2, 3, 3]}}
_THREE_OF_HALF = {"rope_parameters": {"mrope_section": [2, 1, 1]}}
_BY_LAYER = {
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 10000.0}
        for kind in ("full_attention", "sliding_attention")
    }
}
_SPECIAL: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": 100}},
    "cohere_compass": {"text_config": _BY_LAYER},
    "cohere_compass_text": _BY_LAYER,
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "ernie4_5_vl_moe": {"text_config": _THREE},
    "falcon_h1": {"mamba_d_ssm": WIDTH},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma4_unified_assistant": {"text_config": {"num_kv_shared_layers": 0}},
    "glm46v": {"text_config": _THREE_OF_HALF},
    "glm4v": {"text_config": _THREE_OF_HALF},
    "glm4v_moe": {"text_config": {"rope_parameters": {"mrope_section": [2, 1, 1]}}},
    "glm5_next": {"text_config": {"index_kpool": 2}, "index_kpool": 2},
    "glm_ocr": {"text_config": _THREE},
    "glmga": {"text_config": _THREE},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 2 * HEADS},
    "paddleocr_vl": {"text_config": _THREE},
    "qwen2_5_omni_thinker": {"text_config": _THREE},
    "qwen2_5_vl": {"text_config": _THREE},
    "qwen2_vl": {"text_config": _THREE},
    "reformer": {"is_decoder": True, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 48]},
}


def tiny_configs(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Small configurations in the order in which they are to be tried; the last fills what is absent."""
    special = _SPECIAL.get(str(config.get("model_type")), {})
    small = _deep(_Shrinking().shrunk(config), special)
    yield small
    yield _filled(small)


def _deep(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(config)
    for name, value in more.items():
        inner = isinstance(value, Mapping) and isinstance(out.get(name), Mapping)
        out[name] = _deep(out[name], value) if inner else value
    return out


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """With numbers for fields that a class leaves open and its model needs."""
    return {
        name: _filled(value)
        if isinstance(value, Mapping)
        else _ABSENT.get(str(name))
        if value is None
        else value
        for name, value in config.items()
    }


class _Shrinking:
    """One run over a configuration: a token keeps its (smaller) number wherever it is named."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def shrunk(self, config: Mapping[str, Any]) -> dict[str, Any]:
        count = next((config[n] for n in _COUNTS if isinstance(config.get(n), int)), 0)
        kept = _kept_layers(config, count)
        out: dict[str, Any] = {}
        for key, value in config.items():
            name = str(key)
            if _IGNORED.fullmatch(name):
                continue
            if isinstance(value, Mapping) and name == "per_layer_config":
                out[name] = {kept.index(int(k)): v for k, v in value.items() if int(k) in kept}
            elif isinstance(value, Mapping):
                out[name] = _rope(value) if "rope" in name else self.shrunk(value)
            elif isinstance(value, list | tuple):
                out[name] = self._list(name, list(value), count, kept)
            else:
                out[name] = self._number(name, value)
        for name in _COUNTS:
            if count and config.get(name) == count:
                out[name] = len(kept)
        if "qk_rope_head_dim" in config and config.get("head_dim") == config["qk_rope_head_dim"]:
            out["head_dim"] = out["qk_rope_head_dim"]
        for heads, groups in _PAIRS:
            if config.get(heads) == config.get(groups) and isinstance(config.get(heads), int):
                out[groups] = out[heads]
        return out

    def _list(self, name: str, value: list[Any], count: int, kept: list[int]) -> list[Any]:
        if _is_range(value, count):
            return list(range(len(kept)))
        if count and len(value) == count:
            return [self._number(name, value[i]) for i in kept]
        if _PLACES.fullmatch(name) and all(type(x) is int for x in value):
            near = [x if -LAYERS <= x < LAYERS else x % LAYERS for x in value]
            return list(dict.fromkeys(near))
        return [self._number(name, x) for x in value]

    def _number(self, name: str, value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or -2 <= value <= 1:
            return value
        if _TOKEN.fullmatch(name):
            if value < 8:
                return value
            return self._tokens.setdefault(value, VOCABULARY - 1 - len(self._tokens))
        for pattern, size in _COMPILED:
            if pattern.fullmatch(name):
                return min(size, value)
        return value


def _kept_layers(config: Mapping[str, Any], count: int) -> list[int]:
    """The layers that are kept: the first of each kind, as lists and exceptions tell kinds."""
    lists = [
        list(v)
        for v in config.values()
        if isinstance(v, list | tuple) and len(v) == count and not _is_range(list(v), count)
    ]
    apart = config.get("per_layer_config")
    if isinstance(apart, Mapping) and apart:
        lists.append([str(apart.get(i, apart.get(str(i)))) for i in range(count)])
    if count <= LAYERS or not lists:
        return list(range(min(count, LAYERS)))
    kinds = [tuple(map(str, each)) for each in zip(*lists, strict=True)]
    first = sorted({kinds.index(kind) for kind in kinds})
    return first if len(first) > 1 else [0, 1]


def _is_range(value: list[Any], count: int) -> bool:
    return count > 2 and value == list(range(count))


def _rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of a rotation, for a narrower head; nothing else of it is a size."""
    out = {k: _rope(v) if isinstance(v, Mapping) else v for k, v in rope.items()}
    if isinstance(sections := out.get("mrope_section"), list | tuple):
        out["mrope_section"] = [HEAD // 2 - 3 * (len(sections) - 1), *[3] * (len(sections) - 1)]
    return out
