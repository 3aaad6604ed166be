"""Weights with their optimizer state, seven times the bytes of the weights, between formats.

A small model's bf16 weights, fp32 main weights and two moments, as Hugging Face with its side
folder; to Megatron-FSDP, on to Megatron's torch_dist, on to DCP.  Beside it in the same run:
`cp -r` of the source, with and without a sync.

    python benchmarks/optimizer.py [--rounds 5] [--gigabytes 2] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from convert import HIDDEN, INNER, VOCAB, in_child, run, write_model
from safetensors import safe_open
from safetensors.numpy import save_file


def write_trained(folder: Path, layers: int) -> int:
    """The model of `convert.py` with main weights and moments beside it; all bytes."""
    size = write_model(folder, layers)
    random = np.random.default_rng(1)
    state: dict[str, np.ndarray] = {}
    with safe_open(folder / "model.safetensors", "np") as file:
        for name in file.keys():  # noqa: SIM118
            shape = file.get_slice(name).get_shape()
            for kind in ("master", "exp_avg", "exp_avg_sq"):
                state[f"optimizer.{kind}.{name}"] = random.random(shape, np.float32)
            state[f"optimizer.step.{name}"] = np.array(7, np.float32)
    (folder / "optimizer").mkdir()
    save_file(state, folder / "optimizer" / "model.safetensors", {"format": "pt"})
    return size + sum(x.nbytes for x in state.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        root = Path(scratch)
        layer = 14 * HIDDEN * (128 * 40 + 3 * INNER)
        layers = max(1, round((options.gigabytes * 1e9 - 28 * VOCAB * HIDDEN) / layer))
        size = in_child(write_trained, root / "hf", layers)
        us = (sys.executable, "-m", "intarsia", "convert", "--memory", "512MiB", "--quiet")
        hf, fd, td, out = (str(root / name) for name in ("hf", "fd", "td", "out"))
        to_fd = ("--to", "fsdp_dtensor", "--mesh", "fsdp=4,tp=2")
        to_td = ("--to", "torch_dist", "--mesh", "tp=2,pp=2")
        run(*us, hf, fd, *to_fd)
        run(*us, fd, td, *to_td)
        jobs = {
            "cp -r": lambda: run("cp", "-r", hf, out),
            "cp -r, synced": lambda: run("sh", "-c", f"cp -r {hf} {out} && sync"),
            "hf -> fsdp_dtensor": lambda: run(*us, hf, out, *to_fd),
            "fsdp_dtensor -> torch_dist": lambda: run(*us, fd, out, *to_td),
            "torch_dist -> dcp": lambda: run(*us, td, out, "--to", "dcp", "--mesh", "fsdp=8"),
        }
        figures: dict[str, list[tuple[float, int, int]]] = {name: [] for name in jobs}
        for _ in range(options.rounds):
            for name, job in jobs.items():
                os.sync()
                figures[name].append(job())
                shutil.rmtree(out)
        print(f"{size / 1e9:.2f} GB, {options.rounds} rounds, medians")
        print(f"{'job':<28}{'seconds':>9}{'x cp':>7}{'x synced':>10}{'peak MiB':>10}")
        plain, synced = (
            statistics.median(s for s, _, _ in figures[c]) for c in ("cp -r", "cp -r, synced")
        )
        for name, rows in figures.items():
            seconds = statistics.median(s for s, _, _ in rows)
            peak = max(p for _, p, _ in rows) / 2**20
            ratios = f"{seconds / plain:>7.2f}{seconds / synced:>10.2f}"
            print(f"{name:<28}{seconds:>9.2f}{ratios}{peak:>10.0f}")
        print("bars: 1.5 x cp, 512 + 300 MiB")


if __name__ == "__main__":
    main()
