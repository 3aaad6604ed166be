"""A small model on FSDP, HSDP and tensor-parallel meshes, for tests that train, save and resume."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VOCAB, HIDDEN, INNER = 37, 12, 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, INNER)
        self.down = nn.Linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Small(nn.Module):
    """`spare` is a parameter that no forward uses, `scale` is frozen, `seen` a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.spare = nn.Parameter(torch.zeros(3, HIDDEN))
        self.scale = nn.Parameter(torch.full((HIDDEN,), 1.5), requires_grad=False)
        self.register_buffer("seen", torch.tensor(7, dtype=torch.int64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(seed: int, layout: str, *, meta: bool = False) -> nn.Module:
    """The model on a mesh, as `fsdp=2,tp=2` or `replicate=2,fsdp=2`; an empty one is plain."""
    torch.manual_seed(seed)
    with torch.device("meta" if meta else "cpu"):
        model = Small()
    axes = [(k, int(v)) for k, v in (part.split("=") for part in layout.split(",") if part)]
    if not axes:
        return model
    mesh = init_device_mesh(
        "cpu", tuple(n for _, n in axes), mesh_dim_names=tuple(k for k, _ in axes)
    )
    names = [k for k, _ in axes]
    if "tp" in names:
        plan: dict[str, Any] = {}
        for k in range(2):
            plan |= {f"blocks.{k}.up": ColwiseParallel(), f"blocks.{k}.down": RowwiseParallel()}
        plan["head"] = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh["tp"], plan)
    data = tuple(k for k in names if k != "tp")
    if data:
        for block in model.blocks:
            fully_shard(block, mesh=mesh[data])
        fully_shard(model, mesh=mesh[data])
    return model


def optimizer_of(model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    held = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(held, lr=lr, foreach=False)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    """One step on the batch of that number, the same on all ranks; its loss."""
    ids = (torch.arange(24).reshape(2, 12) * (2 * number + 1)) % VOCAB
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def whole(x: Any) -> torch.Tensor:
    """A tensor unsharded; collective."""
    found: torch.Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return found.detach().clone()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Every tensor of a model and of its optimizer's state, unsharded; collective."""
    found = {name: whole(x) for name, x in model.state_dict().items()}
    for name, param in model.named_parameters():
        for kind, value in optimizer.state.get(param, {}).items():
            found[f"{name}:{kind}"] = whole(value)
    return found
