"""What Megatron-FSDP's checkpoints get wrong, or leave out: refused by name, or read right."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import intarsia
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, FamilyError, FormatError, UsageError
from intarsia.family import Table, register, table_for, unregister
from intarsia.format import registry as formats
from intarsia.format.megatron.fsdp_dtensor.keys import PART
from intarsia.format.megatron.fsdp_dtensor.write import fsdp_dtensor_rows
from intarsia.live.megatron_fsdp import rounded_masters
from intarsia.mesh import Mesh
from tests.checkpoints import assert_same, read_dcp, read_hf, write_dcp, write_hf
from tests.format.megatron.fsdp_dtensor.test_fsdp_dtensor import DENSE, LINEAR, SPARSE, weights
from tests.live.megatron_fsdp_cases import (
    hf_with_optimizer,
    logical_tensors,
    to_fsdp,
    to_other,
    to_torch_dist,
)

FC1 = "decoder.layers.0.mlp.linear_fc1.weight"
STATE = "optimizer.state.module.module.module."


def written(tmp_path: Path, config: Any, spec: str = "local") -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint with optimizer state, by their keys."""
    hf_with_optimizer(tmp_path / "hf", weights(config), config)
    to_fsdp(tmp_path / "hf", tmp_path / "fsdp", spec=spec)
    return read_dcp(next((tmp_path / "fsdp").glob("iter_*")))


def saved(folder: Path, tensors: dict[str, torch.Tensor], **objects: Any) -> Path:
    """The same tensors as torch's own DCP saves them, with objects or without."""
    return write_dcp(folder, {**tensors, **objects})


def expected(tmp_path: Path) -> dict[str, torch.Tensor]:
    return logical_tensors(tmp_path / "fsdp")


def fuse(
    tensors: dict[str, torch.Tensor], whole: str, parts: list[str], tp: int
) -> dict[str, torch.Tensor]:
    """Components under one key, in the order of tensor-parallel ranks: as Megatron-LM saves them."""
    found = dict(tensors)
    keys = {f"model.module.{whole}": f"model.module.{whole}"} | {
        f"{STATE}{whole}.{kind}": f"{STATE}{whole}" for kind in ("exp_avg", "exp_avg_sq", "step")
    }
    for key, start in keys.items():
        kind = key.removeprefix(start)
        held = [found.pop(f"{start}{part}{kind}") for part in parts]
        if kind == ".step":
            found[key] = held[0]
        else:
            cut = [part.chunk(tp) for part in held]
            found[key] = torch.cat([part[rank] for rank in range(tp) for part in cut])
    return found


GDN = [".query", ".key", ".value", ".z", ".beta", ".alpha"]


def linear_fused(tensors: dict[str, torch.Tensor], tp: int) -> dict[str, torch.Tensor]:
    at = "decoder.layers.0.self_attention."
    tensors = fuse(tensors, f"{at}in_proj.weight", GDN, tp)
    return fuse(tensors, f"{at}conv1d.weight", GDN[:3], tp)


@pytest.mark.parametrize("tp", [1, 2])
def test_gdn_that_was_saved_fused_is_read_by_the_ranks_that_saved_it(
    tp: int, tmp_path: Path
) -> None:
    tensors = linear_fused(written(tmp_path, LINEAR), tp)
    args = Namespace(tensor_model_parallel_size=tp, layernorm_zero_centered_gamma=True)
    path = saved(tmp_path / "fused", tensors, args=args)
    assert_same(logical_tensors(path, LINEAR), expected(tmp_path))


def test_gdn_that_was_saved_fused_on_two_ranks_is_scrambled_by_a_reader_on_one(
    tmp_path: Path,
) -> None:
    tensors = linear_fused(written(tmp_path, LINEAR), 2)
    args = Namespace(tensor_model_parallel_size=1, layernorm_zero_centered_gamma=True)
    wrong = logical_tensors(saved(tmp_path / "fused", tensors, args=args), LINEAR)
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    assert not torch.equal(wrong[name], expected(tmp_path)[name])


def test_a_fused_tensor_of_an_unknown_number_of_ranks_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "fused", linear_fused(written(tmp_path, LINEAR), 2))
    with pytest.raises(FormatError, match="no stored argument gives their number"):
        formats.read_manifest(path, LINEAR)


def test_swiglu_that_was_saved_fused_is_read_by_the_ranks_that_saved_it(tmp_path: Path) -> None:
    tensors = fuse(written(tmp_path, DENSE), FC1, ["_w", "_v"], 2)
    path = saved(tmp_path / "fused", tensors, args=Namespace(tensor_model_parallel_size=2))
    assert_same(logical_tensors(path, DENSE), expected(tmp_path))


def test_missing_args_and_iteration_do_not_matter(tmp_path: Path) -> None:
    path = saved(tmp_path / "bare", written(tmp_path, SPARSE))
    manifest = formats.read_manifest(path, SPARSE)
    assert not manifest.entries
    assert any("holds no args and no iteration" in note for note in manifest.notes)
    assert_same(logical_tensors(path, SPARSE), expected(tmp_path))
    again = to_fsdp(path, tmp_path / "again", "fsdp=2", config=SPARSE)
    assert {"args", "iteration", "checkpoint_version"} <= again.entries.keys()


@pytest.mark.parametrize("wrappers", [("", ""), ("module.module.", "module."), ("module.", "")])
def test_wrappers_prefixes_mean_nothing(wrappers: tuple[str, str], tmp_path: Path) -> None:
    model, state = wrappers
    renamed = {}
    for key, tensor in written(tmp_path, DENSE).items():
        if key.startswith("rng"):
            continue
        key = key.replace("model.module.", f"model.module.{model}")
        renamed[key.replace(STATE, f"optimizer.state.{state}")] = tensor
    path = saved(tmp_path / "renamed", renamed)
    assert formats.format_of(path).name == "fsdp_dtensor"
    assert_same(logical_tensors(path, DENSE), expected(tmp_path))


def test_experts_of_either_kind_of_module_are_read(tmp_path: Path) -> None:
    hf_with_optimizer(tmp_path / "hf", weights(SPARSE), SPARSE)
    found = []
    for spec in ("te", "local"):
        to_fsdp(tmp_path / "hf", tmp_path / spec, "ep=2", spec=spec)
        found.append(logical_tensors(tmp_path / spec))
    assert_same(found[0], found[1])
    keys = [set(read_dcp(next((tmp_path / spec).glob("iter_*")))) for spec in ("te", "local")]
    at = "model.module.decoder.layers.0.mlp.experts."
    assert f"{at}linear_fc1.weight3_w" in keys[0]
    assert f"{at}local_experts.3.linear_fc1.weight_w" in keys[1]
    assert "model.module.decoder.layers.1.mlp.linear_fc1.layer_norm_weight" in keys[0]
    assert "model.module.decoder.layers.1.pre_mlp_layernorm.weight" in keys[1]


def truncated(tmp_path: Path) -> Path:
    """Plain moments of which DCP kept one rank's part, as Megatron-LM saves them today."""
    tensors = written(tmp_path, DENSE)
    for key in [k for k in tensors if k.endswith("linear_qkv.weight.exp_avg")]:
        tensors[key] = tensors[key][:3]
    return saved(tmp_path / "cut", tensors, args=Namespace(tensor_model_parallel_size=1))


def test_plain_states_that_dcp_truncated_are_refused(tmp_path: Path) -> None:
    path = truncated(tmp_path)
    manifest = formats.read_manifest(path, DENSE)
    assert len(manifest.problems) == DENSE["num_hidden_layers"]
    assert "has shape [3, 16], its parameter [" in manifest.problems[0].text
    assert any("2 of " in n and "--optimizer drop" in n for n in manifest.notes)
    with pytest.raises(CoverageError):
        to_other(path, tmp_path / "back", config=DENSE)
    assert not (tmp_path / "back").exists()
    with Checkpoint(manifest) as ck, pytest.raises(CoverageError):
        ck["optimizer.exp_avg.model.layers.0.self_attn.q_proj.weight"][:1]


def test_the_weights_beside_truncated_states_can_be_saved(tmp_path: Path) -> None:
    to_other(truncated(tmp_path), tmp_path / "back", config=DENSE, drop=True)
    model = {n: x for n, x in expected(tmp_path).items() if not n.startswith("optimizer.")}
    assert_same(read_hf(tmp_path / "back"), model)


def test_counters_of_one_tensor_that_differ_are_reported(tmp_path: Path) -> None:
    tensors = written(tmp_path, LINEAR)
    key = f"{STATE}decoder.layers.0.self_attention.in_proj.weight.key.step"
    tensors[key] = tensors[key] + 1
    path = saved(tmp_path / "odd", tensors, args=Namespace(tensor_model_parallel_size=1))
    problems = formats.read_manifest(path, LINEAR).problems
    (problem,) = (p for p in problems if "count one tensor's steps, and differ" in p.text)
    assert (problem.kind, len(problem.tensors)) == ("steps-disagree", 2)
    assert key in problem.tensors
    assert problem.files


def test_counters_that_differ_are_not_put_into_one(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "hf", weights(DENSE), DENSE)
    from safetensors.torch import load_file, save_file

    file = source / "optimizer" / "model.safetensors"
    state = load_file(file)
    state["optimizer.step.model.layers.1.self_attn.v_proj.weight"] += 1
    save_file(state, file, {"format": "pt"})
    with pytest.raises(CoverageError, match="differ, and the destination has one number for both"):
        to_fsdp(source, tmp_path / "fsdp")


def test_an_absent_tensor_is_named(tmp_path: Path) -> None:
    tensors = written(tmp_path, DENSE)
    del tensors["model.module.decoder.layers.1.mlp.linear_fc2.weight"]
    for kind in ("exp_avg", "exp_avg_sq", "step"):
        del tensors[f"{STATE}decoder.layers.1.mlp.linear_fc2.weight.{kind}"]
    manifest = formats.read_manifest(saved(tmp_path / "odd", tensors), DENSE)
    (problem,) = manifest.problems
    assert str(problem) == "`model.layers.1.mlp.down_proj.weight` [16, 24] is absent"
    assert problem.kind == "tensor-missing"


def test_state_without_its_parameter_is_refused(tmp_path: Path) -> None:
    tensors = written(tmp_path, DENSE)
    del tensors["model.module.decoder.layers.1.mlp.linear_fc2.weight"]
    with pytest.raises(FormatError, match="a parameter that is not in the model section"):
        formats.read_manifest(saved(tmp_path / "odd", tensors), DENSE)


def test_another_models_configuration_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "bare", written(tmp_path, DENSE))
    with pytest.raises(FamilyError, match="gives"):
        formats.read_manifest(path, DENSE | {"intermediate_size": 26})


def test_pipeline_stages_are_refused(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "hf", weights(DENSE), DENSE)
    with pytest.raises(UsageError, match="no pipeline stages"):
        to_fsdp(source, tmp_path / "fsdp", "pp=2")


def test_masters_that_are_only_rounded_weights_are_detected(tmp_path: Path) -> None:
    model = weights(DENSE)
    source = hf_with_optimizer(tmp_path / "hf", model, DENSE)
    to_fsdp(source, tmp_path / "exact")
    plain = write_hf(tmp_path / "plain", model, DENSE)
    to_fsdp(plain, tmp_path / "rounded", dtype="fp32")
    lost = []
    for folder in ("exact", "rounded"):
        found = logical_tensors(tmp_path / folder)
        lost.append(rounded_masters((name, found[name]) for name in model))
    assert not lost[0]
    assert set(lost[1]) == set(model)


def test_main_weights_whose_halves_are_swapped_are_called_so_as_the_weights_are(
    tmp_path: Path,
) -> None:
    """One stored tensor is both the weight and its main weight, so either looks like the other."""
    tensors = written(tmp_path, DENSE)
    halves = {"weight_w": "weight_v", "weight_v": "weight_w"}
    other = {k: k.replace(h, halves[h]) for k in tensors for h in halves if h in k}
    swapped = saved(tmp_path / "swapped", {k: tensors[other.get(k, k)] for k in tensors})
    right = saved(tmp_path / "right", tensors)
    report = intarsia.verify(right, swapped, config=DENSE)
    assert {fault.kind for fault in report.faults} == {"gate-up-swapped"}


def test_main_weights_beside_narrow_ones_are_taken_from_the_optimizer(tmp_path: Path) -> None:
    """Megatron's converter leaves bf16 in the model section and the main weights as `param`."""
    tensors = written(tmp_path, DENSE)
    for key in [k for k in tensors if k.startswith("model.")]:
        name = key.removeprefix("model.module.")
        tensors[f"{STATE}{name}.param"] = tensors[key]
        tensors[key] = tensors[key].bfloat16()
    found = logical_tensors(saved(tmp_path / "converted", tensors), DENSE)
    masters = {n: x for n, x in expected(tmp_path).items() if ".master." in n}
    assert_same({n: x for n, x in found.items() if ".master." in n}, masters)
    assert found["model.norm.weight"].dtype == torch.bfloat16


@pytest.fixture
def mixed() -> Iterator[dict[str, Any]]:
    """A family whose first layer is gated and whose second is not."""

    def fill(t: Table) -> None:
        from intarsia.family import decoder

        for at in t.layers():
            if at.stage[0] == 0:
                decoder.mlp(at, 6)
            else:
                at.tensor("mlp.fc1.weight", 12, 4, tp=0, megatron="mlp.linear_fc1.weight")
                at.tensor("mlp.fc2.weight", 4, 12, tp=1, megatron="mlp.linear_fc2.weight")

    register("mixed", fill)
    yield {"model_type": "mixed", "num_hidden_layers": 2, "hidden_size": 4}
    unregister("mixed")


def test_layers_that_are_not_gated_stay_whole_beside_gated_ones(
    mixed: dict[str, Any], tmp_path: Path
) -> None:
    table = table_for(mixed)
    assert table is not None
    names = [row.name for row in fsdp_dtensor_rows(table)]
    assert [n for n in names if "fc1" in n] == [
        "decoder.layers.0.mlp.linear_fc1.weight_w",
        "decoder.layers.0.mlp.linear_fc1.weight_v",
        "decoder.layers.1.mlp.linear_fc1.weight",
    ]
    source = hf_with_optimizer(tmp_path / "hf", weights(mixed), mixed)
    to_fsdp(source, tmp_path / "fsdp", "tp=2,fsdp=2")
    to_other(tmp_path / "fsdp", tmp_path / "back")
    assert_same(read_hf(tmp_path / "back" / "optimizer"), read_hf(source / "optimizer"))


def test_a_plain_dcp_folder_is_not_taken_for_one(tmp_path: Path) -> None:
    plain = {f"model.module.{name}": x for name, x in weights(DENSE).items()}
    assert formats.format_of(write_dcp(tmp_path / "dcp", plain)).name == "dcp"


def test_every_rank_of_a_mesh_reads_its_own_shard_and_an_empty_one_is_no_trouble(
    tmp_path: Path,
) -> None:
    source = write_hf(tmp_path / "hf", weights(DENSE), DENSE)
    to_fsdp(source, tmp_path / "fsdp", "fsdp=2")
    mesh = Mesh.parse("fsdp=16")
    with Checkpoint(formats.read_manifest(tmp_path / "fsdp")) as ck:
        norm = "decoder.layers.0.self_attention.q_layernorm.weight"
        shards = [ck.shard(mesh, rank)[norm] for rank in range(mesh.size)]
        assert [x.numel() for x in shards] == [1] * 4 + [0] * 12
        want = ck["model.layers.0.self_attn.q_norm.weight"][...]
    assert torch.equal(torch.cat(shards), want)


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
        "v_head.summary.weight",
        "ref.model.norm.weight",
    ],
)
def test_tensors_that_megatron_has_no_name_for_are_refused(name: str, tmp_path: Path) -> None:
    tensors = weights(DENSE) | {name: torch.ones(3, 4)}
    source = write_hf(tmp_path / "hf", tensors, DENSE)
    with pytest.raises(FamilyError, match="not in the Megatron table of qwen3") as refused:
        to_fsdp(source, tmp_path / "fsdp")
    assert "hint: convert to hf or dcp" in str(refused.value)
    assert not (tmp_path / "fsdp").exists()


@pytest.mark.parametrize("step", [7, torch.tensor([7])], ids=["number", "tensor"])
def test_steps_that_only_the_groups_count_are_every_parameters(step: Any, tmp_path: Path) -> None:
    """TransformerEngine's Adam keeps no step by parameter."""
    tensors = written(tmp_path, SPARSE)
    kept = {key: x for key, x in tensors.items() if not key.endswith(".step")}
    assert len(kept) < len(tensors)
    names = {key.removeprefix("model.module.") for key in kept if key.startswith("model.")}
    meta = "optimizer.param_to_group_meta.module.module.module."
    steps = {f"{meta}{PART.sub('', name)}.step": step for name in names}
    path = saved(tmp_path / "groups", kept, **steps)
    assert_same(logical_tensors(path, SPARSE), expected(tmp_path))
    assert intarsia.verify(path, tmp_path / "fsdp", config=SPARSE)
    to_fsdp(path, tmp_path / "again", config=SPARSE)
    assert_same(logical_tensors(tmp_path / "again"), expected(tmp_path))
    (again,) = (tmp_path / "again").glob("iter_*")
    described = dcp.FileSystemReader(again).read_metadata().state_dict_metadata
    kinds = {type(x).__name__ for name, x in described.items() if name in steps}
    assert kinds == {"TensorStorageMetadata" if isinstance(step, torch.Tensor) else "BytesStorageMetadata"}  # fmt: skip
    stale = saved(
        tmp_path / "stale", kept, **steps | {f"{meta}{FC1.replace('.0.', '.1.')}.step": 8}
    )
    assert [f.kind for f in intarsia.verify(stale, config=SPARSE).faults] == ["steps-disagree"]


def test_groups_without_a_step_get_the_parameters_own_in_torch_dist(tmp_path: Path) -> None:
    """Torch's Adam counts by parameter, `torch_dist` keeps one step by group."""
    tensors = written(tmp_path, SPARSE)
    names = {key.removeprefix("model.module.") for key in tensors if key.startswith("model.")}
    meta = "optimizer.param_to_group_meta.module.module.module."
    fields = {"lr": 1e-3, "wd_mult": 1.0, "lr_mult": 1.0}
    groups = {f"{meta}{PART.sub('', n)}.{k}": v for n in names for k, v in fields.items()}
    path = saved(tmp_path / "counted", tensors, **groups)
    to_torch_dist(path, tmp_path / "dist", config=SPARSE)
    assert intarsia.verify(path, tmp_path / "dist", config=SPARSE)
    assert_same(logical_tensors(tmp_path / "dist"), expected(tmp_path))
    behind = next(key for key in tensors if key.endswith(".step"))
    stale = saved(tmp_path / "stale", tensors | {behind: torch.tensor(3.0)}, **groups)
    with pytest.raises(CoverageError, match="differ"):
        to_torch_dist(stale, tmp_path / "never", config=SPARSE)
