"""Training of a small mixture of experts: one process, and ranks whose model `parallelize` placed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.distributed.device_mesh import init_device_mesh
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments

import intarsia

STEPS, RATE, MOST = 4, 1e-2, 0.5
SENTENCES = torch.arange(40).reshape(2, 20) % 23
CONFIG = Qwen3MoeConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, moe_intermediate_size=8, num_experts=4,
    num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=4, max_position_embeddings=32, tie_word_embeddings=False,
)  # fmt: skip


def whole_model() -> Any:
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(CONFIG)


def alone() -> list[float]:
    """The losses of one process, which sees both sentences at once."""
    model = whole_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        loss = model(input_ids=SENTENCES, labels=SENTENCES).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MOST)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def placed_model() -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ep",))
    return intarsia.parallelize(whole_model(), mesh)


def through_accelerate(mixed_precision: str = "no") -> tuple[list[float], bool]:
    """The losses after `prepare`, and whether it left the model and its parameters as they were."""
    _rendezvous()
    accelerator = Accelerator(cpu=True, mixed_precision=mixed_precision)
    model = placed_model()
    before = {name: (id(p), id(p._local_tensor)) for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    ready, optimizer = accelerator.prepare(model, optimizer)
    after = {name: (id(p), id(p._local_tensor)) for name, p in ready.named_parameters()}
    mine = SENTENCES[dist.get_rank()][None]
    losses = []
    for _ in range(STEPS):
        loss = ready(input_ids=mine, labels=mine).loss
        accelerator.backward(loss)
        intarsia.live.clip_grad_norm_(ready.parameters(), MOST)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(_mean(loss))
    return losses, ready is model and before == after


def through_trainer(folder: Path) -> tuple[list[float], bool]:
    """The losses that Trainer logs, and whether the model that it trained is the one it was given."""
    _rendezvous()
    model = placed_model()
    given = TrainingArguments(
        output_dir=str(folder), use_cpu=True, max_steps=STEPS, per_device_train_batch_size=1,
        learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=MOST, weight_decay=0.0,
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    data = [{"input_ids": x, "labels": x} for x in SENTENCES]
    trainer = Trainer(model=model, args=given, train_dataset=data)  # type: ignore[arg-type]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, trainer.model_wrapped is model


def _mean(loss: torch.Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def _rendezvous() -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
