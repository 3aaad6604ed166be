"""What a hub configuration says, whichever way it is spelled, and where two of them contradict.

Transformers renamed fields over the years (`rope_theta` and `rope_scaling` became
`rope_parameters`), families name one thing differently, and a wrapper nests the text model.
Here each has one spelling, so that two configurations can be compared field by field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from intarsia.family.config.defaults import BASES, defaults_of
from intarsia.family.config.fields import Config, text_config
from intarsia.family.config.heeded import PASSED_OVER, heeded_fields, text_type
from intarsia.family.config.layout_defaults import layout_defaults_of
from intarsia.family.config.special_floats import with_special_floats
from intarsia.frozen import frozen

ABSENT = "absent"
_ALIASES = {
    "hidden_activation": "hidden_act",
    "n_routed_experts": "num_experts",
    "num_local_experts": "num_experts",
    "rms_norm_epsilon": "rms_norm_eps",
}
_ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor",
         "rope_local_base_freq", "rotary_pct", "rotary_emb_base")  # fmt: skip
_SCALED_FROM = ("llama3", "yarn", "longrope")
"""Rotations that are scaled from a length: the one that the model has, where they do not say."""

_BY_LAYER = ("full_attention", "sliding_attention")
_HARMLESS = frozenset(
    (
        "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
        "add_cross_attention", "attention_dropout", "attn_implementation", "aux_loss_alpha", "auto_map",
        "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward",
        "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
        "embd_pdrop", "encoder_no_repeat_ngram_size", "eos_token_id", "ep_size", "exponential_decay_length_penalty",
        "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing",
        "hidden_dropout", "id2label", "initializer_range", "is_decoder", "is_encoder_decoder",
        "label2id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
        "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
        "output_hidden_states", "output_router_logits", "output_scores", "pad_token_id", "prefix",
        "pretraining_tp", "problem_type", "pruned_heads", "remove_invalid_values",
        "repetition_penalty", "resid_pdrop", "return_dict", "return_dict_in_generate",
        "router_aux_loss_coef", "router_jitter_noise", "router_z_loss_coef", "sep_token_id", "seq_aux",
        "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
        "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
        "transformers_version", "typical_p", "use_bfloat16", "use_cache",
    )
)  # fmt: skip
"""Fields that change neither the tensors nor what a model computes of a prompt."""

_NULL_IS_ABSENT = frozenset(("head_dim", "layer_types", "num_key_value_heads"))
_ONE_SIDE_COUNTS = frozenset(("quantization_config",))


@frozen
class Contradiction:
    """A field with two values."""

    field: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.field} is {self.first!r} and {self.second!r}"


def meaning_of(config: Config) -> dict[str, Any]:
    """The text model's fields, one spelling each, with Transformers' defaults where it is mute.

    `rope_parameters` is the rotation as Transformers 5 spells it.
    """
    text = text_config(config)
    said = {spelling(k): v for k, v in text.items() if k not in _ROPE and v is not None}
    nested = text is not config and defaults_of(text_type(config))
    outer = nested or defaults_of(config.get("model_type"))
    implied = outer or defaults_of(text.get("model_type"))
    rope = rope_of(text)
    usual = implied.get("rope_parameters", {})
    if not rope:
        rope = dict(usual)
    elif any(kind in rope for kind in _BY_LAYER):
        rope = {**usual, **{kind: {**usual.get(kind, {}), **part} for kind, part in rope.items()}}
    elif any(kind in usual for kind in _BY_LAYER):
        rope = {**usual, "full_attention": {**usual["full_attention"], **rope}}
    else:
        scaled = text.get("rope_parameters") or text.get("rope_scaling")
        kept = ("rope_theta", "partial_rotary_factor") if scaled else tuple(usual)
        rope = {k: v for k, v in usual.items() if k in kept} | _base(text) | rope
        rope.setdefault("rope_type", "default")
    if text.get("model_type") == "phi3" and rope.get("rope_type") in ("yarn", "longrope"):
        # Older files call it yarn; the length beside it goes before the one in it.
        trained = said.get("original_max_position_embeddings", 4096)
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": trained}
    found = {**implied, **said, "rope_parameters": rope}
    for part in [x for x in (rope, *rope.values()) if isinstance(x, dict)]:
        _fill(part, found.get("max_position_embeddings"))
    tied = config.get("tie_word_embeddings")
    if isinstance(tied, bool):
        found["tie_word_embeddings"] = tied
    heads, groups = found.get("num_attention_heads"), "num_key_value_heads"
    if heads is not None:
        found.setdefault(
            groups, heads if groups in text else implied_sizes(config).get(groups, heads)
        )
    for name in ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping"):
        if name in text and text[name] is None:
            found[name] = None
    return found


def spelling(field: str) -> str:
    """The name that a field has here, whichever family's it is."""
    return _ALIASES.get(field, field)


def heeded_meaning_of(config: Config) -> dict[str, Any]:
    """What Transformers makes of a configuration: its own fields where it heeds them, else its defaults."""
    text, kind = text_config(config), text_type(config)
    if known := heeded_fields(kind):
        kept = {*known, *_ROPE, "model_type"}
        others = {PASSED_OVER.get(kind, "hidden_activation")}
        others |= set() if kind == "gemma3_text" else {"rope_local_base_freq"}
        heeded = {k: v for k, v in text.items() if spelling(k) in kept and k not in others}
        if kind == "gemma" and heeded.get("hidden_act") == "gelu":
            # What Transformers takes the old files to mean.
            heeded["hidden_act"] = "gelu_pytorch_tanh"
        if "is_causal" in heeded:
            heeded["is_causal"] = bool(heeded["is_causal"])  # null denies it, too
        config = heeded if text is config else {**config, "text_config": heeded}
    return implied_sizes(config) | meaning_of(config)


def implied_sizes(config: Config) -> dict[str, int]:
    """The sizes that a configuration leaves out and its model type has, one spelling each."""
    text = text_config(config)
    said = {spelling(name) for name in text}
    usual = layout_defaults_of(text.get("model_type"), config.get("model_type"))
    spelled = {spelling(name): size for name, size in usual.items()}
    return {name: size for name, size in spelled.items() if name not in said}


def _fill(rope: dict[str, Any], length: Any) -> None:
    """What a scaled rotation takes from the length of the model where it does not say."""
    if rope.get("rope_type") in _SCALED_FROM and type(length) is int:
        trained = rope.setdefault("original_max_position_embeddings", length)
        if rope["rope_type"] == "yarn" and type(trained) is int and trained > 0:
            rope.setdefault("factor", length / trained)


def _base(text: Config) -> dict[str, float]:
    kind = text.get("model_type")
    return {"rope_theta": BASES[kind]} if isinstance(kind, str) and kind in BASES else {}


def rope_of(text: Config) -> dict[str, Any]:
    """The rotation that a configuration gives, in any of Transformers' spellings."""
    new, old = (
        dict(x) if isinstance(x, Mapping) else {}
        for x in (text.get("rope_parameters"), text.get("rope_scaling"))
    )
    parts = {kind: new[kind] for kind in _BY_LAYER if isinstance(new.get(kind), Mapping)}
    if parts:
        parts["full_attention"] = {**parts.get("full_attention", {}), **old}
        return {kind: _spelled(part) for kind, part in parts.items()}
    found: dict[str, Any] = old or new
    for name in ("rope_theta", "partial_rotary_factor"):
        if text.get(name) is not None:
            found.setdefault(name, text[name])
    found = _spelled(found)
    local = text.get("rope_local_base_freq")
    if local is not None:
        sliding = {"rope_type": "default", "rope_theta": local}
        return {"full_attention": found, "sliding_attention": sliding}
    return found


def _spelled(rope: Config) -> dict[str, Any]:
    found = {k: v for k, v in rope.items() if v is not None and k != "type"}
    kind = rope.get("rope_type", rope.get("type"))
    if kind is not None:
        found["rope_type"] = {"su": "longrope", "mrope": "default"}.get(kind, kind)
    return found


def contradictions(first: Config, second: Config) -> list[Contradiction]:
    """The fields that differ between two configurations.

    A field that one leaves out has Transformers' default where that is known, and is passed over
    otherwise.
    """
    first, second = with_special_floats(first), with_special_floats(second)
    a, b = text_config(first), text_config(second)
    together = (a is first) == (b is second)
    found = list(_unlike("", meaning_of(first), meaning_of(second), together))
    if together and a is not first:
        a, b = ({k: v for k, v in c.items() if k != "text_config"} for c in (first, second))
        found += _unlike("", a, b, True)
    for name in _ONE_SIDE_COUNTS:
        values = first.get(name), second.get(name)
        if (values[0] is None) != (values[1] is None):
            found.append(Contradiction(name, *(ABSENT if v is None else "given" for v in values)))
    unique = {c.field: c for c in found}
    return [unique[field] for field in sorted(unique)]


def _unlike(at: str, a: Config, b: Config, together: bool) -> Iterator[Contradiction]:
    windowless = a.get("use_sliding_window") is False and b.get("use_sliding_window") is False
    for name in a.keys() & b.keys():
        if name in _HARMLESS or (name in _NULL_IS_ABSENT and (a[name] is None or b[name] is None)):
            continue
        if not together and name in ("model_type", "architectures"):
            continue
        if windowless and name in ("sliding_window", "max_window_layers"):
            continue
        if isinstance(a[name], Mapping) and isinstance(b[name], Mapping):
            yield from _unlike(f"{at}{name}.", a[name], b[name], together)
        elif _plain(a[name]) != _plain(b[name]):
            yield Contradiction(at + name, a[name], b[name])


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return repr(value)
    return list(value) if isinstance(value, tuple) else value
