"""Checkpoints to measure with: dense and mixture-of-experts models, written by many threads.

Every tensor has random numbers of its own (finite, as weights spread), so that no check finds a
repeat, and a name and a place that `transformers` would give it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

Shapes = Mapping[str, tuple[int, ...]]
BLOCK_WORDS = 1 << 20
RANDOM_BITS = 0x81FF_81FF_81FF_81FF
"""Of each bf16 number: the sign, the last two bits of the exponent, the fraction."""
FIXED_BITS = 0x3C00_3C00_3C00_3C00
"""The rest of the exponent: numbers of 0.008 to 0.12 are what is left."""
ONES = 0x3F80_3F80_3F80_3F80
NEAR_ONE = 0x001F_001F_001F_001F


@dataclass(frozen=True)
class Model:
    """The configuration of a model, and the shapes of its tensors."""

    config: Mapping[str, Any]
    shapes: Shapes

    @property
    def nbytes(self) -> int:
        return sum(2 * prod(shape) for shape in self.shapes.values())


def llama(gigabytes: float, like: float | None = None) -> Model:
    """A dense model of about this size, as wide as one of size `like`; from 4 GB on as one of 8 billion parameters."""
    size = like or gigabytes
    if size >= 4:
        hidden, inner, vocab, heads, groups, width = 4096, 14_336, 128_256, 32, 8, 128
    elif size >= 0.3:
        hidden, inner, vocab, heads, groups, width = 2048, 5632, 32_000, 16, 4, 128
    elif size >= 0.02:
        hidden, inner, vocab, heads, groups, width = 1024, 2816, 8000, 8, 2, 128
    else:
        hidden, inner, vocab, heads, groups, width = 128, 384, 1000, 4, 2, 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": inner,
        **_shared(hidden, vocab, heads, groups, width),
    }
    return _of_size(config, gigabytes, _dense_layer)


def moe(gigabytes: float) -> Model:
    """A mixture of experts whose tensors have a megabyte each: 8 GB of them are 7,500."""
    small = gigabytes < 0.1
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "intermediate_size": 256 if small else 2048,
        "moe_intermediate_size": 64 if small else 512,
        "num_experts": 8 if small else 64,
        "num_experts_per_tok": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        **(_shared(128, 1000, 4, 2, 32) if small else _shared(1024, 32_000, 16, 4, 64)),
    }
    return _of_size(config, gigabytes, _sparse_layer)


MODELS = {"llama": llama, "moe": moe}


def write_hf(folder: Path, model: Model, files: int = 17, threads: int | None = None) -> int:
    """Write a model as Transformers does, in at most so many files; its bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(model.config)))
    parts = list(_parts(model.shapes, model.nbytes / files))
    names = [f"model-{k + 1:05}-of-{len(parts):05}.safetensors" for k in range(len(parts))]
    if len(parts) == 1:
        names = ["model.safetensors"]
    else:
        weight_map = {n: file for file, part in zip(names, parts, strict=True) for n in part}
        index = {"metadata": {"total_size": model.nbytes}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        list(pool.map(_write_file, (folder / name for name in names), parts))
    return model.nbytes


def bits_of(name: str, shape: tuple[int, ...]) -> Any:
    """The bf16 numbers of a tensor, as 16 bits each."""
    blocks = [np.frombuffer(block, np.uint16) for block in _numbers(name, prod(shape))]
    return np.concatenate(blocks).reshape(shape)


def data_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that hold its tensors, the largest first."""
    found = [p for p in folder.rglob("*") if p.suffix in (".safetensors", ".distcp")]
    return sorted(found, key=lambda p: -p.stat().st_size)


def memory_like(folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Memory for every tensor of a checkpoint of Hugging Face, by its names."""
    import torch
    from safetensors import safe_open

    found = {}
    for path in data_files(folder):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                shape = file.get_slice(name).get_shape()
                found[name] = torch.empty(shape, dtype=torch.bfloat16, device=device)
    return found


def empty_model(folder: Path) -> Any:
    """The model of a checkpoint, on `meta`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        config = AutoConfig.from_pretrained(folder)
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def _shared(hidden: int, vocab: int, heads: int, groups: int, width: int) -> dict[str, Any]:
    return {
        "dtype": "bfloat16",
        "hidden_size": hidden,
        "vocab_size": vocab,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": width,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }


def _of_size(config: dict[str, Any], gigabytes: float, layer: Any) -> Model:
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    ends = {
        "model.embed_tokens.weight": (vocab, hidden),
        "lm_head.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    layer_bytes = sum(2 * prod(shape) for _, shape in layer(config, 0))
    left = gigabytes * 1e9 - sum(2 * prod(shape) for shape in ends.values())
    count = max(2, round(left / layer_bytes))
    middle = {name: shape for k in range(count) for name, shape in layer(config, k)}
    first, *last = ends.items()
    return Model(config | {"num_hidden_layers": count}, dict([first, *middle.items(), *last]))


def _attention(config: Mapping[str, Any], at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, width = config["hidden_size"], config["head_dim"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    yield f"{at}.input_layernorm.weight", (hidden,)
    yield f"{at}.post_attention_layernorm.weight", (hidden,)
    yield f"{at}.self_attn.q_proj.weight", (heads * width, hidden)
    yield f"{at}.self_attn.k_proj.weight", (groups * width, hidden)
    yield f"{at}.self_attn.v_proj.weight", (groups * width, hidden)
    yield f"{at}.self_attn.o_proj.weight", (hidden, heads * width)


def _mlp(at: str, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.gate_proj.weight", (inner, hidden)
    yield f"{at}.up_proj.weight", (inner, hidden)
    yield f"{at}.down_proj.weight", (hidden, inner)


def _dense_layer(config: Mapping[str, Any], k: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    at = f"model.layers.{k}"
    yield from _attention(config, at)
    yield from _mlp(f"{at}.mlp", config["hidden_size"], config["intermediate_size"])


def _sparse_layer(config: Mapping[str, Any], k: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    at, hidden = f"model.layers.{k}", config["hidden_size"]
    yield from _attention(config, at)
    for name in ("q_norm", "k_norm"):
        yield f"{at}.self_attn.{name}.weight", (config["head_dim"],)
    yield f"{at}.mlp.gate.weight", (config["num_experts"], hidden)
    for expert in range(config["num_experts"]):
        yield from _mlp(f"{at}.mlp.experts.{expert}", hidden, config["moe_intermediate_size"])


def _parts(shapes: Shapes, most_bytes: float) -> Iterator[Shapes]:
    """The tensors cut into files of about the same size, in their order."""
    part: dict[str, tuple[int, ...]] = {}
    done = held = 0.0
    number = 1
    for name, shape in shapes.items():
        held += 2 * prod(shape)
        part[name] = shape
        if done + held >= number * most_bytes - 1:
            yield part
            done, held, part = done + held, 0, {}
            number = int(done / most_bytes) + 1
    if part:
        yield part


def _write_file(path: Path, shapes: Shapes) -> None:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * prod(shape)
        table[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb", buffering=0) as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for name, shape in shapes.items():
            for block in _numbers(name, prod(shape)):
                out.write(block)


def _numbers(name: str, count: int) -> Iterator[memoryview]:
    """Numbers in bf16 of a tensor: small ones around zero, those of a norm close to one."""
    random = np.random.Generator(np.random.SFC64(crc32(name.encode())))
    mask, rest = (NEAR_ONE, ONES) if "norm" in name else (RANDOM_BITS, FIXED_BITS)
    left = 2 * count
    while left > 0:
        words = random.integers(
            0, 1 << 64, min(BLOCK_WORDS, -(-left // 8)), np.uint64, endpoint=False
        )
        words &= np.uint64(mask)
        words |= np.uint64(rest)
        yield memoryview(words).cast("B")[:left]
        left -= words.nbytes
