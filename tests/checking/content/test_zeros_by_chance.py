"""Zeros that chance makes are no fault; those that chance excludes are one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import get_state_dict

import intarsia
from tests.checkpoints import normal_tensor


def kinds(folder: Path, tensors: dict[str, torch.Tensor]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return [fault.kind for fault in intarsia.verify(folder).faults]


def pruned(shape: tuple[int, ...], share: float, seed: int) -> torch.Tensor:
    x = normal_tensor(shape, torch.float32, seed)
    return x * (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) >= share)


def with_zero_rows(rows: list[int], count: int) -> torch.Tensor:
    x = normal_tensor((count, 16), torch.float32)
    x[rows] = 0
    return x


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "layers.0.mlp.up_proj.weight"])
@pytest.mark.parametrize("turned", [False, True])
def test_single_zero_rows_may_lie_as_a_rank_s_share_does(
    name: str, turned: bool, tmp_path: Path
) -> None:
    x = with_zero_rows([3, 11, 28, 29, 30, 31, 36, 40], 48)
    assert not kinds(tmp_path, {name: (x.T if turned else x).contiguous()})


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "layers.0.mlp.up_proj.weight"])
def test_a_rank_s_rows_are_a_fault_though_a_few_other_rows_are_zero(
    name: str, tmp_path: Path
) -> None:
    few = with_zero_rows([*range(12, 24), 40], 48)
    assert kinds(tmp_path / "few", {name: few}) == ["zero-block"]
    two = with_zero_rows([*range(12, 24), *range(36, 44)], 48)
    assert kinds(tmp_path / "two", {name: two}) == ["zero-block"]


@pytest.mark.parametrize("shape", [(1, 24), (24, 1), (6, 4)])
@pytest.mark.parametrize("leaf", ["mlp.shared_expert_gate.weight", "mixer.conv.weight"])
def test_a_small_tensor_of_a_pruned_model_may_have_nothing_left(
    leaf: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    tensors = {f"model.layers.{k}.{leaf}": pruned(shape, 0.75, k) for k in range(4)}
    tensors[f"model.layers.2.{leaf}"].zero_()
    assert not kinds(tmp_path / "small", tensors)
    large = {n: pruned((64, 64), 0.75, k) for k, n in enumerate(tensors)}
    large[f"model.layers.2.{leaf}"].zero_()
    assert kinds(tmp_path / "large", large) == ["zero-tensor"]


def test_a_small_tensor_is_lost_where_its_like_have_no_zeros(tmp_path: Path) -> None:
    at = "model.layers.{}.mlp.shared_expert_gate.weight"
    tensors = {at.format(k): normal_tensor((1, 24), torch.float32, k) for k in range(4)}
    tensors[at.format(1)].zero_()
    tensors |= {f"model.layers.{k}.mlp.up_proj.weight": pruned((16, 24), 0.9, k) for k in range(4)}
    assert kinds(tmp_path, tensors) == ["zero-tensor"]


def test_weights_that_a_mask_was_multiplied_with_are_zero_whatever_their_sign(
    tmp_path: Path,
) -> None:
    at = "model.layers.{}.mlp.shared_expert_gate.weight"
    tensors = {at.format(k): pruned((1, 24), 0.75, k) for k in range(3)}
    tensors[at.format(0)] *= -0.0
    assert not kinds(tmp_path, tensors)


class LookedUp(torch.nn.Module):
    """A table under a name of its own, and layers behind it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, torch.nn.Embedding(96, 8))
        self.body = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.get_submodule(self.name)(ids)
        for layer in self.body:
            x = x + layer(x).tanh()
        return x


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", ["tok", "codebook", "embed"])
@pytest.mark.parametrize("came", [31, 32])
@pytest.mark.one_in(3)
def test_rows_of_a_table_that_never_came_have_no_moments(
    name: str, came: int, named: bool, tmp_path: Path
) -> None:
    torch.manual_seed(came)
    model = LookedUp(name)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(came)).square().sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    saved = {"model": weights, "optim": state if named else optimizer.state_dict()}
    dcp.save(saved, checkpoint_id=tmp_path / "one", no_dist=True)
    intarsia.convert(tmp_path / "one", tmp_path / "cut", to="dcp", mesh="fsdp=3", section=".")
    assert intarsia.verify(tmp_path / "cut")
    place = state["state"]["body.1.weight"]["exp_avg"]
    place[2:4] = 0
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "lost", no_dist=True)
    intarsia.convert(tmp_path / "lost", tmp_path / "lost3", to="dcp", mesh="fsdp=4", section=".")
    (fault,) = intarsia.verify(tmp_path / "lost3").faults
    assert (fault.kind, fault.tensors) == ("zero-block", ("optimizer.exp_avg.body.1.weight",))


def test_the_norm_of_a_projector_may_begin_at_zero_beside_a_tower_s_that_begin_at_one(
    tmp_path: Path,
) -> None:
    tensors = {
        "multi_modal_projector.mm_soft_emb_norm.weight": torch.zeros(16),
        "vision_tower.post_layernorm.weight": torch.ones(16),
    }
    for k in range(2):
        tensors[f"vision_tower.encoder.layers.{k}.layer_norm1.weight"] = torch.ones(16)
    assert not kinds(tmp_path / "projector", tensors)
    tensors["vision_tower.post_layernorm.weight"] = torch.zeros(16)
    assert kinds(tmp_path / "tower", tensors) == ["zero-tensor"]
