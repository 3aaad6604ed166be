"""Signals that end a run as an interrupt does: what became of the data is said, then the run ends.

SIGTERM comes from schedulers, SIGHUP from a terminal that is gone.  Once is enough: further ones
wait for what is being put in order.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_WORDS = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGINT: "interrupted"}
_stopped_by = signal.SIGINT


@contextmanager
def stopping() -> Iterator[None]:
    """Inside, a signal that would end the process without a word interrupts it instead."""
    global _stopped_by
    _stopped_by = signal.SIGINT
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mine = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in mine:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Inside, such a signal ends the process: Python would see it when other ranks answer, or never."""
    mine = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is _stop
    ]
    if threading.current_thread() is not threading.main_thread():
        mine = []
    for number in mine:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, _stop)


def stop_word() -> str:
    """What stopped the run, in a word."""
    return _WORDS[_stopped_by]


def stop_status() -> int:
    """The exit status of a process that was stopped, as a shell gives it."""
    return 128 + _stopped_by


def _stop(number: int, frame: Any) -> None:
    global _stopped_by
    _stopped_by = signal.Signals(number)
    for other in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(other) is _stop:
            signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(stop_word())
