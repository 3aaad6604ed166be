"""Real gloo processes for the scripts that measure loading and saving."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SRC = Path(__file__).parents[1] / "src"


def on_ranks(count: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    """What `work(*given)` returns on each of `count` fresh processes of one group."""
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(count) as pool:
        jobs = [(f"{folder}/store", rank, count, work, given) for rank in range(count)]
        return pool.starmap(_run, jobs, chunksize=1)


def _run(store: str, rank: int, count: int, work: Callable[..., Any], given: Any) -> Any:
    sys.path.insert(0, str(SRC))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    try:
        return work(*given)
    finally:
        dist.destroy_process_group()
