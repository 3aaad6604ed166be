"""A process that runs each command on two ranks, forked from it, of which one has a disk that fails.

    python -m tests.faults.failing_ranks WINDOW_BYTES EAGER

A command is one of Intarsia's, or `save FOLDER SEED`, or `load FOLDER`, of a live model.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

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


def work(pipe: Connection, store: str, rank: int, asked: dict[str, Any]) -> None:
    """One rank: how the command ended there."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "localhost"}
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    try:
        told = answer(asked if rank == asked["rank"] else asked | QUIET, command)
    except BaseException:
        told = {"status": -1, "out": "", "err": traceback.format_exc(), "calls": 0, "failed": ""}
    pipe.send(told)
    pipe.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def ask(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """How a command ended on every rank."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(RANKS):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(theirs, f"{folder}/store", rank, asked))
            process.start()
            theirs.close()
            started.append((mine, process))
        answers = []
        for pipe, _ in started:
            lost = {"status": -2, "out": "", "err": "no answer", "calls": 0, "failed": ""}
            try:
                answers.append(pipe.recv() if pipe.poll(30) else lost)
            except EOFError:
                answers.append(lost)
        for _, process in started:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        return answers


def main() -> None:
    """Serve `Ranks`: one command a line.

    What a rank needs is imported here, once; the first DTensor imports `torch._dynamo`.
    """

    import tests.distributed.small_model  # noqa: F401

    prepare(int(sys.argv[1]), eager=bool(int(sys.argv[2])))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(ask(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
