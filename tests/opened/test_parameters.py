"""`inspect` counts the parameters of the model, whatever they are stored in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import intarsia as command
from tests.checkpoints import write_hf
from tests.quantised.models import llama
from tests.quantised.schemes import SCHEMES, linears

TENSORS, CONFIG = llama()
COUNT = sum(x.numel() for x in TENSORS.values())
PACKED = sum(TENSORS[name].numel() for name in linears(TENSORS))
"""The parameters that schemes quantise."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_model_has_as_many_parameters_as_the_plain_one(
    tmp_path: Path, scheme: str
) -> None:
    make, said = SCHEMES[scheme]
    tensors, declared = make(TENSORS), {"quantization_config": said}
    known = write_hf(tmp_path / "known", tensors, CONFIG | declared)
    assert intarsia.inspect(known).parameters == COUNT
    assert f"\nparameters  {COUNT:,}\n" in command("inspect", known).out
    stranger = write_hf(tmp_path / "stranger", tensors, {"model_type": "x"} | declared)
    if scheme not in ("aqlm", "quanto 4 bits"):
        assert intarsia.inspect(stranger).parameters == COUNT
    else:
        codes = [tensors[n] for n in tensors if n.endswith(("codes", "_data"))]
        stored = COUNT - PACKED + sum(x.numel() for x in codes)
        shown = f"\nparameters  {stored:,}, 14 quantised weights among them by their stored elements\n"  # fmt: skip
        assert shown in command("inspect", stranger).out


def test_state_of_an_optimizer_is_no_parameter(tmp_path: Path) -> None:
    model = torch.nn.Linear(7, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(7)).sum().backward()
    optimizer.step()
    intarsia.save(tmp_path / "run", model, optimizer=optimizer)
    assert intarsia.inspect(tmp_path / "run").parameters == 40
