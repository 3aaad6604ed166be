"""Whether experts have an optimizer of their own, which versions of Megatron-core answer differently."""

from __future__ import annotations

from intarsia.format.megatron.optimizer.expert_optimizer import (
    experts_apart,
    note_on_experts,
    saved_later,
)
from intarsia.mesh import Mesh


def test_experts_that_are_parallel_are_apart_in_every_version() -> None:
    for later in (False, True):
        assert experts_apart(Mesh(ep=2), later=later)
        assert not experts_apart(Mesh(tp=2, etp=2), later=later)
    assert not [*note_on_experts(Mesh(tp=2, ep=2), apart=True)]


def test_experts_that_are_cut_otherwise_are_apart_in_later_versions() -> None:
    mesh = Mesh(tp=4, etp=1)
    assert experts_apart(mesh, later=True)
    assert not experts_apart(mesh, later=False)
    (early,), (late,) = (note_on_experts(mesh, apart=apart) for apart in (False, True))
    assert "loaded by Megatron-core before 0.19" in early
    assert "loaded by Megatron-core from 0.19 on" in late


def test_a_run_shows_by_its_groups_which_rule_it_followed() -> None:
    sizes = {
        "tensor_model_parallel_size": 4,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": 1,
    }
    apart = [{"is_expert_parallel": False}, {"is_expert_parallel": True}]
    assert saved_later(sizes, apart)
    assert not saved_later(sizes, apart[:1])
    assert not saved_later(sizes | {"expert_tensor_parallel_size": 4}, apart)
    assert not saved_later(sizes | {"expert_model_parallel_size": 2}, apart)
    assert not saved_later({}, apart)
