"""Training in real Megatron-core that stops, is converted, and goes on; run in one process.

    python -m tests.journeys.megatron_steps train HF FOLDER     two steps, a save, and two steps more
    python -m tests.journeys.megatron_steps resume HF FOLDER    a load, and the two steps

Each prints what it ends with to a file beside the folder: weights, main weights, moments and settings.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from tests.parity.megatron_training import begin, optimizers  # isort: skip

from megatron.core import dist_checkpointing, parallel_state
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from tests.parity.megatron_resuming import StandInForFusedAdam, blank

BEFORE, AFTER = 2, 2
RATES = {"lr": 1e-3, "min_lr": 1e-4}


class Run:
    """A model with its optimizer and its schedule, as a run of Megatron-LM has them."""

    def __init__(self, hf: Path) -> None:
        self.model = begin(str(hf / "config.json"), 1, 1, 1)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
        self.optimizer, (self.inner,) = optimizers(self.model, 0, clip_grad=0.0, **RATES)
        self.inner.optimizer.__class__ = StandInForFusedAdam
        self.schedule = OptimizerParamScheduler(
            self.optimizer, 0.0, 1e-3, 1e-4, 1, 10, "cosine", 0.1, 0.1, 10, "constant"
        )

    def steps(self, first: int, count: int) -> None:
        (wrapped,) = self.inner.model_chunks
        vocabulary = self.model.vocab_size
        for number in range(first, first + count):
            generator = torch.Generator().manual_seed(number)
            ids = torch.randint(0, vocabulary, (2, 13), generator=generator)
            length = ids.shape[1] - 1
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]
            wrapped.zero_grad_buffer()
            self.optimizer.zero_grad()
            out = wrapped(ids[:, :-1], torch.arange(length).expand(2, length), mask)
            cross_entropy(out.float().reshape(-1, vocabulary), ids[:, 1:].reshape(-1)).backward()
            wrapped.finish_grad_sync()
            self.optimizer.step()
            self.schedule.step(1)

    def state(self, metadata: dict[str, Any], *, loading: bool = False) -> dict[str, Any]:
        state = {"model": self.model.sharded_state_dict(metadata=metadata)}
        state["optimizer"] = self.optimizer.sharded_state_dict(
            state["model"], is_loading=loading, metadata=metadata
        )
        return state

    def save(self, folder: Path) -> None:
        config = self.model.config
        args = Namespace(
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            tensor_model_parallel_size=1,
            pipeline_model_parallel_size=1,
            swiglu=True,
            bf16=True,
            **RATES,
        )
        metadata = {"distrib_optim_sharding_type": "dp_reshardable"}
        metadata["chained_optim_avoid_prefix"] = True  # type: ignore[assignment]
        state = self.state(metadata) | {"args": args, "iteration": BEFORE}
        state |= {"checkpoint_version": 3.0, "opt_param_scheduler": self.schedule.state_dict()}
        to = folder / f"iter_{BEFORE:07d}"
        to.mkdir(parents=True)
        dist_checkpointing.save(state, str(to), content_metadata=metadata)
        (folder / "latest_checkpointed_iteration.txt").write_text(str(BEFORE))

    def load(self, folder: Path) -> int:
        (path,) = folder.glob("iter_*")
        blank(self.inner)
        metadata = dist_checkpointing.load_content_metadata(str(path))
        loaded = dist_checkpointing.load(self.state(metadata, loading=True), str(path))
        self.model.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])
        self.schedule.load_state_dict(loaded["opt_param_scheduler"])
        return int(loaded["iteration"])

    def end(self) -> dict[str, Any]:
        """Everything that the next step would depend on."""
        found: dict[str, Any] = {n: p.detach() for n, p in self.model.named_parameters()}
        for k, group in enumerate(self.inner.optimizer.param_groups):
            found[f"group {k}"] = {x: v for x, v in group.items() if x != "params"}
            for i, p in enumerate(group["params"]):
                found |= {f"{k} {i} {x}": v for x, v in self.inner.optimizer.state[p].items()}
                found[f"{k} {i} main"] = p.detach()
        return found


def main(verb: str, hf: str, *folders: str) -> None:
    for number, folder in enumerate(map(Path, folders)):
        if number:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
        run = Run(Path(hf))
        first = 0
        if verb == "train":
            run.steps(0, BEFORE)
            run.save(folder)
            first = BEFORE
        else:
            first = run.load(folder)
        run.steps(first, AFTER)
        torch.save(run.end(), folder.with_suffix(".end"))


if __name__ == "__main__":
    main(*sys.argv[1:])
