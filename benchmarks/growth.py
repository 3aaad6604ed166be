"""How costs grow: with the bytes, the tensors and the ranks.

bytes    digests, checks and conversions of models of one width and more and more layers, in memory
tensors  the same 200 MB in more and more tensors: what each costs beside its bytes
plan     a trillion parameters onto more and more ranks, from headers alone, one rank's share and the whole proof
reads    what one rank reads of a checkpoint of one process, beside `torch.distributed.checkpoint`

PYTHONPATH=src python -m benchmarks.growth [--gigabytes 1] [--rounds 3] [--only bytes]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from benchmarks import limits
from benchmarks.measure import (
    CORES,
    Cost,
    Row,
    Setting,
    here,
    in_child,
    kernel_says,
    parts_asked,
    python_path,
    remove,
    take_turns,
)  # fmt: skip
from benchmarks.models import Model, data_files, llama, write_hf
from benchmarks.scaling import MESH, folder_for

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the size that is asked for: the points of the curve over bytes."""
TENSORS = (30, 300, 3000)
TENSOR_BYTES = 200 * 10**6
PEER_BOXES = 160_000
"""Torch's planner takes a tenth of a millisecond for a box."""

MESHES = ("fsdp=8", "fsdp=128", "fsdp=1024", "fsdp=4096")
RANKS = (2, 8, 32)


def of_bytes(at: Setting) -> Iterator[Row]:
    """More and more layers."""
    import intarsia

    for share in SHARES:
        with tempfile.TemporaryDirectory(dir=folder_for(at.gigabytes * 1e9)) as scratch:
            hf, dcp, out = (Path(scratch) / name for name in ("hf", "dcp", "out"))
            size = in_child(write_hf, hf, llama(share * at.gigabytes, like=0.1), 4)
            intarsia.convert(hf, dcp, to="dcp", mesh=MESH)
            files = data_files(hf)
            jobs = {
                "read": here(lambda files=files: limits.read(files, CORES)),
                "copy": here(lambda files=files, out=out: limits.copy(files, out, CORES)),
                "digest": here(lambda hf=hf: intarsia.digest(hf)),
                "verify A": here(lambda hf=hf: intarsia.verify(hf)),
                "verify A B": here(lambda hf=hf, dcp=dcp: intarsia.verify(hf, dcp)),
                "hf -> dcp": here(lambda hf=hf, out=out: intarsia.convert(hf, out, to="dcp", mesh=MESH)),
            }  # fmt: skip
            yield from take_turns(
                jobs, {"gigabytes": round(size / 1e9, 2)}, size, rounds=at.rounds,
                beside=["read", "copy"], after=lambda out=out: remove(out),
            )  # fmt: skip


def of_tensors(at: Setting) -> Iterator[Row]:
    """More and more tensors of the same bytes in all."""
    import intarsia

    for number in TENSORS:
        with tempfile.TemporaryDirectory(dir=folder_for(TENSOR_BYTES)) as scratch:
            hf, out = Path(scratch) / "hf", Path(scratch) / "out"
            rows = TENSOR_BYTES // (2 * 64 * number)
            shapes = {f"blocks.{k}.weight": (rows, 64) for k in range(number)}
            size = in_child(write_hf, hf, Model({"model_type": "made_up"}, shapes), 4)
            files = data_files(hf)
            if number == TENSORS[0]:  # imports what the jobs import
                intarsia.digest(hf)
                _by_safetensors(files)

            def opened(hf: Path = hf) -> None:
                with intarsia.open(hf):
                    pass

            jobs = {
                "read": here(lambda files=files: limits.read(files, CORES)),
                "open": here(opened),
                "plan": here(lambda hf=hf: intarsia.plan(hf, to="dcp", mesh="fsdp=8")),
                "digest": here(lambda hf=hf: intarsia.digest(hf)),
                "hf -> dcp": here(lambda hf=hf, out=out: intarsia.convert(hf, out, to="dcp", mesh="fsdp=8")),
                "safetensors load_file": here(lambda files=files: _by_safetensors(files)),
            }  # fmt: skip
            yield from take_turns(
                jobs, {"tensors": number}, size, rounds=at.rounds, beside=["read"],
                after=lambda out=out: remove(out),
            )  # fmt: skip


def _by_safetensors(files: list[Path]) -> None:
    from safetensors.torch import load_file

    for path in files:
        load_file(path)


def of_ranks(at: Setting) -> Iterator[Row]:
    """Plans of more and more tensors on more and more ranks, beside torch's planner.

    Each plan is of a manifest of its own, of which nothing is proven yet.
    """
    from benchmarks import plan_scale
    from intarsia.format.registry import read_manifest
    from intarsia.mesh import Mesh

    folder = at.root / "sparse"
    for layers in plan_scale.LAYERS.values():
        folder.mkdir()
        plan_scale.write_sparse(folder, layers)
        manifest = read_manifest(folder)
        count = len(manifest.stored)
        yield from take_turns(
            {"open": here(lambda: read_manifest(folder))},
            {"ranks": 1, "tensors": count}, 0, rounds=at.rounds, seconds=1,
        )  # fmt: skip
        for text in MESHES:
            mesh = Mesh.parse(text)
            targets = plan_scale.targets_on(manifest, mesh)
            jobs: dict[str, Callable[[], Cost]] = {
                "one rank": here(
                    lambda m=mesh, t=targets, src=manifest: plan_scale.plan_rank(
                        replace(src), t, m, m.size // 3
                    )
                ),
                "all ranks": here(
                    lambda m=mesh, t=targets, src=manifest: plan_scale.plan_all(replace(src), t, m)
                ),
            }
            boxes = sum(len(target.boxes) for target in targets)
            if boxes <= PEER_BOXES:
                jobs["DCP's planner"] = lambda m=mesh, t=targets: _peer(t, m)
            where = {"ranks": mesh.size, "tensors": count}
            yield from take_turns(jobs, where, 0, rounds=at.rounds, seconds=1)
            if boxes > PEER_BOXES:
                yield Row("DCP's planner", where, [], failed=f"not run ({boxes:,} boxes)")
        remove(folder)


def _peer(targets: Sequence[Any], mesh: Any) -> Cost:
    """What torch's planner takes for its plan of the same boxes, which are given to it."""
    from benchmarks import plan_scale

    seconds = plan_scale.peer_seconds(targets, mesh)
    return Cost(seconds, seconds)


SHAPES = {
    "model.embed_tokens.weight": (16_000, 1024),
    "model.layers.0.mlp.up_proj.weight": (8192, 1024),
    "model.layers.0.mlp.down_proj.weight": (1024, 8192),
    "model.norm.weight": (1024,),
}


def reads(at: Setting) -> Iterator[Row]:
    """Rank R-1 of R reads its shard, in a process of its own."""
    folder = at.root / "whole"
    in_child(write_whole, folder)
    for axis, cut in ((0, "rows"), (1, "columns")):
        for ranks in RANKS:
            said = subprocess.run(
                [sys.executable, "-m", "benchmarks.growth", "--ask", folder, str(ranks), str(axis)],
                check=True, capture_output=True, text=True,
                env={**os.environ, "PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore"},
            )  # fmt: skip
            for who, needed, read, seconds in json.loads(said.stdout.strip().splitlines()[-1]):
                yield Row(
                    who, {"ranks": ranks, "cut": cut}, [Cost(seconds, read_bytes=read)], needed
                )


def write_whole(folder: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(0)
    state = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}
    dcp.save(state, checkpoint_id=str(folder), no_dist=True)


def read_shard(folder: str, ranks: int, axis: int) -> Iterator[tuple[str, int, int, float]]:
    """Who reads, the bytes that the last of so many ranks needs, those that it reads, and the seconds."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import intarsia.converting  # its import is not what is measured

    assert intarsia.converting
    dist.init_process_group("fake", store=FakeStore(), rank=ranks - 1, world_size=ranks)
    state = _shards(ranks, axis)
    needed = sum(2 * prod(x.to_local().shape) for x in state.values())
    for who, work in {"intarsia": _ask_intarsia, "dcp.load": _ask_torch}.items():
        before, started = kernel_says()["rchar"], time.perf_counter()
        work(folder, state)
        yield who, needed, kernel_says()["rchar"] - before, time.perf_counter() - started


def _shards(ranks: int, axis: int) -> dict[str, Any]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh, state = init_device_mesh("cpu", (ranks,)), {}
    for name, shape in SHAPES.items():
        dim = min(axis, len(shape) - 1)
        mine = [n // ranks if k == dim else n for k, n in enumerate(shape)]
        local = torch.empty(mine, dtype=torch.bfloat16)
        state[name] = DTensor.from_local(local, mesh, [Shard(dim)], run_check=False)
    return state


def _ask_torch(folder: str, state: dict[str, Any]) -> None:
    import torch.distributed.checkpoint as dcp

    reader = dcp.FileSystemReader(folder)
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner(state, reader.read_metadata(), False)
    reader.set_up_storage_reader(planner.metadata, False)
    reader.read_data(planner.create_local_plan(), planner).wait()


def _ask_intarsia(folder: str, state: dict[str, Any]) -> None:
    import intarsia

    with intarsia.open(folder) as checkpoint:
        for name, x in state.items():
            dim = x.placements[0].dim
            count = x.to_local().shape[dim]
            first = x.device_mesh.get_local_rank() * count
            whole = [slice(None)] * x.ndim
            whole[dim] = slice(first, first + count)
            x.to_local().copy_(checkpoint[name][tuple(whole)])


PARTS = {
    "bytes": (of_bytes, "digests, checks and conversions in memory against the bytes of the model"),
    "tensors": (of_tensors, "200 MB in memory against the number of tensors that they are cut into"),
    "plan": (of_ranks, "planning up to a trillion parameters, from headers alone, against tensors and ranks, beside torch's planner"),
    "reads": (reads, "bytes that one rank reads of a checkpoint of one process, against the number of ranks"),
}  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        folder, ranks, axis = sys.argv[2:]
        print(json.dumps([*read_shard(folder, int(ranks), int(axis))]))
    else:
        parts_asked("growth", __doc__, PARTS, gigabytes=1.0)
