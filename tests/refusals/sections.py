"""Checkpoints with several models or optimizers, and state of which nothing says whose it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

import intarsia
from intarsia.family import table_for
from tests.checkpoints import llama_config, model, write_dcp
from tests.refusals.case import refusal

CONFIG = llama_config(num_hidden_layers=1)


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    return model(CONFIG, seed=seed)


def numbered(groups: int = 1) -> dict[str, Any]:
    held = [*tensors().values()]
    state = {k: {"exp_avg": x.float()} for k, x in enumerate(held)}
    parts = [[*range(k, len(held), groups)] for k in range(groups)]
    return {"state": state, "param_groups": [{"lr": 0.1, "params": part} for part in parts]}


@refusal("Two models in one checkpoint", area="sections")
def two_models(tmp: Path) -> None:
    src = write_dcp(tmp / "run", {"policy": tensors(), "reference": tensors(1)})
    intarsia.convert(src, tmp / "out", to="hf", config=CONFIG)


@refusal("A section that does not exist", area="sections")
def no_such_section(tmp: Path) -> None:
    src = write_dcp(tmp / "run", {"policy": tensors(), "reference": tensors(1)})
    intarsia.open(src, CONFIG, section="student")


@refusal("Two optimizers of one model", area="sections")
def two_optimizers(tmp: Path) -> None:
    state = numbered()
    src = write_dcp(tmp / "run", {"model": tensors(), "muon_optim": state, "adam_optim": state})
    intarsia.convert(src, tmp / "out", to="hf", config=CONFIG)


@refusal("Numbered optimizer state of two groups without names", area="sections")
def numbers_of_two_groups(tmp: Path) -> None:
    src = write_dcp(tmp / "run", {"model": tensors(), "optimizer": numbered(groups=2)})
    intarsia.convert(src, tmp / "out", to="torch_dist", config=CONFIG)


@refusal("A submodule of the model that is called optimizer", area="sections")
def a_submodule_called_optimizer(tmp: Path) -> None:
    names = ("optimizer.0.weight", "body.weight")
    src = write_dcp(tmp / "run", {"model": {name: torch.ones(3, 3) for name in names}})
    intarsia.convert(src, tmp / "out", to="hf")


@refusal("Names of torchtitan beside a configuration of the hub", area="sections")
def names_of_torchtitan(tmp: Path) -> None:
    names = {"tok_embeddings.weight": (47, 20), "layers.0.attention.wq.weight": (24, 20)}
    src = write_dcp(tmp / "run", {name: torch.ones(shape) for name, shape in names.items()})
    intarsia.convert(src, tmp / "out", to="hf", config=CONFIG)


GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
    "n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 6,
}  # fmt: skip


def gpt2() -> dict[str, torch.Tensor]:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).state_dict()


@refusal("A model without a table below a word that nothing explains", area="sections")
def names_below_a_word(tmp: Path) -> None:
    src = write_dcp(tmp / "run", {"net": {"weights": gpt2()}, "step": torch.tensor(3)})
    intarsia.convert(src, tmp / "out", to="hf", config=GPT2)


@refusal("A model without a table below two words", area="sections")
def names_below_two_words(tmp: Path) -> None:
    halves = [*gpt2().items()]
    state = {"one": dict(halves[::2]), "two": dict(halves[1::2])}
    intarsia.convert(write_dcp(tmp / "run", state), tmp / "out", to="hf", config=GPT2)


@refusal("A configuration of another model, which has no table", area="sections")
def names_of_another_model(tmp: Path) -> None:
    src = write_dcp(tmp / "run", {"a.weight": torch.ones(3, 3), "b.weight": torch.ones(3)})
    intarsia.convert(src, tmp / "out", to="hf", config=GPT2)


@refusal("Megatron's names in a checkpoint of torch, for Transformers", area="sections")
def names_of_megatron(tmp: Path) -> None:
    table = table_for(CONFIG)
    assert table is not None
    rows = table.dialects["megatron"].items()
    src = write_dcp(tmp / "run", {name: torch.ones(row.layout.shape) for name, row in rows})
    intarsia.convert(src, tmp / "out", to="hf", config=CONFIG)


@refusal("Flat parameters of FSDP 1, for Transformers", area="sections")
def flat_parameters(tmp: Path) -> None:
    src = write_dcp(tmp / "run", {"model": {"0._flat_param": torch.ones(8)}})
    intarsia.convert(src, tmp / "out", to="hf")


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)


def saved(tmp: Path) -> tuple[Path, Small]:
    net = Small()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net.b(net.a(torch.ones(1, 3))).sum().backward()
    optimizer.step()
    intarsia.save(tmp / "run", net, optimizer)
    return tmp / "run", net


@refusal("Numbered state for an optimizer that is in another order than its model", area="sections")
def an_optimizer_in_another_order(tmp: Path) -> None:
    net = Small()
    optimizer = torch.optim.AdamW([*net.b.parameters(), *net.a.parameters()])
    net.b(net.a(torch.ones(1, 3))).sum().backward()
    optimizer.step()
    saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    intarsia.load(write_dcp(tmp / "run", saved), into=net, optimizer=optimizer)


@refusal("An optimizer of fewer parameters than the checkpoint has state of", area="sections")
def half_an_optimizer(tmp: Path) -> None:
    path, net = saved(tmp)
    intarsia.load(path, into=net, optimizer=torch.optim.AdamW(net.a.parameters()))


@refusal("A live state dict that asks for a section that is left out", area="sections")
def a_section_left_out(tmp: Path) -> None:
    src = write_dcp(tmp / "run", {"model": tensors(), "ema": tensors(1)})
    intarsia.load(src, into={"ema": tensors(2)}, config=CONFIG)


@refusal("A live state dict with two models", area="sections")
def two_live_models(tmp: Path) -> None:
    src = write_dcp(tmp / "run", {"model": tensors()})
    into = {"model": tensors(1), "state_dict": tensors(2)}
    intarsia.load(src, into=into, config=CONFIG)
