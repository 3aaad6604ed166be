"""A run that is killed while it writes to another store leaves nothing that passes for whole, and is resumed.

Each call by which a store changes is where one run dies; what dies does nothing more, and its lock goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import pytest

import intarsia
from intarsia.errors import FormatError, StoreError, UsageError
from intarsia.store.address import named
from intarsia.store.base import Store, Transaction
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import everything_in, exists, is_file, names_like
from intarsia.store.registry import register, store_of
from intarsia.store.writing.staging import Staging
from tests.checkpoints import model, python, write_hf
from tests.faults.resume.interrupted import CONFIG, OPTIONS, Death
from tests.store.bucket_store import BucketStore, BucketTransaction
from tests.store.memory_store import MemoryStore, MemoryTransaction

CHANGING = {"store": ("put", "remove"), "transaction": ("clear", "create", "write", "commit")}
KINDS: dict[str, tuple[type[Store], type[Transaction]]] = {
    "memory": (MemoryStore, MemoryTransaction),
    "bucket": (BucketStore, BucketTransaction),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    register("memory", MemoryStore())
    register("bucket", BucketStore(tmp_path / "bucket"))
    return str(request.param)


@contextmanager
def dying(kind: str, at: int) -> Iterator[list[str]]:
    """Die before a call that changes the store; gives the names of those that were made."""
    calls: list[str] = []
    held: list[Transaction] = []

    def mortal(honest: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            calls.append(honest.__name__)
            if len(calls) >= at:
                raise Death
            return honest(self, *arguments, **options)

        return call

    def claim(self: Transaction, honest: Any = KINDS[kind][1].claim) -> None:
        honest(self)
        held.append(self)

    with pytest.MonkeyPatch.context() as patch:
        for owner, names in zip(KINDS[kind], CHANGING.values(), strict=True):
            for name in names:
                patch.setattr(owner, name, mortal(getattr(owner, name)))
        patch.setattr(KINDS[kind][1], "claim", claim)
        patch.setattr(KINDS[kind][1], "release", lambda _: None)
        yield calls
    for transaction in held:
        transaction.release()


def below(folder: PurePath) -> dict[str, bytes]:
    with Folder(folder) as held:
        names = [str(p.relative_to(folder)) for p in everything_in(folder) if is_file(p)]
        return {name: held.read_all(name) for name in names}


def check_nothing_half_written(out: PurePath, old: dict[str, bytes], whole: dict[str, bytes]):
    if exists(out):
        assert below(out) in (old, whole)
    for path in names_like(out.parent):
        if path != out:
            assert ".intarsia-" in path.name
            with pytest.raises(FormatError):
                intarsia.open(str(path))


def spread(count: int) -> list[int]:
    """Calls among `count`: the first and the last ones, between which a commit is, and some in between."""
    return [*range(1, 8), *range(8, count - 12, 37), *range(count - 12, count + 1)]


def few(count: int) -> list[int]:
    return [2, count // 2, count - 3]


@pytest.mark.parametrize(
    ("chosen", "overwrite"),
    [
        (few, False),
        pytest.param(spread, False, marks=pytest.mark.slow),
        pytest.param(spread, True, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_at_any_call_is_resumed(kind, chosen, overwrite, src, whole, tmp_path) -> None:
    out, old = named(f"{kind}://runs/out"), {}
    other = write_hf(tmp_path / "other", model(CONFIG, seed=3), CONFIG)
    with dying(kind, 10**9) as calls:
        intarsia.convert(src, f"{kind}://count/out", **OPTIONS)
    store_of(out).remove(named(f"{kind}://count"))
    assert calls.count("write") > 40
    for at in chosen(len(calls)):
        options = OPTIONS | {"overwrite": overwrite}
        if overwrite:
            intarsia.convert(other, str(out), **options)
            old = below(out)
        with dying(kind, at), pytest.raises(Death):
            intarsia.convert(src, str(out), **options)
        check_nothing_half_written(out, old, whole)
        report = intarsia.convert(src, str(out), resume=True, **options)
        assert below(out) == whole, at
        assert names_like(out.parent) == [out], at
        before = calls[: at - 1]
        if before.count("write") > 20 and "commit" not in before:
            assert re.search(r"resumed: .* were there already", str(report)), at
        store_of(out).remove(out)


def test_what_was_written_is_read_back_before_it_is_believed(kind, src) -> None:
    out = named(f"{kind}://runs/out")
    with dying(kind, 10**9) as calls:
        intarsia.convert(src, f"{kind}://count/out", to="hf", workers=1)
    with dying(kind, calls.index("commit") // 2), pytest.raises(Death):
        intarsia.convert(src, str(out), to="hf", workers=1)
    staging = Staging(out)
    ((name, data),) = below(staging.folder).items()  # its header is written last
    at = next(k for k, byte in enumerate(data) if byte)
    staging.claim()
    staging.write(name, at, [bytes([data[at] ^ 1])])
    staging.abandon(keep=True)
    report = intarsia.convert(src, str(out), resume=True, to="hf", workers=1)
    assert "did not match what had been written, and are written again" in str(report)
    assert below(out) == below(named(f"{kind}://count/out"))


def test_another_job_is_not_resumed_and_a_finished_one_is_not_begun_again(kind, src, whole) -> None:
    out = f"{kind}://runs/out"
    with dying(kind, 60), pytest.raises(Death):
        intarsia.convert(src, out, **OPTIONS)
    with pytest.raises(UsageError, match="was started by another job"):
        intarsia.convert(src, out, resume=True, to="hf")
    intarsia.convert(src, out, resume=True, **OPTIONS)
    with pytest.raises(UsageError, match="there is nothing to resume"):
        intarsia.convert(src, out, resume=True, **OPTIONS)


def test_a_run_that_fails_keeps_what_it_wrote_and_says_so(kind, src, whole, monkeypatch) -> None:
    honest, count = KINDS[kind][1].write, [0]

    def full(self: Any, *arguments: Any) -> None:
        count[0] += 1
        if count[0] > 20:
            raise OSError(28, "No space left on device")
        honest(self, *arguments)

    out = f"{kind}://runs/out"
    with monkeypatch.context() as patch:
        patch.setattr(KINDS[kind][1], "write", full)
        with pytest.raises(StoreError, match="No space left on device") as caught:
            intarsia.convert(src, out, **OPTIONS)
    assert "run again with --resume" in str(caught.value)
    assert not exists(named(out))
    assert "were there already" in str(intarsia.convert(src, out, resume=True, **OPTIONS))
    assert below(named(out)) == whole


KILLED = """
import os, signal, sys
import intarsia
from intarsia.store.registry import register
from tests.store.bucket_store import BucketStore, BucketTransaction

honest, count = BucketTransaction.write, [0]

def write(self, *arguments):
    honest(self, *arguments)
    count[0] += 1
    if count[0] == 20:
        os.kill(os.getpid(), signal.SIGKILL)

BucketTransaction.write = write
register("bucket", BucketStore())
intarsia.convert(sys.argv[1], sys.argv[2], to="dcp", mesh="tp=2,fsdp=3", workers=2)
"""


def test_a_process_that_is_killed_gives_its_lock_back(src, whole, tmp_path) -> None:
    bucket, out = tmp_path / "bucket", named("bucket://out")
    register("bucket", BucketStore(bucket))
    done = python("-c", KILLED, src, out, BUCKET=str(bucket))
    assert done.returncode == -9, done.stderr
    check_nothing_half_written(out, {}, whole)
    report = intarsia.convert(src, str(out), resume=True, **OPTIONS)
    assert "were there already" in str(report)
    assert below(out) == whole
