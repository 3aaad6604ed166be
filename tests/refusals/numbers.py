"""Numbers that contradict each other, do not fit, or cannot be said in the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import intarsia
from tests.checkpoints import llama_config, write_dcp, write_hf
from tests.refusals.case import refusal

CONFIG = llama_config(num_hidden_layers=1)
UP = "model.layers.0.mlp.up_proj.weight"


def weights(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    from tests.checkpoints import shapes

    return {
        name: torch.arange(torch.Size(shape).numel()).remainder(97).div(64).to(dtype).reshape(shape)
        for name, shape in shapes(CONFIG).items()
    }


def trained(tmp: Path) -> Path:
    """A folder with an optimizer's state beside its weights."""
    held = weights()
    source = write_hf(tmp / "model", held, CONFIG)
    state: dict[str, torch.Tensor] = {}
    for name, x in held.items():
        state[f"optimizer.master.{name}"] = x.float()
        state[f"optimizer.exp_avg.{name}"] = torch.zeros_like(x, dtype=torch.float32)
        state[f"optimizer.step.{name}"] = torch.tensor(7.0)
    (source / "optimizer").mkdir()
    save_file(state, source / "optimizer" / "model.safetensors")
    return source


def change(file: Path, name: str, value: float | None) -> None:
    held = load_file(file)
    if value is None:
        del held[name]
    else:
        held[name][2, 5] = value
    save_file(held, file, {"format": "pt"})


@refusal("Weights that were edited beside older main weights", area="numbers")
def stale_masters(tmp: Path) -> None:
    source = trained(tmp)
    change(source / "model.safetensors", UP, 3.0)
    intarsia.convert(source, tmp / "out", to="fsdp_dtensor")


@refusal("Weights that were edited, loaded into a model in fp32", area="numbers")
def stale_masters_at_load(tmp: Path) -> None:
    source = trained(tmp)
    change(source / "model.safetensors", UP, 3.0)
    intarsia.load(source, into={UP: torch.empty(33, 20)}, strict=False)


@refusal("A main weight that is lost", area="numbers")
def lost_master(tmp: Path) -> None:
    source = trained(tmp)
    change(source / "optimizer" / "model.safetensors", f"optimizer.master.{UP}", None)
    intarsia.convert(source, tmp / "out", to="torch_dist")


@refusal("A number that does not fit the type that was asked for", area="numbers")
def overflow(tmp: Path) -> None:
    held = weights(torch.float32)
    held[UP][2, 5] = 1e6
    source = write_hf(tmp / "model", held, CONFIG)
    intarsia.convert(source, tmp / "out", to="hf", dtype="fp16")


@refusal("Two tensors for one memory of the model", area="numbers")
def two_sources(tmp: Path) -> None:
    source = write_hf(
        tmp / "model", weights() | {"lm_head.weight": torch.ones(47, 20).bfloat16()}, CONFIG
    )
    memory = torch.empty(47, 20, dtype=torch.bfloat16)
    into = {"model.embed_tokens.weight": memory, "lm_head.weight": memory}
    intarsia.load(source, into=into, strict=False)


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(3, 3, bias=False)
        self.b = torch.nn.Linear(3, 3, bias=False)


def stepped(split: bool) -> tuple[Two, torch.optim.AdamW]:
    model = Two()
    groups: list[dict[str, Any]] = [{"params": [model.a.weight, model.b.weight], "lr": 0.5}]
    if split:
        groups = [{"params": [model.a.weight], "lr": 0.1}, {"params": [model.b.weight], "lr": 0.2}]
    optimizer = torch.optim.AdamW(groups)
    (model.a.weight.sum() + model.b.weight.sum()).backward()
    optimizer.step()
    return model, optimizer


@refusal("Parameter groups that the optimizer puts together", area="numbers")
def regrouped(tmp: Path) -> None:
    intarsia.save(tmp / "step", *stepped(split=True))
    model, optimizer = stepped(split=False)
    intarsia.load(tmp / "step", into=model, optimizer=optimizer)


@refusal("Parameter groups that torch_dist has no words for", area="numbers")
def groups_for_megatron(tmp: Path) -> None:
    held: dict[str, Any] = {f"model.{name}": x for name, x in weights(torch.float32).items()}
    names = list(weights())
    for name in names:
        held[f"optimizer.state.{name}.exp_avg"] = torch.zeros_like(held[f"model.{name}"])
        held[f"optimizer.state.{name}.step"] = torch.tensor(1.0)
        held[f"optimizer.param_groups.{name}.lr"] = 0.1 if "mlp" in name else 0.2
    source = write_dcp(tmp / "step", held)
    intarsia.convert(source, tmp / "out", to="torch_dist", config=CONFIG)


@refusal("A tensor that Megatron-FSDP has no name for", area="numbers")
def foreign_tensor(tmp: Path) -> None:
    held = weights() | {"v_head.summary.weight": torch.ones(1, 20)}
    intarsia.convert(write_hf(tmp / "model", held, CONFIG), tmp / "out", to="fsdp_dtensor")
