"""Converting a 2 GB model, beside `cp -r` of the same files in the same run.

For each round: `cp -r` of the source, the same with its bytes on disk at the end, Hugging Face to
DCP on tp=2,fsdp=3 with and without digests, and back (synced, as every commit of ours is), each in a
process of its own, with `--memory 512MiB`.  Prints medians, ratios to both kinds of copy, peak
memory, and the bytes that each process handed to the kernel for writing.

    python benchmarks/convert.py [--rounds 5] [--gigabytes 2] [--folder DIR]
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from beside_cp import CONVERT, compare, in_child, run, setting
from safetensors.numpy import save_file

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


def main() -> None:
    with setting(__doc__) as at:
        layer_bytes = 2 * HIDDEN * (WIDTH * (2 * HEADS + 2 * GROUPS) + 3 * INNER)
        hf, dcp, out = (str(at.root / name) for name in ("hf", "dcp", "out"))
        layers = at.layers(layer_bytes, 4 * VOCAB * HIDDEN)
        size = in_child(write_model, at.root / "hf", layers)
        there = ("--to", "dcp", "--mesh", "tp=2,fsdp=3")
        run(*CONVERT, hf, dcp, *there)
        jobs = {
            "hf -> dcp": (*CONVERT, hf, out, *there),
            "dcp -> hf": (*CONVERT, dcp, out, "--to", "hf"),
            "hf -> dcp, no digests": (*CONVERT, hf, out, *there, "--no-digests"),
        }
        compare(at, at.root / "hf", size, jobs, "1.5 x cp, 512 + 300 MiB, each byte written once")


if __name__ == "__main__":
    main()
