"""Loading into a GPU and saving from it, each beside its peers and beside what the hardware allows.

The parts are apart: one that fails is reported, and the others go on.

    load        a checkpoint in the page cache into memory of the GPU, by workers, beside `safetensors`, Transformers,
                reads into pinned memory, the copy to the device alone, and both of these overlapped
    scatter     the same into strided, transposed and fused memory, beside the device's own copy into it
    ranks       several gloo processes that share the GPU, each loading its shard
    save        the model from the GPU to disk, beside torch's and a synced `cp`
    background  the pause of a save in the background, beside a pinned copy, of large and of small tensors

    PYTHONPATH=src python -m benchmarks.device [--gigabytes 2] [--only load,save] [--rounds 5] [--out DIR]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.limits import BLOCK_BYTES
from benchmarks.measure import (
    CORES,
    Cost,
    Row,
    here,
    machine,
    on_ranks,
    process,
    remove,
    run_parts,
    take_turns,
    versions,
)  # fmt: skip
from benchmarks.models import MODELS, data_files, empty_model, memory_like, write_hf
from benchmarks.scaling import folder_for

SHARING = 4
"""Processes that share the GPU."""
SMALL_TENSORS, SMALL_ELEMENTS = 2000, 25_600
LARGE_ROWS, LARGE_COLUMNS = 8192, 4096


@dataclass(frozen=True)
class Asked:
    """What the command line asks for, and a folder to work in."""

    gigabytes: float
    rounds: int
    seconds: float
    root: Path

    def llama(self) -> tuple[Path, int]:
        """A dense model, written once for all parts, and its bytes."""
        path, model = self.root / "llama", MODELS["llama"](self.gigabytes)
        if not path.exists():
            write_hf(path, model)
        return path, model.nbytes

    def turns(self, jobs: Mapping[str, Callable[[], Cost]], **named: Any) -> list[Row]:
        at, nbytes = named.pop("at"), named.pop("nbytes")
        return take_turns(
            jobs, at, nbytes, rounds=self.rounds, seconds=self.seconds, warm=1, **named
        )


def on_gpu(work: Callable[[], Any]) -> Callable[[], Cost]:
    """A job that has ended when the GPU has."""
    import torch

    def whole() -> None:
        kept = work()
        torch.cuda.synchronize()
        del kept

    timed = here(whole)

    def run() -> Cost:
        torch.cuda.synchronize()
        return timed()

    return run


def load(asked: Asked) -> Iterator[Row]:
    """File to GPU, by workers."""
    import torch

    import intarsia

    hf, size = asked.llama()
    files, into = data_files(hf), memory_like(hf, "cuda")
    pinned = [torch.empty(BLOCK_BYTES, dtype=torch.uint8).pin_memory() for _ in range(2 * CORES)]
    on_device = [torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda") for _ in pinned]
    for workers in (n for n in (1, 2, 4, 8, 16, 32) if n <= CORES):
        jobs = {
            "read into pinned": lambda n=workers: read_pinned(files, pinned, n),
            "read into pinned + copy": lambda n=workers: read_pinned(files, pinned, n, on_device),
            "load": lambda n=workers: intarsia.load(hf, into=into, workers=n),
        }
        yield from asked.turns(
            {name: on_gpu(job) for name, job in jobs.items()},
            at={"workers": workers}, nbytes=size, beside=["read into pinned + copy", "read into pinned"],
        )  # fmt: skip

    def copies() -> None:
        for _ in range(0, size, BLOCK_BYTES):
            on_device[0].copy_(pinned[0], non_blocking=True)

    def safetensors() -> Any:
        from safetensors.torch import load_file

        return [load_file(path, device="cuda") for path in files]

    def from_pretrained() -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(hf, dtype=torch.bfloat16, device_map="cuda")

    def from_meta() -> Any:
        model = empty_model(hf)
        intarsia.load(hf, into=model, device="cuda")
        return model

    def fastsafetensors() -> Any:
        from fastsafetensors import fastsafe_open

        with fastsafe_open([str(p) for p in files], nogds=True, device="cuda:0") as held:
            return {name: held.get_tensor(name).clone() for name in held.keys()}  # noqa: SIM118

    def runai() -> Any:
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(p) for p in files])
            return {name: tensor.to("cuda") for name, tensor in streamer.get_tensors()}

    jobs = {
        "copy to the device": copies,
        "load": lambda: intarsia.load(hf, into=into),
        "load, model on meta": from_meta,
        "safetensors load_file": safetensors,
        "from_pretrained": from_pretrained,
        "fastsafetensors": fastsafetensors,
        "runai streamer": runai,
    }
    yield from asked.turns(
        {name: on_gpu(job) for name, job in jobs.items()},
        at={"workers": "as given by default"}, nbytes=size, beside=["copy to the device", "load"],
    )  # fmt: skip


def read_pinned(
    files: list[Path], pinned: list[Any], workers: int, on_device: list[Any] | None = None
) -> None:
    """Read every byte into pinned memory, two blocks for each thread, and copy each on if asked."""
    import os

    import torch

    queue: SimpleQueue[tuple[int, int]] = SimpleQueue()
    opened = [path.open("rb", buffering=0) for path in files]
    for file, path in zip(opened, files, strict=True):
        for at in range(0, path.stat().st_size, BLOCK_BYTES):
            queue.put((file.fileno(), at))

    def worker(number: int) -> None:
        stream = torch.cuda.Stream() if on_device else None
        mine = pinned[2 * number : 2 * number + 2]
        copied = [torch.cuda.Event(), torch.cuda.Event()] if on_device else []
        views = [x.numpy() for x in mine]
        for turn in count():
            try:
                fd, at = queue.get_nowait()
            except Empty:
                break
            k = turn % 2
            if on_device and turn > 1:
                copied[k].synchronize()
            got = os.preadv(fd, [views[k]], at)
            if on_device and stream is not None:
                with torch.cuda.stream(stream):
                    on_device[2 * number + k][:got].copy_(mine[k][:got], non_blocking=True)
                    copied[k].record(stream)
        if stream is not None:
            stream.synchronize()

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(worker, range(workers)))
    for file in opened:
        file.close()


def scatter(asked: Asked) -> Iterator[Row]:
    """File to memory of the GPU that is not in the file's order."""
    import torch

    import intarsia

    hf, _ = asked.llama()
    plain = {n: x for n, x in memory_like(hf, "cuda").items() if x.ndim == 2}
    size = sum(x.nbytes for x in plain.values())

    def strided(x: Any) -> Any:
        return torch.empty(x.shape[0], x.shape[1] + 64, dtype=x.dtype, device="cuda")[:, :-64]

    def transposed(x: Any) -> Any:
        return torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device="cuda").t()

    for shape, make in (("contiguous", None), ("strided", strided), ("transposed", transposed)):
        into = {n: make(x) if make else torch.empty_like(x) for n, x in plain.items()}

        def copy(into: dict[str, Any] = into) -> None:
            for name, x in into.items():
                x.copy_(plain[name])

        jobs = {
            "copy on the device": copy,
            "load": lambda into=into: intarsia.load(hf, into=into, strict=False),
        }
        yield from asked.turns(
            {name: on_gpu(job) for name, job in jobs.items()},
            at={"memory": shape}, nbytes=size, beside=["copy on the device"],
        )  # fmt: skip
        del into
    moe = asked.root / "moe"
    size = write_hf(moe, MODELS["moe"](asked.gigabytes))

    def fused() -> Any:
        model = empty_model(moe)
        intarsia.load(moe, into=model, device="cuda")
        return model

    def from_pretrained() -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(moe, dtype=torch.bfloat16, device_map="cuda")

    jobs = {"load": fused, "from_pretrained": from_pretrained}
    yield from asked.turns(
        {name: on_gpu(job) for name, job in jobs.items()},
        at={"memory": "fused experts"}, nbytes=size, beside=["from_pretrained"],
    )  # fmt: skip
    remove(moe)


def ranks(asked: Asked) -> Iterator[Row]:
    """Processes that share the GPU, each with its rows of every tensor."""
    hf, size = asked.llama()
    found = on_ranks(SHARING, load_shard, hf, asked.rounds)
    slowest = [max(each) for each in zip(*found, strict=True)]
    yield Row("load", {"processes": SHARING}, [Cost(s) for s in slowest], size)


def load_shard(hf: Path, rounds: int) -> list[float]:
    """Seconds of loading this process's rows, after one round that does not count."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    import intarsia

    torch.cuda.set_device(0)
    torch.cuda.init()  # a mesh would choose the device by LOCAL_RANK, and there is one for all
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    into = {}
    for name, x in memory_like(hf, "meta").items():
        rows = x.shape[0] // mesh.size()
        local = torch.empty(rows, *x.shape[1:], dtype=x.dtype, device="cuda")
        into[name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    found = []
    for _ in range(rounds + 1):
        dist.barrier()
        started = time.perf_counter()
        intarsia.load(hf, into=into)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return found[1:]


def large_model(gigabytes: float) -> Any:
    """Matrices of 64 MiB on the GPU."""
    return module_of(max(1, round(gigabytes * 1e9 / (2 * LARGE_ROWS * LARGE_COLUMNS))),
                     (LARGE_ROWS, LARGE_COLUMNS))  # fmt: skip


def module_of(number: int, shape: tuple[int, ...]) -> Any:
    import torch
    from torch import nn

    made = nn.Module()
    for k in range(number):
        weight = torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(std=0.02)
        made.register_parameter(f"weight{k}", nn.Parameter(weight))
    return made


def nbytes_of(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def save(asked: Asked) -> Iterator[Row]:
    """The GPU to disk, synced."""
    import torch.distributed.checkpoint as dcp

    import intarsia

    model = large_model(asked.gigabytes)
    size = nbytes_of(model)
    with tempfile.TemporaryDirectory() as scratch:
        kept, out = Path(scratch) / "kept", Path(scratch) / "out"
        intarsia.save(kept, model)
        jobs = {
            "cp -r, synced": process("sh", "-c", f"cp -r {kept} {out} && sync -f {out}"),
            "save": on_gpu(lambda: intarsia.save(out, model)),
            "dcp.save": on_gpu(
                lambda: dcp.save(model.state_dict(), checkpoint_id=str(out), no_dist=True)
            ),
        }
        yield from asked.turns(
            jobs, at={"to": "disk"}, nbytes=size, beside=["cp -r, synced"], after=lambda: remove(out)
        )  # fmt: skip


def background(asked: Asked) -> Iterator[Row]:
    """How long training stands still."""
    import torch

    import intarsia
    from intarsia.live.background import release

    models = {
        "64 MiB": lambda: large_model(asked.gigabytes),
        "100 KB": lambda: module_of(SMALL_TENSORS, (SMALL_ELEMENTS,)),
    }
    for label, make in models.items():
        model = make()
        held = [p.detach() for p in model.parameters()]
        pinned = [torch.empty_like(p, device="cpu", pin_memory=True) for p in held]

        def copy(pinned: list[Any] = pinned, held: list[Any] = held) -> None:
            for to, at in zip(pinned, held, strict=True):
                to.copy_(at, non_blocking=True)

        def foreach(pinned: list[Any] = pinned, held: list[Any] = held) -> None:
            torch._foreach_copy_(pinned, held)

        with tempfile.TemporaryDirectory(dir=folder_for(3 * nbytes_of(model))) as scratch:
            step = count()
            under_way: list[Any] = []

            def ours(model: Any = model, scratch: str = scratch) -> None:
                at = Path(scratch) / f"save{next(step)}"  # noqa: B023
                under_way.append(intarsia.save(at, model, background=True))  # noqa: B023

            def finish(scratch: str = scratch) -> None:
                while under_way:  # noqa: B023
                    under_way.pop().wait()  # noqa: B023
                for path in Path(scratch).iterdir():
                    remove(path)

            jobs = {
                "pinned copy": on_gpu(copy),
                "pinned copy, foreach": on_gpu(foreach),
                # The pause is the call; what goes on afterwards is not waited for.
                "pause": here(ours),
            }
            yield from take_turns(
                jobs, {"tensors of": label, "tensors": len(held)}, nbytes_of(model),
                rounds=max(7, asked.rounds), beside=["pinned copy"], after=finish, warm=1,
            )  # fmt: skip
        release()


PARTS: dict[str, tuple[Callable[[Asked], Iterator[Row]], str]] = {
    "load": (load, "a checkpoint in the page cache into memory of the GPU"),
    "scatter": (scatter, "a checkpoint into memory of the GPU that is not in the file's order"),
    "ranks": (ranks, "several processes that share the GPU load a shard each"),
    "save": (save, "a model from the GPU to disk, synced"),
    "background": (background, "the pause of a save in the background"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="after which none is repeated")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--folder", default=None)
    parser.add_argument("--out", type=Path, default=None, help="where the results go")
    given = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("torch is not installed here")
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here")
    print(machine(), versions(), sep="\n", flush=True)
    folder = given.folder or folder_for(given.gigabytes * 1e9)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        asked = Asked(given.gigabytes, given.rounds, given.seconds, Path(scratch))
        run_parts("device", PARTS, given.only, asked, given.out, after=torch.cuda.empty_cache)


if __name__ == "__main__":
    main()
