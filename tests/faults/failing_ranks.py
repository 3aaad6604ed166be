"""A process that runs each command on two ranks, forked from it, of which one has a disk that fails.

    python -m tests.faults.failing_ranks WINDOW_BYTES EAGER

A command is one of Intarsia's, or `save FOLDER SEED`, or `load FOLDER`, of a live model.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from typing import Any

import torch.distributed as dist

from tests.distributed.ranks import outcomes
from tests.faults.failing_process import answer, prepare

RANKS = 2
QUIET = {"under": "", "at": 0, "errno": 0}


def command(words: list[str]) -> None:
    """What every rank runs."""
    if words[0] not in ("save", "load"):
        from intarsia.cli.main import main

        main(words)
    import intarsia
    from intarsia.errors import IntarsiaError
    from tests.distributed.small_model import build

    try:
        if words[0] == "save":
            intarsia.save(words[1], build(int(words[2]), "fsdp=2"))
        else:
            intarsia.load(words[1], into=build(7, "fsdp=2"))
    except IntarsiaError as error:
        print(f"intarsia: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def work(asked: dict[str, Any]) -> dict[str, Any]:
    """One rank: how the command ended there."""
    return answer(asked if dist.get_rank() == asked["rank"] else asked | QUIET, command)


def ask(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """How a command ended on every rank."""
    context = multiprocessing.get_context("fork")
    ended = outcomes(RANKS, work, asked, seconds=30, context=context)
    lost = {"status": -1, "out": "", "calls": 0, "unheard": 0, "failed": ""}
    return [told if good else lost | {"err": told} for good, told in ended]


def main() -> None:
    """Serve `Ranks`: one command a line.

    What a rank needs is imported here, once; the first DTensor imports `torch._dynamo`.
    """

    import tests.distributed.small_model  # noqa: F401

    os.environ["MASTER_ADDR"] = "localhost"  # by which a command knows that it has ranks beside it
    prepare(int(sys.argv[1]), eager=bool(int(sys.argv[2])))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(ask(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
