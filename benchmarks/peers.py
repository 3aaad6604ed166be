"""Loading, saving and merging in one process, beside the libraries that others use for it.

What is held afterwards is the same for all: every weight in memory of its own (`load` of ours, `dcp.load`,
fastsafetensors, the streamer of Run:ai), or left in the page cache until it is touched (`safetensors`, Transformers),
in which case a byte of every page is touched.  Files lie in the page cache.

    load   a checkpoint of Hugging Face into memory, beside `cat`
    dcp    one of torch into memory, beside `dcp.load`
    save   a model to disk, beside `dcp.save`, torch's writer of safetensors, `save_pretrained` and a synced `cp -r`
    merge  a sharded checkpoint of torch into safetensors, beside accelerate's merge

    PYTHONPATH=src python -m benchmarks.peers [--gigabytes 0.7] [--rounds 3] [--only load] [--folder DIR]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
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
    parts_asked,
    process,
    remove,
    take_turns,
)  # fmt: skip
from benchmarks.models import data_files, empty_model, llama, memory_like, moe, write_hf

PAGE_ELEMENTS = 2048


def touch(tensors: Any) -> None:
    """Have each page of mapped tensors read."""
    for x in tensors:
        x.detach().flatten()[::PAGE_ELEMENTS].sum()


def load(at: Setting) -> Iterator[Row]:
    """Safetensors to memory."""
    for name, make in (("llama", llama), ("moe", moe)):
        hf = at.root / name
        size = in_child(write_hf, hf, make(at.gigabytes), 2)
        jobs = loading(hf)
        yield from take_turns(
            jobs, {"model": name}, size, rounds=at.rounds, warm=1, beside=["cat", "load"]
        )
        remove(hf)


def loading(hf: Path) -> dict[str, Callable[[], Cost]]:
    """The ways to load a checkpoint of Hugging Face."""
    import intarsia

    files = data_files(hf)

    def ours(**options: Any) -> None:
        intarsia.load(hf, into=empty_model(hf), device="cpu", **options)

    def safetensors() -> None:
        from safetensors.torch import load_file

        for path in files:
            touch(load_file(path).values())

    def from_pretrained() -> None:
        import torch
        from transformers import AutoModelForCausalLM

        touch(AutoModelForCausalLM.from_pretrained(hf, dtype=torch.bfloat16).parameters())

    def hf_reader() -> None:
        import torch.distributed.checkpoint as dcp

        reader = dcp.HuggingFaceStorageReader(str(hf), thread_count=CORES)
        dcp.load(memory_like(hf), storage_reader=reader, no_dist=True)

    def fastsafetensors() -> None:
        from fastsafetensors import fastsafe_open

        with fastsafe_open([str(path) for path in files], nogds=True, device="cpu") as held:
            touch([held.get_tensor(name) for name in held.keys()])  # noqa: SIM118

    def runai() -> None:
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(path) for path in files])
            kept = dict(streamer.get_tensors())
        del kept

    jobs: dict[str, Callable[[], Cost]] = {
        "cat": process("sh", "-c", "cat " + " ".join(map(str, files)) + " > /dev/null"),
        f"read, {CORES} threads": here(lambda: limits.read(files, CORES)),
        "load": here(ours),
        "load into memory that is there": here(_into(hf)),
        "safetensors load_file": here(safetensors),
        "from_pretrained": here(from_pretrained),
        "dcp.load, HuggingFaceStorageReader": here(hf_reader),
        "fastsafetensors": here(fastsafetensors),
        "runai streamer": here(runai),
    }
    if "mapped" in inspect.signature(intarsia.load).parameters:
        jobs["load, mapped"] = here(lambda: ours(mapped=True))
    return jobs


def _into(hf: Path) -> Callable[[], None]:
    import intarsia

    into = memory_like(hf)
    return lambda: intarsia.load(hf, into=into) and None


def dcp(at: Setting) -> Iterator[Row]:
    """A checkpoint of torch to memory."""
    import torch.distributed.checkpoint as torch_dcp

    import intarsia

    hf, path = at.root / "hf", at.root / "dcp"
    size = in_child(write_hf, hf, llama(at.gigabytes), 2)
    in_child(save_as_torch, hf, path)

    def ours() -> None:
        intarsia.load(path, into=memory_like(hf))

    def theirs() -> None:
        torch_dcp.load(memory_like(hf), checkpoint_id=str(path), no_dist=True)

    files = data_files(path)
    jobs = {
        "cat": process("sh", "-c", "cat " + " ".join(map(str, files)) + " > /dev/null"),
        "load": here(ours),
        "dcp.load": here(theirs),
    }
    yield from take_turns(
        jobs, {"model": "llama"}, size, rounds=at.rounds, warm=1, beside=["cat", "load"]
    )


def save_as_torch(hf: Path, path: Path) -> None:
    """Load a checkpoint of Hugging Face and save it as torch does."""
    import torch.distributed.checkpoint as torch_dcp
    from safetensors.torch import load_file

    held = {n: x for file in data_files(hf) for n, x in load_file(file).items()}
    torch_dcp.save(held, checkpoint_id=str(path), no_dist=True)


def save(at: Setting) -> Iterator[Row]:
    """Memory to disk."""
    import os

    import torch
    import torch.distributed.checkpoint as torch_dcp
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    import intarsia

    hf, out = at.root / "hf", at.root / "out"
    if not hf.exists():
        in_child(write_hf, hf, llama(at.gigabytes), 2)
    held = {n: x.clone() for file in data_files(hf) for n, x in load_file(file).items()}
    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.bfloat16)
    size = sum(x.nbytes for x in held.values())

    def torch_hf() -> None:
        writer = torch_dcp.HuggingFaceStorageWriter(str(out), thread_count=CORES)
        torch_dcp.save(held, storage_writer=writer, no_dist=True)

    def plain() -> None:
        out.mkdir()
        save_file(held, out / "model.safetensors")

    def synced(work: Callable[[], Any]) -> Callable[[], Cost]:
        def whole() -> None:
            work()
            os.sync()

        return here(whole)

    jobs = {
        "cp -r, synced": process("sh", "-c", f"cp -r {hf} {out} && sync"),
        "save": here(lambda: intarsia.save(out, held)),
        "dcp.save": here(lambda: torch_dcp.save(held, checkpoint_id=str(out), no_dist=True)),
        "dcp.save, HuggingFaceStorageWriter": here(torch_hf),
        "safetensors save_file, synced": synced(plain),
        "save_pretrained, synced": synced(lambda: model.save_pretrained(out)),
    }
    yield from take_turns(
        jobs, {"model": "llama"}, size, rounds=at.rounds, warm=1, beside=["cp -r, synced", "save"],
        before=os.sync, after=lambda: remove(out),
    )  # fmt: skip


def merge(at: Setting) -> Iterator[Row]:
    """A sharded checkpoint of torch to safetensors."""
    import os

    import intarsia

    hf, path, out = at.root / "hf", at.root / "dcp", at.root / "out"
    if not hf.exists():
        in_child(write_hf, hf, llama(at.gigabytes), 2)
    if not path.exists():
        in_child(save_as_torch, hf, path)
    config = hf / "config.json"

    def theirs() -> None:
        from accelerate.utils import merge_fsdp_weights

        merge_fsdp_weights(str(path), str(out))
        os.sync()

    jobs = {
        "cp -r, synced": process("sh", "-c", f"cp -r {path} {out} && sync"),
        "convert": here(lambda: intarsia.convert(path, out, to="hf", config=config)),
        "accelerate merge, synced": here(theirs),
    }
    yield from take_turns(
        jobs, {"model": "llama"}, sum(f.stat().st_size for f in data_files(path)), rounds=at.rounds,
        warm=1, beside=["cp -r, synced", "convert"], before=os.sync, after=lambda: remove(out),
    )  # fmt: skip


PARTS = {
    "load": (load, "safetensors in the page cache into memory of one process, beside cat of the same files"),
    "dcp": (dcp, "a checkpoint of torch in the page cache into memory of one process, beside cat of the same files"),
    "save": (save, "a model in memory of one process to disk, synced, beside a synced cp"),
    "merge": (merge, "a checkpoint of torch into safetensors, beside a synced cp"),
}  # fmt: skip


if __name__ == "__main__":
    parts_asked("peers", __doc__, PARTS, gigabytes=0.7)
