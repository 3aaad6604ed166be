"""Digests of whole folders that conversions write: every fixture to every format, on several meshes.

`python -m tests.written_bytes` records them in `written_bytes.json`, which is for a change that is meant
to write other bytes; `python -m tests.written_bytes --check` compares with what is recorded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import intarsia
from tests.fixtures import FIXTURES, fixture

RECORD = Path(__file__).with_suffix(".json")

TARGETS: dict[str, dict[str, str]] = {
    "hf": {"to": "hf"},
    "hf in small files, bf16": {"to": "hf", "max_shard_size": "100KB", "dtype": "bf16"},
    "hf as modules name it": {"to": "hf", "dialect": "hf-module"},
    "dcp tp=2,fsdp=3": {"to": "dcp", "mesh": "tp=2,fsdp=3"},
    "dcp ep=2,fsdp=2,replicate=2": {"to": "dcp", "mesh": "ep=2,fsdp=2,replicate=2"},
    "torch_dist tp=2": {"to": "torch_dist", "mesh": "tp=2"},
    "torch_dist tp=2,pp=2": {"to": "torch_dist", "mesh": "tp=2,pp=2"},
    "torch_dist tp=2,pp=2,ep=2": {"to": "torch_dist", "mesh": "tp=2,pp=2,ep=2"},
    "torch_dist local": {"to": "torch_dist", "megatron_spec": "local", "optimizer": "drop"},
    "fsdp_dtensor fsdp=3": {"to": "fsdp_dtensor", "mesh": "fsdp=3"},
    "fsdp_dtensor tp=2,fsdp=2": {"to": "fsdp_dtensor", "mesh": "tp=2,fsdp=2"},
    "fsdp_dtensor tp=2,ep=2,fsdp=2": {"to": "fsdp_dtensor", "mesh": "tp=2,ep=2,fsdp=2"},
}


def sources() -> Iterator[str]:
    """Every checkpoint among the fixtures, by its place."""
    for kind in ("hf", "megatron"):
        yield from (f"{kind}/{p.name}" for p in sorted((FIXTURES / kind).iterdir()))
    for model in sorted((FIXTURES / "bridge").iterdir()):
        yield from (f"bridge/{model.name}/{p.name}" for p in sorted(model.glob("torch_dist*")))


def written(source: str, target: str) -> str:
    """The digest of what a conversion writes, or the kind of error that it ends with."""
    path = fixture(*source.split("/"))
    truth = next((t for t in (path / "hf_truth", path.parent / "hf_truth") if t.is_dir()), None)
    options = dict(TARGETS[target])
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        try:
            intarsia.convert(path, out, config=truth and truth / "config.json", **options)  # type: ignore[arg-type]
        except intarsia.IntarsiaError as error:
            return type(error).__name__
        return digest(out)


def digest(folder: Path) -> str:
    """One digest of the names and bytes of all files of a folder."""
    whole = sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole.update(f"{file.relative_to(folder)} {file.stat().st_size}\n".encode())
        whole.update(file.read_bytes())
    return whole.hexdigest()[:32]


def recorded() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(RECORD.read_text())
    return found


def main() -> None:
    now = {source: {target: written(source, target) for target in TARGETS} for source in sources()}
    if sys.argv[1:] == ["--check"]:
        then = recorded()
        other = [f"{s} to {t}" for s in now for t in TARGETS if now[s][t] != then.get(s, {}).get(t)]
        sys.exit("\n".join(["other bytes than recorded:", *other]) if other else 0)
    RECORD.write_text(json.dumps(now, indent=1) + "\n")


if __name__ == "__main__":
    main()
