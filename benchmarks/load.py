"""Loading a checkpoint into a sharded model, beside the ways that torch, Transformers and accelerate have.

A dense and a mixture-of-experts model of about 0.7 GB in bf16, on 2 and on 4 gloo processes, from warm
and from dropped caches.  Every way is the whole road: build the model on `meta`, lay it out, fill
it.  Bytes are what processes took from the kernel by reading (`rchar`).  A mapped file does not show
there: Transformers leaves dense weights mapped, which saves it the copy and the memory until they are
written to.  Memory is the most that was anonymous above what was there before, and collectives are
the outermost calls of torch.distributed.

accelerate does not shard on CPU, so its way is Transformers' RAM-efficient load and then accelerate's own
`fsdp2_load_full_state_dict`, called by hand.

    python benchmarks/load.py [--rounds 3] [--gigabytes 0.7] [--folder DIR]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from on_ranks import on_ranks

SIZES: dict[str, dict[str, Any]] = {
    "qwen3": {"hidden_size": 1536, "intermediate_size": 6144, "head_dim": 128,
              "num_attention_heads": 12, "num_key_value_heads": 4},
    "qwen3_moe": {"hidden_size": 1024, "intermediate_size": 2048, "head_dim": 64,
                  "num_attention_heads": 16, "num_key_value_heads": 4, "num_experts": 32,
                  "num_experts_per_tok": 4, "moe_intermediate_size": 512},
}  # fmt: skip
SPARE_BYTES = 300 * 10**6
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


def drop(folder: Path) -> None:
    """Drop a checkpoint's pages from the cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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


def report(count: int, size: int, ranks: list[dict[tuple[str, bool], list[Figure]]]) -> None:
    print(
        f"{'way':<30}{'cold s':>8}{'warm s':>8}{'x ours':>8}{'read/ckpt':>11}{'read/shard':>12}"
        f"{'peak-shard MB':>15}{'collectives':>13}"
    )
    base = 0.0
    for name in ways(count):
        per_rank = {cold: [r[name, cold] for r in ranks] for cold in (True, False)}
        seconds = {
            cold: statistics.median(max(f.seconds for f in fs) for fs in zip(*rows, strict=True))
            for cold, rows in per_rank.items()
        }
        rows = per_rank[False]
        if "intarsia" in name:
            base = seconds[False]
        read = [statistics.median(f.read_bytes for f in fs) for fs in rows]
        share = max(r / fs[0].shard_bytes for r, fs in zip(read, rows, strict=True))
        over = max(statistics.median(f.peak_bytes - f.shard_bytes for f in fs) for fs in rows)
        print(
            f"{name:<30}{seconds[True]:>8.2f}{seconds[False]:>8.2f}{seconds[False] / base:>8.2f}"
            f"{sum(read) / size:>11.3f}{share:>12.3f}{over / 1e6:>15.0f}{rows[0][0].collectives:>13}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=0.7)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    for kind in SIZES:
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
            size = on_ranks(1, write_model, Path(scratch), kind, options.gigabytes)[0]
            for count in (2, 4):
                found = on_ranks(count, measure, Path(scratch), options.rounds)
                print(
                    f"{kind}, {size / 1e9:.2f} GB, {count} ranks, {options.rounds} rounds, medians"
                )
                report(count, size, found)
    print(
        f"bars: read 1.05 x the checkpoint and 1.05 x the shard (FSDP), peak shard"
        f" + {(SPARE_BYTES + BUDGET_BYTES) / 1e6:.0f} MB, 2 collectives"
    )


if __name__ == "__main__":
    main()
