"""Main weights that an optimizer keeps under a name of its own are its state, and that is noted."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import intarsia


def test_an_fp32_model_is_not_filled_with_rounded_weights_without_a_word(tmp_path: Path) -> None:
    main = {name: torch.randn(3, 2) for name in ("a.weight", "b.weight")}
    weights = {name: x.bfloat16() for name, x in main.items()}
    state = {name: {"exp_avg": x * 0, "master_param": x} for name, x in main.items()}
    optimizer = {"state": state, "param_groups": [{"params": [*main], "lr": 0.1}]}
    dcp.save({"model": weights, "optimizer": optimizer}, checkpoint_id=tmp_path, no_dist=True)
    into = {name: torch.zeros(3, 2) for name in main}
    noted = [n for n in intarsia.load(tmp_path, into).notes if "master_param" in n]
    assert len(noted) == 1
    assert noted[0].startswith("2 weights of 16 bits fill an fp32 model")
    assert torch.equal(into["a.weight"], weights["a.weight"].float())
    short = {name: torch.zeros(3, 2, dtype=torch.bfloat16) for name in main}
    assert not [n for n in intarsia.load(tmp_path, short).notes if "master_param" in n]
