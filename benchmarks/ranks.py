"""Loading into a sharded model and saving it, beside the ways that torch, Transformers and accelerate have.

A dense and a mixture-of-experts model of about 0.7 GB in bf16, on 2 and on 4 gloo processes, from warm
and from dropped caches.  Every way is the whole road: build the model on `meta`, lay it out, fill
it.  Bytes are what processes took from the kernel by reading (`rchar`).  A mapped file does not show
there: Transformers leaves dense weights mapped, which saves it the copy and the memory until they are
written to.  Memory is the most that was anonymous above what was there before, and collectives are
the outermost calls of torch.distributed.

accelerate does not shard on CPU, so its way is Transformers' RAM-efficient load and then accelerate's own
`fsdp2_load_full_state_dict`, called by hand.

The second part is the pause of a save in the background: two ranks hold an FSDP2 model of a few large or of
many small tensors, with AdamW's state.  The pause is the whole call of `intarsia.save(background=True)`;
beside it in the same round: `copy_` of the rank's shards into memory that is there already, and
`dcp.async_save` of the same state.

    PYTHONPATH=src python -m benchmarks.ranks [--rounds 3] [--gigabytes 0.7] [--only load] [--folder DIR]
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.measure import (
    Cost,
    Row,
    Setting,
    drop,
    on_ranks,
    parts_asked,
    remove,
    with_ratios,
)  # fmt: skip

SIZES: dict[str, dict[str, Any]] = {
    "qwen3": {"hidden_size": 1536, "intermediate_size": 6144, "head_dim": 128,
              "num_attention_heads": 12, "num_key_value_heads": 4},
    "qwen3_moe": {"hidden_size": 1024, "intermediate_size": 2048, "head_dim": 64,
                  "num_attention_heads": 16, "num_key_value_heads": 4, "num_experts": 32,
                  "num_experts_per_tok": 4, "moe_intermediate_size": 512},
}  # fmt: skip
BUDGET_BYTES = 256 << 20
FUNCTIONS = (
    "all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list", "all_gather",
    "all_reduce", "broadcast", "scatter", "gather", "barrier", "all_gather_into_tensor",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
)  # fmt: skip


@dataclass
class Figure:
    """What one load took on one rank."""

    seconds: float = 0.0
    read_bytes: int = 0
    peak_bytes: int = 0
    shard_bytes: int = 0
    collectives: int = 0


def write_model(folder: Path, kind: str, gigabytes: float) -> int:
    """A random model as `hf` and, by its module's names, as `dcp`; the bytes of its weights."""
    import torch
    import torch.distributed.checkpoint as dcp
    from transformers import AutoConfig, AutoModelForCausalLM

    def build(layers: int) -> Any:
        config = AutoConfig.for_model(
            kind, vocab_size=32_000, num_hidden_layers=layers, **SIZES[kind]
        )
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)

    with torch.device("meta"):
        one, two = (sum(p.nbytes for p in build(n).parameters()) for n in (1, 2))
    model = build(max(1, round((gigabytes * 1e9 - one) / (two - one)) + 1))
    model.save_pretrained(folder / "hf")
    dcp.save(model.state_dict(), checkpoint_id=str(folder / "dcp"), no_dist=True)
    return sum(p.nbytes for p in model.parameters())


def laid_out(path: Path, layout: dict[str, int]) -> Any:
    """The model of a checkpoint on `meta`, laid out on a mesh by Transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, DistributedConfig

    with torch.device("meta"):
        config = AutoConfig.from_pretrained(path)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    asked, _, mesh = type(model).prepare_distribute_model(DistributedConfig(**layout))
    return type(model).maybe_distribute_model(model, asked, mesh)


def by_intarsia(folder: Path, layout: dict[str, int], form: str) -> Any:
    import intarsia

    model = laid_out(folder / "hf", layout)
    intarsia.load(folder / form, into=model, memory=BUDGET_BYTES)
    return model


def by_dcp(folder: Path, layout: dict[str, int]) -> Any:
    import torch.distributed.checkpoint as dcp

    model = laid_out(folder / "hf", layout).to_empty(device="cpu")
    dcp.load(model.state_dict(), checkpoint_id=str(folder / "dcp"))
    return model


def by_transformers(folder: Path, layout: dict[str, int]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, DistributedConfig

    asked = DistributedConfig(**layout)
    model = AutoModelForCausalLM.from_pretrained(
        folder / "hf", dtype=torch.bfloat16, distributed_config=asked
    )
    for param in model.parameters():  # a mapped page is read when it is touched
        held = param.to_local() if hasattr(param, "to_local") else param
        held.detach().flatten()[::2048].sum()
    return model


def by_accelerate(folder: Path, layout: dict[str, int]) -> Any:
    import torch
    import torch.distributed as dist
    from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict
    from transformers import AutoModelForCausalLM

    switches = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    os.environ |= switches
    try:
        full = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.bfloat16)
    finally:
        for name in switches:
            del os.environ[name]
    model = laid_out(folder / "hf", layout)
    main = SimpleNamespace(is_main_process=dist.get_rank() == 0)
    return fsdp2_load_full_state_dict(main, model, full.state_dict())


def ways(count: int) -> dict[str, Callable[[Path], Any]]:
    fsdp, tp = {"fsdp_size": count}, {"tp_size": count}
    return {
        "FSDP  intarsia.load of hf": lambda at: by_intarsia(at, fsdp, "hf"),
        "FSDP  from_pretrained": lambda at: by_transformers(at, fsdp),
        "FSDP  accelerate's broadcast": lambda at: by_accelerate(at, fsdp),
        "FSDP  intarsia.load of dcp": lambda at: by_intarsia(at, fsdp, "dcp"),
        "FSDP  dcp.load": lambda at: by_dcp(at, fsdp),
        "TP    intarsia.load of hf": lambda at: by_intarsia(at, tp, "hf"),
        "TP    from_pretrained": lambda at: by_transformers(at, tp),
    }


OURS = {
    **dict.fromkeys(("FSDP  intarsia.load of hf", "FSDP  from_pretrained", "FSDP  accelerate's broadcast"), "FSDP  intarsia.load of hf"),
    **dict.fromkeys(("FSDP  intarsia.load of dcp", "FSDP  dcp.load"), "FSDP  intarsia.load of dcp"),
    **dict.fromkeys(("TP    intarsia.load of hf", "TP    from_pretrained"), "TP    intarsia.load of hf"),
}  # fmt: skip
"""What each way stands beside."""


def told(file: str, key: str) -> int:
    """A number that the kernel tells of this process."""
    return int(Path(f"/proc/self/{file}").read_text().split(f"{key}:")[1].split()[0])


@dataclass
class Watch:
    """The most anonymous memory that was seen, and the collectives that were called."""

    most: int = 0
    calls: list[str] = field(default_factory=list)


@contextmanager
def watched() -> Iterator[Watch]:
    """Sample this process's memory and count its outermost calls of collectives."""
    import torch.distributed as dist

    watch, stop, inside = Watch(), threading.Event(), threading.local()
    real = {name: getattr(dist, name) for name in FUNCTIONS}

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            outer, inside.on = not getattr(inside, "on", False), True
            if outer:
                watch.calls.append(name)
            try:
                return real[name](*args, **named)
            finally:
                inside.on = not outer

        return call

    def sample() -> None:
        while not stop.wait(0.005):
            watch.most = max(watch.most, told("status", "RssAnon") * 1024)

    thread = threading.Thread(target=sample)
    thread.start()
    for name in FUNCTIONS:
        setattr(dist, name, counted(name))
    try:
        yield watch
    finally:
        for name, function in real.items():
            setattr(dist, name, function)
        stop.set()
        thread.join()


def measure(folder: Path, rounds: int) -> dict[tuple[str, bool], list[Figure]]:
    """The figures of every way on this rank, cold and warm; the first round is not counted."""
    import torch.distributed as dist
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found: dict[tuple[str, bool], list[Figure]] = {}
    for number in range(rounds + 1):
        for name, way in ways(dist.get_world_size()).items():
            for cold in (True, False):
                figure = one(way, folder, cold)
                if number:
                    found.setdefault((name, cold), []).append(figure)
    return found


def one(way: Callable[[Path], Any], folder: Path, cold: bool) -> Figure:
    import torch.distributed as dist

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    if cold and dist.get_rank() == 0:
        drop(folder)
    dist.barrier()
    with watched() as watch:
        before, read = told("status", "RssAnon") * 1024, told("io", "rchar")
        started = time.perf_counter()
        model = way(folder)
        seconds = time.perf_counter() - started
        read = told("io", "rchar") - read
    held = {id(p): p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()}
    shard = sum(x.nbytes for x in held.values())
    dist.barrier()
    return Figure(seconds, read, max(0, watch.most - before), shard, len(watch.calls))


def load(at: Setting) -> Iterator[Row]:
    """Every way on 2 and on 4 ranks; the slowest rank counts, and the bytes of all together."""
    for kind in SIZES:
        folder = at.root / kind
        size = on_ranks(1, write_model, folder, kind, at.gigabytes)[0]
        for count in (2, 4) if at.rounds > 2 else (2,):
            found = on_ranks(count, measure, folder, at.rounds)
            for cold in (False, True):
                yield from _rows(found, cold, size, {"model": kind, "ranks": count})
        remove(folder)


def _rows(
    ranks: list[dict[tuple[str, bool], list[Figure]]], cold: bool, size: int, where: dict[str, Any]
) -> list[Row]:
    def costs(name: str) -> list[Cost]:
        return [
            Cost(
                max(f.seconds for f in each),
                read_bytes=sum(f.read_bytes for f in each),
                peak_bytes=max(f.peak_bytes - f.shard_bytes for f in each),
            )
            for each in zip(*(r[name, cold] for r in ranks), strict=True)
        ]

    at = {**where, "cache": "cold" if cold else "warm"}
    rows = [Row(name, at, costs(name), size) for name in ways(len(ranks))]
    return with_ratios(rows, {row.job: OURS[row.job] for row in rows})


WIDTHS = {"large tensors": 1536, "small tensors": 256}
"""Rows and columns of every weight."""


def background(at: Setting) -> Iterator[Row]:
    """The pause on two ranks; a pause of the slowest is a pause of all."""
    shard_bytes = round(at.gigabytes * 1e9 / 3.5)
    for label, width in WIDTHS.items():
        folder = at.root / "background"
        folder.mkdir()
        found = on_ranks(2, pauses, folder, width, max(7, at.rounds), shard_bytes)
        where = {"tensors": found[0]["tensors"], "of": label}
        rows = [
            Row(
                name,
                where,
                [Cost(max(each)) for each in zip(*(f["seconds"][name] for f in found), strict=True)],
                found[0]["bytes"],
            )
            for name in found[0]["seconds"]
        ]  # fmt: skip
        yield from with_ratios(rows, dict.fromkeys((row.job for row in rows), "copy_"))
        remove(folder)


def pauses(folder: Path, width: int, rounds: int, shard_bytes: int) -> dict[str, Any]:
    """Seconds of each way in each round on this rank, after one round that does not count."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import intarsia

    layers = max(1, 2 * shard_bytes // (3 * 4 * width * width))
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
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
                    remove(path)
            if number:
                found[name].append(seconds)
    return {"seconds": found, "tensors": len(local), "bytes": sum(x.nbytes for x in local)}


PARTS = {
    "load": (load, "a model sharded over processes, loaded by each rank; ratios are to ours"),
    "background": (background, "the pause of a save in the background on two ranks, beside a plain copy of the memory"),
}  # fmt: skip


if __name__ == "__main__":
    parts_asked("ranks", __doc__, PARTS, gigabytes=0.7)
