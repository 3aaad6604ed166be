"""Megatron's parameter groups: whose they are, and what they become."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
import torch

from intarsia.dtypes import BY_NAME
from intarsia.errors import FormatError, UsageError
from intarsia.format.megatron.optimizer.groups import (
    group_for,
    groups_in,
    optimizer_of,
    repeats,
    step_for,
    steps_of,
)
from intarsia.format.megatron.optimizer.groups_to_write import (
    as_megatron,
    chained_as,
    check_distinguishable,
)
from intarsia.format.optimizer_state.parameter_groups import ParameterGroup, ParameterGroups
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.layout import Layout
from intarsia.planning.manifest import Logical, Stored
from intarsia.state.names import parameter_of

EXPERT = "decoder.layers.0.mlp.experts.experts.0.linear_fc2.weight"
EXPERT_BIAS = "decoder.layers.0.mlp.experts.experts.0.linear_fc2.bias"
OTHER = "decoder.layers.0.self_attention.linear_proj.weight"
NORM = "decoder.final_layernorm.weight"
F32 = BY_NAME["F32"]
ROWS = [(OTHER, 2, "o"), (NORM, 1, "n"), (EXPERT, 2, "e")]
TORCH = ParameterGroups(
    (ParameterGroup(("o", "e"), {"lr": 0.1}), ParameterGroup(("n",), {"lr": 0.2}))
)


def keys(state: dict[Any, Any]) -> list[tuple[float, bool, float]]:
    return [(g["wd_mult"], g["is_expert_parallel"], g["lr"]) for g in groups_in(state)]


def test_every_kind_of_parameter_gets_the_group_that_megatron_looks_for() -> None:
    chain = as_megatron(TORCH, ROWS, 3, chained=True)
    assert sorted(chain) == [0, 1]
    assert keys(chain) == [(1.0, False, 0.1), (0.0, False, 0.2), (1.0, True, 0.1)]
    assert all(g["step"] == 3 and g["lr_mult"] == 1.0 for g in groups_in(chain))
    assert keys(as_megatron(TORCH, ROWS, 3, chained=False)) == [
        (1.0, False, 0.1),
        (0.0, False, 0.2),
    ]


def test_groups_of_unlike_settings_do_not_become_one() -> None:
    groups = ParameterGroups(
        (ParameterGroup(("a",), {"lr": 0.1}), ParameterGroup(("b", "c"), {"lr": 0.2}))
    )
    rows = [(f"decoder.layers.{k}.x.weight", 2, m) for k, m in enumerate("abc")]
    with pytest.raises(UsageError) as refused:
        as_megatron(groups, rows, None, chained=False)
    text = str(refused.value)
    assert "the source's group 0: 1 tensors, lr=0.1" in text
    assert "the source's group 1: 2 tensors, lr=0.2" in text
    assert "Megatron's group of matrices: 1 of group 0 (a), 2 of group 1 (b)" in text
    alike = ParameterGroups(
        (ParameterGroup(("a",), {"lr": 0.1}), ParameterGroup(("b", "c"), {"lr": 0.1}))
    )
    assert keys(as_megatron(alike, rows, None, chained=False)) == [(1.0, False, 0.1)]


def test_several_groups_without_members_are_refused_and_one_is_for_all() -> None:
    several = ParameterGroups((ParameterGroup((), {"lr": 0.1}), ParameterGroup((), {"lr": 0.2})))
    with pytest.raises(FormatError, match="nothing says which parameters they hold"):
        as_megatron(several, ROWS, None, chained=False)
    one = ParameterGroups((ParameterGroup((), {"lr": 0.1}),))
    assert keys(as_megatron(one, ROWS, None, chained=False)) == [
        (1.0, False, 0.1),
        (0.0, False, 0.1),
    ]


def test_experts_with_settings_of_their_own_stay_parallel() -> None:
    groups = ParameterGroups(
        (ParameterGroup(("o", "n"), {"lr": 0.1}), ParameterGroup(("e",), {"lr": 0.3}))
    )
    chain = as_megatron(groups, ROWS, 3, chained=True)
    assert keys(chain) == [(1.0, False, 0.1), (0.0, False, 0.1), (1.0, True, 0.3)]
    with pytest.raises(UsageError, match="expert-parallel experts are trained with other"):
        chained_as(chain, ROWS, chained=False)


def test_groups_that_megatron_cannot_tell_apart_are_refused() -> None:
    first = {"wd_mult": 1.0, "lr_mult": 1.0, "lr": 0.1}
    check_distinguishable([first, first | {"wd_mult": 0.0, "lr": 0.2}])
    with pytest.raises(UsageError, match=r"differ in lr \(0.1 and 0.2\)"):
        check_distinguishable([first, first | {"lr": 0.2}])


def test_a_rate_of_its_own_is_the_embeddings() -> None:
    plain = {"wd_mult": 1.0, "is_decoupled_lr": False}
    groups = [plain, plain | {"is_decoupled_lr": True}]
    assert group_for(groups, "embedding.word_embeddings.weight", 2) == 1
    assert group_for(groups, OTHER, 2) == 0


def test_steps_without_groups_are_kept() -> None:
    (group,) = groups_in(as_megatron(None, [(OTHER, 2, "o")], 5, chained=False))
    assert group["step"] == 5


def test_a_chain_follows_the_parallelism_of_experts() -> None:
    chain = as_megatron(TORCH, ROWS, 3, chained=True)
    assert chained_as(chain, ROWS, chained=True) is chain
    single = chained_as(chain, ROWS, chained=False)
    assert keys(single) == [(1.0, False, 0.1), (0.0, False, 0.2)]
    assert keys(chained_as(single, ROWS, chained=True)) == keys(chain)
    assert chained_as(single, ROWS[:2], chained=True) is single
    biased = [*ROWS, (EXPERT_BIAS, 1, "b")]
    assert keys(chained_as(single, biased, chained=True)) == [*keys(chain), (0.0, True, 0.2)]


def test_steps_and_groups_are_found_by_megatrons_rule() -> None:
    groups = groups_in(as_megatron(TORCH, ROWS, 3, chained=True))
    assert [group_for(groups, name, axes) for name, axes, _ in ROWS] == [0, 1, 2]
    assert group_for(groups[:2], EXPERT, 2) == 0, "experts that are not parallel are as the others"
    assert group_for([*groups, groups[0]], OTHER, 2) is None
    groups[2]["step"] = 4
    assert (step_for(groups, OTHER), step_for(groups, EXPERT)) == (3.0, 4.0)
    groups[1]["step"] = 9
    assert step_for(groups, OTHER) is None


def test_vectors_that_a_run_has_decay_are_in_the_group_that_decays() -> None:
    groups = [{"wd_mult": 1.0}, {"wd_mult": 0.0}]
    norms = "decoder.layers.3.self_attention.q_layernorm.weight"
    assert group_for(groups, norms, 1) == 1
    assert group_for(groups, norms, 1, {"apply_wd_to_qk_layernorm": True}) == 0
    assert group_for(groups, NORM, 1, {"apply_wd_to_qk_layernorm": True}) == 1


def test_embedding_and_head_are_told_by_the_rate_that_the_run_gave_them() -> None:
    usual = {"wd_mult": 1.0, "is_decoupled_lr": False, "max_lr": 0.1}
    groups = [usual, usual | {"max_lr": 0.2}, usual | {"wd_mult": 0.0}]
    args = {"decoupled_lr": 0.2}
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        assert group_for(groups, name, 2, args) == 1
    assert group_for(groups, OTHER, 2, args) == 0
    assert group_for(groups, NORM, 1, args) == 2
    assert group_for(groups, OTHER, 2) is None


def test_groups_that_differ_in_their_rates_stay_apart_where_experts_join_the_rest() -> None:
    usual = {"wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": False, "is_expert_parallel": False}
    dense = [usual | {"max_lr": 0.1}, usual | {"max_lr": 0.2}]
    experts = [usual | {"max_lr": 0.1, "is_expert_parallel": True}]
    chain = {
        0: {"optimizer": {"param_groups": dense}},
        1: {"optimizer": {"param_groups": experts}},
    }
    assert groups_in(chained_as(chain, ROWS[2:], chained=False)) == dense


@pytest.mark.parametrize(
    ("said", "step"), [(3.0, 3), (2.5, 2.5), (float("inf"), None), (True, None), ("3", None)]
)
def test_each_optimizer_of_a_chain_gives_its_groups_the_step_beside_them(
    said: Any, step: float | None
) -> None:
    def one(said: Any) -> dict[str, Any]:
        return {"optimizer": {"param_groups": [{}, {"step": 9}], "state": {"common_step": said}}}

    found = optimizer_of({"optimizer": {0: one(said), 1: one(7)}}, {})
    assert [group.get("step") for group in groups_in(found)] == [step, 9, 7, 9]


def test_settings_that_are_tensors_of_one_number_are_that_number() -> None:
    """An Adam that is captured in a graph keeps its rate and its step so."""
    group = {"lr": torch.tensor(0.25), "step": torch.tensor([3, 7])[1], "betas": torch.zeros(2)}
    state = {"param_groups": [group]}
    common = read_object(saved({"optimizer": {"optimizer": state}}), "common")
    shared = {"optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1": saved([state])}
    for found in (optimizer_of(common, {}), optimizer_of({}, shared)):
        assert groups_in(found) == [{"lr": 0.25, "step": 7}]


def test_the_scale_of_the_loss_is_found_beside_the_groups_or_beside_buckets() -> None:
    scaler = {"scale": torch.tensor([1024.0]), "growth_tracker": 7, "hysteresis_tracker": 2}
    want = {"scale": 1024.0, "growth_tracker": 7, "hysteresis_tracker": 2}
    common = read_object(saved({"optimizer": {0: {"grad_scaler": scaler}}}), "common")
    assert optimizer_of(common, {}) == {0: {"grad_scaler": want}}
    shared = {"optimizer.distributed.dp_group_idx_0.grad_scaler/shard_0_1": saved([scaler])}
    groups = {"optimizer": {"param_groups": [{"wd_mult": 1.0, "step": 3}]}}
    found = optimizer_of({"optimizer": groups}, shared)
    assert found == groups | {"grad_scaler": want}
    # Parallel experts divide by a scale of their own, which must be that of the loss.
    assert chained_as(found, ROWS, chained=True)[1]["grad_scaler"] == want


def test_what_ranks_say_of_buckets_is_not_missed_where_they_say_the_same() -> None:
    place = "optimizer.distributed.dp_group_idx_"
    groups = [saved([{"param_groups": [{"lr": lr}]}]) for lr in (0.1, 0.1, 0.2)]
    entries = {f"{place}{k}.optimizer/shard_0_1": data for k, data in enumerate(groups)}
    entries |= {f"{place}1.per_bucket_numel/shard_0_1": saved([{}]), "loader": saved(1)}
    left = [name for name in entries if not repeats(entries, name)]
    assert left == [f"{place}2.optimizer/shard_0_1", "loader"]


def test_a_parameter_has_the_step_of_its_group_however_its_moments_are_stored() -> None:
    groups = [{"wd_mult": 1.0, "step": 7}, {"wd_mult": 0.0, "step": 9}]
    shapes = {f"optimizer.exp_avg.{name}": shape for name, shape in ((OTHER, (2, 3)), (NORM, (3,)))}
    logical = {n: Logical(n, shape, F32) for n, shape in shapes.items()}
    flat = [Stored(f"{n}@tp0", F32, Layout.of(n, x).reshape(-1), ()) for n, x in shapes.items()]
    cut = [Stored(n, F32, Layout.of(n, x).reshape(1, 1, -1), ()) for n, x in shapes.items()]
    for stored in (flat, cut):
        found, data = steps_of(groups, stored, logical, {})
        steps = struct.unpack("<2f", data)
        at = {parameter_of(n): steps[s.chunks[0].start_bytes // 4] for n, s in found.items()}
        assert at == {OTHER: 7, NORM: 9}


def saved(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()
