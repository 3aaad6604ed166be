"""How long training stands still for a save in the background, beside a plain copy of the same memory.

Two ranks hold an FSDP2 model of a few large or of many small tensors, with AdamW's state.  The pause is
the whole call of `intarsia.save(background=True)`; beside it in the same round: `copy_` of the
rank's shards into memory that is there already, and `dcp.async_save` of the same state.

    python benchmarks/background.py [--rounds 7] [--megabytes 200] [--folder DIR]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from on_ranks import on_ranks

RANKS = 2
WIDTHS = {"large tensors": 1536, "small tensors": 256}
"""Rows and columns of every weight."""


def measure(folder: Path, width: int, rounds: int, shard_bytes: int) -> dict[str, Any]:
    """Seconds of each way in each round on this rank, after one round that does not count."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import intarsia

    layers = max(1, RANKS * shard_bytes // (3 * 4 * width * width))
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()
    optimizer.zero_grad()
    state: dict[str, Any] = dict(model.state_dict())
    for name, param in model.named_parameters():
        for kind, value in optimizer.state[param].items():
            state[f"optimizer.state.{name}.{kind}"] = value
    local = [x.to_local() if hasattr(x, "to_local") else x for x in state.values()]
    spare = [torch.empty_like(x) for x in local]

    def copy() -> Callable[[], Any]:
        for to, at in zip(spare, local, strict=True):
            to.copy_(at)
        return lambda: None

    def ours() -> Callable[[], Any]:
        saving = intarsia.save(folder / "ours", model, optimizer, background=True)
        return saving.wait

    def torch_async() -> Callable[[], Any]:
        return dcp.async_save(state, checkpoint_id=str(folder / "torch")).result

    ways = {"copy_": copy, "intarsia.save": ours, "dcp.async_save": torch_async}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            dist.barrier()
            started = time.perf_counter()
            finish = way()
            seconds = time.perf_counter() - started
            finish()
            dist.barrier()
            if dist.get_rank() == 0:
                for path in folder.iterdir():
                    shutil.rmtree(path)
            if number:
                found[name].append(seconds)
    return {"seconds": found, "tensors": len(local), "bytes": sum(x.nbytes for x in local)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=200, help="of each rank")
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    for label, width in WIDTHS.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = on_ranks(
                RANKS, measure, Path(folder), width, options.rounds, options.megabytes * 10**6
            )
        first = found[0]
        print(
            f"{label}: {first['tensors']:,} of {first['bytes'] / 1e6:.0f} MB on each of {RANKS} ranks,"
            f" {options.rounds} rounds"
        )
        print(f"{'way':<18}{'median s':>10}{'least s':>10}{'x copy_':>9}{'least x':>9}")
        # A pause of the slowest rank is a pause of all.
        slowest = {
            name: [max(each) for each in zip(*(f["seconds"][name] for f in found), strict=True)]
            for name in first["seconds"]
        }
        middle = {name: statistics.median(rows) for name, rows in slowest.items()}
        for name, rows in slowest.items():
            print(
                f"{name:<18}{middle[name]:>10.3f}{min(rows):>10.3f}"
                f"{middle[name] / middle['copy_']:>9.2f}{min(rows) / min(slowest['copy_']):>9.2f}"
            )
    print("bar: 1.2 x copy_")


if __name__ == "__main__":
    main()
