"""Checkpoints straight into live Megatron-FSDP models: every rank's slice, compared with closed formulas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from tests.checkpoints import assert_same, read_hf, write_hf
from tests.distributed.megatron_by_hand import by_hand
from tests.distributed.ranks import on_ranks_with
from tests.live.megatron_fsdp_cases import hf_with_optimizer
from tests.parity.test_megatron_core_loads import make

pytestmark = pytest.mark.megatron

MODELS = "tests.distributed.megatron_model"
SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24, "head_dim": 4}
LINEAR = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 24,
    "vocab_size": 47,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 10,
    "shared_expert_intermediate_size": 14,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0, 1],
    "layer_types": ["linear_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 3,
}

Slice = tuple[str, int, int, torch.Tensor, torch.Tensor]
"""A parameter's name, the slice of its tensor-parallel part, its main weights and those it computes with."""


def slices_of(model: Any, experts_before: int) -> list[Slice]:
    """What Megatron-FSDP itself says that this rank holds."""
    buffers = model.module.param_and_grad_buffer
    held = {name: p.megatron_fsdp_slice for name, p in buffers.optimizer_named_parameters}

    def whole_name(name: str) -> str:
        name = re.sub(r"^(module\.)+", "", name)
        return re.sub(r"(?<=local_experts\.)\d+", lambda n: str(int(n[0]) + experts_before), name)

    found = []
    for group in buffers.parameter_groups:
        for k, param in enumerate(group.params):
            main, weights = (
                buffer.get_item(k, only_shard=True).detach().reshape(-1).clone()
                for buffer in (group.main_weight_buffer, group.model_weight_buffer)
            )
            name = buffers.param_to_name[param]
            found.append((whole_name(name), held[name].start, held[name].stop, main, weights))
    return found


def loaded(folder: Path, out: Path | None, tp: int, cp: int, ep: int) -> Any:
    """Load, save; this rank's slices and the settings that came with them."""
    from tests.distributed.megatron_model import megatron, model_of, parallel_state, sharded

    with megatron(folder, tp, cp, ep) as hf:
        model = sharded(model_of(hf))
        report = intarsia.load(folder, into=model)
        assert report.config is not None
        if out is not None:
            intarsia.save(out, model, config=report.config)
        each = (hf.get("num_experts") or 0) // ep
        before = each * parallel_state.get_expert_model_parallel_rank()
        rank = parallel_state.get_tensor_model_parallel_rank()
        return rank, slices_of(model, before), report.config["megatron"]


def check_slices(found: list[Any], expected: dict[str, Any], tp: int) -> None:
    """Every element is its main weight, in float32; what is computed with is that, rounded to bf16."""
    seen: dict[tuple[str, int], int] = {}
    for rank, slices, _ in found:
        for name, start, stop, main, weights in slices:
            want = expected[name].part(tp, rank).reshape(-1)
            assert main.dtype == torch.float32
            assert torch.equal(main, want[start:stop].float()), (name, start, stop)
            assert torch.equal(weights, want[start:stop].bfloat16()), (name, start, stop)
            seen[name, rank] = seen.get((name, rank), 0) + stop - start
    assert {name for name, _ in seen} == {*expected}
    for (name, rank), count in seen.items():
        assert count % expected[name].part(tp, rank).numel() == 0, name


def masters(folder: Path) -> dict[str, torch.Tensor]:
    state = read_hf(folder / "optimizer")
    start = "optimizer.master."
    return {name.removeprefix(start): x for name, x in state.items() if name.startswith(start)}


def test_each_rank_has_its_own_slice_of_the_main_weights_and_computes_with_them(
    tmp_path: Path,
) -> None:
    """Two ranks of context and of expert parallelism: slices of what is dense, experts of their own."""
    model = make(tmp_path / "model", "qwen3_moe", **SMALL)
    config = model.config | {"dtype": "bfloat16"}
    weights = {name: x.bfloat16() for name, x in read_hf(model.folder).items()}
    trained = hf_with_optimizer(tmp_path / "hf", weights, config)
    found = on_ranks_with(MODELS, 2, loaded, trained, None, 1, 2, 2)
    check_slices(found, by_hand(masters(trained), config, 104), 1)
    assert {start > 0 for _, slices, _ in found for _, start, _, _, _ in slices} == {False, True}
    assert [settings for _, _, settings in found] == [{"calculate_per_token_loss": True}] * 2


def collectives_of(folder: Path) -> list[str]:
    """The collectives of one load into two ranks of Megatron-FSDP, as torch's profiler sees them."""
    from tests.distributed.megatron_model import megatron, model_of, sharded

    with megatron(folder, 2, 1, 1) as hf:
        model = sharded(model_of(hf))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            intarsia.load(folder, into=model)
        assert len(list(model.parameters())) > 5 * hf["num_hidden_layers"]
        return sorted(e.name for e in seen.events() if e.name.startswith("c10d::"))


@pytest.mark.slow
def test_a_load_exchanges_as_often_for_many_parameters_as_for_few(tmp_path: Path) -> None:
    few, many = (
        on_ranks_with(
            MODELS,
            2,
            collectives_of,
            make(
                tmp_path / str(layers),
                "qwen3",
                torch.bfloat16,
                **SMALL | {"num_hidden_layers": layers},
            ).folder,
        )
        for layers in (1, 4)
    )
    assert few == many
    assert 0 < len(few[0]) < 10


def logits_of(folder: Path, ids: Path, tp: int, ep: int) -> torch.Tensor:
    from tests.distributed.megatron_model import megatron, model_of, sharded

    with megatron(folder, tp, 1, ep) as hf:
        model = sharded(model_of(hf))
        intarsia.load(folder, into=model)
        tokens = torch.load(ids)
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)[None, None]
        with torch.no_grad():
            found: torch.Tensor = model(tokens, positions, mask)
        return found.float()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ranks", "tp", "ep"), [
    ("qwen3", 2, 1, 1), ("qwen3", 4, 2, 1), ("qwen3_moe", 4, 2, 2),
])  # fmt: skip
def test_a_live_megatron_fsdp_model_computes_what_transformers_does(
    kind: str, ranks: int, tp: int, ep: int, tmp_path: Path
) -> None:
    """In bf16, Megatron-FSDP's own precision: as near to float32 as Transformers is in bf16."""
    from transformers import AutoModelForCausalLM

    model = make(tmp_path / "hf", kind, torch.bfloat16, num_hidden_layers=2)
    exact = AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32)
    with torch.no_grad():
        want = exact(torch.load(model.ids)).logits
    error = (model.logits.float() - want).abs().max()
    for found in on_ranks_with(MODELS, ranks, logits_of, model.folder, model.ids, tp, ep):
        found = found[..., : want.shape[-1]]
        beyond = ((found - want).abs().amax(-1) > 4 * error).float().mean()
        assert beyond <= (0.1 if kind == "qwen3_moe" else 0), "rounding may choose another expert"
        assert torch.corrcoef(torch.stack([found.reshape(-1), want.reshape(-1)]))[0, 1] > 0.999


def linear_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of `LINEAR` whose norms are exact in float32 on either side of a shift by one."""
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).bfloat16()

    def norm(n: int) -> torch.Tensor:
        return torch.randint(-16, 16, (n,), generator=draw).bfloat16() / 32

    found = {"model.embed_tokens.weight": random(47, 16), "lm_head.weight": random(47, 16)}
    found["model.norm.weight"] = norm(16)
    for layer in range(2):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.input_layernorm.weight": norm(16),
            f"{at}.post_attention_layernorm.weight": norm(16),
            f"{at}.linear_attn.in_proj_qkvz.weight": random(2 * (6 + 6 + 10 + 10), 16),
            f"{at}.linear_attn.in_proj_ba.weight": random(8, 16),
            f"{at}.linear_attn.conv1d.weight": random(24 + 20, 1, 3),
            f"{at}.linear_attn.A_log": random(4).float(),
            f"{at}.linear_attn.dt_bias": random(4),
            f"{at}.linear_attn.norm.weight": norm(5) + 1,
            f"{at}.linear_attn.out_proj.weight": random(16, 20),
            f"{at}.mlp.gate_proj.weight": random(24, 16),
            f"{at}.mlp.up_proj.weight": random(24, 16),
            f"{at}.mlp.down_proj.weight": random(16, 24),
        }
    return found


@pytest.mark.slow
def test_linear_attention_goes_through_live_megatron_fsdp_and_back(tmp_path: Path) -> None:
    """Tensor parallel by two, sharded by two; `in_proj` is six projections, cut each by itself."""
    weights = linear_weights()
    source = write_hf(tmp_path / "hf", weights, LINEAR)
    found = on_ranks_with(MODELS, 4, loaded, source, tmp_path / "out", 2, 1, 1)
    exact = {name: x.float() for name, x in weights.items()}
    check_slices(found, by_hand(exact, LINEAR, 48), 2)
    intarsia.convert(tmp_path / "out", tmp_path / "back", to="hf", dtype="bf16")
    assert_same(read_hf(tmp_path / "back"), weights)
