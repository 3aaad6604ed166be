"""A budget is kept by cutting the work into windows."""

from __future__ import annotations

import os

import pytest

from intarsia.errors import UsageError
from intarsia.run.budget import LARGE_BYTES, LEAST_BYTES, STEP_BYTES, Budget
from intarsia.run.sums.pages import PAGE_BYTES


@pytest.mark.parametrize("memory", ["16MiB", "100MiB", "2GiB", 1 << 25])
@pytest.mark.parametrize("workers", [1, 2, 7, 64])
def test_the_buffers_of_all_workers_stay_within_the_budget(memory, workers: int) -> None:
    budget = Budget.of(memory, workers)
    assert budget.workers == workers
    assert 0 < 3 * budget.workers * budget.window_bytes <= budget.memory_bytes
    assert budget.peak_bytes <= budget.memory_bytes
    assert budget.window_bytes <= LARGE_BYTES


def test_without_a_wish_the_budget_is_at_most_two_gibibytes() -> None:
    budget = Budget.of()
    assert LEAST_BYTES <= budget.memory_bytes <= 2 << 30
    assert budget.workers >= 1


@pytest.mark.parametrize(
    ("memory", "workers", "told"),
    [
        ("1MiB", None, "too small"),
        (0, None, "too small"),
        ("much", None, "is not a size"),
        ("2 GiBs", None, "is not a size"),
        ("-1GiB", None, "is not a size"),
        (None, 0, "the number of workers is 0"),
        (None, -3, "the number of workers is -3"),
        (None, "two", "the number of workers is 'two'"),
        (None, 1.5, "the number of workers is 1.5"),
        (1.5, None, "1.5 is not a size"),
        ([1], None, "is not a size"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(memory, workers, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Budget.of(memory, workers)


def test_bytes_that_are_held_leave_less_for_buffers() -> None:
    budget = Budget(64 << 20, 2)
    assert budget.less(10 << 20).memory_bytes == 54 << 20
    assert budget.less(1 << 40).memory_bytes == 32 << 20, "half stays"
    assert budget.less(0) == budget


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_what_all_workers_have_in_hand_is_a_small_share_of_the_work(workers: int) -> None:
    for total in (1 << 24, 1 << 30, 1 << 40):
        budget = Budget.of("2GiB", workers).for_work(total, processes=2)
        assert 2 * budget.workers * budget.step_bytes <= total / 24
        assert budget.window_bytes <= budget.step_bytes <= STEP_BYTES
    assert Budget.of("2GiB", 4).for_work(0).window_bytes > 0


def test_many_small_tensors_have_no_more_workers_than_gain_by_it() -> None:
    sixteen, total = Budget.of("2GiB", 16), 10_000_000_000
    assert sixteen.for_work(total, targets=300, boxes=2_400).workers == 16
    few = sixteen.for_work(total, targets=7_641, boxes=61_128)
    assert few.workers == 8
    assert few == Budget.of("2GiB", 8).for_work(total)
    assert 8 < sixteen.for_work(total, targets=7_641, boxes=7_641).workers < 16
    assert Budget.of("2GiB", 2).for_work(1_000, targets=7_641, boxes=61_128).workers == 2


def test_little_work_has_no_more_workers_than_its_steps_leave_work_for() -> None:
    sixteen = Budget.of("2GiB", 16)
    found = [sixteen.for_work(gigabytes << 30).workers for gigabytes in (1, 2, 4, 8, 16)]
    assert found == [8, 8, 10, 15, 16]
    assert Budget.of("2GiB", 4).for_work(1 << 20).workers == 4


def test_the_processes_of_a_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert Budget.of().workers == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert Budget.of().workers == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert Budget.of().workers == 1


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
@pytest.mark.parametrize("memory", ["16MiB", "2GiB"])
def test_what_is_summed_at_once_is_whole_pages_of_a_window(memory: str, workers: int) -> None:
    budget = Budget.of(memory, workers)
    assert budget.stretch_bytes % PAGE_BYTES == 0
    assert budget.stretch_bytes <= budget.window_bytes


def test_threads_that_would_wait_for_each_other_are_not_started() -> None:
    budget = Budget.of("2GB", workers=16)
    assert budget.workers_for(7500, 7500 << 20) == 3
    assert budget.workers_for(500, 8 << 30) == 16
    assert budget.workers_for(9000, 9000) == budget.workers_for(0, 0) == 1
