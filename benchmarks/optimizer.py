"""Weights with their optimizer state, seven times the bytes of the weights, between formats.

A small model's bf16 weights, fp32 main weights and two moments, as Hugging Face with its side
folder; to Megatron-FSDP, on to Megatron's torch_dist, on to DCP.  Beside it in the same run:
`cp -r` of the source, with and without a sync.

    python benchmarks/optimizer.py [--rounds 5] [--gigabytes 2] [--folder DIR]
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from beside_cp import CONVERT, compare, in_child, run, setting
from convert import HIDDEN, INNER, VOCAB, write_model
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
    with setting(__doc__) as at:
        hf, fd, td, out = (str(at.root / name) for name in ("hf", "fd", "td", "out"))
        layers = at.layers(14 * HIDDEN * (128 * 40 + 3 * INNER), 28 * VOCAB * HIDDEN)
        size = in_child(write_trained, at.root / "hf", layers)
        to_fd = ("--to", "fsdp_dtensor", "--mesh", "fsdp=4,tp=2")
        to_td = ("--to", "torch_dist", "--mesh", "tp=2,pp=2")
        run(*CONVERT, hf, fd, *to_fd)
        run(*CONVERT, fd, td, *to_td)
        jobs = {
            "hf -> fsdp_dtensor": (*CONVERT, hf, out, *to_fd),
            "fsdp_dtensor -> torch_dist": (*CONVERT, fd, out, *to_td),
            "torch_dist -> dcp": (*CONVERT, td, out, "--to", "dcp", "--mesh", "fsdp=8"),
        }
        compare(at, at.root / "hf", size, jobs, "1.5 x cp, 512 + 300 MiB")


if __name__ == "__main__":
    main()
