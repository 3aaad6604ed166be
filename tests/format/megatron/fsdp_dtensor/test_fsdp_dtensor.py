"""`fsdp_dtensor` both ways: Megatron's own checkpoints against their truth, and every way round."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import intarsia
from intarsia.family import table_for
from intarsia.format import registry as formats
from intarsia.format.dcp.metadata import Metadata, read_metadata
from intarsia.format.megatron.fsdp_dtensor.entries import common_of, plain_entries
from tests.checkpoints import (
    assert_same,
    bits,
    normal_tensor,
    qwen3_config,
    read_dcp,
    read_hf,
    write_hf,
)
from tests.live.megatron_fsdp_cases import (
    CASES,
    fixture,
    hf_with_optimizer,
    logical_tensors,
    to_fsdp,
    to_other,
    to_torch_dist,
    truths,
)
from tests.parity.megatron_writing import write_torch_dist

DENSE = qwen3_config(hidden_size=16, num_hidden_layers=2, intermediate_size=24, head_dim=4)
SPARSE = DENSE | {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 10,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
}
LINEAR = SPARSE | {
    "model_type": "qwen3_next",
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 3,
    "shared_expert_intermediate_size": 14,
    "mlp_only_layers": [],
}
MESHES = ["fsdp=2", "fsdp=4", "tp=2", "tp=2,fsdp=2", "replicate=2,fsdp=2"]
EXPERT_MESHES = ["ep=2", "ep=4,fsdp=2", "ep=2,etp=2,fsdp=4"]


def weights(config: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    table = table_for(config)
    assert table is not None
    return {
        name: normal_tensor(shape, dtype, k)
        for k, (name, shape) in enumerate(table.logical.items())
        if name not in table.optional
    }


def config_of(case: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((case / "hf_truth" / "config.json").read_text())
    return found


def metadata_of(folder: Path) -> Metadata:
    where = next(folder.glob("iter_*")) / ".metadata"
    return read_metadata(where.read_bytes(), str(where))


@pytest.mark.parametrize("case", CASES)
def test_megatrons_checkpoints_hold_their_truth(case: str) -> None:
    path = fixture(case)
    model, state = truths(path)
    found = logical_tensors(path, config_of(path))
    for name, want in state.items():
        assert bits(found[name]) == bits(want), name
    centered = "gdn" in case
    for name, want in model.items():
        assert bits(found[name]) == bits(state[f"optimizer.master.{name}"]), name
        # Megatron trains norms around one, the hub keeps them around zero.
        shift = float(centered and "norm" in name and "linear_attn" not in name)
        rounded = (found[name] + shift).bfloat16() - shift
        assert bits(rounded) == bits(want), name
        assert found[f"optimizer.step.{name}"] == 3.0
    steps = {f"optimizer.step.{name}" for name in model}
    assert set(found) == {*model, *state, *steps}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(2)
def test_megatrons_checkpoints_become_hugging_face_folders(case: str, tmp_path: Path) -> None:
    path = fixture(case)
    to_other(path, tmp_path / "hf", config=config_of(path))
    _, state = truths(path)
    masters = {n.removeprefix("optimizer.master."): x for n, x in state.items() if ".master." in n}
    assert_same(read_hf(tmp_path / "hf"), masters)
    held = read_hf(tmp_path / "hf" / "optimizer")
    assert_same({n: x for n, x in held.items() if ".step." not in n}, state)


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_has_megatrons_own_keys_shapes_and_paths(case: str, tmp_path: Path) -> None:
    path = fixture(case)
    to_fsdp(path, tmp_path / "to", "fsdp=2", config=config_of(path), spec="local")
    ours, theirs = metadata_of(tmp_path / "to"), metadata_of(path)
    assert ours.objects.keys() == theirs.objects.keys()
    assert {n: (t.dtype, t.shape) for n, t in ours.tensors.items()} == {
        n: (t.dtype, t.shape) for n, t in theirs.tensors.items()
    }
    assert {n: ours.paths[n] for n in theirs.paths} == theirs.paths


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mesh", ["tp=2,fsdp=2", "ep=2,fsdp=2"])
@pytest.mark.parametrize("spec", ["te", pytest.param("local", marks=pytest.mark.slow)])
@pytest.mark.one_in(3)
def test_another_mesh_keeps_every_bit(case: str, mesh: str, spec: str, tmp_path: Path) -> None:
    path = fixture(case)
    if "dense" in case:
        mesh = mesh.replace("ep=", "cp=")
    to_fsdp(path, tmp_path / "to", mesh, config=config_of(path), spec=spec)
    assert_same(logical_tensors(tmp_path / "to"), logical_tensors(path, config_of(path)))


@pytest.mark.parametrize(
    ("config", "mesh"),
    [*((DENSE, m) for m in MESHES), *((SPARSE, m) for m in EXPERT_MESHES), (LINEAR, "tp=2,fsdp=2")],
)
@pytest.mark.one_in(3)
def test_hugging_face_with_optimizer_comes_back(config: Any, mesh: str, tmp_path: Path) -> None:
    model = weights(config)
    source = hf_with_optimizer(tmp_path / "hf", model, config)
    to_fsdp(source, tmp_path / "fsdp", mesh)
    to_other(tmp_path / "fsdp", tmp_path / "back")
    assert_same(read_hf(tmp_path / "back" / "optimizer"), read_hf(source / "optimizer"))
    masters = {name: x.float() * (1 + 2**-12) for name, x in model.items()}
    assert_same(read_hf(tmp_path / "back"), masters)
    assert_same({n: x.bfloat16() for n, x in masters.items()}, model)


@pytest.mark.parametrize("config", [DENSE, SPARSE])
def test_weights_without_masters_keep_their_element_type(config: Any, tmp_path: Path) -> None:
    model = weights(config)
    source = write_hf(tmp_path / "hf", model, config)
    to_fsdp(source, tmp_path / "fsdp", "fsdp=2")
    assert_same(logical_tensors(tmp_path / "fsdp"), model)


@pytest.mark.parametrize(("rows", "mesh", "asked"), [
    (100, "fsdp=2", "4"), (100, "tp=2", "2"), (192, "tp=2", "32"), (256, "tp=2", ""), (128, "fsdp=3", ""),
])  # fmt: skip
def test_rows_that_a_run_would_pad_are_reported_with_the_option_that_keeps_them(
    rows: int, mesh: str, asked: str, tmp_path: Path
) -> None:
    config = DENSE | {"vocab_size": rows}
    source = write_hf(tmp_path / "hf", weights(config), config)
    notes = asked_for(source, mesh)
    assert notes == ([asked] if asked else [])
    if asked:
        tp = 2 if mesh.startswith("tp") else 1
        assert rows % (int(asked) * tp) == 0, "padding to this multiple changes nothing"


@pytest.mark.parametrize(("padded", "mesh", "asked"), [
    (132, "fsdp=2", "132"), (132, "tp=2", "66"), (128, "fsdp=2", ""), (256, "tp=2", ""), (256, "fsdp=2", "256"),
])  # fmt: skip
def test_rows_that_are_padded_are_reported_with_the_option_that_pads_so(
    padded: int, mesh: str, asked: str, tmp_path: Path
) -> None:
    config = DENSE | {"vocab_size": 99}
    source = write_hf(tmp_path / "hf", weights(config), config)
    write_torch_dist(source, tmp_path / "td", pad_to=padded)
    to_fsdp(tmp_path / "td", tmp_path / "fsdp", "fsdp=2")
    for path in ("td", "fsdp"):
        assert asked_for(tmp_path / path, mesh) == ([asked] if asked else [])
    tp = 2 if mesh.startswith("tp") else 1
    step = int(asked or 128) * tp
    assert -(-99 // step) * step == padded, "Megatron pads the tokens so"


def test_rows_that_no_run_can_cut_are_reported(tmp_path: Path) -> None:
    config = DENSE | {"vocab_size": 99}
    source = write_hf(tmp_path / "hf", weights(config), config)
    (note,) = (n for n in intarsia.plan(source, to="fsdp_dtensor", mesh="tp=2").notes if "99" in n)
    assert note.startswith("tp=2 does not divide the 99 rows of the vocabulary")
    assert asked_for(source, "tp=3") == ["1"], "3 divides them"


def asked_for(source: Path, mesh: str) -> list[str]:
    """What `--make-vocab-size-divisible-by` a plan asks for."""
    notes = intarsia.plan(source, to="fsdp_dtensor", mesh=mesh).notes
    return [n.rpartition(" ")[2] for n in notes if "--make-vocab-size-divisible-by" in n]


def test_by_way_of_dcp(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "hf", weights(SPARSE), SPARSE)
    to_fsdp(source, tmp_path / "fsdp", "ep=2,fsdp=2")
    expected = logical_tensors(tmp_path / "fsdp")
    to_other(tmp_path / "fsdp", tmp_path / "dcp", "dcp", "tp=2")
    assert formats.format_of(tmp_path / "dcp").name == "dcp"
    assert_same(logical_tensors(tmp_path / "dcp"), expected)
    to_fsdp(tmp_path / "dcp", tmp_path / "again", "ep=4")
    assert_same(logical_tensors(tmp_path / "again"), expected)


@pytest.mark.parametrize(
    ("case", "mesh", "back"),
    [
        ("fd_dense_hsdp2x2", "tp=2,pp=2", "fsdp=4"),
        ("fd_dense_tp2_fsdp2", "tp=4", "replicate=2,fsdp=2"),
        ("fd_moe_ep2_fsdp2", "tp=2,ep=2", "ep=4,fsdp=2"),
    ],
)
@pytest.mark.one_in(3)
def test_by_way_of_torch_dist(case: str, mesh: str, back: str, tmp_path: Path) -> None:
    path = fixture(case)
    expected = logical_tensors(path, config_of(path))
    to_torch_dist(path, tmp_path / "dist", mesh, config=config_of(path))
    assert formats.format_of(tmp_path / "dist").name == "torch_dist"
    to_fsdp(tmp_path / "dist", tmp_path / "again", back)
    assert_same(logical_tensors(tmp_path / "again"), expected)
    ours = formats.read_manifest(tmp_path / "again").entries.keys()
    theirs = formats.read_manifest(path).entries.keys()
    groups = "optimizer.param_to_group_meta."
    assert len([n for n in ours if n.startswith(groups)]) == len(
        [n for n in theirs if n.startswith(groups)]
    )


@pytest.mark.parametrize(
    ("source", "like", "mesh"),
    [
        ("td_dense_tp2", "fd_dense_hsdp2x2", "fsdp=2"),
        ("td_moe_tp2pp2ep2", "fd_moe_ep2_fsdp2", "ep=2,fsdp=2"),
        ("td_gdn_tp2", "fd_gdn_fsdp2_split", "fsdp=2"),
    ],
)
@pytest.mark.one_in(4)
def test_both_formats_of_one_model_are_the_same(
    source: str, like: str, mesh: str, tmp_path: Path
) -> None:
    """Megatron wrote the model in either format; ours out of the one holds what the other does."""
    path, twin = fixture(source), fixture(like)
    to_fsdp(path, tmp_path / "to", mesh, config=config_of(path), spec="local")
    assert_same(logical_tensors(tmp_path / "to"), logical_tensors(twin, config_of(twin)))
    ours, theirs = metadata_of(tmp_path / "to"), metadata_of(twin)
    kept = [n for n in theirs.tensors if not n.startswith("rng_state")]
    assert {n: ours.tensors[n].shape for n in kept} == {n: theirs.tensors[n].shape for n in kept}


def test_dcp_loads_what_is_written(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "hf", weights(DENSE), DENSE)
    to_fsdp(source, tmp_path / "fsdp", "tp=2,fsdp=2", spec="local")
    masters = read_hf(source / "optimizer")
    name = "decoder.layers.1.mlp.linear_fc1.weight_v"
    like = torch.zeros(24, 16)
    state: dict[str, Any] = {
        "model": {f"module.{name}": like},
        "optimizer": {
            "state": {
                f"module.module.module.{name}": {"exp_avg": like.clone(), "step": torch.zeros(())}
            }
        },
        "iteration": 0,
        "args": None,
    }
    dcp.load(state, checkpoint_id=next((tmp_path / "fsdp").glob("iter_*")), no_dist=True)
    up = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(state["model"][f"module.{name}"], masters[f"optimizer.master.{up}"])
    held = state["optimizer"]["state"][f"module.module.module.{name}"]
    assert torch.equal(held["exp_avg"], masters[f"optimizer.exp_avg.{up}"])
    assert held["step"] == 7.0
    assert state["iteration"] == 1
    assert isinstance(state["args"], Namespace)
    assert state["args"].tensor_model_parallel_size == 2


def test_entries_travel_and_keep_their_meaning(tmp_path: Path) -> None:
    path = fixture("fd_moe_ep2_fsdp2")
    before = formats.read_manifest(path, config_of(path))
    after = to_fsdp(path, tmp_path / "to", "ep=2,fsdp=2", config=config_of(path), spec="local")
    assert before.entries.keys() == after.entries.keys()
    held = []
    for manifest in (before, after):
        root = Path(manifest.path)
        data = {
            n: (root / e.file).read_bytes()[e.start_bytes : e.start_bytes + e.length_bytes]
            for n, e in manifest.entries.items()
        }
        held.append(data)
    assert {n: d for n, d in held[0].items() if n != "args"} == {
        n: d for n, d in held[1].items() if n != "args"
    }
    values = plain_entries({n: d for n, d in held[1].items() if n != "args"})
    assert values["iteration"] == 10
    where = "optimizer.param_to_group_meta.module.module.module.embedding.word_embeddings.weight"
    assert values[f"{where}.betas"] == (0.9, 0.999)
    common = common_of(held[1])
    groups = common["optimizer"]
    assert [g["wd_mult"] for g in groups[0]["optimizer"]["param_groups"]] == [1.0, 0.0]
    assert [g["is_expert_parallel"] for g in groups[1]["optimizer"]["param_groups"]] == [True]
    random = read_dcp(Path(after.path))["rng_state.(0, 0).0.torch_rng_state"]
    assert torch.equal(random, read_dcp(Path(before.path))["rng_state.(0, 0).0.torch_rng_state"])
