"""Megatron's tensors of a Qwen3 model, dense, of experts, or with linear attention, by closed formulas.

Nothing here uses Intarsia: it is what a load is compared with, and what checkpoints are made from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Fused:
    """The blocks of a tensor, each of which tensor parallelism cuts along `axis` by itself."""

    blocks: tuple[Tensor, ...]
    axis: int | None = None

    def part(self, tp: int = 1, rank: int = 0) -> Tensor:
        """What one tensor-parallel rank holds."""
        if self.axis is None:
            return self.blocks[0]
        return torch.cat([x.chunk(tp, self.axis)[rank] for x in self.blocks], self.axis)


def by_hand(hf: Mapping[str, Tensor], config: Mapping[str, Any], vocab: int) -> dict[str, Fused]:
    """Every tensor by its name in a Megatron-core model of local modules; `vocab` has its padding."""
    shift = 1 if config["model_type"] == "qwen3_next" else 0  # the hub keeps its norms around zero
    found = {
        "embedding.word_embeddings.weight": Fused((padded(hf["model.embed_tokens.weight"], vocab),), 0),
        "decoder.final_layernorm.weight": Fused((hf["model.norm.weight"] + shift,)),
    }  # fmt: skip
    if "lm_head.weight" in hf:
        found["output_layer.weight"] = Fused((padded(hf["lm_head.weight"], vocab),), 0)
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        own = {name.removeprefix(start): x for name, x in hf.items() if name.startswith(start)}
        made = {
            "input_layernorm.weight": Fused((own["input_layernorm.weight"] + shift,)),
            "pre_mlp_layernorm.weight": Fused((own["post_attention_layernorm.weight"] + shift,)),
            **(attention(own, config) if "self_attn.q_proj.weight" in own else gdn(own, config)),
            **mlp(own),
        }
        found |= {f"decoder.layers.{layer}.{name}": x for name, x in made.items()}
    return found


def padded(x: Tensor, rows: int) -> Tensor:
    return torch.cat([x, x.new_zeros(rows - x.shape[0], *x.shape[1:])])


def attention(own: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Fused]:
    """Query heads of a group, then its key, then its value, group after group."""
    at, groups, hidden = "self_attn", config["num_key_value_heads"], config["hidden_size"]
    q, k, v = (own[f"{at}.{x}_proj.weight"].reshape(groups, -1, hidden) for x in "qkv")
    return {
        "self_attention.linear_qkv.weight": Fused(
            (torch.cat([q, k, v], 1).reshape(-1, hidden),), 0
        ),
        "self_attention.linear_proj.weight": Fused((own[f"{at}.o_proj.weight"],), 1),
        "self_attention.q_layernorm.weight": Fused((own[f"{at}.q_norm.weight"],)),
        "self_attention.k_layernorm.weight": Fused((own[f"{at}.k_norm.weight"],)),
    }


def gdn(own: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Fused]:
    """The hub keeps query, key, value and z of a key head together, and beta with alpha."""
    at, hidden, heads = "linear_attn", config["hidden_size"], config["linear_num_key_heads"]
    ratio = config["linear_num_value_heads"] // heads
    key, value = config["linear_key_head_dim"], ratio * config["linear_value_head_dim"]
    qkvz = own[f"{at}.in_proj_qkvz.weight"].reshape(heads, -1, hidden)
    ba = own[f"{at}.in_proj_ba.weight"].reshape(heads, -1, hidden)
    parts = (*qkvz.split([key, key, value, value], 1), *ba.split([ratio, ratio], 1))
    conv = own[f"{at}.conv1d.weight"].split([heads * key, heads * key, heads * value])
    return {
        "self_attention.in_proj.weight": Fused(tuple(x.reshape(-1, hidden) for x in parts), 0),
        "self_attention.conv1d.weight": Fused(tuple(conv), 0),
        "self_attention.A_log": Fused((own[f"{at}.A_log"],), 0),
        "self_attention.dt_bias": Fused((own[f"{at}.dt_bias"],), 0),
        "self_attention.out_norm.weight": Fused((own[f"{at}.norm.weight"],)),
        "self_attention.out_proj.weight": Fused((own[f"{at}.out_proj.weight"],), 1),
    }


def mlp(own: Mapping[str, Tensor]) -> dict[str, Fused]:
    if "mlp.gate_proj.weight" in own:
        return gated(own, "mlp", "mlp", 0, 1)
    found = {"mlp.router.weight": Fused((own["mlp.gate.weight"],))}
    experts = {int(at[1]) for name in own if (at := re.match(r"mlp\.experts\.(\d+)\.", name))}
    for expert in experts:
        to = f"mlp.experts.local_experts.{expert}"
        found |= gated(own, f"mlp.experts.{expert}", to, None, None)
    return found


def gated(
    own: Mapping[str, Tensor], at: str, to: str, first: int | None, second: int | None
) -> dict[str, Fused]:
    """Gate and up are one tensor, whose halves are cut each by itself."""
    gate, up, down = (own[f"{at}.{x}_proj.weight"] for x in ("gate", "up", "down"))
    both = Fused((gate, up), 0) if first is not None else Fused((torch.cat([gate, up]),))
    return {f"{to}.linear_fc1.weight": both, f"{to}.linear_fc2.weight": Fused((down,), second)}
