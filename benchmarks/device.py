"""Loading into a GPU and saving from it: rates, and the pause of a background save beside a plain copy.

PYTHONPATH=src python benchmarks/device.py [--gigabytes 2]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import intarsia

ROWS, COLUMNS = 8192, 4096


def model(count: int, device: str) -> nn.Module:
    """A model of `count` matrices of 64 MiB."""
    made = nn.Module()
    for k in range(count):
        weight = torch.empty(ROWS, COLUMNS, device=device, dtype=torch.bfloat16)
        if device != "meta":
            weight.normal_(std=0.02)
        made.register_parameter(f"weight{k}", nn.Parameter(weight))
    return made


def median(work: Callable[[], object], rounds: int = 5) -> float:
    """The median time of several rounds after one that is not counted."""
    found = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here")
        return
    held = model(max(1, round(asked.gigabytes * 1e9 / (2 * ROWS * COLUMNS))), "cuda")
    size = sum(p.numel() * p.element_size() for p in held.parameters()) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        save = median(lambda: intarsia.save(path, held, overwrite=True))
        load = median(lambda: intarsia.load(path, into=held))
        pinned = [torch.empty_like(p, device="cpu", pin_memory=True) for p in held.parameters()]

        def copy() -> None:
            for to, at in zip(pinned, held.parameters(), strict=True):
                to.copy_(at.detach())

        plain = median(copy)
        pauses = []
        for k in range(6):
            torch.cuda.synchronize()
            started = time.perf_counter()
            saving = intarsia.save(Path(folder) / f"step-{k}", held, background=True)
            pauses.append(time.perf_counter() - started)
            saving.wait()
        pause = statistics.median(pauses[1:])
    print(f"{torch.cuda.get_device_name()}, {size:.2f} GB, medians of 5 after a warm-up")
    print(f"save        {size / save:6.2f} GB/s, synced to disk")
    print(f"load        {size / load:6.2f} GB/s, files in the page cache")
    print(
        f"background  {pause * 1e3:6.1f} ms pause, a pinned copy takes {plain * 1e3:.1f} ms: {pause / plain:.2f} x"
    )


if __name__ == "__main__":
    main()
