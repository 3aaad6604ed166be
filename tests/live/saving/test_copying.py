"""A save in the background writes what one in the foreground would, whatever happened since the last one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import intarsia
from intarsia.live.background import release
from intarsia.live.saving import copying


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_parameter("empty", None)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_module("before", None)
        self.after = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = self.after if self.before is None else self.before
        out: torch.Tensor = self.norm(last(self.b(self.a(x)))) * self.scale
        return out


def trained(model: nn.Module, kind: Any = torch.optim.AdamW) -> tuple[nn.Module, Any]:
    optimizer = kind(model.parameters(), lr=1e-2)
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.arange(8.0).reshape(2, 4)).square().sum().backward()
    optimizer.step()


def save(path: Path, *given: Any) -> None:
    saving = intarsia.save(path, *given, background=True)
    assert isinstance(saving, intarsia.live.background.Saving)
    saving.wait()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def _nothing_kept() -> Any:
    release()
    yield
    release()


def swap(model: Any, optimizer: Any) -> None:
    model.a, model.b = model.b, model.a


def other_name(model: Any, optimizer: Any) -> None:
    model.empty, model.scale = model.scale, None


def other_module_name(model: Any, optimizer: Any) -> None:
    model.before, model.after = model.after, None


def other_name_of_state(model: Any, optimizer: Any) -> None:
    state = optimizer.state[model.a.bias]
    state["squares"] = state.pop("exp_avg_sq")


def replace_parameter(model: Any, optimizer: Any) -> None:
    old = model.a.weight
    model.a.weight = nn.Parameter(torch.ones(4, 4))
    params = optimizer.param_groups[0]["params"]
    params[[*map(id, params)].index(id(old))] = model.a.weight
    optimizer.state[model.a.weight] = optimizer.state.pop(old)


def other_shape(model: Any, optimizer: Any) -> None:
    model.norm.running_mean.unsqueeze_(0)


def other_type(model: Any, optimizer: Any) -> None:
    model.norm.running_mean.data = model.norm.running_mean.double()


def other_memory(model: Any, optimizer: Any) -> None:
    model.a.weight.data = torch.full((4, 4), 7.0)


def other_tensor_inside(model: Any, optimizer: Any) -> None:
    """As `to()` of a module of DTensors does; torch does not where something has a weak reference to them."""
    for x in (model.a.weight, model.norm.running_mean, optimizer.state[model.a.weight]["exp_avg"]):
        torch.utils.swap_tensors(x, type(x)(torch.full(x.shape, 3.0)))


def new_buffer(model: Any, optimizer: Any) -> None:
    model.a.register_buffer("seen", torch.ones(3))


def passing_buffer(model: Any, optimizer: Any) -> None:
    model.norm._non_persistent_buffers_set.add("running_mean")


def new_module(model: Any, optimizer: Any) -> None:
    model.c = nn.Linear(2, 2)


def other_rate(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = -0.0


def rate_as_tensor(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5)


def split_group(model: Any, optimizer: Any) -> None:
    group = optimizer.param_groups[0]
    last = {**group, "params": [group["params"].pop()]}
    optimizer.param_groups.append(last)


def other_order(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["params"].reverse()


def without_state(model: Any, optimizer: Any) -> None:
    optimizer.state.pop(model.b.bias)


def state_as_number(model: Any, optimizer: Any) -> None:
    optimizer.state[model.b.bias]["step"] = 5


def state_of_its_own(model: Any, optimizer: Any) -> None:
    optimizer.state[model.b.bias]["exp_avg"] = torch.ones(4)


def hook(model: Any, optimizer: Any) -> None:
    def swap_by_step(module: Any, state: Any, prefix: str, meta: Any) -> None:
        if optimizer.state[model.scale]["step"] % 2:
            a, b = (f"{prefix}{name}.weight" for name in ("a", "b"))
            state[a], state[b] = state[b], state[a]

    model._register_state_dict_hook(swap_by_step)


def method(model: Any, optimizer: Any) -> None:
    def change(destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = model.b.weight.detach() + 1
        destination[prefix + "bias"] = model.b.bias

    model.b._save_to_state_dict = change


def extra_state(model: Any, optimizer: Any) -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"seen": 3}

    model.a.__class__ = Counting


CHANGES = [
    swap, other_name, other_module_name, other_name_of_state, replace_parameter, other_shape, other_type, other_memory, other_tensor_inside,
    new_buffer, passing_buffer, new_module, other_rate, rate_as_tensor, split_group, other_order, without_state, state_as_number,
    state_of_its_own, hook, method, extra_state,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.one_in(3)
def test_a_change_between_two_saves_is_saved(
    change: Callable[[Any, Any], None], tmp_path: Path
) -> None:
    model, optimizer = trained(Net())
    save(tmp_path / "first", model, optimizer)
    change(model, optimizer)
    save(tmp_path / "aside", model, optimizer)
    intarsia.save(tmp_path / "now", model, optimizer)
    assert files(tmp_path / "aside") == files(tmp_path / "now")


@pytest.mark.parametrize("change", [hook, method], ids=lambda change: change.__name__)
def test_a_module_that_computes_what_it_hands_out_is_asked_each_time(
    change: Callable[[Any, Any], None], tmp_path: Path
) -> None:
    model, optimizer = trained(Net())
    change(model, optimizer)
    for number in range(2):
        step(model, optimizer)
        save(tmp_path / f"aside-{number}", model, optimizer)
        intarsia.save(tmp_path / f"now-{number}", model, optimizer)
        assert files(tmp_path / f"aside-{number}") == files(tmp_path / f"now-{number}")


def test_state_that_has_not_its_parameters_shape_is_saved_as_it_is_now(tmp_path: Path) -> None:
    model, optimizer = trained(Net(), torch.optim.Adafactor)
    for number in range(2):
        step(model, optimizer)
        save(tmp_path / f"aside-{number}", model, optimizer)
        intarsia.save(tmp_path / f"now-{number}", model, optimizer)
        assert files(tmp_path / f"aside-{number}") == files(tmp_path / f"now-{number}")


@pytest.mark.parametrize("wrap", [lambda x: x, checkpoint_wrapper], ids=["plain", "wrapped"])
def test_steps_of_a_training_are_saved_the_short_way(
    wrap: Callable[[nn.Module], nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    net.a = wrap(net.a)  # type: ignore[assignment]
    model, optimizer = trained(net)
    save(tmp_path / "0", model, optimizer)

    def long_way(*given: Any) -> Any:
        raise AssertionError("the model is what it was")

    monkeypatch.setattr(copying, "snapshot", long_way)
    for number in (1, 2):
        step(model, optimizer)
        optimizer.param_groups[0]["lr"] *= 0.5
        extra = {"number": number}
        save(tmp_path / f"aside-{number}", model, optimizer, extra)
        intarsia.save(tmp_path / f"now-{number}", model, optimizer, extra)
        assert files(tmp_path / f"aside-{number}") == files(tmp_path / f"now-{number}")


def test_a_second_model_in_the_place_of_the_first_is_saved(tmp_path: Path) -> None:
    for number in range(4):
        model, optimizer = trained(Net())
        save(tmp_path / f"aside-{number}", model, optimizer)
        intarsia.save(tmp_path / f"now-{number}", model, optimizer)
        assert files(tmp_path / f"aside-{number}") == files(tmp_path / f"now-{number}")
        del model, optimizer


def test_the_copy_goes_with_its_model(tmp_path: Path) -> None:
    model, optimizer = trained(Net())
    save(tmp_path / "first", model, optimizer)
    assert copying._kept.memory
    del model, optimizer
    gc.collect()
    assert not copying._kept.memory


def test_the_copy_of_another_model_takes_its_place(tmp_path: Path) -> None:
    first, second = Net(), nn.Linear(3, 3)
    save(tmp_path / "first", first)
    save(tmp_path / "second", second)
    assert copying._kept.memory.keys() == second.state_dict().keys()
    del first
    gc.collect()
    assert copying._kept.memory
