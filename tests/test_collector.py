"""The garbage collector works as before once the last call that held it back has ended."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import intarsia
from intarsia.collector import SELDOM, seldom
from intarsia.errors import IntarsiaError


@pytest.fixture(autouse=True)
def usual() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    yield 701, 11, 12
    gc.set_threshold(*before)


def test_calls_that_overlap_restore_what_the_first_found(usual: tuple[int, int, int]) -> None:
    first, second = seldom(), seldom()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (SELDOM, *usual[1:])
    second.__exit__(None, None, None)
    assert gc.get_threshold() == usual


def test_a_call_that_fails_restores_it(usual: tuple[int, int, int]) -> None:
    with pytest.raises(IntarsiaError):
        intarsia.verify("there-is-no-such-folder")
    assert gc.get_threshold() == usual


def test_a_program_that_collects_less_often_still_keeps_what_it_chose() -> None:
    gc.set_threshold(SELDOM * 2, 11, 12)
    with seldom():
        assert gc.get_threshold() == (SELDOM * 2, 11, 12)
