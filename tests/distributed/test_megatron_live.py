"""Checkpoints straight into live Megatron models and back, on real ranks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.mesh import Box
from tests.checkpoints import ROOT, assert_same, bits, read_hf
from tests.distributed.ranks import on_ranks_with
from tests.live.megatron_fsdp_cases import hf_with_optimizer
from tests.parity.test_megatron_core_loads import Model, make

pytestmark = pytest.mark.megatron

MODELS = "tests.distributed.megatron_model"
PAGE = ROOT / "docs/how-to/megatron-live.md"
MESHES = [(2, 1, 4), (1, 1, 8), (2, 1, 1), (4, 1, 2), (2, 2, 2)]
"""Tensor, context and expert parallel."""


def ranks_for(tp: int, cp: int, ep: int) -> int:
    return max(tp * cp, ep)


def models(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> list[Model]:
    """A dense model and one of experts, each with its logits."""
    changes = {"num_key_value_heads": 4} | changes
    dense = make(folder / "qwen3", "qwen3", dtype, **changes)
    return [dense, make(folder / "qwen3_moe", "qwen3_moe", dtype, num_experts=8, **changes)]


def check_folder(saved: Path, hf: Path, **options: Any) -> None:
    """What was saved is the hub's folder, bit by bit, as it is and converted back."""
    back = saved.with_name(saved.name + "-hf")
    intarsia.convert(saved, back, to="hf", **options)
    assert_same(read_hf(back), read_hf(hf))
    config, want = (json.loads((x / "config.json").read_text()) for x in (back, hf))
    assert config == want


def through_core(folder: Path, out: Path, ids: Path, tp: int, cp: int, ep: int) -> Any:
    """Load, compute, save: the logits (without context parallelism) and the settings."""
    from tests.distributed.megatron_model import megatron, model_of
    from tests.parity.megatron_logits import logits

    with megatron(folder, tp, cp, ep) as hf:
        model = model_of(hf)
        report = intarsia.load(folder, into=model)
        padding = model.embedding.word_embeddings.weight
        start = padding.shape[0] * (dist.get_rank() % tp)
        assert not padding[max(hf["vocab_size"] - start, 0) :].any()
        intarsia.save(out, model, config=report.config)
        assert report.config is not None
        found = logits(model, torch.load(ids), 1) if cp == 1 else None
        return found, report.config["megatron"]


def check_core(tmp_path: Path, made: list[Model], tp: int, cp: int, ep: int) -> None:
    for model in made:
        out = tmp_path / f"out-{model.folder.name}"
        words = (model.folder, out, model.ids, tp, cp, ep)
        for found, settings in on_ranks_with(MODELS, ranks_for(tp, cp, ep), through_core, *words):
            if found is not None:
                found = found[..., : model.logits.shape[-1]]
                torch.testing.assert_close(found, model.logits, atol=2e-6, rtol=0)
            assert settings == ({"calculate_per_token_loss": True} if cp > 1 else {})
        assert intarsia.verify(out, model.folder)
        check_folder(out, model.folder)


def test_a_small_model_of_experts_goes_through_megatron_core(tmp_path: Path) -> None:
    check_core(tmp_path, models(tmp_path)[1:], 2, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "cp", "ep"), MESHES)
def test_models_go_through_megatron_core(tmp_path: Path, tp: int, cp: int, ep: int) -> None:
    check_core(tmp_path, models(tmp_path), tp, cp, ep)


def through_fsdp(folder: Path, out: Path, tp: int, cp: int, ep: int) -> tuple[int, int]:
    """Load into fp32 shards, save; how many tensors there are, and how many are empty here."""
    from tests.distributed.megatron_model import megatron, model_of, sharded

    with megatron(folder, tp, cp, ep) as hf:
        model = sharded(model_of(hf))
        report = intarsia.load(folder, into=model)
        held = [p.to_local() for p in model.parameters()]
        assert all(x.dtype == torch.float32 for x in held)
        intarsia.save(out, model, config=report.config)
        return len(held), sum(not x.numel() for x in held)


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "cp", "ep"), MESHES)
def test_models_go_through_megatron_fsdp(tmp_path: Path, tp: int, cp: int, ep: int) -> None:
    for model in models(tmp_path, torch.bfloat16):
        out = tmp_path / f"out-{model.folder.name}"
        count = ranks_for(tp, cp, ep)
        found = on_ranks_with(MODELS, count, through_fsdp, model.folder, out, tp, cp, ep)
        assert all(count for count, _ in found)
        check_folder(out, model.folder, dtype="bf16")


def from_formats(folder: Path, sources: list[Path], tp: int, ep: int) -> list[str]:
    """Load each checkpoint into the same model; what differs from the first."""
    from tests.distributed.megatron_model import megatron, model_of

    wrong = []
    with megatron(folder, tp, 1, ep) as hf:
        model = model_of(hf)
        intarsia.load(folder, into=model)
        want = {name: x.detach().clone() for name, x in model.named_parameters()}
        for source in sources:
            for x in model.parameters():
                x.detach().fill_(float("nan"))
            intarsia.load(source, into=model, config=folder / "config.json")
            have = dict(model.named_parameters())
            wrong += [f"{source.name} {n}" for n, x in want.items() if not torch.equal(x, have[n])]
    return wrong


@pytest.mark.slow
def test_a_checkpoint_of_any_format_fills_a_model(tmp_path: Path) -> None:
    model = models(tmp_path)[1]
    cuts = {"dcp": "tp=2,fsdp=2", "torch_dist": "tp=4,pp=2,ep=2", "fsdp_dtensor": "fsdp=3,ep=2"}
    sources = []
    for form, mesh in cuts.items():
        spec = {} if form == "dcp" else {"megatron_spec": "te"}
        intarsia.convert(model.folder, tmp_path / form, to=form, mesh=mesh, **spec)
        sources.append(tmp_path / form)
    assert on_ranks_with(MODELS, 4, from_formats, model.folder, sources, 2, 4) == [[]] * 4


def through_pipeline(folder: Path, out: Path, ids: Path, vpp: int) -> Any:
    """Two stages, tensor parallel by two; the stages' own numbers of layers are not the model's."""
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
    )
    from megatron.core.transformer.module import Float16Module

    from tests.distributed.megatron_model import megatron, model_of
    from tests.parity.megatron_logits import logits

    with megatron(folder, 2, 1, 2, pp=2, vpp=vpp) as hf:
        if vpp:
            chunks = [
                model_of(hf, stage, virtual_pipeline_model_parallel_size=vpp)
                for stage in range(vpp)
            ]
            settings = DistributedDataParallelConfig(use_distributed_optimizer=True)
            wrapped: Any = [
                DistributedDataParallel(x.config, settings, Float16Module(x.config, x))
                for x in chunks
            ]
        else:
            wrapped = model_of(hf)
        report = intarsia.load(folder, into=wrapped)
        intarsia.save(out, wrapped, config=report.config)
        return None if vpp else logits(wrapped, torch.load(ids), 2)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_pipeline_stages_hold_the_layers_that_they_compute(tmp_path: Path, tied: bool) -> None:
    for model in models(tmp_path, tie_word_embeddings=tied):
        out = tmp_path / f"out-{model.folder.name}"
        words = (model.folder, out, model.ids, 0)
        found = on_ranks_with(MODELS, 4, through_pipeline, *words)
        for last in found[2:]:
            last = last[..., : model.logits.shape[-1]]
            torch.testing.assert_close(last, model.logits, atol=2e-6, rtol=0)
        check_folder(out, model.folder)


@pytest.mark.slow
def test_the_wrapped_chunks_of_a_virtual_pipeline_are_one_model(tmp_path: Path) -> None:
    model = models(tmp_path, torch.bfloat16)[1]
    on_ranks_with(MODELS, 4, through_pipeline, model.folder, tmp_path / "out", model.ids, 2)
    check_folder(tmp_path / "out", model.folder)


def centered(folder: Path, out: Path) -> list[float]:
    """The first norm of a model whose norms hold weight - 1, built without its initialisation."""
    from tests.distributed.megatron_model import megatron, model_of

    with megatron(folder, 2, 1, 1) as hf:
        model = model_of(hf, perform_initialization=False)
        # Torch's norm, which Megatron takes here, cannot compute so; its weights can be filled so.
        model.config.layernorm_zero_centered_gamma = True
        report = intarsia.load(folder, into=model)
        intarsia.save(out, model, config=report.config)
        return model.decoder.layers[0].input_layernorm.weight.tolist()


@pytest.mark.slow
def test_norms_may_be_centred_on_zero_and_attributes_absent(tmp_path: Path) -> None:
    model = models(tmp_path)[0]
    want = read_hf(model.folder)["model.layers.0.input_layernorm.weight"] - 1
    found = on_ranks_with(MODELS, 2, centered, model.folder, tmp_path / "out")
    assert found == [want.tolist()] * 2
    assert all(x.max_abs < 1e-6 for x in intarsia.diff(tmp_path / "out", model.folder))


def bytes_of(folder: Path) -> tuple[int, int]:
    """Bytes read, and bytes held: norms and padding too."""
    from tests.distributed.megatron_model import megatron, model_of

    with megatron(folder, 2, 1, 2) as hf:
        report = intarsia.load(folder, into=model_of(hf))
        return report.read_bytes, report.held_bytes


@pytest.mark.slow
def test_a_rank_reads_what_it_holds(tmp_path: Path) -> None:
    wide = {"hidden_size": 512, "moe_intermediate_size": 8192, "head_dim": 2048, "vocab_size": 4096}
    model = models(tmp_path, num_hidden_layers=1, **wide)[1]
    for read, held in on_ranks_with(MODELS, 2, bytes_of, model.folder):
        assert read <= 1.05 * held


def refined(folder: Path, tp: int, ep: int) -> list[str]:
    """Main weights that are not the checkpoint's, and computing weights that are not those rounded."""
    from intarsia.live.megatron.rows import held_tensors
    from tests.distributed.megatron_model import megatron, model_of, sharded

    with megatron(folder, tp, 1, ep) as hf:
        model = sharded(model_of(hf))
        intarsia.load(folder, into=model)
        wrong = []
        with intarsia.open(folder) as stored:
            for each in held_tensors(model, hf):
                assert each.row is not None
                layout = each.row.layout.rename("optimizer.master.".__add__)
                proven = stored.prove(each.live.name, layout, BY_NAME["F32"])
                raw = stored.read_box(proven, Box.whole(layout.shape))
                if raw.tobytes() != bits(each.memory):
                    wrong.append(each.live.name)
        for group in model.module.param_and_grad_buffer.parameter_groups:
            for k in range(len(group.params)):
                main, weights = (
                    buffer.get_item(k, only_shard=True)
                    for buffer in (group.main_weight_buffer, group.model_weight_buffer)
                )
                if not torch.equal(main.bfloat16(), weights):
                    wrong.append(f"parameter {k} of a group of {len(group.params)}")
        return wrong


@pytest.mark.slow
def test_main_weights_have_the_precision_of_the_checkpoints(tmp_path: Path) -> None:
    model = models(tmp_path, torch.bfloat16)[1]
    hf = hf_with_optimizer(tmp_path / "trained", read_hf(model.folder), model.config)
    assert on_ranks_with(MODELS, 4, refined, hf, 2, 4) == [[]] * 4


def as_the_page_shows(folder: Path, codes: list[str]) -> bool:
    from tests.distributed.megatron_model import megatron, model_of

    os.chdir(folder)
    with megatron(folder / "Qwen3-30B-A3B", 2, 2, 2) as hf:
        model = model_of(hf)
        scope = {"model": model, "config": model.config}
        for code in codes:
            exec(compile(code, str(PAGE), "exec"), scope)
        return bool(model.config.calculate_per_token_loss)


@pytest.mark.slow
def test_the_page_about_live_megatron_models_works_as_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "Qwen3-30B-A3B", "qwen3_moe")
    load, save, check = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert on_ranks_with(MODELS, 4, as_the_page_shows, tmp_path, [load, save]) == [True] * 4
    monkeypatch.chdir(tmp_path)
    exec(compile(check, str(PAGE), "exec"), {"intarsia": intarsia})
    assert_same(read_hf(tmp_path / "back"), read_hf(tmp_path / "Qwen3-30B-A3B"))
