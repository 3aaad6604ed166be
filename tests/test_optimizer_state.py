"""Steps and parameter groups of optimizers, carried between torch's spellings and Megatron's."""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from transformers import GraniteMoeConfig, GraniteMoeForCausalLM, Qwen3MoeForCausalLM

import intarsia
from intarsia.errors import CoverageError, UsageError
from intarsia.format.registry import read_manifest
from intarsia.opened.entries import read_entries
from tests.checkpoints import assert_same, read_dcp, read_hf, write_dcp
from tests.distributed.trainer import CONFIG, Llama
from tests.journeys.parallelized_training import CONFIG as EXPERTS
from tests.live.megatron_fsdp_cases import fixture

pytestmark = pytest.mark.filterwarnings("ignore")

SETTINGS: dict[str, Any] = {
    "one": [({}, lambda name: True)],
    "decay last": [
        ({"weight_decay": 0.0, "lr": 0.003}, lambda name: "norm" in name),
        ({"weight_decay": 0.1}, lambda name: "norm" not in name),
    ],
    "three": [
        ({"weight_decay": 0.1}, lambda name: "mlp" in name),
        ({"lr": 0.5, "betas": (0.8, 0.9)}, lambda name: "embed" in name or "head" in name),
        ({"weight_decay": 0.0, "eps": 1e-6}, lambda name: "norm" in name or "attn" in name),
    ],
}
"""Groups of parameters: their settings, and which parameters they hold."""


def adamw(groups: str, steps: int) -> tuple[Llama, torch.optim.Optimizer]:
    torch.manual_seed(steps)
    model = Llama()
    held = [
        {"params": [p for name, p in model.named_parameters() if member(name)], **fields}
        for fields, member in SETTINGS[groups]
    ]
    optimizer = torch.optim.AdamW(held, lr=0.01)
    for _ in range(steps):
        model(torch.arange(24).reshape(2, 12)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state_of(groups: str, steps: int, flat: bool) -> dict[str, Any]:
    """A model with its optimizer, as torch's `get_optimizer_state_dict` gives it."""
    model, optimizer = adamw(groups, steps)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    return {**{name: x.detach() for name, x in model.state_dict().items()}, "optimizer": state}


def loaded(folder: Path, groups: str, flat: bool) -> dict[str, Any]:
    """What plain DCP loads into another model and optimizer of the same kind."""
    into = state_of(groups, 1, flat)
    with warnings.catch_warnings(action="ignore"):
        dcp.load(into, checkpoint_id=folder, no_dist=True)
    return into


def assert_equal(a: Any, b: Any, where: str = "") -> None:
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}.{k}")
    else:
        assert a == b, where


def values_in(folder: Path, names: list[str]) -> dict[str, Any]:
    """Objects of a DCP folder, by plain `dcp.load`."""
    into: dict[str, Any] = dict.fromkeys(names)
    with warnings.catch_warnings(action="ignore"):
        dcp.load(into, checkpoint_id=folder, no_dist=True)
    return into


def megatron_run(place: Path) -> tuple[Path, dict[str, Any]]:
    """A run in Megatron's format, in the folder `dist`: the file of its common state, and what that holds."""
    src = write_dcp(place / "src", state_of("one", 2, False))
    intarsia.convert(src, place / "dist", to="torch_dist", config=CONFIG)
    return common_state_of(place / "dist")


def common_state_of(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file of Megatron's common state, and what it holds."""
    (file,) = folder.glob("iter_*/common.pt")
    torch.serialization.add_safe_globals([Namespace])
    return file, torch.load(file)


@pytest.mark.parametrize("was", [False, True])
def test_a_run_without_the_distributed_optimizer_is_told_that_it_needs_it(
    was: bool, tmp_path: Path
) -> None:
    file, common = megatron_run(tmp_path)
    common["args"].use_distributed_optimizer = was
    torch.save(common, file)
    for optimizer, told in (("keep", not was), ("drop", False)):
        given = {"to": "torch_dist", "mesh": "tp=2", "config": CONFIG, "optimizer": optimizer}
        report = intarsia.convert(tmp_path / "dist", tmp_path / optimizer, **given)
        assert any("--use-distributed-optimizer" in note for note in report.notes) is told


@pytest.mark.parametrize("kept_as", [torch.tensor, float], ids=["a tensor", "a number"])
def test_the_step_that_an_undistributed_optimizer_keeps_beside_its_groups_is_written_into_them(
    kept_as: Any, tmp_path: Path
) -> None:
    file, common = megatron_run(tmp_path)
    state = common["optimizer"]["optimizer"]
    (step,) = {group.pop("step") for group in state["param_groups"]}
    state["state"] = {"common_step": kept_as(float(step))}
    torch.save(common, file)
    intarsia.convert(tmp_path / "dist", tmp_path / "cut", to="torch_dist", mesh="tp=2")
    _, common = common_state_of(tmp_path / "cut")
    groups = common["optimizer"]["optimizer"]["param_groups"]
    assert {group["step"] for group in groups} == {step}
    assert intarsia.verify(tmp_path / "dist", tmp_path / "cut")
    assert intarsia.verify(tmp_path / "src", tmp_path / "cut", config=CONFIG)


@pytest.mark.parametrize("flat", [True, False], ids=["by parameter", "by number"])
@pytest.mark.parametrize("groups", ["one", "decay last"])
@pytest.mark.one_in(2)
def test_torchs_groups_and_steps_come_back_from_torch_dist(
    groups: str, flat: bool, tmp_path: Path
) -> None:
    truth = state_of(groups, 3, flat)
    src = write_dcp(tmp_path / "src", truth)
    intarsia.convert(src, tmp_path / "dist", to="torch_dist", mesh="tp=2", config=CONFIG)
    assert intarsia.verify(src, tmp_path / "dist", config=CONFIG)
    intarsia.convert(tmp_path / "dist", tmp_path / "back", to="dcp", mesh="fsdp=2")
    assert_equal(loaded(tmp_path / "back", groups, flat), truth)


@pytest.mark.parametrize(
    ("groups", "way"),
    [
        ("decay last", ("torch_dist", "hf", "fsdp_dtensor", "torch_dist", "dcp")),
        ("three", ("hf", "fsdp_dtensor", "dcp")),
    ],
)
@pytest.mark.one_in(2)
def test_torchs_groups_come_back_by_way_of_every_format_that_has_words_for_them(
    groups: str, way: tuple[str, ...], tmp_path: Path
) -> None:
    truth = state_of(groups, 3, flat=True)
    here = write_dcp(tmp_path / "src", truth)
    for k, to in enumerate(way):
        there = tmp_path / f"{k}"
        intarsia.convert(here, there, to=to, config=CONFIG)
        here = there
    assert_equal(loaded(here, groups, flat=True), truth)


@pytest.mark.parametrize("flat", [True, False], ids=["by parameter", "by number"])
@pytest.mark.parametrize("case", ["td_dense_tp2", "td_dense_tp2pp2_dpresh", "fd_dense_tp2_fsdp2"])
@pytest.mark.one_in(6)
def test_a_torch_optimizer_resumes_from_megatron(case: str, flat: bool, tmp_path: Path) -> None:
    """Both of torch's spellings are there, with a step for every parameter."""
    path = fixture(case)
    config = json.loads((path / "hf_truth" / "config.json").read_text())
    intarsia.convert(path, tmp_path / "dcp", to="dcp", mesh="fsdp=2", config=config)
    weights = load_file(path / "hf_truth" / "model.safetensors")
    moments = load_file(path / "hf_truth_optimizer.safetensors")
    model = torch.nn.Module()
    for name, x in weights.items():
        owner = model
        *path_to, leaf = name.split(".")
        for part in path_to:
            if not hasattr(owner, part):
                owner.add_module(part, torch.nn.Module())
            owner = getattr(owner, part)
        owner.register_parameter(leaf, torch.nn.Parameter(torch.zeros_like(x).float()))
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decay}, {"params": rest}], lr=7.0, eps=7.0)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    if not flat:
        # Megatron's two groups have the same settings here, so they are one in torch.
        del state["param_groups"][1:]
    into = {"optimizer": state}
    dcp.load(into, checkpoint_id=tmp_path / "dcp", no_dist=True)
    held = read_dcp(tmp_path / "dcp")
    for name in weights:
        assert held[f"optimizer.state.{name}.step"] == 3.0
        assert torch.equal(
            held[f"optimizer.state.{name}.exp_avg"], moments[f"optimizer.exp_avg.{name}"]
        )
        group = (
            {k.rpartition(".")[2]: v for k, v in state.items() if f"param_groups.{name}." in k}
            if flat
            else state["param_groups"][0]
        )
        assert (group["lr"], group["eps"], group["betas"]) == (0.001, 1e-8, (0.9, 0.999))
        assert (group["weight_decay"], group["decoupled_weight_decay"]) == (0.01, True)
        assert flat or name in group["params"]


@pytest.mark.parametrize("case", ["td_dense_tp2", "td_dense_tp2pp2_dpresh", "td_moe_tp2pp2ep2"])
@pytest.mark.one_in(3)
def test_steps_of_megatrons_groups_are_logical_tensors(case: str, tmp_path: Path) -> None:
    path = fixture(case)
    config = json.loads((path / "hf_truth" / "config.json").read_text())
    with intarsia.open(path, config=config) as opened:
        trained = [n.split(".", 2)[2] for n in opened if n.startswith("optimizer.exp_avg.")]
        assert trained
        for name in trained:
            step = opened[f"optimizer.step.{name}"]
            assert (step.shape, step.dtype) == ((), torch.float32)
            assert step[...] == 3.0
    intarsia.convert(path, tmp_path / "hf", to="hf", config=config)
    held = load_file(tmp_path / "hf" / "optimizer" / "model.safetensors")
    assert {n for n in held if ".step." in n} == {f"optimizer.step.{name}" for name in trained}
    assert intarsia.verify(path, tmp_path / "hf", config=config)


@pytest.mark.parametrize("other", ["hf", "fsdp_dtensor", "dcp"])
@pytest.mark.one_in(3)
def test_verify_finds_a_step_that_differs(other: str, tmp_path: Path) -> None:
    src = write_dcp(tmp_path / "src", state_of("one", 3, flat=True))
    intarsia.convert(src, tmp_path / "dist", to="torch_dist", config=CONFIG)
    later = state_of("one", 3, flat=True)
    for name, x in later["optimizer"].items():
        if name.endswith(".step"):
            x += 1
    write_dcp(tmp_path / "later", later)
    intarsia.convert(tmp_path / "later", tmp_path / "other", to=other, config=CONFIG)
    found = intarsia.verify(tmp_path / "dist", tmp_path / "other", config=CONFIG)
    assert {d.tensor.split(".")[1] for d in found.different} == {"step"}
    assert len(found.different) == 21
    assert found.different[0].max_abs == 1.0


def test_steps_that_differ_are_no_step_of_megatrons(tmp_path: Path) -> None:
    state = state_of("one", 3, flat=True)
    state["optimizer"]["state.model.norm.weight.step"] += 1
    src = write_dcp(tmp_path / "src", state)
    with pytest.raises(CoverageError, match="the destination has one number for both"):
        intarsia.convert(src, tmp_path / "dist", to="torch_dist", config=CONFIG)


def fused_model(folder: Path) -> dict[str, torch.Tensor]:
    """A Hugging Face folder whose experts the Transformers module fuses, with steps and moments."""
    from intarsia.cli.demo_model import write_model

    write_model(folder, 0)
    weights = read_hf(folder)
    state = {f"optimizer.exp_avg.{name}": x.float() for name, x in weights.items()}
    state |= {f"optimizer.step.{name}": torch.tensor(5.0) for name in weights}
    (folder / "optimizer").mkdir()
    save_file(state, folder / "optimizer" / "model.safetensors")
    return state


@pytest.mark.parametrize("dialect", ["hf-module", "hf-fused"])
@pytest.mark.parametrize("to", ["dcp", "hf"])
@pytest.mark.one_in(4)
def test_a_fused_parameter_has_one_step(dialect: str, to: str, tmp_path: Path) -> None:
    state = fused_model(tmp_path / "hf")
    intarsia.convert(tmp_path / "hf", tmp_path / "fused", to=to, dialect=dialect)
    assert intarsia.verify(tmp_path / "hf", tmp_path / "fused")
    intarsia.convert(tmp_path / "fused", tmp_path / "same", to="dcp")
    held = read_dcp(tmp_path / "same")
    params = {n for n in held if not n.startswith("optimizer.")}
    assert {n for n in held if n.endswith(".step")} == {f"optimizer.state.{n}.step" for n in params}
    assert any("experts" in name and held[name].ndim == 3 for name in params)
    assert len(params) < len(state) // 2
    intarsia.convert(tmp_path / "same", tmp_path / "back", to="hf", dialect="hf")
    assert_same(load_file(tmp_path / "back" / "optimizer" / "model.safetensors"), state)


def test_a_fused_parameter_whose_parts_are_at_different_steps_is_refused(tmp_path: Path) -> None:
    state = fused_model(tmp_path / "hf")
    expert = next(n for n in state if n.startswith("optimizer.step.") and "experts.1." in n)
    state[expert] += 1
    save_file(state, tmp_path / "hf" / "optimizer" / "model.safetensors")
    with pytest.raises(CoverageError, match="the destination has one number for both"):
        intarsia.convert(tmp_path / "hf", tmp_path / "fused", to="dcp", dialect="hf-module")
    assert not (tmp_path / "fused").exists()


def test_settings_that_megatron_fsdp_repeats_are_held_once(tmp_path: Path) -> None:
    path = fixture("fd_dense_tp2_fsdp2")
    src = read_manifest(path, path / "hf_truth" / "config.json")
    held = read_entries(src, 1 << 30)
    assert held.keys() == src.entries.keys()
    once = sum(len(data) for data in {id(data): data for data in held.values()}.values())
    repeated = sum(map(len, held.values()))
    assert once < repeated / 10
    held.pop("args")
    with pytest.raises(UsageError, match="their part of the memory budget"):
        read_entries(src, once // 2)


def test_entries_beyond_the_memory_budget_are_refused(tmp_path: Path) -> None:
    blob = bytes(range(256)) * 40_000
    src = write_dcp(tmp_path / "src", {"w": torch.ones(4), "loader": blob})
    with pytest.raises(UsageError, match=r"8\.00 MiB.*`loader`"):
        intarsia.convert(src, tmp_path / "no", to="hf", memory="16MiB")
    assert not (tmp_path / "no").exists()
    intarsia.convert(src, tmp_path / "yes", to="dcp", memory="32MiB")
    assert values_in(tmp_path / "yes", ["loader"])["loader"] == blob


@pytest.fixture(params=["NAdam", "ASGD"])
def of_numbers(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run whose optimizer keeps single numbers of each parameter."""
    torch.manual_seed(3)
    model = Llama()
    optimizer = getattr(torch.optim, request.param)(model.parameters())
    model(torch.arange(24).reshape(2, 12)).square().mean().backward()
    optimizer.step()
    intarsia.save(tmp_path / "src", model, optimizer)
    return tmp_path / "src"


@pytest.mark.parametrize(
    ("to", "mesh", "dialect"), [("hf", "", "hf"), ("dcp", "tp=2,fsdp=3", "hf-module")]
)
@pytest.mark.one_in(2)
def test_single_numbers_of_parameters_stay_single(
    of_numbers: Path, to: str, mesh: str, dialect: str, tmp_path: Path
) -> None:
    config = None if intarsia.open(of_numbers).config else CONFIG
    intarsia.convert(of_numbers, tmp_path / "out", to=to, mesh=mesh, dialect=dialect, config=config)
    report = intarsia.verify(of_numbers, tmp_path / "out")
    assert report, report.different
    assert intarsia.digest(of_numbers, config=config).root == intarsia.digest(tmp_path / "out").root


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
@pytest.mark.one_in(2)
def test_single_numbers_have_no_place_in_megatron(
    of_numbers: Path, to: str, tmp_path: Path
) -> None:
    config = None if intarsia.open(of_numbers).config else CONFIG
    said = r"`optimizer\.(mu_product|eta)\.model\.\S+` is a single number, and {} holds .* \[\d+, \d+\][\s\S]*--optimizer drop"
    with pytest.raises(CoverageError, match=said.format(to)):
        intarsia.convert(of_numbers, tmp_path / "out", to=to, config=config)
    intarsia.convert(of_numbers, tmp_path / "out", to=to, config=config, optimizer="drop")


@pytest.mark.parametrize("kind", ["exp_avg", "own"])
@pytest.mark.parametrize("shape", ["transposed", "factor"])
def test_state_of_another_shape_is_kept_or_refused(shape: str, kind: str, tmp_path: Path) -> None:
    """Without a check, transposed state would be cut and fused as if it had its parameter's shape."""
    torch.manual_seed(3)
    model = {name: p.detach() for name, p in Llama().named_parameters()}
    sizes = {
        name: p.shape[::-1] if shape == "transposed" else p.shape[:1] for name, p in model.items()
    }
    state = {name: {kind: torch.randn(size)} for name, size in sizes.items()}
    groups = [{"params": [*model], "lr": 0.01}]
    src = tmp_path / "src"
    dcp.save({"model": model, "optim": {"state": state, "param_groups": groups}}, checkpoint_id=src)
    if kind == "own":
        intarsia.convert(src, tmp_path / "hf", to="hf", dialect="hf", config=CONFIG)
        held = load_file(tmp_path / "hf" / "optimizer" / "model.safetensors")
        for name, kinds in state.items():
            assert_same({"": held[f"optimizer.{kind}.{name}"]}, {"": kinds[kind]})
    for to in ("torch_dist", "fsdp_dtensor", *(["hf"] if kind == "exp_avg" else [])):
        dialect = "hf" if to == "hf" else None
        with pytest.raises(CoverageError, match=rf"`optimizer\.{kind}\..*` has shape \[.*{to}"):
            intarsia.convert(src, tmp_path / to, to=to, mesh="tp=2", config=CONFIG, dialect=dialect)


def test_settings_that_are_numbers_of_numpy_reach_megatron(tmp_path: Path) -> None:
    model = {name: p.detach() for name, p in Llama().named_parameters()}
    kinds = ("exp_avg", "exp_avg_sq")
    state = {name: {kind: torch.ones_like(p) for kind in kinds} for name, p in model.items()}
    group = {"params": [*model], "lr": np.float64(0.03), "weight_decay": np.float32(0.25)}
    src = tmp_path / "src"
    saved = {"model": model, "optim": {"state": state, "param_groups": [group]}}
    dcp.save(saved, checkpoint_id=src)
    intarsia.convert(src, tmp_path / "td", to="torch_dist", config=CONFIG)
    torch.serialization.add_safe_globals([Namespace])
    common = torch.load(tmp_path / "td" / "iter_0000001" / "common.pt", weights_only=True)
    groups = common["optimizer"]["optimizer"]["param_groups"]
    assert {(g["lr"], g["weight_decay"]) for g in groups} == {(0.03, 0.25)}


def test_settings_that_are_no_plain_values_are_kept_or_named_as_left_out(tmp_path: Path) -> None:
    """A set, a type and a list with one: hf keeps their bytes, and Megatron's groups have no place for them."""
    model = {name: p.detach() for name, p in Llama().named_parameters()}
    state = {name: {"exp_avg": torch.ones_like(p)} for name, p in model.items()}
    odd = {"tags": {1, 2}, "kind": torch.float32, "each": [1, torch.float16]}
    src, other = tmp_path / "src", tmp_path / "other"
    for where, changed in ((src, {}), (other, {"kind": torch.bfloat16})):
        group = {"params": [*model], "lr": 0.03, **odd, **changed}
        saved = {"model": model, "optim": {"state": state, "param_groups": [group]}}
        dcp.save(saved, checkpoint_id=where)
    names = {f"optimizer.param_groups.0.{field}" for field in odd}
    report = intarsia.convert(src, tmp_path / "td", to="torch_dist", config=CONFIG)
    (note,) = (note for note in report.notes if "left out" in note)
    assert note.startswith("3 objects")
    assert all(name in note for name in names)
    assert "left out" not in str(intarsia.convert(src, tmp_path / "hf", to="hf", config=CONFIG))
    for there, verdict in (("td", "not compared"), ("hf", "equal")):
        found = intarsia.verify(src, tmp_path / there, config=CONFIG)
        assert found
        assert {x.name for x in found.beside if x.verdict == verdict} >= names
    found = intarsia.verify(src, other, config=CONFIG)
    assert [x.name for x in found.beside if x.counts] == ["optimizer.param_groups.0.kind"]


def with_fused_experts(name: str, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(EXPERTS)
    return model, getattr(torch.optim, name)(model.parameters(), lr=0.01)


@pytest.mark.parametrize("name", ["NAdam", "ASGD"])
@pytest.mark.one_in(2)
def test_a_single_number_of_fused_experts_is_there_for_each_of_them(
    name: str, tmp_path: Path
) -> None:
    model, optimizer = with_fused_experts(name, 3)
    for _ in range(2):
        model(torch.arange(24).reshape(2, 12)).logits.square().mean().backward()
        optimizer.step()
    intarsia.save(tmp_path / "saved", model, optimizer)
    for there, src, to, dialect in [
        ("hf", "saved", "hf", "hf"), ("back", "hf", "dcp", "hf-module"), ("same", "saved", "dcp", "same"),
    ]:  # fmt: skip
        intarsia.convert(tmp_path / src, tmp_path / there, to=to, dialect=dialect)
    keys = {*dcp.FileSystemReader(tmp_path / "saved").read_metadata().state_dict_metadata}
    for there in ("back", "same"):
        found = dcp.FileSystemReader(tmp_path / there).read_metadata().state_dict_metadata
        assert keys == {*found}
    for there in ("saved", "hf", "back", "same"):
        other, again = with_fused_experts(name, 4)
        intarsia.load(tmp_path / there, into=other, optimizer=again)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)
            for kind, value in optimizer.state[p].items():
                assert torch.equal(value, again.state[q][kind]), (there, kind)


@pytest.fixture
def of_each_expert(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """The file of NAdam's state in a checkpoint that has each expert by itself, and what it holds."""
    model, optimizer = with_fused_experts("NAdam", 3)
    model(torch.arange(24).reshape(2, 12)).logits.square().mean().backward()
    optimizer.step()
    intarsia.save(tmp_path / "saved", model, optimizer)
    intarsia.convert(tmp_path / "saved", tmp_path / "hf", to="hf", dialect="hf")
    file = tmp_path / "hf" / "optimizer" / "model.safetensors"
    return file, load_file(file)


def test_single_numbers_of_experts_that_differ_are_not_fused(
    of_each_expert: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    file, held = of_each_expert
    held["optimizer.mu_product.model.layers.1.mlp.experts.2.up_proj.weight"] *= 2
    save_file(held, file)
    with pytest.raises(
        CoverageError, match=r"mu_product.* differ, and the destination has one number"
    ):
        intarsia.convert(tmp_path / "hf", tmp_path / "out", to="dcp", dialect="hf-module")
    model, optimizer = with_fused_experts("NAdam", 4)
    with pytest.raises(intarsia.IntarsiaError, match=r"mu_product.* and one parameter holds them"):
        intarsia.load(tmp_path / "hf", into=model, optimizer=optimizer)


@pytest.mark.parametrize("lost", ["one", "all"])
@pytest.mark.parametrize("name", ["gate_proj", "q_proj"])
def test_a_moment_that_lost_its_shape_is_no_single_number(
    lost: str, name: str, of_each_expert: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    file, held = of_each_expert
    moments = [n for n in held if n.startswith("optimizer.exp_avg.") and name in n]
    held |= {n: torch.tensor(0.5) for n in (moments if lost == "all" else moments[:1])}
    save_file(held, file)
    for dialect in ("hf", "hf-module"):
        with pytest.raises(intarsia.IntarsiaError, match=r"exp_avg"):
            intarsia.convert(tmp_path / "hf", tmp_path / "out", to="dcp", dialect=dialect)


def test_state_goes_by_the_names_of_the_hub_where_transformers_alone_knows_these(
    tmp_path: Path,
) -> None:
    def new(seed: int) -> tuple[GraniteMoeForCausalLM, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        sizes: dict[str, Any] = {
            "vocab_size": 32, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 3,
        }  # fmt: skip
        model = GraniteMoeForCausalLM(GraniteMoeConfig(**sizes))
        return model, torch.optim.Adamax(model.parameters())

    model, optimizer = new(3)
    model(torch.arange(24).reshape(2, 12)).logits.square().mean().backward()
    optimizer.step()
    intarsia.save(tmp_path / "saved", model, optimizer)
    intarsia.convert(tmp_path / "saved", tmp_path / "hf", to="hf", dialect="hf")
    read = GraniteMoeForCausalLM.from_pretrained(tmp_path / "hf")
    assert_same(read.state_dict(), model.state_dict())
    other, again = new(4)
    intarsia.load(tmp_path / "hf", into=other, optimizer=again)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        for kind, value in optimizer.state[p].items():
            assert torch.equal(value, again.state[q][kind])
