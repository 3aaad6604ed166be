"""Parameter groups from one training to the next: per parameter, or refused with both groupings."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

import intarsia
from intarsia import CoverageError, UsageError
from intarsia.format.optimizer_state.parameter_groups import groups_of_torch, unplain_settings
from tests.checkpoints import llama_config

CONFIG = llama_config(num_hidden_layers=1)


def made(seed: int = 0) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**CONFIG))


def optimizer_of(model: Any, *groups: dict[str, Any]) -> torch.optim.AdamW:
    """AdamW with a group for each dict; its `of` chooses parameters by a word of their names."""
    each = []
    taken: set[str] = set()
    for group in groups:
        word = group["of"]
        mine = {n: p for n, p in model.named_parameters() if word(n, p) and n not in taken}
        taken |= set(mine)
        rest = {k: v for k, v in group.items() if k != "of"}
        each.append({"params": list(mine.values())} | rest)
    return torch.optim.AdamW(each)


def everything(name: str, param: torch.Tensor) -> bool:
    return True


def matrices(name: str, param: torch.Tensor) -> bool:
    return param.dim() > 1


def attention(name: str, param: torch.Tensor) -> bool:
    return "self_attn" in name


def step(model: Any, optimizer: Any) -> None:
    model(torch.arange(6)[None], labels=torch.arange(6)[None]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def saved(path: Path, *groups: dict[str, Any], flat: bool = False) -> Path:
    model = made()
    optimizer = optimizer_of(model, *groups)
    step(model, optimizer)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, state = get_state_dict(model, optimizer, options=options)
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path, no_dist=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


FAST = {"of": matrices, "lr": 1e-3, "weight_decay": 0.1}
SLOW = {"of": everything, "lr": 1e-4, "weight_decay": 0.0}
ALL = {"of": everything, "lr": 7.0, "weight_decay": 0.3}


@pytest.mark.parametrize("flat", [False, True])
def test_two_groups_do_not_become_one(flat: bool, tmp_path: Path) -> None:
    source = saved(tmp_path / "dcp", FAST, SLOW, flat=flat)
    model = made(1)
    optimizer = optimizer_of(model, ALL)
    before = model.lm_head.weight.detach().clone()
    with pytest.raises(UsageError) as refused:
        intarsia.load(source, into=model, optimizer=optimizer)
    text = str(refused.value)
    assert "lr=0.001, weight_decay=0.1" in text
    assert "lr=0.0001, weight_decay=0.0" in text
    assert 'hyperparameters="mine"' in text
    assert torch.equal(model.lm_head.weight, before)
    report = intarsia.load(source, into=model, optimizer=optimizer, hyperparameters="mine")
    assert optimizer.param_groups[0]["lr"] == 7.0
    assert len(optimizer.state) == len(list(model.parameters()))
    assert any("keeps its own hyperparameters" in note for note in report.notes)


@pytest.mark.parametrize("flat", [False, True])
def test_a_finer_split_gets_the_settings_of_its_members(flat: bool, tmp_path: Path) -> None:
    source = saved(tmp_path / "dcp", FAST, SLOW, flat=flat)
    model = made(1)
    finer = [ALL | {"of": f} for f in (attention, matrices, everything)]
    optimizer = optimizer_of(model, *finer)
    intarsia.load(source, into=model, optimizer=optimizer)
    found = [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups]
    assert found == [(1e-3, 0.1), (1e-3, 0.1), (1e-4, 0.0)]


def test_groups_by_decay_become_megatrons_and_come_back(tmp_path: Path) -> None:
    source = saved(tmp_path / "dcp", FAST, SLOW)
    intarsia.convert(source, tmp_path / "megatron", to="torch_dist")
    model = made(1)
    optimizer = optimizer_of(model, ALL | {"of": matrices}, ALL)
    intarsia.load(tmp_path / "megatron", into=model, optimizer=optimizer)
    assert [g["lr"] for g in optimizer.param_groups] == [1e-3, 1e-4]


def test_groups_that_megatron_has_no_words_for_are_refused(tmp_path: Path) -> None:
    other = FAST | {"of": attention, "lr": 5e-4}
    source = saved(tmp_path / "dcp", other, FAST, SLOW)
    with pytest.raises(UsageError) as refused:
        intarsia.convert(source, tmp_path / "out", to="torch_dist")
    assert "the source's group 0: 4 tensors, lr=0.0005, weight_decay=0.1" in str(refused.value)
    assert "Megatron's group of matrices: 4 of group 0" in str(refused.value)
    assert not (tmp_path / "out").exists()
    intarsia.convert(source, tmp_path / "hf", to="hf")
    model = made(1)
    optimizer = optimizer_of(model, *(ALL | {"of": f} for f in (attention, matrices, everything)))
    intarsia.load(tmp_path / "hf", into=model, optimizer=optimizer)
    assert [g["lr"] for g in optimizer.param_groups] == [5e-4, 1e-3, 1e-4]


def test_decay_that_megatron_exempts_is_reported(tmp_path: Path) -> None:
    source = saved(tmp_path / "dcp", ALL)
    report = intarsia.convert(source, tmp_path / "out", to="torch_dist")
    assert any("vectors and biases decay by 0.3" in note for note in report.notes)


def test_parameters_whose_group_megatrons_rule_does_not_tell_are_named(tmp_path: Path) -> None:
    source = saved(tmp_path / "dcp", FAST, SLOW)
    done = intarsia.convert(source, tmp_path / "megatron", to="torch_dist")
    told = intarsia.convert(tmp_path / "megatron", tmp_path / "told", to="fsdp_dtensor")
    file = next(tmp_path.glob("megatron/*/common.pt"))
    state = torch.load(file, weights_only=False)
    groups = state["optimizer"]["optimizer"]["param_groups"]
    groups.append(groups[0] | {"lr": 5e-4})
    torch.save(state, file)
    untold = intarsia.convert(tmp_path / "megatron", tmp_path / "fsdp", to="fsdp_dtensor")
    text = "6 parameters have no parameter group"
    notes = [[n for n in report.notes if text in n] for report in (done, told, untold)]
    assert [*map(len, notes)] == [0, 0, 1]
    assert "decoder.layers.0.self_attention.linear_proj.weight" in notes[2][0]


def test_counters_that_contradict_their_groups_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "dcp", FAST, SLOW)
    intarsia.convert(source, tmp_path / "megatron", to="torch_dist")
    intarsia.convert(tmp_path / "megatron", tmp_path / "hf", to="hf")
    intarsia.convert(tmp_path / "hf", tmp_path / "again", to="torch_dist")
    file = tmp_path / "hf" / "optimizer" / "model.safetensors"
    state = load_file(file)
    for name in state:
        if ".step." in name:
            state[name] += 4
    save_file(state, file, {"format": "pt"})
    (tmp_path / "hf" / "intarsia.digests.json").unlink(missing_ok=True)
    with pytest.raises(CoverageError, match=r"is 5, and the parameter groups .* are at step 1"):
        intarsia.convert(tmp_path / "hf", tmp_path / "out", to="torch_dist")


@pytest.mark.parametrize("step", [2.5, float("nan"), float("inf")])
def test_steps_that_are_no_whole_number_are_not_rounded_into_megatrons_groups(
    step: float, tmp_path: Path
) -> None:
    def change(optimizer: Any) -> None:
        for state in optimizer.state.values():
            state["step"].fill_(step)

    source = saved_by_torch(tmp_path / "dcp", change)
    with pytest.raises(UsageError, match=f"at step {step:g}, and torch_dist stores whole steps"):
        intarsia.convert(source, tmp_path / "out", to="torch_dist")
    assert not (tmp_path / "out").exists()


def saved_by_torch(path: Path, change: Any) -> Path:
    """AdamW after a step, changed, as torch saves it."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    step(model, optimizer)
    change(optimizer)
    weights, state = get_state_dict(model, optimizer)
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path, no_dist=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def with_whole_steps(optimizer: Any) -> None:
    for state in optimizer.state.values():
        state["step"] = 16000001


def with_tensor_lr(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = torch.tensor(0.003)


def test_steps_that_are_numbers_are_not_lost(tmp_path: Path) -> None:
    source = saved_by_torch(tmp_path / "dcp", with_whole_steps)
    for form in ("dcp", "hf", "torch_dist"):
        path = tmp_path / form
        if form != "dcp":
            intarsia.convert(source, path, to=form)
        model = made(1)
        optimizer = torch.optim.AdamW(model.parameters())
        intarsia.load(path, into=model, optimizer=optimizer)
        steps = {float(state["step"]) for state in optimizer.state.values()}
        assert steps == {16000001.0}
        assert len(optimizer.state) == len(list(model.parameters()))


def test_a_value_that_megatron_has_no_place_for_is_refused(tmp_path: Path) -> None:
    def change(optimizer: Any) -> None:
        for state in optimizer.state.values():
            state["note"] = "warm"

    source = saved_by_torch(tmp_path / "dcp", change)
    with pytest.raises(UsageError, match=r"note` of .* cannot hold"):
        intarsia.convert(source, tmp_path / "out", to="torch_dist")
    assert not (tmp_path / "out").exists()


def test_a_learning_rate_that_torch_stored_as_a_tensor_comes_back(tmp_path: Path) -> None:
    source = saved_by_torch(tmp_path / "dcp", with_tensor_lr)
    intarsia.convert(source, tmp_path / "hf", to="hf")
    for path in (source, tmp_path / "hf"):
        model = made(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=7.0)
        intarsia.load(path, into=model, optimizer=optimizer)
        assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(0.003))
    with pytest.raises(CoverageError):
        intarsia.convert(source, tmp_path / "out", to="torch_dist")


def test_adams_groups_do_not_turn_adamw_into_adam(tmp_path: Path) -> None:
    def change(optimizer: Any) -> None:
        optimizer.param_groups[0]["decoupled_weight_decay"] = False

    source = saved_by_torch(tmp_path / "dcp", change)
    model = made(1)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(UsageError, match="AdamW always has True"):
        intarsia.load(source, into=model, optimizer=optimizer)
    assert optimizer.param_groups[0]["decoupled_weight_decay"] is True


@pytest.mark.parametrize("choice", ["keep", "drop"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_torch_dist_has_no_place_for_is_named(
    momentum: float, choice: str, tmp_path: Path
) -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    model(input_ids=torch.arange(9)[None], labels=torch.arange(9)[None]).loss.backward()
    optimizer.step()
    intarsia.save(tmp_path / "ours", model, optimizer)
    report = intarsia.convert(tmp_path / "ours", tmp_path / "td", to="torch_dist", optimizer=choice)
    named = "".join(note for note in report.notes if "cannot be stored in torch_dist" in note)
    assert ("optimizer.class" in named) == (choice == "keep")
    assert ("optimizer.param_groups.0" in named) == (choice == "keep" and not momentum)
    assert "without_state" not in named or not momentum
    adams = [note for note in report.notes if "does not load momentum_buffer" in note]
    assert bool(adams) == (choice == "keep" and momentum > 0)


def test_state_of_no_parameter_is_refused_by_torch_dist(tmp_path: Path) -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(input_ids=torch.arange(9)[None], labels=torch.arange(9)[None]).loss.backward()
    optimizer.step()
    optimizer.state["rounds"] = 7  # type: ignore[index]
    intarsia.save(tmp_path / "ours", model, optimizer)
    with pytest.raises(UsageError, match=r"shared_state.*rounds.*that torch_dist cannot hold"):
        intarsia.convert(tmp_path / "ours", tmp_path / "td", to="torch_dist")


@pytest.mark.parametrize("flat", [False, True])
def test_a_setting_that_is_a_dictionary_stays_its_groups(flat: bool, tmp_path: Path) -> None:
    """torch writes each of its keys under a name of its own, which begins as a group's does."""
    mine = {"a": 1, "b": {"c": 2.5}}
    source = saved(tmp_path / "dcp", FAST | {"mine": mine}, SLOW | {"mine": mine}, flat=flat)
    intarsia.convert(source, tmp_path / "td", to="torch_dist")
    assert intarsia.verify(source, tmp_path / "td")
    for path in (source, tmp_path / "td"):
        model = made(1)
        own = {"mine": {"a": 7}}
        optimizer = optimizer_of(model, FAST | own, SLOW | own)
        intarsia.load(path, into=model, optimizer=optimizer)
        for group in optimizer.param_groups:
            assert {k: v for k, v in group.items() if "mine" in k} == {"mine": mine}


def test_a_setting_of_which_names_do_not_say_what_it_was_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "dcp", ALL | {"mine": [{"a": 1}]})
    model = made(1)
    optimizer = optimizer_of(model, ALL)
    with pytest.raises(UsageError, match=r"`mine`, .* was a list or a dictionary"):
        intarsia.load(source, into=model, optimizer=optimizer)
    intarsia.load(source, into=model, optimizer=optimizer, hyperparameters="mine")


def test_a_setting_of_which_a_part_cannot_be_written_is_not_taken_in_part() -> None:
    out = io.BytesIO()
    torch.save([{"a": 1, "b": torch.float32}], out)
    entries = {"optimizer.param_groups.0.mine": out.getvalue()}
    assert unplain_settings(entries) == {*entries}
    assert groups_of_torch(entries, lambda name: (name,)) is None
