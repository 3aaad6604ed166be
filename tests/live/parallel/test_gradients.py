"""The norm of gradients that lie on no mesh; those on meshes are in `tests/distributed`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from intarsia.errors import UsageError
from intarsia.live import clip_grad_norm_, parameter_groups


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,), (0, 7), ())]
    for p in made:
        p.grad = torch.randn_like(p) * 3
    return [*made, nn.Parameter(torch.randn(2))]


@pytest.mark.parametrize("kind", [1.0, 2.0, 3.5, float("inf")])
@pytest.mark.parametrize("limit", [0.1, 100.0])
def test_plain_gradients_are_clipped_as_torch_does(kind: float, limit: float) -> None:
    ours, theirs = parameters(), parameters()
    norm = clip_grad_norm_(ours, limit, kind)
    # torch takes no largest element of an empty tensor.
    want = nn.utils.clip_grad_norm_([p for p in theirs if p.numel()], limit, kind)
    torch.testing.assert_close(norm, want)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_no_gradients_have_no_norm() -> None:
    assert clip_grad_norm_([], 1.0) == 0
    assert clip_grad_norm_(nn.Parameter(torch.ones(2)), 1.0) == 0


def test_bfloat16_gradients_are_summed_in_full_precision() -> None:
    p = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    p.grad = torch.full_like(p, 1 / 64)
    assert clip_grad_norm_(p, 1.0).item() == pytest.approx(1.0, rel=1e-6)


def test_a_norm_that_is_not_finite_is_refused_where_asked() -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.tensor([1.0, float("nan")])
    with pytest.raises(UsageError, match="nan"):
        clip_grad_norm_(p, 1.0, error_if_nonfinite=True)


def test_plain_parameters_are_one_group() -> None:
    made = parameters()
    (group,) = parameter_groups(made, weight_decay=0.1)
    assert group == {"params": made, "weight_decay": 0.1}
    assert parameter_groups([]) == []
