"""Where parameters go on a mesh, and what is refused before a rank waits for another.

The processes of these meshes are not there: torch's `fake` backend stands in for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    CLIPConfig,
    CLIPModel,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
)

import intarsia
from intarsia.errors import UsageError
from intarsia.live import batch_place
from tests.versions import since

GATE_UP, DOWN = (f"model.layers.0.mlp.experts.{p}" for p in ("gate_up_proj", "down_proj"))
Mesh = Callable[..., DeviceMesh]


@pytest.fixture
def fake_mesh() -> Iterator[Mesh]:
    """A mesh of the given sizes, seen from one of its ranks; the others are not there."""

    def make(rank: int = 0, **sizes: int) -> DeviceMesh:
        shape = tuple(sizes.values())
        count = torch.Size(shape).numel()
        dist.init_process_group("fake", rank=rank, world_size=count, store=FakeStore())
        return init_device_mesh("cpu", shape, mesh_dim_names=tuple(sizes))

    yield make
    if dist.is_initialized():
        dist.destroy_process_group()


def on_meta(family: str = "qwen3_moe", **changes: Any) -> PreTrainedModel:
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 100}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes | changes))


def moe(**changes: Any) -> PreTrainedModel:
    sizes = {"num_experts": 8, "moe_intermediate_size": 32, "intermediate_size": 96}
    return on_meta("qwen3_moe", **sizes | changes)


def placed(model: PreTrainedModel, name: str) -> tuple[Any, ...]:
    p = model.get_parameter(name)
    assert isinstance(p, DTensor)
    return (p.device_mesh.mesh_dim_names, p.placements, tuple(p.to_local().shape))


def test_qwen3_30b_a3b_on_32_ranks(fake_mesh: Mesh) -> None:
    with torch.device("meta"):
        config = AutoConfig.for_model("qwen3_moe", num_hidden_layers=2)
        model = AutoModelForCausalLM.from_config(config)
    before = {name: p.shape for name, p in model.named_parameters()}
    assert intarsia.parallelize(model, fake_mesh(rank=13, dp=4, ep=8)) is model
    assert {name: p.shape for name, p in model.named_parameters()} == before
    strided = (_StridedShard(0, split_factor=8), Shard(0))
    assert placed(model, GATE_UP) == (("dp", "ep"), strided, (4, 1536, 2048))
    assert placed(model, DOWN) == (("dp", "ep"), strided, (4, 2048, 768))
    router = placed(model, "model.layers.1.mlp.gate.weight")
    assert router == (("dp_ep",), (Shard(0),), (4, 2048))
    assert all(isinstance(p, DTensor) and p.is_meta for p in model.parameters())
    assert model.config.num_experts == 128


def test_experts_are_not_cut_by_fsdp_where_ep_is_all_there_is(fake_mesh: Mesh) -> None:
    model = intarsia.parallelize(moe(), fake_mesh(ep=4))
    assert placed(model, DOWN) == (("ep",), (Shard(0),), (2, 64, 32))
    assert placed(model, "lm_head.weight") == (("ep",), (Shard(0),), (25, 64))


def test_fsdp_cuts_experts_along_the_axis_that_is_asked(fake_mesh: Mesh) -> None:
    model = intarsia.parallelize(moe(), fake_mesh(dp=2, ep=4), expert_axis=1)
    assert placed(model, DOWN) == (("dp", "ep"), (Shard(1), Shard(0)), (2, 32, 32))


def test_experts_may_be_copied_instead(fake_mesh: Mesh) -> None:
    model = intarsia.parallelize(moe(), fake_mesh(dp=2, ep=4), expert_fsdp=False)
    assert placed(model, DOWN) == (("dp", "ep"), (Replicate(), Shard(0)), (2, 64, 32))


def test_a_gate_and_its_twin_are_halved_apart_by_tensor_parallelism(fake_mesh: Mesh) -> None:
    model = intarsia.parallelize(moe(), fake_mesh(dp=2, ep=2, tp=2))
    names, halves = ("dp", "ep", "tp"), _StridedShard(1, split_factor=2)
    assert placed(model, GATE_UP) == (names, (Shard(2), Shard(0), halves), (4, 32, 32))
    column = placed(model, "model.layers.0.self_attn.q_proj.weight")
    assert column == (("dp_ep", "tp"), (_StridedShard(0, split_factor=2), Shard(0)), (8, 64))
    row = placed(model, "model.layers.0.self_attn.o_proj.weight")
    assert row == (("dp_ep", "tp"), (Shard(0), Shard(1)), (16, 32))
    norm = placed(model, "model.layers.0.self_attn.q_norm.weight")
    assert norm == (("dp_ep",), (Shard(0),), (2,))


def test_shards_are_copied_along_replicate(fake_mesh: Mesh) -> None:
    model = intarsia.parallelize(moe(), fake_mesh(rep=2, dp=2, ep=2), replicate="rep")
    experts = (Replicate(), _StridedShard(0, split_factor=2), Shard(0))
    assert placed(model, DOWN) == (("rep", "dp", "ep"), experts, (2, 64, 32))
    head = placed(model, "lm_head.weight")
    assert head == (("rep", "dp_ep"), (Replicate(), Shard(0)), (25, 64))


def test_dimensions_may_have_other_names(fake_mesh: Mesh) -> None:
    mesh = fake_mesh(data=2, deal=2, tensor=2)
    model = intarsia.parallelize(moe(), mesh, fsdp="data", ep="deal", tp="tensor")
    assert model.get_parameter(DOWN).device_mesh.mesh_dim_names == ("data", "deal", "tensor")


def test_tied_weights_stay_one(fake_mesh: Mesh) -> None:
    model = moe(tie_word_embeddings=True)
    intarsia.parallelize(model, fake_mesh(dp=2, tp=2))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert isinstance(model.lm_head.weight, DTensor)


SIZES = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
T5 = {"vocab_size": 100, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}


@pytest.mark.parametrize(
    ("made", "units"),
    [
        (lambda: BertForMaskedLM(BertConfig(**SIZES)), 3),
        (lambda: BertModel(BertConfig(**SIZES)), 4),
        (lambda: T5EncoderModel(T5Config(**T5)), 3),
    ],
    ids=["tied inside of a block", "an embedding inside of a block", "tied embeddings"],
)
def test_what_is_gathered_together_shares_no_weight_with_what_is_not(
    made: Callable[[], PreTrainedModel], units: int, fake_mesh: Mesh
) -> None:
    model = intarsia.parallelize(made(), fake_mesh(dp=2))
    model(input_ids=torch.arange(8).reshape(2, 4))  # FSDP2 itself looks for shared weights
    assert sum(isinstance(each, FSDPModule) for each in model.modules()) == units


def test_a_dense_model_needs_no_experts(fake_mesh: Mesh) -> None:
    model = intarsia.parallelize(on_meta("llama", intermediate_size=96), fake_mesh(dp=2, tp=2))
    assert all(isinstance(p, DTensor) for p in model.parameters())


def test_ranks_of_a_tensor_parallel_group_share_a_batch(fake_mesh: Mesh) -> None:
    assert batch_place(fake_mesh(rank=6, dp=2, ep=2, tp=2)) == (3, 4)


def test_a_batch_goes_by_the_dimension_that_the_model_was_cut_along(fake_mesh: Mesh) -> None:
    mesh = fake_mesh(rank=3, dp=2, model=2)
    with pytest.raises(UsageError, match=r"along \['model'\] of the mesh share their data"):
        batch_place(mesh)
    assert batch_place(mesh, tp="model") == (1, 2)
    assert batch_place(mesh, tp=None) == (3, 4)
    intarsia.parallelize(on_meta("llama", intermediate_size=96), mesh, tp="model")
    assert batch_place(mesh) == (1, 2)


def clip(blocks: tuple[str, ...] | None = ("CLIPEncoderLayer",)) -> PreTrainedModel:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2}
    model = CLIPModel(CLIPConfig(text_config=sizes, vision_config=sizes))
    model._no_split_modules = blocks
    return model


LLAMA4 = {"num_local_experts": 4, "intermediate_size": 32, "intermediate_size_mlp": 64}
REFUSED: dict[str, tuple[Callable[[], PreTrainedModel], dict[str, int], dict[str, Any], str]] = {
    "uneven experts": (moe, {"ep": 3}, {}, "8 experts .* over 3 expert-parallel ranks"),
    "llama4": (
        lambda: on_meta("llama4_text", **LLAMA4), {"ep": 2}, {},
        r"Llama4TextExperts\) takes \(hidden_states\)|no expert-parallel plan",
    ),
    "no experts": (
        lambda: on_meta("llama"), {"ep": 2}, {}, "no expert-parallel plan, and the mesh has 2 ranks"
    ),
    "no tensor-parallel plan": (
        lambda: on_meta("gpt_oss"), {"tp": 2}, {}, "no tensor-parallel plan for its layers"
    ),
    "heads": (moe, {"tp": 8}, {}, "num_key_value_heads = 4 does not divide over 8"),
    "a parameter among cut projections": (
        lambda: on_meta("doge"), {"tp": 2}, {}, r"self_attn.A \(4,\) is among parameters",
    ),
    "features": (
        lambda: moe(intermediate_size=90, mlp_only_layers=[1]), {"tp": 4}, {},
        "90 features do not divide over 4 ranks",
    ),
    "halves": (lambda: moe(moe_intermediate_size=33), {"tp": 2}, {}, "66 rows .* into 4 parts"),
    "axis": (
        moe, {"dp": 3, "ep": 2}, {"expert_axis": 1}, "64 rows of .*gate_up_proj .* over 3 ranks"
    ),
    "axis in halves": (
        moe, {"dp": 2, "ep": 2, "tp": 2}, {"expert_axis": 1}, "cut along 1 in halves by tp"
    ),
    "no such axis": (moe, {"dp": 2, "ep": 2}, {"expert_axis": 3}, "expert_axis=3: .* 0, 1 or 2"),
    "an absent name": (moe, {"dp": 2}, {"tp": "tensor"}, r"tp='tensor': .* \['dp'\]"),
    "no role": (moe, {"dp": 2, "pp": 2}, {}, "'pp' of 2 ranks has no role"),
    "two roles": (moe, {"dp": 2}, {"replicate": "dp"}, "plays two roles"),
    "another order": (moe, {"ep": 2, "dp": 2}, {}, r"the dimensions \['ep', 'dp'\]"),
    "a number as a parameter": (
        lambda: clip(), {"dp": 2}, {}, "logit_scale of CLIPModel has no axis that FSDP2 could cut"
    ),
    "no blocks": (lambda: clip(blocks=None), {"dp": 2}, {}, "does not list the classes of its blocks"),
    "copies of nothing": (moe, {"rep": 2}, {"replicate": "rep"}, "no dimension of the mesh shards"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_right_is_refused_before_any_collective(
    what: str, fake_mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, sizes, asked, message = REFUSED[what]
    mesh, model = fake_mesh(**sizes), make()
    before = dict(model.named_parameters())

    def collective(*_: object, **__: object) -> None:
        raise AssertionError("a rank would wait for the others")

    monkeypatch.setattr(dist, "all_gather", collective)
    with pytest.raises(UsageError, match=message):
        intarsia.parallelize(model, mesh, **asked)
    after = dict(model.named_parameters())
    assert all(after[name] is p for name, p in before.items()), "something was cut already"


def test_layers_without_an_element_are_left_as_they_are(fake_mesh: Mesh) -> None:
    sizes = {"n_routed_experts": 4, "moe_intermediate_size": 16, "num_key_value_heads": 8}
    model = on_meta("deepseek_v2", n_shared_experts=0, first_k_dense_replace=0, **sizes)
    intarsia.parallelize(model, fake_mesh(dp=2, tp=2))
    shared = model.get_submodule("model.layers.0.mlp.shared_experts")
    assert {type(p) for p in shared.parameters()} == {torch.nn.Parameter}
    assert isinstance(model.get_parameter("model.layers.0.self_attn.o_proj.weight"), DTensor)


def test_a_style_that_is_not_known_is_refused(fake_mesh: Mesh) -> None:
    model = moe()
    model._tp_plan = dict(model.tp_plan) | {"model.layers.*.input_layernorm": "sequence_parallel"}
    with pytest.raises(UsageError, match="'sequence_parallel', which is not known"):
        intarsia.parallelize(model, fake_mesh(tp=2))


@since("transformers", "5.22")
def test_a_plan_that_leaves_out_an_expert_parameter_is_refused(fake_mesh: Mesh) -> None:
    model = moe()
    model._ep_plan = {k: v for k, v in model.ep_plan.items() if not k.endswith("down_proj")}
    with pytest.raises(UsageError, match="leaves out down_proj of model"):
        intarsia.parallelize(model, fake_mesh(ep=2))


def test_a_model_on_a_mesh_is_not_put_on_another(fake_mesh: Mesh) -> None:
    mesh = fake_mesh(ep=2)
    model = intarsia.parallelize(moe(), mesh)
    with pytest.raises(UsageError, match="is a DTensor on"):
        intarsia.parallelize(model, mesh)


def test_a_mesh_without_names_is_refused(fake_mesh: Mesh) -> None:
    fake_mesh(dp=2)
    with pytest.raises(UsageError, match="no names"):
        intarsia.parallelize(moe(), DeviceMesh("cpu", [0, 1]))


def test_a_mesh_of_one_rank_leaves_the_model_as_it_is(fake_mesh: Mesh) -> None:
    model = intarsia.parallelize(moe(), fake_mesh(dp=1, ep=1))
    assert not any(isinstance(p, DTensor) for p in model.parameters())
