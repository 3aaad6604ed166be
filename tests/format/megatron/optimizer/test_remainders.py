"""Main weights of which a `torch_dist` checkpoint holds the half that bf16 weights lack."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import intarsia
from intarsia.errors import FormatError
from intarsia.family import table_for
from intarsia.format.registry import read_manifest
from tests.checkpoints import llama_config, read_dcp
from tests.family.configs import CASES
from tests.format.megatron.optimizer.halves import cut
from tests.journeys.test_megatron_configuration import edit_arguments
from tests.live.megatron_fsdp_cases import hf_with_optimizer

PARAM = "optimizer.state.param."


def trained(at: Path, config: dict[str, Any]) -> Path:
    """A model of the hub whose main weights have lower halves of either sign, as `torch_dist`."""
    table = table_for(config)
    assert table is not None
    model = {name: torch.randn(shape).bfloat16() for name, shape in table.logical.items()}
    hf_with_optimizer(at / "hf", model, config)
    intarsia.convert(at / "hf", at / "whole", to="torch_dist")
    return at / "whole"


def as_halves(whole: Path, to: Path, dtype: torch.dtype, **args: Any) -> Path:
    """The same checkpoint, with halves in the place of main weights."""
    (source,) = whole.glob("iter_*")
    tensors = read_dcp(source)
    for name in [n for n in tensors if n.startswith(PARAM)]:
        main = tensors[name] * (1 + 2**-9)
        weight, lower = cut(main)
        tensors[name] = main if dtype == torch.float64 else lower.to(dtype)
        tensors[name.removeprefix(PARAM)] = weight
    dcp.save(tensors, checkpoint_id=to / source.name, no_dist=True)
    for file in ("common.pt", "metadata.json"):
        copyfile(source / file, to / source.name / file)
    copyfile(whole / "config.json", to / "config.json")
    return edit_arguments(to, **args)


AWARE = {"use_precision_aware_optimizer": True}


@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.float32), ("gemma", torch.int16)])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.one_in(2)
def test_halves_are_read_with_the_weights_that_they_belong_to(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    whole = trained(tmp_path, CASES[family] | {"tie_word_embeddings": False})
    wanted = as_halves(whole, tmp_path / "mains", torch.float64)
    halves = as_halves(whole, tmp_path / "halves", dtype, **AWARE)
    assert intarsia.verify(halves), intarsia.verify(halves).faults
    for a, b in ((wanted, halves), (halves, wanted)):
        assert intarsia.verify(a, b), intarsia.verify(a, b).different
    for to, mesh in (("torch_dist", "tp=2"), ("fsdp_dtensor", "fsdp=2")):
        made = tmp_path / to
        report = intarsia.convert(halves, made, to=to, mesh=mesh)
        assert intarsia.verify(halves, made), to
        if to == "torch_dist":
            assert not report.changed
            assert any("--use-precision-aware-optimizer" in note for note in report.notes)
            found, exact = (read_dcp(next(x.glob("iter_*"))) for x in (made, wanted))
            for name in (n for n in exact if n.startswith(PARAM)):
                assert found[name].dtype == torch.float32
                assert torch.equal(found[name], exact[name].float()), name


@pytest.mark.filterwarnings("ignore")
def test_whole_numbers_are_taken_for_halves_only_where_a_run_may_have_written_them(
    tmp_path: Path,
) -> None:
    whole = trained(tmp_path, llama_config())
    kept = as_halves(whole, tmp_path / "kept", torch.float64, **AWARE)
    assert not any("precision-aware" in note for note in read_manifest(kept).notes)
    assert intarsia.verify(kept)
    unaware = as_halves(whole, tmp_path / "unaware", torch.float32)
    assert {fault.kind for fault in intarsia.verify(unaware).faults} == {"master-differs"}


@pytest.mark.filterwarnings("ignore")
def test_halves_of_weights_that_are_not_bf16_are_refused(tmp_path: Path) -> None:
    halves = as_halves(trained(tmp_path, llama_config()), tmp_path / "halves", torch.int16)
    (source,) = halves.glob("iter_*")
    tensors = read_dcp(source)
    tensors["decoder.final_layernorm.weight"] = tensors["decoder.final_layernorm.weight"].float()
    dcp.save(tensors, checkpoint_id=source, no_dist=True)
    with pytest.raises(FormatError, match=r"param\.decoder\.final_layernorm\.weight` is I16"):
        intarsia.convert(halves, tmp_path / "out", to="hf")
    intarsia.convert(halves, tmp_path / "out", to="hf", optimizer="drop")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "llama"
