"""Optimizer state of models that no table describes is read, carried and compared as that of any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.errors import FormatError
from intarsia.format.complaint import refuse
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.megatron.optimizer.groups import torch_groups
from intarsia.format.megatron.torch_dist.names import name_tensors
from intarsia.format.registry import read_manifest
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk
from tests.checkpoints import llama_config, model, read_dcp
from tests.journeys.test_megatron_configuration import edit_arguments
from tests.live.megatron_fsdp_cases import hf_with_optimizer

NORM = "decoder.layers.self_attention.linear_qkv.layer_norm_weight"
STATE = ("exp_avg", "exp_avg_sq", "master")


def of_no_family(at: Path) -> Path:
    """A checkpoint with stacked layers whose arguments tell no family of the hub."""
    config = llama_config()
    hf_with_optimizer(at / "hf", model(config), config)
    intarsia.convert(at / "hf", at / "td", to="torch_dist", mesh="tp=2")
    for file in ("config.json", "iter_0000001/intarsia-digests.json"):
        (at / "td" / file).unlink()
    return edit_arguments(at / "td", num_attention_heads=None)


def test_state_goes_to_torchs_names_and_is_found_under_them_again(tmp_path: Path) -> None:
    source = of_no_family(tmp_path)
    assert read_manifest(source).family is None
    assert intarsia.verify(source)
    for to, mesh in (("dcp", "fsdp=2"), ("hf", "")):
        intarsia.convert(source, tmp_path / f"as-{to}", to=to, mesh=mesh, dialect="same")
    intarsia.convert(tmp_path / "as-dcp", tmp_path / "on", to="hf", dialect="same")
    keys = read_dcp(tmp_path / "as-dcp").keys()
    assert {f"optimizer.state.{NORM}.{kind}" for kind in STATE} <= keys
    for name in ("as-dcp", "as-hf", "on"):
        for a, b in ((source, tmp_path / name), (tmp_path / name, source)):
            found = intarsia.verify(a, b)
            assert found, (name, found.different)


def test_a_stack_of_norms_is_in_the_group_that_norms_are_in(tmp_path: Path) -> None:
    src = read_manifest(of_no_family(tmp_path))
    said = [{"wd_mult": mult, "weight_decay": 0.1 * mult, "step": 7} for mult in (1.0, 0.0)]
    groups = torch_groups(said, src.stored.values(), src.logical)
    assert groups is not None
    of = {member: g.fields["weight_decay"] for g in groups.each for member in g.members}
    assert of[NORM] == 0.0
    assert of["decoder.layers.self_attention.linear_qkv.weight"] == 0.1


def test_flattened_state_has_the_shape_of_its_parameter() -> None:
    name = f"optimizer.state.exp_avg.{NORM}"
    chunk = Chunk(Box.whole((3, 2, 4)), "file", 0, 96)
    record = TensorRecord(name, BY_NAME["F32"], (3, 2, 4), (chunk,))
    shape: Any = {"mcore_data": {name: {"nd_reformulated_orig_global_shape": (3, 8)}}}
    found = name_tensors(Metadata({name: record}, {}, extra=shape), None, None, "here", refuse)
    assert found.logical[f"optimizer.exp_avg.{NORM}"].shape == (3, 8)
    assert found.stored[f"optimizer.exp_avg.{NORM}"].shape == (3, 2, 4)
    shape["mcore_data"][name]["nd_reformulated_orig_global_shape"] = (3, 7)
    with pytest.raises(FormatError, match="not a cut of"):
        name_tensors(Metadata({name: record}, {}, extra=shape), None, None, "here", refuse)
