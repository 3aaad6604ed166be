"""Signals that end a run as an interrupt does: what became of the data is said, then the run ends.

SIGTERM comes from schedulers, SIGHUP from a terminal that is gone.  Once is enough: further ones
wait for what is being put in order.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_WORDS = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGINT: "interrupted"}
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_stopped_by: signal.Signals | None = None


@contextmanager
def stopping() -> Iterator[None]:
    """Inside, a signal that would end the process without a word interrupts it instead, and each is noted."""
    global _stopped_by
    _stopped_by = None
    with (
        _handled(signal.SIG_DFL, _stop),
        _handled(signal.default_int_handler, _interrupt, (signal.SIGINT,)),
    ):
        yield


def ending_at_once() -> AbstractContextManager[None]:
    """Inside, such a signal ends the process: Python would see it when other ranks answer, or never."""
    return _handled(_stop, signal.SIG_DFL)


@contextmanager
def _handled(
    before: Any, inside: Any, signals: Sequence[signal.Signals] = _SIGNALS
) -> Iterator[None]:
    """Give the signals that are handled as `before` another handler inside, in the main thread, which alone may."""
    in_main = threading.current_thread() is threading.main_thread()
    mine = [n for n in signals if in_main and signal.getsignal(n) is before]
    for number in mine:
        signal.signal(number, inside)
    try:
        yield
    finally:
        for number in mine:
            if signal.getsignal(number) in (inside, _wait):
                signal.signal(number, before)


def end_with(status: int) -> None:
    """Have a signal that comes from here on end the process at once, with this status: all has been said."""
    mine = [n for n in _WORDS if signal.getsignal(n) in (_stop, _interrupt, _wait)]
    for number in mine:
        signal.signal(number, lambda *_: os._exit(status))
    # Python gives up its own handlers before it takes the modules apart.
    atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in mine])


def was_stopped() -> bool:
    """Whether a signal came, also where C code that it interrupted raised something else (NumPy's import does)."""
    return _stopped_by is not None


def stop_word() -> str:
    """What stopped the run, in a word."""
    return _WORDS[_stopped_by or signal.SIGINT]


def stop_status() -> int:
    """The exit status of a process that was stopped, as a shell gives it."""
    return 128 + (_stopped_by or signal.SIGINT)


def _stop(number: int, frame: Any) -> None:
    global _stopped_by
    _stopped_by = signal.Signals(number)
    for other in _SIGNALS:
        if signal.getsignal(other) is _stop:
            signal.signal(other, _wait)
    raise KeyboardInterrupt(stop_word())


def _interrupt(number: int, frame: Any) -> None:
    global _stopped_by
    _stopped_by = _stopped_by or signal.SIGINT
    signal.default_int_handler(number, frame)


def _wait(number: int, frame: Any) -> None:
    """Ignore a further signal; of one that is under way when SIG_IGN is set, Python would print an error."""
