"""Ranks of one machine meet without torch; one that is gone, absent, twice there or a stranger's is told of."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from intarsia.errors import IntarsiaError
from intarsia.run.ranks import one_machine
from intarsia.run.ranks.crew import Crew
from intarsia.run.ranks.one_machine import OneMachine, meet_ranks
from intarsia.run.ranks.waiting import Waiting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the names are Linux's")

STRANGER = """
import os, socket, sys
link = socket.socket(socket.AF_UNIX)
os.setuid(65534)
link.connect(bytes.fromhex(sys.argv[1]))
try:
    link.sendall((1).to_bytes(8, sys.byteorder) + b"1")
    answer = link.recv(1)
except OSError:
    answer = b""
sys.exit(bool(answer))
"""
"""Another user's process that says it is rank 1: 0 where nobody answers it."""


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """A job of which no other process is one."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", f"{os.getpid()} {tmp_path}")
    monkeypatch.setenv("INTARSIA_WAIT_SECONDS", "5")


@contextmanager
def ranks(size: int) -> Iterator[Callable[..., list[Future[Any]]]]:
    """What starts some work on every rank, each a thread of this process."""
    with ThreadPoolExecutor(size) as pool:
        yield lambda work: [pool.submit(work, rank) for rank in range(size)]


def met(rank: int, size: int, number: int = 0) -> OneMachine:
    return meet_ranks(Waiting(rank, size), number, 5)


def test_every_exchange_brings_what_it_says() -> None:
    large = os.urandom(5 << 20)

    def work(rank: int) -> object:
        here = met(rank, 3)
        found = (
            here.all_gather(None if rank == 1 else (rank, large)),
            here.gather(rank, rank),
            here.scatter(["a", "b", "c"] if rank == 0 else (), rank),
            here.broadcast({"said": rank}, rank),
            here.all_gather(None),
        )
        here.close()
        return found

    with ranks(3) as start:
        for rank, done in enumerate(start(work)):
            gathered, first, mine, said, nothing = done.result(20)
            assert gathered == [(0, large), None, (2, large)]
            assert first == ([0, 1, 2] if rank == 0 else [])
            assert (mine, said, nothing) == ("abc"[rank], {"said": 0}, [None] * 3)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rank_that_is_gone_ends_the_block_on_all_at_once(gone: int) -> None:
    def work(rank: int) -> None:
        here = met(rank, 3)
        if rank == gone:
            here.close()
            return
        with Crew(rank, 3, apart=here).together() as shared:
            shared.value = rank

    with ranks(3) as start:
        for rank, done in enumerate(start(work)):
            if rank != gone:
                with pytest.raises(IntarsiaError, match="lost the connection to the other 2 ranks"):
                    done.result(20)


def test_a_rank_that_died_is_noticed_while_another_still_works() -> None:
    told = Event()

    def work(rank: int) -> None:
        here = met(rank, 3)
        if rank == 1:
            here.close()
        elif rank == 2:
            assert told.wait(4)  # it works, and comes to the exchange when all is known
        with pytest.raises(OSError, match=r"closed|Broken|reset|descriptor"):
            here.all_gather(rank)
        told.set()

    with ranks(3) as start:
        for done in start(work)[::2]:
            done.result(20)


def test_a_rank_that_failed_is_told_to_all_by_its_own_words() -> None:
    def work(rank: int) -> None:
        with Crew(rank, 2, apart=met(rank, 2)).together():
            if rank == 1:
                raise ValueError("my disk is full")

    with ranks(2) as start:
        first, second = start(work)
        with pytest.raises(IntarsiaError, match=r"rank 1 failed, so rank 0 .*: my disk is full"):
            first.result(20)
        with pytest.raises(ValueError, match="my disk is full"):
            second.result(20)


def test_all_ranks_hear_who_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_WAIT_SECONDS", "0.2")
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(met, rank, 3) for rank in (0, 1)]:
            with pytest.raises(IntarsiaError, match="waited for rank 2, without an answer"):
                done.result(20)


def test_a_rank_that_met_the_first_says_too_that_others_are_awaited(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTARSIA_WAIT_SECONDS", "0.6")
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(met, rank, 3) for rank in (0, 1)]:
            with pytest.raises(IntarsiaError, match="waited for rank 2"):
                done.result(20)
    said = capfd.readouterr().err
    assert "rank 0 of 3 waits for rank 2, for at most" in said
    assert "rank 1 of 3 waits for rank 0, which waits for others, for at most" in said


def test_a_rank_whose_first_never_comes_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_WAIT_SECONDS", "0.1")
    with pytest.raises(IntarsiaError, match="rank 1 of 2 waited for rank 0, without an answer"):
        met(1, 2)


def test_ranks_of_other_jobs_and_of_other_calls_do_not_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INTARSIA_WAIT_SECONDS", "0.2")
    with ThreadPoolExecutor(2) as pool:
        for done in (pool.submit(met, 0, 2, number=0), pool.submit(met, 1, 2, number=1)):
            with pytest.raises(IntarsiaError, match="without an answer"):
                done.result(20)


def test_a_rank_that_left_before_the_last_came_may_come_again() -> None:
    name = _name_of_call()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(met, 0, 3)
        early = _connected(name)
        one_machine._send(early, b"1")
        second = pool.submit(met, 1, 3)  # turned down as long as the early one stands in its place
        early.close()
        third = met(2, 3)
        for each in (first.result(20), second.result(20), third):
            each.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_is_not_let_in() -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(met, 0, 2)
        _connected(_name_of_call()).close()
        words = [sys.executable, "-S", "-c", STRANGER, _name_of_call().hex()]
        assert subprocess.run(words, timeout=20, check=False).returncode == 0
        second = met(1, 2)
        first.result(20).close()
        second.close()


def _name_of_call() -> bytes:
    return one_machine._name(0)


def _connected(name: bytes) -> socket.socket:
    while True:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(name)
            return link
        except ConnectionRefusedError:
            link.close()
