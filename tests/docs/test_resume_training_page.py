"""The page on resuming shows code that runs, and a training that goes on bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.docs.test_snippets import ROOT, blocks

PAGE = ROOT / "docs/how-to/resume-training.md"


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))


def losses(parts: Any, count: int) -> list[float]:
    """So many steps from here on, by the parts of the page."""
    model, optimizer, stateful = parts
    found = []
    for batch in stateful["loader"]:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        stateful["scheduler"].step()
        found.append(loss.item())
        if len(found) == count:
            break
    return found


def test_the_code_of_the_page_resumes_as_if_nothing_had_stopped(tmp_path: Path) -> None:
    data = torch.arange(64.0).reshape(16, 4).sin()
    scope: dict[str, Any] = {"build": build, "data": data, "run": tmp_path / "run"}
    defined, trained, resumed, loaders, sharded, masters = blocks(PAGE, "python")
    run = lambda code: exec(compile(code, str(PAGE), "exec"), scope)  # noqa: E731
    run(defined)
    never_stopped = losses(scope["start"](1), 7)
    run(trained)
    torch.manual_seed(5)
    run(resumed)
    assert scope["report"].complete
    (lr,) = scope["stateful"]["scheduler"].get_last_lr()
    assert scope["optimizer"].param_groups[0]["lr"] == lr < 0.01
    parts = scope["model"], scope["optimizer"], scope["stateful"]
    assert losses(parts, 3) == never_stopped[4:]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        run(loaders)
        rest = [*data.reshape(8, 2, 4)[3:]]
        for loader in (scope["again"], scope["counted"]):
            found = [*loader]
            assert len(found) == len(rest)
            assert all(torch.equal(a, b) for a, b in zip(found, rest, strict=True))
        run(sharded)
        assert len(scope["optimizer"].state) == 4
        run(masters)
    finally:
        dist.destroy_process_group()
    assert scope["working"][0].weight.dtype == torch.bfloat16
    assert scope["main"][0].weight.dtype == torch.float32
