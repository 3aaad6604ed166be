"""Bytes that one rank reads for its shard, beside `torch.distributed.checkpoint`.

A checkpoint written by one process is read as rank r of R, by torch into a DTensor-shaped
target and by us; bytes are what the process took from the kernel (`/proc/self/io`).

    python benchmarks/read_amplification.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
SHAPES = {
    "model.embed_tokens.weight": (16_000, 1024),
    "model.layers.0.mlp.up_proj.weight": (8192, 1024),
    "model.layers.0.mlp.down_proj.weight": (1024, 8192),
    "model.norm.weight": (1024,),
}


def rchar() -> int:
    """Bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def write(folder: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(0)
    state = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}
    dcp.save(state, checkpoint_id=folder, no_dist=True)


def read(who: str, folder: Path, ranks: int, axis: int) -> dict[str, int]:
    """The bytes that rank R-1 of R needs and reads."""
    import torch

    rank = ranks - 1
    if who == "torch":
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        mesh = init_device_mesh("cpu", (ranks,))
        state = {}
        for name, shape in SHAPES.items():
            dim = min(axis, len(shape) - 1)
            local = torch.empty(
                [n // ranks if k == dim else n for k, n in enumerate(shape)], dtype=torch.bfloat16
            )
            state[name] = DTensor.from_local(local, mesh, [Shard(dim)], run_check=False)
        needed = sum(t.to_local().numel() * 2 for t in state.values())
        before = rchar()
        reader = dcp.FileSystemReader(folder)
        planner = dcp.DefaultLoadPlanner()
        planner.set_up_planner(state, reader.read_metadata(), False)
        reader.set_up_storage_reader(planner.metadata, False)
        reader.read_data(planner.create_local_plan(), planner).wait()
        return {"needed": needed, "read": rchar() - before}
    sys.path.insert(0, str(SRC))
    from intarsia.api import open as open_checkpoint
    from intarsia.mesh import Box, share

    needed, before = 0, rchar()
    with open_checkpoint(folder) as checkpoint:
        for name, shape in SHAPES.items():
            dim = min(axis, len(shape) - 1)
            lo, count = share(shape[dim], ranks, rank)
            index = tuple(
                slice(lo, lo + count) if k == dim else slice(None) for k in range(len(shape))
            )
            part = checkpoint[name][index]
            needed += part.numel() * 2
    assert Box
    return {"needed": needed, "read": rchar() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ask", nargs=4, metavar=("WHO", "FOLDER", "RANKS", "AXIS"))
    options = parser.parse_args()
    if options.ask:
        who, folder, ranks, axis = options.ask
        print(json.dumps(read(who, Path(folder), int(ranks), int(axis))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        print(f"{'cut':<8}{'ranks':>6}{'needed MB':>11}{'torch x':>9}{'intarsia x':>12}")
        for axis, cut in ((0, "rows"), (1, "columns")):
            for ranks in (2, 8, 32):
                figures = {}
                for who in ("torch", "intarsia"):
                    command = [
                        sys.executable,
                        __file__,
                        "--ask",
                        who,
                        scratch,
                        str(ranks),
                        str(axis),
                    ]
                    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
                    out = subprocess.run(
                        command, check=True, capture_output=True, text=True, env=environment
                    )
                    figures[who] = json.loads(out.stdout.strip().splitlines()[-1])
                needed = figures["intarsia"]["needed"]
                ratios = [figures[who]["read"] / needed for who in ("torch", "intarsia")]
                print(f"{cut:<8}{ranks:>6}{needed / 1e6:>11.1f}{ratios[0]:>9.2f}{ratios[1]:>12.3f}")
    print(
        "bar: 1.05 x; bytes are rchar of the reading process, headers and imports after start included"
    )


if __name__ == "__main__":
    main()
