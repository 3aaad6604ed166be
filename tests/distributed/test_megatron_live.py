"""Checkpoints straight into live Megatron models and back, on real ranks."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import intarsia
from tests.checkpoints import assert_same, read_hf
from tests.distributed.ranks import on_ranks_with

if find_spec("megatron") is None:
    pytest.skip("megatron-core is not installed", allow_module_level=True)

from tests.parity.test_megatron_core_loads import Model, make

MODELS = "tests.distributed.megatron_model"
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
