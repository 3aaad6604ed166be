"""Exploits that try to have memory or time taken beyond all proportion to a few bytes."""

from __future__ import annotations

import io
import json
import pickle
import struct
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from attacks import sound
from intarsia.format.dcp.metadata import TensorRecord
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk


def _header(folder: Path, raw: bytes) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)


def header_of_exabytes(folder: Path, canary: Path) -> None:
    """The header claims 2**63 bytes."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((1 << 63).to_bytes(8, "little") + b"{}")


def shape_whose_product_overflows(folder: Path, canary: Path) -> None:
    """Two axes of 2**32 elements claim no bytes at all."""
    row = {"dtype": "F32", "shape": [1 << 32, 1 << 32], "data_offsets": [0, 0]}
    _header(folder, json.dumps({"a": row}).encode())


def shape_of_a_million_axes(folder: Path, canary: Path) -> None:
    """A shape whose product takes hours to work out."""
    row = {"dtype": "F32", "shape": [(1 << 62) - 1] * 1_000_000, "data_offsets": [0, 0]}
    _header(folder, json.dumps({"a": row}).encode())


def header_nested_without_end(folder: Path, canary: Path) -> None:
    """A hundred thousand lists inside each other."""
    _header(folder, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def header_metadata_nested_to_the_limit(folder: Path, canary: Path) -> None:
    """Free-form metadata that can be parsed and not be printed."""
    _header(folder, b'{"__metadata__":{"a":' + b"[" * 950 + b"]" * 950 + b"}}")


def header_with_an_endless_number(folder: Path, canary: Path) -> None:
    """An offset of a hundred thousand digits."""
    _header(folder, b'{"a":{"dtype":"F32","shape":[' + b"9" * 100_000 + b'],"data_offsets":[0,0]}}')


def header_with_a_name_twice(folder: Path, canary: Path) -> None:
    """The last of two hundred thousand names comes twice."""
    names = [*(f"n{k}" for k in range(200_000)), "n199999"]
    _header(folder, ("{" + ",".join(f'"{n}":1' for n in names) + "}").encode())


def header_with_a_name_of_dots(folder: Path, canary: Path) -> None:
    """A name of a million dots, each of which may begin a wrapper's prefix."""
    row = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    _header(folder, json.dumps({"." * 1_000_000: row}).encode())
    (folder / "config.json").write_text(json.dumps(_llama()))


def header_with_half_a_character(folder: Path, canary: Path) -> None:
    """A name that cannot be written again."""
    row = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    _header(folder, json.dumps({"\ud800": row}).encode())


def header_that_steers_the_terminal(folder: Path, canary: Path) -> None:
    """An element type that clears the screen of whoever reads the error."""
    row = {"dtype": "\x1b[2J\x1b]0;owned\x07", "shape": [0], "data_offsets": [0, 0]}
    _header(folder, json.dumps({"a": row}).encode())


def zip_bomb(folder: Path, canary: Path) -> None:
    """A tensor's archive holds a gigabyte of compressed zeros in a few kilobytes of pickle."""
    out = io.BytesIO()
    with ZipFile(out, "w", ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(1 << 26))
    sound.dcp(folder, data=out.getvalue())


def zip_with_a_lying_directory(folder: Path, canary: Path) -> None:
    """The end of an archive claims 65,535 members in four gigabytes of directory."""
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, 0xFFFFFFF0, 0, 0)
    sound.dcp(folder, data=bytes(200) + end)


def zip64_that_begins_before_its_file(folder: Path, canary: Path) -> None:
    """A zip64 record gives offsets of 2**63."""
    huge = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 1 << 62, 1 << 63)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, 0, 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    sound.dcp(folder, data=huge + locator + end)


def stack_of_a_trillion_layers(folder: Path, canary: Path) -> None:
    """A Megatron tensor that stacks 10**12 layers, none of which is stored."""
    shape = (10**12, 4)
    record = TensorRecord("decoder.layers.mlp.linear_fc2.weight", sound.F32, shape, ())
    sound.torch_dist(folder, pickle.dumps({"args": {"num_attention_heads": 2}}, 2))
    data = sound.metadata_of(**{record.name: record})
    (folder / "iter_0000001" / ".metadata").write_bytes(data)


def layer_of_endless_digits(folder: Path, canary: Path) -> None:
    """A Megatron name whose layer has nine hundred digits, another whose layer is 10**9."""
    sound.torch_dist(folder)
    names = [f"decoder.layers.{n}.mlp.linear_fc2.weight" for n in ("9" * 900, 10**9)]
    data = sound.metadata_of(**{n: TensorRecord(n, sound.F32, (0, 4), ()) for n in names})
    (folder / "iter_0000001" / ".metadata").write_bytes(data)


def chunks_beyond_their_tensor(folder: Path, canary: Path) -> None:
    """A chunk of 2**62 rows at an offset that wraps around."""
    chunk = Chunk(Box((1 << 62,), (1 << 62,)), "__0_0.distcp", 0, 8)
    record = TensorRecord("a", sound.F32, ((1 << 63) - 1,), (chunk,))
    sound.dcp(folder, sound.metadata_of(a=record))


def tensor_that_is_hollow(folder: Path, canary: Path) -> None:
    """A tensor of 2**60 elements of which four are stored."""
    data = sound.blob()
    chunk = Chunk(Box((5,), (4,)), "__0_0.distcp", 0, len(data))
    record = TensorRecord("a", sound.F32, (1 << 60,), (chunk,))
    sound.dcp(folder, sound.metadata_of(a=record), data)


def tensor_that_is_a_little_hollow(folder: Path, canary: Path) -> None:
    """A tensor of 64 MiB of which sixteen bytes are stored."""
    data = sound.blob()
    chunk = Chunk(Box((5,), (4,)), "__0_0.distcp", 0, len(data))
    record = TensorRecord("a", sound.F32, (1 << 24,), (chunk,))
    sound.dcp(folder, sound.metadata_of(a=record), data)


def tensor_of_endless_rows(folder: Path, canary: Path) -> None:
    """A tensor of 2**30 by 2**30 elements of which none is stored, nor described as a chunk."""
    record = TensorRecord("a", sound.F32, (1 << 30, 1 << 30), ())
    sound.dcp(folder, sound.metadata_of(a=record))


def _llama(**changes: object) -> dict[str, object]:
    return {
        "model_type": "llama", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
        "intermediate_size": 4, "vocab_size": 4,
    } | changes  # fmt: skip


def _config(folder: Path, config: object) -> None:
    sound.hf(folder, config__json=config)


def configuration_of_a_billion_layers(folder: Path, canary: Path) -> None:
    """config.json has 10**9 layers, each a dozen rows of a table."""
    _config(folder, _llama(num_hidden_layers=10**9))


def configuration_of_a_billion_experts(folder: Path, canary: Path) -> None:
    """config.json has 10**9 experts."""
    sizes = {"num_experts": 10**9, "moe_intermediate_size": 4, "num_experts_per_tok": 1}
    _config(folder, _llama(model_type="qwen3_moe", head_dim=4, **sizes))


def configuration_with_negative_sizes(folder: Path, canary: Path) -> None:
    """config.json has a negative width."""
    _config(folder, _llama(hidden_size=-4))


def configuration_with_words_for_numbers(folder: Path, canary: Path) -> None:
    """config.json has a text, and a list, where numbers belong."""
    _config(folder, _llama(hidden_size="4; import os", num_hidden_layers=[[1]]))


def configuration_whose_type_is_a_list(folder: Path, canary: Path) -> None:
    """config.json has a list for its model_type, which is no key of any table."""
    _config(folder, _llama(model_type=["llama"]))


def configuration_nested_without_end(folder: Path, canary: Path) -> None:
    """config.json is nested as deep as can be parsed, deeper than can be written."""
    _config(folder, b'{"model_type":"llama","a":' + b'{"a":' * 480 + b"1" + b"}" * 481)


def configuration_with_an_endless_number(folder: Path, canary: Path) -> None:
    """config.json has a number of a hundred thousand digits."""
    _config(folder, b'{"model_type":"llama","hidden_size":' + b"9" * 100_000 + b"}")
