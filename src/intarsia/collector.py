"""The garbage collector, kept from walking a growing pile of small values that all stay alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 50_000
"""Values that are made before a command looks for those that nothing needs: some megabytes at most."""


@contextmanager
def paused() -> Iterator[None]:
    """Hold collections back while many values are made; halves the time of reading large headers."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def seldom() -> Iterator[None]:
    """Collect after many values instead of 700: what a command imports and plans stays alive."""
    usual = gc.get_threshold()
    gc.set_threshold(SELDOM, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
