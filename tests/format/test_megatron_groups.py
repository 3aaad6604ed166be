"""Megatron's parameter groups: whose they are, and what they become."""

from __future__ import annotations

from typing import Any

from intarsia.format.megatron_groups import as_megatron, chained_as, group_for, groups_in, step_for
from intarsia.format.parameter_groups import Group, Groups

EXPERT = "decoder.layers.0.mlp.experts.experts.0.linear_fc2.weight"
OTHER = "decoder.layers.0.self_attention.linear_proj.weight"
NORM = "decoder.final_layernorm.weight"
ROWS = [(OTHER, 2, "o"), (NORM, 1, "n"), (EXPERT, 2, "e")]
TORCH = Groups((Group(("o", "e"), {"lr": 0.1}), Group(("n",), {"lr": 0.2})))


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


def test_the_group_with_most_members_gives_the_settings() -> None:
    groups = Groups((Group(("a",), {"lr": 0.1}), Group(("b", "c"), {"lr": 0.2})))
    rows = [(f"decoder.layers.{k}.x.weight", 2, m) for k, m in enumerate("abc")]
    assert keys(as_megatron(groups, rows, None, chained=False)) == [(1.0, False, 0.2)]


def test_steps_without_groups_are_kept() -> None:
    (group,) = groups_in(as_megatron(None, [(OTHER, 2, "o")], 5, chained=False))
    assert group["step"] == 5


def test_a_chain_follows_the_parallelism_of_experts() -> None:
    chain = as_megatron(TORCH, ROWS, 3, chained=True)
    names = [name for name, _, _ in ROWS]
    assert chained_as(chain, names, chained=True) is chain
    single = chained_as(chain, names, chained=False)
    assert keys(single) == [(1.0, False, 0.1), (0.0, False, 0.2)]
    assert keys(chained_as(single, names, chained=True)) == keys(chain)
    assert chained_as(single, [OTHER, NORM], chained=True) is single


def test_steps_and_groups_are_found_by_megatrons_rule() -> None:
    groups = groups_in(as_megatron(TORCH, ROWS, 3, chained=True))
    assert [group_for(groups, name, axes) for name, axes, _ in ROWS] == [0, 1, 2]
    assert group_for(groups[:2], EXPERT, 2) == 0, "experts that are not parallel are as the others"
    assert group_for([*groups, groups[0]], OTHER, 2) is None
    groups[2]["step"] = 4
    assert (step_for(groups, OTHER), step_for(groups, EXPERT)) == (3.0, 4.0)
    groups[1]["step"] = 9
    assert step_for(groups, OTHER) is None
