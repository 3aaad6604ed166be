"""Faults that show when a checkpoint is compared with a sound one.

Each makes a faulty checkpoint out of a sound one, in the same format.  `AGAINST` is all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from intarsia.format.registry import folder_of, format_named, read_manifest
from tests.checkpoints import write_dcp
from tests.faults.mistakes import (
    Damage,
    block_of,
    blocks,
    by_group,
    components,
    convolution,
    cut_late,
    each,
    experts,
    heads,
    interleaved,
    layers,
    older,
    rolled,
    scattered_nan,
    strided,
    to_halves,
    to_pairs,
    together,
    undone,
)
from tests.faults.reference import Config, Tensors, read, weights, write

ALL = ("hf", "dcp", "torch_dist", "fsdp_dtensor")
SHARDED = ("dcp", "torch_dist", "fsdp_dtensor")
Make = Callable[[Path, Path, int], Path]


@dataclass(frozen=True)
class Against:
    """A fault: what it is called, what it is to be diagnosed as, and how to bring it about."""

    name: str
    kind: str
    make: Make
    model: str = "dense"
    formats: tuple[str, ...] = ALL

    def __str__(self) -> str:
        return self.name


def by(damage: Damage) -> Make:
    """A checkpoint whose weights are damaged before they are written."""

    def make(sound: Path, out: Path, seed: int) -> Path:
        tensors, config, to = read(sound)
        changed = damage(tensors, config, Random(seed))
        assert any(not torch.equal(tensors[name], x) for name, x in changed.items())
        return write(out, tensors | changed, config, to)

    return make


def without(keep: Callable[[str], bool]) -> Make:
    """A checkpoint that lacks tensors."""

    def make(sound: Path, out: Path, seed: int) -> Path:
        tensors, config, to = read(sound)
        kept = {n: t for n, t in tensors.items() if keep(n)}
        if to != "dcp":
            return write(out, kept, config, to)
        write_dcp(out, kept)
        shutil.copy(sound / "config.json", out)
        return out

    return make


def stale_file(rank: int) -> Make:
    """A save over an older one, in which one rank failed: its file is still the old one."""

    def make(sound: Path, out: Path, seed: int) -> Path:
        _, config, to = read(sound)
        old = write(out.with_name(f"{out.name}-old"), weights(config, seed + 77), config, to)
        shutil.copytree(sound, out)
        (file,) = old.rglob(f"__{rank}_0.distcp")
        shutil.copy(file, out / file.relative_to(old))
        return out

    return make


def chunk_copied(name: str) -> Make:
    """One rank's chunk of a tensor written in every place."""

    def make(sound: Path, out: Path, seed: int) -> Path:
        shutil.copytree(sound, out)
        manifest = read_manifest(out)
        stored = next(s for s in manifest.stored.values() if name in s.name and len(s.chunks) > 1)
        with folder_of(manifest) as folder:
            located = [
                format_named(manifest.format).locate(folder, stored, c) for c in stored.chunks
            ]
            size = stored.chunks[0].box.size * stored.dtype.itemsize
            first = located[0].start_bytes
            payload = folder.read_all(stored.chunks[0].file)[first : first + size]
        for chunk, found in zip(stored.chunks[1:], located[1:], strict=True):
            if chunk.box.shape == stored.chunks[0].box.shape:
                with (Path(manifest.path) / chunk.file).open("r+b") as file:
                    file.seek(found.start_bytes)
                    file.write(payload)
        return out

    return make


def swap(one: str, other: str) -> Damage:
    """Two projections under each other's names."""
    return together((one, other), lambda config, x, y: (y, x))


def zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x)


def in_turn(*damages: Damage) -> Damage:
    """One mistake upon the other."""

    def damage(tensors: Tensors, config: Config, random: Random) -> Tensors:
        out: Tensors = {}
        for one in damages:
            out |= one(tensors | out, config, random)
        return out

    return damage


def rounded(x: torch.Tensor, *_: object) -> torch.Tensor:
    return x.bfloat16().float()


def _two_layers(tensors: Tensors, config: object, random: Random) -> Tensors:
    found = swap("gate_proj", "up_proj")(tensors, {}, random)
    return {n: t for n, t in found.items() if ".1." in n or ".2." in n}


QKV = ("q_proj", "k_proj", "v_proj")
COLUMNS = r"(q|k|v|gate|up)_proj"
GATED = ("gate_proj", "up_proj")

AGAINST = [
    Against("gate and up swapped", "gate-up-swapped", by(swap(*GATED))),
    Against("gate and up of experts swapped", "gate-up-swapped", by(swap(*GATED)), "moe"),
    Against("gate and up swapped in two layers", "gate-up-swapped", by(_two_layers)),
    Against("gate and up fused by two ranks", "gate-up-interleaved", by(together(GATED, interleaved(2)))),
    Against("gate and up fused by four ranks", "gate-up-interleaved", by(together(GATED, interleaved(4)))),
    Against("gate and up cut as if fused by two ranks", "gate-up-interleaved", by(together(GATED, undone(2)))),
    Against("gate and up row by row", "gate-up-interleaved", by(together(GATED, interleaved(48)))),
    Against("experts fused by two ranks", "gate-up-interleaved", by(together(GATED, interleaved(2))), "moe"),
    Against("query, key, value group by group", "qkv-permuted", by(together(QKV, by_group))),
    Against("query, key, value cut as if by group", "qkv-permuted", by(together(QKV, undone(4)))),
    Against("query, key, value fused by two ranks", "qkv-interleaved", by(together(QKV, interleaved(2)))),
    Against("query heads permuted", "heads-permuted", by(each("q_proj", heads))),
    Against("key heads permuted", "heads-permuted", by(each("k_proj", heads))),
    Against("rotary halves made pairs", "rope-permuted", by(each("(q|k)_proj", to_pairs))),
    Against("rotary pairs made halves", "rope-permuted", by(each("(q|k)_proj", to_halves))),
    Against("rotary halves made pairs on one rank", "rope-permuted",
            by(each("q_proj", lambda x, c, r: torch.cat([x[:32], to_pairs(x[32:], c, r)])))),
    Against("a square tensor transposed", "transposed", by(each("k_proj", lambda x, c, r: x.T))),
    Against("transposed under the old shape", "transposed", by(each("down_proj", lambda x, c, r: x.T.reshape(x.shape)))),
    Against("tensor-parallel ranks swapped", "shards-permuted", by(each(COLUMNS, blocks([1, 0])))),
    Against("four ranks in another order", "shards-permuted", by(each("embed|gate|up", blocks([2, 0, 3, 1])))),
    Against("ranks of row-parallel tensors swapped", "shards-permuted", by(each("(o|down)_proj", blocks([1, 0], 1)))),
    Against("fsdp over tp stored in mesh order", "strided-shard", by(each(COLUMNS, strided(2, 4)))),
    Against("fsdp over tp, four by two", "strided-shard", by(each("gate|up|down|embed", strided(4, 2)))),
    Against("one rank's block stale", "rank-stale", by(each(COLUMNS, block_of(1, 2, older)))),
    Against("one rank's columns stale", "rank-stale", by(each("(o|down)_proj", block_of(2, 4, older, 1)))),
    Against("zeros on every rank but the first", "rank-zero", by(each("proj", block_of(1, 2, zeros)))),
    Against("the first rank's block on every rank", "rank-duplicated", by(each(COLUMNS, blocks([0, 0])))),
    Against("one rank's block twice", "rank-duplicated", by(each("gate|up|embed", blocks([0, 1, 1, 3])))),
    Against("the first rank's block on all of four", "rank-duplicated", by(each("gate|up", blocks([0, 0, 0, 0])))),
    Against("gate and up cut three rows late", "split-misplaced", by(together(GATED, cut_late(3)))),
    Against("query, key, value cut two rows early", "split-misplaced", by(together(QKV, cut_late(-2)))),
    Against("norms initialised again", "constant", by(each("layernorm", lambda x, c, r: torch.ones_like(x)))),
    Against("gate and up swapped and rounded", "gate-up-swapped", by(in_turn(swap(*GATED), each("gate|up", rounded)))),
    Against("shards in another order and rounded", "shards-permuted", by(in_turn(each("gate|up", blocks([2, 0, 3, 1])), each("gate|up", rounded)))),
    Against("a flat range off by seven", "shifted", by(each("proj", rolled(7)))),
    Against("a flat range off by two rows", "shifted", by(each("embed", rolled(64)))),
    Against("rounded to bf16", "rounded", by(each("proj", lambda x, c, r: x.bfloat16().float()))),
    Against("stored as bf16", "rounded", by(each("", lambda x, c, r: x.bfloat16())), formats=("hf", "dcp", "fsdp_dtensor")),
    Against("rounded to fp16", "rounded", by(each("proj", lambda x, c, r: x.half().float()))),
    Against("scaled", "scaled", by(each("(q|k)_proj", lambda x, c, r: x * 8**-0.5))),
    Against("norms less one", "constant-added", by(each("layernorm", lambda x, c, r: x - 1))),
    Against("signs flipped", "signs-flipped", by(each("down_proj", lambda x, c, r: -x))),
    Against("NaN here and there", "nan", by(each("o_proj", scattered_nan))),
    Against("whole tensors of zeros", "zero", by(each("lm_head", lambda x, c, r: x * 0))),
    Against("other values in the last rows of a vocabulary", "padding", by(each("embed|lm_head", block_of(9, 10, older)))),
    Against("key and value swapped", "tensors-swapped", by(swap("k_proj", "v_proj"))),
    Against("key holds value", "tensors-swapped", by(together(("k_proj", "v_proj"), lambda c, k, v: (v, v)))),
    Against("experts reversed", "experts-permuted", by(experts(lambda e, n, i: n - 1 - e)), "moe"),
    Against("experts permuted layer by layer", "experts-permuted", by(experts(lambda e, n, i: (e + 1 + i) % n)), "moe"),
    Against("the first rank's experts on every rank", "experts-duplicated", by(experts(lambda e, n, i: e % (n // 2))), "moe"),
    Against("one expert over all others", "experts-duplicated", by(experts(lambda e, n, i: 0)), "moe"),
    Against("one rank's experts stale", "rank-stale", by(experts(lambda e, n, i: e if e < n // 2 else -1, older)), "moe"),
    Against("one rank's experts zero", "rank-zero", by(experts(lambda e, n, i: -1 if e < n // 2 else e, zeros)), "moe"),
    Against("one rank's experts missing", "experts-missing", without(lambda n: ".experts.2." not in n and ".experts.3." not in n), "moe", ("hf", "dcp")),
    Against("the last layer missing", "layers-missing", without(lambda n: ".layers.3." not in n), formats=("hf", "dcp")),
    Against("layers shifted", "layers-shifted", by(layers(lambda i, n: max(i - 1, 0)))),
    Against("layers shifted from the second on", "layers-shifted", by(layers(lambda i, n: i if i < 2 else i - 1))),
    Against("two layers swapped", "layers-permuted", by(layers(lambda i, n: [0, 2, 1, 3][i]))),
    Against("a pipeline stage stale", "rank-stale", by(layers(lambda i, n: i if i < n // 2 else -1, older))),
    Against("linear attention fused by two ranks", "components-interleaved", by(components(2)), "gdn"),
    Against("a convolution sharded before joining", "components-interleaved", by(convolution(2)), "gdn"),
    Against("one rank's file of an older save", "rank-stale", stale_file(1), formats=SHARDED),
    Against("one rank's file of an older save, experts", "rank-stale", stale_file(1), "moe", SHARDED),
    Against("a chunk in every place", "rank-duplicated", chunk_copied("down_proj"), formats=("dcp",)),
    Against("a chunk in every place of Megatron's", "rank-duplicated", chunk_copied("linear_fc2"), formats=("fsdp_dtensor",)),
]  # fmt: skip
