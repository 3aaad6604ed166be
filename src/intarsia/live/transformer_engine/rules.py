"""Which axis of which TransformerEngine parameter tensor parallelism cuts.

| parameter                               | column-parallel | row-parallel | not parallel |
|-----------------------------------------|-----------------|--------------|--------------|
| weight (out, in); `fc1` / `fc2`         | 0               | 1            | whole        |
| bias (out)                              | 0               | whole        | whole        |
| grouped weight (num_gemms, out, in)     | 1               | 2            | whole        |
| grouped bias (num_gemms, out)           | 1               | whole        | whole        |
| norms, `layer_norm_*`                   | whole           | whole        | whole        |

A rank's rows of a fused projection are a part of each block (gate and up; query, key and value),
so the cut is inside the blocks: then the whole tensor is the same for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from intarsia.errors import LayoutError, UsageError
from intarsia.live.model.own_tensors import full_name

COLUMN, ROW = "column", "row"


@dataclass(frozen=True, slots=True)
class TensorParallelCut:
    """Tensor parallelism cuts `axis`, inside each of `blocks` equal blocks; None is not cut."""

    axis: int | None = None
    blocks: int = 1


WHOLE = TensorParallelCut()
Cuts = dict[str, TensorParallelCut]


def cuts_of(
    module: nn.Module, blocks: Mapping[str, int]
) -> list[tuple[str, nn.Module, dict[str, TensorParallelCut]]]:
    """Every TransformerEngine module in `module` with its name and the cuts of its parameters.

    Empty tensors are left out: they stand for a bias that is switched off.
    """
    fused = _blocks_by_name(module, blocks)
    found = []
    for name, owner in module.named_modules():
        cuts = _cuts(name or type(owner).__name__, owner, fused.get(name, 1))
        if cuts:
            found.append((name or type(owner).__name__, owner, cuts))
    return found


def is_gemm(module: nn.Module) -> bool:
    """Whether a module multiplies by weights of its own, which may be quantised."""
    return _is_linear(module) or _is_mlp(module)


def _is_linear(module: nn.Module) -> bool:
    """Linear, LayerNormLinear and GroupedLinear."""
    return hasattr(module, "parallel_mode") and (
        hasattr(module, "weight_names") or hasattr(module, "num_gemms")
    )


def _is_mlp(module: nn.Module) -> bool:
    return {"fc1_weight", "fc2_weight"} <= set(module._parameters)


def _is_norm(module: nn.Module) -> bool:
    """LayerNorm and RMSNorm; torch's own have no `zero_centered_gamma`."""
    return hasattr(module, "zero_centered_gamma") and set(module._parameters) <= {"weight", "bias"}


def _cuts(name: str, module: nn.Module, blocks: int) -> Cuts:
    held = {k: p for k, p in module._parameters.items() if p is not None and p.numel()}
    if not held:
        return {}
    if _is_mlp(module):
        return _mlp(name, module, held)
    if _is_linear(module):
        return {k: _linear(name, module, k, p, blocks) for k, p in held.items()}
    if _is_norm(module):
        return dict.fromkeys(held, WHOLE)
    if [*held] == ["softmax_offset"]:  # one number for each head
        return {"softmax_offset": TensorParallelCut(0)}
    if any(c.__module__.partition(".")[0] == "transformer_engine" for c in type(module).__mro__):
        raise UsageError(
            f"`{name}` is a {type(module).__name__}, and no rule says how tensor parallelism cuts"
            f" its {', '.join(held)}",
            hint="use Linear, LayerNormLinear, LayerNormMLP, GroupedLinear, LayerNorm or RMSNorm",
        )
    return {}


def _linear(
    name: str, module: nn.Module, param: str, tensor: Tensor, blocks: int
) -> TensorParallelCut:
    gemms = getattr(module, "num_gemms", None)
    if param.startswith("layer_norm_"):
        return WHOLE
    if param in getattr(module, "weight_names", ()) or (gemms and param.startswith("weight")):
        axis, axes = {COLUMN: 0, ROW: 1}.get(_mode(name, module)), 2
    elif param in getattr(module, "bias_names", ()) or (gemms and param.startswith("bias")):
        axis, axes = {COLUMN: 0}.get(_mode(name, module)), 1
    else:
        raise UsageError(f"`{name}.{param}` is neither a weight, a bias nor a norm of its module")
    stacked = tensor.ndim - axes
    if stacked not in (0, 1) or (stacked and tensor.shape[0] != gemms):
        raise LayoutError(
            f"`{name}.{param}` has {tensor.ndim} axes {list(tensor.shape)}, expected {axes}"
            + (f", or {axes + 1} with {gemms} gemms first" if gemms else "")
        )
    if axis is None:
        return WHOLE
    in_blocks = blocks if axis == 0 else 1  # rows are fused, columns never
    return _checked(name, param, tensor, TensorParallelCut(axis + stacked, in_blocks))


def _mode(name: str, module: nn.Module) -> str:
    mode = getattr(module, "parallel_mode", None)
    if mode not in (None, COLUMN, ROW):
        raise UsageError(f"`{name}` has parallel_mode {mode!r}, expected 'column', 'row' or None")
    return mode or ""


def _mlp(name: str, module: nn.Module, held: Mapping[str, Tensor]) -> Cuts:
    if not getattr(module, "set_parallel_mode", False):
        return dict.fromkeys(held, WHOLE)
    first = TensorParallelCut(0, 2 if _is_gated(name, module, held) else 1)
    rules = {
        "fc1_weight": first,
        "fc1_bias": first,
        "fc2_weight": TensorParallelCut(1),
        "fc2_bias": WHOLE,
    }
    cuts = {}
    for param, tensor in held.items():
        if param not in rules and not param.startswith("layer_norm_"):
            raise UsageError(f"`{name}.{param}` is no parameter of a LayerNormMLP")
        cuts[param] = _checked(name, param, tensor, rules.get(param, WHOLE))
    return cuts


def _is_gated(name: str, module: nn.Module, held: Mapping[str, Tensor]) -> bool:
    """`swiglu`, `geglu` and all other gated units end in "glu"; the sizes must say the same."""
    activation = str(getattr(module, "activation", ""))
    gated = activation.endswith("glu")
    rows, columns = held["fc1_weight"].shape[0], held["fc2_weight"].shape[1]
    if rows != columns * (2 if gated else 1):
        raise LayoutError(
            f"`{name}` has activation {activation!r}, which takes {2 if gated else 1} x {columns}"
            f" rows of fc1 for {columns} columns of fc2; fc1_weight has {rows}"
        )
    return gated


def _checked(name: str, param: str, tensor: Tensor, cut: TensorParallelCut) -> TensorParallelCut:
    if cut.axis is not None and tensor.shape[cut.axis] % cut.blocks:
        raise LayoutError(
            f"`{name}.{param}` {list(tensor.shape)} has {tensor.shape[cut.axis]} rows on a rank,"
            f" which {cut.blocks} blocks do not divide"
        )
    return cut


def _blocks_by_name(module: nn.Module, given: Mapping[str, int]) -> dict[str, int]:
    """How many blocks the rows of a layer have: what the caller and attention modules say."""
    known = dict(module.named_modules())
    for name, blocks in given.items():
        if name not in known or not _is_linear(known[name]):
            raise UsageError(
                f"blocks names `{name}`, which is no Linear, LayerNormLinear or GroupedLinear",
                hint="use the name that named_modules() gives",
            )
        if blocks < 1:
            raise UsageError(f"`{name}` cannot have {blocks} blocks, expected at least 1")
    found: dict[str, int] = {}
    for name, owner in known.items():
        if getattr(owner, "qkv_weight_interleaved", True):
            continue
        for child, blocks in (("layernorm_qkv", 3), ("qkv", 3), ("key_value", 2)):
            held = getattr(owner, child, None)
            if held is not None and getattr(held, "weight_names", None) == ["weight"]:
                path = full_name(name, child)
                if blocks == 3 and getattr(held, "parallel_mode", None):
                    _check_equal_heads(path, owner)
                found[path] = blocks
    return {**found, **given}


def _check_equal_heads(name: str, attention: nn.Module) -> None:
    query, value = (getattr(attention, f"hidden_size_{kind}") for kind in ("q", "kv"))
    if query != value:
        raise LayoutError(
            f"`{name}` holds {query} rows of query and {value} of key and of value, one after the"
            " other on each rank: no placement can express that",
            hint="build it with qkv_weight_interleaved=True or fuse_qkv_params=False",
        )
