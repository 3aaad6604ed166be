"""A small Llama trained on FSDP2 x tensor parallel: what each of four ranks does."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

CONFIG = {
    "model_type": "llama",
    "hidden_size": 19,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 42,
    "vocab_size": 46,
    "tie_word_embeddings": False,
}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(19, 24, bias=False)
        self.k_proj = nn.Linear(19, 12, bias=False)
        self.v_proj = nn.Linear(19, 12, bias=False)
        self.o_proj = nn.Linear(24, 19, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # By groups, so that a rank that holds whole groups computes what it would in one process.
        q = self.q_proj(x).unflatten(-1, (-1, 12))
        k, v = (p(x).unflatten(-1, (-1, 6)) for p in (self.k_proj, self.v_proj))
        return self.o_proj((q * torch.cat([k, v], -1)).flatten(-2))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(19, 42, bias=False)
        self.up_proj = nn.Linear(19, 42, bias=False)
        self.down_proj = nn.Linear(42, 19, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(19)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.RMSNorm(19)
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(46, 19)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.RMSNorm(19)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Decoder()
        self.lm_head = nn.Linear(19, 46, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.model(ids))


def parallel(seed: int, shape: tuple[int, int] = (2, 2)) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model on a mesh of FSDP shards by tensor-parallel ranks, and its optimizer."""
    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    made = Llama()
    column, row = ColwiseParallel(), RowwiseParallel()
    for layer in made.model.layers:
        plan = {f"self_attn.{n}_proj": column for n in "qkv"} | {"self_attn.o_proj": row}
        plan |= {"mlp.gate_proj": column, "mlp.up_proj": column, "mlp.down_proj": row}
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"])
    parallelize_module(made, mesh["tp"], {"lm_head": ColwiseParallel(output_layouts=Replicate())})
    fully_shard(made, mesh=mesh["dp"])
    return made, torch.optim.AdamW(made.parameters(), lr=0.01, foreach=False)


def train(made: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    ids = torch.arange(24).reshape(2, 12) % 46
    for _ in range(2):
        made(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def step(made: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    """One step on the batch of that number; its loss."""
    ids = (torch.arange(24).reshape(2, 12) * (2 * number + 1)) % 46
    loss = nn.functional.cross_entropy(made(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def save(folder: Path) -> None:
    """Train two steps, save with torch, and write the whole tensors."""
    made, optimizer = parallel(seed=1)
    train(made, optimizer)
    model, state = get_state_dict(made, optimizer)
    dcp.save({"model": model, "optim": state}, checkpoint_id=folder / "saved")
    write_truth(model, state, folder, "truth.safetensors")


def load(folder: Path) -> None:
    """Load `written` with torch, and write the whole tensors again."""
    made, optimizer = parallel(seed=2)
    restore(made, optimizer, folder / "written")
    write_truth(*get_state_dict(made, optimizer), folder, "loaded.safetensors")


def run(folder: Path) -> None:
    """Train ten steps, save after the fifth, and write every loss."""
    made, optimizer = parallel(seed=3)
    losses = []
    for number in range(10):
        if number == 5:
            model, state = get_state_dict(made, optimizer)
            dcp.save({"model": model, "optim": state}, checkpoint_id=folder / "saved")
        losses.append(step(made, optimizer, number))
    if dist.get_rank() == 0:
        (folder / "losses.json").write_text(json.dumps(losses))


def resume(folder: Path) -> None:
    """Load `resumable` on FSDP alone, train on, and write every loss."""
    made, optimizer = parallel(seed=4, shape=(4, 1))
    restore(made, optimizer, folder / "resumable")
    losses = [step(made, optimizer, number) for number in range(5, 10)]
    if dist.get_rank() == 0:
        (folder / "resumed.json").write_text(json.dumps(losses))


def restore(made: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    """Load with torch alone."""
    model, state = get_state_dict(made, optimizer)
    target = {**model, "optimizer": state}
    dcp.load(target, checkpoint_id=checkpoint)
    held = target.pop("optimizer")
    set_state_dict(made, optimizer, model_state_dict=target, optim_state_dict=held)


def whole(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every tensor unsharded; collective."""
    return {
        name: (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone().contiguous()
        for name, x in state.items()
    }


def write_truth(model: dict, optimizer: dict, folder: Path, name: str) -> None:
    state = {
        f"optimizer.{kind}.{param}": x
        for param, held in optimizer["state"].items()
        for kind, x in held.items()
    }
    found = whole(model | state)
    if dist.get_rank() == 0:
        save_file(found, folder / name)
