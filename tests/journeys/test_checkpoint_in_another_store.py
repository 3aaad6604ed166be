"""A checkpoint in a store that is not the local one is opened, planned, verified and converted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import intarsia
from intarsia.errors import ChangedError, FormatError, UsageError
from intarsia.store.address import named
from intarsia.store.registry import register
from tests.checkpoints import fixture
from tests.store.memory_store import MemoryStore

FORMATS = {"hf": "", "dcp": "fsdp=2", "torch_dist": "tp=2", "fsdp_dtensor": "fsdp=2"}


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    register("memory", found)
    return found


def copied(store: MemoryStore, folder: Path, url: str) -> str:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(named(url) / path.relative_to(folder), path.read_bytes())
    return url


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_from_it(kind: str, store: MemoryStore, tmp_path: Path) -> None:
    local = fixture("llama")
    if kind != "hf":
        local = tmp_path / "local"
        intarsia.convert(fixture("llama"), local, to=kind, mesh=FORMATS[kind])
    url = copied(store, local, "memory://runs/llama")

    with intarsia.open(url) as there, intarsia.open(local) as here:
        assert there.manifest.path.startswith(url)
        assert list(there) == list(here)
        for name in there:
            assert torch.equal(there[name][...], here[name][...])
    assert intarsia.plan(url, to="dcp", mesh="fsdp=2").proven
    assert intarsia.verify(url)
    assert intarsia.verify(url, local)

    intarsia.convert(url, tmp_path / "out", to="hf")
    before, after = (
        load_file(f / "model.safetensors") for f in (fixture("llama"), tmp_path / "out")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_model_is_loaded_from_it(store: MemoryStore) -> None:
    from transformers import AutoModelForCausalLM

    local = fixture("llama")
    url = copied(store, local, "memory://llama")
    expected = AutoModelForCausalLM.from_pretrained(local)
    model = AutoModelForCausalLM.from_config(expected.config, dtype=expected.dtype)
    intarsia.load(url, model)
    for name, held in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], held), name


def test_a_destination_there_is_refused(store: MemoryStore) -> None:
    with pytest.raises(UsageError, match="memory://out is no local folder"):
        intarsia.convert(fixture("llama"), "memory://out", to="hf")
    assert not store.files


def test_a_file_that_changes_there_is_a_change(store: MemoryStore) -> None:
    url = copied(store, fixture("llama"), "memory://llama")
    with intarsia.open(url) as ck:
        name = next(iter(ck))
        file = next(f for f in store.files if f.endswith(".safetensors"))
        store.put(named(file), bytes(store.files[file].data))
        with pytest.raises(ChangedError, match=f"{file} changed while it was read"):
            ck[name][...]


def test_errors_name_the_url(store: MemoryStore) -> None:
    with pytest.raises(FormatError, match="memory://absent does not exist"):
        intarsia.open("memory://absent")
    url = copied(store, fixture("llama"), "memory://llama")
    file = next(f for f in store.files if f.endswith(".safetensors"))
    store.put(named(file), bytes(store.files[file].data[:-1]))
    with pytest.raises(FormatError, match=file):
        intarsia.open(url)
