"""Planning at scale, from metadata alone: up to 70,000 tensors onto up to 4,096 ranks.

The checkpoint is real in its headers and sparse in its bytes: a mixture of experts in safetensors
files whose data were never written.  For each number of tensors and ranks: the time of one rank's
proven plan, the time of the proof for the whole mesh, and beside them the time in which the planner
of `torch.distributed.checkpoint` makes and checks its global plan of the same boxes.

    python benchmarks/plan_scale.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from intarsia.conversion.targets import targets_for
from intarsia.dtypes import BY_NAME
from intarsia.format.hf.safetensors_header import make_header
from intarsia.format.registry import read_manifest
from intarsia.format.request import Request
from intarsia.mesh import Mesh
from intarsia.planning.manifest import Manifest, Target
from intarsia.planning.plan import Plan
from intarsia.planning.planner import make_plan, read_cost
from intarsia.planning.proof import prover_of

EXPERTS, HIDDEN, INNER, VOCAB, HEADS = 384, 7168, 2048, 163_840, 64
LAYERS = {"1k": 1, "10k": 9, "70k": 61}
"""Layers of the mixture of experts with so many tensors."""

MESHES = ("ep=8,fsdp=8", "ep=64,fsdp=64", "ep=64,fsdp=512", "ep=64,fsdp=4096")
QUICK = (("1k", "10k"), MESHES[:2])
PEER_BOXES = 600_000
"""More boxes than this take the peer's planner over a minute."""


def config(layers: int) -> dict[str, Any]:
    """The shape of the largest open mixtures of experts."""
    return {
        "model_type": "deepseek_v3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "moe_intermediate_size": INNER,
        "intermediate_size": 18_432,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": VOCAB,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
    }


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        found[f"{at}.input_layernorm.weight"] = (HIDDEN,)
        found[f"{at}.post_attention_layernorm.weight"] = (HIDDEN,)
        found[f"{at}.self_attn.q_a_proj.weight"] = (1536, HIDDEN)
        found[f"{at}.self_attn.q_a_layernorm.weight"] = (1536,)
        found[f"{at}.self_attn.q_b_proj.weight"] = (HEADS * 192, 1536)
        found[f"{at}.self_attn.kv_a_proj_with_mqa.weight"] = (576, HIDDEN)
        found[f"{at}.self_attn.kv_a_layernorm.weight"] = (512,)
        found[f"{at}.self_attn.kv_b_proj.weight"] = (HEADS * 256, 512)
        found[f"{at}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * 128)
        found[f"{at}.mlp.gate.weight"] = (EXPERTS, HIDDEN)
        found[f"{at}.mlp.gate.e_score_correction_bias"] = (EXPERTS,)
        parts = [(f"mlp.experts.{e}", INNER) for e in range(EXPERTS)]
        for part, inner in (*parts, ("mlp.shared_experts", INNER)):
            found[f"{at}.{part}.gate_proj.weight"] = (inner, HIDDEN)
            found[f"{at}.{part}.up_proj.weight"] = (inner, HIDDEN)
            found[f"{at}.{part}.down_proj.weight"] = (HIDDEN, inner)
    found["model.norm.weight"] = (HIDDEN,)
    found["lm_head.weight"] = (VOCAB, HIDDEN)
    return found


def write_sparse(folder: Path, layers: int = LAYERS["70k"]) -> None:
    """A checkpoint with true headers and no bytes, one file a layer."""
    bf16, weight_map = BY_NAME["BF16"], {}
    files: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, shape in shapes(layers).items():
        part = name.split(".")[2] if name.startswith("model.layers.") else "rest"
        files.setdefault(f"part-{part}.safetensors", []).append((name, shape))
    for file, held in files.items():
        header = make_header([(name, bf16, shape) for name, shape in held], {})
        size = sum(2 * prod(shape) for _, shape in held)
        with (folder / file).open("wb") as out:
            out.write(header)
            out.truncate(len(header) + size)
        weight_map |= {name: file for name, _ in held}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config(layers)))


def plan_rank(src: Manifest, targets: Sequence[Target], mesh: Mesh, rank: int) -> int:
    """The bytes that one rank reads, its share alone looked at and every element proven."""
    read, prover = 0, prover_of(src)
    costs: dict[Any, int] = {}
    for target in targets:
        box = mesh.box(target.layout.shape, target.rule, rank)
        if box is None or not box.size:
            continue
        proven = prover.prove(target)
        copies = proven.copies(box)
        key = (proven.template, box, *(s.dtype.name for s in proven.sources))
        if key not in costs:
            costs[key] = read_cost(copies)[1]
        read += costs[key]
    return read


def targets_on(src: Manifest, mesh: Mesh) -> Sequence[Target]:
    """The tensors of a DCP checkpoint on a mesh."""
    return targets_for(src, Request("dcp", mesh)).targets


def plan_all(src: Manifest, targets: Sequence[Target], mesh: Mesh) -> Plan:
    """The proof for every rank."""
    plan = make_plan(src, targets, to="dcp", mesh=mesh, peak_memory_bytes=0)
    assert plan.proven, plan.problems[:3]
    return plan


def peer_seconds(targets: Sequence[Target], mesh: Mesh) -> float:
    """CPU seconds in which torch's planner makes its global plan of the same boxes, one holder each."""
    import torch
    from torch.distributed.checkpoint.default_planner import (
        _validate_global_plan,
        create_default_global_save_plan,
    )
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
        TensorProperties,
    )
    from torch.distributed.checkpoint.planner import (
        SavePlan,
        TensorWriteData,
        WriteItem,
        WriteItemType,
    )

    properties = TensorProperties(dtype=torch.bfloat16)
    items: list[list[WriteItem]] = [[] for _ in range(mesh.size)]
    for target in targets:
        size = torch.Size(target.shape)
        for k, box in enumerate(target.boxes):
            chunk = ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.shape))
            index = MetadataIndex(target.name, chunk.offsets, k)
            data = TensorWriteData(chunk, properties, size)
            items[k % mesh.size].append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
    started = time.process_time()
    plans, metadata = create_default_global_save_plan([SavePlan(each) for each in items])
    assert _validate_global_plan(plans, metadata) in ([], True)
    return time.process_time() - started


def curve(tensors: Sequence[str], meshes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One row for each number of tensors and ranks; times are CPU seconds."""
    for label in tensors:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            write_sparse(folder, LAYERS[label])
            started = time.process_time()
            read_manifest(folder)
            opened = time.process_time() - started
            for text in meshes:
                mesh = Mesh.parse(text)
                manifest = read_manifest(folder)
                started = time.process_time()
                targets = targets_on(manifest, mesh)
                chosen = time.process_time() - started
                started = time.process_time()
                read_bytes = plan_rank(manifest, targets, mesh, mesh.size // 3)
                one = time.process_time() - started
                started = time.process_time()
                plan_all(manifest, targets, mesh)
                proven = time.process_time() - started
                boxes = sum(len(t.boxes) for t in targets)
                peer = peer_seconds(targets, mesh) if boxes <= PEER_BOXES else None
                yield {
                    "benchmark": "plan_scale",
                    "tensors": len(manifest.stored),
                    "ranks": mesh.size,
                    "mesh": text,
                    "boxes": boxes,
                    "open_seconds": opened,
                    "targets_seconds": chosen,
                    "one_rank_seconds": one,
                    "one_rank_bytes": read_bytes,
                    "all_ranks_seconds": proven,
                    "dcp_planner_seconds": peer,
                    "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
                }


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """The curve over tensors and ranks."""
    return list(curve(*(QUICK if quick else (tuple(LAYERS), MESHES))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    head = (
        "tensors",
        "ranks",
        "boxes",
        "open",
        "targets",
        "one rank",
        "all ranks",
        "DCP's planner",
    )
    print("".join(f"{name:>14}" for name in head))
    found = []
    for row in curve(*(QUICK if options.quick else (tuple(LAYERS), MESHES))):
        found.append(row)
        counts = "".join(f"{row[x]:>14,}" for x in ("tensors", "ranks", "boxes"))
        times = (
            f"{name}_seconds"
            for name in ("open", "targets", "one_rank", "all_ranks", "dcp_planner")
        )
        cells = (f"{row[t]:.2f} s" if row[t] is not None else "over a minute" for t in times)
        print(counts + "".join(f"{cell:>14}" for cell in cells), flush=True)
    peak = max(row["peak_memory_bytes"] for row in found) / 2**30
    print(f"peak memory {peak:.2f} GiB; bars: one rank < 1 s, all ranks < 20 s, memory < 1 GiB")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
