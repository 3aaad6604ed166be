"""Sound checkpoints that faulty ones are compared with: three tiny models, every format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import intarsia
from intarsia.family import table_for
from tests.checkpoints import normal_tensor, write_hf

Tensors = dict[str, torch.Tensor]
Config = Mapping[str, Any]

DENSE: Config = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 80,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
MOE: Config = {
    **DENSE,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 3,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
GDN: Config = {
    **MOE,
    "model_type": "qwen3_next",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 20,
}
MODELS = {"dense": DENSE, "moe": MOE, "gdn": GDN}
MESHES = {
    "hf": "",
    "dcp": "tp=2,fsdp=2",
    "torch_dist": "tp=2",
    "fsdp_dtensor": "fsdp=2",
}
EXPERT_MESHES = MESHES | {
    "dcp": "ep=2,fsdp=2",
    "torch_dist": "tp=2,ep=2",
    "fsdp_dtensor": "ep=2,fsdp=2",
}


def weights(config: Config, seed: int = 0) -> Tensors:
    """Random numbers in single precision; norms near one, as Megatron keeps some less one."""
    table = table_for(config)
    assert table is not None
    found = {}
    for k, (name, shape) in enumerate(table.logical.items()):
        if name in table.optional:
            continue
        tensor = normal_tensor(shape, torch.float32, 10_000 * seed + k)
        if "norm" in name:
            tensor = (1 + tensor.bfloat16().clamp(-1, 1) / 4).bfloat16().float()
        found[name] = tensor
    return found


def write(folder: Path, tensors: Tensors, config: Config, to: str) -> Path:
    """A checkpoint of these weights in a format, cut by that format's mesh."""
    plain = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    if to == "hf":
        return write_hf(folder, plain, config)
    hub = write_hf(folder.with_name(f"{folder.name}-hub"), plain, config)
    meshes = EXPERT_MESHES if "num_experts" in config else MESHES
    intarsia.convert(hub, folder, to=to, mesh=meshes[to])
    return folder


def read(path: Path) -> tuple[Tensors, Config, str]:
    """The weights of a checkpoint, its configuration, and its format."""
    with intarsia.open(path) as found:
        assert found.config is not None
        return {name: found[name][...] for name in found}, found.config, found.format
