"""Real gloo processes for tests, forked from a server that has torch already."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(
    [
        "torch.distributed.tensor",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint",
        "torch._dynamo",  # the first DTensor imports it, which takes seconds
        "transformers.models.auto.modeling_auto",
        "intarsia.live.load",
        "intarsia.live.background",
    ]
)


def on_ranks(count: int, work: Callable[..., Any], *given: Any, seconds: float = 120) -> list[Any]:
    """What `work(*given)` returns on each of `count` ranks; raise what the first failing rank raised."""
    return answers_of(outcomes(count, work, *given, seconds=seconds))


def answers_of(answers: list[tuple[bool, Any]]) -> list[Any]:
    """The results of all ranks; raise what the first failing rank raised."""
    count = len(answers)
    for rank, (good, answer) in enumerate(answers):
        if not good:
            raise AssertionError(f"rank {rank} of {count} failed:\n{answer}")
    return [answer for _, answer in answers]


def outcomes(
    count: int, work: Callable[..., Any], *given: Any, seconds: float = 120, context: Any = server
) -> list[tuple[bool, Any]]:
    """For each rank whether `work` succeeded, and its result or the traceback of its failure."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(count):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_run, args=(theirs, f"{folder}/store", rank, count, work, given)
            )
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        found = [_answer(pipe, seconds) for pipe in pipes]
        for rank, process in enumerate(processes):
            process.join(10)
            if process.is_alive():
                process.kill()
            elif process.exitcode and found[rank][0]:
                found[rank] = False, f"it ended with {process.exitcode} after its answer"
        return found


def on_ranks_with(
    module: str, count: int, work: Callable[..., Any], *given: Any, seconds: float = 240
) -> list[Any]:
    """As `on_ranks`, on ranks forked from a process that has imported `module` once for all."""
    mine, theirs = server.Pipe(duplex=False)
    process = server.Process(target=_fork, args=(theirs, module, count, work, given, seconds))
    process.start()
    theirs.close()
    good, answer = _answer(mine, seconds)
    process.join(10)
    if process.is_alive():
        process.kill()
    assert good, answer
    return answers_of(answer)


def _fork(
    pipe: Connection,
    module: str,
    count: int,
    work: Callable[..., Any],
    given: tuple[Any, ...],
    seconds: float,
) -> None:
    os.environ["WORLD_SIZE"] = str(count)
    try:
        importlib.import_module(module)
        context = multiprocessing.get_context("fork")
        found = outcomes(count, work, *given, seconds=seconds, context=context)
        pipe.send_bytes(pickle.dumps((True, found)))
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
    finally:
        pipe.close()


def _answer(pipe: Connection, seconds: float) -> tuple[bool, Any]:
    if not pipe.poll(seconds):
        return False, f"no answer within {seconds} s"
    try:
        good, answer = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return False, "it died"
    return good, answer


def _run(
    pipe: Connection,
    store: str,
    rank: int,
    count: int,
    work: Callable[..., Any],
    given: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # whatever network the machine has
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=60),
    )
    try:
        pipe.send_bytes(pickle.dumps((True, work(*given))))
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
    finally:
        pipe.close()
        if dist.is_initialized():
            dist.destroy_process_group()
