"""Memory that is about to be filled comes in large pages, where the system has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.run.large_pages import _PAGE as PAGE
from intarsia.run.large_pages import LEAST_BYTES, ask_for_large_pages, stretches

HAS_THEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")

COUNT = 12 << 20
"""Of fp32, 48 MiB: the allocator gives so much memory a mapping of its own, which nobody was asked of before."""

needs_large_pages = pytest.mark.skipif(
    not HAS_THEM.exists() or "[never]" in HAS_THEM.read_text(),
    reason="the system has no large pages",
)


def asked_for(memory: torch.Tensor) -> bool:
    """Whether the system was told of the middle of a tensor's memory."""
    middle = memory.data_ptr() + memory.nbytes // 2
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(x, 16) for x in first.split("-"))
            inside = start <= middle < end
        elif inside and first == "VmFlags:":
            return "hg" in rest
    raise AssertionError("memory that the system does not know")


def test_parts_that_follow_each_other_make_one_stretch() -> None:
    half = LEAST_BYTES // 2
    beside = [(half + 16, 2 * half + 16), (0, half)]
    assert list(stretches(beside)) == [(0, 2 * half + 16)]
    assert list(stretches([(0, half), (half + 2 * PAGE, 2 * half)])) == []
    assert list(stretches([(0, 2 * half), (PAGE, half), (8 * half, 10 * half)])) == [
        (0, 2 * half),
        (8 * half, 10 * half),
    ]
    assert list(stretches([])) == []


@needs_large_pages
def test_a_load_fills_large_pages(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "saved", {"w": torch.arange(COUNT, dtype=torch.float32)})
    into = {"w": torch.empty(COUNT)}
    assert not asked_for(into["w"])
    intarsia.load(tmp_path / "saved", into)
    assert asked_for(into["w"])
    assert torch.equal(into["w"], torch.arange(COUNT, dtype=torch.float32))


@needs_large_pages
def test_the_copy_of_a_background_save_is_made_in_large_pages(tmp_path: Path) -> None:
    from intarsia.live.saving import copying

    saving = intarsia.save(tmp_path / "s", {"w": torch.ones(COUNT)}, background=True)
    saving.wait()
    assert asked_for(copying._kept.memory["w"])


def test_a_system_that_does_not_know_the_advice_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("intarsia.run.large_pages._ADVICE", None)
    monkeypatch.setattr("ctypes.CDLL", lambda name: sys.exit("it was asked"))
    ask_for_large_pages([torch.empty(2 * LEAST_BYTES, dtype=torch.uint8)])
