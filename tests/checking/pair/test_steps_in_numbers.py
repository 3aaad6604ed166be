"""A step of a parameter group is that of its parameters, where a side counts steps by group."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch.distributed.checkpoint as dcp

import intarsia
from tests.checkpoints import llama_config, model

CONFIG = llama_config(num_hidden_layers=1)


def saved(folder: Path, step: int) -> Path:
    """A training with an Adam that keeps its step in its groups, saved by torch."""
    weights = model(CONFIG)
    state = {
        n: {"exp_avg": x.float(), "exp_avg_sq": x.float().square()} for n, x in weights.items()
    }
    group = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "step": step}
    optimizer = {"state": state, "param_groups": [group | {"params": [*weights]}]}
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"model": weights, "optim": optimizer}, checkpoint_id=folder, no_dist=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_a_conversion_of_a_training_that_counts_by_group_is_equal(tmp_path: Path) -> None:
    source = saved(tmp_path / "source", 5)
    intarsia.convert(source, tmp_path / "out", to="torch_dist", mesh="tp=2")
    other = saved(tmp_path / "other", 6)
    for a, b in ((source, tmp_path / "out"), (tmp_path / "out", source)):
        found = intarsia.verify(a, b)
        assert found, (found.only_in_a[:2], found.only_in_b[:2], found.different[:2])
        assert any("steps of 12 parameters are plain numbers" in note for note in found.notes)
        assert not intarsia.verify(*(other if x == source else x for x in (a, b)))
