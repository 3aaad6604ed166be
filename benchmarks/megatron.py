"""A 2 GB mixture of experts from Hugging Face to Megatron's torch_dist and back.

Beside it in the same run: `cp -r` of the same files, and the usual road through the model,
Transformers' `from_pretrained` and `save_pretrained` (Megatron-Bridge itself needs packages that
do not install without a GPU).  Each job is a process of its own; medians, and ratios to `cp`.

    python benchmarks/megatron.py [--rounds 5] [--gigabytes 2] [--folder DIR]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from beside_cp import CONVERT, compare, in_child, run, setting
from safetensors.numpy import save_file

HIDDEN, INNER, VOCAB, HEADS, GROUPS, WIDTH, EXPERTS = 1024, 512, 32_000, 16, 4, 64, 64
LAYER_BYTES = 2 * HIDDEN * (WIDTH * (2 * HEADS + 2 * GROUPS) + 3 * INNER * EXPERTS + EXPERTS)
THROUGH_THE_MODEL = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float16)
model.save_pretrained(sys.argv[2])
"""


def write_model(folder: Path, layers: int) -> int:
    """A mixture of experts of random bits, as Transformers saves it; its bytes."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "dtype": "float16",
        "hidden_size": HIDDEN,
        "intermediate_size": 4 * INNER,
        "moe_intermediate_size": INNER,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": VOCAB,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": WIDTH,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.self_attn.q_proj.weight"] = (HEADS * WIDTH, HIDDEN)
        shapes[f"{at}.self_attn.k_proj.weight"] = (GROUPS * WIDTH, HIDDEN)
        shapes[f"{at}.self_attn.v_proj.weight"] = (GROUPS * WIDTH, HIDDEN)
        shapes[f"{at}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * WIDTH)
        shapes[f"{at}.mlp.gate.weight"] = (EXPERTS, HIDDEN)
        for name in ("q_norm", "k_norm"):
            shapes[f"{at}.self_attn.{name}.weight"] = (WIDTH,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}.{name}.weight"] = (HIDDEN,)
        for expert in range(EXPERTS):
            part = f"{at}.mlp.experts.{expert}"
            shapes[f"{part}.gate_proj.weight"] = (INNER, HIDDEN)
            shapes[f"{part}.up_proj.weight"] = (INNER, HIDDEN)
            shapes[f"{part}.down_proj.weight"] = (HIDDEN, INNER)
    random = np.random.default_rng(0)
    tensors = {
        name: random.integers(0, 31_000, shape, np.uint16).view(np.float16)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return sum(t.nbytes for t in tensors.values())


def main() -> None:
    with setting(__doc__) as at:
        hf, td, out = (str(at.root / name) for name in ("hf", "td", "out"))
        layers = at.layers(LAYER_BYTES, 4 * VOCAB * HIDDEN)
        size = in_child(write_model, at.root / "hf", layers)
        there = ("--to", "torch_dist", "--mesh", "tp=2,ep=4,pp=2")
        run(*CONVERT, hf, td, *there)
        jobs = {
            "hf -> torch_dist": (*CONVERT, hf, out, *there),
            "torch_dist -> hf": (*CONVERT, td, out, "--to", "hf"),
            "through the model": (sys.executable, "-c", THROUGH_THE_MODEL, hf, out),
        }
        compare(at, at.root / "hf", size, jobs, "1.6 x cp, 512 + 300 MiB")


if __name__ == "__main__":
    main()
