"""The arguments that a Megatron checkpoint is written with: the model's, those of its tensors, and those of its mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from intarsia.dtypes import DType
from intarsia.family import Table
from intarsia.format.megatron.configuration.argument_facts import said_of_norms
from intarsia.format.megatron.configuration.argument_table import CENTERED, LATENT_NORMS, UNSAID
from intarsia.format.megatron.configuration.config_to_arguments import arguments_of_config
from intarsia.format.megatron.keys import Key
from intarsia.mesh import Mesh, Shape
from intarsia.planning.manifest import Stored, Target
from intarsia.state.names import is_state

DIVISIBLE_BY = 128
"""What Megatron makes a rank's part of the vocabulary divisible by, unless it is given another number."""


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


def arguments_of_words_lacking(
    config: Mapping[str, Any], of_run: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The argument that keeps what no argument of Megatron's says of a model.

    A run computes all its norms with one epsilon: of its own arguments `of_run` only those of a model
    from the hub say that some have another.
    """
    unsaid = dict(arguments_of_config(config).unsaid)
    if of_run is not None and LATENT_NORMS not in (of_run.get(UNSAID) or ()):
        unsaid.pop(LATENT_NORMS, None)
    return {UNSAID: unsaid} if unsaid else {}


def arguments_of_tensors(shapes: Mapping[str, Shape], centered: bool) -> dict[str, Any]:
    """The arguments that say how the tensors that are written are stored."""
    embedding = next((s for n, s in shapes.items() if n.endswith("word_embeddings.weight")), None)
    found: dict[str, Any] = {
        CENTERED[0]: centered,
        "untie_embeddings_and_output_weights": any("output_layer" in name for name in shapes),
        "ckpt_format": "torch_dist",
        "use_megatron_fsdp": False,
    }
    return found | ({"padded_vocab_size": embedding[0]} if embedding else {})


def rows_as_megatron_pads(rows: int, args: Mapping[str, Any], tp: int) -> int:
    """The rows that Megatron-LM gives a vocabulary: it cuts them on the mesh, and loads fewer into them."""
    said = args.get("make_vocab_size_divisible_by")
    step = tp * (said if type(said) is int and said > 0 else DIVISIBLE_BY)
    return -(-rows // step) * step


def norms_are_centered(table: Table, held: Iterable[Stored | Target]) -> bool | None:
    """Whether norms hold weight − 1 in Megatron's tensors; None where there is none."""
    norm = "decoder.final_layernorm.weight"
    values = (x.value for x in held if x.name.endswith(norm) and not is_state(x.name))
    return next((table.centered == value.is_plain for value in values), None)


def arguments_of_norms(old: Mapping[str, Any], centered: bool) -> dict[str, bool]:
    """The arguments that say how norms are centred, by each name that `old` ones have for it."""
    return {name: centered for name in CENTERED if name in old}


def note_on_norms(old: Mapping[str, Any], centered: bool) -> Iterator[str]:
    """A run that goes on with its own arguments would take norms for what they are not."""
    said = next(iter(said_of_norms(old).values()), centered)
    if said != centered:
        now, before = ("weight − 1", "the weight") if centered else ("the weight", "weight − 1")
        yield (
            f"norms hold {now}, and held {before} in the run that the source's arguments are of: resume"
            f" {'with' if centered else 'without'} --apply-layernorm-1p"
        )


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
    found |= {name: value for name, value in _derived(mesh).items() if name in old}
    if old.get("pipeline_model_parallel_size") not in (None, mesh.pp):
        found |= {name: None for name in _OF_STAGES if name in old}
    return found


def _derived(mesh: Mesh) -> dict[str, int]:
    """What Megatron-LM works out of a mesh and keeps beside it, in some versions."""
    return {
        "data_parallel_size": max(1, mesh.size // (mesh.tp * mesh.pp * mesh.cp)),
        "transformer_pipeline_model_parallel_size": mesh.pp,
        "tensor_parallel_num_weight_shards": mesh.tp,
        "expert_tensor_parallel_num_weight_shards": mesh.etp,
        "inprocess_active_world_size": mesh.size,
    }


_OF_STAGES = (
    "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout",
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
)  # fmt: skip
_OF_PADDING = ("padded_vocab_size", "ckpt_format", "use_megatron_fsdp")

OF_STORING = frozenset({*arguments_of_mesh(Mesh()), *_derived(Mesh()), *_OF_STAGES, *_OF_PADDING})
"""The arguments that say how a checkpoint was cut and padded: the same training has others on another mesh."""


def arguments_with(args: Mapping[str, Any], dtype: DType | None) -> dict[str, Any]:
    """Megatron's arguments, their precision being the type that tensors were cast to."""
    if dtype is None or "bf16" not in args:
        return dict(args)
    return dict(args) | {"bf16": dtype.name == "BF16", "fp16": dtype.name == "F16"}
