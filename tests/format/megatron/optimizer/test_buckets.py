"""Optimizer state in buckets, against buffers filled the way Megatron fills them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.dtypes import DType, dtype_named
from intarsia.errors import FormatError
from intarsia.family import Param, Table, table_for
from intarsia.format.dcp.metadata import TensorRecord, read_metadata
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.megatron.keys import Key, experts_of_row, half_of
from intarsia.format.megatron.optimizer.buckets import read_buckets
from intarsia.format.megatron.optimizer.buffers import is_bucket
from intarsia.format.megatron.optimizer.eight_bits import is_of_type, layers_in_bf16
from intarsia.format.registry import FORMATS
from intarsia.layout import Layout, Piece
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Stored
from tests.checkpoints import normal_tensor, write_hf
from tests.family.arrays import carried, element_ids
from tests.family.configs import CASES

BF16 = dtype_named("bf16")
F32 = dtype_named("fp32")

# The order in which Megatron's modules register parameters, written down once more by hand.
LOCAL = [
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_proj.weight",
    "self_attention.linear_qkv.weight",
    "self_attention.q_layernorm.weight",
    "self_attention.k_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.router.weight",
]
TE = [
    "self_attention.linear_proj.weight",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.weight",
    "self_attention.q_layernorm.weight",
    "self_attention.k_layernorm.weight",
    "pre_mlp_layernorm.weight",
    "mlp.router.weight",
]
DENSE_MLP = ["mlp.linear_fc1.weight", "mlp.linear_fc2.weight"]


def sequential(count: int) -> list[str]:
    return [f"mlp.experts.experts.{e}.{w}" for e in range(count) for w in FC]


def grouped(count: int) -> list[str]:
    return [f"mlp.experts.experts.{e}.{w}" for w in FC for e in range(count)]


FC = ("linear_fc1.weight", "linear_fc2.weight")


class Source:
    """A model's tensors as a rank of Megatron holds them."""

    def __init__(self, table: Table, dialect: str, tp: int, etp: int) -> None:
        self.arrays = element_ids(table.logical)
        self.tp, self.etp = tp, etp
        self.stored: dict[str, Stored] = {}
        for row in table.dialects[dialect].values():
            key = Key.parse(row.name)
            each = list(enumerate(experts_of_row(row))) or [(None, row)]
            for expert, one in each:
                name = str(replace(key, expert=expert))
                cuts = etp if one.rule.is_expert else tp
                self.stored[name] = Stored(
                    name,
                    BF16,
                    one.layout,
                    chunks(one.layout.shape, one.rule.tp, cuts),
                    one.rule,
                    name,
                )

    def local(self, name: str, t: int) -> np.ndarray:
        stored = self.stored[name]
        whole, axis = carried(stored.layout, self.arrays), stored.rule.tp
        cuts = self.etp if stored.rule.is_expert else self.tp
        if axis is None:
            return whole
        if "linear_fc1.weight" in name:
            halves = np.split(whole, 2)
            return np.concatenate([np.split(half, cuts)[t % cuts] for half in halves])
        return np.split(whole, cuts, axis)[t % cuts]


def chunks(shape: tuple[int, ...], axis: int | None, cuts: int) -> tuple[Chunk, ...]:
    if axis is None:
        return (Chunk(Box.whole(shape), "f", 0, 1),)
    size = shape[axis] // cuts
    boxes = []
    for i in range(cuts):
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[axis], sizes[axis] = i * size, size
        boxes.append(Box(tuple(offsets), tuple(sizes)))
    return tuple(Chunk(box, "f", 0, 1) for box in boxes)


class Disk:
    """Buckets on a pretended disk: every chunk knows its elements."""

    def __init__(self) -> None:
        self.records: list[TensorRecord] = []
        self.content: dict[str, np.ndarray] = {}

    def save(
        self,
        place: str,
        params: list[np.ndarray],
        *,
        dp: int = 1,
        limit: int | None = None,
        kind: str = "torch.bfloat16",
        alone: np.ndarray | None = None,
    ) -> None:
        """One rank's buffer, in buckets that are closed once they hold `limit` elements.

        A parameter `alone` has a bucket to itself, and the one before ends where it begins.
        """
        buckets: list[list[np.ndarray]] = [[]]
        for param in reversed(params):
            if param is alone and buckets[-1]:
                used = 0
                for held in buckets[-1]:
                    used = -(-used // 64) * 64 + held.size
                buckets[-1][-1] = np.append(buckets[-1][-1], np.full(-used % 64, -1))
                buckets.append([])
            buckets[-1].append(param.reshape(-1))
            if param is alone or (limit and sum(p.size for p in buckets[-1]) >= limit):
                buckets.append([])
        for i, held_ in enumerate(b for b in buckets if b):
            name = f"{place}.dtype_({kind}, torch.float32).bucket_idx_{i}.exp_avg"
            self._bucket(name, held_, dp)

    def _bucket(self, name: str, params: list[np.ndarray], dp: int) -> None:
        cuts, parts, at = {0}, [], 0
        for param in params:
            start = -(-at // 64) * 64
            parts += [np.full(start - at, -1), param]
            at = start + param.size
            cuts |= {start, start + int((param >= 0).sum()), at}
        shard = -(-at // (128 * dp)) * 128
        cuts |= set(range(shard, at, shard))
        edges = sorted(cuts)
        self.content[name] = np.concatenate(parts)
        self.records.append(
            TensorRecord(
                name, F32, (at,),
                tuple(
                    Chunk(Box((lo,), (hi - lo,)), name, lo, 1)
                    for lo, hi in pairwise(edges)
                ),
            )
        )  # fmt: skip

    def read(self, model: list[Stored], in_bf16: Collection[int] = ()) -> dict[str, np.ndarray]:
        """Every logical tensor's state, put together from what was found."""
        logical: dict[str, dict[int, int]] = {}
        for stored in read_buckets(self.records, model, "here", in_bf16=in_bf16):
            flat = np.full(stored.layout.size, -1)
            for c in stored.chunks:
                lo, n = c.box.offsets[0], c.box.shape[0]
                flat[lo : lo + n] = self.content[c.file][c.start_bytes : c.start_bytes + n]
            for piece in stored.layout.pieces:
                held = logical.setdefault(piece.tensor, {})
                for here, there in pairs(piece):
                    assert there not in held, "an element comes from two places"
                    held[there] = int(flat[here])
        return {name: np.array([held[i] for i in sorted(held)]) for name, held in logical.items()}


def pairs(piece: Piece) -> Iterator[tuple[int, int]]:
    """Every place of a piece in its buffer, with that in its tensor."""
    for steps in product(*(range(loop.n) for loop in piece.loops)):
        moved = list(zip(steps, piece.loops, strict=True))
        yield (
            piece.at + sum(s * loop.at for s, loop in moved),
            piece.to + sum(s * loop.to for s, loop in moved),
        )


def check(found: dict[str, np.ndarray], source: Source) -> None:
    assert {*found} == {f"optimizer.exp_avg.{n}" for n in source.arrays}
    for name, array in source.arrays.items():
        np.testing.assert_array_equal(found[f"optimizer.exp_avg.{name}"], array.reshape(-1))


def layers_of(order: list[str], layers: Iterable[int]) -> list[str]:
    return [f"decoder.layers.{n}.{rest}" for n in layers for rest in order]


def case(model: str, **changes: object) -> Table:
    table = table_for(CASES[model] | {"num_hidden_layers": 4, "hidden_size": 32} | changes)
    assert table is not None
    return table


FIRST, LAST = (
    ["embedding.word_embeddings.weight"],
    ["decoder.final_layernorm.weight", "output_layer.weight"],
)
GROUP = "optimizer.distributed.dp_group_idx_{}.gbuf_idx_{}"


@pytest.mark.parametrize("order", [LOCAL, TE], ids=["local", "te"])
@pytest.mark.parametrize(
    ("tp", "pp", "dp", "limit"), [(1, 1, 1, None), (2, 2, 3, None), (2, 1, 2, 3000)]
)
def test_dense(order: list[str], tp: int, pp: int, dp: int, limit: int | None) -> None:
    source = Source(case("qwen3"), "megatron", tp, tp)
    disk, per = Disk(), 4 // pp
    names = [
        n.replace("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight")
        for n in order
        if "router" not in n
    ]
    for p in range(pp):
        held = layers_of(names + DENSE_MLP, range(p * per, (p + 1) * per))
        held = (FIRST if p == 0 else []) + held + (LAST if p == pp - 1 else [])
        for t in range(tp):
            params = [source.local(name, t) for name in held]
            disk.save(GROUP.format(p * tp + t, 0), params, dp=dp, limit=limit)
    check(disk.read(list(source.stored.values())), source)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_adam_s_buckets_beside_matrices_that_muon_keeps_state_of_by_name(tp: int, pp: int) -> None:
    source = Source(case("qwen3"), "megatron", tp, tp)
    matrices = [n for n in source.stored if "layers" in n and "norm" not in n]
    named = [replace(source.stored[n], name=f"optimizer.momentum_buffer.{n}") for n in matrices]
    names = [n for n in LOCAL if "norm" in n]
    disk = Disk()
    for p in range(pp):
        held = layers_of(names, range(p * 4 // pp, (p + 1) * 4 // pp))
        held = (FIRST if p == 0 else []) + held + (LAST if p == pp - 1 else [])
        for t in range(tp):
            params = [source.local(n, t) for n in held]
            disk.save(f"chained_1.{GROUP.format(p * tp + t, 0)}", params, dp=2)
    found = disk.read([*source.stored.values(), *named])
    of_muon = {t for n in matrices for t in source.stored[n].layout.tensors}
    source.arrays = {n: x for n, x in source.arrays.items() if n not in of_muon}
    check(found, source)


@pytest.mark.parametrize("experts", [sequential, grouped])
def test_experts_of_an_optimizer_of_their_own(experts: object) -> None:
    tp, ep, pp = 2, 2, 2
    source = Source(case("qwen3_moe", num_experts=4), "megatron-local", tp, 1)
    disk = Disk()
    for p in range(pp):
        layers = range(p * 2, p * 2 + 2)
        held = layers_of(LOCAL, layers)
        held = (FIRST if p == 0 else []) + held + (LAST if p == pp - 1 else [])
        for t in range(tp):
            disk.save(
                f"chained_0.{GROUP.format(p * tp + t, 0)}", [source.local(n, t) for n in held]
            )
        for e in range(ep):
            order = [n for n in experts(4) if int(n.split(".")[3]) // 2 == e]  # type: ignore[operator]
            if experts is grouped:
                assert len({n.split(".")[3] for n in order}) == 2
            params = [source.local(n, 0) for n in layers_of(order, layers)]
            disk.save(f"chained_1.{GROUP.format(p * ep + e, 0)}", params, dp=2)
    check(disk.read(list(source.stored.values())), source)


def test_experts_among_all_parameters_without_expert_parallelism() -> None:
    source = Source(case("qwen3_moe", num_experts=4), "megatron-local", 2, 1)
    disk = Disk()
    for t in range(2):
        held = FIRST + layers_of(LOCAL + sequential(4), range(4)) + LAST
        disk.save(GROUP.format(t, 0), [source.local(n, t) for n in held])
    check(disk.read(list(source.stored.values())), source)


def test_interleaved_pipeline_stages() -> None:
    source = Source(case("qwen3"), "megatron", 1, 1)
    names = [n for n in LOCAL if "router" not in n] + DENSE_MLP
    disk = Disk()
    for stage in range(4):
        chunk, rank = divmod(stage, 2)
        held = layers_of(names, range(stage, stage + 1))
        held = (FIRST if stage == 0 else []) + held + (LAST if stage == 3 else [])
        disk.save(GROUP.format(rank, chunk), [source.local(n, 0) for n in held])
    check(disk.read(list(source.stored.values())), source)


def test_uneven_pipeline_stages() -> None:
    source = Source(case("qwen3"), "megatron", 1, 1)
    names = [n for n in LOCAL if "router" not in n] + DENSE_MLP
    disk = Disk()
    for rank, layers in enumerate((range(1), range(1, 4))):
        held = (FIRST if rank == 0 else []) + layers_of(names, layers) + (LAST if rank else [])
        disk.save(GROUP.format(rank, 0), [source.local(n, 0) for n in held])
    check(disk.read(list(source.stored.values())), source)


def test_a_tied_head_has_a_copy_on_the_last_stage() -> None:
    source = Source(case("qwen3", tie_word_embeddings=True), "megatron", 1, 1)
    del source.stored["output_layer.weight"], source.arrays["lm_head.weight"]
    names = [n for n in LOCAL if "router" not in n] + DENSE_MLP
    disk = Disk()
    for rank, layers in enumerate((range(2), range(2, 4))):
        held = (FIRST if rank == 0 else []) + layers_of(names, layers)
        held += ["decoder.final_layernorm.weight", *FIRST] if rank else []
        params = {n: source.local(n, 0) for n in held}
        disk.save(GROUP.format(rank, 0), [*params.values()], alone=params[FIRST[0]])
    check(disk.read(list(source.stored.values())), source)


@pytest.mark.parametrize("stages", [[4], [2, 2], [4, 0]])
@pytest.mark.parametrize(
    ("spec", "experts"),
    [("megatron", sequential), ("megatron", grouped), ("megatron-local", sequential)],
)
@pytest.mark.one_in(3)
def test_prediction_layers_with_the_copy_of_the_embedding_that_they_read(
    spec: str, experts: object, stages: list[int]
) -> None:
    """The decoder's last norm is where its last layer is, were they in a stage of their own."""
    more = {"n_routed_experts": 4, "moe_intermediate_size": 16, "num_nextn_predict_layers": 2}
    source = Source(case("glm4_moe, no norms", first_k_dense_replace=0, **more), spec, 2, 1)
    for name in [n for n in source.arrays if n.endswith(("embed_tokens.weight", "head.weight"))]:
        if name.startswith("model.layers."):
            del source.arrays[name]
    source.arrays = {n: x for n, x in source.arrays.items() if "correction_bias" not in n}
    order = [n for n in (TE if spec == "megatron" else LOCAL) if "k_layernorm" not in n]
    order.remove("self_attention.q_layernorm.weight")
    order += [*experts(4), *(f"mlp.shared_experts.{w}" for w in FC)]  # type: ignore[operator]
    ahead = [
        f"mtp.layers.{i}.{name}"
        for i in range(2)
        for name in (
            *(f"{x}.weight" for x in ("enorm", "hnorm", "eh_proj")),
            *(f"transformer_layer.{name}" for name in order),
            "final_layernorm.weight",
        )
    ]
    disk = Disk()
    for rank, count in enumerate(stages):
        end = sum(stages[: rank + 1])
        held = FIRST + layers_of(order, range(end - count, end))
        held += [LAST[0]] if count and end == 4 else []
        held += [*ahead, LAST[1]] if rank == len(stages) - 1 else []
        for t in range(2):
            disk.save(GROUP.format(2 * rank + t, 0), [source.local(n, t) for n in held])
    check(disk.read(list(source.stored.values())), source)


def test_projections_of_several_components() -> None:
    """What is `in_proj.weight.query` and so on on disk is one parameter, each part cut alone."""
    table = case("qwen3_5_text", linear_num_value_heads=4, layer_types=["linear_attention"] * 4)
    source = Source(table, "megatron-local", 2, 2)
    order = ["in_proj.layer_norm_weight", "dt_bias", "A_log", "in_proj.weight", "conv1d.weight"]
    order += ["out_norm.weight", "out_proj.weight"]
    names = [f"self_attention.{n}" for n in order]
    names += ["mlp.linear_fc1.layer_norm_weight", *DENSE_MLP]
    wanted = {n for n in source.stored if "mtp" not in n}
    source.stored = {n: s for n, s in source.stored.items() if n in wanted}
    held = {t for s in source.stored.values() for t in s.layout.tensors}
    source.arrays = {n: a for n, a in source.arrays.items() if n in held}

    def local(name: str, t: int) -> np.ndarray:
        if name in source.stored:
            return source.local(name, t)
        parts = [n for n in source.stored if n.startswith(f"{name}.")]
        assert len(parts) in (3, 6)
        return np.concatenate([source.local(n, t) for n in parts])

    disk = Disk()
    for t in range(2):
        every = FIRST + layers_of(names, range(4)) + LAST
        disk.save(GROUP.format(t, 0), [local(n, t) for n in every])
    stored = list(source.stored.values())
    # Ranks that save in turns list the tensors in any order.
    for model in (stored, stored[::-1], sorted(stored, key=lambda s: s.name)):
        check(disk.read(model), source)


@pytest.mark.parametrize("order", ["wv", "vw"])
def test_halves_that_are_stored_apart(order: str) -> None:
    source = Source(case("qwen3"), "megatron", 2, 2)
    norm = "mlp.linear_fc1.layer_norm_weight"
    names = [*TE[:-2], norm, *DENSE_MLP]
    disk = Disk()
    for t in range(2):
        every = FIRST + layers_of(names, range(4)) + LAST
        disk.save(GROUP.format(t, 0), [source.local(n, t) for n in every])
    model: list[Stored] = []
    for s in source.stored.values():
        row = Param(s.name, s.layout, s.rule, s.value)
        halves = order if s.name.endswith("fc1.weight") else ""
        apart = {f"{s.name}_{x}": half_of(row, "wv".index(x)).layout for x in halves}
        model += [replace(s, name=n, layout=x) for n, x in (apart or {s.name: s.layout}).items()]
    assert len(model) == len(source.stored) + 4
    check(disk.read(model), source)


def test_buffers_of_several_types() -> None:
    source = Source(case("qwen3"), "megatron", 1, 1)
    names = FIRST + layers_of([n for n in LOCAL if "router" not in n] + DENSE_MLP, range(4)) + LAST

    def kind(name: str) -> DType:
        return F32 if "norm" in name else BF16

    disk = Disk()
    for i, dtype in enumerate((BF16, F32)):
        params = [source.local(n, 0) for n in names if kind(n) is dtype]
        disk.save(GROUP.format(0, i), params, kind=f"torch.{dtype.torch}")
    model = [replace(s, dtype=kind(n)) for n, s in source.stored.items()]
    check(disk.read(model), source)


def in_eight_bits(name: str) -> bool:
    """What TransformerEngine keeps so where weights are gathered in eight bits."""
    return "layers." in name and "norm" not in name and "router" not in name


@pytest.mark.parametrize("said", [True, False], ids=["said", "not said"])
@pytest.mark.parametrize("kept", [(), (0,), (0, 2, 3)])
def test_weights_that_a_run_keeps_in_eight_bits_have_buffers_of_bytes(
    kept: tuple[int, ...], said: bool
) -> None:
    """But those of layers that it keeps in bf16, which its arguments name."""
    source = Source(case("qwen3_moe", num_experts=2), "megatron", 2, 2)
    names = FIRST + layers_of(TE + grouped(2), range(4)) + LAST
    bf16 = {n for n in names if not in_eight_bits(n) or n in layers_of(TE + grouped(2), kept)}
    disk = Disk()
    for t in range(2):
        for i, is_bf16 in enumerate((False, True)):
            params = [source.local(n, t) for n in names if (n in bf16) == is_bf16]
            kind = "torch.bfloat16" if is_bf16 else "torch.uint8"
            disk.save(GROUP.format(t, i), params, kind=kind)
    model = list(source.stored.values())
    if kept and not said:
        with pytest.raises(FormatError, match=r"no orders(.|\n)*hint: .* kept no layer in bf16"):
            disk.read(model)
    else:
        check(disk.read(model, kept), source)


@pytest.mark.parametrize("said", [True, False])
def test_buckets_on_disk_are_read_by_what_the_arguments_say_of_layers(
    said: bool, tmp_path: Path
) -> None:
    config = CASES["qwen3_moe"] | {"num_hidden_layers": 4, "hidden_size": 32, "num_experts": 2}
    table = table_for(config)
    assert table is not None
    weights = {n: normal_tensor(shape, torch.bfloat16) for n, shape in table.logical.items()}
    hub = write_hf(tmp_path / "hf", weights, config)
    intarsia.convert(hub, tmp_path / "td", to="torch_dist")
    (folder,) = (tmp_path / "td").glob("iter_*")
    source, disk = Source(table, "megatron", 1, 1), Disk()
    names = FIRST + layers_of(TE + grouped(2), range(4)) + LAST
    bf16 = {n for n in names if not in_eight_bits(n) or n in layers_of(TE + grouped(2), (0, 3))}
    for i, kind in enumerate(("uint8", "bfloat16")):
        params = [source.local(n, 0) for n in names if (n in bf16) == bool(i)]
        disk.save(GROUP.format(0, i), params, kind=f"torch.{kind}")
    held = read_metadata((folder / ".metadata").read_bytes(), "here")
    for record in disk.records:
        file, size = f"{record.name}.distcp", 4 * record.shape[0]
        placed = [Chunk(c.box, file, 4 * c.start_bytes, 4 * c.box.size) for c in record.chunks]
        held.tensors[record.name] = replace(record, chunks=tuple(placed))
        (folder / file).write_bytes(bytes(size))
    paths = {name: (name,) for name in (*held.tensors, *held.objects)}
    (folder / ".metadata").write_bytes(write_metadata(replace(held, paths=paths)))
    torch.serialization.add_safe_globals([Namespace])
    state = torch.load(folder / "common.pt", weights_only=True)
    state["args"].first_last_layers_bf16 = said
    torch.save(state, folder / "common.pt")
    with intarsia.open(tmp_path / "td") as checkpoint:
        found = {n for n in checkpoint if n.startswith("optimizer.exp_avg.")}
        assert found == ({f"optimizer.exp_avg.{n}" for n in weights} if said else set())
        fits = [note for note in checkpoint.manifest.notes if "which it fits exactly" in note]
        assert bool(fits) == said


def test_which_layers_a_run_keeps_in_bf16_is_among_its_arguments() -> None:
    said = {"num_layers": 6, "first_last_layers_bf16": True}
    assert layers_in_bf16(said) == {0, 5}
    assert layers_in_bf16(said | {"num_layers_at_start_in_bf16": 2}) == {0, 1, 5}
    assert layers_in_bf16(said | {"num_layers_at_end_in_bf16": 0}) == {0}
    for other in ({"first_last_layers_bf16": False}, {"num_layers": None}, {"num_layers": 1 << 40}):
        assert layers_in_bf16(said | other) == set()


def test_layers_that_predict_further_tokens_are_not_counted_among_those_in_bf16() -> None:
    layout, kinds = Layout.of("x", (4, 4)), ("uint8", "bfloat16")
    for head, kind in (("decoder", "bfloat16"), ("mtp", "uint8")):
        weight = Stored(
            f"{head}.layers.0.transformer_layer.mlp.linear_fc2.weight", BF16, layout, ()
        )
        assert [k for k in kinds if is_of_type(weight, k, kinds, {0})] == [kind]


def test_what_does_not_fit_is_refused() -> None:
    source = Source(case("qwen3"), "megatron", 1, 1)
    disk = Disk()
    disk.save(GROUP.format(0, 0), [source.local(n, 0) for n in FIRST + LAST])
    with pytest.raises(
        FormatError,
        match=r"no orders of .* buffers \(tp=1 etp=1 ep=1 pp=1\)\n *hint: frozen parameters",
    ):
        disk.read(list(source.stored.values()))


def test_the_ranks_that_cut_the_tensors_are_those_that_the_buffers_fit() -> None:
    """A save may cut most tensors further than tensor parallelism does: a majority proves nothing."""
    source = Source(case("qwen3"), "megatron", 2, 2)
    names = FIRST + layers_of([n for n in LOCAL if "router" not in n] + DENSE_MLP, range(4)) + LAST
    disk = Disk()
    for t in range(2):
        disk.save(GROUP.format(t, 0), [source.local(n, t) for n in names])
    finer = {
        n: s if n in (*FIRST, *LAST) else replace(s, chunks=chunks(s.layout.shape, s.rule.tp, 4))
        for n, s in source.stored.items()
    }
    check(disk.read(list(finer.values())), source)


def test_buffers_that_fit_two_meshes_are_refused_with_both() -> None:
    source = Source(case("qwen3", num_hidden_layers=2), "megatron", 2, 2)
    held = layers_of(["self_attention.linear_proj.weight"], range(2))
    disk = Disk()
    for t in range(2):
        disk.save(GROUP.format(t, 0), [source.local(n, t) for n in held])
    first, second = (source.stored[n] for n in held)
    whole = replace(second, chunks=chunks(second.layout.shape, second.rule.tp, 1))
    with pytest.raises(FormatError, match=r"several meshes: tp=1 pp=2, tp=2 pp=1"):
        disk.read([first, whole])


def test_names_of_buckets() -> None:
    name = GROUP.format(0, 0) + ".dtype_(torch.bfloat16, torch.bfloat16).bucket_idx_0.param"
    assert is_bucket(name)
    assert is_bucket("chained_0." + name)
    assert not is_bucket("optimizer.state.param.decoder.final_layernorm.weight")


def test_what_lies_between_the_tensors_of_a_bucket_is_not_judged() -> None:
    bucket = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0"
    formats = [format for format in FORMATS.values() if format.has_gaps(f"{bucket}.exp_avg")]
    assert [format.name for format in formats] == ["torch_dist"]
    assert not formats[0].has_gaps("optimizer.state.exp_avg.decoder.final_layernorm.weight")
