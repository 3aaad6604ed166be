"""Converting a 2 GB model, beside `cp -r` of the same files in the same run.

For each round: `cp -r` of the source, the same with its bytes on disk at the end, Hugging Face to
DCP on tp=2,fsdp=3, and back (synced, as every commit of ours is), each in a process of its own,
with `--memory 512MiB`.  Prints medians, ratios to both kinds of copy, peak memory, and the bytes
that each process handed to the kernel for writing.

    python benchmarks/convert.py [--rounds 5] [--gigabytes 2] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SRC = Path(__file__).parents[1] / "src"
HIDDEN, INNER, VOCAB, HEADS, GROUPS, WIDTH = 2048, 5632, 32_000, 16, 4, 128


def write_model(folder: Path, layers: int) -> int:
    """A dense model of random bits; its bytes."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "vocab_size": VOCAB,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": WIDTH,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    norms = ["model.norm.weight"]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.self_attn.q_proj.weight"] = (HEADS * WIDTH, HIDDEN)
        shapes[f"{at}.self_attn.k_proj.weight"] = (GROUPS * WIDTH, HIDDEN)
        shapes[f"{at}.self_attn.v_proj.weight"] = (GROUPS * WIDTH, HIDDEN)
        shapes[f"{at}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * WIDTH)
        shapes[f"{at}.mlp.gate_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{at}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{at}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        norms += [f"{at}.{n}.weight" for n in ("input_layernorm", "post_attention_layernorm")]
    random = np.random.default_rng(0)
    tensors = {
        name: random.integers(0, 60_000, shape, np.uint16).view(np.float16)
        for name, shape in [*shapes.items(), *((n, (HIDDEN,)) for n in norms)]
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return sum(t.nbytes for t in tensors.values())


def in_child(function: Callable[..., int], *arguments: object) -> int:
    """Call a function in a fresh process: peak memory is inherited by those that this one starts."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def run(*command: str) -> tuple[float, int, int]:
    """Seconds, peak resident bytes and written bytes of a process."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(SRC)}, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with {status}")
    return time.perf_counter() - started, usage.ru_maxrss * 1024, usage.ru_oublock * 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        root = Path(scratch)
        layer_bytes = 2 * HIDDEN * (WIDTH * (2 * HEADS + 2 * GROUPS) + 3 * INNER)
        layers = max(1, round((options.gigabytes * 1e9 - 4 * VOCAB * HIDDEN) / layer_bytes))
        size = in_child(write_model, root / "hf", layers)
        us = (sys.executable, "-m", "intarsia", "convert", "--memory", "512MiB", "--quiet")
        jobs = {
            "cp -r": lambda: run("cp", "-r", f"{root}/hf", f"{root}/out"),
            "cp -r, synced": lambda: run("sh", "-c", f"cp -r {root}/hf {root}/out && sync"),
            "hf -> dcp": lambda: run(
                *us, f"{root}/hf", f"{root}/out", "--to", "dcp", "--mesh", "tp=2,fsdp=3"
            ),
            "dcp -> hf": lambda: run(*us, f"{root}/dcp", f"{root}/out", "--to", "hf"),
        }
        run(*us, f"{root}/hf", f"{root}/dcp", "--to", "dcp", "--mesh", "tp=2,fsdp=3")
        figures: dict[str, list[tuple[float, int, int]]] = {name: [] for name in jobs}
        for _ in range(options.rounds):
            for name, job in jobs.items():
                os.sync()
                figures[name].append(job())
                shutil.rmtree(root / "out")
        print(f"{size / 1e9:.2f} GB, {options.rounds} rounds, medians")
        print(
            f"{'job':<15}{'seconds':>9}{'x cp':>7}{'x synced':>10}{'peak MiB':>10}{'written / size':>16}"
        )
        base, synced = (
            statistics.median(s for s, _, _ in figures[c]) for c in ("cp -r", "cp -r, synced")
        )
        for name, rows in figures.items():
            seconds = statistics.median(s for s, _, _ in rows)
            peak = max(p for _, p, _ in rows) / 2**20
            written = statistics.median(w for _, _, w in rows) / size
            ratios = f"{seconds / base:>7.2f}{seconds / synced:>10.2f}"
            print(f"{name:<15}{seconds:>9.2f}{ratios}{peak:>10.0f}{written:>16.3f}")
        print("bars: 1.5 x cp, 512 + 300 MiB, each byte written once")


if __name__ == "__main__":
    main()
