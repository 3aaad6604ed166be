"""Tensors that frameworks keep in fp32 whatever the type of the model: `--dtype` leaves them as they are.

Transformers says it per class (`_keep_in_fp32_modules_strict` for every narrower type,
`_keep_in_fp32_modules` for fp16 alone); Megatron keeps the experts' bias and Mamba's `A_log`.
A name is a part of a tensor's name between dots.  The tables do without Transformers; where it is
installed its files say the same of models that are newer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from typing import Any

ALWAYS = ("e_score_correction_bias", "expert_bias", "inv_freq", "A_log", "moe_statics")
"""Whatever the family: nothing but these things has such a name."""

STRICT: dict[str, tuple[str, ...]] = {
    "bailing_hybrid": ("A_log", "conv1d", "dt_bias"),
    "beam": ("mlp.gate.weight",),
    "deepseek_v4": (
        "attn_hc", "ffn_hc", "hc_head", "input_layernorm", "kv_norm", "norm", "position_bias",
        "post_attention_layernorm", "q_a_norm", "sinks",
    ),
    "ernie4_5_moe": ("gate.weight", "moe_statics"),
    "ernie4_5_vl_moe": ("gate.weight", "moe_statics"),
    "esmfold2": (
        "boundaries", "distogram_head", "fourier", "norm.bias", "norm.weight", "norm_mix",
        "norm_single", "norm_start",
    ),
    "flint": ("gate.weight", "sinks"),
    "glm5_next": ("A_log", "conv1d", "dt_bias"),
    "gradium_phonon_tts": ("freqs", "latent_mean", "latent_std"),
    "granite_speech5": ("conv.norm",),
    "hy_v4": (
        "base", "fn", "hc_base", "hc_fn", "hc_scale", "k_norm", "lm_head", "scale", "sinks",
        "weights_proj",
    ),
    "inkling": ("attn_sconv", "k_sconv", "mlp_sconv", "v_sconv"),
    "inkling2": (
        "attention_input", "final_input", "k_sconv.conv1d", "mlp.gate.weight", "mlp_input",
        "post_attention_convolution", "post_mlp_convolution", "v_sconv.conv1d",
    ),
    "kyutai_speech_to_text": ("codec_model",),
    "mistral_large4": ("mlp.gate.weight", "rotary_emb"),
    "muse_spark": (
        "mlp.gate.weight", "post_attention_residual_gate", "post_feedforward_residual_gate",
    ),
    "nemotron3_5_transcribe": ("audio_tower", "multi_modal_projector"),
    "openai_privacy_filter": ("sinks",),
    "pocket_tts": ("freqs", "latent_mean", "latent_std"),
    "slanext": ("structure_attention_cell", "structure_generator"),
    "voxtral": ("embed_positions",),
}  # fmt: skip
"""By `model_type`, what is kept beside `ALWAYS`."""

FROM_FP16: dict[str, tuple[str, ...]] = {
    "afmoe": (
        "input_layernorm", "k_norm", "norm", "post_attention_layernorm", "post_mlp_layernorm",
        "pre_mlp_layernorm", "q_norm",
    ),
    "axk2": ("indexer.weights_proj",),
    "blip_2": ("qformer", "query_tokens"),
    "deepseek_v32": ("indexer.weights_proj",),
    "deepseek_v4": (
        "self_attn.compressor.gate_proj", "self_attn.compressor.indexer.gate_proj",
        "self_attn.compressor.indexer.kv_proj",
        "self_attn.compressor.indexer.scorer.weights_proj", "self_attn.compressor.kv_proj",
    ),
    "glm_moe_dsa": ("indexer.weights_proj",),
    "gpt_oss": ("input_layernorm", "norm", "post_attention_layernorm"),
    "instructblip": ("query_tokens",),
    "instructblipvideo": ("query_tokens",),
    "longcat_flash": ("classifier.weight",),
    "mistral_large4": ("indexer.weights_proj",),
    "mt5": ("wo",),
    "pop2piano": ("wo",),
    "rwkv": ("time_decay", "time_first"),
    "t5": ("wo",),
    "udop": ("wo",),
    "umt5": ("wo",),
}  # fmt: skip
"""By `model_type`, what is kept from fp16 and the eight-bit types, whose range is too small for it."""


def is_kept(name: str, config: Mapping[str, Any] | None, asked: str) -> bool:
    """Whether a tensor stays as it is where a type narrower than fp32 is asked for.

    >>> is_kept("model.layers.3.mlp.gate.e_score_correction_bias", None, "BF16")
    True
    """
    types = tuple(sorted(set(_model_types(config))))
    return _pattern(types, asked != "BF16").search(name) is not None


def _model_types(config: Any) -> Iterator[str]:
    """The `model_type` of a configuration and of those inside it."""
    if isinstance(config, Mapping):
        if isinstance(found := config.get("model_type"), str):
            yield found
        for value in config.values():
            yield from _model_types(value)


@lru_cache(maxsize=64)
def _pattern(types: tuple[str, ...], narrow_range: bool) -> re.Pattern[str]:
    words = [*ALWAYS]
    for each in types:
        # A text model may carry its own type: "voxtral_text" is of "voxtral".
        for known in (each, each.removesuffix("_text")):
            words += [*STRICT.get(known, ()), *_declared(known, "_keep_in_fp32_modules_strict")]
            if narrow_range:
                words += [*FROM_FP16.get(known, ()), *_declared(known, "_keep_in_fp32_modules")]
    return re.compile(rf"(?:^|\.)(?:{'|'.join(map(re.escape, words))})(?:\.|$)")


@cache
def _declared(model_type: str, attribute: str) -> tuple[str, ...]:
    """What the classes of an installed Transformers list for a type of model, which nothing imports."""
    spec = None
    if not model_type.isidentifier():
        return ()
    with suppress(ImportError, ValueError):  # it is hidden, or something else has its name
        spec = find_spec("transformers")
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        return ()
    found: set[str] = set()
    for folder in spec.submodule_search_locations or ():
        with suppress(FileNotFoundError):  # the type has no folder of its name
            source = spec.loader.get_data(f"{folder}/models/{model_type}/modeling_{model_type}.py")
            for node in ast.walk(ast.parse(source)) if attribute.encode() in source else ():
                match node:
                    case ast.Assign([ast.Name(id=name)], ast.List(words)) if name == attribute:
                        found.update(map(ast.literal_eval, words))
    return tuple(sorted(found))
