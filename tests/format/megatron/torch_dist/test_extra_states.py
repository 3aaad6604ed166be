"""What modules keep beside their parameters: the empty says nothing, and no other is lost silently."""

from __future__ import annotations

import io
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import intarsia
from intarsia.format.megatron.torch_dist.extra_states import extra_states, says_nothing
from tests.checkpoints import llama_config, model, write_hf
from tests.parity.megatron_writing import read

QKV = "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_"


def saved(value: Any) -> bytes:
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def test_modules_that_have_an_extra_state() -> None:
    found = extra_states(
        {
            "decoder.layers.self_attention.linear_qkv.weight": (2,),
            "decoder.layers.mlp.experts.experts.linear_fc1.weight": (2, 3),
            "decoder.layers.mlp.router.weight": (2,),
            "decoder.final_layernorm.weight": (),
            "embedding.word_embeddings.weight": (),
        }
    )
    assert "decoder.layers.self_attention.linear_qkv._extra_state/shard_1_2" in found
    assert "decoder.layers.self_attention.core_attention._extra_state/shard_0_2" in found
    assert "decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_1.2_2.3" in found
    assert "decoder.final_layernorm._extra_state/shard_0_1" in found
    assert len(found) == 2 + 2 + 6 + 1
    assert torch.load(io.BytesIO(next(iter(found.values())))) == [None]


def with_state(tmp_path: Path, value: Any) -> tuple[Path, str]:
    """A checkpoint in which the state of one module is not None, and the name of that state."""
    write_hf(tmp_path / "hf", model(llama_config()), llama_config())
    intarsia.convert(tmp_path / "hf", tmp_path / "td", to="torch_dist")
    (folder,) = (tmp_path / "td").glob("iter_*")
    described = dcp.FileSystemReader(folder).read_metadata()
    (key,) = [k for k in described.storage_data if QKV in k.fqn]
    place, data = described.storage_data[key], saved([value])
    assert len(data) == place.length
    with (folder / place.relative_path).open("r+b") as file:
        file.seek(place.offset)
        file.write(data)
    return tmp_path / "td", key.fqn


@pytest.mark.parametrize("held", [{"scale": 3}, 1])
def test_a_state_that_takes_as_many_bytes_as_none_is_kept(held: Any, tmp_path: Path) -> None:
    path, name = with_state(tmp_path, held)
    assert [n for n in read(path).entries if "_extra_state" in n] == [name]
    intarsia.convert(tmp_path / "hf", tmp_path / "without", to="torch_dist")
    found = intarsia.verify(path, tmp_path / "without").beside
    assert [x.verdict for x in found if x.name == name] == ["not compared"]
    done = intarsia.convert(path, tmp_path / "again", to="torch_dist", mesh="tp=2")
    assert not any(name in note for note in done.notes)
    found = intarsia.verify(path, tmp_path / "again").beside
    assert [x.verdict for x in found if x.name == name] == ["equal"]


def test_a_state_goes_along_through_megatron_fsdps_format(tmp_path: Path) -> None:
    """Its name is one of `torch_dist`, among tensors that are not."""
    path, name = with_state(tmp_path, {"scale": 3})
    intarsia.convert(path, tmp_path / "fsdp", to="fsdp_dtensor", mesh="fsdp=2")
    assert intarsia.inspect(tmp_path / "fsdp").format == "fsdp_dtensor"
    intarsia.convert(tmp_path / "fsdp", tmp_path / "back", to="torch_dist")
    assert name in read(tmp_path / "back").entries


def test_a_state_without_a_place_is_named(tmp_path: Path) -> None:
    """Megatron asks for layers by their numbers, and the states of all of them have other names then."""
    path, name = with_state(tmp_path, {"scale": 3})
    (file,) = path.glob("iter_*/common.pt")
    torch.serialization.add_safe_globals([Namespace])
    common = torch.load(file)
    common["args"].hetereogenous_dist_checkpoint = True
    torch.save(common, file)
    done = intarsia.convert(path, tmp_path / "apart", to="torch_dist")
    assert any("1 objects cannot be stored" in note and name in note for note in done.notes)


def test_what_says_nothing() -> None:
    empty = torch.empty(0, dtype=torch.uint8)
    assert all(says_nothing(QKV, saved(x)) for x in (None, [None], [empty]))
    said = torch.ones(1, dtype=torch.uint8), io.BytesIO(b"scale"), [], {}, 0
    assert not any(says_nothing(QKV, saved([x])) for x in said)
