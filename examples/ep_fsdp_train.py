"""Train a mixture of experts with expert parallelism and FSDP2.

    torchrun --nproc-per-node 4 examples/ep_fsdp_train.py --ep 2

The ranks form a mesh of `dp` x `ep`.  Experts are dealt out over `ep` and cut over `dp`;
everything else is cut over both; every rank trains on its own part of the batch.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

import intarsia
from intarsia.live import batch_place, clip_grad_norm_, parameter_groups

CONFIG = Qwen3MoeConfig(
    vocab_size=128,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    moe_intermediate_size=48,
    num_experts=8,
    num_experts_per_tok=2,
)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--ep", type=int, default=2, help="expert-parallel ranks")
    ask.add_argument("--steps", type=int, default=20)
    asked = ask.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    shape = (dist.get_world_size() // asked.ep, asked.ep)
    mesh = init_device_mesh(device, shape, mesh_dim_names=("dp", "ep"))

    torch.manual_seed(0)  # the same weights on every rank, of which each keeps its part
    model = AutoModelForCausalLM.from_config(CONFIG).to(device)
    model = intarsia.parallelize(model, mesh)
    optimizer = torch.optim.AdamW(parameter_groups(model.parameters()), lr=1e-2)

    place, count = batch_place(mesh)
    text = torch.arange(8 * 32, device=device).reshape(8, 32) % 61
    for step in range(asked.steps):
        ids = text.tensor_split(count)[place]
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean := loss.detach() / dist.get_world_size())
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item():.4f} norm {norm.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
