"""Megatron's `torch_dist` checkpoints: real ones, and ours read back by plain torch."""

from __future__ import annotations

import json
import pickle
import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

import intarsia
from intarsia.checkpoint import Checkpoint
from intarsia.errors import FamilyError, FormatError
from intarsia.family import table_for
from intarsia.format.megatron.torch_dist.checkpoint import TorchDist
from tests.checkpoints import (
    assert_same,
    llama_config,
    model,
    normal_tensor,
    read_dcp,
    write_dcp,
    write_hf,
)
from tests.family.configs import CASES
from tests.fixtures import FIXTURES, fixture
from tests.parity.megatron_writing import read, write_torch_dist

MESHES = ("", "tp=2", "tp=2,pp=3", "tp=2,pp=2,ep=3", "tp=4,etp=2,ep=2,fsdp=2")
MODELS = ("llama", "qwen3, biases, tied", "qwen3_moe", "qwen3_next", "deepseek_v3", "glm4_moe")


def config_at(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def everything(path: Path, config: Mapping[str, Any] | None = None) -> dict[str, torch.Tensor]:
    with Checkpoint(read(path, config)) as checkpoint:
        return {name: checkpoint[name][...] for name in checkpoint}


def iteration(path: Path) -> Path:
    (found,) = path.glob("iter_*")
    return found


def near_one(tensors: dict[str, torch.Tensor]) -> None:
    """Megatron keeps the norm of linear attention less one, which is exact only near one."""
    for name, tensor in tensors.items():
        if name.endswith("linear_attn.norm.weight") and "exp_avg" not in name:
            tensors[name] = (tensor.bfloat16().clamp(-1, 1) / 4 + 1).to(tensor.dtype)


def made(folder: Path, model: str, states: bool = False) -> dict[str, torch.Tensor]:
    """A hub checkpoint with a tensor for every row of the family's table that needs one."""
    table = table_for(CASES[model])
    assert table is not None
    shapes = {n: s for n, s in table.logical.items() if n not in table.optional}
    tensors = {n: normal_tensor(s, torch.bfloat16, k) for k, (n, s) in enumerate(shapes.items())}
    near_one(tensors)
    write_hf(folder, tensors, CASES[model])
    if not states:
        return tensors
    kinds = ("exp_avg", "exp_avg_sq", "master")
    extra = {
        f"optimizer.{kind}.{n}": normal_tensor(s, torch.float32, 7 * k)
        for kind in kinds
        for k, (n, s) in enumerate(shapes.items())
        if not n.endswith("e_score_correction_bias")
    }
    near_one(extra)
    write_hf(folder / "optimizer", extra)
    return tensors | extra


@pytest.mark.parametrize(
    "case", ["td_dense_tp2", "td_dense_tp2pp2_dpresh", "td_gdn_tp2", "td_moe_tp2pp2ep2"]
)
def test_megatrons_own(case: str) -> None:
    path = fixture("megatron", case)
    truth = load_file(path / "hf_truth" / "model.safetensors")
    steps = {f"optimizer.step.{name}": torch.tensor(3.0) for name in truth}
    truth |= load_file(path / "hf_truth_optimizer.safetensors")
    assert_same(everything(path, config_at(path / "hf_truth")), truth | steps)


def test_megatron_0_15() -> None:
    path = fixture("megatron", "legacy_0.15.3_fully_reshardable")
    found = everything(path, config_at(fixture("megatron", "td_dense_tp2", "hf_truth")))
    truth = load_file(path / "truth_hf.safetensors")
    model = {name: tensor.float() for name, tensor in found.items() if name in truth}
    assert_same(model, truth)
    master = {n.removeprefix("optimizer.master."): t for n, t in found.items() if "master" in n}
    assert {*master} == {*truth}
    for name, tensor in master.items():
        torch.testing.assert_close(tensor.bfloat16().float(), truth[name], atol=0, rtol=0)
        assert torch.equal(found[f"optimizer.exp_avg.{name}"], tensor * 0.25)
        assert torch.equal(found[f"optimizer.exp_avg_sq.{name}"], tensor * tensor)


BRIDGES = sorted(
    str(path.relative_to(FIXTURES / "bridge")) for path in FIXTURES.glob("bridge/*/torch_dist_*")
)


@pytest.mark.parametrize("case", BRIDGES)
def test_megatron_bridges_own(case: str) -> None:
    path = fixture("bridge", case)
    found = everything(path, config_at(path.parent / "hf_truth"))
    truth = everything(path.parent / "hf_truth")
    # Megatron-Bridge keeps gpt-oss's norms in float32.
    found = {name: tensor.to(truth[name].dtype) for name, tensor in found.items()}
    assert_same(found, truth)


@pytest.mark.parametrize("case", BRIDGES)
@pytest.mark.one_in(2)
def test_what_megatron_bridge_would_write(case: str, tmp_path: Path) -> None:
    theirs = fixture("bridge", case)
    mesh = ",".join(f"{w.rstrip('1234567890')}={w[-1]}" for w in theirs.name.split("_")[2:])
    write_torch_dist(theirs.parent / "hf_truth", tmp_path / "ours", mesh, spec="local")
    found, expected = (read_dcp(iteration(path)) for path in (tmp_path / "ours", theirs))
    assert_same(found, {name: t.to(found[name].dtype) for name, t in expected.items()})
    assert objects(iteration(theirs)) <= objects(iteration(tmp_path / "ours"))


def objects(path: Path) -> set[str]:
    described = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    return {name for name, entry in described.items() if isinstance(entry, BytesStorageMetadata)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.one_in(9)
def test_there_and_back(model: str, mesh: str, tmp_path: Path) -> None:
    if model.startswith(("llama", "qwen3,")):
        mesh = ",".join(
            axis for axis in mesh.split(",") if "ep=" not in axis and "etp=" not in axis
        )
    tensors = made(tmp_path / "hf", model, states=True)
    write_torch_dist(tmp_path / "hf", tmp_path / "td", mesh)
    assert_same(everything(tmp_path / "td"), tensors)
    assert (tmp_path / "td" / "latest_checkpointed_iteration.txt").read_text() == "1"
    assert read(iteration(tmp_path / "td")).config == CASES[model]


def test_layers_that_are_alike_are_one_tensor(tmp_path: Path) -> None:
    made(tmp_path / "hf", "qwen3_moe", states=True)
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "tp=2,ep=3")
    stored = read_dcp(iteration(tmp_path / "td"))
    assert stored["decoder.layers.mlp.experts.experts.linear_fc1.weight"].shape == (3, 3, 28, 24)
    state = "optimizer.state.param.decoder.layers.mlp.experts.experts.linear_fc2.weight"
    assert stored[state].shape == (3, 3, 24, 14)
    assert not [name for name in stored if ".layers.0." in name]


def test_layers_that_differ_are_not(tmp_path: Path) -> None:
    made(tmp_path / "hf", "deepseek_v3")
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "")
    stored = read_dcp(iteration(tmp_path / "td"))
    assert "decoder.layers.1.self_attention.linear_proj.weight" in stored
    assert stored["decoder.layers.1.mlp.experts.experts.linear_fc1.weight"].shape == (4, 28, 24)


@pytest.mark.parametrize(("listed", "apart"), [
    ({"moe_layer_freq": [1, 1, 1]}, True), ({"hetereogenous_dist_checkpoint": True}, True), ({"moe_layer_freq": 1}, False),
])  # fmt: skip
def test_layers_are_apart_where_the_arguments_of_the_run_make_megatron_ask_for_them_so(
    listed: dict[str, Any], apart: bool, tmp_path: Path
) -> None:
    """A list of kinds, layer by layer, does so even where all of them are alike."""
    tensors = made(tmp_path / "hf", "qwen3_moe", states=True)
    write_torch_dist(tmp_path / "hf", tmp_path / "td")
    file = iteration(tmp_path / "td") / "common.pt"
    torch.serialization.add_safe_globals([Namespace])
    common = torch.load(file)
    vars(common["args"]).update(listed)
    torch.save(common, file)
    write_torch_dist(tmp_path / "td", tmp_path / "again", "tp=2,ep=3")
    stored = read_dcp(iteration(tmp_path / "again"))
    at = "decoder.layers.2." if apart else "decoder.layers."
    for name in (f"{at}mlp.router.weight", f"optimizer.state.exp_avg.{at}mlp.router.weight"):
        assert name in stored
    assert any(".layers.0." in name for name in stored) is apart
    assert_same(everything(tmp_path / "again"), tensors)


def test_no_chunk_spans_two_layers_or_experts(tmp_path: Path) -> None:
    made(tmp_path / "hf", "qwen3_moe")
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "")
    described = dcp.FileSystemReader(iteration(tmp_path / "td")).read_metadata()
    entry = described.state_dict_metadata["decoder.layers.mlp.experts.experts.linear_fc1.weight"]
    assert {tuple(c.sizes) for c in entry.chunks} == {(1, 1, 14, 24)}
    assert len(entry.chunks) == 3 * 3 * 2


def test_padding_of_the_vocabulary(tmp_path: Path) -> None:
    tensors = made(tmp_path / "hf", "llama")
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "tp=2", pad_to=16)
    stored = read_dcp(iteration(tmp_path / "td"))["output_layer.weight"]
    assert stored.shape == (64, 24)
    assert not stored[50:].any()
    assert_same(everything(tmp_path / "td"), tensors)


@pytest.mark.parametrize(("said", "rows"), [(None, 256), (12, 72)])
def test_the_vocabulary_that_megatron_builds_can_be_cut_on_the_mesh(
    said: int | None, rows: int, tmp_path: Path
) -> None:
    """It takes the argument as it is, and loads the fewer rows that are stored into as many."""
    made(tmp_path / "hf", "llama")
    intarsia.convert(tmp_path / "hf", tmp_path / "first", to="torch_dist")
    file = iteration(tmp_path / "first") / "common.pt"
    torch.serialization.add_safe_globals([Namespace])
    state = torch.load(file, weights_only=True)
    assert state["args"].padded_vocab_size == 128
    state["args"].make_vocab_size_divisible_by = said
    torch.save(state, file)
    intarsia.convert(tmp_path / "first", tmp_path / "td", to="torch_dist", mesh="tp=2")
    args = torch.load(iteration(tmp_path / "td") / "common.pt", weights_only=True)["args"]
    assert (args.vocab_size, args.padded_vocab_size) == (50, rows)
    assert read_dcp(iteration(tmp_path / "td"))["output_layer.weight"].shape == (50, 24)


def test_the_common_state_in_both_homes(tmp_path: Path) -> None:
    made(tmp_path / "hf", "qwen3_moe")
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "tp=2,ep=3")
    where = iteration(tmp_path / "td")
    torch.serialization.add_safe_globals([Namespace])
    state = torch.load(where / "common.pt", weights_only=True)
    assert state["iteration"] == 1
    args = state["args"]
    assert (args.num_layers, args.num_experts, args.moe_ffn_hidden_size) == (3, 3, 14)
    assert (args.tensor_model_parallel_size, args.expert_model_parallel_size) == (2, 3)
    assert (args.qk_layernorm, args.num_query_groups, args.kv_channels) == (True, 2, 10)
    (where / "common.pt").unlink()
    (tmp_path / "td" / "config.json").unlink()
    manifest = read(tmp_path / "td")
    assert manifest.family == "qwen3_moe"
    assert json.loads((where / "metadata.json").read_text())["sharded_backend"] == "torch_dist"


@pytest.mark.parametrize("model", ["llama", "qwen2, tied", "qwen3", "qwen3_moe", "mixtral"])
def test_a_configuration_from_the_arguments(model: str, tmp_path: Path) -> None:
    tensors = made(tmp_path / "hf", model)
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "tp=2")
    (tmp_path / "td" / "config.json").unlink()
    manifest = read(tmp_path / "td")
    assert manifest.config is not None
    told = {k: v for k, v in manifest.config.items() if k in CASES[model]}
    assert told == {k: CASES[model][k] for k in told}
    assert_same(everything(tmp_path / "td"), tensors)


def test_what_the_arguments_do_not_tell(tmp_path: Path) -> None:
    made(tmp_path / "hf", "qwen3_next")
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "")
    (tmp_path / "td" / "config.json").unlink()
    manifest = read(tmp_path / "td")
    assert manifest.family is None
    assert "--config" in manifest.notes[0]


def test_norms_that_megatron_centres_on_one(tmp_path: Path) -> None:
    """Its stored arguments say so; the hub's are centred on zero."""
    config = CASES["qwen3_next"]
    tensors = made(tmp_path / "hf", "qwen3_next")
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "")
    where = iteration(tmp_path / "td")
    torch.serialization.add_safe_globals([Namespace])
    state = torch.load(where / "common.pt", weights_only=True)
    assert state["args"].layernorm_zero_centered_gamma is True
    state["args"].layernorm_zero_centered_gamma = False
    torch.save(state, where / "common.pt")
    found = everything(tmp_path / "td", config)
    name = "model.layers.0.input_layernorm.weight"
    assert torch.equal(found[name], (tensors[name].float() - 1).bfloat16())
    other = "model.layers.0.mlp.shared_expert.down_proj.weight"
    assert torch.equal(found[other], tensors[other])


def centred(tmp_path: Path, **arguments: bool) -> Path:
    """A checkpoint whose arguments say so of its norms, and by no other name."""
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "")
    (iteration(tmp_path / "td") / "intarsia-digests.json").unlink()
    common = iteration(tmp_path / "td") / "common.pt"
    torch.serialization.add_safe_globals([Namespace])
    state = torch.load(common, weights_only=True)
    del state["args"].layernorm_zero_centered_gamma
    vars(state["args"]).update(arguments)
    torch.save(state, common)
    return tmp_path / "td"


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
@pytest.mark.parametrize("centered", [True, False])
def test_norms_that_megatron_up_to_0_15_centres_by_another_name(
    family: str, centered: bool, tmp_path: Path
) -> None:
    tensors = made(tmp_path / "hf", family)
    src = centred(tmp_path, apply_layernorm_1p=centered)
    found, name = everything(src, CASES[family]), "model.layers.0.input_layernorm.weight"
    shift = centered - (family == "qwen3_next")
    assert torch.equal(found[name], (tensors[name].float() + shift).bfloat16())
    intarsia.convert(src, tmp_path / "again", to="torch_dist", mesh="tp=2")
    args = torch.load(iteration(tmp_path / "again") / "common.pt", weights_only=True)["args"]
    assert args.apply_layernorm_1p == args.layernorm_zero_centered_gamma == centered
    assert_same(read_dcp(iteration(tmp_path / "again")), read_dcp(iteration(src)))


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
def test_norms_that_lost_their_centre_on_the_way_are_told_and_the_arguments_say_so(
    to: str, tmp_path: Path
) -> None:
    made(tmp_path / "hf", "llama")
    src = centred(tmp_path, apply_layernorm_1p=True)
    intarsia.convert(src, tmp_path / "dcp", to="dcp")
    report = intarsia.convert(tmp_path / "dcp", tmp_path / "back", to=to)
    assert [n for n in report.notes if "resume without --apply-layernorm-1p" in n]
    assert intarsia.verify(tmp_path / "dcp", tmp_path / "back")


def test_of_two_names_for_centred_norms_the_later_megatrons_counts_and_a_note_tells(
    tmp_path: Path,
) -> None:
    tensors = made(tmp_path / "hf", "llama")
    both = {"layernorm_zero_centered_gamma": False, "apply_layernorm_1p": True}
    src = centred(tmp_path, **both)
    assert_same(everything(src), tensors)
    notes = read(src).notes
    assert any("apply_layernorm_1p=True" in n and "zero_centered_gamma=False" in n for n in notes)


def by_hand(folder: Path, state: Mapping[str, Any]) -> Path:
    """A checkpoint with Megatron's frame around what torch wrote."""
    write_dcp(folder, state)
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    torch.save({"iteration": 1}, folder / "common.pt")
    (folder / "config.json").write_text(json.dumps(CASES["llama"]))
    return folder


def stored_llama(tmp_path: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    tensors = made(tmp_path / "hf", "llama")
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "")
    return tensors, read_dcp(iteration(tmp_path / "td"))


def test_a_chunk_that_holds_all_layers(tmp_path: Path) -> None:
    tensors, stored = stored_llama(tmp_path)
    assert_same(everything(by_hand(tmp_path / "hand", stored)), tensors)


def test_layers_and_halves_kept_apart(tmp_path: Path) -> None:
    tensors, stored = stored_llama(tmp_path)
    apart: dict[str, torch.Tensor] = {}
    for name, tensor in stored.items():
        if ".layers." not in name:
            apart[f"module.{name}"] = tensor
            continue
        for n, layer in enumerate(tensor.unbind()):
            key = name.replace(".layers.", f".layers.{n}.")
            if key.endswith("linear_fc1.weight"):
                gate, up = layer.chunk(2)
                apart |= {f"{key}_w": gate.clone(), f"{key}_v": up.clone()}
            else:
                apart[key] = layer.clone()
    assert_same(everything(by_hand(tmp_path / "hand", apart)), tensors)


def test_flattened_optimizer_state(tmp_path: Path) -> None:
    """As Megatron-core up to 0.15 stores it: the shards of two ranks, each flat."""
    tensors, stored = stored_llama(tmp_path)
    name = "decoder.layers.self_attention.linear_proj.weight"
    weight = stored[name].float()
    layers, rows, columns = weight.shape
    shards = weight.reshape(layers, 1, rows, 2, columns // 2).permute(0, 1, 3, 2, 4)
    key = f"optimizer.state.fp32_param.{name}"
    flat = shards.reshape(layers, 1, 2, -1).contiguous()
    where = by_hand(tmp_path / "hand", stored | {key: flat})
    metadata = pickle.loads((where / ".metadata").read_bytes())
    metadata.mcore_data = {key: {"nd_reformulated_orig_global_shape": tuple(weight.shape)}}
    (where / ".metadata").write_bytes(pickle.dumps(metadata))
    found = everything(where)
    assert_same({n: t for n, t in found.items() if not n.startswith("optimizer.")}, tensors)
    for n in range(layers):
        of = f"model.layers.{n}.self_attn.o_proj.weight"
        assert torch.equal(found[f"optimizer.master.{of}"], tensors[of].float())


def test_buckets_that_nothing_fits(tmp_path: Path) -> None:
    """The weights are read all the same, so that the optimizer's state can be dropped."""
    tensors, stored = stored_llama(tmp_path)
    place = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32)"
    key = f"{place}.bucket_idx_0.exp_avg"
    where = by_hand(tmp_path / "hand", stored | {key: torch.ones(17)})
    manifest = read(where)
    assert "no orders of" in manifest.problems[0].text
    assert_same({n: t for n, t in everything(where).items() if n != key}, tensors)


@pytest.mark.parametrize("chain", ["", "chained_1."])
def test_buckets_that_nothing_fits_are_dropped_or_refused(tmp_path: Path, chain: str) -> None:
    tensors, stored = stored_llama(tmp_path)
    place = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32)"
    key = f"{chain}{place}.bucket_idx_0.exp_avg"
    where = by_hand(tmp_path / "hand", stored | {key: torch.ones(17)})
    assert key in {each.key for each in intarsia.open(where).manifest.stored.values()}
    for to in ("hf", "dcp", "torch_dist", "fsdp_dtensor"):
        with pytest.raises(FormatError, match=r"no orders of .*\n.*--optimizer drop"):
            intarsia.convert(where, tmp_path / f"to_{to}", to=to)
        intarsia.convert(where, tmp_path / f"to_{to}", to=to, optimizer="drop")
        assert_same(everything(tmp_path / f"to_{to}"), tensors)


def test_state_that_megatron_gathered_into_objects_is_dropped_or_refused(tmp_path: Path) -> None:
    """It is no tensor, and a checkpoint without it would not be equal."""
    tensors, stored = stored_llama(tmp_path)
    held = {"param": torch.ones(17), "exp_avg": torch.ones(17), "exp_avg_sq": torch.ones(17)}
    name = "optimizer.distributed.dp_group_idx_0.param_state/shard_0_1"
    gathered = {0: {"(torch.bfloat16, torch.float32)": held}}, "in one object"
    where = by_hand(tmp_path / "hand", stored | {name: gathered})
    assert name in intarsia.inspect(where).problems[0]
    (note,) = [n for n in intarsia.verify(where).notes if n.startswith("optimizer state stays")]
    assert name in note
    assert "\n" not in note
    for to in ("hf", "torch_dist"):
        with pytest.raises(FormatError, match=r"dp_zero_gather_scatter.*\n.*--optimizer drop"):
            intarsia.convert(where, tmp_path / f"to_{to}", to=to)
        intarsia.convert(where, tmp_path / f"to_{to}", to=to, optimizer="drop")
        assert_same(everything(tmp_path / f"to_{to}"), tensors)


def test_a_name_that_the_family_does_not_know(tmp_path: Path) -> None:
    _, stored = stored_llama(tmp_path)
    where = by_hand(
        tmp_path / "hand", stored | {"decoder.layers.mlp.linear_fc3.weight": torch.ones(3)}
    )
    with pytest.raises(FamilyError, match=r"decoder\.layers\.mlp\.linear_fc3\.weight"):
        read(where)


def test_a_vision_tower_is_carried(tmp_path: Path) -> None:
    _, stored = stored_llama(tmp_path)
    where = by_hand(tmp_path / "hand", stored | {"vision_model.patch.weight": torch.ones(3, 2)})
    assert torch.equal(everything(where)["vision_model.patch.weight"], torch.ones(3, 2))


def test_a_shape_that_the_configuration_does_not_have(tmp_path: Path) -> None:
    _, stored = stored_llama(tmp_path)
    stored["decoder.final_layernorm.weight"] = torch.ones(25)
    with pytest.raises(FamilyError, match=r"has shape \[25\]"):
        read(by_hand(tmp_path / "hand", stored))


def test_a_tensor_that_is_absent(tmp_path: Path) -> None:
    _, stored = stored_llama(tmp_path)
    del stored["decoder.final_layernorm.weight"]
    manifest = read(by_hand(tmp_path / "hand", stored))
    assert [x.name for x in manifest.absent] == ["model.norm.weight"]
    assert "model.norm.weight" in manifest.problems[0].text


def test_which_iteration(tmp_path: Path) -> None:
    made(tmp_path / "hf", "llama")
    write_torch_dist(tmp_path / "hf", tmp_path / "td", "")
    tracker, first = (
        tmp_path / "td" / "latest_checkpointed_iteration.txt",
        iteration(tmp_path / "td"),
    )
    shutil.copytree(first, first.with_name("iter_0000002"))
    shutil.copytree(first, first.with_name("release"))
    tracker.write_text("2\n")
    assert read(tmp_path / "td").path.endswith("iter_0000002")
    tracker.write_text("release")
    assert read(tmp_path / "td").path.endswith("release")
    tracker.unlink()
    assert TorchDist().detect(tmp_path / "td")
    with pytest.raises(FormatError, match="holds 2 checkpoints"):
        read(tmp_path / "td")
    shutil.rmtree(first)
    assert read(tmp_path / "td").path.endswith("iter_0000002")


def test_shards_of_pickles_are_refused_with_a_way_on(tmp_path: Path) -> None:
    where = tmp_path / "iter_0000005" / "mp_rank_00"
    where.mkdir(parents=True)
    (where / "model_optim_rng.pt").write_bytes(b"")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5")
    with pytest.raises(
        FormatError, match=r"one pickle for each model-parallel rank[\s\S]*torch_dist"
    ):
        read(tmp_path)


def test_other_folders_are_not_ours(tmp_path: Path) -> None:
    made(tmp_path / "hf", "llama")
    write_dcp(tmp_path / "dcp", {"x": torch.ones(2)})
    for path in (tmp_path, tmp_path / "hf", tmp_path / "dcp", tmp_path / "absent"):
        assert not TorchDist().detect(path)


def test_writing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    made(tmp_path / "hf", "qwen3_moe", states=True)
    for name in ("a", "b"):
        write_torch_dist(tmp_path / "hf", tmp_path / name, "tp=2,pp=2")
    one, two = (
        {
            p.relative_to(tmp_path / n): p.read_bytes()
            for p in (tmp_path / n).rglob("*")
            if p.is_file()
        }
        for n in ("a", "b")
    )
    assert one == two


def test_resharding_keeps_groups_and_steps(tmp_path: Path) -> None:
    path = fixture("megatron", "td_dense_tp2pp2_dpresh")
    config = config_at(path / "hf_truth")
    write_torch_dist(path, tmp_path / "td", "tp=2", config=config, pad_to=64)
    like = read_dcp(iteration(fixture("megatron", "td_dense_tp2")))
    found = read_dcp(iteration(tmp_path / "td"))
    assert {*found} == {*like}
    for name, tensor in like.items():
        rows = slice(config["vocab_size"]) if "word" in name or "output" in name else slice(None)
        assert tensor.shape == found[name].shape
        assert torch.equal(found[name][rows], tensor[rows]), name
    torch.serialization.add_safe_globals([Namespace])
    state = torch.load(iteration(tmp_path / "td") / "common.pt", weights_only=True)
    assert state["iteration"] == 10
    groups = state["optimizer"]["optimizer"]["param_groups"]
    assert [group["step"] for group in groups] == [3.0, 3.0]
    assert state["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable"
    assert (tmp_path / "td" / "latest_checkpointed_iteration.txt").read_text() == "10"


def test_the_scale_of_a_loss_in_half_precision_arrives(tmp_path: Path) -> None:
    """Megatron asks for a tensor, and multiplies by what it finds."""
    made(tmp_path / "hf", "qwen3_moe", states=True)
    write_torch_dist(tmp_path / "hf", tmp_path / "td")
    file = iteration(tmp_path / "td") / "common.pt"
    scaler = {"scale": torch.tensor([1024.0]), "growth_tracker": 7, "hysteresis_tracker": 2}
    group = {"wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False, "step": 3}
    torch.serialization.add_safe_globals([Namespace])
    common = torch.load(file)
    groups = [group, group | {"wd_mult": 0.0}]
    common["optimizer"] = {"optimizer": {"param_groups": groups}, "grad_scaler": scaler}
    torch.save(common, file)
    intarsia.convert(tmp_path / "td", tmp_path / "dcp", to="dcp")
    for path, links in (("td", 1), ("dcp", 2)):
        mesh = "ep=3" if links == 2 else "tp=2"
        to = tmp_path / f"from {path}"
        intarsia.convert(tmp_path / path, to, to="torch_dist", mesh=mesh)
        found = torch.load(iteration(to) / "common.pt")["optimizer"]
        each = [found[k] for k in range(links)] if links == 2 else [found]
        assert [one["grad_scaler"] for one in each] == [scaler] * links


def test_objects_without_a_place_are_named(tmp_path: Path) -> None:
    """The generators of ranks belong to a mesh, and the position of a loader has no home in Megatron."""
    weights = {"model": dict(model(llama_config()))}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(llama_config()))
    dcp.save(weights | {"loader": {"position": 7}}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    report = intarsia.convert(
        tmp_path / "dcp", tmp_path / "out", to="torch_dist", config=str(config)
    )
    (note,) = [note for note in report.notes if "cannot be stored in torch_dist" in note]
    assert "loader.position" in note


@pytest.mark.parametrize(("kept", "mesh", "options"), [
    ("keep", "tp=2", [""]), ("keep", "tp=2,pp=2", ["--no-load-rng"]), ("drop", "tp=2", ["--no-load-optim --no-load-rng"]),
])  # fmt: skip
def test_options_without_which_megatron_lm_does_not_load_it_are_named(
    kept: str, mesh: str, options: list[str], tmp_path: Path
) -> None:
    source = fixture("megatron", "td_dense_tp2")
    config = source / "hf_truth" / "config.json"
    done = intarsia.convert(
        source, tmp_path / "td", to="torch_dist", mesh=mesh, config=config, optimizer=kept
    )
    asked = [note.partition("in Megatron-LM with ")[2] for note in done.notes]
    assert [x for x in asked if x] == [x for x in options if x]
