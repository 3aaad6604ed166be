"""Models that are sound and look odd: pruned, upcycled, fresh, merged, adapters, tables, tiny ones.

NaN is never sound, not in padding either: nothing that trains or serves keeps it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import log, sqrt
from pathlib import Path
from random import Random

import torch

from tests.checkpoints import write_hf
from tests.faults.random_checkpoints import NAMELESS as NAMELESS_FAMILY
from tests.faults.random_checkpoints import Config, Drawn, Tensors

Odd = Callable[[Tensors, Random], None]
NUMBERED = re.compile(r"\.(\d+)\.")
STD = 0.05


def odd_model(kind: str, random: Random, folder: Path) -> Path:
    """A model of one of the kinds: of a random family, format and mesh, or of no family."""
    if kind in NAMELESS:
        tensors = NAMELESS[kind](random)
        return write_hf(folder, _plain(tensors), None, min(random.choice([1, 1, 2]), len(tensors)))
    while True:
        drawn = Drawn.of(random)
        if drawn.family == NAMELESS_FAMILY:
            continue
        held, config = _fresh(drawn, random), dict(drawn.config)
        if WITH_CONFIG.get(kind, lambda config, tensors: True)(config, held):
            break
    OF_FAMILIES[kind](held, random)
    if kind == "tied copies":  # only the hub has a place for the copy
        return write_hf(folder, _plain(held), config)
    return Drawn(
        drawn.family, drawn.dtype, drawn.format, drawn.mesh, drawn.files, drawn.seed, config
    ).write(folder, _plain(held))


def _plain(tensors: Tensors) -> Tensors:
    return {n: x.clone().contiguous() for n, x in tensors.items()}


def _fresh(drawn: Drawn, random: Random) -> Tensors:
    """The weights of a model as training begins: normal, norms of ones."""
    seed = torch.Generator().manual_seed(random.randrange(1 << 30))
    return {
        n: torch.ones_like(x)
        if "norm" in n
        else (STD * torch.randn(x.shape, generator=seed)).to(x.dtype)
        for n, x in drawn.tensors.items()
    }


def _matrices(tensors: Tensors) -> list[str]:
    return [n for n, x in tensors.items() if x.ndim > 1]


def _seed(random: Random) -> torch.Generator:
    return torch.Generator().manual_seed(random.randrange(1 << 30))


def _named(tensors: Tensors, pattern: str) -> list[str]:
    return [n for n in tensors if re.search(pattern, n)]


def _pruned_heads(tensors: Tensors, random: Random) -> None:
    """Some heads of some layers are zero, in another way in each."""
    queries = _named(tensors, r"self_attn\.q_proj\.weight")
    pruned = random.sample(queries, random.randint(1, len(queries))) if queries else []
    for k, name in enumerate(pruned):
        out = tensors[name.replace("q_proj", "o_proj")]
        width = out.shape[1] // 4
        head = (
            (k + random.randrange(2)) % 4
            if len(pruned) < len(queries) or k
            else random.randrange(4)
        )
        at = slice(width * head, width * (head + 1))
        out[:, at] = 0
        if len(tensors[name]) == out.shape[1]:
            tensors[name][at] = 0
    patterns = {
        tuple((tensors[n.replace("q_proj", "o_proj")] == 0).all(0).tolist()) for n in queries
    }
    if len(patterns) == 1 and queries:  # the same heads everywhere look like a rank's
        tensors[queries[0].replace("q_proj", "o_proj")].add_(0.01)
        tensors[queries[0]].add_(0.01)


def _dead_neurons(tensors: Tensors, random: Random) -> None:
    for name in _named(tensors, r"\.(up_proj|w3)\.weight"):
        rows = random.sample(range(len(tensors[name])), random.randint(0, 3))
        twins = [name, name.replace("up_proj", "gate_proj").replace("w3", "w1")]
        down = name.replace("up_proj", "down_proj").replace("w3", "w2")
        for row in rows:
            for twin in twins:
                tensors[twin][row] = 0
            if random.random() < 0.5:
                tensors[down][:, row] = 0


def _pruned_elements(tensors: Tensors, random: Random) -> None:
    share = random.choice([0.5, 0.75, 0.9])
    for name in _matrices(tensors):
        x = tensors[name]
        x[torch.rand(x.shape, generator=_seed(random)) < share] = 0


def _two_of_four(tensors: Tensors, random: Random) -> None:
    """Of each four neighbours the two smaller are zero."""
    for name in _matrices(tensors):
        x = tensors[name]
        if x.shape[-1] % 4 == 0:
            fours = x.reshape(-1, 4)
            small = fours.float().abs().argsort(1)[:, :2]
            tensors[name] = fours.scatter(1, small, 0).reshape(x.shape)


def _upcycled(tensors: Tensors, random: Random) -> None:
    """Every expert is a copy of the first, or nearly."""
    noise = random.choice([0.0, 0.0, 1e-3])
    for name in _named(tensors, r"\.experts\.\d+\."):
        first = re.sub(r"\.experts\.\d+\.", ".experts.0.", name)
        if first != name:
            made = tensors[first].float()
            if noise:  # adding zeros would change the signs of some
                made = made + noise * torch.randn(made.shape, generator=_seed(random))
            tensors[name] = made.to(tensors[name].dtype)


def _depth_scaled(tensors: Tensors, random: Random) -> None:
    for name in _named(tensors, r"layers\.\d+\..*(o_proj|down_proj|w2)\."):
        tensors[name] /= sqrt(2 * (int(NUMBERED.findall(name)[0]) + 1))


def _made_deeper(tensors: Tensors, random: Random) -> None:
    """The last two layers of six are copies of the two before them."""
    for name in list(tensors):
        for new, old in ((4, 2), (5, 3)):
            if f"layers.{new}." in name:
                tensors[name] = tensors[name.replace(f"layers.{new}.", f"layers.{old}.")].clone()


def _zero_outputs(tensors: Tensors, random: Random) -> None:
    """A matrix of every layer begins as zeros, as in many recipes; so do all biases."""
    role = random.choice(["o_proj", "down_proj|w2", "o_proj|down_proj|w2", "v_proj"])
    for name in _named(tensors, rf"\.({role})\.weight|bias"):
        tensors[name].zero_()


def _constants(tensors: Tensors, random: Random) -> None:
    """Vectors begin as one number: ones, zeros or a small constant."""
    number = random.choice([0.0, 1.0, 1e-6, 0.5])
    for name, x in tensors.items():
        if x.ndim == 1 and ("norm" not in name or number):
            x.fill_(number)


def _merged(tensors: Tensors, random: Random) -> None:
    """The mean of two models, or the sum of one and the difference of others."""
    for name in _matrices(tensors):
        other = STD * torch.randn(tensors[name].shape, generator=_seed(random))
        tensors[name] = (0.5 * tensors[name].float() + 0.5 * other).to(tensors[name].dtype)


def _adapter_merged(tensors: Tensors, random: Random) -> None:
    """A low-rank change added to some projections; of some layers none, or only that."""
    role = random.choice(["q_proj", "v_proj", "up_proj", "_proj"])
    for name in _named(tensors, rf"{role}\.weight"):
        x, rank = tensors[name], random.choice([1, 4])
        if x.ndim == 2 and random.random() < 0.8:
            down, up = (torch.randn(n, rank, generator=_seed(random)) for n in x.shape)
            tensors[name] = (x.float() + 0.02 * (down @ up.T)).to(x.dtype)


def _low_rank(tensors: Tensors, random: Random) -> None:
    for name in _matrices(tensors):
        x = tensors[name]
        if x.ndim == 2:
            down, up = (torch.randn(n, 2, generator=_seed(random)) for n in x.shape)
            tensors[name] = (STD * (down @ up.T)).to(x.dtype)


def _padded(tensors: Tensors, random: Random) -> None:
    rows = random.choice([1, 2, 3, 4, 5, 7])  # no equal share of a few ranks
    for name in _named(tensors, "embed_tokens|lm_head"):
        tensors[name][-rows:] = 0


def _unused_tokens(tensors: Tensors, random: Random) -> None:
    """Rows of tokens that never came up are zero."""
    n = len(tensors["model.embed_tokens.weight"])
    rows = random.sample(range(n), random.randint(1, n // 3))
    for name in _named(tensors, random.choice(["embed_tokens", "embed_tokens|lm_head"])):
        tensors[name][rows] = 0


def _large_norms(tensors: Tensors, random: Random) -> None:
    for name in _named(tensors, "norm"):
        tensors[name] = tensors[name] * random.choice([1.0, 20.0, 0.01])


def _equal_tokens(tensors: Tensors, random: Random) -> None:
    """New tokens begin as the mean of all others, and so are equal."""
    for name in _named(tensors, "embed_tokens|lm_head"):
        x = tensors[name]
        x[-random.randint(2, 8) :] = x.float().mean(0).to(x.dtype)


def _rounded(tensors: Tensors, random: Random) -> None:
    """Numbers of few bits, as a quantised model has them once it is dequantised."""
    levels = random.choice([2, 7, 16])
    for name in _matrices(tensors):
        x = tensors[name].float()
        scale = x.abs().amax(-1, keepdim=True) / levels
        tensors[name] = ((x / scale).round() * scale).to(tensors[name].dtype)


def _identities(tensors: Tensors, random: Random) -> None:
    """Projections begin as the identity, or as a part of it."""
    for name in _named(tensors, random.choice([r"o_proj\.weight", r"[qo]_proj\.weight"])):
        x = tensors[name]
        # A part of it, fused with key and value, has zero rows like those that a rank lost.
        if x.ndim == 2 and ("o_proj" in name or x.shape[0] == x.shape[1]):
            tensors[name] = torch.eye(*x.shape).to(x.dtype)


def _orthogonal(tensors: Tensors, random: Random) -> None:
    for name in _matrices(tensors):
        x = tensors[name]
        if x.ndim == 2:
            made = torch.nn.init.orthogonal_(torch.empty(x.shape), generator=_seed(random))
            tensors[name] = made.to(x.dtype)


def _nothing(tensors: Tensors, random: Random) -> None:
    """As training begins."""


def _tied_copies(tensors: Tensors, random: Random) -> None:
    """Both of two tied tensors are stored, and equal."""
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


OF_FAMILIES: dict[str, Odd] = {
    "fresh": _nothing, "pruned heads": _pruned_heads, "dead neurons": _dead_neurons,
    "pruned elements": _pruned_elements, "two of four": _two_of_four, "upcycled": _upcycled,
    "depth-scaled": _depth_scaled, "made deeper": _made_deeper, "zero outputs": _zero_outputs,
    "constant vectors": _constants, "merged": _merged, "an adapter merged": _adapter_merged,
    "low rank": _low_rank, "padded": _padded, "unused tokens": _unused_tokens, "equal tokens": _equal_tokens,
    "large norms": _large_norms, "rounded": _rounded, "identities": _identities, "orthogonal": _orthogonal,
    "tied copies": _tied_copies,
}  # fmt: skip
WITH_CONFIG: dict[str, Callable[[Config, Tensors], bool]] = {
    "upcycled": lambda config, tensors: any(".experts." in n for n in tensors),
    "made deeper": lambda config, tensors: config["num_hidden_layers"] == 6,
    "tied copies": lambda config, tensors: config["tie_word_embeddings"],
    "pruned heads": lambda config, tensors: config["model_type"] in ("qwen3", "llama", "qwen2", "qwen3_moe"),
}  # fmt: skip
"""Which models a kind is made of, where it is not all."""


def _adapters(random: Random) -> Tensors:
    seed, count, out = _seed(random), random.choice([2, 4, 8]), {}
    trained = set(random.sample(range(count), random.randint(0, count)))
    for k in range(count):
        at = f"base_model.model.model.layers.{k}.self_attn.{random.choice('qv')}_proj.lora"
        out[f"{at}_A.weight"] = torch.randn(4, 32, generator=seed) / 6
        b = torch.randn(32, 4, generator=seed) / 9
        out[f"{at}_B.weight"] = b if k in trained else torch.zeros(32, 4)
    return out


def _tables(random: Random) -> Tensors:
    """Positions as sines and cosines, side by side or in turn, the same in every layer."""
    positions, width = random.choice([(64, 32), (256, 64), (512, 128), (96, 96)])
    rates = torch.exp(torch.arange(width // 2) * (-log(10_000) / (width // 2)))
    angles = torch.arange(positions)[:, None] * rates
    both = [angles.sin(), angles.cos()]
    table = random.choice(
        [torch.cat(both, 1), torch.stack(both, 2).reshape(positions, width), torch.cat([random.choice(both)] * 2, 1)]
    )  # fmt: skip
    table = table.to(random.choice([torch.float32, torch.bfloat16, torch.float16]))
    out = {"embed_positions.weight": table}
    for k in range(random.choice([2, 4, 8])):
        out[f"layers.{k}.rotary.table"] = table.clone()
        out[f"layers.{k}.fc.weight"] = torch.randn(16, 16, generator=_seed(random))
    return out


def _experts(extra: Callable[[Random, torch.dtype], Tensors]) -> Callable[[Random], Tensors]:
    def make(random: Random) -> Tensors:
        dtype, out = random.choice([torch.float32, torch.float16, torch.bfloat16]), {}
        for k in range(random.choice([2, 4])):
            for e in range(random.choice([4, 8])):
                at = f"model.layers.{k}.mlp.experts.{e}"
                weight = torch.randn(16, 24, generator=_seed(random)).to(dtype)
                out[f"{at}.up_proj.weight"] = weight
                out |= {f"{at}.{n}": x for n, x in extra(random, dtype).items()}
        return out

    return make


def _powers(random: Random, dtype: torch.dtype) -> Tensors:
    shape = random.choice([(2, 3), (4, 4), (1, 8)])
    powers = torch.randint(-3, random.choice([-2, 0, 1]), shape, generator=_seed(random))
    return {"up_proj.scale_weight": torch.pow(2.0, powers).to(dtype)}


def _signs(random: Random, dtype: torch.dtype) -> Tensors:
    return {"rotation.weight": torch.sign(torch.randn(16, 16, generator=_seed(random))).to(dtype)}


def _some_biases(random: Random) -> Tensors:
    count, out = random.choice([2, 4, 8]), {}
    for k in range(count):
        out[f"model.layers.{k}.mlp.fc.weight"] = torch.randn(16, 24, generator=_seed(random))
        trained = k >= count - count // 3
        bias = torch.randn(16, generator=_seed(random)) if trained else torch.zeros(16)
        out[f"model.layers.{k}.mlp.fc.bias"] = bias
        out[f"model.layers.{k}.mlp.gate.e_score_correction_bias"] = bias[:8].clone()
    return out


def _buffers(random: Random) -> Tensors:
    """Masks, positions, counters and slopes beside the weights of each layer."""
    out, n = {}, random.choice([8, 32])
    for k in range(random.choice([1, 3])):
        at = f"h.{k}.attn"
        out |= {
            f"{at}.bias": torch.ones(n, n).tril().bool().reshape(1, 1, n, n),
            f"{at}.masked_bias": torch.tensor(-1e4),
            f"{at}.position_ids": torch.arange(n).reshape(1, n),
            f"{at}.rotary_emb.inv_freq": 10_000.0 ** -(torch.arange(n) / n),
            f"{at}.slopes": 2.0 ** -torch.arange(1, 9),
            f"{at}.relative_position_index": (torch.arange(n)[:, None] - torch.arange(n)).abs(),
            f"{at}.num_batches_tracked": torch.tensor(random.randrange(3)),
            f"{at}.running_mean": torch.zeros(n),
            f"{at}.running_var": torch.ones(n),
            f"{at}.c_attn.weight": STD * torch.randn(n, 3 * n, generator=_seed(random)),
        }
    return out


def _tiny(random: Random) -> Tensors:
    """A few tensors of one to eight elements of any type, of which one at most is of 64 bits."""
    out = {}
    types = [torch.float32, torch.bfloat16, torch.uint8, torch.bool]
    types.append(random.choice([torch.float64, torch.int64]))
    for k in range(random.randint(1, 6)):
        shape = random.choice([(), (1,), (2,), (1, 1), (2, 2), (1, 8), (8,), (2, 2, 2), (3, 1)])
        made = torch.randn(shape, generator=_seed(random)).mul(3).to(random.choice(types))
        name = random.choice(["layers.{}.weight", "w{}", "a.{}.b.weight", "block.{}.shift"])
        fill = random.choice([made, made, torch.ones_like(made)])
        out[name.format(k)] = fill
    return out


def _quantised(random: Random) -> Tensors:
    """Weights of eight bits with the scale of each block, some of which are equal."""
    out = {}
    for k in range(random.choice([2, 4])):
        for role in ("q_proj", "up_proj", "down_proj"):
            at = f"model.layers.{k}.{role}.weight"
            weight = torch.randn(32, 32, generator=_seed(random)).to(torch.float8_e4m3fn)
            scale = torch.rand(2, 2, generator=_seed(random)) + 0.5
            kept = random.choice([scale, torch.ones(2, 2), 2.0 ** scale.log2().floor()])
            out |= {at: weight, f"{at}_scale_inv": kept}
    return out


NAMELESS: dict[str, Callable[[Random], Tensors]] = {
    "adapters": _adapters, "sin-cos tables": _tables, "powers of two": _experts(_powers),
    "signs": _experts(_signs), "biases of some layers": _some_biases, "buffers": _buffers, "tiny": _tiny,
    "quantised": _quantised,
}  # fmt: skip
"""Models of no family, which have no configuration."""

ODD = (*OF_FAMILIES, *NAMELESS)
