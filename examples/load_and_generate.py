"""Load a checkpoint of any format on a mesh of ranks, and generate greedily.

    torchrun --nproc-per-node 4 examples/load_and_generate.py CHECKPOINT --tp 2 --prompt "Once upon"

Each rank reads its own shards; the ranks that are not tensor parallel shard the rest by FSDP2.
The text is the one that a single process gives.  Where the checkpoint has no tokenizer, the
prompt is token numbers.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import intarsia


def model_on_ranks(checkpoint: Path, tp: int) -> torch.nn.Module:
    """The model, its weights cut over all ranks of the job; no rank ever holds all of it."""
    # What a checkpoint was trained on is in its own configuration, whichever format it has.
    config = AutoConfig.for_model(**intarsia.open(checkpoint).config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    ranks = dist.get_world_size()
    if ranks > 1:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        mesh = init_device_mesh(kind, (ranks // tp, tp), mesh_dim_names=("dp", "tp"))
        intarsia.parallelize(model, mesh)
    report = intarsia.load(checkpoint, into=model)
    if dist.get_rank() == 0:
        print(report)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--prompt", default="1 2 3 4", help="text, or token numbers")
    parser.add_argument("--tokens", type=int, default=16, help="how many to generate")
    asked = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group(
        rank=int(os.environ.get("RANK", "0")), world_size=int(os.environ.get("WORLD_SIZE", "1"))
    )
    model = model_on_ranks(asked.checkpoint, asked.tp)
    named = (asked.checkpoint / "tokenizer_config.json").is_file()
    tokenizer = AutoTokenizer.from_pretrained(asked.checkpoint) if named else None
    if tokenizer is None:
        ids = torch.tensor([[int(word) for word in asked.prompt.split()]])
    else:
        ids = tokenizer(asked.prompt, return_tensors="pt").input_ids
    ids = ids.to(next(model.parameters()).device)
    with torch.no_grad():
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=asked.tokens,
            min_new_tokens=asked.tokens,
            do_sample=False,
            pad_token_id=0,
        )
    if dist.get_rank() == 0:
        print("generated:", tokenizer.decode(found[0]) if tokenizer else found[0].tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
