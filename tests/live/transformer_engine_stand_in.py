"""Stand-ins for TransformerEngine's modules, which need CUDA: same attributes, plain arithmetic.

Each holds a rank's part of whole tensors that follow from a seed alone, cut here by hand, so that
one process and any number of tensor-parallel ranks begin alike.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, rms_norm, silu

SEED = [0]
"""What whole tensors follow from, beside their names."""


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


class StandInModule(nn.Module):
    """What all of TransformerEngine's modules with weights have."""

    def __init__(self, name: str, tp_group: Any, tp_size: int | None = None) -> None:
        super().__init__()
        self.name, self.tp_group = name, tp_group
        self.tp_size = tp_size or (dist.get_world_size(tp_group) if tp_group is not None else 1)

    def own(self, param: str, *shape: int, axis: int | None = None, blocks: int = 1) -> None:
        """Register this rank's part of a whole tensor; a rank's part of each block is one cut."""
        x = whole(f"{self.name}.{param}", *shape)
        if axis is not None and self.tp_size > 1:
            rank = dist.get_rank(self.tp_group)
            parts = [block.chunk(self.tp_size, axis)[rank] for block in x.chunk(blocks, axis)]
            x = torch.cat(parts, axis)
        self.register_parameter(param, nn.Parameter(x.contiguous()))

    def own_norm(self, hidden: int, normalization: str) -> None:
        self.normalization = normalization
        self.own("layer_norm_weight", hidden)
        if normalization == "LayerNorm":
            self.own("layer_norm_bias", hidden)
        else:
            self.layer_norm_bias = None

    def normalized(self, x: Tensor) -> Tensor:
        if self.normalization == "LayerNorm":
            return layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias)
        return rms_norm(x, x.shape[-1:], self.layer_norm_weight)

    def get_extra_state(self) -> Tensor:
        return torch.arange(len(self.name), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        self.taken = state


class StandInLinear(StandInModule):
    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        parallel_mode: str | None = None,
        tp_group: Any = None,
        bias: bool = True,
        parameters_split: tuple[str, ...] = (),
        blocks: int = 1,
        normalization: str | None = None,
        tp_size: int | None = None,
    ) -> None:
        super().__init__(name, tp_group, tp_size)
        self.parallel_mode, self.use_bias = parallel_mode, bias
        self.weight_names = [f"{word}_weight" for word in parameters_split] or ["weight"]
        self.bias_names = [f"{word}_bias" for word in parameters_split] or ["bias"]
        if normalization:
            self.own_norm(in_features, normalization)
        axis = {"column": 0, "row": 1}.get(parallel_mode or "")
        rows = out_features // len(self.weight_names)
        for weight in self.weight_names:
            self.own(weight, rows, in_features, axis=axis, blocks=blocks)
        for word in self.bias_names:
            if bias:
                self.own(word, rows, axis=None if axis == 1 else axis, blocks=blocks)
            else:
                setattr(self, word, torch.Tensor())

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "normalization"):
            x = self.normalized(x)
        if self.parallel_mode == "column":
            x = _Copy.apply(x, self.tp_group)
        x = linear(x, torch.cat([getattr(self, name) for name in self.weight_names]))
        if self.parallel_mode == "row":
            x = _Reduce.apply(x, self.tp_group)
        if self.use_bias:
            x = x + torch.cat([getattr(self, name) for name in self.bias_names])
        return x


class StandInLayerNormLinear(StandInLinear):
    def __init__(self, *words: Any, normalization: str = "LayerNorm", **more: Any) -> None:
        super().__init__(*words, normalization=normalization, **more)


class StandInLayerNormMLP(StandInModule):
    def __init__(
        self,
        name: str,
        hidden: int,
        ffn: int,
        tp_group: Any = None,
        activation: str = "swiglu",
        bias: bool = True,
        normalization: str = "LayerNorm",
        set_parallel_mode: bool = True,
    ) -> None:
        super().__init__(name, tp_group)
        self.activation, self.use_bias = activation, bias
        self.set_parallel_mode = set_parallel_mode
        self.own_norm(hidden, normalization)
        halves = 2 if activation == "swiglu" else 1
        cut = 0 if set_parallel_mode else None
        self.own("fc1_weight", halves * ffn, hidden, axis=cut, blocks=halves)
        self.own("fc2_weight", hidden, ffn, axis=None if cut is None else 1)
        if bias:
            self.own("fc1_bias", halves * ffn, axis=cut, blocks=halves)
            self.own("fc2_bias", hidden)
        else:
            self.fc1_bias, self.fc2_bias = torch.Tensor(), torch.Tensor()

    def forward(self, x: Tensor) -> Tensor:
        x = _Copy.apply(self.normalized(x), self.tp_group)
        x = linear(x, self.fc1_weight, self.fc1_bias if self.use_bias else None)
        if self.activation == "swiglu":
            gate, up = x.chunk(2, -1)
            x = silu(gate) * up
        else:
            x = gelu(x)
        x = _Reduce.apply(linear(x, self.fc2_weight), self.tp_group)
        return x + self.fc2_bias if self.use_bias else x


class StandInGroupedLinear(StandInModule):
    """Communication is the caller's, as with TransformerEngine's."""

    def __init__(
        self,
        name: str,
        num_gemms: int,
        in_features: int,
        out_features: int,
        parallel_mode: str | None = None,
        tp_group: Any = None,
        single_grouped_weight: bool = False,
    ) -> None:
        super().__init__(name, tp_group)
        self.num_gemms, self.parallel_mode, self.use_bias = num_gemms, parallel_mode, False
        self.single_grouped_weight = single_grouped_weight
        axis = {"column": 0, "row": 1}.get(parallel_mode or "")
        if single_grouped_weight:
            moved = None if axis is None else axis + 1
            self.own("weight", num_gemms, out_features, in_features, axis=moved)
        for i in range(num_gemms):
            if not single_grouped_weight:
                self.own(f"weight{i}", out_features, in_features, axis=axis)
            setattr(self, f"bias{i}", torch.Tensor())

    def forward(self, x: Tensor) -> Tensor:
        if self.single_grouped_weight:
            weights = self.weight.unbind()
        else:
            weights = [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
        parts = zip(x.chunk(self.num_gemms), weights, strict=True)
        return torch.cat([linear(part, weight) for part, weight in parts])


class StandInExperts(nn.Module):
    def __init__(self, name: str, hidden: int, ffn: int, tp_group: Any, single: bool) -> None:
        super().__init__()
        self.tp_group = tp_group
        self.up = StandInGroupedLinear(f"{name}.up", 3, hidden, ffn, "column", tp_group, single)
        self.down = StandInGroupedLinear(f"{name}.down", 3, ffn, hidden, "row", tp_group, single)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(gelu(self.up(_Copy.apply(x, self.tp_group))))
        return _Reduce.apply(x, self.tp_group)


class StandInRMSNorm(StandInModule):
    def __init__(self, name: str, hidden: int) -> None:
        super().__init__(name, None)
        self.eps, self.zero_centered_gamma = 1e-5, False
        self.own("weight", hidden)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, x.shape[-1:], self.weight)


class StandInLayerNorm(StandInRMSNorm):
    def __init__(self, name: str, hidden: int) -> None:
        super().__init__(name, hidden)
        self.own("bias", hidden)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weight, self.bias)


class StandInMultiheadAttention(nn.Module):
    """As many products as heads; what matters is which rows belong together."""

    def __init__(
        self, name: str, hidden: int, tp_group: Any, fuse_qkv_params: bool, groups: int = 1
    ) -> None:
        super().__init__()
        self.qkv_weight_interleaved = False
        self.hidden_size_q, self.hidden_size_kv = hidden, hidden // groups
        self.layernorm_qkv = StandInLayerNormLinear(
            f"{name}.layernorm_qkv", hidden, 3 * hidden, "column", tp_group,
            parameters_split=() if fuse_qkv_params else ("query", "key", "value"),
            blocks=3 if fuse_qkv_params else 1,
        )  # fmt: skip
        self.proj = StandInLinear(f"{name}.proj", hidden, hidden, "row", tp_group)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.layernorm_qkv(x).chunk(3, -1)
        return self.proj(query.tanh() * key + value)


class StandInTransformerLayer(nn.Module):
    def __init__(self, name: str, hidden: int, ffn: int, tp_group: Any, fused: bool) -> None:
        super().__init__()
        self.self_attention = StandInMultiheadAttention(
            f"{name}.self_attention", hidden, tp_group, fused
        )
        self.layernorm_mlp = StandInLayerNormMLP(f"{name}.layernorm_mlp", hidden, ffn, tp_group)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(x)
        return x + self.layernorm_mlp(x)


class StandInModel(nn.Module):
    """Every kind of layer, with a bias and without, and a head that is torch's own."""

    def __init__(self, tp_group: Any = None) -> None:
        super().__init__()
        tp, hidden, ffn = tp_group, 12, 20
        self.layers = nn.ModuleList(
            StandInTransformerLayer(f"layers.{i}", hidden, ffn, tp, fused=bool(i)) for i in range(2)
        )
        self.plain_mlp = StandInLayerNormMLP(
            "plain_mlp", hidden, ffn, tp, "gelu", bias=False, normalization="RMSNorm"
        )
        self.up = StandInLinear("up", hidden, ffn, "column", tp, bias=False)
        self.down = StandInLinear("down", ffn, hidden, "row", tp, bias=False)
        self.square = StandInLinear("square", hidden, hidden)
        self.stacked = StandInExperts("stacked", hidden, ffn, tp, single=True)
        self.experts = StandInExperts("experts", hidden, ffn, tp, single=False)
        self.norm, self.last_norm = StandInLayerNorm("n", hidden), StandInRMSNorm("l", hidden)
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
