"""Two properties of `verify`, over random checkpoints.

1. A random fault, or two, in a random checkpoint of a random format: everything that the diagnosis
   states is carried out on the tensors, and holds.
2. A random model that is sound and odd (pruned, upcycled, fresh, merged, …) has no fault.

    python -m tests.faults.properties --cases 20000
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import torch

import intarsia
from tests.faults.mistakes import (
    block_of,
    blocks,
    by_group,
    each,
    heads,
    interleaved,
    older,
    together,
)
from tests.faults.odd_models import ODD, odd_model
from tests.faults.reference import MODELS, Config, Tensors, weights, write
from tests.faults.statements import untrue

FORMATS = ("hf", "hf", "hf", "dcp", "torch_dist", "fsdp_dtensor")
Fault = Callable[[Tensors, Config, Random], Tensors]
"""What a fault makes of some tensors; the others stay as they are."""


def _some(tensors: Tensors, random: Random) -> list[str]:
    """One tensor, all of one name, or a few."""
    matrices = [n for n, x in tensors.items() if x.ndim > 1]
    name = random.choice(matrices)
    leaf = name.rpartition(".weight")[0].rpartition(".")[2]
    alike = [n for n in matrices if f".{leaf}." in n]
    return random.choice([[name], alike, random.sample(matrices, 3)])


def _changed(make: Callable[[torch.Tensor, Random], torch.Tensor]) -> Fault:
    def fault(tensors: Tensors, config: Config, random: Random) -> Tensors:
        return {n: make(tensors[n].clone(), random) for n in _some(tensors, random)}

    return fault


def _rows(change: Callable[[torch.Tensor, Random], torch.Tensor]) -> Fault:
    """Some rows, or some columns, changed."""

    def make(x: torch.Tensor, random: Random) -> torch.Tensor:
        axis = random.randrange(x.ndim)
        n = x.shape[axis]
        lo = random.randrange(n)
        hi = random.randint(lo + 1, min(n, lo + random.choice([1, 2, n // 4 + 1, n])))
        part = x.narrow(axis, lo, hi - lo)
        part.copy_(change(part.clone(), random))
        return x

    return _changed(make)


def _elements(x: torch.Tensor, random: Random) -> torch.Tensor:
    flat = x.reshape(-1)
    for _ in range(random.choice([1, 3, 20, 200])):
        flat[random.randrange(len(flat))] += random.choice([1e-3, 1.0, -7.0])
    return flat.reshape(x.shape)


def _bits(x: torch.Tensor, random: Random) -> torch.Tensor:
    raw = x.reshape(-1).view(torch.int32)
    for _ in range(random.choice([1, 2, 30])):
        raw[random.randrange(len(raw))] ^= 1 << random.randrange(30)
    return raw.view(torch.float32).reshape(x.shape)


def _shuffled(x: torch.Tensor, random: Random) -> torch.Tensor:
    axis = random.randrange(x.ndim)
    order = random.sample(range(x.shape[axis]), x.shape[axis])
    return x.index_select(axis, torch.tensor(order))


def _rolled(x: torch.Tensor, random: Random) -> torch.Tensor:
    k = random.choice([-3, -1, 1, 2, 5])
    return random.choice([x.roll(k, 0), x.roll(k, -1), x.reshape(-1).roll(k).reshape(x.shape)])


def _in_blocks(x: torch.Tensor, random: Random) -> torch.Tensor:
    axis, parts = random.randrange(x.ndim), random.choice([2, 3, 4, 8])
    if x.shape[axis] % parts:
        return x + 1
    order = random.choice(
        [random.sample(range(parts), parts), [random.randrange(parts) for _ in range(parts)]]
    )
    return torch.cat([x.chunk(parts, axis)[k] for k in order], axis)


def _layers(mapping: Callable[[int, Random], list[int]]) -> Fault:
    """Layers, or one matrix of each, in other places."""

    def fault(tensors: Tensors, config: Config, random: Random) -> Tensors:
        count = config["num_hidden_layers"]
        sources = mapping(count, random)
        some = random.choice(["", "", "q_proj", "mlp"])
        out = {}
        for layer, source in enumerate(sources):
            for name in tensors:
                start = f"model.layers.{layer}."
                other = name.replace(start, f"model.layers.{source}.")
                there = name.startswith(start) and some in name and layer != source
                if there and other in tensors and tensors[other].shape == tensors[name].shape:
                    out[name] = tensors[other].clone()
        return out

    return fault


def _experts(mapping: Callable[[int, Random], list[int]]) -> Fault:
    def fault(tensors: Tensors, config: Config, random: Random) -> Tensors:
        sources = mapping(config.get("num_experts") or 0, random) if "num_experts" in config else []
        some = random.choice(["", "layers.1.", "up_proj"])
        return {
            name: tensors[name.replace(f"experts.{e}.", f"experts.{s}.")].clone()
            for e, s in enumerate(sources)
            for name in tensors
            if f"experts.{e}." in name and some in name and e != s
        }

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
    return [min(max(j - k, 0), n - 1) if j >= first else j for j in range(n)]


def _any_order(n: int, random: Random) -> list[int]:
    return random.choice([random.sample(range(n), n), [random.randrange(n) for _ in range(n)]])


def _names_swapped(tensors: Tensors, config: Config, random: Random) -> Tensors:
    name = random.choice([n for n, x in tensors.items() if x.ndim > 1])
    like = [n for n, x in tensors.items() if n != name and x.shape == tensors[name].shape]
    if not like:
        return {}
    other = random.choice(like)
    out = {name: tensors[other].clone()}
    return out | {other: tensors[name].clone()} if random.random() < 0.5 else out


def _with(fault: Callable[..., Tensors]) -> Fault:
    return lambda tensors, config, random: fault(tensors, config, random)


FAULTS: dict[str, Fault] = {
    "elements": _changed(_elements),
    "bits": _changed(_bits),
    "rows stale": _rows(
        lambda x, r: torch.randn(x.shape, generator=torch.Generator().manual_seed(r.randrange(99)))
    ),
    "rows zero": _rows(lambda x, r: torch.zeros_like(x)),
    "rows NaN": _rows(lambda x, r: torch.full_like(x, float("nan"))),
    "rows scaled": _rows(lambda x, r: x * 1.5),
    "shuffled": _changed(_shuffled),
    "rolled": _changed(_rolled),
    "blocks": _changed(_in_blocks),
    "transposed": _changed(lambda x, r: x.transpose(-1, -2).reshape(x.shape)),
    "rounded": _changed(lambda x, r: x.to(r.choice([torch.bfloat16, torch.float16])).float()),
    "scaled": _changed(lambda x, r: x * r.choice([2.0, 0.5, 3.0, 1.1])),
    "added": _changed(lambda x, r: x + r.choice([1.0, -1.0, 0.25])),
    "negated": _changed(lambda x, r: -x),
    "zero": _changed(lambda x, r: torch.zeros_like(x)),
    "layers swapped": _layers(_swap_two),
    "a layer copied": _layers(_copy_one),
    "layers shifted": _layers(_shift),
    "layers in any order": _layers(_any_order),
    "experts swapped": _experts(_swap_two),
    "an expert copied": _experts(_copy_one),
    "experts in any order": _experts(_any_order),
    "names swapped": _names_swapped,
    "gate and up fused": _with(together(("gate_proj", "up_proj"), interleaved(2))),
    "query, key, value by group": _with(together(("q_proj", "k_proj", "v_proj"), by_group)),
    "heads permuted": _with(each("q_proj", heads)),
    "a rank's block": _with(each("(gate|up)_proj", block_of(1, 2, older))),
    "ranks swapped": _with(each("(q|k|v)_proj", blocks([1, 0]))),
}


def faulty(seed: int, root: Path, made: dict[tuple[str, str], Path]) -> tuple[str, list[str]]:
    """One case of the first property: what was done, and what was said of it and does not hold."""
    random = Random(seed)
    model = random.choice(["dense", "moe"])
    config = MODELS[model]
    tensors = weights(config)
    sides = random.choice(FORMATS), random.choice(FORMATS)
    key = (model, sides[0])
    if key not in made:
        made[key] = write(root / f"{model}-{sides[0]}", tensors, config, sides[0])
    names = random.sample(sorted(FAULTS), random.choice([1, 1, 2]))
    changed: Tensors = {}
    for name in names:
        changed |= FAULTS[name](tensors | changed, config, random)
    told = f"{' and '.join(names)}, {model}, {sides[0]} against {sides[1]}"
    held = {n: x.contiguous() for n, x in (tensors | changed).items()}
    other = write(root / f"case-{seed}", held, config, sides[1])
    turned = random.random() < 0.3
    a, b = (other, made[key]) if turned else (made[key], other)
    before, after = (held, tensors) if turned else (tensors, held)
    found = intarsia.verify(a, b, workers=1)
    for left in root.glob(f"case-{seed}*"):
        shutil.rmtree(left)
    arrays = ({n: x.numpy() for n, x in side.items()} for side in (before, after))
    return told, untrue(*arrays, found)


def sound(seed: int, root: Path) -> tuple[str, list[str]]:
    """One case of the second property: what kind of model it is, and the faults that it has none of."""
    random = Random(seed)
    kind = random.choice(ODD)
    folder = odd_model(kind, random, root / f"odd-{seed}")
    report = intarsia.verify(folder, workers=1)
    for left in root.glob(f"odd-{seed}*"):
        shutil.rmtree(left)
    return kind, [str(fault) for fault in report.faults]


def cases(count: int, start: int, which: str) -> Iterator[tuple[int, str, list[str]]]:
    made: dict[tuple[str, str], Path] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(start, start + count):
            case = (
                faulty(seed, Path(folder), made) if which == "faulty" else sound(seed, Path(folder))
            )
            yield seed, *case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--which", choices=("faulty", "sound", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asked = parser.parse_args()
    wrong = 0
    for which in ("faulty", "sound") if asked.which == "both" else (asked.which,):
        began, done = time.monotonic(), 0
        kinds: Counter[str] = Counter()
        for seed, what, said in cases(asked.cases, asked.start, which):
            done += 1
            if said:
                wrong += 1
                kinds[what.split(",")[0]] += 1
                print(f"{which} {seed} ({what}):", *said[:4], sep="\n    ", flush=True)
            if time.monotonic() - began > asked.seconds:
                break
        took = time.monotonic() - began
        print(f"{which}: {done:,} cases, {sum(kinds.values())} wrong, {took:.0f} s; {dict(kinds)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
