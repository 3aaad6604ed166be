"""Several optimizers over one model, and optimizers in dicts: each parameter's state goes where it is stepped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.errors import CoverageError, UsageError
from tests.live.optimizer.test_optimizers import Odd, Tiny, all_of, exact, matrices, step

SGD = {"momentum": 0.9, "foreach": False}


def two(model: nn.Module, lr: float = 0.1) -> list[Any]:
    """SGD for matrices, AdamW in two groups for all else."""
    wide = matrices(model)
    rest = [p for p in model.parameters() if not any(p is w for w in wide)]
    groups = [{"params": rest[:1], "lr": lr / 2}, {"params": rest[1:], "lr": lr / 4}]
    return [torch.optim.SGD(wide, lr=lr, **SGD), torch.optim.AdamW(groups)]


def stepped_by(model: nn.Module, optimizers: list[Any], number: int) -> None:
    for each in optimizers:
        each.zero_grad()
    torch.manual_seed(number)
    model(torch.randn(4, 3)).square().mean().backward()
    for each in optimizers:
        each.step()


def told(model: nn.Module, optimizers: list[Any]) -> list[Any]:
    return [all_of(model, each) for each in optimizers]


def trained() -> tuple[Tiny, list[Any]]:
    model = Tiny()
    optimizers = two(model)
    for k in range(2):
        stepped_by(model, optimizers, k)
    return model, optimizers


@pytest.mark.parametrize("way", [list, tuple, lambda x: dict(zip("ab", x, strict=True))])
def test_a_run_with_two_optimizers_goes_on(way: Any, tmp_path: Path) -> None:
    model, optimizers = trained()
    intarsia.save(tmp_path / "saved", model, way(optimizers))
    other = Tiny(1)
    again = two(other, lr=7.0)
    stepped_by(other, again, 9)
    report = intarsia.load(tmp_path / "saved", into=other, optimizer=way(again))
    assert report.complete
    assert told(other, again) == told(model, optimizers)
    for k in range(2, 4):
        stepped_by(model, optimizers, k)
        stepped_by(other, again, k)
    assert told(other, again) == told(model, optimizers)


def test_their_order_does_not_matter(tmp_path: Path) -> None:
    model, optimizers = trained()
    intarsia.save(tmp_path / "saved", model, optimizers)
    other = Tiny(1)
    again = two(other, lr=7.0)
    intarsia.load(tmp_path / "saved", into=other, optimizer=again[::-1])
    assert told(other, again) == told(model, optimizers)


def test_one_optimizer_may_become_two_of_its_class_and_the_reverse(tmp_path: Path) -> None:
    def one(model: Tiny) -> list[Any]:
        return [torch.optim.AdamW(model.parameters(), lr=0.1)]

    def split(model: Tiny) -> list[Any]:
        up, down = list(model.up.parameters()), list(model.down.parameters())
        rest = [model.scale, model.empty]
        return [torch.optim.AdamW(up, lr=0.1), torch.optim.AdamW([*down, *rest], lr=0.1)]

    for number, (before, after) in enumerate(((one, split), (split, one))):
        model = Tiny()
        optimizers = before(model)
        stepped_by(model, optimizers, 0)
        intarsia.save(tmp_path / str(number), model, optimizers)
        other = Tiny(1)
        again = after(other)
        intarsia.load(tmp_path / str(number), into=other, optimizer=again)
        stepped_by(model, optimizers, 1)
        stepped_by(other, again, 1)
        held = [{k: v for o in x for k, v in o.state.items()} for x in (optimizers, again)]
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert exact(p) == exact(q)
            assert exact(held[0].get(p)) == exact(held[1].get(q))


def test_each_parameter_keeps_the_class_that_stepped_it(tmp_path: Path) -> None:
    model, optimizers = trained()
    intarsia.save(tmp_path / "saved", model, optimizers)
    other = Tiny(1)
    wide = matrices(other)
    rest = [p for p in other.parameters() if p.dim() < 2 or not p.numel()]
    swapped = [torch.optim.AdamW(wide), torch.optim.SGD(rest, lr=0.1, **SGD)]
    for wrong in (swapped, torch.optim.AdamW(other.parameters())):
        before = exact(other.up.weight)
        with pytest.raises(UsageError, match=r"was saved with torch\.optim\.\w+\.\w+, the optim"):
            intarsia.load(tmp_path / "saved", into=other, optimizer=wrong)
        assert exact(other.up.weight) == before
    with pytest.raises(CoverageError, match="that the optimizer does not update"):
        intarsia.load(tmp_path / "saved", into=other, optimizer=two(other)[0])


def test_what_two_optimizers_cannot_say_is_refused(tmp_path: Path) -> None:
    model = Tiny()
    both = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam([model.scale])]
    with pytest.raises(UsageError, match="optimizers 0 and 1 both update a parameter"):
        intarsia.save(tmp_path / "saved", model, both)
    with pytest.raises(UsageError, match="contains no optimizer"):
        intarsia.save(tmp_path / "saved", model, [])
    pair = [Odd(model.up.parameters()), Odd(model.down.parameters())]
    pair[1].state["tokens"] = 7
    with pytest.raises(UsageError, match="`tokens` is state of one of 2 optimizers"):
        intarsia.save(tmp_path / "saved", model, pair)
    assert not (tmp_path / "saved").exists()
    whole = Odd(model.parameters())
    whole.state["tokens"] = 7
    intarsia.save(tmp_path / "saved", model, whole)
    rest = [*model.down.parameters(), model.scale, model.empty]
    with pytest.raises(UsageError, match="`tokens` is state of one of 2 optimizers"):
        intarsia.load(
            tmp_path / "saved", into=model, optimizer=[Odd(model.up.parameters()), Odd(rest)]
        )


def actor_and_critic(seed: int, lr: float) -> dict[str, Any]:
    actor, critic = Tiny(seed), Tiny(seed + 1)
    return {
        "actor": actor,
        "critic": critic,
        "of": {"actor": torch.optim.AdamW(actor.parameters(), lr=lr)},
        "critic_optimizer": torch.optim.SGD(critic.parameters(), lr=lr / 2, **SGD),
        "epoch": seed,
    }


def stepped(held: dict[str, Any], number: int) -> None:
    step(held["actor"], held["of"]["actor"], number)
    step(held["critic"], held["critic_optimizer"], number)


def all_in(held: dict[str, Any]) -> Any:
    return (
        all_of(held["actor"], held["of"]["actor"]),
        all_of(held["critic"], held["critic_optimizer"]),
        held["epoch"],
    )


def test_models_and_optimizers_of_one_dict_go_on(tmp_path: Path) -> None:
    held = actor_and_critic(0, 0.1)
    for k in range(2):
        stepped(held, k)
    intarsia.save(tmp_path / "saved", held)
    again = actor_and_critic(5, 7.0)
    intarsia.load(tmp_path / "saved", into=again)
    assert all_in(again) == all_in(held)
    stepped(held, 2)
    stepped(again, 2)
    assert all_in(again) == all_in(held)
    beside = actor_and_critic(8, 7.0)
    given = [beside.pop("critic_optimizer"), beside.pop("of")["actor"]]
    intarsia.load(tmp_path / "saved", into=beside, optimizer=given)
    assert exact(given[0].param_groups[0]["lr"]) == exact(0.05)
    assert exact(given[1].state[beside["actor"].scale]) == exact(
        actor_state(tmp_path / "saved")["scale"]
    )


def actor_state(path: Path) -> dict[str, Any]:
    """The states of the actor's optimizer, by a load of its own."""
    again = actor_and_critic(3, 1.0)
    intarsia.load(path, into=again)
    names = {p: n for n, p in again["actor"].named_parameters()}
    return {names[p]: state for p, state in again["of"]["actor"].state.items()}


def test_one_model_with_its_optimizer_in_a_dict_comes_back(tmp_path: Path) -> None:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer, 0)
    intarsia.save(tmp_path / "saved", {"model": model, "optimizer": optimizer})
    other = Tiny(2)
    again = torch.optim.AdamW(other.parameters(), lr=7.0)
    intarsia.load(tmp_path / "saved", into={"model": other, "optimizer": again})
    assert all_of(other, again) == all_of(model, optimizer)


def test_a_module_with_a_name_of_optimizer_state_is_refused_before_it_is_saved(
    tmp_path: Path,
) -> None:
    for word in ("optimizer", "optim", "param_groups"):
        model = nn.ModuleDict({"up": nn.Linear(2, 2), word: nn.Linear(2, 2)})
        with pytest.raises(
            UsageError, match=rf"`{word}\.weight` of the model has a name that is reserved for opt"
        ):
            intarsia.save(tmp_path / "saved", model)
    assert not (tmp_path / "saved").exists()
