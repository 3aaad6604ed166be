"""Mistakes with weights, each as some converter, loader or trainer has made it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

import torch

from tests.faults.reference import Config, Tensors

Damage = Callable[[Tensors, Config, Random], Tensors]
Change = Callable[[torch.Tensor, Config, Random], torch.Tensor]


def each(pattern: str, change: Change) -> Damage:
    """The same change of every tensor whose name matches."""

    def damage(tensors: Tensors, config: Config, random: Random) -> Tensors:
        found = {n: t for n, t in tensors.items() if re.search(pattern, n)}
        assert found, pattern
        return {n: change(t.clone(), config, random) for n, t in found.items()}

    return damage


def together(roles: Sequence[str], change: Callable[..., Sequence[torch.Tensor]]) -> Damage:
    """The same change of every group of tensors, of which `roles` are the names."""

    def damage(tensors: Tensors, config: Config, random: Random) -> Tensors:
        out: Tensors = {}
        for name in tensors:
            if f".{roles[0]}." in name:
                names = [name.replace(roles[0], role) for role in roles]
                out |= dict(zip(names, change(config, *[tensors[n] for n in names]), strict=True))
        assert out, roles
        return out

    return damage


def resplit(fused: torch.Tensor, parts: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return fused.split([len(p) for p in parts])


def interleaved(tp: int) -> Callable[..., Sequence[torch.Tensor]]:
    """Each rank's parts one after the other, then cut as if the whole had been fused."""

    def change(config: Config, *parts: torch.Tensor) -> Sequence[torch.Tensor]:
        shards = [p.chunk(tp) for p in parts]
        return resplit(torch.cat([s[t] for t in range(tp) for s in shards]), parts)

    return change


def undone(tp: int) -> Callable[..., Sequence[torch.Tensor]]:
    """The whole fused, then cut as if each rank had fused its own."""

    def change(config: Config, *parts: torch.Tensor) -> Sequence[torch.Tensor]:
        blocks = torch.cat(list(parts)).chunk(tp)
        cut = [b.split([len(p) // tp for p in parts]) for b in blocks]
        return [torch.cat([c[k] for c in cut]) for k in range(len(parts))]

    return change


def cut_late(by: int) -> Callable[..., Sequence[torch.Tensor]]:
    """The whole fused, then cut some rows after the place where a part begins."""

    def change(config: Config, *parts: torch.Tensor) -> Sequence[torch.Tensor]:
        return resplit(torch.cat(list(parts)).roll(-by, 0), parts)

    return change


def by_group(config: Config, *parts: torch.Tensor) -> Sequence[torch.Tensor]:
    """Megatron's order of query, key and value, taken for one after the other."""
    groups = config["num_key_value_heads"]
    fused = torch.cat([p.reshape(groups, -1, p.shape[-1]) for p in parts], 1)
    return resplit(fused.reshape(-1, parts[0].shape[-1]), parts)


def to_pairs(x: torch.Tensor, config: Config, random: Random) -> torch.Tensor:
    """Rotary halves to pairs."""
    width = config["head_dim"]
    return x.reshape(-1, 2, width // 2, x.shape[-1]).transpose(1, 2).reshape(x.shape)


def to_halves(x: torch.Tensor, config: Config, random: Random) -> torch.Tensor:
    """Rotary pairs to halves."""
    width = config["head_dim"]
    return x.reshape(-1, width // 2, 2, x.shape[-1]).transpose(1, 2).reshape(x.shape)


def blocks(order: Sequence[int], axis: int = 0) -> Change:
    """Blocks of an axis in another order, or some of them twice."""

    def change(x: torch.Tensor, config: Config, random: Random) -> torch.Tensor:
        parts = x.chunk(len(order), axis)
        return torch.cat([parts[k] for k in order], axis)

    return change


def heads(x: torch.Tensor, config: Config, random: Random) -> torch.Tensor:
    """Heads in an order that is no plain pattern."""
    count = x.shape[0] // config["head_dim"]
    order = [1, 0, *range(2, count)]
    return blocks(order)(x, config, random)


def strided(fsdp: int, tp: int) -> Change:
    """FSDP over TP, whose shards are put down one after the other."""

    def change(x: torch.Tensor, config: Config, random: Random) -> torch.Tensor:
        shards = [part.chunk(fsdp) for part in x.chunk(tp)]
        return torch.cat([s[d] for d in range(fsdp) for s in shards if d < len(s)])

    return change


def block_of(
    rank: int, parts: int, fill: Callable[[torch.Tensor], torch.Tensor], axis: int = 0
) -> Change:
    """One rank's block holds something else."""

    def change(x: torch.Tensor, config: Config, random: Random) -> torch.Tensor:
        block = x.chunk(parts, axis)[rank]
        block.copy_(fill(block))
        return x

    return change


def older(x: torch.Tensor) -> torch.Tensor:
    """Weights of some other step."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(x.numel()))
    return (x + noise).to(x.dtype)


def rolled(by: int) -> Change:
    """A flat buffer read from the wrong element on."""

    def change(x: torch.Tensor, config: Config, random: Random) -> torch.Tensor:
        flat = x.reshape(-1)
        return torch.cat([torch.zeros(by, dtype=x.dtype), flat[:-by]]).reshape(x.shape)

    return change


def scattered_nan(x: torch.Tensor, config: Config, random: Random) -> torch.Tensor:
    for _ in range(9):
        x.view(-1)[random.randrange(x.numel())] = float("nan")
    return x


def experts(
    mapping: Callable[[int, int, int], int],
    fill: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
) -> Damage:
    """Expert `e` of layer `l` holds expert `mapping(e, count, l)`."""

    def damage(tensors: Tensors, config: Config, random: Random) -> Tensors:
        out, count = {}, config["num_experts"]
        for name, tensor in tensors.items():
            if found := re.search(r"layers\.(\d+)\..*experts\.(\d+)\.", name):
                layer, e = int(found[1]), int(found[2])
                source = mapping(e, count, layer)
                if source < 0:
                    out[name] = fill(tensor)
                else:
                    out[name] = tensors[name.replace(f"experts.{e}.", f"experts.{source}.")]
        return out

    return damage


def layers(
    mapping: Callable[[int, int], int], fill: Callable[[torch.Tensor], torch.Tensor] = torch.clone
) -> Damage:
    """Layer `l` holds layer `mapping(l, count)`; where that is -1, something else."""

    def damage(tensors: Tensors, config: Config, random: Random) -> Tensors:
        out, count = {}, config["num_hidden_layers"]
        for name, tensor in tensors.items():
            if found := re.search(r"layers\.(\d+)\.", name):
                layer = int(found[1])
                source = mapping(layer, count)
                if source < 0:
                    out[name] = fill(tensor)
                else:
                    out[name] = tensors[name.replace(f"layers.{layer}.", f"layers.{source}.")]
        return out

    return damage


def components(tp: int) -> Damage:
    """The parts of linear attention fused by every rank of `tp`, and read as one rank's."""

    def damage(tensors: Tensors, config: Config, random: Random) -> Tensors:
        keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
        dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
        per, out = values // keys, {}
        for name, qkvz in tensors.items():
            if not name.endswith("in_proj_qkvz.weight"):
                continue
            twin = name.replace("qkvz", "ba")
            hidden = qkvz.shape[1]
            sizes = [dk, dk, per * dv, per * dv]
            q, k, v, z = qkvz.reshape(keys, -1, hidden).split(sizes, 1)
            b, a = tensors[twin].reshape(keys, -1, hidden).split([per, per], 1)
            flat = [x.reshape(-1, hidden) for x in (q, k, v, z, b, a)]
            q2, k2, v2, z2, b2, a2 = interleaved(tp)(config, *flat)
            grouped = [x.reshape(keys, -1, hidden) for x in (q2, k2, v2, z2, b2, a2)]
            out[name] = torch.cat(grouped[:4], 1).reshape(qkvz.shape)
            out[twin] = torch.cat(grouped[4:], 1).reshape(tensors[twin].shape)
        return out

    return damage


def convolution(ranks: int) -> Damage:
    """The parts of a convolution sharded before they were joined."""

    def damage(tensors: Tensors, config: Config, random: Random) -> Tensors:
        q = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        out = {}
        for name, x in tensors.items():
            if name.endswith("conv1d.weight"):
                parts = x.split([q, q, len(x) - 2 * q])
                out[name] = torch.cat(list(interleaved(ranks)(config, *parts)))
        return out

    return damage
