"""Optimizers come back whole: every setting of every group and every state, in its own type."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from transformers import Phi3Config, Phi3ForCausalLM

import intarsia
from intarsia.errors import CoverageError, LayoutError, UsageError
from intarsia.live.optimizer.classes import _KINDS
from tests.checkpoints import write_dcp

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Tiny(nn.Module):
    """A matrix, a vector, a number and a parameter without elements."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up = nn.Linear(3, 5)
        self.down = nn.Linear(5, 2)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.empty(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(torch.tanh(self.up(x))) * self.scale + self.empty.sum()
        return found


def step(model: nn.Module, optimizer: Any, number: int) -> float:
    torch.manual_seed(100 + number)
    x = torch.randn(4, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        return optimizer.step(closure).item()
    loss = closure()
    optimizer.step()
    return loss.item()


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.dim() == 2 and p.numel()]


OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "Adafactor": torch.optim.Adafactor,
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=3),
}
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["Muon"] = torch.optim.Muon


def params_for(name: str, model: nn.Module) -> list[nn.Parameter]:
    """Muon takes matrices alone; Adafactor divides by the number of elements."""
    held = matrices(model) if name == "Muon" else list(model.parameters())
    return [p for p in held if p.numel()] if name == "Adafactor" else held


def exact(value: Any) -> Any:
    """A value that is equal only to one of the same types throughout."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.detach().flatten().tolist()
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [exact(x) for x in value]
    if isinstance(value, dict):
        return {k: exact(x) for k, x in value.items()}
    return type(value).__name__, value


def all_of(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    found: dict[str, Any] = {n: exact(p) for n, p in model.named_parameters()}
    names = {p: n for n, p in model.named_parameters()}
    for key, state in optimizer.state.items():
        found[f"state of {names.get(key, key)}"] = exact(state)
    for k, group in enumerate(optimizer.param_groups):
        found |= {f"{k}.{key}": exact(x) for key, x in group.items() if key != "params"}
    return found


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "LBFGS"])
@pytest.mark.parametrize("with_names", [False, True])
@pytest.mark.one_in(3)
def test_torch_loads_what_is_saved(name: str, with_names: bool, tmp_path: Path) -> None:
    def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Tiny(seed)
        given = {id(p) for p in params_for(name, model)}
        pairs = [(n, p) for n, p in model.named_parameters() if id(p) in given]
        members: Any = pairs if with_names else [p for _, p in pairs]
        return model, OPTIMIZERS[name](members)

    (model, optimizer), (other, again) = made(0), made(1)
    for k in range(2):
        step(model, optimizer, k)
    intarsia.save(tmp_path / "saved", model, optimizer)
    weights, state = get_state_dict(other, again)
    dcp.load({**weights, "optimizer": state}, checkpoint_id=tmp_path / "saved", no_dist=True)
    set_state_dict(other, again, model_state_dict=weights, optim_state_dict=state)
    assert all_of(other, again) == all_of(model, optimizer)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "LBFGS"])
@pytest.mark.parametrize("saved_by", ["torch", "intarsia"])
@pytest.mark.one_in(3)
def test_a_dict_of_a_model_and_its_optimizer_comes_back(
    name: str, saved_by: str, tmp_path: Path
) -> None:
    models = Tiny(), Tiny(1)
    (model, optimizer), (other, again) = (
        (each, OPTIMIZERS[name](params_for(name, each))) for each in models
    )
    step(model, optimizer, 0)
    weights, state = get_state_dict(model, optimizer)
    if saved_by == "torch":
        torchs = {"model": weights, "optimizer": state}
        dcp.save(torchs, checkpoint_id=tmp_path / "saved", no_dist=True)
    else:
        intarsia.save(tmp_path / "saved", {"model": model, "optimizer": optimizer})
    intarsia.load(tmp_path / "saved", into={"model": other, "optimizer": again})
    assert all_of(other, again) == all_of(model, optimizer)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "LBFGS"])
def test_counters_that_were_stored_as_plain_numbers_become_what_the_class_steps_with(
    name: str, tmp_path: Path
) -> None:
    models = Tiny(), Tiny(1)
    (model, optimizer), (other, again) = (
        (each, OPTIMIZERS[name](params_for(name, each))) for each in models
    )
    step(model, optimizer, 0)
    weights, state = copy.deepcopy(get_state_dict(model, optimizer))
    for held in state["state"].values():
        counted = [kind for kind in held if kind in ("step", "mu_product", "eta", "mu")]
        held |= {kind: held[kind].item() for kind in counted}
    dcp.save({**weights, "optimizer": state}, checkpoint_id=tmp_path / "old", no_dist=True)
    intarsia.load(tmp_path / "old", other, again)
    assert all_of(other, again) == all_of(model, optimizer)
    assert step(other, again, 1) == step(model, optimizer, 1)
    assert all_of(other, again) == all_of(model, optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.one_in(2)
def test_a_resumed_run_is_the_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    model = Tiny()
    optimizer = OPTIMIZERS[name](params_for(name, model))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for k in range(3):
        step(model, optimizer, k)
        scheduler.step()
    extra = {"scheduler": scheduler.state_dict(), "scaler": scaler.state_dict()}
    intarsia.save(tmp_path / "saved", model, optimizer, extra)
    told = all_of(model, optimizer)

    other = Tiny(1)
    again = OPTIMIZERS[name](params_for(name, other))
    schedule = torch.optim.lr_scheduler.StepLR(again, 2, 0.5)
    groups = again.param_groups
    report = intarsia.load(tmp_path / "saved", into=other, optimizer=again)
    schedule.load_state_dict(report.extra["scheduler"])
    assert report.extra["scaler"] == scaler.state_dict()
    assert schedule.optimizer.param_groups is groups
    assert all_of(other, again) == told
    for k in range(3, 6):
        assert step(model, optimizer, k) == step(other, again, k)
        scheduler.step()
        schedule.step()
    assert all_of(other, again) == all_of(model, optimizer)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() & _KINDS.keys()))
def test_the_kinds_of_state_are_those_that_torch_keeps(name: str) -> None:
    model = Tiny()
    optimizer = OPTIMIZERS[name](params_for(name, model))
    step(model, optimizer, 0)
    needed, allowed = (set(words.split()) for words in _KINDS[name])
    for param, state in optimizer.state.items():
        if param.numel():
            assert needed <= state.keys() <= needed | allowed


class Odd(torch.optim.SGD):
    """An optimizer of a user's, with state of every type."""


def odd(model: nn.Module) -> Odd:
    return Odd(model.parameters(), lr=0.1)


VALUES: dict[str, Any] = {
    "an_int": 20000001,
    "a_bool": True,
    "none": None,
    "a_float": 0.1,
    "text": "warm",
    "a_tuple": (1, 2.5, (3,)),
    "long": torch.tensor(20000001),
    "double": torch.tensor(0.1, dtype=torch.float64),
    "flag": torch.tensor(True),
    "half": torch.tensor(0.1, dtype=torch.bfloat16),
    "factor": torch.arange(7.0),
    "many": [torch.arange(3), {"x": torch.tensor(2.5)}],
}


def test_every_state_keeps_its_type(tmp_path: Path) -> None:
    model = Tiny()
    optimizer = odd(model)
    for param in model.parameters():
        optimizer.state[param] = copy.deepcopy(VALUES)
    optimizer.state["global"] = {"count": 7, "window": torch.arange(4)}
    optimizer.state["seen.tokens"] = 1 << 40
    optimizer.param_groups[0] |= {"step": 12, "initial_lr": 0.3, "own": (1, None), "note": "x"}
    intarsia.save(tmp_path / "saved", model, optimizer)
    told = all_of(model, optimizer)
    other = Tiny(1)
    again = odd(other)
    again.state["stale"] = 3
    intarsia.load(tmp_path / "saved", into=other, optimizer=again)
    assert all_of(other, again) == told


def test_tensors_among_the_settings_stay_tensors(tmp_path: Path) -> None:
    model = Tiny()
    groups = [
        {"params": list(model.up.parameters()), "lr": torch.tensor(1e-3)},
        {"params": list(model.down.parameters()), "lr": torch.tensor(1.00001e-3)},
    ]
    optimizer = torch.optim.AdamW(groups, foreach=False)
    step(model, optimizer, 0)
    intarsia.save(tmp_path / "saved", model, optimizer)
    by_parameter = StateDictOptions(flatten_optimizer_state_dict=True)
    held, state = get_state_dict(model, optimizer, options=by_parameter)
    dcp.save({"model": held, "optimizer": state}, checkpoint_id=tmp_path / "flat")
    for lr, saved in product((7.0, torch.tensor(7.0)), ("saved", "flat")):
        other = Tiny(1)
        both = [{"params": list(m.parameters())} for m in (other.up, other.down)]
        again = torch.optim.AdamW(both, lr=lr, foreach=False)
        intarsia.load(tmp_path / saved, into=other, optimizer=again)
        assert all_of(other, again) == all_of(model, optimizer)
    joined = torch.optim.AdamW([*other.up.parameters(), *other.down.parameters()])
    with pytest.raises(UsageError, match=r"lr=tensor\(0\.0010000"):
        intarsia.load(tmp_path / "saved", into=other, optimizer=joined)


class Scheduled(torch.optim.Optimizer):
    """Counts and sums in its groups, as optimizers without a schedule do; its constructor takes none of them."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "k": 0, "weight_sum": 0.0, "train_mode": False})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"] += 0.5 * group["k"]
            group["train_mode"] = True
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p].setdefault("z", p.detach().clone()).sub_(
                        p.grad, alpha=group["lr"]
                    )
                    p.data.lerp_(self.state[p]["z"], 1 / group["k"])


@pytest.mark.parametrize("by", ["intarsia", "torch"])
def test_settings_that_change_as_an_optimizer_steps_come_back(by: str, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = Tiny()
    optimizer = Scheduled(model.parameters(), lr=0.3)
    for number in range(3):
        step(model, optimizer, number)
    if by == "torch":
        weights, moments = get_state_dict(model, optimizer)
        held = {"model": weights, "optimizer": moments}
        dcp.save(held, checkpoint_id=tmp_path / "saved", no_dist=True)
    else:
        intarsia.save(tmp_path / "saved", model, optimizer)
    other = Tiny(1)
    again = Scheduled(other.parameters())
    intarsia.load(tmp_path / "saved", into=other, optimizer=again)
    assert again.param_groups[0]["k"] == 3
    assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    assert all_of(other, again) == all_of(model, optimizer)


def test_a_setting_that_no_checkpoint_holds_is_refused(tmp_path: Path) -> None:
    model = Tiny()
    for value in (print, [torch.tensor(1.0), print], {"a": {1, 2}}):
        optimizer = odd(model)
        optimizer.param_groups[0]["own"] = value
        with pytest.raises(UsageError, match=r"param_groups\.0\.own"):
            intarsia.save(tmp_path / "saved", model, optimizer)
    assert not (tmp_path / "saved").exists()


def saved(path: Path, make: Make, steps: int = 1) -> Path:
    model = Tiny()
    optimizer = make(list(model.parameters()))
    for k in range(steps):
        step(model, optimizer, k)
    intarsia.save(path, model, optimizer)
    return path


def test_another_class_is_refused_unless_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved", OPTIMIZERS["Adam"])
    model = Tiny(1)
    before = all_of(model, torch.optim.SGD(model.parameters()))
    asked: dict[str, Any] = {"optimizer_class": "any", "hyperparameters": "mine"}
    adamw = torch.optim.AdamW(model.parameters(), lr=0.5)
    for options in ({}, {"optimizer_class": "any"}, {"hyperparameters": "mine"}):
        with pytest.raises(
            UsageError, match=r"saved with torch\.optim\.adam\.Adam, the optimizer is"
        ):
            intarsia.load(path, into=model, optimizer=adamw, **options)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(UsageError, match="SGD keeps momentum_buffer"):
        intarsia.load(path, into=model, optimizer=sgd, **asked)
    assert all_of(model, torch.optim.SGD(model.parameters())) == before
    intarsia.load(path, into=model, optimizer=adamw, **asked)
    assert adamw.param_groups[0]["lr"] == 0.5
    assert adamw.param_groups[0]["decoupled_weight_decay"] is True
    assert len(adamw.state) == 6


@pytest.mark.parametrize(
    ("name", "before", "now", "lacking"),
    [
        ("AdamW", {}, {"amsgrad": True}, "max_exp_avg_sq"),
        ("Adam", {}, {"amsgrad": True}, "max_exp_avg_sq"),
        ("RMSprop", {"momentum": 0.9}, {"momentum": 0.9, "centered": True}, "grad_avg"),
        ("RMSprop", {"centered": True}, {"momentum": 0.9, "centered": True}, "momentum_buffer"),
        ("SGD", {}, {"momentum": 0.9}, None),  # torch makes it at the next step
    ],
)
def test_state_that_the_settings_ask_for_and_nobody_stored_is_refused(
    name: str, before: Any, now: Any, lacking: str | None, tmp_path: Path
) -> None:
    made = getattr(torch.optim, name)
    model = Tiny()
    optimizer = made(model.parameters(), **before)
    step(model, optimizer, 0)
    intarsia.save(tmp_path / "saved", model, optimizer)
    again = made(model.parameters(), **now)
    if lacking is None:
        intarsia.load(tmp_path / "saved", model, again, hyperparameters="mine")
    else:
        with pytest.raises(UsageError, match=f"holds no {lacking} of .*, which {name} needs with"):
            intarsia.load(tmp_path / "saved", model, again, hyperparameters="mine")
        optimizer.param_groups[0] |= now  # as a checkpoint that lost that state says
        intarsia.save(tmp_path / "lost", model, optimizer)
        with pytest.raises(UsageError, match=f"holds no {lacking} of"):
            intarsia.load(tmp_path / "lost", model, made(model.parameters()))
        intarsia.load(tmp_path / "saved", model, again)
    step(model, again, 1)


def test_a_type_is_not_cast_in_the_state_either(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved", OPTIMIZERS["Adam"])
    model = Tiny(1)
    optimizer = OPTIMIZERS["Adam"](list(model.parameters()))
    step(model, optimizer, 0)
    state = optimizer.state[model.up.weight]
    state["exp_avg"] = state["exp_avg"].bfloat16()
    with pytest.raises(LayoutError, match=r"exp_avg` is BF16 in the model and F32"):
        intarsia.load(path, into=model, optimizer=optimizer, cast=False)
    report = intarsia.load(path, into=model, optimizer=optimizer)
    assert report.cast == ["up.weight.exp_avg"]


@pytest.mark.parametrize(("was", "now"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_state_of_a_parameter_s_type_follows_the_parameter_as_torch_has_it(
    was: str, now: str, tmp_path: Path
) -> None:
    def made(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(3, 2), nn.PReLU(init=0.1)).to(getattr(torch, kind))
        model.scale = nn.Parameter(torch.tensor(1.0, dtype=getattr(torch, kind)))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        (model(torch.ones(3, dtype=model[0].weight.dtype)).sum() * model.scale).backward()
        optimizer.step()

    first, its = made(was)
    stepped(first, its)
    for state in its.state.values():
        state["step"].fill_(257)  # which bfloat16 cannot hold
    intarsia.save(tmp_path / "saved", first, its)
    model, optimizer = made(now)
    intarsia.load(tmp_path / "saved", model, optimizer)
    by_torch, its_own = made(now)
    by_torch.load_state_dict(first.state_dict())
    its_own.load_state_dict(its.state_dict())
    for _ in range(2):
        assert all_of(model, optimizer) == all_of(by_torch, its_own)
        stepped(model, optimizer)
        stepped(by_torch, its_own)


def test_values_of_parameters_that_the_optimizer_lacks_are_refused(tmp_path: Path) -> None:
    model = Tiny()
    optimizer = odd(model)
    optimizer.state[model.scale] = {"count": 3}
    intarsia.save(tmp_path / "saved", model, optimizer)
    fewer = Odd([*model.up.parameters(), *model.down.parameters()])
    with pytest.raises(CoverageError, match=r"state of 1 parameters .* not update: scale"):
        intarsia.load(tmp_path / "saved", into=model, optimizer=fewer)
    report = intarsia.load(tmp_path / "saved", into=model, optimizer=fewer, strict=False)
    assert report.unused == ["optimizer state of scale"]


def test_state_that_belongs_to_no_group_is_refused(tmp_path: Path) -> None:
    model = Tiny()
    optimizer = odd(model)
    optimizer.state[torch.zeros(3)] = {"x": 1}
    with pytest.raises(UsageError, match="none of its groups"):
        intarsia.save(tmp_path / "saved", model, optimizer)
    optimizer = odd(model)
    optimizer.state[7] = {"x": 1}
    with pytest.raises(UsageError, match="under 7"):
        intarsia.save(tmp_path / "saved", model, optimizer)
    optimizer = odd(model)
    optimizer.state[model.scale] = {"a.b": 1}
    with pytest.raises(UsageError, match=r"has the name 'a\.b'"):
        intarsia.save(tmp_path / "saved", model, optimizer)


class Noam:
    """A wrapper that counts steps itself."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.steps = 5


def test_wrappers_are_opened_or_refused(tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Tiny()
    inner = OPTIMIZERS["AdamW"](list(model.parameters()))
    step(model, inner, 0)
    with pytest.raises(UsageError, match="Noam wraps AdamW"):
        intarsia.save(tmp_path / "saved", model, Noam(inner))
    with pytest.raises(UsageError, match="not an optimizer"):
        intarsia.save(tmp_path / "saved", model, object())
    intarsia.save(tmp_path / "saved", model, accelerator.prepare_optimizer(inner))
    other = Tiny(1)
    again = OPTIMIZERS["AdamW"](list(other.parameters()))
    wrapped = accelerator.prepare_optimizer(again)
    intarsia.load(tmp_path / "saved", into=other, optimizer=wrapped)
    assert all_of(other, again) == all_of(model, inner)
    with pytest.raises(UsageError, match="Noam wraps AdamW"):
        intarsia.load(tmp_path / "saved", into=other, optimizer=Noam(again))


class Scaled:
    """A wrapper that shows the optimizer inside, and has more in its state dict."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optim = optimizer
        self.state, self.param_groups = optimizer.state, optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        return self.optim.state_dict() | {"scale": 4.0}


class Counting(torch.optim.SGD):
    """An optimizer with something in its state dict that is neither a state nor a group."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"tokens": 7}


@pytest.mark.parametrize("made", [Counting, lambda p: Scaled(torch.optim.SGD(p))])
def test_what_only_a_state_dict_holds_is_refused(made: Any, tmp_path: Path) -> None:
    model = Tiny()
    with pytest.raises(UsageError, match=r"holds (scale|tokens) in addition"):
        intarsia.save(tmp_path / "saved", model, made(model.parameters()))
    assert not (tmp_path / "saved").exists()
    saved(tmp_path / "saved", OPTIMIZERS["plain SGD"])
    with pytest.raises(UsageError, match=r"holds (scale|tokens) in addition"):
        intarsia.load(tmp_path / "saved", into=model, optimizer=made(model.parameters()))


def test_the_history_of_lbfgs_is_of_parameters_in_one_order(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved", OPTIMIZERS["LBFGS"], steps=2)
    model = Tiny(1)
    before = model.up.weight.detach().clone()
    turned = OPTIMIZERS["LBFGS"](list(model.parameters())[::-1])
    for options in ({}, {"hyperparameters": "mine"}):
        with pytest.raises(UsageError, match="one history of all its parameters"):
            intarsia.load(path, into=model, optimizer=turned, **options)
    assert torch.equal(model.up.weight, before)
    assert not turned.state


@pytest.mark.parametrize("steps", [1, 2])
def test_what_torch_saved_of_lbfgs_is_loaded_or_said_to_be_in_parts(
    steps: int, tmp_path: Path
) -> None:
    import torch.distributed.checkpoint as dcp

    model = Tiny()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    for k in range(steps):
        step(model, optimizer, k)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path, no_dist=True)
    other = Tiny(1)
    again = torch.optim.LBFGS(other.parameters(), max_iter=1)
    if steps == 1:  # its lists are empty
        intarsia.load(tmp_path, into=other, optimizer=again)
        assert step(other, again, 1) == step(model, optimizer, 1)
        return
    for strict in (True, False):
        with pytest.raises(UsageError, match=r"holds `\w+` of `[\w.]+` in parts, as torch stores"):
            intarsia.load(tmp_path, into=other, optimizer=again, strict=strict)
    assert not again.state


def test_a_parameter_that_is_called_by_a_number_is_refused(tmp_path: Path) -> None:
    model = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(2)])
    optimizer = odd(model)
    with pytest.raises(UsageError, match="`0` has a number as its name"):
        intarsia.save(tmp_path / "saved", model, optimizer)
    intarsia.save(tmp_path / "saved", nn.ModuleDict({"all": model}), optimizer)


def test_settings_of_groups_without_parameters_come_back(tmp_path: Path) -> None:
    def made(model: Tiny, lr: float) -> torch.optim.SGD:
        groups = [{"params": list(model.parameters())}, {"params": [], "lr": lr / 2}]
        return torch.optim.SGD(groups, lr=lr)

    model = Tiny()
    optimizer = made(model, 0.25)
    intarsia.save(tmp_path / "saved", model, optimizer)
    other = made(model, 7.0)
    intarsia.load(tmp_path / "saved", into=model, optimizer=other)
    assert [g["lr"] for g in other.param_groups] == [0.25, 0.125]


def test_groups_of_numbers_without_state_are_said_to_name_no_parameters(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model = Tiny()
    groups = [{"params": [*part.parameters()]} for part in (model.down, model.up)]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    held = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.save(held, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(CoverageError, match=r"no optimizer state.*groups name no parameters"):
        intarsia.load(tmp_path, into=model, optimizer=optimizer)


def test_groups_without_any_setting_are_no_reason_to_refuse(tmp_path: Path) -> None:
    class Bare(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

    model = Tiny()
    optimizer = Bare(model.parameters())
    optimizer.state[model.scale]["n"] = 3
    intarsia.save(tmp_path / "saved", model, optimizer)
    again = Bare(model.parameters())
    intarsia.load(tmp_path / "saved", into=model, optimizer=again)
    assert again.state[model.scale] == {"n": 3}


def test_a_parameter_that_was_frozen_after_a_step_keeps_its_state(tmp_path: Path) -> None:
    model = Tiny()
    optimizer = OPTIMIZERS["Adam"](list(model.parameters()))
    step(model, optimizer, 0)
    model.up.requires_grad_(False)
    intarsia.save(tmp_path / "saved", model, optimizer)
    for frozen in (True, False):
        other = Tiny(1)
        other.up.requires_grad_(not frozen)
        again = OPTIMIZERS["Adam"](list(other.parameters()))
        intarsia.load(tmp_path / "saved", into=other, optimizer=again)
        assert all_of(other, again) == all_of(model, optimizer)


def test_state_from_before_the_load_does_not_stay(tmp_path: Path) -> None:
    model = Tiny()
    model.scale.requires_grad_(False)
    optimizer = OPTIMIZERS["Adam"](list(model.parameters()))
    step(model, optimizer, 0)
    intarsia.save(tmp_path / "saved", model, optimizer)
    other = Tiny(1)
    again = OPTIMIZERS["Adam"](list(other.parameters()))
    step(other, again, 5)
    assert other.scale in again.state
    report = intarsia.load(tmp_path / "saved", into=other, optimizer=again)
    assert other.scale not in again.state
    assert report.never_stepped == ["scale"]
    assert all_of(other, again) == all_of(model, optimizer)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_factor_of_a_whole_parameter_is_not_given_to_its_shards(
    group: None, tmp_path: Path
) -> None:
    from torch.distributed.fsdp import fully_shard

    model = Tiny()
    optimizer = odd(model)
    for kind, value in (("count", 7), ("rows", torch.arange(5.0)), ("many", [torch.arange(5)])):
        optimizer.state[model.up.weight] = {kind: value}
        intarsia.save(tmp_path / kind, model, optimizer)
        other = Tiny(1)
        fully_shard(other.up)
        again = odd(other)
        if kind == "count":
            intarsia.load(tmp_path / kind, into=other, optimizer=again)
            assert again.state[other.up.weight] == {"count": 7}
            continue
        with pytest.raises(UsageError, match=f"`{kind}` of `up.weight` was stored whole"):
            intarsia.load(tmp_path / kind, into=other, optimizer=again)


SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda p: torch.randn(p.shape[::-1]),
    "flat": lambda p: torch.randn(p.numel()),
    "rows": lambda p: torch.randn(p.shape[0], 1),
    "one": lambda p: torch.randn(1),
    "longer": lambda p: torch.randn(p.numel() + 2),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("to", ["", "hf", "dcp"])
@pytest.mark.one_in(3)
def test_state_of_another_shape_that_torch_saved_keeps_it(
    to: str, kind: str, strict: bool, group: None, tmp_path: Path
) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    model, at = Tiny(), tmp_path / "saved"
    kept = {name: {kind: SHAPES[kind](p)} for name, p in model.named_parameters() if p.dim() == 2}
    groups = [{"params": [name for name, _ in model.named_parameters()], "lr": 0.01}]
    state = {"state": kept, "param_groups": groups}
    dcp.save({"model": model.state_dict(), "optim": state}, checkpoint_id=at)
    if to:
        intarsia.convert(at, tmp_path / to, to=to)
        at = tmp_path / to
    other = Tiny(1)
    again = odd(other)
    intarsia.load(at, into=other, optimizer=again, strict=strict)
    for name in ("up.weight", "down.weight"):
        found = again.state[other.get_parameter(name)][kind]
        assert torch.equal(found, kept[name][kind])
    fully_shard(other.up)
    with pytest.raises(UsageError, match=f"`{kind}` of `up.weight` was stored whole"):
        intarsia.load(at, into=other, optimizer=odd(other), strict=strict)


@pytest.mark.parametrize("kind", ["exp_avg", "momentum_buffer", "sum"])
def test_a_moment_of_another_shape_is_damaged(kind: str, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model = Tiny()
    optimizer = torch.optim.Adagrad(model.parameters()) if kind == "sum" else odd(model)
    optimizer.state.clear()
    kept = {"up.weight": {kind: torch.randn(3, 5), "step": torch.tensor(1.0)}}
    groups = [{"params": [name for name, _ in model.named_parameters()], "lr": 0.01}]
    held = {"model": model.state_dict(), "optim": {"state": kept, "param_groups": groups}}
    dcp.save(held, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(CoverageError, match=rf"`{kind}` of `up.weight` has shape \[3, 5\]"):
        intarsia.load(tmp_path, into=model, optimizer=optimizer, strict=False)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "fsdp1"])
@pytest.mark.filterwarnings("ignore")
def test_an_optimizer_of_another_model_is_refused(
    wrapped: bool, group: None, tmp_path: Path
) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    other, model = nn.Linear(3, 5), nn.Linear(3, 5)
    optimizer = torch.optim.SGD([*other.parameters()])
    held = FullyShardedDataParallel(model, device_id=torch.device("cpu")) if wrapped else model
    told = r"parameter 0 of group 0 \(\[5, 3\]\) of the optimizer is not in the model"
    with pytest.raises(UsageError, match=told):
        intarsia.save(tmp_path / "saved", held, optimizer)
    intarsia.save(tmp_path / "saved", other, optimizer)
    with pytest.raises(UsageError, match=told):
        intarsia.load(tmp_path / "saved", into=held, optimizer=optimizer)


@pytest.mark.parametrize("rank", [0, 1])
def test_factors_of_a_whole_parameter_are_not_loaded_beside_a_part(
    tmp_path: Path, rank: int
) -> None:
    model = torch.nn.Linear(4, 6, bias=False)
    optimizer = torch.optim.Adafactor(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    src = write_dcp(tmp_path / "src", {"model": weights, "optimizer": state})
    part = torch.nn.Linear(4, 3, bias=False)
    again = torch.optim.Adafactor(part.parameters())
    with pytest.raises(UsageError, match="does not have the shape of its parameter"):
        intarsia.load(src, into=part, optimizer=again, mesh="fsdp=2", rank=rank)


@pytest.mark.parametrize("rank", [0, 1])
def test_state_of_a_part_is_the_part_of_the_state(tmp_path: Path, rank: int) -> None:
    model = torch.nn.Linear(4, 6)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()
    intarsia.save(tmp_path / "a", model, optimizer)
    part = torch.nn.Linear(4, 3)
    again = torch.optim.AdamW(part.parameters())
    intarsia.load(tmp_path / "a", into=part, optimizer=again, mesh="fsdp=2", rank=rank)
    rows = slice(3 * rank, 3 * rank + 3)
    for whole, mine in zip(model.parameters(), part.parameters(), strict=True):
        assert torch.equal(mine, whole[rows])
        for kind in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(again.state[mine][kind], optimizer.state[whole][kind][rows])
        assert again.state[mine]["step"] == 1


def test_values_of_a_whole_parameter_are_not_loaded_beside_a_part(tmp_path: Path) -> None:
    class Own(torch.optim.Optimizer):
        pass

    model = torch.nn.Linear(4, 6, bias=False)
    optimizer = Own(model.parameters(), {"lr": 1.0})
    optimizer.state[model.weight]["norms"] = torch.ones(7)
    intarsia.save(tmp_path / "a", model, optimizer)
    part = torch.nn.Linear(4, 3, bias=False)
    again = Own(part.parameters(), {"lr": 1.0})
    with pytest.raises(UsageError, match="which is now sharded over ranks"):
        intarsia.load(tmp_path / "a", into=part, optimizer=again, mesh="fsdp=2", rank=0)


def test_tensors_among_the_settings_of_a_fused_parameter_are_those_of_its_parts(
    tmp_path: Path,
) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "vocab_size": 16}
    config = Phi3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, pad_token_id=0)
    models = [Phi3ForCausalLM(config) for _ in range(2)]
    optimizers = []
    for model, lr in zip(models, (0.25, 7.0), strict=True):
        norms = [p for n, p in model.named_parameters() if "norm" in n]
        others = [p for n, p in model.named_parameters() if "norm" not in n]
        groups = [{"params": norms, "lr": torch.tensor(lr)}, {"params": others}]
        optimizers.append(torch.optim.SGD(groups, lr=torch.tensor(2 * lr), foreach=False))
    by_parameter = StateDictOptions(flatten_optimizer_state_dict=True)
    held, state = get_state_dict(models[0], optimizers[0], options=by_parameter)
    dcp.save({"model": held, "optimizer": state}, checkpoint_id=tmp_path / "flat")
    config.save_pretrained(tmp_path / "flat")
    intarsia.load(tmp_path / "flat", into=models[1], optimizer=optimizers[1])
    assert [float(group["lr"]) for group in optimizers[1].param_groups] == [0.25, 0.5]


def test_hooks_on_loading_are_called_once_the_optimizer_has_its_state(tmp_path: Path) -> None:
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5, momentum=0.9) for each in layers]
    layers[1](layers[0](torch.ones(3))).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    intarsia.save(tmp_path / "a", layers, optimizers)
    again = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in layers]
    seen = []
    for optimizer in again:
        optimizer.register_load_state_dict_post_hook(
            lambda o: seen.append((o, o.param_groups[0]["lr"], len(o.state)))
        )
    intarsia.load(tmp_path / "a", layers, again)
    assert seen == [(again[0], 0.5, 2), (again[1], 0.5, 2)]
