"""Exploits by names: of tensors and files that steer a terminal or a page, come twice, or lie on another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attacks import sound
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Entry

STEERING = (
    "\x1b[2J\x1b]0;owned\x07", "\x9b2J", "\u202egnp.exe", "\u2066a\u2069", "a\rb", "a\x08\x08b", "a\u2028b",
    "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "</script><script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>",
    "a\nb", "[bold red]markup[/]", "\u200f\u061c", "\x7f", "\ufeff", "\U000e0041",
)  # fmt: skip
"""Names that would do more than be read: ANSI, C1, bidi, links, HTML, markup, tags."""


def _rows(**rows: list[int]) -> dict[str, Any]:
    return {
        n: {"dtype": "U8", "shape": [b - a], "data_offsets": [a, b]} for n, (a, b) in rows.items()
    }


def _header(folder: Path, rows: dict[str, Any], size: int) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(sound.header(rows, bytes(size)))


def tensors_that_overlap(folder: Path, canary: Path) -> None:
    """Two tensors of a safetensors file share half of their bytes."""
    _header(folder, _rows(a=[0, 8], b=[4, 12]), 12)


def tensors_on_the_same_bytes(folder: Path, canary: Path) -> None:
    """Two tensors of a safetensors file are the same bytes."""
    _header(folder, _rows(a=[0, 8], b=[0, 8]), 8)


def tensors_with_a_hole(folder: Path, canary: Path) -> None:
    """Bytes between two tensors belong to none: something is hidden there."""
    _header(folder, _rows(a=[0, 4], b=[8, 12]), 12)


def tensors_with_bytes_before_them(folder: Path, canary: Path) -> None:
    """The first tensor begins after bytes that belong to none."""
    _header(folder, _rows(a=[8, 12]), 12)


def tensors_with_bytes_behind_them(folder: Path, canary: Path) -> None:
    """The file goes on behind its last tensor: it is another kind of file as well."""
    _header(folder, _rows(a=[0, 4]), 64)


def offsets_that_run_backwards(folder: Path, canary: Path) -> None:
    """A tensor ends before it begins."""
    _header(folder, {"a": {"dtype": "U8", "shape": [0], "data_offsets": [8, 0]}}, 8)


def header_with_two_tensors_of_one_name(folder: Path, canary: Path) -> None:
    """A header names a tensor twice; readers differ in which one they take."""
    row = '"a":{"dtype":"U8","shape":[4],"data_offsets":[%d,%d]}'
    text = "{" + row % (0, 4) + "," + row % (4, 8) + "}"
    folder.mkdir()
    data = len(text).to_bytes(8, "little") + text.encode() + bytes(8)
    (folder / "model.safetensors").write_bytes(data)


def header_with_a_key_twice(folder: Path, canary: Path) -> None:
    """A row of a header has two shapes; readers differ in which one they take."""
    text = '{"a":{"dtype":"U8","shape":[4],"shape":[2,2],"data_offsets":[0,4]}}'
    folder.mkdir()
    data = len(text).to_bytes(8, "little") + text.encode() + bytes(4)
    (folder / "model.safetensors").write_bytes(data)


def index_that_names_a_tensor_twice(folder: Path, canary: Path) -> None:
    """An index sends one tensor to two files."""
    name = json.dumps(sound.NAME)
    text = f'{{"weight_map":{{{name}:"model.safetensors",{name}:"other.safetensors"}}}}'
    sound.hf(folder, model__safetensors__index__json=text.encode())


def tensors_that_steer_the_terminal(folder: Path, canary: Path) -> None:
    """Tensors of a safetensors file are named to clear a screen, to turn a line around, to be HTML."""
    rows = {
        n: {"dtype": "U8", "shape": [1], "data_offsets": [k, k + 1]} for k, n in enumerate(STEERING)
    }
    _header(folder, rows, len(STEERING))


def metadata_that_steers_the_terminal(folder: Path, canary: Path) -> None:
    """The tensors and the entries of a DCP folder have such names."""
    data = sound.blob()
    tensors, objects, stored = {}, {}, b""
    for name in STEERING:
        chunk = Chunk(Box((0,), (4,)), "__0_0.distcp", len(stored), len(data))
        tensors[name] = TensorRecord(name, sound.F32, (4,), (chunk,))
        stored += data
        objects[f"entry {name}"] = Entry(f"entry {name}", "__0_0.distcp", len(stored), 2)
        stored += b"N."
    paths = {name: (name,) for name in (*tensors, *objects)}
    sound.dcp(folder, write_metadata(Metadata(tensors, objects, paths, {})), stored)


def configuration_that_steers_the_terminal(folder: Path, canary: Path) -> None:
    """The type of a model, its class and its other fields have such names."""
    config = {"model_type": STEERING[0], "architectures": list(STEERING), STEERING[1]: STEERING[2]}
    sound.hf(folder, config__json=config)


def side_files_that_steer_the_terminal(folder: Path, canary: Path) -> None:
    """Small files that are carried along, and links that are refused, have such names."""
    sound.hf(folder)
    for name in STEERING:
        if "/" not in name:
            (folder / f"{name}.json").write_text("{}")
    (folder / "\x1b[2J.json").symlink_to("/etc/passwd")
