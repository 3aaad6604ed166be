"""Loading into models and state dicts in one process: names, shapes, types, ties, buffers, memory."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import intarsia
from intarsia.errors import CoverageError, LayoutError, UsageError
from intarsia.format.dcp.metadata import read_metadata
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.mesh import Box
from intarsia.run.budget import Budget
from tests.distributed.small_model import Small, build, everything, optimizer_of, step
from tests.fixtures import FIXTURES

HUB = sorted(p.parent.name for p in FIXTURES.glob("hf/*/module.safetensors"))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    folder = tmp_path / "stored"
    folder.mkdir()
    save_file(build(1, "").state_dict(), folder / "model.safetensors")
    return folder


def transformers_model(folder: Path, *, meta: bool = True, dtype: Any = torch.float32) -> Any:
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta" if meta else "cpu"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


@pytest.mark.parametrize("name", HUB)
def test_a_transformers_model_on_meta_becomes_what_transformers_loads(name: str) -> None:
    folder = FIXTURES / "hf" / name
    model = transformers_model(folder)
    intarsia.load(folder, into=model)
    truth = load_file(folder / "module.safetensors")
    state = model.state_dict()
    assert {n for n in state if n in truth and not torch.equal(state[n], truth[n])} == set()
    assert state.keys() <= truth.keys()
    told = load_file(folder / "reference_logits.safetensors")
    with torch.no_grad():
        found = model.eval()(told.pop("input_ids")).logits
    # Computed on another machine, whose sums of products round differently.
    assert torch.allclose(found, next(iter(told.values())), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("form", ["torch_dist", "fsdp_dtensor", "dcp"])
def test_every_format_fills_a_model_alike(tmp_path: Path, form: str) -> None:
    folder = FIXTURES / "hf" / "qwen3_moe"
    mesh = (
        {"fsdp": 2}
        if form == "fsdp_dtensor"
        else {"tp": 2, "ep": 2}
        if form == "torch_dist"
        else {"fsdp": 3}
    )
    intarsia.convert(folder, tmp_path / form, to=form, mesh=mesh)
    model = transformers_model(folder)
    intarsia.load(tmp_path / form, into=model)
    truth = load_file(folder / "module.safetensors")
    assert all(torch.equal(x, truth[n]) for n, x in model.state_dict().items())


def test_a_model_without_its_head_and_one_in_wrappers_are_filled(tmp_path: Path) -> None:
    folder = FIXTURES / "hf" / "qwen3_moe"
    truth = load_file(folder / "module.safetensors")
    model = transformers_model(folder, meta=False)
    intarsia.load(folder, into=model.model, strict=False)
    assert torch.equal(model.model.norm.weight, truth["model.norm.weight"])
    wrapped = nn.ModuleDict({"module": transformers_model(folder, meta=False)})
    intarsia.load(folder, into=wrapped)
    assert torch.equal(wrapped["module"].lm_head.weight, truth["lm_head.weight"])


def test_tied_weights_of_a_model_on_meta_stay_one_tensor() -> None:
    folder = FIXTURES / "hf" / "qwen3"
    model = transformers_model(folder)
    assert model.config.tie_word_embeddings
    intarsia.load(folder, into=model)
    assert model.lm_head.weight is model.model.embed_tokens.weight


class Tied(nn.Module):
    """An embedding and a head that are one parameter."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight if tied else self.head.weight


@pytest.mark.parametrize("kept", ["embed.weight", "head.weight"])
def test_a_tied_tensor_that_is_stored_once_fills_both_names(tmp_path: Path, kept: str) -> None:
    """As `save_model` of safetensors leaves it, under either name."""
    rows = torch.randn(7, 4)
    save_file({kept: rows}, tmp_path / "model.safetensors")
    with torch.device("meta"):
        empty = Tied()
    for model in (empty, Tied()):
        report = intarsia.load(tmp_path, into=model)
        assert report.complete
        assert model.head.weight is model.embed.weight
        assert torch.equal(model.embed.weight, rows)
    state = Tied().state_dict()
    intarsia.load(tmp_path, into=state)
    assert torch.equal(state["head.weight"], rows)
    part = {"embed.weight": state["embed.weight"], "head.weight": state["embed.weight"][:, :3]}
    for other in (Tied(tied=False), part):
        with pytest.raises(CoverageError, match="1 of 2 tensors of the model have no source"):
            intarsia.load(tmp_path, into=other)


def test_a_state_dict_is_filled_in_place_and_by_nested_names(stored: Path) -> None:
    truth = load_file(stored / "model.safetensors")
    state = {n: torch.empty_like(x) for n, x in truth.items()}
    memory = {n: x.data_ptr() for n, x in state.items()}
    intarsia.load(stored, into=state)
    assert all(torch.equal(state[n], truth[n]) and state[n].data_ptr() == memory[n] for n in truth)
    nested = {"embed": {"weight": torch.empty(37, 12)}}
    intarsia.load(stored, into=nested, strict=False)
    assert torch.equal(nested["embed"]["weight"], truth["embed.weight"])


def test_memory_with_gaps_is_filled_too(stored: Path) -> None:
    truth = load_file(stored / "model.safetensors")["embed.weight"]
    held = torch.zeros(12, 74)[:, ::2].T
    intarsia.load(stored, into={"embed.weight": held}, strict=False)
    assert torch.equal(held, truth)


def test_a_tensor_without_a_source_is_named(stored: Path) -> None:
    model = build(2, "")
    model.register_parameter("more", nn.Parameter(torch.zeros(3)))
    with pytest.raises(CoverageError, match=r"1 of 18 tensors of the model have no source.*more"):
        intarsia.load(stored, into=model)


def test_a_tensor_that_the_model_lacks_is_refused_unless_unwanted(stored: Path) -> None:
    model = build(2, "")
    del model.spare
    with pytest.raises(CoverageError, match=r"1 tensors of .* are not in the model: spare"):
        intarsia.load(stored, into=model)
    assert intarsia.load(stored, into=model, strict=False).unused == ["spare"]


def test_weights_that_a_run_saved_beside_the_model_are_refused_with_the_section_that_leaves_them_out(
    tmp_path: Path,
) -> None:
    trained, fresh = build(1, ""), build(2, "")
    beside = {"step": torch.tensor(7), "scale": torch.tensor(0.5)}
    dcp.save({"model": trained.state_dict(), "train_state": beside}, checkpoint_id=tmp_path / "s")
    with pytest.raises(CoverageError, match=r"2 tensors of .* are not in the model") as refused:
        intarsia.load(tmp_path / "s", fresh)
    assert "load with section='model'" in str(refused.value)
    assert intarsia.load(tmp_path / "s", fresh, section="model").complete
    held = fresh.state_dict()
    assert all(torch.equal(held[name], x) for name, x in trained.state_dict().items())


@pytest.mark.parametrize("keyed", [True, False])
def test_counters_that_a_run_saved_beside_the_model_are_named_and_left(
    tmp_path: Path, keyed: bool
) -> None:
    trained, fresh = build(1, ""), build(2, "")
    beside = {"train_state": {"step": torch.tensor(7), "tokens": torch.tensor(99)}}
    state = {"model": trained.state_dict()} if keyed else trained.state_dict()
    dcp.save({**state, **beside}, checkpoint_id=tmp_path / "s")
    report = intarsia.load(tmp_path / "s", fresh)
    assert any("train_state.step, train_state.tokens" in note for note in report.notes)
    held = fresh.state_dict()
    assert all(torch.equal(held[name], x) for name, x in trained.state_dict().items())
    wanted = {"train_state": {"step": torch.tensor(0)}}
    intarsia.load(tmp_path / "s", wanted, strict=False)
    assert wanted["train_state"]["step"] == 7


def test_whole_numbers_among_the_names_of_a_model_are_its_own(tmp_path: Path) -> None:
    more = {"tokens.seen": torch.tensor(7), "tokens._extra_state": b"state"}
    dcp.save({**build(1, "").state_dict(), **more}, checkpoint_id=tmp_path / "s")
    with pytest.raises(CoverageError, match=r"1 tensors of .* are not in the model: tokens.seen"):
        intarsia.load(tmp_path / "s", build(2, ""), strict=True)


def test_another_shape_is_refused_with_both(stored: Path) -> None:
    with pytest.raises(LayoutError, match=r"plain tensor of \[4, 12\], .* has \[3, 12\]"):
        intarsia.load(stored, into={"spare": torch.empty(4, 12)}, strict=False)


def test_another_floating_point_type_is_rounded_and_told(stored: Path) -> None:
    truth = load_file(stored / "model.safetensors")["embed.weight"]
    held = torch.empty(37, 12, dtype=torch.bfloat16)
    report = intarsia.load(stored, into={"embed.weight": held}, strict=False)
    assert torch.equal(held, truth.bfloat16())
    assert report.cast == ["embed.weight"]
    assert "rounded" in report.notes[0]
    with pytest.raises(LayoutError, match="BF16 in the model and F32"):
        intarsia.load(stored, into={"embed.weight": held}, strict=False, cast=False)


def test_numbers_are_never_cast_to_whole_ones(stored: Path) -> None:
    with pytest.raises(LayoutError, match="I32 in the model and F32"):
        intarsia.load(stored, into={"spare": torch.zeros(3, 12, dtype=torch.int32)}, strict=False)
    with pytest.raises(LayoutError, match="F32 in the model and I64"):
        intarsia.load(stored, into={"seen": torch.zeros(())}, strict=False)


def test_a_truncated_file_is_named(stored: Path) -> None:
    file = stored / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(intarsia.FormatError, match=r"model\.safetensors"):
        intarsia.load(stored, into=build(1, ""))


@pytest.mark.parametrize("when", ["before", "after the first bytes"])
def test_what_fails_says_whether_the_model_may_have_been_changed(
    stored: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "window_bytes", 64)
    file, model = stored / "model.safetensors", build(2, "")
    before = {name: x.clone() for name, x in model.state_dict().items()}

    def cut_off(*_: object) -> None:
        os.truncate(file, file.stat().st_size - 4)

    if when == "before":
        cut_off()
    with pytest.raises(intarsia.FormatError) as told:
        intarsia.load(stored, into=model, workers=1, progress=cut_off)
    same = all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert same == (when == "before")
    assert ("the model may be changed in part" in str(told.value)) != same


def test_local_shards_are_named_by_a_place(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = {
        "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 12, "vocab_size": 10, "tie_word_embeddings": False,
    }  # fmt: skip
    from intarsia.family import table_for

    table = table_for(config)
    assert table is not None
    weights = {
        n: torch.randn(shape) for n, shape in table.logical.items() if n not in table.optional
    }
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    down, up = "model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.up_proj.weight"
    held = {down: torch.empty(8, 6), up: torch.empty(6, 8), "model.norm.weight": torch.empty(8)}
    intarsia.load(tmp_path, into=held, mesh={"tp": 2}, rank=1, strict=False)
    assert torch.equal(held[down], weights[down][:, 6:])
    assert torch.equal(held[up], weights[up][6:])
    with pytest.raises(LayoutError, match=r"rank 1 of tp=2 holds \[8, 6\] of \[8, 12\]"):
        intarsia.load(
            tmp_path, into={down: torch.empty(8, 3)}, mesh={"tp": 2}, rank=1, strict=False
        )


def test_a_buffer_that_nothing_tells_of_stays_on_meta_and_is_named(stored: Path) -> None:
    model = build(1, "", meta=True)
    model.register_buffer("table", torch.empty(3, device="meta"), persistent=False)
    report = intarsia.load(stored, into=model, strict=False)
    assert model.table.is_meta
    assert [*report.kept] == ["table"]
    assert "kept     table: it is on `meta`" in str(report)


def test_an_optimizer_of_parameters_that_left_the_model_is_refused(stored: Path) -> None:
    model = build(1, "", meta=True)
    optimizer = optimizer_of(model)
    with pytest.raises(UsageError, match="parameter 0 of group 0"):
        intarsia.load(_trained(stored.parent), into=model, optimizer=optimizer)


def test_a_checkpoint_without_optimizer_state_says_so(stored: Path) -> None:
    model = build(1, "")
    with pytest.raises(CoverageError, match="holds no optimizer state"):
        intarsia.load(stored, into=model, optimizer=optimizer_of(model))


def _trained(folder: Path) -> Path:
    model = build(1, "")
    optimizer = optimizer_of(model, lr=0.5)
    step(model, optimizer, 0)
    intarsia.save(folder / "trained", model, optimizer)
    return folder / "trained"


def test_a_parameter_that_was_never_stepped_has_no_state_afterwards(tmp_path: Path) -> None:
    path = _trained(tmp_path)
    model = build(2, "")
    optimizer = optimizer_of(model)
    step(model, optimizer, 1)
    optimizer.state[model.spare] = {"step": torch.tensor(1.0)}
    report = intarsia.load(path, into=model, optimizer=optimizer)
    assert report.never_stepped == ["spare"]
    assert model.spare not in optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert float(optimizer.state[model.head.weight]["step"]) == 1.0


def test_a_moment_that_lacks_elements_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = _trained(tmp_path)
    file = path / ".metadata"
    metadata = read_metadata(file.read_bytes(), "here")
    name = "optimizer.state.head.weight.exp_avg"
    record = metadata.tensors[name]
    (whole,) = record.chunks
    rows, columns = whole.box.shape
    half = replace(whole, box=Box.whole((rows // 2, columns)))
    metadata.tensors[name] = replace(record, chunks=(half,))
    file.write_bytes(write_metadata(metadata))
    model = build(2, "")
    before = {n: x.clone() for n, x in model.state_dict().items()}
    with pytest.raises(
        CoverageError, match=r"`optimizer.state.head.weight.exp_avg` do not tile it: 228 of 444"
    ):
        intarsia.load(path, into=model, optimizer=optimizer_of(model))
    assert all(before[n].equal(x) for n, x in model.state_dict().items())


def test_a_parameter_without_elements_needs_neither_source_nor_state(tmp_path: Path) -> None:
    path = _trained(tmp_path)
    model = build(2, "")
    model.register_parameter("empty", nn.Parameter(torch.empty(0)))
    optimizer = optimizer_of(model)
    assert "empty" not in intarsia.load(path, into=model, optimizer=optimizer).never_stepped


def test_state_comes_back_whatever_a_parameter_is_called(tmp_path: Path) -> None:
    names = ("a\nb", "\n", "a/b", "state", "step", "ü `x`", "param", "%s {}")

    def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Module()
        for name in names:
            model.register_parameter(name, nn.Parameter(torch.randn(3, 2)))
        optimizer = torch.optim.AdamW(model.parameters())
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
        return model, optimizer

    (model, optimizer), (again, resumed) = made(1), made(2)
    intarsia.save(tmp_path / "saved", model, optimizer)
    assert intarsia.load(tmp_path / "saved", again, resumed).complete
    for (name, p), q in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q), name
        assert resumed.state[q].keys() == optimizer.state[p].keys(), name
        for kind, value in optimizer.state[p].items():
            assert torch.equal(value, resumed.state[q][kind]), (name, kind)


def test_state_whose_kind_has_no_name_of_ours_is_not_left_out_in_silence(tmp_path: Path) -> None:
    """Torch saves it under any key of the state, as `block_0/factor`."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    state = {name: {"block_0/factor": torch.ones(3)} for name, _ in model.named_parameters()}
    groups = [{"params": ["weight", "bias"], "lr": 0.1}]
    path = tmp_path / "saved"
    dcp.save({"model": model.state_dict(), "optimizer": {"state": state, "param_groups": groups}}, checkpoint_id=path)  # fmt: skip
    with pytest.raises(
        CoverageError, match=r"not in the model: optimizer\.state\.bias\.block_0/factor"
    ):
        intarsia.load(path, model, optimizer)
    found = intarsia.load(path, model, optimizer, strict=False)
    assert len(found.unused) == 2
    assert intarsia.load(path, model).complete, "weights alone were asked for"


def test_two_optimizers_of_one_model_each_keep_their_own(tmp_path: Path) -> None:
    """One loads after the other, as with a matrix optimizer beside AdamW."""
    model = Small()
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "spare" not in n]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 and p.requires_grad]
    pair = torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(rest)
    ids = torch.arange(24).reshape(2, 12)
    model(ids).square().mean().backward()
    for optimizer in pair:
        optimizer.step()
    for k, optimizer in enumerate(pair):
        intarsia.save(tmp_path / f"part{k}", model, optimizer)
    truth = [everything(model, optimizer) for optimizer in pair]
    fresh = Small()
    held = [p for n, p in fresh.named_parameters() if p.dim() == 2 and "spare" not in n]
    other = [p for n, p in fresh.named_parameters() if p.dim() != 2 and p.requires_grad]
    again = torch.optim.SGD(held, lr=0.1, momentum=0.9), torch.optim.AdamW(other)
    for k, optimizer in enumerate(again):
        intarsia.load(tmp_path / f"part{k}", into=fresh, optimizer=optimizer)
        found = everything(fresh, optimizer)
        assert found.keys() == truth[k].keys()
        assert all(torch.equal(found[n], truth[k][n]) for n in found)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A small mixture of experts after a step, saved with its optimizer."""
    from transformers import Qwen3MoeConfig

    torch.manual_seed(4)
    config = Qwen3MoeConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, moe_intermediate_size=12,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        num_experts=4, num_experts_per_tok=2, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, betas=(0.8, 0.95))
    ids = torch.arange(32).reshape(2, 16)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    folder = tmp_path_factory.mktemp("experts")
    intarsia.save(folder / "dcp", model, optimizer)
    return folder, model, optimizer


@pytest.mark.parametrize("form", ["dcp", "hf", "torch_dist", "fsdp_dtensor"])
def test_training_goes_on_from_every_format(experts: tuple[Path, Any, Any], form: str) -> None:
    folder, model, optimizer = experts
    path = folder / form
    if form != "dcp":
        intarsia.convert(folder / "dcp", path, to=form, mesh={"fsdp": 2})
    fresh = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    other = torch.optim.AdamW(fresh.parameters(), lr=1.0)
    intarsia.load(path, into=fresh, optimizer=other)
    truth, found = everything(model, optimizer), everything(fresh, other)
    assert found.keys() == truth.keys()
    assert [n for n in truth if not torch.equal(found[n], truth[n])] == []
    assert other.param_groups[0]["lr"] == 0.25
    assert other.param_groups[0]["betas"] == (0.8, 0.95)
