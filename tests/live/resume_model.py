"""A small model with odd tensors, each of them used in its forward pass as a real model's would be."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.live.resume_scenario import Scenario

WIDTH, WORDS = 6, 11


class Block(nn.Module):
    """Two matrices with rows that no mesh divides."""

    def __init__(self, rows: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, rows, dtype=dtype)
        self.narrow = nn.Linear(rows, WIDTH, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.narrow(torch.tanh(self.wide(x.to(self.wide.weight.dtype))))
        return x + y.to(x.dtype)


class Spoken(nn.Module):
    """A module with extra state, which its forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (1 + self.calls / 64)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls, "tuple": (1, None)}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


class Odd(nn.Module):
    """The model of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        self.odd, self.names = scenario.odd, scenario.names
        self.embed = nn.Embedding(WORDS, WIDTH)
        for k, (name, rows) in enumerate(zip(scenario.names, scenario.rows, strict=True)):
            dtype = torch.bfloat16 if k == 0 and "bf16" in self.odd else torch.float32
            self.add_module(name, Block(rows, dtype))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if "tied" in self.odd:
            self.head.weight = self.embed.weight
        if "scalar" in self.odd:
            self.scale = nn.Parameter(torch.randn(()))
        if "empty" in self.odd:
            self.nothing = nn.Parameter(torch.empty(0, 3))
        if "complex" in self.odd:
            self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        if "frozen" in self.odd:
            self.norm.requires_grad_(False)
        if "unused" in self.odd:
            self.idle = nn.Linear(3, 2)
        if "spoken" in self.odd:
            self.spoken = Spoken()
        self._buffers_of(torch.randint(0, 1000, ()))

    def _buffers_of(self, start: torch.Tensor) -> None:
        if "counter" in self.odd:
            self.register_buffer("seen", start)
        if "mask" in self.odd:
            self.register_buffer("mask", torch.rand(WIDTH) < 0.8)
        if "average" in self.odd:
            self.register_buffer("average", torch.randn(WIDTH))
        if "double" in self.odd:
            self.register_buffer("precise", torch.randn(2, 3, dtype=torch.float64))
        if "wave" in self.odd:
            self.register_buffer("wave", torch.randn(3, dtype=torch.complex64))
        if "passing" in self.odd:
            self.register_buffer("ramp", torch.linspace(0.5, 1.5, WIDTH), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for name in self.names:
            x = getattr(self, name)(x)
        x = self._odd(self.norm(x))
        return self.head(x)

    def _odd(self, x: torch.Tensor) -> torch.Tensor:
        if "counter" in self.odd:
            self.seen.add_(1)
            x = x + self.seen.float() / 4096
        if "mask" in self.odd:
            x = x * self.mask
        if "average" in self.odd:
            self.average.lerp_(x.detach().mean((0, 1)), 0.25)
            x = x - self.average
        if "double" in self.odd:
            x = x + self.precise.sum().float()
        if "wave" in self.odd:
            x = x + self.wave.abs().sum()
        if "passing" in self.odd:
            x = x * self.ramp
        if "scalar" in self.odd:
            x = x * self.scale
        if "empty" in self.odd:
            x = x + self.nothing.sum()
        if "complex" in self.odd:
            x = x + self.phase.abs().sum()
        return self.spoken(x) if "spoken" in self.odd else x
