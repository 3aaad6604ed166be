"""Train, save, stop, and go on: on as many ranks as there are now, whatever it was before.

    torchrun --nproc-per-node 4 examples/train_and_resume.py RUN --steps 4
    torchrun --nproc-per-node 2 examples/train_and_resume.py RUN --steps 4 --tp 2

The second call goes on at the fifth step, with the model, the optimizer, the schedule, the
generator and the place in the data that the first one left.  Each rank sees all of the batch, so
that losses can be compared between any two runs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, Qwen3Config

import intarsia

CONFIG = Qwen3Config(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)


def build(tp: int) -> torch.nn.Module:
    """The model on the ranks of this job."""
    torch.manual_seed(0)  # the same weights everywhere: each rank takes its own part of them
    model = AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float32)
    ranks = dist.get_world_size()
    if ranks > 1:
        mesh = init_device_mesh("cpu", (ranks // tp, tp), mesh_dim_names=("dp", "tp"))
        intarsia.parallelize(model, mesh)
    return model


def batch(position: int) -> torch.Tensor:
    """The batch that begins at a position of the data."""
    return (torch.arange(4 * 16) * 7 + 13 * position).reshape(4, 16) % CONFIG.vocab_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of the run's checkpoints")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tp", type=int, default=1)
    asked = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group(
        "gloo",
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
    )
    model = build(asked.tp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)
    position = 0
    if (asked.run / "latest").exists():
        extra = intarsia.load(asked.run, into=model, optimizer=optimizer).extra
        schedule.load_state_dict(extra["schedule"])
        torch.set_rng_state(extra["generator"])
        position = extra["position"]
    saving = None
    for _ in range(asked.steps):
        ids = batch(position)
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        position += 1
        if dist.get_rank() == 0:
            print(f"step {position} loss {loss.item():.6f}", flush=True)
        if position % 2 == 0:  # training goes on while the copy is written
            extra = {
                "position": position,
                "schedule": schedule.state_dict(),
                "generator": torch.get_rng_state(),
            }
            path = asked.run / f"step-{position}"
            saving = intarsia.save(path, model, optimizer, extra, background=True)
    if saving is not None:
        saving.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
