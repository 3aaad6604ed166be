"""TransformerEngine's own modules with plain arithmetic for their kernels, which need CUDA.

Each holds a rank's part of whole tensors that follow from a seed alone, cut here by hand, so that
one process and any number of tensor-parallel ranks begin alike.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, rms_norm, silu

from tests.live import transformer_engine_on_cpu as on_cpu

SEED = [0]
"""What whole tensors follow from, beside their names."""

HEADS = 4


def whole(name: str, *shape: int) -> Tensor:
    """The tensor of that name and shape, on all ranks together."""
    draw = torch.Generator().manual_seed(SEED[0] * 1_000_003 + zlib.crc32(name.encode()))
    return torch.randn(shape, generator=draw) / 4


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return reduced(grad, ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return reduced(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def reduced(x: Tensor, group: Any) -> Tensor:
    x = x.clone()
    if group is not None:
        dist.all_reduce(x, group=group)
    return x


def _normalized(self: Any, x: Tensor) -> Tensor:
    if self.normalization == "LayerNorm":
        return layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias)
    return rms_norm(x, x.shape[-1:], self.layer_norm_weight)


def _linear(self: Any, x: Tensor) -> Tensor:
    if hasattr(self, "normalization"):
        x = _normalized(self, x)
    if self.parallel_mode == "column":
        x = _Copy.apply(x, self.tp_group)
    x = linear(x, torch.cat([getattr(self, name) for name in self.weight_names]))
    if self.parallel_mode == "row":
        x = _Reduce.apply(x, self.tp_group)
    if self.use_bias:
        x = x + torch.cat([getattr(self, name) for name in self.bias_names])
    return x


def _mlp(self: Any, x: Tensor) -> Tensor:
    x = _Copy.apply(_normalized(self, x), self.tp_group)
    x = linear(x, self.fc1_weight, self.fc1_bias if self.use_bias else None)
    if self.activation == "swiglu":
        gate, up = x.chunk(2, -1)
        x = silu(gate) * up
    else:
        x = gelu(x)
    x = _Reduce.apply(linear(x, self.fc2_weight), self.tp_group)
    return x + self.fc2_bias if self.use_bias else x


def _grouped(self: Any, x: Tensor) -> Tensor:
    """Communication is the caller's, as with TransformerEngine's kernels."""
    if self.single_grouped_weight:
        assert type(self.weight).__name__ == "GroupedTensor", "which the kernels insist on"
        weights = (self.weight * 1).unbind()
    else:
        weights = [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
    parts = zip(x.chunk(self.num_gemms), weights, strict=True)
    return torch.cat([linear(part, weight) for part, weight in parts])


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:], self.weight)


def _layer_norm(self: Any, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], self.weight, self.bias)


def _attention(self: Any, x: Tensor) -> Tensor:
    """As many products as heads; what matters is which rows belong together."""
    query, key, value = self.layernorm_qkv(x).chunk(3, -1)
    return self.proj(query.tanh() * key + value)


def _layer(self: Any, x: Tensor) -> Tensor:
    x = x + self.self_attention(x)
    return x + self.layernorm_mlp(x)


ARITHMETIC: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Linear": _linear,
    "LayerNormLinear": _linear,
    "LayerNormMLP": _mlp,
    "GroupedLinear": _grouped,
    "RMSNorm": _rms_norm,
    "LayerNorm": _layer_norm,
    "MultiheadAttention": _attention,
    "TransformerLayer": _layer,
}

Cuts = Mapping[str, tuple[int, int]]
"""The axis that tensor parallelism cuts and the number of blocks there, by the end of a parameter's name."""


def build(
    kind: str, name: str, *sizes: int, group: Any = None, cuts: Cuts | None = None, **more: Any
) -> Any:
    """A module of TransformerEngine that holds this rank's part of whole tensors."""
    ranks = dist.get_world_size(group) if group is not None else 1
    norm = kind in ("RMSNorm", "LayerNorm")
    place = {} if norm else {"tp_group": group, "tp_size": ranks}
    made = getattr(on_cpu.load(), kind)
    with (
        on_cpu.building(),
        warnings.catch_warnings(action="ignore"),
        patch.dict("os.environ", NVTE_GROUPED_LINEAR_SINGLE_PARAM="1"),
    ):
        module: nn.Module = made(
            *sizes, device="cpu", params_dtype=torch.float32, **{**place, **more}
        )
    for path, param in module.named_parameters():
        axis, blocks = next((c for end, c in (cuts or {}).items() if path.endswith(end)), (None, 1))
        shape = [n * ranks if k == axis else n for k, n in enumerate(param.shape)]
        x = whole(f"{name}.{path}", *shape)
        if axis is not None and ranks > 1:
            rank = dist.get_rank(group)
            x = torch.cat([b.chunk(ranks, axis)[rank] for b in x.chunk(blocks, axis)], axis)
        with torch.no_grad():
            param.copy_(x)
    for each in module.modules():
        if (
            type(each).__module__.startswith("transformer_engine")
            and type(each).__name__ in ARITHMETIC
        ):
            vars(each)["forward"] = MethodType(ARITHMETIC[type(each).__name__], each)
    return module


def te_linear(
    name: str,
    in_features: int,
    out_features: int,
    mode: str | None = None,
    group: Any = None,
    normalization: str | None = None,
    blocks: int = 1,
    **more: Any,
) -> Any:
    """`Linear`, or `LayerNormLinear` with a normalization."""
    axis = {"column": 0, "row": 1}.get(mode or "")
    cuts = {} if axis is None else {"weight": (axis, blocks), "bias": (0, blocks)}
    cuts = {"layer_norm_weight": (None, 1), "layer_norm_bias": (None, 1)} | cuts
    if axis == 1:
        del cuts["bias"]
    kind = "LayerNormLinear" if normalization else "Linear"
    if normalization:
        more["normalization"] = normalization
    return build(
        kind, name, in_features, out_features, group=group, cuts=cuts, parallel_mode=mode, **more
    )  # fmt: skip


def mlp_cuts(activation: str) -> dict[str, tuple[int, int]]:
    halves = 2 if activation.endswith("glu") else 1
    return {"fc1_weight": (0, halves), "fc1_bias": (0, halves), "fc2_weight": (1, 1)}


def te_mlp(
    name: str,
    hidden: int,
    ffn: int,
    group: Any = None,
    activation: str = "swiglu",
    set_parallel_mode: bool = True,
    **more: Any,
) -> Any:
    cuts = mlp_cuts(activation) if set_parallel_mode else {}
    return build(
        "LayerNormMLP", name, hidden, ffn, group=group, cuts=cuts,
        activation=activation, set_parallel_mode=set_parallel_mode, **more,
    )  # fmt: skip


def te_grouped(
    name: str,
    gemms: int,
    in_features: int,
    out_features: int,
    mode: str | None = None,
    group: Any = None,
    single: bool = False,
) -> Any:
    axis = {"column": 0, "row": 1}.get(mode or "")
    if single:
        cuts = {} if axis is None else {"weight": (axis + 1, 1)}
    else:
        cuts = {} if axis is None else {f"weight{i}": (axis, 1) for i in range(gemms)}
    return build(
        "GroupedLinear", name, gemms, in_features, out_features, group=group, cuts=cuts,
        parallel_mode=mode, bias=False, single_grouped_weight=single,
    )  # fmt: skip


def attention_cuts(fused: bool) -> dict[str, tuple[int, int]]:
    proj = {"proj.weight": (1, 1)}
    if fused:
        return {"qkv.weight": (0, 3), "qkv.bias": (0, 3)} | proj
    return proj | {
        f"{x}_{y}": (0, 1) for x in ("query", "key", "value") for y in ("weight", "bias")
    }


def te_attention(name: str, hidden: int, group: Any, fused: bool, groups: int = HEADS) -> Any:
    return build(
        "MultiheadAttention", name, hidden, HEADS, group=group, cuts=attention_cuts(fused),
        num_gqa_groups=groups, fuse_qkv_params=fused, qkv_weight_interleaved=False,
        input_layernorm=True, set_parallel_mode=True,
    )  # fmt: skip


def te_layer(name: str, hidden: int, ffn: int, group: Any, fused: bool) -> Any:
    return build(
        "TransformerLayer", name, hidden, ffn, HEADS, group=group,
        cuts=attention_cuts(fused) | mlp_cuts("swiglu"), activation="swiglu",
        fuse_qkv_params=fused, qkv_weight_interleaved=False, set_parallel_mode=True,
    )  # fmt: skip


def te_norm(kind: str, name: str, hidden: int) -> Any:
    return build(kind, name, hidden)


class Experts(nn.Module):
    def __init__(self, name: str, hidden: int, ffn: int, group: Any, single: bool) -> None:
        super().__init__()
        self.group = group
        self.up = te_grouped(f"{name}.up", 3, hidden, ffn, "column", group, single)
        self.down = te_grouped(f"{name}.down", 3, ffn, hidden, "row", group, single)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(gelu(self.up(_Copy.apply(x, self.group))))
        return _Reduce.apply(x, self.group)


def give_statistics(module: nn.Module) -> None:
    """An `_extra_state` with content, as modules that quantise have; what is loaded is in `taken`."""
    vars(module)["get_extra_state"] = lambda: torch.arange(2, dtype=torch.uint8)
    vars(module)["set_extra_state"] = lambda state: vars(module).update(taken=state)


class Model(nn.Module):
    """Every kind of layer, with a bias and without, and a head that is torch's own."""

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        hidden, ffn = 12, 20
        self.layers = nn.ModuleList(
            te_layer(f"layers.{i}", hidden, ffn, group, fused=bool(i)) for i in range(2)
        )
        self.plain_mlp = te_mlp(
            "plain_mlp", hidden, ffn, group, "gelu", bias=False, normalization="RMSNorm"
        )
        self.up = te_linear("up", hidden, ffn, "column", group, bias=False)
        give_statistics(self.up)
        self.down = te_linear("down", ffn, hidden, "row", group, bias=False)
        self.square = te_linear("square", hidden, hidden)
        self.stacked = Experts("stacked", hidden, ffn, group, single=True)
        self.experts = Experts("experts", hidden, ffn, group, single=False)
        self.norm = te_norm("LayerNorm", "norm", hidden)
        self.last_norm = te_norm("RMSNorm", "last_norm", hidden)
        self.empty = nn.Parameter(torch.empty(0))
        self.head = nn.Linear(hidden, 7)
        with torch.no_grad():
            self.head.weight.copy_(whole("head.weight", 7, hidden))
            self.head.bias.copy_(whole("head.bias", 7))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        x = x + self.plain_mlp(x)
        x = x + self.down(self.up(x)) + self.square(x)
        x = x + self.stacked(x) + self.experts(x)
        return self.head(self.last_norm(self.norm(x)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for step in range(steps):
        model(whole(f"input {step}", 6, 12)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
