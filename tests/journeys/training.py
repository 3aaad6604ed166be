"""A small Llama in training: what every journey with an optimizer starts from and ends in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import intarsia
from intarsia.live.report import Loaded

LR = 3e-3


def small(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 32,
    } | changes  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**sizes))


def adam(params: Any, lr: float = LR) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, lr=lr, betas=(0.8, 0.95), weight_decay=0.03)


def step(model: Any, optimizer: Any, seed: int) -> float:
    ids = torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(seed))
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def trained(**changes: Any) -> tuple[LlamaForCausalLM, torch.optim.AdamW]:
    """A model and its optimizer after three steps."""
    model = small(**changes)
    optimizer = adam(model.parameters())
    for seed in range(3):
        step(model, optimizer, seed)
    return model, optimizer


def goes_on(folder: Path, losses: list[float], **options: Any) -> Loaded:
    """Load into another model and optimizer, and see that training goes on as if nothing had happened."""
    model = small(7, **options.pop("model", {}))
    optimizer = adam(model.parameters(), lr=0.9)
    report = intarsia.load(folder, into=model, optimizer=optimizer, **options)
    assert len(optimizer.state) == len(list(model.parameters()))
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (LR, (0.8, 0.95), 0.03)
    assert [step(model, optimizer, 100 + k) for k in range(len(losses))] == losses
    return report


def uninterrupted(model: Any, optimizer: Any) -> list[float]:
    """The losses of the next two steps of the run that was saved."""
    return [step(model, optimizer, 100 + k) for k in range(2)]
