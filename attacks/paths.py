"""Exploits that try to reach files outside of the checkpoint, or to hang on what is no file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from attacks import sound
from intarsia.format.dcp.metadata import TensorRecord
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk


def _index(folder: Path, file: str) -> None:
    index = {"weight_map": {sound.NAME: file}}
    sound.hf(folder, model__safetensors__index__json=index)
    (folder / "model.safetensors").rename(folder / "other.safetensors")


def index_that_climbs_out(folder: Path, canary: Path) -> None:
    """The index sends a tensor to `../../secret`."""
    _index(folder, "../../secret.safetensors")


def index_with_an_absolute_path(folder: Path, canary: Path) -> None:
    """The index sends a tensor to /etc/passwd."""
    _index(folder, "/etc/passwd")


def index_with_a_null_byte(folder: Path, canary: Path) -> None:
    """The index names a file with a NUL in its middle."""
    _index(folder, "model\0.safetensors")


def index_with_half_a_character(folder: Path, canary: Path) -> None:
    """The index names a file that cannot be encoded."""
    _index(folder, "\ud800.safetensors")


def index_with_an_endless_name(folder: Path, canary: Path) -> None:
    """The index names a file of more characters than any system allows."""
    _index(folder, "a" * 100_000)


def metadata_that_climbs_out(folder: Path, canary: Path) -> None:
    """`.metadata` keeps a chunk in `../../etc/passwd`."""
    record = TensorRecord("a", sound.F32, (4,), (Chunk(Box((0,), (4,)), "../../etc/passwd", 0, 9),))
    sound.dcp(folder, sound.metadata_of(a=record))


def metadata_with_an_endless_name(folder: Path, canary: Path) -> None:
    """`.metadata` keeps a chunk in a file of more characters than any system allows."""
    record = TensorRecord("a", sound.F32, (4,), (Chunk(Box((0,), (4,)), "a" * 5000, 0, 9),))
    sound.dcp(folder, sound.metadata_of(a=record))


def tracker_that_climbs_out(folder: Path, canary: Path) -> None:
    """Megatron's tracker file names a path for an iteration."""
    sound.torch_dist(folder)
    (folder / "latest_checkpointed_iteration.txt").write_text("../../../etc")
    (folder / "iter_0000001").rename(folder / "elsewhere")


def tracker_with_endless_digits(folder: Path, canary: Path) -> None:
    """Megatron's tracker file holds a number of five thousand digits."""
    sound.torch_dist(folder)
    (folder / "latest_checkpointed_iteration.txt").write_text("9" * 5000)
    (folder / "iter_0000001").rename(folder / "elsewhere")


def pipe_for_an_index(folder: Path, canary: Path) -> None:
    """The index is a named pipe that nobody writes to."""
    sound.hf(folder)
    os.mkfifo(folder / "model.safetensors.index.json")


def pipe_for_a_model(folder: Path, canary: Path) -> None:
    """model.safetensors is a named pipe."""
    folder.mkdir()
    os.mkfifo(folder / "model.safetensors")


def pipe_for_a_tracker(folder: Path, canary: Path) -> None:
    """Megatron's tracker file and its metadata.json are named pipes."""
    sound.dcp(folder)
    (folder / ".metadata").unlink()
    os.mkfifo(folder / "latest_checkpointed_iteration.txt")
    os.mkfifo(folder / "metadata.json")


def device_for_a_model(folder: Path, canary: Path) -> None:
    """model.safetensors and config.json lead to /dev/zero, which never ends."""
    folder.mkdir()
    (folder / "model.safetensors").symlink_to("/dev/zero")
    (folder / "config.json").symlink_to("/dev/zero")


def side_file_that_leads_to_a_secret(folder: Path, canary: Path) -> None:
    """tokenizer.json is a link to /etc/passwd, which a conversion would publish."""
    sound.hf(folder)
    (folder / "tokenizer.json").symlink_to("/etc/passwd")


def metadata_of_a_terabyte(folder: Path, canary: Path) -> None:
    """`.metadata` is a sparse file of a terabyte, to be read as a whole."""
    sound.dcp(folder)
    os.truncate(folder / ".metadata", 1 << 40)


def index_of_a_terabyte(folder: Path, canary: Path) -> None:
    """The index is a sparse file of a terabyte, to be read as a whole."""
    sound.hf(folder, model__safetensors__index__json=b"{")
    os.truncate(folder / "model.safetensors.index.json", 1 << 40)


def many_tensors_in_one_place(folder: Path, canary: Path) -> None:
    """A thousand tensors of a megabyte claim the same bytes of one file."""
    data = sound.blob((1 << 18,))
    chunk = Chunk(Box((0,), (1 << 18,)), "__0_0.distcp", 0, len(data))
    record = TensorRecord("", sound.F32, (1 << 18,), (chunk,))
    records = {f"t{k}": replace(record, name=f"t{k}") for k in range(1000)}
    sound.dcp(folder, sound.metadata_of(**records), data)
