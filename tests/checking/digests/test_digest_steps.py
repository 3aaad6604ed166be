"""Tensors that are summed with their neighbours, a run at a time or alone have the sums of their bytes."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import intarsia
from intarsia.checking.digests import digest_steps
from intarsia.checking.digests.digest import digest_of, digests_of
from intarsia.checking.digests.digest_steps import Step
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import BY_NAME, BY_TORCH
from intarsia.errors import CoverageError, UsageError
from intarsia.planning.manifest import Logical
from intarsia.planning.proof import prover_of
from intarsia.run.budget import Budget
from intarsia.run.ranks.crew import Crew
from intarsia.run.ranks.one_machine import meet_ranks
from intarsia.run.ranks.waiting import Waiting
from intarsia.run.sums.hashing import STRETCH_BYTES, sum_run
from tests.checkpoints import bits, llama_config, model, normal_tensor, python, write_hf

SHAPES = [
    (3,),
    (0, 4),
    (),
    (700, 513),
    (5, 7),
    (4096,),
    (1, 1),
    (513, 1400),
    (64, 64),
    (2100, 1050),
]
"""Some odd, one empty, some longer than what few workers sum in one call, one than a window of 4 MiB."""

TENSORS = {f"w{k}": normal_tensor(shape, torch.bfloat16) for k, shape in enumerate(SHAPES)}


def expected(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """The digest of the row-major bytes of each tensor."""
    found = {}
    for name, x in tensors.items():
        held = np.frombuffer(bits(x), np.uint8)
        dtype = BY_TORCH[str(x.dtype).removeprefix("torch.")]
        found[name] = digest_of(Logical(name, tuple(x.shape), dtype), sum_run(held, 0, len(held)))
    return found


@pytest.mark.parametrize("window_bytes", [32 << 10, 4 << 20, 8 << 20])
@pytest.mark.parametrize("workers", [1, 4])
def test_tensors_of_any_length_have_the_digests_of_their_bytes(
    window_bytes: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: window_bytes))
    path = write_hf(tmp_path / "a", TENSORS, files=2)
    assert intarsia.digest(path, workers=workers).tensors == expected(TENSORS)


def test_few_calls_read_the_neighbours_and_none_reads_a_byte_twice(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "a", TENSORS, files=1)
    budget = Budget.of(None, 1)
    with intarsia.open(path) as checkpoint:
        logical = checkpoint.manifest.logical
        proofs = checkpoint.prover.tensors(logical)
        steps = digest_steps.steps_over(checkpoint, proofs, logical, budget)
        assert sum(step.nbytes for step in steps) == checkpoint.manifest.nbytes
        assert len(steps) == 1, "all of them are less than a window"
        steps[0].sums(checkpoint, logical, budget.digest_bytes)
        assert checkpoint.read_bytes == checkpoint.manifest.nbytes > 8 * STRETCH_BYTES


def test_what_is_summed_as_a_run_of_a_file_is_what_was_proven_so(tmp_path: Path) -> None:
    with (
        intarsia.open(write_hf(tmp_path / "a", TENSORS)) as checkpoint,
        intarsia.open(write_hf(tmp_path / "b", TENSORS)) as other,
    ):
        proofs = checkpoint.prover.tensors(TENSORS)
        assert {*proofs.whole} == {name for name, x in TENSORS.items() if x.numel()}
        x, y = proofs.whole["w0"], proofs.whole["w3"]
        assert checkpoint.sums_of_whole(proofs, [x]) == checkpoint.sums_of_whole(proofs, [x])
        for wrong in (x._replace(start_bytes=8), x._replace(file="b"), x._replace(name="w")):
            with pytest.raises(CoverageError, match="is not proven to be a run of"):
                checkpoint.sums_of_whole(proofs, [y, wrong])
        with pytest.raises(CoverageError, match="is not proven to be a run of"):
            other.sums_of_whole(proofs, [x])


def test_a_tensor_that_two_steps_sum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_hf(tmp_path / "a", TENSORS)
    once = digest_steps.steps_over
    monkeypatch.setattr(digest_steps, "steps_over", lambda *rest: once(*rest) * 2)
    with pytest.raises(CoverageError, match="summed"):
        intarsia.digest(path)


@pytest.mark.parametrize("shape", [(26, 31), (700, 513)])
def test_one_chunk_with_its_columns_first_is_put_in_order(
    shape: tuple[int, int], tmp_path: Path
) -> None:
    x, y = normal_tensor(shape, torch.float32), normal_tensor((5, 3), torch.float32)
    held = {"v": y, "w": x.t().contiguous().t()}
    dcp.save(held, checkpoint_id=tmp_path / "a", no_dist=True)
    with intarsia.open(tmp_path / "a") as checkpoint:
        assert prover_of(checkpoint.manifest).tensor("w").is_one_chunk
    assert intarsia.digest(tmp_path / "a").tensors == expected({"v": y, "w": x})


def test_numbers_of_another_type_than_the_stored_ones_are_summed_as_that_type(
    tmp_path: Path,
) -> None:
    x = normal_tensor((64, 9), torch.bfloat16)
    with intarsia.open(write_hf(tmp_path / "a", {"w": x})) as checkpoint:
        src = replace(checkpoint.manifest, logical={"w": Logical("w", (64, 9), BY_NAME["F32"])})
    with Checkpoint(src) as checkpoint:
        found = digests_of(checkpoint, Budget.of(None, 1))
    assert found.tensors == expected({"w": x.float()})


SHARE = """
import sys
import intarsia
from intarsia.checking.digests.digest_steps import steps_over
from intarsia.run.budget import Budget
from intarsia.run.sums.hashing import merged_sums

budget = Budget.of(None, 1)
with intarsia.open(sys.argv[1]) as checkpoint:
    logical = checkpoint.manifest.logical
    share = steps_over(checkpoint, checkpoint.prover.tensors(logical), logical, budget)[::2]
    sums = merged_sums(step.sums(checkpoint, logical, budget.digest_bytes) for step in share)
    print(*sorted((name, x.pages, x.crc, x.count_bytes) for name, x in sums.items()), sep="\\n")
"""


def test_a_rank_has_the_same_share_of_the_steps_in_every_process(tmp_path: Path) -> None:
    """Each process orders its sets in its own way: a chunk summed twice for another would not show."""
    path = write_hf(tmp_path / "hf", model(llama_config()), llama_config())
    intarsia.convert(path, tmp_path / "cut", to="torch_dist", mesh="tp=2,pp=2")
    found = [
        python("-c", SHARE, tmp_path / "cut", check=True, PYTHONHASHSEED=seed).stdout
        for seed in ("1", "2", "3")
    ]
    assert found[1:] == [found[0]] * 2
    assert len(found[0].splitlines()) > 10


@pytest.mark.skipif(sys.platform != "linux", reason="the names that ranks meet by are Linux's")
def test_ranks_that_would_take_other_steps_are_refused_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes every second one of its list: of two lists one step is taken twice and another never."""
    path = write_hf(tmp_path / "hf", model(llama_config()), llama_config())
    intarsia.convert(path, tmp_path / "cut", to="torch_dist", mesh="tp=2,pp=2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", str(tmp_path))
    turned: set[int] = set()
    in_order = digest_steps.steps_over

    def steps_of(checkpoint: Checkpoint, *rest: Any) -> list[Step]:
        return in_order(checkpoint, *rest)[:: -1 if id(checkpoint) in turned else 1]

    def digests(rank: int, turn: bool) -> dict[str, str]:
        with intarsia.open(tmp_path / "cut") as checkpoint:
            turned.update([id(checkpoint)] if turn else [])
            with closing(meet_ranks(Waiting(rank, 2), 0, 20)) as here:
                team = Crew(rank, 2, apart=here)
                return dict(digests_of(checkpoint, Budget.of(None, 1), team=team).tensors)

    monkeypatch.setattr(digest_steps, "steps_over", steps_of)
    with ThreadPoolExecutor(2) as pool:
        alike = list(pool.map(digests, (0, 1), (False, False)))
        assert alike[0] == alike[1] == intarsia.digest(tmp_path / "cut").tensors
        unlike = [pool.submit(digests, rank, turn) for rank, turn in ((0, False), (1, True))]
        for done in unlike:
            with pytest.raises(UsageError, match=r"(?s)rank 1 .* the steps of the digest"):
                done.result(30)
