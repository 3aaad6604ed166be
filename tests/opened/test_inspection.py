"""`inspect` and `explain` give Python the values that the command line prints."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from pathlib import Path

import pytest

import intarsia
from tests.checkpoints import intarsia as cli
from tests.checkpoints import llama_config, model, shapes, write_hf

CONFIG = llama_config()
GATE = "model.layers.1.mlp.gate_proj.weight"
QKV = "decoder.layers.0.self_attention.linear_qkv.weight"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inspection")
    write_hf(root / "hf", model(CONFIG), CONFIG, files=2)
    intarsia.convert(root / "hf", root / "dcp", to="dcp", mesh="tp=2,fsdp=3")
    intarsia.convert(root / "hf", root / "torch_dist", to="torch_dist", mesh="tp=2")
    return root


@pytest.mark.parametrize("format", ["hf", "dcp", "torch_dist"])
def test_inspect_gives_what_the_command_prints(root: Path, format: str) -> None:
    found = intarsia.inspect(root / format)
    assert cli("inspect", root / format).out == f"{found}\n"
    document = cli("inspect", root / format, "--json").json
    assert document == found.as_json()
    for key in ("format", "family", "tensors", "parameters", "bytes", "dtypes", "complete"):
        assert getattr(found, key) == document[key]
    assert (found.format, found.family, found.complete) == (format, "llama", True)
    assert found.parameters >= sum(x.numel() for x in model(CONFIG).values())
    listed = cli("inspect", root / format, "--tensors", "--json").json["tensor_list"]
    assert listed == [x.as_json() for x in found.tensor_list]
    assert len(found.tensor_list) == found.tensors


@pytest.mark.parametrize(("format", "tensor"), [("hf", GATE), ("dcp", GATE), ("torch_dist", QKV)])
def test_explain_gives_what_the_command_prints(root: Path, format: str, tensor: str) -> None:
    found = intarsia.explain(root / format, tensor, mesh={"tp": 2})
    assert found.as_json() == cli("explain", root / format, tensor, "--mesh", "tp=2", "--json").json
    assert sum(p.elements for p in found.pieces) == sum(
        x.size for x in intarsia.open(root / format).values()
        if x.name in {piece.tensor for p in found.pieces for piece in p.pieces}
    )  # fmt: skip
    assert {r.rank for r in found.ranks} == {0, 1}
    assert tensor in str(found)
    assert not intarsia.explain(root / format, tensor).ranks


def test_what_is_found_cannot_be_changed(root: Path) -> None:
    for found in (intarsia.inspect(root / "hf"), intarsia.explain(root / "hf", GATE)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            found.format = "dcp"  # type: ignore[misc]
        assert len(repr(found)) < 4000, "headers are not in it"


def test_what_is_wrong_is_told(root: Path, tmp_path: Path) -> None:
    lacking = model(CONFIG)
    del lacking[GATE]
    found = intarsia.inspect(write_hf(tmp_path / "hf", lacking, CONFIG))
    assert not found.complete
    assert any(GATE in text for text in found.problems)
    assert found.tensors == len(shapes(CONFIG)) - 1
    with pytest.raises(intarsia.UsageError, match="did you mean"):
        intarsia.explain(root / "hf", "model.layers.1.mlp.gate.weight")


def test_a_rank_s_own_part_is_not_called_complete(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "dcp", tmp_path / "part")
    metadata = tmp_path / "part" / ".metadata"
    said = pickle.loads(metadata.read_bytes())
    said.state_dict_metadata[GATE].chunks.pop()
    metadata.write_bytes(pickle.dumps(said))
    found = intarsia.inspect(tmp_path / "part")
    assert not found.complete
    (problem,) = found.problems
    assert f"the chunks of `{GATE}` do not tile it" in problem
    assert "complete    no" in str(found)
