"""A few rounds of the soak; `python -m tests.faults.soak` plays hundreds.

They run in a process of their own, which forks: a process that has threads must not.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.checkpoints import environment

QUICK = ("killed", "stopped", "disk full", "source tampered with", "two runs at once", "rank lost")


def soaked(*words: str, seconds: float) -> str:
    """What the soak prints, none of its rounds having failed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.soak", *words],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_round_of_the_most_common_troubles_leaves_all_in_order() -> None:
    kinds = [word for kind in QUICK for word in ("--kind", kind)]
    found = soaked("--rounds", "6", "--job", "hf to dcp", *kinds, seconds=250)
    assert "6 rounds" in found
    assert "0 failed" in found


@pytest.mark.slow
@pytest.mark.timeout(1900)
def test_a_hundred_rounds_leave_all_in_order() -> None:
    assert "0 failed" in soaked("--rounds", "100", "--minutes", "25", "--seed", "1", seconds=1800)
