"""Several processes write one destination in a store that they share, and are refused in one that they do not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import intarsia
from intarsia.errors import IntarsiaError, UsageError
from intarsia.run.budget import Budget
from intarsia.store.address import named
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import everything_in, exists, is_file, names_like
from intarsia.store.registry import register
from tests.checkpoints import files_of, llama_config, model, write_hf
from tests.distributed.ranks import on_ranks
from tests.distributed.small_model import build, optimizer_of, step
from tests.store.bucket_store import BucketStore, BucketTransaction
from tests.store.memory_store import MemoryStore

CONFIG = llama_config()
OPTIONS = {"to": "dcp", "mesh": "tp=2,fsdp=3"}


def below(folder: str) -> dict[str, bytes]:
    root = named(folder)
    with Folder(root) as held:
        names = [str(p.relative_to(root)) for p in everything_in(root) if is_file(p)]
        return {name: held.read_all(name) for name in names}


def sharing(bucket: Path) -> None:
    """Be a rank that shares conversions with the others, with work for each, and knows the store."""
    os.environ |= {"RANK": str(dist.get_rank()), "WORLD_SIZE": str(dist.get_world_size())}
    os.environ["MASTER_ADDR"] = "localhost"
    Budget.window_bytes = Budget.step_bytes = property(lambda _: 2048)  # type: ignore[assignment,method-assign]
    register("bucket", BucketStore(bucket))


def work(bucket: Path, src: Path) -> list[str]:
    sharing(bucket)
    intarsia.convert(src, "bucket://jobs/out", **OPTIONS)
    trained = build(3, "fsdp=2")
    optimizer = optimizer_of(trained)
    step(trained, optimizer, 0)
    for folder in ("bucket://runs", bucket.parent):
        intarsia.save(f"{folder}/step-1", trained, optimizer, extra={"seen": 1})
    other = build(100, "fsdp=2")
    assert intarsia.load("bucket://runs", into=other, optimizer=optimizer_of(other)).complete
    register("memory", MemoryStore())
    refused = []
    for call in (
        lambda: intarsia.convert(src, "memory://out", **OPTIONS),
        lambda: intarsia.save("memory://out", trained),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        refused.append(str(caught.value))
    return refused


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", model(CONFIG), CONFIG, files=2)


def test_ranks_write_to_a_store_what_they_write_locally(src: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    register("bucket", BucketStore(bucket))
    answers = on_ranks(2, work, bucket, src)
    for text in (text for rank in answers for text in rank):
        assert "memory://out can be written by one process only, and several are running" in text
    intarsia.convert(src, tmp_path / "one", **OPTIONS)
    assert below("bucket://jobs/out") == files_of(tmp_path / "one")
    assert below("bucket://runs/step-1") == files_of(tmp_path / "step-1")
    assert below("bucket://runs")["latest"] == b"step-1\n"
    assert {p.name for p in names_like(named("bucket://runs"))} == {"latest", "step-1"}


def broken(bucket: Path, src: Path) -> str:
    sharing(bucket)
    honest, count = BucketTransaction.write, [0]

    def full(self: BucketTransaction, *arguments: Any) -> None:
        count[0] += 1
        if dist.get_rank() == 1 and count[0] > 6:
            raise OSError(28, "No space left on device")
        honest(self, *arguments)

    BucketTransaction.write = full  # type: ignore[method-assign]
    with pytest.raises(IntarsiaError) as caught:
        intarsia.convert(src, "bucket://jobs/out", **OPTIONS)
    return str(caught.value)


def test_a_rank_that_fails_there_fails_all_and_the_rest_is_resumed(
    src: Path, tmp_path: Path
) -> None:
    bucket = tmp_path / "bucket"
    register("bucket", BucketStore(bucket))
    first, second = on_ranks(2, broken, bucket, src)
    assert "rank 1 failed, so rank 0 stops too" in first
    assert "run again with --resume" in first
    assert "No space left on device" in second
    assert not exists(named("bucket://jobs/out"))
    report = intarsia.convert(src, "bucket://jobs/out", resume=True, **OPTIONS)
    assert "were there already" in str(report)
    intarsia.convert(src, tmp_path / "one", **OPTIONS)
    assert below("bucket://jobs/out") == files_of(tmp_path / "one")
    assert [p.name for p in names_like(named("bucket://jobs"))] == ["out"]
