"""Tokens that go to their experts and come back, in a group of one rank."""

from __future__ import annotations

import torch
import torch.distributed as dist

from intarsia.live.parallel.experts import dealt_out


def test_each_token_gets_the_weighted_answers_of_its_own_experts() -> None:
    def run(rows: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return rows * (experts + 1) * weights

    torch.manual_seed(0)
    hidden, weights = torch.randn(7, 5), torch.rand(7, 2)
    index = torch.stack([torch.randperm(4)[:2] for _ in range(7)])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = dealt_out(run, hidden, index, weights, count=4, group=dist.group.WORLD)
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(found, hidden * ((index + 1) * weights).sum(1, keepdim=True))
