"""A conversion that dies half way, in this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import intarsia
from intarsia.store.writing.staging import Staging
from tests.checkpoints import llama_config

CONFIG = llama_config()
WORDS = ("--to", "dcp", "--mesh", "tp=2,fsdp=3", "--workers", "1")
OPTIONS = {"to": "dcp", "mesh": "tp=2,fsdp=3", "workers": 1}


class Death(BaseException):
    """Stands for a kill: the process does nothing more, and its lock goes."""


def die_half_way(src: Path, out: Path, at: int = 20, **options: object) -> int:
    """A run that dies at a write, in this process; the bytes that it wrote before."""
    written = [0, 0]
    with pytest.MonkeyPatch.context() as patch:
        honest = Staging.write

        def write(self: Staging, file: str, start: int, buffers: list[bytes]) -> None:
            written[0] += 1
            if written[0] == at:
                raise Death
            honest(self, file, start, buffers)
            written[1] += sum(map(len, buffers))

        def vanish(self: Staging, *, keep: bool = False) -> None:
            assert self.transaction.lock.fd is not None
            os.close(self.transaction.lock.fd)

        patch.setattr(Staging, "write", write)
        patch.setattr(Staging, "abandon", vanish)
        with pytest.raises(Death):
            intarsia.convert(src, out, **(OPTIONS | options))
    return written[1]
