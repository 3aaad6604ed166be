"""Sentences about places: which element of A each place of B holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tests.faults.statements.held import Array, Held, Sides, comparable

Ints = NDArray[np.int64]
Predicted = Iterator[Array]
"""What B would hold: one array, or several where a sentence leaves open which."""


def predictions(text: str, name: str, sides: Sides) -> Predicted | None:
    """What a sentence says that B holds under a name; None for a sentence of no known form."""
    for form, predict in FORMS:
        if found := re.fullmatch(form, text):
            return predict(found, name, sides)
    return None


def _axis(noun: str) -> int:
    return {"rows": 0, "columns": 1}.get(noun) if noun in ("rows", "columns") else int(noun[-1])  # type: ignore[return-value]


def _transposed(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    x = sides.a[name].bits
    if found["how"] == "transposed":
        yield x.swapaxes(-1, -2)
    elif found["how"].startswith("transposed, then"):
        yield x.swapaxes(-1, -2).reshape(x.shape)
    else:
        shape = (*x.shape[:-2], x.shape[-1], x.shape[-2])
        yield x.reshape(shape).swapaxes(-1, -2)


def _taken(x: Array, order: Ints, axis: int) -> Array:
    """NumPy's `take`; what is nowhere is zero."""
    out = np.take(x, np.maximum(order, 0), axis)
    shape = [-1 if k == axis else 1 for k in range(x.ndim)]
    return np.asarray(np.where((order >= 0).reshape(shape), out, x.dtype.type(0)))


def _shifted(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    x, axis, k = sides.a[name].bits, _axis(found["noun"]), int(found["n"])
    order = np.arange(x.shape[axis]) - k
    if found["around"]:
        yield _taken(x, order % x.shape[axis], axis)
    else:
        yield _taken(x, np.where((order >= 0) & (order < x.shape[axis]), order, -1), axis)


def _shifted_from(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    x, axis, k = sides.a[name].bits, _axis(found["noun"]), int(found["n"])
    start, n = int(found["start"].replace(",", "")), x.shape[axis]
    order = np.array(
        [i if i < start else i - k if start <= i - k < n or k < 0 else -1 for i in range(n)]
    )
    yield _taken(x, np.where(order < n, order, -1), axis)


def _shifted_flat(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    x, k = sides.a[name].bits, int(found["n"])
    order = np.arange(x.size) - k
    order = (
        order % x.size if found["around"] else np.where((order >= 0) & (order < x.size), order, -1)
    )
    yield _taken(x.reshape(-1), order, 0).reshape(x.shape)


def _in_blocks(order: Sequence[int], size: int, n: int) -> Ints:
    return np.concatenate([np.arange(k * size, min((k + 1) * size, n)) for k in order])


def _listed(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    """An order that is written out, or begins as it is written and goes on with equal blocks."""
    x = sides.a[name].bits
    noun = found.groupdict().get("noun") or "rows"
    axis = _axis(noun)
    size = int(found.groupdict().get("size") or 1)
    told = [int(k) if k != "?" else -1 for k in re.findall(r"-?\d+|\?", found["order"])]
    n = x.shape[axis]
    if max(told, default=0) * size >= n:
        return  # the order of a longer tensor
    if "…" not in found["order"]:
        if size == 1:
            yield _taken(x, np.array(told), axis)
        else:
            order = _in_blocks(told, size, n)
            if len(order) == n:
                yield _taken(x, order, axis)
        return
    known = np.concatenate(
        [np.arange(k * size, min((k + 1) * size, n)) if k >= 0 else np.full(size, -1) for k in told]
    )
    again = _found_again(sides.a[name], sides.b[name], axis, size, len(known))
    order = np.concatenate([known, again])
    yield _taken(x, order, axis)
    u, v = (np.moveaxis(side[name].bits, axis, 0).reshape(n, -1) for side in (sides.a, sides.b))
    found = (order >= 0) & ((u[order] == v).all(1) | (np.arange(n) < len(known)))
    for rows in (order, np.where(found, order, -1)):
        left = np.setdiff1d(np.arange(n), rows)
        if len(left) == np.count_nonzero(rows < 0):  # what nobody recognises may be what is left
            rows[rows < 0] = left
            yield _taken(x, rows, axis)


def _found_again(a: Held, b: Held, axis: int, size: int, start: int) -> Ints:
    """For the blocks of B from one on, the block of A that is it, or is most like it by its signs."""
    x, y = (z.bits for z in comparable(a, b))
    u, v = (np.moveaxis(z, axis, 0).reshape(z.shape[axis], -1) for z in (x, y))
    blocks = [u[k : k + size] for k in range(0, len(u), size)]
    top = x.dtype.type(1 << (8 * x.dtype.itemsize - 1))
    out, k = [], start
    while k < len(u):
        rows, own = v[k : k + size], u[k : k + size]
        wrong = rows != own

        def equal(at: int, rows: Array = rows, wrong: Array = wrong) -> int:
            """How many of the differing elements a block explains; the last block may be short."""
            n = len(blocks[at])
            return int((blocks[at] == rows[:n])[wrong[:n]].sum())

        def score(at: int, rows: Array = rows, wrong: Array = wrong) -> float:
            """The shares that a block explains, that are alike, and that of its signs: what was scaled has one or
            two alike by chance."""
            block = blocks[at]
            if len(block) > len(rows):
                return -1.0
            held = rows[: len(block)]
            signs = float(np.mean((block & top != 0) == (held & top != 0)))
            alike = float(np.mean(block == held))
            return 2 * equal(at) / max(wrong.sum(), 1) + alike + max(signs, 1 - signs)

        at = max(range(len(blocks)), key=score) if wrong.any() or k % size else k // size
        nowhere = int((rows == 0)[wrong].sum()) > equal(at)
        found = np.arange(at * size, at * size + len(blocks[at]))
        out.append(np.full(len(rows), -1) if nowhere else found)
        k += len(out[-1])
    return (
        np.minimum(np.concatenate(out), len(u) - 1)[: len(u) - start]
        if out
        else np.zeros(0, np.int64)
    )


def _strided(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    x, axis = sides.a[name].bits, _axis(found["noun"])
    fsdp, tp, size = int(found["fsdp"]), int(found["tp"]), int(found["size"])
    order = np.arange(fsdp * tp).reshape(tp, fsdp).T.reshape(-1)
    if int(found["count"]) == fsdp * tp:
        yield _taken(x, _in_blocks(order.tolist(), size, x.shape[axis]), axis)


def _reversed(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    yield np.flip(sides.a[name].bits, _axis(found["noun"]))


def _duplicated(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    x, axis = sides.a[name].bits, int(found["axis"])
    n = x.shape[axis]
    if found.groupdict().get("every"):
        count, source = int(found["count"]), int(found["every"])
        size = -(-n // count)
        yield _taken(x, _in_blocks([source] * count, size, n), axis)
        return
    size, count = int(found["size"]), int(found["count"])
    blocks = [*range(count)]
    for to, source in re.findall(r"(\d+) holds (\d+)", found["pairs"]):
        blocks[int(to)] = int(source)
    order = _in_blocks(blocks, size, n)
    if "…" in found["pairs"]:
        last = 1 + max(int(to) for to, _ in re.findall(r"(\d+) holds (\d+)", found["pairs"]))
        again = _found_again(sides.a[name], sides.b[name], axis, size, last * size)
        order = np.concatenate([_in_blocks(blocks[:last], size, n), again])
    if len(order) == n:
        yield _taken(x, order, axis)


def _rotary(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    """Halves to pairs; which rows of a head are turned is its start or, in latent attention, its end."""
    x = sides.a[name].bits
    size, width = int(found["size"]), int(found["width"])
    for first in dict.fromkeys((0, width - size)):
        order = np.arange(len(x)).reshape(-1, width)
        turned = order[:, first : first + size]
        pairs = turned.reshape(-1, 2, size // 2).swapaxes(1, 2).reshape(turned.shape)
        order = np.concatenate([order[:, :first], pairs, order[:, first + size :]], 1).reshape(-1)
        yield np.take(x, np.argsort(order) if found["back"] else order, 0)


def _gate_up(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    """One tensor that holds gate and up, on some axis."""
    x = sides.a[name].bits
    for axis, n in enumerate(x.shape):
        if n % 2:
            continue
        halves, turns = np.arange(n).reshape(2, n // 2), np.arange(n).reshape(n // 2, 2)
        order = {
            "gate and up swapped, as halves": halves[::-1].reshape(-1),
            "gate and up swapped, interleaved": turns[:, ::-1].reshape(-1),
            "gate and up are halves in A and interleaved in B": halves.T.reshape(-1),
            "gate and up are interleaved in A and halves in B": np.argsort(halves.T.reshape(-1)),
        }[found[0]]
        yield np.take(x, order, axis)


def _parts(name: str, title: str, sides: Sides) -> tuple[list[str], list[Ints]]:
    """The tensors that are stored as one, and the rows of all of them that each part has."""
    if title in ("gate and up", "query, key and value"):
        wanted = {
            "gate and up": (("gate_proj", "up_proj"), ("w1", "w3")),
            "query, key and value": (("q_proj", "k_proj", "v_proj"),),
        }[title]
        for roles in wanted:
            for role in roles:
                if f".{role}." in name:
                    names = [name.replace(f".{role}.", f".{r}.") for r in roles]
                    ends = np.cumsum([0, *(len(sides.a[n].bits) for n in names)])
                    return names, [np.arange(a, b) for a, b in pairwise(ends)]
        return [], []
    c = sides.config
    keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
    per = values // keys
    if "conv1d" in name:
        return [name], np.split(np.arange(len(sides.a[name].bits)), [keys * dk, 2 * keys * dk])
    names = [re.sub(r"in_proj_\w+", f"in_proj_{w}", name) for w in ("qkvz", "ba")]
    first = np.arange(len(sides.a[names[0]].bits)).reshape(keys, -1)
    second = np.arange(len(sides.a[names[1]].bits)).reshape(keys, -1) + first.size
    cut = [*np.split(first, np.cumsum([dk, dk, per * dv]), 1), *np.split(second, [per], 1)]
    return names, [part.reshape(-1) for part in cut]


def _grouped(name: str, title: str, sides: Sides, order: Callable[[list[int]], Ints]) -> Predicted:
    """A tensor of a group whose fused rows come in an order."""
    names, parts = _parts(name, title, sides)
    if not names:
        return
    fused = np.concatenate(parts)
    rows = np.empty(len(fused), np.int64)
    rows[fused] = fused[order([len(p) for p in parts])]
    start = sum(len(sides.a[n].bits) for n in names[: names.index(name)])
    mine = rows[start : start + len(sides.a[name].bits)]
    # Parts of unlike types are read as numbers of the type that the tensor has.
    each = [sides.a[n].to(sides.a[name].dtype).bits for n in names]
    held = np.concatenate([bits.reshape(len(bits), -1) for bits in each])
    yield held[mine].reshape(sides.a[name].shape)


def _starts(sizes: Sequence[int]) -> list[Ints]:
    ends = np.cumsum([0, *sizes])
    return [np.arange(a, b) for a, b in pairwise(ends)]


def _cut(rows: Ints, n: int) -> list[Ints]:
    size = -(-len(rows) // n)
    return [rows[k * size : (k + 1) * size] for k in range(n)]


def _interleaved(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    title = found["title"]

    def order(sizes: list[int]) -> Ints:
        n = int(found["n"]) if found["n"] else sizes[0]
        shards = [_cut(rows, n) for rows in _starts(sizes)]
        turns = np.concatenate([shard[t] for t in range(n) for shard in shards])
        return np.argsort(turns) if found["back"] else turns

    return _grouped(name, title, sides, order)


def _put_down(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    title, told = found["title"], found["order"].split(", ")

    def order(sizes: list[int]) -> Ints:
        n = int(found["n"] or 1)
        labels = {
            "gate and up": ("w1", "w3") if "w1" in told else ("gate_proj", "up_proj"),
            "query, key and value": ("q_proj", "k_proj", "v_proj"),
        }.get(title, ("query", "key", "value"))
        shards = dict(zip(labels, (_cut(rows, n) for rows in _starts(sizes)), strict=True))
        turns = np.concatenate([shards[w][t] for t in range(n) for w in told])
        return np.argsort(turns) if found["back"] else turns

    return _grouped(name, title, sides, order)


def _by_group(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    def order(sizes: list[int]) -> Ints:
        groups = [rows.reshape(int(found["n"]), -1) for rows in _starts(sizes)]
        fused = np.concatenate(groups, 1).reshape(-1)
        return np.argsort(fused) if found["how"] == "one by one and read group by group" else fused

    return _grouped(name, "query, key and value", sides, order)


def _fused_in_one(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    """One tensor that holds several parts, which lie in another form on each side."""
    x, axis = sides.a[name].bits, _axis(found["noun"])
    labels = re.split(r", | and ", found["title"])
    starts = _starts([int(n.replace(",", "")) for n in found["sizes"].split(", ")])

    def rows(form: str) -> Ints:
        cuts = re.match(r"in (\d+) (?:groups|shards)", form)
        count = len(starts[0]) if form.startswith("row by row") else int(cuts[1]) if cuts else 1
        told = re.search(r"in the order (.*)", form)
        order = told[1].split(", ") if told else labels
        parts = dict(zip(labels, starts, strict=True))
        return np.concatenate([parts[w].reshape(count, -1) for w in order], 1).reshape(-1)

    ways = [("a", "b"), ("c", "d"), ("one", "other"), ("other", "one")]
    told = [(found[one], found[other]) for one, other in ways if found[one]]
    orders = [np.argsort(rows(one))[rows(other)] for one, other in told]
    if all(np.array_equal(order, orders[0]) for order in orders):
        yield np.take(x, orders[0], axis)


def _cut_elsewhere(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    k = int(found["n"]) * (1 if found["when"] == "late" else -1)

    def order(sizes: list[int]) -> Ints:
        return np.roll(np.arange(sum(sizes)), -k)

    return _grouped(name, found["title"], sides, order)


def _mixed(found: re.Match[str], name: str, sides: Sides) -> Predicted:
    """Rows of a group in each other's place: each is the one of A that is most like it, and the runs are counted."""
    names, parts = _parts(name, found["title"], sides)
    if not names:
        return
    fused = np.concatenate(parts)
    u, v = (
        np.concatenate([side[n].bits.reshape(len(side[n].bits), -1) for n in names])[fused]
        for side in (sides.a, sides.b)
    )
    order = np.empty(len(v), np.int64)
    unique = len(np.unique(u, axis=0)) == len(u)
    for k, row in enumerate(v):
        alike = (u == row).sum(1)
        best = np.flatnonzero(alike == alike.max())
        follows = k > 0 and order[k - 1] + 1 in best
        order[k] = order[k - 1] + 1 if follows else best[0]
        unique &= alike.max() == u.shape[1]
    runs = 1 + np.count_nonzero(np.diff(order) != 1)
    if unique and runs != int(found["n"]):
        return
    rows = np.empty_like(u)
    rows[fused] = _taken(u, order, 0)
    start = sum(len(sides.a[n].bits) for n in names[: names.index(name)])
    yield rows[start : start + len(sides.a[name].bits)].reshape(sides.a[name].shape)


NOWHERE = r"(?:, \? for what A does not hold)?"
NOUN = r"(?P<noun>rows|columns|indices of axis \d+)"
GROUPS = r"(?P<title>gate and up|query, key and value|\w+(?:, \w+)+)"
BACK = r"(?P<back> in A, and one after the other in B)?"
BLOCKS = rf"(?P<count>\d+) blocks of (?P<size>\d+) {NOUN}"
FORMS: list[tuple[str, Callable[[re.Match[str], str, Sides], Predicted]]] = [
    (r"(?P<how>transposed(?:, then read with the shape of A)?|read with the shape of A's transpose)", _transposed),
    (rf"{NOUN} shifted by (?P<n>-?\d+)(?P<around> around the end)?", _shifted),
    (rf"{NOUN} from (?P<start>[\d,]+) on shifted by (?P<n>-?\d+)", _shifted_from),
    (r"content shifted by (?P<n>-?\d+) elements?(?P<around> around the end)?", _shifted_flat),
    (
        rf"(?P<title>[a-z, ]+) of (?P<sizes>[\d, ]+) {NOUN} lie (?:(?P<a>.+?) in A and (?P<b>.+?) in B(?:, or (?P<c>.+?) in A and (?P<d>.+?) in B)?|(?P<one>.+) on one side and (?P<other>.+) on the other)",
        _fused_in_one,
    ),
    (rf"heads permuted: {BLOCKS} come in the order (?P<order>\[.*\]) of A", _listed),
    (rf"shards in the wrong order: {BLOCKS} come in the order (?P<order>\[.*\]) of A", _listed),
    (rf"{NOUN} in another order: (?P<order>\[.*\]) of A{NOWHERE}", _listed),
    (rf"experts come in the order (?P<order>\[.*\]) of A{NOWHERE}", _listed),
    (rf"{NOUN} in reverse order", _reversed),
    (rf"{BLOCKS} strided, as where a shard of fsdp=(?P<fsdp>\d+) over tp=(?P<tp>\d+) is read as plain in B, or one of fsdp=(?P=tp) over tp=(?P=fsdp) in A", _strided),
    (r"every one of (?P<count>\d+) blocks on axis (?P<axis>\d+) holds block (?P<every>\d+)", _duplicated),
    (r"of (?P<count>\d+) blocks of (?P<size>\d+) on axis (?P<axis>\d+), block (?P<pairs>\d+ holds \d+(?:, \d+ holds \d+)*(?:, …)?)", _duplicated),
    (r"rotary (?:halves of A are pairs|(?P<back>pairs of A are halves)) in B, (?P<size>\d+) rows of each head of (?P<width>\d+)", _rotary),
    (r"gate and up swapped, (as halves|interleaved)|gate and up are halves in A and interleaved in B|gate and up are interleaved in A and halves in B", _gate_up),
    (r"gate and up swapped", lambda f, n, s: _grouped(n, "gate and up", s, lambda z: np.concatenate(_starts(z)[::-1]))),
    (rf"{GROUPS} interleaved (?:row by row|in (?P<n>\d+) shards, as by the ranks of tp=(?P=n)){BACK}", _interleaved),
    (rf"(?P<title>gate and up|query, key and value|components) stored in the order (?P<order>\w+(?:, \w+)*?)(?: in each of (?P<n>\d+) shards, as the ranks of tp=(?P=n) fuse them)?{BACK}", _put_down),
    (r"query, key and value of (?P<n>\d+) groups are stored (?P<how>group by group and read one by one|one by one and read group by group)", _by_group),
    (r"(?P<title>gate and up|query, key and value|components) are cut out of the fused tensor (?P<n>\d+) rows? too (?P<when>late|early) in B", _cut_elsewhere),
    (r"rows of (?P<title>gate and up|query, key and value|components) are in each other's place, in (?P<n>\d+) runs", _mixed),
]  # fmt: skip
"""Every form of a sentence about places."""
