"""Which tensors a conversion writes: those of the family's table, and those that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

import intarsia
from intarsia.conversion.target_rows import with_one_number
from intarsia.dtypes import BY_NAME
from intarsia.family import Param
from intarsia.layout import Layout
from intarsia.planning.manifest import Logical, Manifest, Stored
from tests.sweep.types import Type, build, class_of


@pytest.fixture
def without_shared_experts(tmp_path: Path) -> Path:
    """A model for which Transformers makes matrices of no elements, which the table does not name."""
    config = DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_shared_experts=0, n_routed_experts=4,
        num_experts_per_tok=2, n_group=1, topk_group=1, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8,
        v_head_dim=8, qk_nope_head_dim=8, first_k_dense_replace=1,
    )  # fmt: skip
    DeepseekV3ForCausalLM(config).save_pretrained(tmp_path / "hub")
    return tmp_path / "hub"


def test_tensors_of_no_elements_that_a_table_does_not_know_are_carried(
    without_shared_experts: Path, tmp_path: Path
) -> None:
    intarsia.convert(without_shared_experts, tmp_path / "module", to="hf", dialect="hf-module")
    found = load_file(tmp_path / "module" / "model.safetensors")
    model = DeepseekV3ForCausalLM.from_pretrained(without_shared_experts)
    assert {n: x.shape for n, x in found.items()} == {
        n: x.shape for n, x in model.state_dict().items()
    }
    assert intarsia.verify(without_shared_experts, tmp_path / "module")


def test_they_are_refused_where_a_format_has_no_place_for_them(
    without_shared_experts: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        intarsia.IntarsiaError, match=r"3 tensors of .* are not in the megatron table"
    ):
        intarsia.convert(without_shared_experts, tmp_path / "there", to="torch_dist")
    assert not (tmp_path / "there").exists()


def keys_of(folder: Path) -> set[str]:
    return {*FileSystemReader(folder).read_metadata().state_dict_metadata}


@pytest.mark.parametrize(
    "type_",
    [
        Type("mixtral", "causal"),  # the hub calls the router otherwise, and keeps experts apart
        Type("nomic_bert", "masked"),  # the hub keeps queries, keys and values in one tensor
    ],
    ids=str,
)
def test_steps_go_by_the_names_of_their_parameters_whatever_the_hub_calls_them(
    type_: Type, tmp_path: Path
) -> None:
    model = build(type_)
    optimizer = torch.optim.AdamW(model.parameters())
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    trained = tmp_path / "trained"
    intarsia.save(trained, model, optimizer)
    intarsia.convert(trained, tmp_path / "cut", to="dcp", mesh="fsdp=2")
    intarsia.convert(trained, tmp_path / "hub", to="hf", dialect="hf")
    intarsia.convert(tmp_path / "hub", tmp_path / "back", to="dcp", dialect="hf-module")
    assert keys_of(tmp_path / "cut") == keys_of(trained)
    more = keys_of(tmp_path / "back") ^ keys_of(trained)
    assert more <= {*model.all_tied_weights_keys}  # what is tied is written where the module has it
    for there in (trained, tmp_path / "cut", tmp_path / "hub", tmp_path / "back"):
        again = class_of(type_)(model.config)
        its = torch.optim.AdamW(again.parameters(), lr=1.0)
        intarsia.load(there, into=again, optimizer=its)
        found, wanted = its.state_dict()["state"], optimizer.state_dict()["state"]
        assert found.keys() == wanted.keys()
        for number, state in wanted.items():
            assert all(torch.equal(found[number][kind], x) for kind, x in state.items())
        assert all(
            torch.equal(x, y) for x, y in zip(again.parameters(), model.parameters(), strict=True)
        )


def test_steps_of_parts_that_differ_are_not_made_one(tmp_path: Path) -> None:
    model = build(Type("nomic_bert", "masked"))
    optimizer = torch.optim.AdamW(model.parameters())
    for name, param in model.named_parameters():
        param.grad = None if ".k_proj." in name else torch.randn_like(param)
    optimizer.step()
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    intarsia.save(tmp_path / "trained", model, optimizer)
    with pytest.raises(intarsia.IntarsiaError, match=r"step.*differ|differ.*step|not equal"):
        intarsia.convert(tmp_path / "trained", tmp_path / "hub", to="hf", dialect="hf")
    assert not (tmp_path / "hub").exists()


def test_a_number_that_another_row_takes_too_keeps_its_own() -> None:
    names = ["a", "optimizer.exp_avg.a", "optimizer.step.a"]
    held = [Stored(n, BY_NAME["F32"], Layout.of(n, ()), (), key=n) for n in names]
    logical = {n: Logical(n, (), BY_NAME["F32"]) for n in names}
    src = Manifest("dcp", "here", {s.name: s for s in held}, logical, {})
    rows = [Param(s.name, s.layout) for s in held]
    rows += [Param("b", rows[0].layout), Param("optimizer.exp_avg.b", rows[1].layout)]
    found, equal = with_one_number(rows, src, set())
    assert {row.name: row.layout.tensors for row in found if ".step." in row.name} == {
        "optimizer.step.a": ("optimizer.step.a",),
        "optimizer.step.b": ("optimizer.step.a",),
    }
    assert equal == []
