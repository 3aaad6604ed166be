"""A training that `torch.save` wrote, model and optimizer: saved again as a dict, it goes on as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict
from transformers.optimization import Adafactor

import intarsia
from intarsia.errors import CoverageError, FormatError
from tests.journeys.models import tiny

WORDS = torch.arange(24).reshape(2, 12)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
    "named": lambda model: torch.optim.AdamW(model.named_parameters(), lr=3e-3),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9),
    "adafactor": lambda model: Adafactor(model.parameters(), lr=1e-3, relative_step=False),
}


def losses(model: Any, optimizer: torch.optim.Optimizer) -> list[float]:
    found = []
    for _ in range(2):
        loss = model(input_ids=WORDS, labels=WORDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def go_on(path: Path, optimizer_of: Callable[[Any], torch.optim.Optimizer]) -> list[float]:
    model = tiny()
    optimizer = optimizer_of(model)
    optimizer.param_groups[0]["lr"] = 0.5
    intarsia.load(path, into=model, optimizer=optimizer)
    return losses(model, optimizer)


@pytest.mark.parametrize(
    ("kind", "key", "numbered"),
    [
        ("adamw", "optimizer", True),
        ("adamw", "optim", False),
        ("named", "optimizer", True),
        ("sgd", "trainer.optim", False),
        ("adafactor", "optimizer", False),  # the step of each parameter is a number, no tensor
    ],
)
@pytest.mark.one_in(6)
def test_state_and_settings_of_a_saved_dict_are_the_optimizers(
    kind: str, key: str, numbered: bool, tmp_path: Path
) -> None:
    model = tiny()
    optimizer = OPTIMIZERS[kind](model)
    losses(model, optimizer)
    weights, state = get_state_dict(model, optimizer)
    if numbered:
        state = optimizer.state_dict()
    torch.save({"model": weights, key: state, "epoch": 3}, tmp_path / "training.pt")
    wanted = losses(model, optimizer)

    intarsia.save(tmp_path / "ours", torch.load(tmp_path / "training.pt", weights_only=True))
    assert go_on(tmp_path / "ours", OPTIMIZERS[kind]) == wanted
    model.config.save_pretrained(tmp_path / "config")
    for to in ("hf", "dcp"):
        out = tmp_path / to
        intarsia.convert(tmp_path / "ours", out, to=to, mesh="fsdp=3", config=tmp_path / "config")
        assert intarsia.verify(tmp_path / "ours", out, config=tmp_path / "config")
        assert go_on(out, OPTIMIZERS[kind]) == wanted


def test_values_that_only_sound_like_an_optimizers_stay_the_callers(tmp_path: Path) -> None:
    model = tiny()
    optimizer = OPTIMIZERS["adamw"](model)
    losses(model, optimizer)
    given = {
        "optimizer.param_groups": [{"lr": 7.0, "warm": 2}] * 2,
        "state.of": "mind",
        "param_groups": [1],
    }
    intarsia.save(tmp_path / "ours", model, optimizer, given)
    wanted = losses(model, optimizer)
    assert go_on(tmp_path / "ours", OPTIMIZERS["adamw"]) == wanted
    entries = intarsia.open(tmp_path / "ours").manifest.entries
    assert not [name for name in entries if name.endswith(".warm")]
    assert intarsia.load(tmp_path / "ours", into=tiny(), strict=False).extra == given


@pytest.mark.parametrize("key", ["model", "state_dict.model", "state_dict.module"])
def test_a_file_that_was_saved_with_its_keys_says_which_section_to_load(
    tmp_path: Path, key: str
) -> None:
    torch.manual_seed(0)
    model, fresh = (torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)) for _ in "ab")
    state: dict[str, Any] = {f"{key}.{name}": x for name, x in model.state_dict().items()}
    intarsia.save(tmp_path / "saved", state | {"iter_num": 3})
    with pytest.raises(CoverageError, match="4 of 4 tensors") as raised:
        intarsia.load(tmp_path / "saved", into=fresh)
    assert raised.value.hint == f'they are below `{key}.`: load with section="{key}"'
    assert intarsia.load(tmp_path / "saved", into=fresh, section=key).complete
    assert all(map(torch.equal, model.parameters(), fresh.parameters()))


def test_the_step_for_weights_and_an_optimizer_in_two_pickles_keeps_the_names_of_the_model(
    tmp_path: Path,
) -> None:
    model = tiny()
    optimizer = OPTIMIZERS["adamw"](model)
    losses(model, optimizer)
    weights, state = get_state_dict(model, optimizer)
    torch.save(weights, tmp_path / "pytorch_model_fsdp.bin")
    torch.save(state, tmp_path / "optimizer.bin")
    wanted = losses(model, optimizer)
    with pytest.raises(FormatError, match="weights in a pickle") as raised:
        intarsia.open(tmp_path)
    code = str(raised.value.hint).partition("with the optimizer's, ")[2]
    files = ("pytorch_model_fsdp.bin", "optimizer.bin")
    for name in files:
        code = code.replace("…", repr(str(tmp_path / name)), 1)
    intarsia.save(tmp_path / "ours", eval(code, {"torch": torch}))
    assert {"lm_head.weight", "model.norm.weight"} <= {*intarsia.open(tmp_path / "ours").keys()}
    assert go_on(tmp_path / "ours", OPTIMIZERS["adamw"]) == wanted
