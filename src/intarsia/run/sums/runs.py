"""Consecutive bytes of a tensor, and what their sums count in it."""

from __future__ import annotations

from functools import lru_cache

from intarsia.frozen import frozen
from intarsia.run.sums.checksum import shift
from intarsia.run.sums.hashing import Sum


@frozen
class Run:
    """Consecutive bytes of a tensor of `whole_bytes`, the first being `start_bytes`."""

    start_bytes: int
    length_bytes: int
    whole_bytes: int

    def sum(self, pages: int, crc: int) -> Sum:
        """Its sum in the tensor, from that of its words in pages and the remainder of its CRC-32."""
        after = self.whole_bytes - self.start_bytes - self.length_bytes
        return Sum(pages, shift(crc, after) if after else crc, self.length_bytes)


@lru_cache(maxsize=1 << 10)
def whole_run(nbytes: int) -> Run:
    """All of a tensor, the same object for all of its length."""
    return Run(0, nbytes, nbytes)
