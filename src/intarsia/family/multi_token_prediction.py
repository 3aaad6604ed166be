"""Layers that predict further tokens (MTP), in the two spellings of the hub.

Transformers leaves them out of its models, and a checkpoint may leave them out too: their
tensors are optional, and no row of `hf-module` holds them.  Megatron keeps them on the last
pipeline stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.family.decoder import sparse_after_dense
from intarsia.family.table import Layer, Table


def layers_and_predictions(t: Table) -> Iterator[tuple[Layer, bool]]:
    """Every layer of DeepSeek's kind, the prediction layers last, and whether it has experts."""
    sparse = sparse_after_dense(t)
    for at in t.layers():
        yield at, sparse[at.stage[0]]
    for at in _hub_prediction_layers(t):
        yield at, True


def _hub_prediction_layers(t: Table) -> Iterator[Layer]:
    """DeepSeek's spelling: further layers after the last, which repeat embedding and head."""
    count, hidden = t.number("num_hidden_layers"), t.number("hidden_size")
    for i in range(t.number("num_nextn_predict_layers", default=0)):
        hf, megatron = f"{t.hf}layers.{count + i}.", f"{t.megatron}mtp.layers.{i}."
        at = Layer(t, hf, None, megatron, (count - 1, count), optional=True)
        at.norm("enorm.weight", hidden, "enorm.weight")
        at.norm("hnorm.weight", hidden, "hnorm.weight")
        at.tensor("eh_proj.weight", hidden, 2 * hidden, tp=0, megatron="eh_proj.weight")
        at.norm("shared_head.norm.weight", hidden, "final_layernorm.weight")
        vocab = t.number("vocab_size")
        t.tie(at.tensor("embed_tokens.weight", vocab, hidden, tp=0), f"{t.hf}embed_tokens.weight")
        t.tie(at.tensor("shared_head.head.weight", vocab, hidden, tp=0), "lm_head.weight")
        yield Layer(t, hf, None, f"{megatron}transformer_layer.", at.stage, optional=True)


def separate_prediction_layer(t: Table) -> Layer:
    """Qwen's spelling: one layer under `mtp.`, beside the text model."""
    count, hidden = t.number("num_hidden_layers"), t.number("hidden_size")
    megatron, stage = f"{t.megatron}mtp.layers.0.", (count - 1, count)
    at = Layer(t, "mtp.", None, megatron, stage, optional=True)
    at.norm("pre_fc_norm_embedding.weight", hidden, "enorm.weight")
    at.norm("pre_fc_norm_hidden.weight", hidden, "hnorm.weight")
    at.tensor("fc.weight", hidden, 2 * hidden, tp=0, megatron="eh_proj.weight")
    at.norm("norm.weight", hidden, "final_layernorm.weight")
    return Layer(t, "mtp.layers.0.", None, f"{megatron}transformer_layer.", stage, optional=True)
