"""Ranks that found each other, and then did not connect."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

import intarsia
from intarsia.run.ranks import rendezvous
from tests.distributed.ranks import outcomes


def gone_before_it_connects() -> str:
    """Rank 1 is gone when it has come, and should connect; the other does not wait for half a day here."""
    rendezvous.PATIENCE = timedelta(seconds=1)
    if dist.get_rank() == 1:
        dist.new_group = lambda **_: os._exit(9)
    try:
        rendezvous.group_of_script()
    except intarsia.IntarsiaError as error:
        return str(error)
    return ""


def test_a_rank_that_is_gone_while_they_connect_is_missed() -> None:
    found = outcomes(2, gone_before_it_connects, seconds=30)
    assert found[1] == (False, "it died")
    assert found[0][1].startswith("rank 0 lost the connection to the other rank: ")
    assert "its own log says why" in found[0][1]
