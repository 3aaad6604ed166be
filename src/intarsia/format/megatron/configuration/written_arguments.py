"""The arguments that a Megatron checkpoint is written with: the model's, those of its tensors, and those of its mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.dtypes import DType
from intarsia.format.megatron.configuration.argument_table import UNSAID
from intarsia.format.megatron.configuration.config_to_arguments import arguments_of_config
from intarsia.format.megatron.keys import Key
from intarsia.mesh import Mesh, Shape


def arguments_for(
    config: Mapping[str, Any], mesh: Mesh, shapes: Mapping[str, Shape], centered: bool
) -> dict[str, Any]:
    """Megatron's arguments for a model that is written, from its configuration and its tensors."""
    args = arguments_of_config(config).args | arguments_of_words_lacking(config)
    ends = {name.rpartition("layers.")[2] for name in shapes}
    ahead = {Key.parse(name).layer for name in shapes if "mtp.layers." in name}
    normed = any("q_layernorm" in end for end in ends)
    args |= {
        "add_qkv_bias": any(end.endswith("linear_qkv.bias") for end in ends),
        "add_bias_linear": any(end.endswith("linear_fc2.bias") for end in ends),
        "qk_layernorm": normed or args.get("multi_latent_attention", False),
        "mtp_num_layers": len(ahead) or None,
        "use_dist_ckpt": True,
    }
    return args | arguments_of_tensors(shapes, centered) | arguments_of_mesh(mesh)


def arguments_of_words_lacking(config: Mapping[str, Any]) -> dict[str, Any]:
    """The argument that keeps what no argument of Megatron's says of a model."""
    unsaid = arguments_of_config(config).unsaid
    return {UNSAID: unsaid} if unsaid else {}


def arguments_of_tensors(shapes: Mapping[str, Shape], centered: bool) -> dict[str, Any]:
    """The arguments that say how the tensors that are written are stored."""
    embedding = next((s for n, s in shapes.items() if n.endswith("word_embeddings.weight")), None)
    found: dict[str, Any] = {
        "layernorm_zero_centered_gamma": centered,
        "untie_embeddings_and_output_weights": any("output_layer" in name for name in shapes),
        "ckpt_format": "torch_dist",
        "use_megatron_fsdp": False,
    }
    return found | ({"padded_vocab_size": embedding[0]} if embedding else {})


def arguments_of_mesh(mesh: Mesh, old: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments that say which ranks hold what; those of `old` that no longer hold are reset."""
    found: dict[str, Any] = {
        "tensor_model_parallel_size": mesh.tp,
        "pipeline_model_parallel_size": mesh.pp,
        "expert_model_parallel_size": mesh.ep,
        "expert_tensor_parallel_size": mesh.etp,
        "context_parallel_size": mesh.cp,
        "world_size": mesh.size,
    }
    old = old or {}
    if "data_parallel_size" in old:
        found["data_parallel_size"] = max(1, mesh.size // (mesh.tp * mesh.pp * mesh.cp))
    if old.get("pipeline_model_parallel_size") not in (None, mesh.pp):
        found |= {name: None for name in OF_STAGES if name in old}
    return found


OF_STAGES = (
    "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout",
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
)  # fmt: skip


def arguments_with(args: Mapping[str, Any], dtype: DType | None) -> dict[str, Any]:
    """Megatron's arguments, their precision being the type that tensors were cast to."""
    if dtype is None or "bf16" not in args:
        return dict(args)
    return dict(args) | {"bf16": dtype.name == "BF16", "fp16": dtype.name == "F16"}
