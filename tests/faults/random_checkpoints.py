"""Small models of every family, of a random element type, in a random format, cut by a random mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import torch

import intarsia
from intarsia.family import table_for
from tests.checkpoints import write_hf

Tensors = dict[str, torch.Tensor]
Config = Mapping[str, Any]

_DENSE: Config = {
    "model_type": "qwen3", "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "vocab_size": 48,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
}  # fmt: skip
_EXPERTS: Config = {
    **_DENSE, "model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 12, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
FAMILIES: Mapping[str, Config] = {
    "dense": _DENSE,
    "deep": {**_DENSE, "num_hidden_layers": 6, "hidden_size": 16, "intermediate_size": 20, "head_dim": 4},
    "tied": {**_DENSE, "num_hidden_layers": 2, "tie_word_embeddings": True},
    "biases": {**_DENSE, "model_type": "qwen2", "num_hidden_layers": 3},
    "odd sizes": {
        **_DENSE, "model_type": "llama", "num_hidden_layers": 3, "hidden_size": 20, "intermediate_size": 33,
        "head_dim": 6, "vocab_size": 47, "attention_bias": False, "mlp_bias": False,
    },
    "experts": _EXPERTS,
    "mixtral": {
        **_DENSE, "model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 16,
    },
    "latent": {
        **_DENSE, "model_type": "deepseek_v3", "num_hidden_layers": 2, "num_key_value_heads": 4,
        "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8, "v_head_dim": 6, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "num_nextn_predict_layers": 0,
        "rope_interleave": True,
    },
    "linear": {
        **_EXPERTS, "model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 4,
        "linear_conv_kernel_dim": 4, "shared_expert_intermediate_size": 12,
    },
    "sinks": {
        **_DENSE, "model_type": "gpt_oss", "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 12, "attention_bias": True, "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
    },
}  # fmt: skip
_WITH_EXPERTS = ("experts", "mixtral", "latent", "linear", "sinks")
_MESHES = {
    "hf": ("",),
    "dcp": ("", "tp=2", "fsdp=3", "tp=2,fsdp=2"),
    "torch_dist": ("", "tp=2", "pp=2", "tp=2,pp=2"),
    "fsdp_dtensor": ("", "fsdp=2", "fsdp=3"),
}
_EXPERT_MESHES = {
    "hf": ("",),
    "dcp": ("", "ep=2", "ep=2,fsdp=2"),
    "torch_dist": ("", "ep=2", "tp=2,ep=2"),
    "fsdp_dtensor": ("", "ep=2,fsdp=2"),
}
NAMELESS = "nameless"
"""A model of no family: names and element types that nothing is known of."""

FORMATS = ("hf", "hf", "dcp", "torch_dist", "fsdp_dtensor")
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


def nameless(dtype: torch.dtype, seed: int) -> Tensors:
    """Tensors of many element types in a few layers."""
    random = torch.Generator().manual_seed(seed)
    kinds = (dtype, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
    found = {"table": torch.randn(40, 12, generator=random).to(dtype)}
    for layer in range(3):
        for kind in kinds:
            made = torch.randn(18, 14, generator=random) * (1 if kind.is_floating_point else 60)
            held = made.abs() if kind == torch.uint8 else made > 0 if kind == torch.bool else made
            found[f"stack.layers.{layer}.{str(kind).removeprefix('torch.')}"] = held.to(kind)
        found[f"stack.layers.{layer}.shift"] = torch.randn(18, generator=random).to(dtype)
    return found


def weights(config: Config, dtype: torch.dtype, seed: int) -> Tensors:
    """Random numbers; norms near one, which no format rounds where it keeps them less one."""
    table = table_for(config)
    assert table is not None
    random = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in table.logical.items():
        if name not in table.optional:
            tensor = torch.randn(shape, generator=random)
            if "norm" in name:
                tensor = 1 + (tensor.clamp(-3.9, 3.9) * 16).round() / 64
            found[name] = tensor.to(dtype)
    return found


@dataclass(frozen=True)
class Drawn:
    """A model, and the format and mesh that a checkpoint of it is written in."""

    family: str
    dtype: torch.dtype
    format: str
    mesh: str
    files: int = 1
    seed: int = 0
    config: Config = field(default_factory=dict, compare=False)

    @staticmethod
    def of(random: Random) -> Drawn:
        family = random.choice([*FAMILIES, NAMELESS])
        config = FAMILIES.get(family, {})
        return Drawn(
            family, random.choice(DTYPES), *_place(random, family), random.randrange(3), config
        )

    def again(self, random: Random) -> Drawn:
        """The same model in another format or mesh."""
        place = _place(random, self.family)
        return Drawn(self.family, self.dtype, *place, self.seed, self.config)

    @property
    def on_hub(self) -> Drawn:
        """The same model in a format that keeps every tensor as it is."""
        return self if self.format in ("hf", "dcp") else self.whole

    @property
    def whole(self) -> Drawn:
        """The same model on the hub, which may lack tensors."""
        return replace(self, format="hf", mesh="")

    @cached_property
    def tensors(self) -> Tensors:
        if self.family == NAMELESS:
            return nameless(self.dtype, self.seed)
        return weights(self.config, self.dtype, self.seed)

    def write(self, folder: Path, tensors: Tensors) -> Path:
        return write(folder, tensors, self.config, self.format, self.mesh, self.files)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.family} {dtype} {self.format} {self.mesh or '-'}"


def _place(random: Random, family: str) -> tuple[str, str, int]:
    if family == NAMELESS:
        return random.choice([("hf", "", 1), ("hf", "", 3), ("dcp", "fsdp=2", 1), ("dcp", "", 1)])
    to = random.choice(FORMATS)
    meshes = (_EXPERT_MESHES if family in _WITH_EXPERTS else _MESHES)[to]
    return to, random.choice(meshes), random.choice([1, 1, 3])


def write(
    folder: Path, tensors: Tensors, config: Config, to: str, mesh: str, files: int = 1
) -> Path:
    """A checkpoint of these tensors in a format, without the digests that nobody else writes."""
    plain = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    if to == "hf":
        return write_hf(folder, plain, config or None, files)
    hub = write_hf(folder.with_name(f"{folder.name}-hub"), plain, config or None)
    intarsia.convert(hub, folder, to=to, mesh=mesh, workers=1)
    return folder
