"""Planning at scale, from metadata alone: a trillion parameters onto 1,024 ranks.

The checkpoint is real in its headers and sparse in its bytes: 61 layers, 384 experts, about
70,000 tensors in safetensors files whose data were never written.  Prints the time of one
rank's proven plan, the time of the proof for the whole mesh, and the memory.

    python benchmarks/plan_scale.py
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from intarsia.conversion.targets import Request, targets_for
from intarsia.dtypes import BY_NAME
from intarsia.format.hf.safetensors_header import make_header
from intarsia.format.registry import read_manifest
from intarsia.mesh import Mesh
from intarsia.planning.manifest import Manifest, Target
from intarsia.planning.plan import Plan
from intarsia.planning.planner import make_plan, read_cost
from intarsia.planning.proof import prover_of

LAYERS, EXPERTS, HIDDEN, INNER, VOCAB, HEADS = 61, 384, 7168, 2048, 163_840, 64
CONFIG = {
    "model_type": "deepseek_v3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "first_k_dense_replace": 1,
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
"""The shape of the largest open mixtures of experts."""


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
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
        if layer == 0:
            parts = [("mlp", 18_432)]
        else:
            found[f"{at}.mlp.gate.weight"] = (EXPERTS, HIDDEN)
            found[f"{at}.mlp.gate.e_score_correction_bias"] = (EXPERTS,)
            parts = [(f"mlp.experts.{e}", INNER) for e in range(EXPERTS)]
            parts.append(("mlp.shared_experts", INNER))
        for part, inner in parts:
            found[f"{at}.{part}.gate_proj.weight"] = (inner, HIDDEN)
            found[f"{at}.{part}.up_proj.weight"] = (inner, HIDDEN)
            found[f"{at}.{part}.down_proj.weight"] = (HIDDEN, inner)
    found["model.norm.weight"] = (HIDDEN,)
    found["lm_head.weight"] = (VOCAB, HIDDEN)
    return found


def write_sparse(folder: Path) -> None:
    """A checkpoint with true headers and no bytes, one file a layer."""
    bf16, weight_map = BY_NAME["BF16"], {}
    files: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, shape in shapes().items():
        part = name.split(".")[2] if name.startswith("model.layers.") else "rest"
        files.setdefault(f"part-{part}.safetensors", []).append((name, shape))
    for file, rows in files.items():
        header = make_header([(name, bf16, shape) for name, shape in rows], {})
        size = sum(2 * prod(shape) for _, shape in rows)
        with (folder / file).open("wb") as out:
            out.write(header)
            out.truncate(len(header) + size)
        weight_map |= {name: file for name, _ in rows}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG))


def plan_rank(src: Manifest, targets: Sequence[Target], mesh: Mesh, rank: int) -> int:
    """The bytes that one rank reads, its share alone looked at and every element proven."""
    read = 0
    costs: dict[Any, int] = {}
    for target in targets:
        box = mesh.box(target.shape, target.rule, rank)
        if box is None or not box.size:
            continue
        copies = prover_of(src).prove(target).copies(box)
        key = tuple((c.piece.at, c.piece.loops, c.stored.dtype) for c in copies)
        if key not in costs:
            costs[key] = read_cost(copies)[1]
        read += costs[key]
    return read


def targets_on(src: Manifest, mesh: Mesh) -> Sequence[Target]:
    """What `dcp` on a mesh asks for."""
    return targets_for(src, Request("dcp", mesh)).targets


def plan_all(src: Manifest, targets: Sequence[Target], mesh: Mesh) -> Plan:
    """The proven plan of the whole mesh."""
    plan = make_plan(src, targets, to="dcp", mesh=mesh, peak_memory_bytes=0)
    assert plan.proven, plan.problems[:3]
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_sparse(folder)
        started = time.perf_counter()
        manifest = read_manifest(folder)
        opened = time.perf_counter() - started
        print(
            f"{len(manifest.stored):,} tensors, {manifest.parameters / 1e12:.3f}T parameters,"
            f" family {manifest.family or 'unknown (name by name)'}; headers read in {opened:.2f} s"
        )
        print(
            f"{'mesh':<22}{'ranks':>6}{'one rank s':>12}{'its bytes':>12}{'all ranks s':>13}{'proven':>8}"
        )
        for text in ("ep=64,fsdp=1024", "fsdp=1024", "tp=8,pp=4,ep=32,fsdp=32", "pp=16,ep=64,tp=8"):
            mesh = Mesh.parse(text)
            ranks, wholes = [], []
            for _ in range(repeat):
                targets = targets_on(manifest, mesh)
                started = time.perf_counter()
                read_bytes = plan_rank(manifest, targets, mesh, mesh.size // 3)
                ranks.append(time.perf_counter() - started)
                started = time.perf_counter()
                plan = plan_all(manifest, targets, mesh)
                wholes.append(time.perf_counter() - started)
            print(
                f"{text:<22}{mesh.size:>6}{sorted(ranks)[repeat // 2]:>12.2f}"
                f"{read_bytes / 2**30:>10.2f}Gi{sorted(wholes)[repeat // 2]:>13.2f}{plan.proven!s:>8}"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {peak:.2f} GiB; bars: one rank < 2 s, all ranks < 60 s, memory < 2 GB")


if __name__ == "__main__":
    main()
