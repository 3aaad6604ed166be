"""Dicts of modules, tensors and plain values, and the extra state of modules: saved whole, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.errors import CoverageError, UsageError


def linear(seed: int, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))


def same(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[n], y[n]) for n in x)


@pytest.mark.parametrize("names", [("actor", "critic"), ("model", "ema"), ("g", "d"), ("a.b", "c")])
def test_modules_of_a_dict_come_back_each_to_its_own(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    first = {names[0]: linear(1), names[1]: linear(2)}
    intarsia.save(tmp_path / "ck", first)
    other = {names[0]: linear(3), names[1]: linear(4)}
    report = intarsia.load(tmp_path / "ck", into=other)
    assert report.complete
    assert len(report.filled) == 8
    assert all(same(first[n], other[n]) for n in names)
    alone = linear(5)
    intarsia.load(tmp_path / "ck", into=alone, section=names[1])
    assert same(alone, first[names[1]])


def test_a_module_that_the_dict_does_not_ask_for_is_refused_or_reported(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "ck", {"actor": linear(1), "critic": linear(2)})
    with pytest.raises(CoverageError, match=r"critic\.0\.bias"):
        intarsia.load(tmp_path / "ck", into={"actor": linear(3)})
    with pytest.raises(CoverageError, match=r"third\.0"):
        intarsia.load(
            tmp_path / "ck", into={"actor": linear(3), "critic": linear(3), "third": linear(3)}
        )


def test_tensors_numbers_lists_and_text_of_a_dict_come_back(tmp_path: Path) -> None:
    first = {
        "net": linear(1),
        "alpha": torch.tensor(0.25),
        "step": 7,
        "lr": [0.1, 0.2],
        "run": {"name": "seven", "best": None, "seen": {}},
        "groups": [{"params": [0, 1], "lr": 1e-3}],
    }
    intarsia.save(tmp_path / "ck", first)
    other: dict[str, Any] = {
        "net": linear(2), "alpha": torch.zeros(()), "step": 0, "lr": [],
        "run": {"name": "", "best": 1, "seen": {"x": 1}["x"]}, "groups": None,
    }  # fmt: skip
    report = intarsia.load(tmp_path / "ck", into=other)
    assert same(first["net"], other["net"])
    assert other["alpha"] == 0.25
    assert {k: v for k, v in other.items() if k not in ("net", "alpha")} == {
        k: v for k, v in first.items() if k not in ("net", "alpha")
    }
    assert report.extra["step"] == 7
    assert report.complete


def test_a_value_that_was_not_saved_is_refused_or_left(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "ck", {"net": linear(1)})
    with pytest.raises(CoverageError, match="step"):
        intarsia.load(tmp_path / "ck", into={"net": linear(2), "step": 3})
    into = {"net": linear(2), "step": 3}
    report = intarsia.load(tmp_path / "ck", into=into, strict=False)
    assert into["step"] == 3
    assert [*report.kept] == ["step"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "no tensor"),
        ({"step": 3}, "no tensor"),
        (nn.Dropout(), "no tensor"),
        ({"w": torch.ones(2), "f": len}, "`f` cannot be saved"),
        ({"w": torch.ones(2), "o": object()}, "`o` cannot be saved"),
        ({"w": torch.ones(2), 1.5: 2}, "the key 1.5"),
        ({"a.b": torch.ones(2), "a": {"b": torch.ones(2)}}, "`a.b`"),
        ({1: torch.ones(2), "1": torch.ones(2)}, "`1`"),
        ({"w": torch.ones(2), "g": torch.amp.GradScaler("cpu")}, "its state_dict"),
        ([linear(1)], "list can neither"),
        (nn.Linear(2, 2, device="meta"), "2 tensors are on `meta`"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(
    tmp_path: Path, given: Any, told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        intarsia.save(tmp_path / "ck", given)
    assert told in f"{caught.value} {caught.value.hint}"
    assert not [*tmp_path.iterdir()]


class Counting(nn.Linear):
    def __init__(self, state: Any = None) -> None:
        super().__init__(3, 2)
        self.seen = state

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


@pytest.mark.parametrize("kept", [{"calls": 3, "names": ["a"]}, torch.arange(5), 12345678901, None])
@pytest.mark.parametrize("compiled", [False, True])
def test_extra_state_of_modules_is_carried(tmp_path: Path, kept: Any, compiled: bool) -> None:
    first = nn.Sequential(nn.Linear(2, 3), Counting(kept))
    intarsia.save(tmp_path / "ck", first)
    other: Any = nn.Sequential(nn.Linear(2, 3), Counting("mine" if kept is not None else None))
    inner = other[1]
    report = intarsia.load(tmp_path / "ck", into=torch.compile(other) if compiled else other)
    assert torch.equal(inner.seen, kept) if isinstance(kept, torch.Tensor) else inner.seen == kept
    assert report.complete
    assert not report.extra
    sections = {"net": nn.Sequential(nn.Linear(2, 3), Counting("mine"))}
    intarsia.save(tmp_path / "both", {"net": first})
    intarsia.load(tmp_path / "both", into=sections)
    found = sections["net"][1].seen
    assert torch.equal(found, kept) if isinstance(kept, torch.Tensor) else found == kept


def test_extra_state_that_is_not_plain_or_not_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="_extra_state` cannot be saved"):
        intarsia.save(tmp_path / "ck", Counting(object()))
    intarsia.save(tmp_path / "ck", nn.Linear(3, 2))
    with pytest.raises(CoverageError, match="_extra_state"):
        intarsia.load(tmp_path / "ck", into=Counting(3))
    report = intarsia.load(tmp_path / "ck", into=Counting(3), strict=False)
    assert [*report.kept] == ["_extra_state"]
    assert intarsia.load(tmp_path / "ck", into=Counting(None)).complete


def test_state_dicts_of_a_model_and_its_optimizer_in_one_dict_come_back(tmp_path: Path) -> None:
    def trained(seed: int) -> dict[str, Any]:
        net: Any = linear(seed)
        optimizer = torch.optim.Adam(net.parameters(), lr=seed / 100)
        net(torch.ones(4)).sum().backward()
        optimizer.step()
        return {"model": net.state_dict(), "optim": optimizer.state_dict(), "epoch": seed}

    first, other = trained(1), trained(2)
    intarsia.save(tmp_path / "ck", first)
    assert intarsia.load(tmp_path / "ck", into=other).complete
    assert all(torch.equal(x, other["model"][n]) for n, x in first["model"].items())
    for number, state in first["optim"]["state"].items():
        assert all(torch.equal(x, other["optim"]["state"][number][k]) for k, x in state.items())
    assert other["optim"]["param_groups"] == first["optim"]["param_groups"]
    assert other["epoch"] == 1


def test_extra_that_is_called_as_an_optimizers_settings_is_carried(tmp_path: Path) -> None:
    given = {"param_groups": [{"lr": 1.0}], "optim.param_groups": 3}
    intarsia.save(tmp_path / "ck", linear(1), extra=given)
    assert intarsia.load(tmp_path / "ck", into=linear(2)).extra == given


def test_a_model_with_adapters_is_resumed_with_its_optimizer(tmp_path: Path) -> None:
    import peft

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 3), nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(x))

    def adapted(seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        net = peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["up"]))
        held = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(held, lr=seed / 100)
        net(torch.ones(4)).sum().backward()
        optimizer.step()
        return net, optimizer

    (first, before), (other, after) = adapted(1), adapted(2)
    intarsia.save(tmp_path / "ck", first, before)
    report = intarsia.load(tmp_path / "ck", other, after)
    assert same(first, other)
    assert after.param_groups[0]["lr"] == 0.01
    for a, b in zip(before.state.values(), after.state.values(), strict=True):
        assert all(torch.equal(x, b[k]) for k, x in a.items())
    assert "up.weight" in report.filled
