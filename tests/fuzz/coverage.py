"""Which ways through our own code a case takes that none took before it.

Python 3.12 tells of lines and branches at next to no cost, since what was seen is turned off.
Before that a trace function is all there is; it is slow, so only some cases are looked at.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import intarsia

HOME = str(Path(intarsia.__file__).parent)
Arc = tuple[object, int, int]


class Traced:
    """Arcs from line to line by `sys.settrace`; one case of `share` is worth it."""

    def __init__(self, share: int = 16) -> None:
        self.share = share
        self.seen: set[Arc] = set()

    @contextmanager
    def watch(self) -> Iterator[list[Arc]]:
        """The arcs of a case that are new, known once it is over."""
        fresh: list[Arc] = []
        before: dict[FrameType, int] = {}

        def line(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
            arc = (frame.f_code, before.get(frame, 0), frame.f_lineno)
            before[frame] = frame.f_lineno
            if arc not in self.seen:
                self.seen.add(arc)
                fresh.append(arc)
            if event == "return":
                del before[frame]
            return line

        def call(frame: FrameType, _: str, __: Any) -> Callable[..., Any] | None:
            return line if frame.f_code.co_filename.startswith(HOME) else None

        held = sys.gettrace()
        threading.settrace(call)
        sys.settrace(call)
        try:
            yield fresh
        finally:
            sys.settrace(held)
            threading.settrace(None)  # type: ignore[arg-type]


class Monitored:
    """Lines and branches by `sys.monitoring`; a place that has told all it can is turned off."""

    share = 1
    TOOL = 4
    PATIENCE = 200

    def __init__(self) -> None:
        self.seen: set[Arc] = set()
        self._fresh: list[Arc] = []
        self._ways: Counter[tuple[CodeType, int]] = Counter()
        self._calls: Counter[tuple[CodeType, int]] = Counter()
        tools = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        self._off = tools.DISABLE
        tools.use_tool_id(self.TOOL, "intarsia-fuzz")
        tools.register_callback(self.TOOL, tools.events.LINE, self._line)
        tools.register_callback(self.TOOL, tools.events.BRANCH, self._branch)
        tools.set_events(self.TOOL, tools.events.LINE | tools.events.BRANCH)

    def _line(self, code: CodeType, line: int) -> object:
        if code.co_filename.startswith(HOME):
            self._note((code, -1, line))
        return self._off

    def _branch(self, code: CodeType, at: int, to: int) -> object:
        if not code.co_filename.startswith(HOME):
            return self._off
        place = code, at
        if self._note((code, at, to)):
            self._ways[place] += 1
        self._calls[place] += 1
        done = self._ways[place] > 1 or self._calls[place] > self.PATIENCE
        return self._off if done else None

    def _note(self, arc: Arc) -> bool:
        if arc in self.seen:
            return False
        self.seen.add(arc)
        self._fresh.append(arc)
        return True

    @contextmanager
    def watch(self) -> Iterator[list[Arc]]:
        """The lines and branches of a case that are new, known once it is over."""
        self._fresh = fresh = []
        yield fresh

    def renew(self) -> None:
        """Listen again at branches that went one way alone for too long."""
        self._calls.clear()
        sys.monitoring.restart_events()  # type: ignore[attr-defined, unused-ignore]


Coverage = Traced | Monitored


def coverage() -> Coverage:
    """The cheapest that this Python has."""
    return Monitored() if hasattr(sys, "monitoring") else Traced()
