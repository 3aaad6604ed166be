"""What headers say beside their tensors comes back, through formats that have no such headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import intarsia
from intarsia.planning.inventory import items_left_out
from tests.checkpoints import llama_config, model, write_hf

SAID = {"format": "pt", "tensor_names": '["a.weight"]', "a.weight": '{"_type": "Int8Tensor"}'}


def said_by(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


def test_metadata_of_the_header_come_back_through_dcp(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    save_file({"a._weight_qdata": torch.ones(4, 4, dtype=torch.int8), "a._weight_scale": torch.ones(4, 1)},
              tmp_path / "hf" / "model.safetensors", SAID)  # fmt: skip
    intarsia.convert(tmp_path / "hf", tmp_path / "dcp", to="dcp", mesh="tp=2")
    intarsia.convert(tmp_path / "dcp", tmp_path / "back", to="hf")
    assert said_by(tmp_path / "back" / "model.safetensors") == SAID
    assert not (tmp_path / "back" / "safetensors_metadata.json").exists()
    intarsia.convert(tmp_path / "hf", tmp_path / "cut", to="hf", max_shard_size=16)
    for path in (tmp_path / "cut").glob("*.safetensors"):
        assert said_by(path) == SAID


def test_what_files_contradict_each_other_in_is_left_out_and_noted(tmp_path: Path) -> None:
    names = {}
    for k in (1, 2):
        file = f"model-{k:05d}-of-00002.safetensors"
        save_file({f"x{k}": torch.ones(2)}, tmp_path / file, {"same": "1", "which": str(k)})
        names[f"x{k}"] = file
    index = {"metadata": {}, "weight_map": names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with intarsia.open(tmp_path) as checkpoint:
        assert checkpoint.manifest.metadata == {"same": "1"}
        assert any("which" in note for note in checkpoint.manifest.notes)


def test_a_checkpoint_without_metadata_gets_no_file_for_them(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "hf" / "model.safetensors", {"format": "pt"})
    intarsia.convert(tmp_path / "hf", tmp_path / "dcp", to="dcp")
    assert not (tmp_path / "dcp" / "safetensors_metadata.json").exists()


@pytest.mark.parametrize("to", ["hf", "torch_dist"])
def test_a_copy_of_headers_beside_files_that_have_their_own_is_not_called_read(
    tmp_path: Path, to: str
) -> None:
    src = write_hf(tmp_path / "hf", model(llama_config()), llama_config())
    if to != "hf":
        intarsia.convert(src, tmp_path / to, to=to)
        src = next((tmp_path / to).glob("iter_*"))
    (src / "safetensors_metadata.json").write_text('{"who": "nobody"}')
    (item,) = items_left_out(intarsia.open(src).manifest.inventory)
    assert (item.name, item.role) == ("safetensors_metadata.json", "side file")
    assert not intarsia.open(src).manifest.metadata
