"""What plain threads reach on this machine with large calls and buffers that they keep: the limits."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

try:
    from isal.isal_zlib import crc32

    CRC = "isal"
except ImportError:
    from zlib import crc32

    CRC = "zlib"

BLOCK_BYTES = 8 << 20
Block = tuple[int, int]
"""A place in an open file: its descriptor, and from which byte on."""


def read(files: Sequence[Path], workers: int) -> None:
    """Read every byte."""

    def worker(blocks: Iterator[tuple[Block, ...]]) -> None:
        buffer = kept_buffer()
        for ((fd, at),) in blocks:
            os.preadv(fd, [buffer], at)

    _spread([files], workers, worker)


def read_and_sum(files: Sequence[Path], workers: int) -> None:
    """Read every byte, take its CRC-32 and add up its words."""

    def worker(blocks: Iterator[tuple[Block, ...]]) -> None:
        buffer = kept_buffer()
        words = np.frombuffer(buffer, np.uint64)
        for ((fd, at),) in blocks:
            got = os.preadv(fd, [buffer], at)
            crc32(memoryview(buffer)[:got])
            np.add.reduce(words[: got // 8])

    _spread([files], workers, worker)


def read_and_compare(a: Sequence[Path], b: Sequence[Path], workers: int) -> None:
    """Read two sets of files of about as many bytes and compare block with block, to the end."""

    def worker(blocks: Iterator[tuple[Block, ...]]) -> None:
        one, two, unlike = kept_buffer(), kept_buffer(), np.empty(BLOCK_BYTES // 8, np.bool_)
        left, right = np.frombuffer(one, np.uint64), np.frombuffer(two, np.uint64)
        for (fd, at), (other, there) in blocks:
            os.preadv(fd, [one], at)
            os.preadv(other, [two], there)
            np.not_equal(left, right, out=unlike).any()

    _spread([a, b], workers, worker)


def copy(files: Sequence[Path], out: Path, workers: int, *, sync: bool = False) -> None:
    """Copy files by reading and writing, each by one thread, the largest first.

    Few threads take blocks that stay in a core's cache, many take large ones, between which they wait less.
    """
    out.mkdir(parents=True)
    block_bytes = min(BLOCK_BYTES, workers << 20)

    def one(path: Path) -> None:
        buffer = memoryview(kept_buffer())[:block_bytes]
        with (
            path.open("rb", buffering=0) as source,
            (out / path.name).open("wb", buffering=0) as to,
        ):
            while got := source.readinto(buffer):
                to.write(buffer[:got])
            if sync:
                os.fsync(to.fileno())

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, files))


def kept_buffer() -> Any:
    """A block of memory whose pages are there, aligned as a page is."""
    made = mmap.mmap(-1, BLOCK_BYTES)
    np.frombuffer(made, np.uint8)[:] = 1
    return made


def _spread(
    sets: Sequence[Sequence[Path]],
    workers: int,
    worker: Callable[[Iterator[tuple[Block, ...]]], None],
) -> None:
    """Hand out the blocks of the first set of files, each with one of every other set, to threads."""
    queue: SimpleQueue[tuple[Block, ...]] = SimpleQueue()

    def blocks() -> Iterator[tuple[Block, ...]]:
        while True:
            try:
                yield queue.get_nowait()
            except Empty:
                return

    with ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        places = []
        for files in sets:
            fds = [stack.enter_context(path.open("rb", buffering=0)).fileno() for path in files]
            ends = [path.stat().st_size for path in files]
            places.append(
                [
                    (fd, at)
                    for fd, end in zip(fds, ends, strict=True)
                    for at in range(0, end, BLOCK_BYTES)
                ]
            )
        for row in zip(places[0], *map(cycle, places[1:]), strict=False):
            queue.put(row)
        for done in [pool.submit(worker, blocks()) for _ in range(workers)]:
            done.result()
