"""The same weights in every dialect: as on the hub, fused, and as the Transformers module has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import intarsia
from intarsia.errors import FamilyError, UsageError
from tests.fixtures import FIXTURES

FOLDERS = sorted((FIXTURES / "hf").iterdir())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        found |= load_file(file)
    return found


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, x in a.items():
        assert x.dtype == b[name].dtype, name
        assert torch.equal(x, b[name]), name


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
@pytest.mark.one_in(6)
def test_the_module_dialect_is_what_from_pretrained_holds(folder: Path, tmp_path: Path) -> None:
    intarsia.convert(folder, tmp_path / "module", to="hf", dialect="hf-module")
    truth = load_file(folder / "module.safetensors")
    assert_same(weights(tmp_path / "module"), truth)
    assert intarsia.verify(folder, tmp_path / "module")
    intarsia.convert(tmp_path / "module", tmp_path / "hub", to="hf", dialect="hf")
    assert_same(weights(folder), weights(tmp_path / "hub"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
@pytest.mark.one_in(2)
def test_a_fused_spelling_on_a_mesh_is_the_same_weights(folder: Path, tmp_path: Path) -> None:
    intarsia.convert(
        folder, tmp_path / "fused", to="dcp", dialect="hf-fused", mesh="tp=2,ep=2,fsdp=3"
    )
    assert intarsia.verify(folder, tmp_path / "fused")
    intarsia.convert(tmp_path / "fused", tmp_path / "hub", to="hf", dialect="hf")
    assert_same(weights(folder), weights(tmp_path / "hub"))


def test_a_type_without_a_table_takes_the_rules_of_transformers(tmp_path: Path) -> None:
    import transformers

    config = transformers.Ernie4_5_MoeConfig(
        hidden_size=24,
        intermediate_size=40,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        moe_num_experts=4,
        moe_k=2,
        vocab_size=53,
        head_dim=8,
    )
    torch.manual_seed(0)
    model = transformers.Ernie4_5_MoeForCausalLM(config)
    model.save_pretrained(tmp_path / "hub")
    assert intarsia.open(tmp_path / "hub").family is None
    intarsia.convert(tmp_path / "hub", tmp_path / "module", to="hf", dialect="hf-module")
    assert_same(weights(tmp_path / "module"), dict(model.state_dict()))
    intarsia.convert(tmp_path / "module", tmp_path / "back", to="hf", dialect="hf")
    assert_same(weights(tmp_path / "hub"), weights(tmp_path / "back"))


def test_a_dialect_that_a_format_lacks_is_refused(tmp_path: Path) -> None:
    from intarsia.cli.demo_model import write_model

    write_model(tmp_path / "hub", 0)
    with pytest.raises(UsageError, match="is not written in dialect 'megatron'"):
        intarsia.convert(tmp_path / "hub", tmp_path / "out", to="hf", dialect="megatron")
    assert not (tmp_path / "out").exists()


def test_a_dialect_without_a_configuration_is_refused(tmp_path: Path) -> None:
    from intarsia.cli.demo_model import write_model

    write_model(tmp_path / "hub", 0)
    (tmp_path / "hub" / "config.json").unlink()
    with pytest.raises(FamilyError, match="no model configuration"):
        intarsia.convert(tmp_path / "hub", tmp_path / "out", to="hf", dialect="hf-module")


def test_a_tensor_without_elements_keeps_its_name(tmp_path: Path) -> None:
    """The head of MobileBERT joins a matrix of as many rows as its layers are wider than its embedding."""
    from transformers import MobileBertConfig, MobileBertForMaskedLM

    sizes = {"vocab_size": 24, "hidden_size": 8, "embedding_size": 8, "intra_bottleneck_size": 8}
    config = MobileBertConfig(
        **sizes, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, true_hidden_size=8
    )
    built = MobileBertForMaskedLM(config)
    built.save_pretrained(tmp_path / "hf")
    intarsia.convert(tmp_path / "hf", tmp_path / "out", to="hf", dialect="hf-module")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == built.state_dict().keys()
    assert found["cls.predictions.dense.weight"].shape == (0, 24)
