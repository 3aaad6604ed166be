"""Models that are sound and look odd: pruned, upcycled, fresh, merged, adapters, tables."""

from __future__ import annotations

from math import log, sqrt
from pathlib import Path
from random import Random

import torch

from tests.checkpoints import llama_config, shapes, write_hf
from tests.faults.reference import MESHES
from tests.faults.sound import CONFIG as MOE
from tests.faults.sound import Tensors
from tests.faults.sound import weights as moe_weights

ODD = (
    "pruned heads", "dead neurons", "pruned elements", "upcycled", "depth-scaled", "made deeper", "fresh",
    "merged", "adapters", "sin-cos tables", "powers of two", "signs", "biases of some layers",
    "tied", "padded", "large norms",
)  # fmt: skip


def odd_model(kind: str, random: Random, folder: Path) -> Path:
    """A model of one of the kinds, in a random format where it is of a family."""
    import intarsia

    tensors, config = _made(kind, random)
    if config is None or random.random() < 0.6:
        return write_hf(folder, _plain(tensors), config)
    to = random.choice(["dcp", "torch_dist", "fsdp_dtensor"])
    hub = write_hf(folder.with_name(f"{folder.name}-hub"), _plain(tensors), config)
    intarsia.convert(hub, folder, to=to, mesh=MESHES[to], workers=1)
    return folder


def _plain(tensors: Tensors) -> Tensors:
    return {n: x.clone().contiguous() for n, x in tensors.items()}


def _llama(
    random: Random, std: float = 0.05, **changes: object
) -> tuple[Tensors, dict[str, object]]:
    config = llama_config(
        hidden_size=24, num_hidden_layers=random.choice([2, 3, 6]), intermediate_size=random.choice([32, 40, 48]),
        head_dim=8, vocab_size=random.choice([64, 96, 100]),
    ) | changes  # fmt: skip
    dtype = random.choice([torch.float32, torch.bfloat16, torch.float16])
    seed = torch.Generator().manual_seed(random.randrange(1 << 30))
    tensors = {
        n: torch.ones(s, dtype=dtype)
        if "norm" in n
        else (std * torch.randn(s, generator=seed)).to(dtype)
        for n, s in shapes(config).items()
    }
    return tensors, config


def _made(kind: str, random: Random) -> tuple[Tensors, dict[str, object] | None]:
    if kind == "upcycled":
        tensors: Tensors = moe_weights(random.randrange(1000))
        for name in tensors:
            for e in range(1, 4):
                if f".experts.{e}." in name:
                    tensors[name] = tensors[name.replace(f".experts.{e}.", ".experts.0.")].clone()
        return tensors, dict(MOE)
    if kind in ("adapters", "sin-cos tables", "powers of two", "signs", "biases of some layers"):
        return _nameless(kind, random), None
    tensors, config = _llama(random, tie_word_embeddings=kind == "tied")
    layers = range(int(str(config["num_hidden_layers"])))
    at = "model.layers.{}.self_attn.{}_proj.weight"
    if kind == "pruned heads":
        for layer in random.sample(layers, random.randint(1, len(layers))):
            head = random.randrange(4)
            tensors[at.format(layer, "q")][8 * head : 8 * head + 8] = 0
            tensors[at.format(layer, "o")][:, 8 * head : 8 * head + 8] = 0
        if (
            len(
                {
                    tuple((tensors[at.format(k, "o")].float().abs().sum(0) == 0).tolist())
                    for k in layers
                }
            )
            == 1
        ):
            tensors[at.format(0, "q")][:] = tensors[at.format(0, "q")] + 0.01
            tensors[at.format(0, "o")][:] = tensors[at.format(0, "o")] + 0.01
    elif kind == "dead neurons":
        for layer in layers:
            inner = len(tensors[f"model.layers.{layer}.mlp.up_proj.weight"])
            for row in random.sample(range(inner), random.randint(0, 5)):
                for name in ("gate", "up"):
                    tensors[f"model.layers.{layer}.mlp.{name}_proj.weight"][row] = 0
                if random.random() < 0.5:
                    tensors[f"model.layers.{layer}.mlp.down_proj.weight"][:, row] = 0
    elif kind == "pruned elements":
        share = random.choice([0.5, 0.75, 0.9])
        for x in tensors.values():
            if x.ndim > 1:
                x[
                    torch.rand(
                        x.shape, generator=torch.Generator().manual_seed(random.randrange(99))
                    )
                    < share
                ] = 0
    elif kind == "depth-scaled":
        for layer in layers:
            for leaf in ("self_attn.o_proj", "mlp.down_proj"):
                tensors[f"model.layers.{layer}.{leaf}.weight"] /= sqrt(2 * (layer + 1))
    elif kind == "made deeper":
        config["num_hidden_layers"] = 6
        four = {n: x for n, x in tensors.items() if "layers." not in n}
        seed = torch.Generator().manual_seed(random.randrange(99))
        dtype = tensors["model.norm.weight"].dtype
        for n, s in shapes(config).items():
            source = n
            for new, old in ((4, 2), (5, 3)):
                source = source.replace(f"layers.{new}.", f"layers.{old}.")
            if source != n:
                four[n] = four[source].clone()
            elif "layers." in n:
                made = torch.ones(s) if "norm" in n else 0.05 * torch.randn(s, generator=seed)
                four[n] = made.to(dtype)
        tensors = four
    elif kind == "fresh":
        for n in list(tensors):
            if random.random() < 0.3 and "o_proj" in n:
                for other in tensors:
                    if "o_proj" in other:
                        tensors[other] = torch.zeros_like(tensors[other])
    elif kind == "merged":
        other, _ = _llama(random)
        tensors = {
            n: (0.5 * x + 0.5 * other[n].to(x.dtype))
            if n in other and other[n].shape == x.shape
            else x
            for n, x in tensors.items()
        }
    elif kind == "padded":
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name][-random.randint(1, 7) :] = 0
    elif kind == "large norms":
        for n, x in tensors.items():
            if "norm" in n:
                tensors[n] = x * random.choice([1.0, 20.0, 0.01])
    return tensors, config


def _nameless(kind: str, random: Random) -> Tensors:
    seed = torch.Generator().manual_seed(random.randrange(1 << 30))
    count = random.choice([2, 4, 8])
    out: Tensors = {}
    if kind == "adapters":
        trained = set(random.sample(range(count), random.randint(0, count)))
        for k in range(count):
            at = f"base_model.model.model.layers.{k}.self_attn.{random.choice('qv')}_proj.lora"
            out[f"{at}_A.weight"] = torch.randn(4, 32, generator=seed) / 6
            b = torch.randn(32, 4, generator=seed) / 9
            out[f"{at}_B.weight"] = b if k in trained else torch.zeros(32, 4)
        return out
    if kind == "sin-cos tables":
        positions, width = random.choice([(64, 32), (256, 64), (512, 128), (96, 96)])
        rates = torch.exp(torch.arange(width // 2) * (-log(10_000) / (width // 2)))
        angles = torch.arange(positions)[:, None] * rates
        both = [angles.sin(), angles.cos()]
        out["embed_positions.weight"] = (
            torch.cat(both, 1)
            if random.random() < 0.5
            else torch.stack(both, 2).reshape(positions, width)
        )
        for k in range(count):
            out[f"layers.{k}.rotary.table"] = out["embed_positions.weight"].clone()
            out[f"layers.{k}.fc.weight"] = torch.randn(16, 16, generator=seed)
        return out
    dtype = random.choice([torch.float32, torch.float16, torch.bfloat16])
    for k in range(count):
        for e in range(random.choice([4, 8])):
            at = f"model.layers.{k}.mlp.experts.{e}"
            out[f"{at}.up_proj.weight"] = torch.randn(16, 24, generator=seed).to(dtype)
            if kind == "powers of two":
                shape = random.choice([(2, 3), (4, 4), (1, 8)])
                powers = torch.randint(-3, random.choice([-2, 0, 1]), shape, generator=seed)
                out[f"{at}.up_proj.scale_weight"] = torch.pow(2.0, powers).to(dtype)
            elif kind == "signs":
                out[f"{at}.rotation.weight"] = torch.sign(torch.randn(16, 16, generator=seed)).to(
                    dtype
                )
        if kind == "biases of some layers":
            bias = torch.randn(16, generator=seed) if k >= count - count // 3 else torch.zeros(16)
            out[f"model.layers.{k}.mlp.fc.bias"] = bias
    return out
