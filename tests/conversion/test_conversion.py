"""Hugging Face to DCP and back, bit by bit, for every fixture and several meshes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import intarsia
from intarsia.errors import CoverageError, UsageError
from intarsia.format.folder.side_files import DIGESTS
from tests.checkpoints import (
    FAMILIES,
    assert_same,
    files_of,
    fixture,
    leftovers,
    llama_config,
    model,
    normal_tensor,
    qwen3_config,
    random_tensor,
    read_dcp,
    read_hf,
    shapes,
    write_hf,
)
from tests.checkpoints import intarsia as cli

MESHES = ["tp=2,fsdp=3", "ep=4", "pp=2", "fsdp=2,replicate=2", "tp=2,ep=2,pp=2,cp=2,etp=2"]
CONFIG = llama_config()
SIDES = ("config.json", "tokenizer_config.json", "merges.txt")


def there_and_back(src: Path, root: Path, mesh: str) -> None:
    """Convert to DCP and back, and check each step with torch and safetensors alone."""
    truth = read_hf(src)
    there = intarsia.convert(src, root / "dcp", to="dcp", mesh=mesh)
    assert there.plan.proven
    assert_same(read_dcp(root / "dcp"), truth)
    intarsia.convert(root / "dcp", root / "back", to="hf")
    assert_same(read_hf(root / "back"), truth)
    for other in ("dcp", "back"):
        found = intarsia.verify(src, root / other)
        assert found.equal, found.as_json()
        assert found.elements >= sum(x.numel() for x in truth.values())
    assert not leftovers(root)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.one_in(9)
def test_a_checkpoint_of_transformers_arrives_bit_by_bit(
    tmp_path: Path, family: str, mesh: str
) -> None:
    there_and_back(fixture(family), tmp_path, mesh)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("make", [llama_config, qwen3_config])
@pytest.mark.one_in(3)
def test_a_model_of_odd_sizes_arrives_bit_by_bit(
    tmp_path: Path, make, files: int, mesh: str
) -> None:
    config = make()
    tensors = {
        name: random_tensor(shape, torch.bfloat16, k)
        for k, (name, shape) in enumerate(shapes(config).items())
    }
    there_and_back(write_hf(tmp_path / "hf", tensors, config, files), tmp_path, mesh)


def test_one_mesh_becomes_another_without_a_detour(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    here = src
    for k, mesh in enumerate(MESHES):
        there = tmp_path / str(k)
        intarsia.convert(here, there, to="dcp", mesh=mesh)
        assert_same(read_dcp(there), model(CONFIG))
        here = there


def test_the_rank_of_a_file_holds_what_the_mesh_gives_it(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2,pp=3")
    with intarsia.open(src) as whole:
        for rank in range(6):
            shard = whole.shard("tp=2,pp=3", rank)
            layers = {name.split(".")[2] for name in shard if name.startswith("model.layers")}
            assert layers == {str(rank // 2)}
            gate = f"model.layers.{rank // 2}.mlp.gate_proj.weight"
            half = slice(0, 17) if rank % 2 == 0 else slice(17, 33)
            assert shard[gate].equal(model(CONFIG)[gate][half])


def test_small_files_are_copied_byte_by_byte_in_both_directions(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    (src / "pytorch_model.bin").write_bytes(b"weights of another format")
    (src / ".hidden").write_bytes(b"no part of the checkpoint")
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2")
    intarsia.convert(tmp_path / "dcp", tmp_path / "back", to="hf")
    for folder in ("dcp", "back"):
        found = files_of(tmp_path / folder)
        for side in SIDES:
            assert found[side] == (src / side).read_bytes()
        assert "pytorch_model.bin" not in found
        assert ".hidden" not in found
    assert sorted(files_of(tmp_path / "back")) == sorted([*SIDES, DIGESTS, "model.safetensors"])


def test_a_configuration_that_was_given_is_kept_inside(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG))
    (tmp_path / "given.json").write_text(json.dumps(CONFIG))
    assert cli("convert", src, tmp_path / "dcp", "--to", "dcp", "--mesh", "tp=2",
               "--config", tmp_path / "given.json").status == 0  # fmt: skip
    assert json.loads((tmp_path / "dcp" / "config.json").read_text()) == CONFIG
    assert intarsia.open(tmp_path / "dcp").family == "llama"
    assert intarsia.open(tmp_path / "dcp").config == CONFIG


@pytest.mark.parametrize("asked", ["bf16", "float16", "torch.float32", "F64", "fp32"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.one_in(3)
def test_a_cast_is_torchs_and_touches_floating_weights_only(
    tmp_path: Path, stored: torch.dtype, asked: str
) -> None:
    dtype = {
        "bf16": torch.bfloat16, "float16": torch.float16, "torch.float32": torch.float32,
        "F64": torch.float64, "fp32": torch.float32,
    }[asked]  # fmt: skip
    tensors = model(CONFIG, stored)
    others = {
        "ids": torch.arange(9),
        "mask": torch.tensor([True, False]),
        "scale": random_tensor((6,), torch.float8_e4m3fn),
        "optimizer.exp_avg.model.norm.weight": normal_tensor((20,), stored),
    }
    src = write_hf(tmp_path / "hf", tensors | others, CONFIG)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2,fsdp=2", dtype=asked)
    wanted = {name: x.to(dtype) for name, x in tensors.items()} | others
    wanted["optimizer.state.model.norm.weight.exp_avg"] = wanted.pop(
        "optimizer.exp_avg.model.norm.weight"
    )
    assert_same(read_dcp(tmp_path / "dcp"), wanted)
    found = intarsia.verify(src, tmp_path / "dcp")
    assert found.equal == (stored == dtype)
    if stored != dtype:
        assert {d.tensor for d in found.different} == set(tensors)
        assert all("beyond rounding" not in d.diagnosis for d in found.different)


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64", "nonsense", ""])
def test_weights_are_not_cast_to_what_is_no_float(tmp_path: Path, dtype: str) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    answer = cli("convert", src, tmp_path / "out", "--to", "hf", "--dtype", dtype)
    assert answer.status == 2
    assert not (tmp_path / "out").exists()
    assert cli("plan", src, "--to", "hf", "--dtype", dtype).status == 2


@pytest.mark.parametrize("size", ["4kB", "10000", "1B"])
def test_large_models_are_cut_into_files_with_an_index(tmp_path: Path, size: str) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    answer = cli("convert", src, tmp_path / "out", "--to", "hf", "--max-shard-size", size)
    assert answer.status == 0
    truth = model(CONFIG)
    assert_same(read_hf(tmp_path / "out"), truth)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert files == sorted(set(index["weight_map"].values()))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    nbytes = {name: x.numel() * x.element_size() for name, x in truth.items()}
    assert index["metadata"]["total_size"] == sum(nbytes.values())
    limit = {"4kB": 4000, "10000": 10_000, "1B": 1}[size]
    for file in files:
        held = [name for name, where in index["weight_map"].items() if where == file]
        assert len(held) == 1 or sum(nbytes[name] for name in held) <= limit
    assert intarsia.verify(src, tmp_path / "out")


def test_transformers_loads_what_we_wrote(tmp_path: Path) -> None:
    import transformers

    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2,fsdp=3")
    intarsia.convert(tmp_path / "dcp", tmp_path / "out", to="hf", max_shard_size="20kB")
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert_same({n: x for n, x in made.state_dict().items() if n in shapes(CONFIG)}, model(CONFIG))


def test_a_destination_that_exists_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_bytes(b"data")
    answer = cli("convert", src, out, "--to", "dcp")
    assert answer.status == 2
    assert "exists" in answer.err
    assert files_of(out) == {"precious": b"data"}
    assert not leftovers(tmp_path)
    assert cli("convert", src, out, "--to", "dcp", "--overwrite").status == 2
    assert files_of(out) == {"precious": b"data"}
    (out / "precious").unlink()
    assert cli("convert", src, out, "--to", "dcp").status == 0
    assert cli("convert", src, out, "--to", "dcp", "--overwrite").status == 0
    assert_same(read_dcp(out), model(CONFIG))
    assert not leftovers(tmp_path)


def test_an_overwrite_that_is_not_proven_keeps_the_old(tmp_path: Path) -> None:
    tensors = model(CONFIG)
    del tensors["model.norm.weight"]
    src = write_hf(tmp_path / "hf", tensors, CONFIG)
    out = write_hf(tmp_path / "out", model(CONFIG), CONFIG)
    before = files_of(out)
    with pytest.raises(CoverageError):
        intarsia.convert(src, out, to="hf", overwrite=True)
    assert files_of(out) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_checkpoint_does_not_overwrite_itself(tmp_path: Path, overwrite: bool) -> None:
    src = write_hf(tmp_path / "parent" / "hf", model(CONFIG), CONFIG)
    (tmp_path / "link").symlink_to(src)
    before = files_of(tmp_path)
    for start, out in (
        (src, src),
        (src, tmp_path / "link"),
        (src, src / "." / "sub" / ".."),
        (src / "model.safetensors", src),
        (src, src.parent),
        (src / "model.safetensors", src.parent),
    ):
        with pytest.raises(UsageError):
            intarsia.convert(start, out, to="hf", overwrite=overwrite)
        assert files_of(tmp_path) == before


def test_a_destination_may_lie_inside_its_source(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, src / "dcp", to="dcp", mesh="tp=2")
    assert_same(read_dcp(src / "dcp"), model(CONFIG))
    assert_same(read_hf(src), model(CONFIG))


def test_planning_and_a_dry_run_write_nothing(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    before = files_of(tmp_path)
    plan = intarsia.plan(src, to="dcp", mesh="tp=2")
    assert plan.proven
    answer = cli("convert", src, tmp_path / "out", "--to", "dcp", "--mesh", "tp=2", "--dry-run")
    assert answer.status == 0
    assert files_of(tmp_path) == before


def test_a_plan_states_what_the_conversion_then_does(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    plan = intarsia.plan(src, to="dcp", mesh="tp=2,fsdp=3")
    report = intarsia.convert(src, tmp_path / "out", to="dcp", mesh="tp=2,fsdp=3")
    assert report.plan.as_json() == plan.as_json()
    total = sum(x.numel() * x.element_size() for x in model(CONFIG).values())
    assert plan.write_bytes == plan.needed_bytes == total
    assert total <= plan.read_bytes <= 1.5 * total
    assert report.seconds > 0
    assert report.peak_rss_bytes > 1 << 20


def test_an_unknown_wish_is_refused(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    for options in (
        {"to": "gguf"},
        {"to": "hf", "dialect": "klingon"},
        {"to": "hf", "optimizer": "maybe"},
        {"to": "hf", "max_shard_size": 0},
        {"to": "hf", "memory": "1kB"},
        {"to": "dcp", "mesh": "tp=0"},
    ):
        with pytest.raises(UsageError):
            intarsia.convert(src, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()


def test_experts_fused_by_the_module_and_one_by_one_are_the_same_weights(tmp_path: Path) -> None:
    src = fixture("qwen3_moe")
    fused = tmp_path / "module"
    fused.mkdir()
    shutil.copy(src / "module.safetensors", fused / "model.safetensors")
    shutil.copy(src / "config.json", fused / "config.json")
    found = intarsia.verify(src, fused)
    assert found.equal, found.as_json()
    intarsia.convert(fused, tmp_path / "dcp", to="dcp", mesh="ep=4,tp=2")
    assert intarsia.verify(src, tmp_path / "dcp")
    intarsia.convert(tmp_path / "dcp", tmp_path / "hf", to="hf", dialect="hf")
    assert_same(read_hf(tmp_path / "hf"), load_file(src / "model.safetensors"))
