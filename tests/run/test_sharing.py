"""Work that is shared out to threads."""

from __future__ import annotations

import threading
import time

import pytest

from intarsia.run.sharing import share_out


def test_results_come_in_the_order_of_the_things() -> None:
    found = share_out(range(20), 4, lambda n: (time.sleep(0.001 * (n % 3)), n)[1])
    assert found == list(range(20))


def test_nothing_to_do_gives_nothing() -> None:
    assert share_out([], 4, str) == []


def test_every_thread_has_a_part() -> None:
    together = threading.Barrier(3, timeout=20)
    share_out(range(3), 3, lambda _: together.wait())


def test_the_first_failure_is_raised_and_stops_the_others() -> None:
    begun: list[int] = []

    def work(n: int) -> None:
        begun.append(n)
        if n == 2:
            raise OSError("the disk is gone")
        time.sleep(0.01)

    with pytest.raises(OSError, match="the disk is gone"):
        share_out(range(1000), 2, work)
    assert len(begun) < 20


def test_an_interrupt_while_a_thread_starts_leaves_none_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What starts a thread counts it only afterwards, and it may be at work by then."""
    at_work, done = threading.Event(), list[int]()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        assert at_work.wait(20)
        raise KeyboardInterrupt

    def work(n: int) -> None:
        at_work.set()
        time.sleep(0.2)
        done.append(n)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        share_out([1, 2, 3], 1, work)
    assert done == [1]
    time.sleep(0.3)
    assert done == [1], "it takes no more"


def test_an_interrupt_of_work_in_the_main_thread_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def work(n: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", none)
    with pytest.raises(KeyboardInterrupt):
        share_out([1, 2, 3], 2, work)


def test_progress_hears_of_every_byte() -> None:
    heard: list[tuple[int, int]] = []
    share_out([5, 7], 2, str, progress=lambda *told: heard.append(told), nbytes=lambda n: n)
    assert heard[-1] == (12, 12)
    assert len(heard) == 2


def test_threads_take_things_that_use_different_files() -> None:
    together = threading.Barrier(2, timeout=20)
    taken: list[str] = []

    def work(thing: str) -> None:
        taken.append(thing)
        together.wait()

    share_out(["a1", "a2", "a3", "b1", "b2", "b3"], 2, work, uses=lambda thing: thing[:1])
    for first, second in zip(taken[::2], taken[1::2], strict=True):
        assert {first[0], second[0]} == {"a", "b"}


def test_a_file_that_all_things_use_keeps_no_thread_from_work() -> None:
    together = threading.Barrier(3, timeout=20)
    share_out(range(3), 3, lambda _: together.wait(), uses=lambda _: ["one"])
