"""Exploits in whole checkpoints of Megatron: common state, metadata, entries, buckets that lie."""

from __future__ import annotations

import os
import pickle
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacks import models
from attacks.code import system
from intarsia.format.dcp.metadata import TensorRecord
from intarsia.format.megatron.common import COMMON_OBJECT, archive
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Entry

HUGE = 1 << 60
ROWS = "embedding.word_embeddings.weight"
"""A tensor of the sound model that both formats name so, but for what stands before it."""


def _tensor(folder: Path, to: str, **changes: Any) -> None:
    """Change the record of one tensor."""
    home = models.converted(folder, to)
    found = models.metadata_at(home)
    name = next(n for n in found.tensors if n.endswith(ROWS) and "optimizer" not in n)
    tensors = {**found.tensors, name: replace(found.tensors[name], **changes)}
    models.write(home, replace(found, tensors=tensors))


def _chunk(folder: Path, to: str, **changes: Any) -> None:
    """Change the first chunk of one tensor."""
    home = models.converted(folder, to)
    found = models.metadata_at(home)
    name = next(n for n in found.tensors if n.endswith(ROWS) and "optimizer" not in n)
    record = found.tensors[name]
    chunks = (replace(record.chunks[0], **changes), *record.chunks[1:])
    tensors = {**found.tensors, name: replace(record, chunks=chunks)}
    models.write(home, replace(found, tensors=tensors))


def _entry(folder: Path, to: str, name: str, data: bytes, *, length: int | None = None) -> None:
    """Give an entry other bytes, in a file of its own that may be longer than what is stored."""
    home = models.converted(folder, to, config=False)
    (home / "common.pt").unlink(missing_ok=True)
    (home / "__7_0.distcp").write_bytes(data)
    if length is not None:
        os.truncate(home / "__7_0.distcp", length)
    found = models.metadata_at(home)
    entry = Entry(name, "__7_0.distcp", 0, length or len(data))
    models.write(home, replace(found, objects={**found.objects, name: entry}))


def _arguments(folder: Path, **changes: Any) -> None:
    """Have Megatron's arguments, from which a configuration is made, say something else."""
    home = models.converted(folder, "torch_dist", config=False)
    args = {"num_layers": 1, "num_attention_heads": 2, "num_query_groups": 1, "moe_router_topk": 1, "num_experts": 2}  # fmt: skip
    (home / "common.pt").write_bytes(
        archive({"args": Namespace(**(args | changes)), "iteration": 1})
    )


def torch_dist_chunk_beyond_its_file(folder: Path, canary: Path) -> None:
    """A chunk of a torch_dist tensor starts at byte 2**60."""
    _chunk(folder, "torch_dist", start_bytes=HUGE)


def fsdp_dtensor_chunk_beyond_its_file(folder: Path, canary: Path) -> None:
    """A chunk of an fsdp_dtensor tensor is 2**60 bytes long."""
    _chunk(folder, "fsdp_dtensor", length_bytes=HUGE)


def torch_dist_chunk_before_its_file(folder: Path, canary: Path) -> None:
    """A chunk starts before the first byte of its file."""
    _chunk(folder, "torch_dist", start_bytes=-64)


def fsdp_dtensor_chunk_elsewhere(folder: Path, canary: Path) -> None:
    """A chunk lies in a file of another folder."""
    _chunk(folder, "fsdp_dtensor", file="../../../../etc/passwd")


def torch_dist_shape_of_exabytes(folder: Path, canary: Path) -> None:
    """A tensor claims 2**60 rows, of which five are stored."""
    _tensor(folder, "torch_dist", shape=(HUGE, 4))


def fsdp_dtensor_shape_of_exabytes(folder: Path, canary: Path) -> None:
    """A tensor claims 2**60 rows, and none is stored."""
    _tensor(folder, "fsdp_dtensor", shape=(HUGE, 4), chunks=())


def chunks_that_overlap(folder: Path, canary: Path) -> None:
    """Two chunks of a tensor hold the same rows, with different bytes."""
    home = models.converted(folder, "torch_dist")
    found = models.metadata_at(home)
    record = next(t for n, t in found.tensors.items() if n.endswith(ROWS) and "optimizer" not in n)
    (whole,) = record.chunks
    part = replace(whole, box=Box((1, 0), (1, 4)))
    tensors = {**found.tensors, record.name: replace(record, chunks=(whole, part))}
    models.write(home, replace(found, tensors=tensors))


def common_entry_that_runs_a_command(folder: Path, canary: Path) -> None:
    """The common state, kept as an entry of DCP, calls os.system."""
    data = pickle.dumps({"args": Namespace(lr=system(canary))}, 2)
    _entry(folder, "torch_dist", COMMON_OBJECT, data)


def arguments_entry_that_runs_a_command(folder: Path, canary: Path) -> None:
    """The arguments of an fsdp_dtensor checkpoint call os.system."""
    _entry(folder, "fsdp_dtensor", "args", pickle.dumps(system(canary), 2))


def common_entry_of_a_terabyte(folder: Path, canary: Path) -> None:
    """The common state is an entry of a terabyte, in a file that is all holes."""
    _entry(folder, "torch_dist", COMMON_OBJECT, b"", length=1 << 40)


def shared_entry_of_a_terabyte(folder: Path, canary: Path) -> None:
    """The part of an optimizer that ranks share is an entry of a terabyte of holes."""
    name = "optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1"
    _entry(folder, "torch_dist", name, b"", length=1 << 40)


def extra_state_of_a_terabyte(folder: Path, canary: Path) -> None:
    """A module's extra state, carried as bytes, is a terabyte of holes."""
    _entry(folder, "torch_dist", "decoder.layers.0.x._extra_state/shard_0_1", b"", length=1 << 40)


def counter_of_a_terabyte(folder: Path, canary: Path) -> None:
    """A counter beside the tensors of Megatron-FSDP is a terabyte of holes."""
    _entry(folder, "fsdp_dtensor", "iteration", b"", length=1 << 40)


def numbered_parameters_of_a_terabyte(folder: Path, canary: Path) -> None:
    """The list that gives numbered states their parameters is a terabyte of holes."""
    name = "optimizer.param_groups.0.params"
    _entry(folder, "fsdp_dtensor", name, b"", length=1 << 40)
    home = folder / "iter_0000001"
    found = models.metadata_at(home)
    record = next(t for t in found.tensors.values() if t.name.endswith("exp_avg"))
    state = replace(record, name="optimizer.state.0.exp_avg")
    others = {n: t for n, t in found.tensors.items() if n != record.name}
    models.write(home, replace(found, tensors={**others, state.name: state}))


def entry_that_laughs(folder: Path, canary: Path) -> None:
    """A counter is a list of two lists of two lists …, sixty times over."""
    laugh = b"]q\x000" + b"".join(b"](h\x00h\x00eq\x000" for _ in range(60)) + b"h\x00"
    _entry(folder, "fsdp_dtensor", "iteration", b"\x80\x02" + laugh + b".")


def arguments_of_a_billion_layers(folder: Path, canary: Path) -> None:
    """Megatron's arguments have 10**9 layers and 10**12 experts."""
    _arguments(folder, num_layers=10**9, num_experts=10**12)


def arguments_with_numbers_that_are_none(folder: Path, canary: Path) -> None:
    """Megatron's arguments have no heads, words for groups and an endless rotary base."""
    _arguments(folder, num_attention_heads=0, num_query_groups="x", rotary_base=10**400)


def step_beyond_all_numbers(folder: Path, canary: Path) -> None:
    """A parameter group is at step 10**400, and another at infinity."""
    home = models.converted(folder, "torch_dist")
    groups = [{"step": 10**400, "params": [0]}, {"step": float("inf"), "params": [1]}]
    state = {"args": Namespace(), "iteration": 1, "optimizer": {"optimizer": {"param_groups": groups[:1]}}}  # fmt: skip
    (home / "common.pt").write_bytes(archive(state))


def bucket_of_a_billion_ranks(folder: Path, canary: Path) -> None:
    """A bucket of optimizer state belongs to rank 999,999,999."""
    home = models.buckets(folder)
    found = models.metadata_at(home)
    moved = {n.replace("group_idx_0", "group_idx_999999999"): t for n, t in found.tensors.items()}
    tensors = {name: replace(record, name=name) for name, record in moved.items()}
    models.write(home, replace(found, tensors=tensors))


def bucket_of_exabytes(folder: Path, canary: Path) -> None:
    """A bucket claims 2**60 elements, its only chunk ends the last of them."""
    home = models.buckets(folder)
    found = models.metadata_at(home)
    tensors = dict(found.tensors)
    for name, record in found.tensors.items():
        if name.startswith("optimizer."):
            first = record.chunks[0]
            chunk = Chunk(Box((HUGE - 16,), (16,)), first.file, first.start_bytes, first.length_bytes)  # fmt: skip
            tensors[name] = TensorRecord(name, record.dtype, (HUGE,), (chunk,))
    models.write(home, replace(found, tensors=tensors))
