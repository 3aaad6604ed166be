"""A checkpoint in a store that is not the local one is opened, planned, verified and converted."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import intarsia
from intarsia.errors import ChangedError, FormatError, StoreError, UsageError
from intarsia.store.address import named
from intarsia.store.registry import register
from intarsia.store.writing.staging import Staging
from tests.checkpoints import fixture
from tests.store.memory_store import MemoryStore, MemoryTransaction

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


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_written_there_as_it_is_locally(
    kind: str, store: MemoryStore, tmp_path: Path
) -> None:
    options = {"to": kind, "mesh": FORMATS[kind]}
    intarsia.convert(fixture("llama"), tmp_path / "out", **options)
    report = intarsia.convert(fixture("llama"), "memory://runs/out", **options)
    assert report.destination == "memory://runs/out"
    assert {name: bytes(f.data) for name, f in store.files.items()} == {
        f"memory://runs/out/{path.relative_to(tmp_path / 'out')}": path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert intarsia.verify(fixture("llama"), "memory://runs/out")


def test_a_destination_there_is_replaced_only_when_that_is_asked_and_it_is_a_checkpoint(
    store: MemoryStore,
) -> None:
    intarsia.convert(fixture("llama"), "memory://out", to="hf")
    before = dict(store.files)
    with pytest.raises(UsageError, match="memory://out exists"):
        intarsia.convert(fixture("llama"), "memory://out", to="dcp")
    assert store.files == before
    intarsia.convert(fixture("llama"), "memory://out", to="dcp", overwrite=True)
    assert intarsia.open("memory://out").format == "dcp"
    assert not any(name.endswith(".safetensors") for name in store.files)
    store.put(named("memory://out/thesis.txt"), b"mine")
    with pytest.raises(UsageError, match=r"holds more than the checkpoint .* thesis.txt"):
        intarsia.convert(fixture("llama"), "memory://out", to="hf", overwrite=True)
    with pytest.raises(UsageError, match="memory://out contains the source"):
        intarsia.convert("memory://out", "memory://out", to="hf", overwrite=True)
    assert not store.locked


def test_a_run_that_fails_leaves_nothing_that_shows(store: MemoryStore) -> None:
    url = copied(store, fixture("llama"), "memory://llama")
    before = dict(store.files)

    def change(done: int, total: int) -> None:
        store.put(named(f"{url}/config.json"), bytes(before[f"{url}/config.json"].data))

    with pytest.raises(ChangedError, match=r"config.json changed"):
        intarsia.convert(url, "memory://out", to="dcp", progress=change)
    assert store.files.keys() == before.keys()
    assert not store.locked

    def meddle(done: int, total: int) -> None:
        store.put(named("memory://out/other"), b"another's")

    with pytest.raises(UsageError, match=r"memory://out was changed by another process .* other"):
        intarsia.convert(url, "memory://out", to="dcp", progress=meddle)
    shown = {name for name in store.files if ".intarsia-" not in name}
    assert shown == before.keys() | {"memory://out/other"}
    assert not store.locked
    store.remove(named("memory://out"))
    report = intarsia.convert(url, "memory://out", to="dcp", resume=True)
    assert "were there already" in str(report)
    assert not any(".intarsia-" in name for name in store.files)


def test_a_model_is_saved_there_and_loaded_again(store: MemoryStore, tmp_path: Path) -> None:
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    for folder in ("memory://runs", tmp_path):
        intarsia.save(f"{folder}/step-1", model, optimizer, extra={"seen": 5})
        intarsia.save(
            f"{folder}/step-2", model, optimizer, extra={"seen": 6}, background=True
        ).wait()
    assert {
        name.removeprefix("memory://runs/"): bytes(f.data) for name, f in store.files.items()
    } == {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }, "as they are locally, `latest` included"
    assert bytes(store.files["memory://runs/latest"].data) == b"step-2\n"
    assert not store.locked
    assert intarsia.verify("memory://runs/step-2", tmp_path / "step-2")
    assert intarsia.load("memory://runs", other, torch.optim.AdamW(other.parameters())).complete
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    with pytest.raises(UsageError, match=r"memory://runs/step-2 exists"):
        intarsia.save("memory://runs/step-2", model)


@pytest.mark.parametrize("call", ["create", "write", "commit"])
def test_a_save_that_fails_leaves_nothing_there(
    call: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MemoryTransaction, call, fail)
    with pytest.raises(StoreError, match=r"memory://.*No space left on device"):
        intarsia.save("memory://runs/step-1", torch.nn.Linear(3, 2))
    assert not store.files
    assert not store.locked


def test_what_is_in_one_process_is_not_shared_by_several(store: MemoryStore) -> None:
    with pytest.raises(UsageError, match="memory://out can be written by one process"):
        Staging("memory://out", alone=False)
    assert not store.files
    assert not store.locked


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


@pytest.mark.parametrize("call", ["claim", "create", "write", "commit"])
def test_a_call_that_fails_while_it_is_written_is_told_with_its_place(
    call: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MemoryTransaction, call, fail)
    with pytest.raises(StoreError, match=r"memory://.*No space left on device") as caught:
        intarsia.convert(fixture("llama"), "memory://out", to="dcp")
    assert "free some space" in str(caught.value)
    assert not store.locked
    assert call == "commit" or not store.files, "what was not written is not kept"
    assert all(".intarsia-" in name for name in store.files)


def test_a_store_that_is_not_written_says_so(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **words: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(MemoryStore, "transaction", fail)
    with pytest.raises(StoreError, match="memory://out: Read-only file system"):
        intarsia.convert(fixture("llama"), "memory://out", to="dcp")


def test_a_url_of_a_local_file_is_pointed_to_its_path() -> None:
    with pytest.raises(UsageError, match="give the path itself, without file://"):
        intarsia.open(f"file://{fixture('llama')}")
