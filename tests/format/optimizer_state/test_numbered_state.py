"""Optimizer state by number, as torch's optimizers save it when nobody gives it names."""

from __future__ import annotations

from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

import intarsia
from intarsia.errors import FormatError, IntarsiaError, SectionError
from intarsia.format.registry import read_manifest
from tests.checkpoints import assert_same, model, qwen3_config, read_dcp, read_hf, write_dcp
from tests.live.megatron_fsdp_cases import hf_with_optimizer, to_fsdp

CONFIG = qwen3_config(num_hidden_layers=2)


def fused(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, torch.Tensor]]]:
    """Weights and states by live name, gate and up in one, as one rank of Megatron-FSDP has them."""
    source = hf_with_optimizer(folder / "hf", model(CONFIG), CONFIG)
    to_fsdp(source, folder / "split", spec="local")
    held = read_dcp(next((folder / "split").glob("iter_*")))
    weights: dict[str, torch.Tensor] = {}
    states: dict[str, dict[str, torch.Tensor]] = {}
    for name, x in held.items():
        if name.endswith(("_v", "_v.exp_avg", "_v.exp_avg_sq", "_v.step")):
            continue
        if "_w" in name and not name.endswith(".step"):
            x = torch.cat([x, held[name.replace("weight_w", "weight_v")]])
        name = name.replace("weight_w", "weight")
        if name.startswith("model."):
            weights[name.removeprefix("model.")] = x
        else:
            of, _, kind = name.rpartition(".")
            states.setdefault(of.split("module.module.")[1], {})[kind] = x
    return weights, {name: states[name] for name in weights}


def numbered(folder: Path, groups: int = 1, named: bool = False, cut: bool = False) -> Path:
    weights, states = fused(folder)
    order = sorted(weights, key=lambda name: weights[name].ndim < 2) if groups == 2 else [*weights]
    first = sum(weights[name].ndim > 1 for name in order) if groups == 2 else len(order)
    held = [order[:first], order[first:]][:groups]
    number = {name: k for k, name in enumerate(order)}
    listed = [{"lr": 0.1, "params": [number[n] for n in names]} for names in held]
    if named:
        listed = [{**g, "param_names": names} for g, names in zip(listed, held, strict=True)]
    if cut:
        states[order[0]]["exp_avg"] = states[order[0]]["exp_avg"][1:]
    state: dict[str, Any] = {number[name]: states[name] for name in order}
    return write_dcp(
        folder / "numbered",
        {
            "model": weights,
            "optimizer": {"state": state, "param_groups": listed},
            "args": Namespace(tensor_model_parallel_size=1),
        },
    )


@pytest.mark.parametrize(("groups", "named"), [(1, False), (1, True), (2, True)])
def test_numbers_lead_to_parameters(groups: int, named: bool, tmp_path: Path) -> None:
    src = numbered(tmp_path, groups, named)
    assert read_manifest(src, CONFIG).format == "fsdp_dtensor"
    intarsia.convert(src, tmp_path / "back", to="hf", config=CONFIG)
    truth = read_hf(tmp_path / "hf" / "optimizer")
    found = read_hf(tmp_path / "back" / "optimizer")
    assert found.keys() == truth.keys()
    for name, x in truth.items():
        assert torch.equal(found[name], x), name


@pytest.mark.parametrize(
    ("groups", "cut", "why"),
    [
        (2, False, "2 parameter groups give numbers, and none gives `param_names`"),
        (1, True, r"has shape \[46, 20\].*embedding.word_embeddings.weight`, \[47, 20\]"),
    ],
)
@pytest.mark.parametrize("to", ["hf", "torch_dist", "fsdp_dtensor"])
@pytest.mark.one_in(2)
def test_numbers_that_lead_nowhere_are_refused_and_weights_are_not(
    groups: int, cut: bool, why: str, to: str, tmp_path: Path
) -> None:
    src = numbered(tmp_path, groups, cut=cut)
    with pytest.raises(FormatError, match=why) as raised:
        intarsia.convert(src, tmp_path / "no", to=to, config=CONFIG)
    assert "named_parameters()" in str(raised.value.hint)
    intarsia.convert(src, tmp_path / "yes", to=to, config=CONFIG, optimizer="drop")
    with intarsia.open(tmp_path / "yes", config=CONFIG) as opened:
        assert opened["model.norm.weight"].shape == (20,)
        assert not [name for name in opened if name.startswith("optimizer.")]


def test_numbers_stay_numbers_between_dcp_and_hf_and_go_nowhere_else(tmp_path: Path) -> None:
    state = {0: {"exp_avg": torch.ones(47, 20)}}
    src = write_dcp(tmp_path / "src", {**model(CONFIG), "optimizer": {"state": state}})
    intarsia.convert(src, tmp_path / "hf", to="hf", config=CONFIG)
    intarsia.convert(tmp_path / "hf", tmp_path / "dcp", to="dcp")
    assert "optimizer.state.0.exp_avg" in read_dcp(tmp_path / "dcp")
    with pytest.raises(FormatError, match="is numbered, and nothing says which parameter"):
        intarsia.convert(src, tmp_path / "no", to="torch_dist", config=CONFIG)
    intarsia.convert(src, tmp_path / "yes", to="torch_dist", config=CONFIG, optimizer="drop")


def test_a_number_beside_the_model_is_no_parameter_of_its_optimizer(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    held = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "best_loss": torch.tensor(3.0),
    }
    src = write_dcp(tmp_path / "a", held)
    other = torch.nn.Linear(3, 2)
    into = torch.optim.AdamW(other.parameters())
    with pytest.raises(IntarsiaError, match="not in the model: best_loss") as error:
        intarsia.load(src, into=other, optimizer=into)
    assert "section='model'" in str(error.value.hint)
    intarsia.load(src, into=other, optimizer=into, section="model")
    with intarsia.open(src) as found:
        moment = found["optimizer.exp_avg.weight"][:]
    assert torch.equal(moment, optimizer.state[model.weight]["exp_avg"])
    assert torch.equal(moment, into.state[other.weight]["exp_avg"])


@pytest.mark.parametrize(
    ("rows", "state", "why"),
    [
        (
            2,
            "optimizer.optimizer.state.0.exp_avg",
            r"may be that of any of these.*\n  model\n  head\n  hint",
        ),
        (4, "optimizer.exp_avg.0", r"counting head\.0\.weight, head\.0\.bias, saved beside it"),
    ],
)
def test_a_second_part_beside_the_model_may_be_what_the_optimizer_trains(
    rows: int, state: str, why: str, tmp_path: Path
) -> None:
    backbone, head = torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(3, rows))
    optimizer = torch.optim.AdamW(head.parameters())
    head(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    held = {"model": backbone.state_dict(), "head": head.state_dict(), "optimizer": optimizer.state_dict()}  # fmt: skip
    src = write_dcp(tmp_path / "a", held)
    with intarsia.open(src) as found:
        assert state in found
        assert "optimizer.exp_avg.weight" not in found
    with pytest.raises(IntarsiaError, match=why):
        intarsia.load(src, into=backbone, optimizer=torch.optim.AdamW(backbone.parameters()))


def trained(part: torch.nn.Module, names: bool = False) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(part.named_parameters() if names else part.parameters())
    part(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("form", ["numbers", "numbers with names", "names"])
def test_state_that_fits_the_model_and_a_part_beside_it_is_refused(
    form: str, tmp_path: Path
) -> None:
    model, head = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer = trained(head, names=form == "numbers with names")
    state = optimizer.state_dict()
    if form == "names":
        state = get_optimizer_state_dict(head, optimizer)
    held = {"model": model.state_dict(), "head": head.state_dict(), "optimizer": state}
    src = write_dcp(tmp_path / "a", held)
    for to in ("hf", "dcp"):
        with pytest.raises(SectionError, match="may be that of any of these"):
            intarsia.convert(src, tmp_path / "no", to=to)
    intarsia.convert(src, tmp_path / "all", to="dcp", section=".")
    assert_same(read_dcp(tmp_path / "all"), read_dcp(src))
    into = torch.optim.AdamW(model.parameters())
    with pytest.raises(SectionError, match=r"(?s)may be that of any of these.*model\n  head") as no:
        intarsia.load(src, into=model, optimizer=into)
    assert "--section model,optimizer" in str(no.value.hint)
    other = torch.nn.Linear(3, 2)
    into = torch.optim.AdamW(other.parameters())
    with intarsia.open(src, section="head") as found:
        (left,) = [x for x in found.manifest.inventory if x.name == "optimizer"]
    assert "(--section head,optimizer reads it so)" in left.why
    intarsia.load(src, into=other, optimizer=into, section=("head", "optimizer"))
    assert torch.equal(other.weight, head.weight)
    for kind, x in optimizer.state[head.weight].items():
        assert torch.equal(into.state[other.weight][kind], x)


@pytest.mark.parametrize("word", ["ema", "best_model", "model_swa"])
def test_state_beside_a_copy_of_the_model_is_the_models(word: str, tmp_path: Path) -> None:
    model, copy = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    held = {"model": model.state_dict(), word: copy.state_dict(), "optimizer": trained(model).state_dict()}  # fmt: skip
    with intarsia.open(write_dcp(tmp_path / "a", held)) as found:
        assert "optimizer.exp_avg.weight" in found


def test_numbers_are_no_copys_parameters_whatever_its_form(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    shadow = {"shadow_params": [x.detach() + 1 for x in model.parameters()], "decay": 0.9}
    held = {"model": model.state_dict(), "ema": shadow, "opt": trained(model).state_dict()}
    with intarsia.open(write_dcp(tmp_path / "a", {"app": held})) as found:
        assert "optimizer.exp_avg.weight" in found


@pytest.mark.parametrize("numbered", [True, False])
def test_names_lead_to_a_part_beside_the_model(numbered: bool, tmp_path: Path) -> None:
    model, head = torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(3, 2))
    optimizer = trained(head, names=True)
    state = optimizer.state_dict() if numbered else get_optimizer_state_dict(head, optimizer)
    wider = torch.nn.Sequential(torch.nn.Linear(3, 4)).state_dict()
    held = {"model": model.state_dict(), "head": head.state_dict(), "optimizer": state, "more": wider}  # fmt: skip
    with intarsia.open(write_dcp(tmp_path / "a", held)) as found:
        assert "optimizer.exp_avg.weight" not in found
        moment = found["optimizer.exp_avg.head.0.weight"][:]
    assert torch.equal(moment, optimizer.state[head[0].weight]["exp_avg"])


def test_full_names_lead_to_a_part_that_is_left_out(tmp_path: Path) -> None:
    model, head = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    state = trained(torch.nn.Sequential(OrderedDict(head=head)), names=True).state_dict()
    held = {"model": model.state_dict(), "head": head.state_dict(), "optimizer": state}
    src = write_dcp(tmp_path / "a", held)
    with pytest.raises(SectionError, match="the state of optimizer is that of head"):
        intarsia.load(src, into=model, optimizer=torch.optim.AdamW(model.parameters()))
    with intarsia.open(src, section=("head", "optimizer")) as found:
        assert "optimizer.exp_avg.weight" in found


def test_numbers_of_two_parts_alike_may_be_in_either_order(tmp_path: Path) -> None:
    model, head = torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW([*head.parameters(), *model.parameters()])
    (model(torch.ones(1, 3)) + 2 * head(torch.ones(1, 3))).sum().backward()
    optimizer.step()
    held = {"model": model.state_dict(), "head": head.state_dict(), "optimizer": optimizer.state_dict()}  # fmt: skip
    with intarsia.open(write_dcp(tmp_path / "a", held)) as found:
        assert "optimizer.optimizer.state.0.exp_avg" in found
        assert "optimizer.exp_avg.weight" not in found
        assert "model, then head\n  head, then model" in str(found.manifest.state_unclear)


@pytest.mark.parametrize("keys", [("optimizer", "head_optimizer"), ("optim_model", "optim_head")])
def test_a_part_with_an_optimizer_of_its_own_leaves_the_other_to_the_model(
    keys: tuple[str, str], tmp_path: Path
) -> None:
    parts = {"model": torch.nn.Linear(3, 2), "head": torch.nn.Linear(3, 2)}
    trained_ = {key: trained(part) for key, part in zip(keys, parts.values(), strict=True)}
    held = {key: each.state_dict() for key, each in (parts | trained_).items()}
    src = write_dcp(tmp_path / "a", held)
    for (key, part), optimizer in zip(parts.items(), trained_.values(), strict=True):
        with intarsia.open(src, section=key) as found:
            moment = found["optimizer.exp_avg.weight"][:]
        assert torch.equal(moment, optimizer.state[part.weight]["exp_avg"])


def test_settings_by_name_are_those_of_the_part_whose_state_it_is(tmp_path: Path) -> None:
    model, head = torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(3, 2))
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    state = get_optimizer_state_dict(head, trained(head), options=flat)
    held = {"model": model.state_dict(), "head": head.state_dict(), "optimizer": state}
    with intarsia.open(write_dcp(tmp_path / "a", held)) as found:
        assert "optimizer.param_groups.head.0.weight.lr" in found.manifest.entries
