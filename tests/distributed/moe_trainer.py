"""A small mixture of experts trained on several meshes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import intarsia
from intarsia.live import batch_place, clip_grad_norm_, parameter_groups

STEPS, ROWS, TOKENS, MAX_NORM = 6, 8, 12, 0.5


SIZES = {
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 56,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "head_dim": 4,
    "n_group": 2,
    "topk_group": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "mlp_only_layers": [1]},
    "mixtral": {"num_local_experts": 8, "intermediate_size": 24},
    "gpt_oss": {"num_local_experts": 8, "intermediate_size": 24},
    "glm4_moe": {"n_routed_experts": 8, "first_k_dense_replace": 1, "use_qk_norm": True},
    "apertus": {"hidden_act": "xielu"},
    "granite_swa": {},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
}
"""The parts of the large ones, made small; where a family has dense layers, so has its model."""


def model(family: str = "qwen3_moe", **changes: Any) -> PreTrainedModel:
    """The same weights in every process, large enough for experts to matter."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(family, **SIZES | FAMILIES[family] | changes)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in made.named_parameters():
            p.add_(torch.randn_like(p), alpha=0.1 if "norm" in name else 0.15)
    return made


def batch(number: int) -> torch.Tensor:
    return torch.randint(67, (ROWS, TOKENS), generator=torch.Generator().manual_seed(number % 2))


@dataclass
class Trained:
    """What a run tells: a number per step, and the tensors at its end."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def train(
    made: torch.nn.Module,
    place: tuple[int, int] = (0, 1),
    mean: Callable[[float], float] = float,
    clip: Callable[..., torch.Tensor] = clip_grad_norm_,
    parts: int = 1,
    **options: Any,
) -> Trained:
    """Six steps with AdamW and clipping; `place` says which rows of a batch are this rank's.

    `parts`: gradients are accumulated over so many parts of them.
    """
    told = Trained()
    optimizer = torch.optim.AdamW(parameter_groups(made.parameters()), lr=1e-2, **options)
    for number in range(STEPS):
        ids = batch(number).tensor_split(place[1])[place[0]]
        losses = []
        for part in ids.tensor_split(parts):
            loss = made(input_ids=part, labels=part, use_cache=False).loss / parts
            loss.backward()
            losses.append(loss.item())
        told.losses.append(mean(sum(losses)))
        told.norms.append(clip(made.parameters(), MAX_NORM).item())
        optimizer.step()
        optimizer.zero_grad()
    for name, p in made.named_parameters():
        told.tensors[name] = whole(p)
        for kind in ("exp_avg", "exp_avg_sq"):
            told.tensors[f"{kind} {name}"] = whole(optimizer.state[p][kind])
    return told


def whole(x: torch.Tensor) -> torch.Tensor:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone().contiguous()


@dataclass(frozen=True)
class Case:
    """Sizes of mesh dimensions, and what else is asked."""

    mesh: dict[str, int]
    asked: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


CASES = {
    "dp2": Case({"dp": 2}),
    "ep2": Case({"ep": 2}),
    "tp2": Case({"tp": 2}),
    "dp2_ep2": Case({"dp": 2, "ep": 2}, training={"foreach": True}),
    "dp2_tp2": Case({"dp": 2, "tp": 2}),
    "ep2_tp2": Case({"ep": 2, "tp": 2}),
    "ep4": Case({"ep": 4}),
    "copies2_ep2": Case({"dp": 2, "ep": 2}, {"expert_fsdp": False}),
    "axis1": Case({"dp": 2, "ep": 2}, {"expert_axis": 1}),
    "hsdp": Case({"rep": 2, "ep": 2}, {"replicate": "rep"}),
    "empty": Case({"dp": 4}, model={"num_experts": 2}),
    "empty_ep": Case({"dp": 2, "ep": 2}, model={"num_experts": 2}),
    "tied": Case({"dp": 2, "tp": 2}, model={"tie_word_embeddings": True}),
    "parts": Case({"tp": 2}, training={"parts": 2}),
    "eager": Case({"ep": 2}, model={"experts_implementation": "eager"}),
    "mixtral": Case({"ep": 2, "tp": 2}, model={"family": "mixtral"}),
    "gpt_oss": Case({"dp": 2, "ep": 2}, model={"family": "gpt_oss"}),
    "gpt_oss_axis1": Case({"dp": 2, "ep": 2}, {"expert_axis": 1}, {"family": "gpt_oss"}),
    "glm4_moe": Case({"dp": 2, "tp": 2}, model={"family": "glm4_moe"}),
    "apertus": Case({"dp": 2, "tp": 2}, model={"family": "apertus"}),
    "granite_swa": Case({"dp": 2, "tp": 2}, model={"family": "granite_swa"}),
    "deepseek_v2": Case({"dp": 2, "tp": 2}, model={"family": "deepseek_v2"}),
    "deepseek_v3": Case({"ep": 2, "tp": 2}, model={"family": "deepseek_v3"}),
    "dp2_ep2_tp2": Case({"dp": 2, "ep": 2, "tp": 2}),
    "rep2_dp2_ep2": Case({"rep": 2, "dp": 2, "ep": 2}, {"replicate": "rep"}),
    "ep8": Case({"ep": 8}),
    "dp4_ep2": Case({"dp": 4, "ep": 2}),
}


def mesh_of(sizes: dict[str, int]) -> DeviceMesh:
    """A mesh of these dimensions; where the processes are more, each part of them has its own."""
    world, used = dist.get_world_size(), tuple(sizes)
    shape = tuple(sizes.values())
    rest = world // torch.Size(shape).numel()
    if rest == 1:
        return init_device_mesh("cpu", shape, mesh_dim_names=used)
    return init_device_mesh("cpu", (rest, *shape), mesh_dim_names=("part", *used))[used]


def train_case(folder: Path, name: str) -> None:
    """Train a case on these ranks, and write its losses, norms and whole tensors."""
    case = CASES[name]
    mesh = mesh_of(case.mesh)
    made = intarsia.parallelize(model(**case.model), mesh, **case.asked)
    place = batch_place(mesh)

    def mean(x: float) -> float:
        values = torch.tensor(x, dtype=torch.float64)
        for dim in range(mesh.ndim):
            dist.all_reduce(values, group=mesh.get_group(dim))
        return values.item() / mesh.size()

    told = train(made, place, mean, **case.training)
    if dist.get_rank() == 0:
        save_file(told.tensors, folder / f"{name}.safetensors")
        (folder / f"{name}.json").write_text(json.dumps([told.losses, told.norms]))


def train_cases(folder: Path, *names: str) -> None:
    for name in names:
        train_case(folder, name)
