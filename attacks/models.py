"""Sound checkpoints of one small model in every format, with training state: for exploits and the fuzzer."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import intarsia
from attacks import sound
from intarsia.dtypes import BY_NAME
from intarsia.family import Param, table_for
from intarsia.format.dcp.metadata import Metadata, TensorRecord, read_metadata
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.hf.safetensors_header import make_header
from intarsia.format.megatron.optimizer.parameter_order import SPECS, parameters_in_memory
from intarsia.format.registry import read_manifest
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Entry

CONFIG = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 4,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
    "intermediate_size": 6, "vocab_size": 5, "num_experts": 2, "num_experts_per_tok": 1,
    "moe_intermediate_size": 3, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "tie_word_embeddings": False,
}  # fmt: skip
KINDS = ("master", "exp_avg", "exp_avg_sq")
BUCKET = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.bfloat16).bucket_idx_0"


def hf(folder: Path, *, config: bool = True, state: bool = True) -> Path:
    """The model as the hub has it, with optimizer state beside it."""
    table = table_for(CONFIG)
    assert table is not None
    shapes = {n: s for n, s in table.logical.items() if n not in table.optional}
    folder.mkdir(parents=True)
    bf16, f32 = BY_NAME["BF16"], BY_NAME["F32"]
    _safetensors(folder / "model.safetensors", [(n, bf16, s) for n, s in shapes.items()])
    if config:
        (folder / "config.json").write_text(json.dumps(CONFIG))
    if state:
        rows = [(f"optimizer.{kind}.{n}", f32, s) for n, s in shapes.items() for kind in KINDS]
        rows += [(f"optimizer.step.{n}", f32, ()) for n in shapes]
        (folder / "optimizer").mkdir()
        _safetensors(folder / "optimizer" / "model.safetensors", rows)
    return folder


def _safetensors(path: Path, rows: list[tuple[str, object, tuple[int, ...]]]) -> None:
    header = make_header(rows, {"format": "pt"})  # type: ignore[arg-type]
    last = json.loads(header[8:])
    end = max(row["data_offsets"][1] for name, row in last.items() if name != "__metadata__")
    path.write_bytes(header + bytes(end))


def converted(folder: Path, to: str, *, config: bool = True) -> Path:
    """The model in another format; the folder that holds its `.metadata`."""
    src = hf(folder.with_name(folder.name + "-hf"))
    intarsia.convert(src, folder, to=to, workers=1, memory=1 << 26)
    home = next(folder.rglob(".metadata")).parent
    if not config:
        for path in folder.rglob("config.json"):
            path.unlink()
    return home


def buckets(folder: Path) -> Path:
    """A Megatron folder whose optimizer state lies in one bucket, each parameter and gap a chunk."""
    home = converted(folder, "torch_dist")
    found = metadata_at(home)
    tensors = {n: t for n, t in found.tensors.items() if not n.startswith("optimizer.")}
    write(home, replace(found, tensors=tensors))
    held = read_manifest(home).stored.values()
    rows = [Param(s.name, s.layout, s.rule, s.value) for s in held if "optimizer" not in s.name]
    cuts = [0]
    for parameter in reversed(parameters_in_memory(rows, SPECS[0])):
        row = parameter.local(parameter.parts)
        start = -(-cuts[-1] // 64) * 64
        cuts += [start, start + row.layout.size]
    sizes = [(a, b - a) for a, b in pairwise([*cuts, -(-cuts[-1] // 64) * 64]) if a < b]
    file, data = "__9_0.distcp", b""
    for kind in KINDS[1:]:
        chunks = []
        for at, size in sizes:
            stored = sound.blob((size,))
            chunks.append(Chunk(Box((at,), (size,)), file, len(data), len(stored)))
            data += stored
        name = f"{BUCKET}.{kind}"
        tensors[name] = TensorRecord(name, sound.F32, (sum(sizes[-1]),), tuple(chunks))
    (home / file).write_bytes(data)
    write(home, replace(found, tensors=tensors))
    return home


def metadata_at(home: Path) -> Metadata:
    """The metadata of a folder."""
    return read_metadata((home / ".metadata").read_bytes(), "here")


def write(home: Path, metadata: Metadata) -> None:
    """Give a folder other metadata."""
    paths = {name: (name,) for name in (*metadata.tensors, *metadata.objects)}
    (home / ".metadata").write_bytes(
        write_metadata(Metadata(metadata.tensors, metadata.objects, paths, {}))
    )


def with_entry(home: Path, name: str, file: str = "__8_0.distcp") -> None:
    """Keep an entry in a file of its own, which is all of it."""
    found = metadata_at(home)
    at = found.objects[name]
    data = (home / at.file).read_bytes()[at.start_bytes :][: at.length_bytes]
    (home / file).write_bytes(data)
    write(home, replace(found, objects=found.objects | {name: Entry(name, file, 0, len(data))}))
