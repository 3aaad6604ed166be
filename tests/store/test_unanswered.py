"""A store that gives no answer says nothing about a checkpoint: no verdict comes of it."""

from __future__ import annotations

import errno
from itertools import count
from pathlib import Path

import pytest

import intarsia
from intarsia.errors import IntarsiaError, StoreError
from intarsia.store.address import named
from intarsia.store.registry import register
from tests.checkpoints import llama_config, model, write_hf
from tests.store.memory_store import MemoryReader, MemoryStore

CONFIG = llama_config(num_hidden_layers=1)
URL = "memory://model"
CALLS = [(MemoryStore, "look"), (MemoryStore, "names"), (MemoryReader, "stamp"), (MemoryReader, "read")]  # fmt: skip


@pytest.fixture(autouse=True)
def _store(tmp_path: Path) -> None:
    store = MemoryStore()
    register("memory", store)
    for file in write_hf(tmp_path / "hf", model(CONFIG), CONFIG).iterdir():
        store.put(named(URL) / file.name, file.read_bytes())
    assert intarsia.verify(URL)


def verified(kind: type, call: str, at: int, error: BaseException) -> IntarsiaError | bool:
    """What comes of a check whose `at`-th call of the store fails: its verdict, or an error."""
    honest, calls = getattr(kind, call), count(1)

    def failing(self: object, *given: object) -> object:
        if next(calls) == at:
            raise error
        return honest(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, call, failing)
        try:
            return bool(intarsia.verify(URL, workers=1))
        except IntarsiaError as found:
            return found


@pytest.mark.parametrize(
    "error",
    [
        OSError("503 SlowDown"),
        TimeoutError("timed out"),
        OSError(errno.ETIMEDOUT, "Connection timed out"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        OSError(errno.ESTALE, "Stale file handle"),
    ],
    ids=str,
)
def test_a_call_without_an_answer_is_no_fault_of_the_checkpoint(error: OSError) -> None:
    ends = [verified(kind, call, at, error) for kind, call in CALLS for at in range(1, 9)]
    assert False not in ends
    failed = [end for end in ends if end is not True]
    assert len(failed) > 8
    for end in failed:
        assert isinstance(end, StoreError)
        assert (error.strerror or str(error)) in str(end)
        assert end.hint == "the store gave no answer: run again"


def test_a_disk_that_lost_bytes_is_one() -> None:
    error = OSError(errno.EIO, "Input/output error")
    assert verified(MemoryReader, "stamp", 1, error) is False


def test_bytes_that_end_before_their_file_does_are_no_fault_of_the_file() -> None:
    for at in range(1, 6):
        end = verified(MemoryReader, "read", at, EOFError())
        assert isinstance(end, StoreError)
        assert "the store gave fewer bytes than the file has" in str(end)
        assert end.hint == "the store gave no answer: run again"
