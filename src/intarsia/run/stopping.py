"""Signals that end a run as an interrupt does: what became of the data is said, then the run ends.

SIGTERM comes from schedulers, SIGHUP from a terminal that is gone.  Once is enough: further ones
wait for what is being put in order.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_WORDS = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGINT: "interrupted"}
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_stopped_by = signal.SIGINT


def stopping() -> AbstractContextManager[None]:
    """Inside, a signal that would end the process without a word interrupts it instead."""
    global _stopped_by
    _stopped_by = signal.SIGINT
    return _handled(signal.SIG_DFL, _stop)


def ending_at_once() -> AbstractContextManager[None]:
    """Inside, such a signal ends the process: Python would see it when other ranks answer, or never."""
    return _handled(_stop, signal.SIG_DFL)


@contextmanager
def _handled(before: Any, inside: Any) -> Iterator[None]:
    """Give the signals that are handled as `before` another handler inside, in the main thread, which alone may."""
    in_main = threading.current_thread() is threading.main_thread()
    mine = [n for n in _SIGNALS if in_main and signal.getsignal(n) is before]
    for number in mine:
        signal.signal(number, inside)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before)


def stop_word() -> str:
    """What stopped the run, in a word."""
    return _WORDS[_stopped_by]


def stop_status() -> int:
    """The exit status of a process that was stopped, as a shell gives it."""
    return 128 + _stopped_by


def _stop(number: int, frame: Any) -> None:
    global _stopped_by
    _stopped_by = signal.Signals(number)
    for other in _SIGNALS:
        if signal.getsignal(other) is _stop:
            signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(stop_word())
