"""Random faults: what a converter, a loader, a rank or a disk makes of some tensors of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

import torch

from tests.faults.mistakes import (
    Damage,
    by_group,
    components,
    convolution,
    cut_late,
    each,
    heads,
    interleaved,
    strided,
    to_halves,
    to_pairs,
    together,
    undone,
)
from tests.faults.random_checkpoints import Config, Tensors

Change = Callable[[torch.Tensor, Random], torch.Tensor]
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _matrices(tensors: Tensors) -> list[str]:
    found = [n for n, x in tensors.items() if x.ndim > 1 and x.numel() > 1]
    return found or [n for n, x in tensors.items() if x.numel()]


def _some(tensors: Tensors, random: Random) -> list[str]:
    """One tensor, a vector, all of one name, or a few."""
    matrices = _matrices(tensors)
    name = random.choice(matrices)
    alike = [n for n in matrices if NUMBER.sub("*", n) == NUMBER.sub("*", name)]
    vectors = [n for n, x in tensors.items() if x.ndim == 1 and x.numel() and "norm" not in n]
    few = random.sample(matrices, min(3, len(matrices)))
    return random.choice([[name], [name], alike, alike, few, [random.choice(vectors or matrices)]])


def _changed(make: Change) -> Damage:
    """The same change of some tensors."""

    def fault(tensors: Tensors, config: Config, random: Random) -> Tensors:
        return {n: make(tensors[n].clone(), random) for n in _some(tensors, random)}

    return fault


def _floating(make: Change) -> Change:
    return lambda x, random: make(x, random) if x.is_floating_point() else x.flip(0)


def _span(n: int, random: Random) -> tuple[int, int]:
    lo = random.randrange(n)
    return lo, random.randint(lo + 1, min(n, lo + random.choice([1, 2, n // 4 + 1, n])))


def _part(x: torch.Tensor, random: Random) -> torch.Tensor:
    """Some rows, some columns, a rank's block on one axis or on two, or a flat range, as a view."""
    if not x.ndim:
        return x
    how = random.randrange(4)
    axis = random.randrange(x.ndim)
    if how == 0:
        lo, hi = _span(x.shape[axis], random)
        return x.narrow(axis, lo, hi - lo)
    if how == 1:
        parts = random.choice([2, 3, 4])
        return random.choice(x.chunk(parts, axis))
    if how == 2 and x.ndim > 1:
        block = random.choice(x.chunk(2, 0))
        return random.choice(block.chunk(2, 1))
    lo, hi = _span(x.numel(), random)
    return x.view(-1)[lo:hi]


def _within(change: Change) -> Damage:
    """A part of some tensors changed."""

    def make(x: torch.Tensor, random: Random) -> torch.Tensor:
        part = _part(x, random)
        part.copy_(change(part.clone(), random))
        return x

    return _changed(make)


def _noise(x: torch.Tensor, random: Random) -> torch.Tensor:
    """Numbers of some other step."""
    seed = torch.Generator().manual_seed(random.randrange(1 << 30))
    if not x.is_floating_point():
        return torch.randint(0, 2, x.shape, generator=seed).to(x.dtype)
    other = torch.randn(x.shape, generator=seed)
    near = x.float() + 0.01 * other
    return random.choice([near, other]).to(x.dtype)


def _elements(x: torch.Tensor, random: Random) -> torch.Tensor:
    flat = x.reshape(-1)
    for _ in range(random.choice([1, 3, 20, 200])):
        k = random.randrange(len(flat))
        flat[k] = flat[k] + random.choice([1e-3, 1.0, -7.0]) if x.is_floating_point() else ~flat[k]
    return flat.reshape(x.shape)


def _raw(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8).view(-1, x.element_size())


def _as(raw: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return raw.contiguous().view(-1).view(like.dtype).view(like.shape)


def _bits(x: torch.Tensor, random: Random) -> torch.Tensor:
    raw = _raw(x).clone()
    for _ in range(random.choice([1, 2, 30])):
        element, byte = random.randrange(len(raw)), random.randrange(raw.shape[1])
        raw[element, byte] ^= 1 if x.dtype == torch.bool else 1 << random.randrange(7)
    return _as(raw, x)


def _byte_swapped(x: torch.Tensor, random: Random) -> torch.Tensor:
    return _as(_raw(x).flip(1), x)


def _shuffled(x: torch.Tensor, random: Random) -> torch.Tensor:
    axis = random.randrange(x.ndim)
    order = random.sample(range(x.shape[axis]), x.shape[axis])
    return x.index_select(axis, torch.tensor(order))


def _rolled(x: torch.Tensor, random: Random) -> torch.Tensor:
    k = random.choice([-3, -1, 1, 2, 5])
    return random.choice([x.roll(k, 0), x.roll(k, -1), x.reshape(-1).roll(k).reshape(x.shape)])


def _off_by_rows(x: torch.Tensor, random: Random) -> torch.Tensor:
    """Rows one too late or too early; what is left over stays, is zero, or is noise."""
    k, rest = (
        random.choice([1, 2]),
        random.choice([x.clone(), torch.zeros_like(x), _noise(x, random)]),
    )
    if len(x) <= k:
        return x.flip(0)
    out = rest
    if random.random() < 0.5:
        out[k:] = x[:-k]
    else:
        out[:-k] = x[k:]
    return out


def _in_blocks(x: torch.Tensor, random: Random) -> torch.Tensor:
    axis, parts = random.randrange(x.ndim), random.choice([2, 3, 4, 8])
    blocks = x.chunk(parts, axis)
    n = len(blocks)
    order = random.choice([random.sample(range(n), n), [random.randrange(n) for _ in range(n)]])
    taken = torch.cat([blocks[k] for k in order], axis)
    return taken if taken.shape == x.shape else x.flip(axis)


def _turned_within(x: torch.Tensor, random: Random) -> torch.Tensor:
    """The rows of one rank rolled, reversed or shuffled."""
    axis, parts = random.randrange(x.ndim), random.choice([2, 4])
    block = random.choice(x.chunk(parts, axis))
    n = block.shape[axis]
    order = random.choice([random.sample(range(n), n), [*range(n)][::-1], [*range(1, n), 0]])
    block.copy_(block.index_select(axis, torch.tensor(order)))
    return x


def _each_factor(x: torch.Tensor, random: Random) -> torch.Tensor:
    """A factor for every row or column, as where a scale was forgotten."""
    axis = random.randrange(x.ndim)
    shape = [n if k == axis else 1 for k, n in enumerate(x.shape)]
    factors = 0.5 + torch.rand(shape, generator=torch.Generator().manual_seed(random.randrange(99)))
    return (x.float() * factors).to(x.dtype)


def _numbered(
    what: str, mapping: Callable[[int, Random], Sequence[int]], some: Sequence[str]
) -> Damage:
    """Layers or experts, or one matrix of each, in other places."""

    def fault(tensors: Tensors, config: Config, random: Random) -> Tensors:
        at = re.compile(rf"\b{what}\.(\d+)\.")
        count = 1 + max((int(f[1]) for n in tensors if (f := at.search(n))), default=-1)
        if count < 2:
            return {}
        sources, only = mapping(count, random), random.choice(some)
        out = {}
        for name in tensors:
            found = at.search(name)
            if found is None or only not in name or int(found[1]) == (k := sources[int(found[1])]):
                continue
            other = tensors.get(at.sub(f"{what}.{k}.", name, count=1))
            if other is not None and other.shape == tensors[name].shape:
                out[name] = other.clone()
        return out

    return fault


def _swap_two(n: int, random: Random) -> list[int]:
    a, b = random.sample(range(n), 2)
    order = list(range(n))
    order[a], order[b] = b, a
    return order


def _copy_one(n: int, random: Random) -> list[int]:
    a, b = random.sample(range(n), 2)
    return [b if k == a else k for k in range(n)]


def _shift(n: int, random: Random) -> list[int]:
    first, k = random.randrange(n), random.choice([-1, 1])
    if random.random() < 0.2:
        return [(j - k) % n for j in range(n)]
    return [min(max(j - k, 0), n - 1) if j >= first else j for j in range(n)]


def _any_order(n: int, random: Random) -> list[int]:
    return random.choice([random.sample(range(n), n), [random.randrange(n) for _ in range(n)]])


def _first_block(n: int, random: Random) -> list[int]:
    size = max(1, n // 2)
    return [k % size for k in range(n)]


def _made_anew(what: str) -> Damage:
    """All matrices of some layers or experts of another step, zero or NaN."""

    def fault(tensors: Tensors, config: Config, random: Random) -> Tensors:
        at = re.compile(rf"\b{what}\.(\d+)\.")
        numbers = sorted({int(f[1]) for n in tensors if (f := at.search(n))})
        if len(numbers) < 2:
            return {}
        lo, hi = _span(len(numbers), random)
        make = random.choice(
            [_noise, lambda x, r: torch.zeros_like(x), _floating(lambda x, r: x * float("nan"))]
        )
        return {
            n: make(x.clone(), random)
            for n, x in tensors.items()
            if (f := at.search(n)) and int(f[1]) in numbers[lo:hi] and "norm" not in n
        }

    return fault


def _names_swapped(tensors: Tensors, config: Config, random: Random) -> Tensors:
    name = random.choice(_matrices(tensors))
    like = [n for n, x in tensors.items() if n != name and x.shape == tensors[name].shape]
    if not like:
        return {}
    other = random.choice(like)
    out = {name: tensors[other].clone()}
    return out | {other: tensors[name].clone()} if random.random() < 0.5 else out


def _roles_swapped(tensors: Tensors, config: Config, random: Random) -> Tensors:
    """Gate and up, or key and value, in each other's place, of some layers or of all."""
    one, other = random.choice([("gate_proj", "up_proj"), ("k_proj", "v_proj"), ("w1", "w3")])
    only = random.choice(["", "layers.1."])
    found = [
        n for n in tensors if f".{one}." in n and only in n and n.replace(one, other) in tensors
    ]
    out = {}
    for name in found:
        twin = name.replace(f".{one}.", f".{other}.")
        if twin in tensors and tensors[twin].shape == tensors[name].shape:
            out |= {name: tensors[twin].clone(), twin: tensors[name].clone()}
    return out


GATED = (("gate_proj", "up_proj"), ("w1", "w3"))
QKV = ("q_proj", "k_proj", "v_proj")


def _fused(roles: Sequence[str], change: Callable[..., Sequence[torch.Tensor]]) -> Damage:
    """A mistake with tensors that are stored as one, in all layers or in one."""

    def fault(tensors: Tensors, config: Config, random: Random) -> Tensors:
        names = [n for n in tensors if any(f".{r}.weight" in n for r in roles)]
        if random.random() < 0.3:
            names = [n for n in names if "layers.1." in n]
        held = {n: tensors[n] for n in names}
        try:
            return together(roles, change)(held, config, random) if _evenly(held, roles) else {}
        except RuntimeError:
            return {}  # sizes that so many ranks cannot cut

    return fault


def _evenly(held: Tensors, roles: Sequence[str]) -> bool:
    return any(f".{roles[0]}." in n for n in held) and all(
        n.replace(roles[0], r) in held for n in held if f".{roles[0]}." in n for r in roles
    )


def _either(*faults: Damage) -> Damage:
    return lambda tensors, config, random: random.choice(faults)(tensors, config, random)


def _projections(pattern: str, change: Callable[..., torch.Tensor]) -> Damage:
    def fault(tensors: Tensors, config: Config, random: Random) -> Tensors:
        width = config.get("head_dim", 0)
        fits = {
            n: x for n, x in tensors.items()
            if re.search(pattern, n) and x.ndim > 1 and width and x.shape[0] % (2 * width) == 0
        }  # fmt: skip
        return each(pattern, change)(fits, config, random) if fits else {}

    return fault


def _if_linear(damage: Damage) -> Damage:
    return lambda tensors, config, random: (
        damage(tensors, config, random) if "linear_num_key_heads" in config else {}
    )


def _gated(change: Callable[..., Sequence[torch.Tensor]]) -> Damage:
    return _either(*(_fused(roles, change) for roles in GATED))


def _dtype(tensors: Tensors, config: Config, random: Random) -> Tensors:
    """Some tensors, or all, stored in another element type."""
    to = random.choice([torch.float16, torch.bfloat16, torch.float32, torch.float64])
    names = random.choice([_some(tensors, random), [*tensors]])
    return {n: tensors[n].to(to) for n in names if tensors[n].is_floating_point()}


def _relabelled(tensors: Tensors, config: Config, random: Random) -> Tensors:
    """The bits of some tensors, or of all, under another element type of the same width."""
    widths = {2: (torch.float16, torch.bfloat16, torch.int16), 4: (torch.float32, torch.int32)}
    names = random.choice([_some(tensors, random), [*tensors]])
    given = {n: random.choice(widths.get(tensors[n].element_size(), [None])) for n in names}
    return {
        n: tensors[n].contiguous().view(to)
        for n, to in given.items()
        if to is not None and to != tensors[n].dtype
    }


FAULTS: dict[str, Damage] = {
    "elements": _changed(_elements),
    "bits": _changed(_bits),
    "a part stale": _within(_noise),
    "a part zero": _within(lambda x, r: torch.zeros_like(x)),
    "a part NaN": _within(_floating(lambda x, r: torch.full_like(x, float("nan")))),
    "a part scaled": _within(_floating(lambda x, r: x * 1.5)),
    "a part negated": _within(_floating(lambda x, r: -x)),
    "a part byte-swapped": _within(_byte_swapped),
    "a part reversed": _within(lambda x, r: x.flip(0) if x.ndim else x),
    "a rank's rows turned": _changed(_turned_within),
    "stale": _changed(_noise),
    "shuffled": _changed(_shuffled),
    "rolled": _changed(_rolled),
    "rows off by one": _changed(_off_by_rows),
    "blocks": _changed(_in_blocks),
    "transposed": _changed(lambda x, r: x.mT.reshape(x.shape) if x.ndim > 1 else x.flip(0)),
    "reversed": _changed(lambda x, r: x.flip(r.randrange(x.ndim))),
    "rounded": _changed(_floating(lambda x, r: x.to(r.choice([torch.bfloat16, torch.float16, torch.float8_e4m3fn])).to(x.dtype))),
    "scaled": _changed(_floating(lambda x, r: x * r.choice([2.0, 0.5, 3.0, 1.1, -1.5, 8**-0.5]))),
    "a factor for each": _changed(_floating(_each_factor)),
    "added": _changed(_floating(lambda x, r: x + r.choice([1.0, -1.0, 0.25]))),
    "negated": _changed(_floating(lambda x, r: -x)),
    "byte-swapped": _changed(_byte_swapped),
    "zero": _changed(lambda x, r: torch.zeros_like(x)),
    "constant": _changed(lambda x, r: torch.full_like(x, r.choice([1, 2]))),
    "NaN here and there": _changed(_floating(lambda x, r: torch.where(torch.rand(x.shape, generator=torch.Generator().manual_seed(r.randrange(99))) < 0.02, float("nan"), x))),
    "another element type": _dtype,
    "the same bits under another type": _relabelled,
    "layers swapped": _numbered("layers", _swap_two, ("", "", "q_proj", "mlp")),
    "a layer copied": _numbered("layers", _copy_one, ("", "", "o_proj", "mlp")),
    "layers shifted": _numbered("layers", _shift, ("", "", "q_proj", "mlp")),
    "layers in any order": _numbered("layers", _any_order, ("", "", "k_proj", "mlp")),
    "layers anew": _made_anew("layers"),
    "experts swapped": _numbered("experts", _swap_two, ("", "layers.1.", "up_proj", "w2")),
    "an expert copied": _numbered("experts", _copy_one, ("", "layers.1.", "up_proj", "w2")),
    "experts in any order": _numbered("experts", _any_order, ("", "layers.1.", "up_proj", "w1")),
    "the first rank's experts": _numbered("experts", _first_block, ("", "layers.1.")),
    "experts anew": _made_anew("experts"),
    "names swapped": _names_swapped,
    "roles swapped": _roles_swapped,
    "gate and up by ranks": _either(_gated(interleaved(2)), _gated(interleaved(4)), _gated(undone(2))),
    "gate and up row by row": _gated(lambda config, x, y: interleaved(len(x))(config, x, y)),
    "gate and up cut elsewhere": _either(_gated(cut_late(1)), _gated(cut_late(-2))),
    "query, key, value by group": _fused(QKV, by_group),
    "query, key, value by ranks": _either(_fused(QKV, interleaved(2)), _fused(QKV, undone(2))),
    "query, key, value cut elsewhere": _either(_fused(QKV, cut_late(3)), _fused(QKV, cut_late(-1))),
    "heads permuted": _projections(r"\b(q|k|v)_proj\.", heads),
    "rotary": _either(_projections(r"\b(q|k)_proj\.", to_pairs), _projections(r"\b(q|k)_proj\.", to_halves)),
    "strided shards": _either(
        _projections(r"_proj\.", strided(2, 4)), _projections(r"_proj\.", strided(2, 2)), _projections(r"_proj\.", strided(4, 2))
    ),
    "linear attention by ranks": _if_linear(_either(components(2), convolution(2))),
}  # fmt: skip
"""Every kind of fault; one that a model has no tensors for changes nothing."""


def random_fault(tensors: Tensors, config: Config, random: Random) -> tuple[str, Tensors]:
    """One fault, or two upon each other: what they are called, and the tensors that they changed."""
    told, out = [], dict[str, torch.Tensor]()
    wanted = random.choice([1, 1, 2])
    while len(told) < wanted:
        name = random.choice([*FAULTS])
        changed = FAULTS[name](tensors | out, config, random)
        if changed:
            told.append(name)
            out |= {n: x.contiguous() for n, x in changed.items()}
    return " and ".join(told), out


def lost(tensors: Tensors, random: Random) -> set[str]:
    """Some tensors that were never saved: one, those of a layer, those of an expert."""
    name = random.choice([*tensors])
    number = re.search(random.choice([r"\blayers\.\d+\.", r"\bexperts\.\d+\."]), name)
    return {n for n in tensors if number[0] in n} if number else {name}
