"""What could not be read again is refused before anything is written."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.errors import UsageError

HALF, LONG = "a\ud800b", "n" * 1025

NAMES: dict[str, Any] = {
    "of a tensor, half a character": ({HALF: torch.ones(2)}, None),
    "of a tensor, too long": ({LONG: torch.ones(2)}, None),
    "of a value of the dict, half a character": ({"a": torch.ones(2), HALF: 1}, None),
    "of a value beside, half a character": ({"a": torch.ones(2)}, {HALF: 1}),
    "of a value beside, too long": ({"a": torch.ones(2)}, {LONG: torch.ones(1)}),
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_that_no_reader_takes_is_refused(kind: str, tmp_path: Path) -> None:
    what, extra = NAMES[kind]
    text = "has half a character" if "half" in kind else "is not text of at most 1024 characters"
    with pytest.raises(UsageError, match=f"the name .* {text}, so nothing is written"):
        intarsia.save(tmp_path / "a", what, extra=extra)
    assert not [*tmp_path.iterdir()]


def test_state_whose_name_is_too_long_is_refused_where_the_name_of_its_parameter_is_not(
    tmp_path: Path,
) -> None:
    model = nn.ModuleDict({"n" * 1010: nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    intarsia.save(tmp_path / "a", model, optimizer)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    with pytest.raises(UsageError, match=r"the name 'optimizer.*' is not text of at most"):
        intarsia.save(tmp_path / "b", model, optimizer)


def nested(depth: int) -> dict[str, Any]:
    return reduce(lambda inner, _: {"a": inner}, range(depth), {})


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"a": HALF}, "it is not JSON .*surrogates"),
        (nested(70), "it is nested deeper than 64 levels"),
        ({("a", "b"): 1}, "keys must be str"),
    ],
    ids=["half a character", "deep", "a tuple for a key"],
)
def test_a_configuration_that_could_not_be_read_again_is_refused(
    config: dict[Any, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"the configuration could not be read again: .*{text}"):
        intarsia.save(tmp_path / "a", {"a": torch.ones(2)}, config=config)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"config": "config.json"}, "`config` is a str"),
        ({"config": [1]}, "`config` is a list"),
        ({"extra": 5}, "`extra` is a int"),
        ({"extra": [1]}, "`extra` is a list"),
    ],
)
def test_what_is_no_dict_is_refused(options: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        intarsia.save(tmp_path / "a", nn.Linear(2, 2), **options)
