"""One small trained mixture of experts, sound, in every format; faults are made of copies of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import intarsia
from intarsia.format.folder.side_files import DIGESTS

FORMATS = ("hf", "dcp", "torch_dist", "fsdp_dtensor")
MESHES = {
    "hf": "",
    "dcp": "tp=2,fsdp=2",
    "torch_dist": "tp=2,pp=2,ep=2",
    "fsdp_dtensor": "ep=2,fsdp=4",
}
STEP = 7.0

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
}

Tensors = dict[str, torch.Tensor]
Edit = Callable[[Tensors], None]


def weights(seed: int) -> Tensors:
    """Random bf16 weights by their names on the hub; norms are ones, as they start."""
    random = torch.Generator().manual_seed(seed)
    hidden, inner, width = (
        CONFIG["hidden_size"],
        CONFIG["moe_intermediate_size"],
        CONFIG["head_dim"],
    )
    heads, groups = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    vocab, experts = CONFIG["vocab_size"], CONFIG["num_experts"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (heads * width, hidden),
            f"{at}.self_attn.k_proj.weight": (groups * width, hidden),
            f"{at}.self_attn.v_proj.weight": (groups * width, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, heads * width),
            f"{at}.self_attn.q_norm.weight": (width,),
            f"{at}.self_attn.k_norm.weight": (width,),
            f"{at}.mlp.gate.weight": (experts, hidden),
        }
        for e in range(experts):
            shapes |= {
                f"{at}.mlp.experts.{e}.gate_proj.weight": (inner, hidden),
                f"{at}.mlp.experts.{e}.up_proj.weight": (inner, hidden),
                f"{at}.mlp.experts.{e}.down_proj.weight": (hidden, inner),
            }
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    return {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if "norm" in name
        else (0.05 * torch.randn(shape, generator=random)).bfloat16()
        for name, shape in shapes.items()
    }


def trained(held: Tensors) -> Tensors:
    """The weights with the optimizer state of a run: main weights round to them."""
    found = dict(held)
    for name, x in held.items():
        master = x.float() * (1 + 2**-12)
        found[f"optimizer.master.{name}"] = master
        found[f"optimizer.exp_avg.{name}"] = master * 0.25
        found[f"optimizer.exp_avg_sq.{name}"] = master * master
        found[f"optimizer.step.{name}"] = torch.tensor(STEP)
    return found


def write(
    tensors: Mapping[str, torch.Tensor], folder: Path, config: Mapping[str, Any] = CONFIG
) -> Path:
    """A Hugging Face folder, training state in its side folder."""
    state = {n: x.contiguous() for n, x in tensors.items() if n.startswith("optimizer.")}
    model = {n: x.contiguous() for n, x in tensors.items() if n not in state}
    (folder / "optimizer").mkdir(parents=True)
    save_file(model, folder / "model.safetensors", {"format": "pt"})
    save_file(state, folder / "optimizer" / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(config)))
    return folder


def convert(hub: Path, to: str, folder: Path, mesh: str | None = None) -> Path:
    """The same checkpoint in another format, `hf` cut into several files."""
    wanted = MESHES[to] if mesh is None else mesh
    intarsia.convert(hub, folder, to=to, mesh=wanted, max_shard_size="15kB", workers=1)
    return folder


@dataclass(frozen=True)
class Sound:
    """The sound checkpoint: its tensors, and its folder in each format."""

    root: Path
    tensors: Tensors

    @staticmethod
    def make(root: Path, seed: int = 0) -> Sound:
        tensors = trained(weights(seed))
        hub = write(tensors, root / "hub")
        for to in FORMATS:
            convert(hub, to, root / to)
        return Sound(root, tensors)

    def copy(self, format: str, folder: Path, *, digests: bool = False) -> Path:
        """A copy whose files can be replaced; unchanged ones share their bytes.

        Without its digests, as others write checkpoints, unless they are asked for.
        """
        left = None if digests else shutil.ignore_patterns(DIGESTS)
        shutil.copytree(self.root / format, folder, copy_function=os.link, ignore=left)
        return folder

    def edited(self, format: str, folder: Path, edit: Edit, **config: Any) -> Path:
        """The checkpoint with other numbers, written as if they were right: checksums and all."""
        tensors = {name: x.clone() for name, x in self.tensors.items()}
        edit(tensors)
        hub = write(tensors, folder.with_name(folder.name + "-hub"), CONFIG | config)
        return convert(hub, format, folder)
