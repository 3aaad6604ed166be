"""Conversions between all pairs of formats beside `cp -r` of the same files, and digests beside reading.

Each conversion is a process of its own, from its start to its end.  Our commits are synced and `cp -r`
leaves its bytes in memory, so a copy that ends with a sync stands beside the plain one.

    pairs      a dense model between hf, dcp, torch_dist and fsdp_dtensor, with digests
    within     the same by `intarsia.convert` in one process, without the start of a command
    experts    a mixture of experts between hf and torch_dist, beside the road through the model in memory
    optimizer  weights with main weights and moments, seven times their bytes, from format to format
    digests    digests of each format beside reading it through the planner, `sha256sum` and `xxh128`

    PYTHONPATH=src python -m benchmarks.formats [--gigabytes 1] [--rounds 3] [--only pairs] [--folder DIR]
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from benchmarks.models import bits_of, data_files, llama, moe, write_hf

CONVERT = (sys.executable, "-m", "intarsia", "convert", "--quiet")
MESHES = {
    "hf": (),
    "dcp": ("--mesh", "tp=2,fsdp=3"),
    "torch_dist": ("--mesh", "tp=2,pp=2"),
    "fsdp_dtensor": ("--mesh", "fsdp=4,tp=2"),
}
SYNCED = "cp -r, synced"
THROUGH_THE_MODEL = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
model.save_pretrained(sys.argv[2])
"""
XXHASH = """
import sys, xxhash
for path in sys.argv[1:]:
    h = xxhash.xxh128()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            h.update(block)
"""


@dataclass(frozen=True)
class Ways:
    """Jobs that read one source and write the same place."""

    source: Path
    out: Path

    def convert(self, to: str, *more: str) -> Callable[[], Cost]:
        return process(*CONVERT, self.source, self.out, "--to", to, *MESHES[to], *more)

    def within(self, to: str) -> Callable[[], Cost]:
        """The same conversion, called in this process."""
        import intarsia

        mesh = MESHES[to][1] if MESHES[to] else None
        return here(lambda: intarsia.convert(self.source, self.out, to=to, mesh=mesh))

    def copies(self) -> dict[str, Callable[[], Cost]]:
        return {
            "cp -r": process("cp", "-r", self.source, self.out),
            SYNCED: process("sh", "-c", f"cp -r {self.source} {self.out} && sync"),
            f"cp, {CORES} at a time": process(
                "sh", "-c",
                f"mkdir -p {self.out} && find {self.source} -type f -print0"
                f" | xargs -0 -P {CORES} -n 1 cp -t {self.out}",
            ),
        }  # fmt: skip


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in data_files(folder))


def turns(at: Setting, ways: Ways, jobs: dict[str, Callable[[], Cost]], where: Any) -> list[Row]:
    """Measure jobs by turns with a synced copy of their source, and with other copies that are among them."""
    from os import sync

    return take_turns(
        {SYNCED: ways.copies()[SYNCED], **jobs}, where, size_of(ways.source), rounds=at.rounds, seconds=15,
        beside=[SYNCED, "cp -r"], before=sync, after=lambda: remove(ways.out),
    )  # fmt: skip


def pairs(at: Setting) -> Iterator[Row]:
    """Every format to every format."""
    write_each(at)
    for source in MESHES:
        ways = Ways(at.root / source, at.root / "out")
        jobs = {f"{source} -> {to}": ways.convert(to) for to in MESHES}
        if source == "hf":
            jobs |= {**ways.copies(), "hf -> dcp, no digests": ways.convert("dcp", "--no-digests")}
        yield from turns(at, ways, jobs, {"from": source})


def within(at: Setting) -> Iterator[Row]:
    """Every format to every format, in this process."""
    write_each(at)
    for source in MESHES:
        ways = Ways(at.root / source, at.root / "out")
        jobs = {f"{source} -> {to}": ways.within(to) for to in MESHES}
        yield from turns(at, ways, jobs, {"from": source})


def write_each(at: Setting) -> None:
    """The same model in every format, as far as it is not there yet."""
    if not (at.root / "hf").exists():
        in_child(write_hf, at.root / "hf", llama(at.gigabytes), 2)
    for name in list(MESHES)[1:]:
        if not (at.root / name).exists():
            run(Ways(at.root / "hf", at.root / name).convert(name))


def run(job: Callable[[], Cost]) -> None:
    job()


def experts(at: Setting) -> Iterator[Row]:
    """A mixture of experts to Megatron and back, beside the road through the model."""
    hf, td, out = (at.root / name for name in ("moe", "moe-td", "out"))
    in_child(write_hf, hf, moe(at.gigabytes / 3), 2)
    run(Ways(hf, td).convert("torch_dist", "--mesh", "tp=2,ep=4,pp=2"))
    there = Ways(hf, out)
    jobs = {
        "hf -> torch_dist": there.convert("torch_dist", "--mesh", "tp=2,ep=4,pp=2"),
        "from_pretrained, save_pretrained": process(sys.executable, "-c", THROUGH_THE_MODEL, hf, out),
    }  # fmt: skip
    yield from turns(at, there, jobs, {"model": "moe", "from": "hf"})
    back = Ways(td, out)
    yield from turns(
        at, back, {"torch_dist -> hf": back.convert("hf")}, {"model": "moe", "from": "torch_dist"}
    )
    remove(hf)
    remove(td)


def write_trained(folder: Path, gigabytes: float) -> int:
    """A small model with main weights and moments beside it."""
    import numpy as np
    from safetensors.numpy import save_file

    model = llama(gigabytes / 7)
    write_hf(folder, model, 1)
    random = np.random.default_rng(1)
    state: dict[str, Any] = {}
    for name, shape in model.shapes.items():
        # Main weights that round to the weights: bits of less than half a step below those of bf16.
        below = random.integers(0, 1 << 15, shape, np.uint32)
        main = (bits_of(name, shape).astype(np.uint32) << 16) | below
        state[f"optimizer.master.{name}"] = main.view(np.float32)
        for kind in ("exp_avg", "exp_avg_sq"):
            state[f"optimizer.{kind}.{name}"] = random.random(shape, np.float32)
        state[f"optimizer.step.{name}"] = np.array(7, np.float32)
    (folder / "optimizer").mkdir()
    save_file(state, folder / "optimizer" / "model.safetensors", {"format": "pt"})
    return 0


def optimizer(at: Setting) -> Iterator[Row]:
    """Weights with their optimizer state, from format to format."""
    roots = {name: at.root / f"trained-{name}" for name in ("hf", "fsdp_dtensor", "torch_dist")}
    in_child(write_trained, roots["hf"], at.gigabytes / 2)
    run(Ways(roots["hf"], roots["fsdp_dtensor"]).convert("fsdp_dtensor"))
    run(Ways(roots["fsdp_dtensor"], roots["torch_dist"]).convert("torch_dist"))
    after = {"hf": "fsdp_dtensor", "fsdp_dtensor": "torch_dist", "torch_dist": "dcp"}
    for source, to in after.items():
        ways = Ways(roots[source], at.root / "out")
        jobs = {f"{source} -> {to}": ways.convert(to)}
        yield from turns(at, ways, jobs, {"state": "optimizer", "from": source})
    for path in roots.values():
        remove(path)


def digests(at: Setting) -> Iterator[Row]:
    """Digests of each format, in one process, beside reading the same tensors and dropping them."""
    import intarsia

    write_each(at)
    for name in MESHES:
        path = at.root / name
        files = data_files(path)
        jobs: dict[str, Callable[[], Cost]] = {
            "read": here(lambda files=files: limits.read(files, CORES)),
            "read each tensor": here(lambda path=path: read_tensors(path)),
            "digest": here(lambda path=path: intarsia.digest(path)),
        }
        if name == "hf":
            jobs |= others(files)
        intarsia.digest(path)
        yield from take_turns(
            jobs, {"format": name}, size_of(path), rounds=at.rounds, seconds=4, beside=["read each tensor", "read"],
        )  # fmt: skip


def others(files: list[Path]) -> dict[str, Callable[[], Cost]]:
    """What else sums up files."""
    found = {"digest --secure": here(lambda: _secure(files[0].parent))}
    found["sha256sum"] = process("sha256sum", *files)
    if shutil.which("xxh128sum"):
        found["xxh128sum"] = process("xxh128sum", *files)
    else:
        found["xxh128 (package)"] = process(sys.executable, "-c", XXHASH, *files)
    return found


def _secure(path: Path) -> None:
    import intarsia

    intarsia.digest(path, secure=True)


def read_tensors(path: Path) -> None:
    """Read every logical tensor, window by window, on the threads that a digest would have."""
    import intarsia
    from intarsia.planning.window import windows
    from intarsia.run.budget import Budget

    budget = Budget.of()
    with intarsia.open(path) as checkpoint:

        def one(x: Any) -> None:
            proven = checkpoint.prover.tensor(x.name)
            for box in windows(x.shape, x.dtype.itemsize, budget.window_bytes):
                checkpoint.read_box(proven, box)

        with ThreadPoolExecutor(budget.workers) as pool:
            list(pool.map(one, checkpoint.manifest.logical.values()))


PARTS = {
    "pairs": (pairs, "a dense model between all pairs of formats, each command from its start to its end, beside a copy of the same files"),
    "within": (within, "the same by `intarsia.convert` in one process, without the start of a command, beside a copy of the same files"),
    "experts": (experts, "a mixture of experts between Hugging Face and Megatron, beside a copy of the same files"),
    "optimizer": (optimizer, "weights with optimizer state between formats, beside a copy of the same files"),
    "digests": (digests, "digests in one process, files in the page cache, beside reading the same tensors"),
}  # fmt: skip


if __name__ == "__main__":
    parts_asked("formats", __doc__, PARTS, gigabytes=1.0)
