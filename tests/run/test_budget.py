"""A budget is kept by cutting the work into windows."""

from __future__ import annotations

import pytest

from intarsia.errors import UsageError
from intarsia.planning.planner import WINDOW_BYTES
from intarsia.run.budget import LEAST_BYTES, Budget


@pytest.mark.parametrize("memory", ["16MiB", "100MiB", "2GiB", 1 << 25])
@pytest.mark.parametrize("workers", [1, 2, 7, 64])
def test_the_buffers_of_all_workers_stay_within_the_budget(memory, workers: int) -> None:
    budget = Budget.of(memory, workers)
    assert budget.workers == workers
    assert 0 < 3 * budget.workers * budget.window_bytes <= budget.memory_bytes
    assert budget.peak_bytes <= budget.memory_bytes
    assert budget.window_bytes <= WINDOW_BYTES


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


def test_what_all_workers_have_in_hand_is_a_small_share_of_the_work() -> None:
    for total in (1 << 24, 1 << 30, 1 << 40):
        budget = Budget.of("2GiB", 4).for_work(total, processes=2)
        assert 8 * budget.window_bytes <= total / 64
    assert Budget.of("2GiB", 4).for_work(0).window_bytes > 0
