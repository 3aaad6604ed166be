"""Quantised checkpoints as each tool lays them out, made from plain weights by torch alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def linears(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The weights that tools quantise: projections, and neither the embedding nor the head nor a router."""
    return [n for n in tensors if n.endswith("_proj.weight") or ".experts." in n]


def fp8(tensors: Tensors, block: tuple[int, int] | None, word: str = "weight_scale_inv") -> Tensors:
    """F8_E4M3 and a scale for each block of the last two axes; without a block one for each row."""
    found = dict(tensors)
    for name in linears(tensors):
        found |= fp8_of(name, tensors[name], block, word)
    return found


def fp8_of(
    name: str, weight: torch.Tensor, block: tuple[int, int] | None, word: str = "weight_scale_inv"
) -> Tensors:
    """One weight of any number of axes, and its scales."""
    w = weight.float()
    *lead, rows, columns = w.shape
    b0, b1 = block or (1, columns)
    grid = (*lead, -(-rows // b0), -(-columns // b1))
    scale = torch.empty(grid)
    out = torch.empty_like(w)
    for i in range(grid[-2]):
        for j in range(grid[-1]):
            at = (..., slice(i * b0, (i + 1) * b0), slice(j * b1, (j + 1) * b1))
            most = w[at].abs().amax((-2, -1)).clamp(min=1e-6) / 448
            scale[..., i, j] = most
            out[at] = w[at] / most[..., None, None]
    key = name.removesuffix("weight") + word if name.endswith("weight") else name + word
    return {name: out.to(torch.float8_e4m3fn), key: scale}


def packed_int4(tensors: Tensors, group: int = 32) -> Tensors:
    """compressed-tensors' `pack-quantized`: eight numbers in a word, the first lowest."""
    found = dict(tensors)
    for name in linears(tensors):
        w = found.pop(name).float()
        rows, columns = w.shape
        grouped = torch.nn.functional.pad(w, (0, -columns % group)).reshape(rows, -1, group)
        scale = grouped.abs().amax(-1).clamp(min=1e-6) / 7
        codes = (grouped / scale[..., None]).round().clamp(-8, 7).reshape(rows, -1)[:, :columns] + 8
        codes = (
            torch.nn.functional.pad(codes, (0, -columns % 8)).to(torch.int64).reshape(rows, -1, 8)
        )
        words = (codes << torch.arange(0, 32, 4)).sum(-1)
        stem = name.removesuffix("weight")
        found[f"{stem}weight_packed"] = words.to(torch.uint32).view(torch.int32)
        found[f"{stem}weight_scale"] = scale.to(torch.bfloat16)
        found[f"{stem}weight_shape"] = torch.tensor([rows, columns])
    return found


def qweights(tensors: Tensors, method: str, group: int = 16) -> Tensors:
    """AWQ's (inputs, outputs / 8) or GPTQ's (inputs / 8, outputs), with zero points and scales."""
    found = dict(tensors)
    for k, name in enumerate(linears(tensors)):
        n_out, n_in = found.pop(name).shape
        stem, groups = name.removesuffix("weight"), -(-n_in // group)
        words = (n_in, n_out // 8) if method == "awq" else (n_in // 8, n_out)
        found[f"{stem}qweight"] = integers(words, torch.int32, k)
        found[f"{stem}qzeros"] = integers((groups, n_out // 8), torch.int32, k + 500)
        found[f"{stem}scales"] = torch.rand(groups, n_out).to(torch.float16) + 0.01
        if method == "gptq":
            found[f"{stem}g_idx"] = torch.arange(n_in, dtype=torch.int32) // group
    return found


def nf4(tensors: Tensors, block: int = 64, storage: torch.dtype = torch.uint8) -> Tensors:
    """bitsandbytes: two numbers in a byte, one after another, whatever the shape and the type that holds the bytes."""
    found = dict(tensors)
    for k, name in enumerate(linears(tensors)):
        size = prod(tensors[name].shape)
        found[name] = integers((size // 2, 1), torch.uint8, k).view(-1).view(storage).view(-1, 1)
        found[f"{name}.absmax"] = torch.rand(-(-size // block)) + 0.01
        found[f"{name}.quant_map"] = torch.linspace(-1, 1, 16)
        said = json.dumps({"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16"}).encode()
        found[f"{name}.quant_state.bitsandbytes__nf4"] = torch.tensor(list(said), dtype=torch.uint8)
    return found


def int8(tensors: Tensors) -> Tensors:
    """bitsandbytes' LLM.int8(): one scale for each row, in `SCB`."""
    found = dict(tensors)
    for k, name in enumerate(linears(tensors)):
        found[name] = integers(tuple(tensors[name].shape), torch.int8, k)
        found[name.removesuffix("weight") + "SCB"] = torch.rand(tensors[name].shape[0]) + 0.01
        found[name.removesuffix("weight") + "weight_format"] = torch.tensor(0, dtype=torch.uint8)
    return found


def nvfp4(tensors: Tensors, word: str = "weight") -> Tensors:
    """ModelOpt's (`weight`) and compressed-tensors' (`weight_packed`): a scale in fp8 for 16 numbers."""
    found = dict(tensors)
    for k, name in enumerate(linears(tensors)):
        rows, columns = found.pop(name).shape
        stem = name.removesuffix("weight")
        whole = "weight_scale_2" if word == "weight" else "weight_global_scale"
        found[stem + word] = integers((rows, columns // 2), torch.uint8, k)
        found[f"{stem}weight_scale"] = (torch.rand(rows, columns // 16) + 0.1).to(
            torch.float8_e4m3fn
        )
        found[stem + whole] = (
            torch.tensor(0.25 + k) if word == "weight" else torch.tensor([0.25 + k])
        )
        found[f"{stem}input_scale"] = torch.tensor(0.5 + k)
    return found


def torchao(tensors: Tensors) -> Tensors:
    """torchao's int8 weights, the weight's name in the middle."""
    found = dict(tensors)
    for k, name in enumerate(linears(tensors)):
        stem, shape = name.removesuffix("weight"), tuple(found.pop(name).shape)
        found[f"{stem}_weight_qdata"] = integers(shape, torch.int8, k)
        found[f"{stem}_weight_scale"] = torch.rand(shape[0], 1) + 0.01
    return found


def quanto(tensors: Tensors, bits: int = 8) -> Tensors:
    """quanto's integers; those of 4 bits lie packed in a tensor inside the weight's."""
    found = dict(tensors)
    for k, name in enumerate(linears(tensors)):
        rows, columns = found.pop(name).shape
        word, groups = ("._data", rows) if bits == 8 else ("._data._data", rows * columns // 32)
        found[name + word] = integers((rows * bits // 8, columns), torch.int8 if bits == 8 else torch.uint8, k)  # fmt: skip
        found[f"{name}._scale"] = torch.rand(groups, 1) + 0.01
        if bits == 4:
            found[f"{name}._shift"] = torch.rand(groups, 1)
    return found


def aqlm(tensors: Tensors) -> Tensors:
    """A scheme that Intarsia has no table of."""
    found = dict(tensors)
    for k, name in enumerate(linears(tensors)):
        stem, (rows, columns) = name.removesuffix("weight"), found.pop(name).shape
        found[f"{stem}codes"] = integers((rows, columns // 8, 1), torch.int16, k)
        found[f"{stem}codebooks"] = torch.randn(1, 256, 1, 8).half()
        found[f"{stem}scales"] = torch.rand(rows, 1, 1, 1).half() + 0.01
    return found


def mxfp4_of(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """gpt-oss: the weight `[experts, inputs, outputs]` as rows of outputs in blocks of 32 inputs."""
    w = weight.float().transpose(1, 2)
    experts, outputs, inputs = w.shape
    blocks = w.reshape(experts, outputs, inputs // 32, 32)
    exponent = (blocks.abs().amax(-1).clamp(min=1e-12).log2().floor() - 2).clamp(-127, 127)
    scaled = blocks / torch.exp2(exponent)[..., None]
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (scaled < 0)
    low, high = codes[..., 0::2], codes[..., 1::2]
    return (low | high << 4).to(torch.uint8), (exponent + 127).to(torch.uint8)


def integers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random codes."""
    random = torch.Generator().manual_seed(seed)
    size = prod(shape) * torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (size,), generator=random, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def compressed(format: str, **weights: Any) -> dict[str, Any]:
    """What compressed-tensors writes into the configuration."""
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [8, 8], "activation_scheme": "dynamic"}  # fmt: skip

SCHEMES: dict[str, tuple[Callable[[Tensors], Tensors], dict[str, Any]]] = {
    "fp8 blocks": (lambda t: fp8(t, (8, 8)), BLOCK),
    "fp8 rows": (
        lambda t: fp8(t, None, "weight_scale"),
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
    ),
    "int4": (packed_int4, compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32)),
    "awq": (lambda t: qweights(t, "awq"), {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}),
    "gptq": (lambda t: qweights(t, "gptq"), {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": True}),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "nf4 in bf16": (
        lambda t: nf4(t, storage=torch.bfloat16),
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"},
    ),
    "nf4 in fp32": (
        lambda t: nf4(t, storage=torch.float32),
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "float32"},
    ),
    "int8": (int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nvfp4 compressed": (
        lambda t: nvfp4(t, "weight_packed"),
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
    ),
    "torchao": (torchao, {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}),
    "quanto": (quanto, {"quant_method": "quanto", "weights": "int8"}),
    "quanto 4 bits": (lambda t: quanto(t, 4), {"quant_method": "quanto", "weights": "int4"}),
    "aqlm": (aqlm, {"quant_method": "aqlm", "in_group_size": 8}),
}  # fmt: skip
"""Each scheme: what makes its tensors, and what the configuration says."""
