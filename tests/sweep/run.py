"""Every type in a process of its own: a crash, or a type that takes too long, ends itself alone."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import pkgutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import intarsia
from tests.sweep.checks import check
from tests.sweep.results import Outcome, Results
from tests.sweep.types import Type

LIMIT_SECONDS = 180


@dataclass
class _Running:
    type: Type
    process: BaseProcess
    folder: tempfile.TemporaryDirectory[str]
    since: float

    @property
    def late(self) -> bool:
        return time.monotonic() - self.since > LIMIT_SECONDS

    def outcome(self) -> Outcome:
        """What the process wrote before it ended."""
        path = Path(self.folder.name) / "outcome"
        lines = path.read_text().splitlines() if path.exists() else []
        found = dict(json.loads(line) for line in lines)
        if self.process.exitcode != 0:
            why = f"ended by itself with status {self.process.exitcode}"
            found["run"] = f"more than {LIMIT_SECONDS} s" if self.late else why
        self.folder.cleanup()
        return found


def sweep(types: Sequence[Type], results: Results, jobs: int) -> None:
    """Check those types that have no outcome yet."""
    import torch
    import transformers

    _import_once()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    fork = multiprocessing.get_context("fork")
    todo = [t for t in types if t not in results.found]
    running: list[_Running] = []
    while todo or running:
        while todo and len(running) < jobs:
            type_, folder = todo.pop(0), tempfile.TemporaryDirectory(prefix="sweep-")
            process = fork.Process(target=_work, args=(type_, Path(folder.name)))
            process.start()
            running.append(_Running(type_, process, folder, time.monotonic()))
        for each in list(running):
            each.process.join(0.1)
            if each.process.is_alive() and each.late:
                each.process.kill()
                each.process.join()
            if not each.process.is_alive():
                running.remove(each)
                results.add(each.type, each.outcome())
                print(f"{each.type}: {_word(results, each.type)}", file=sys.stderr)


def _import_once() -> None:
    """Import what all processes need; nothing is run, since threads do not survive a fork."""
    for module in pkgutil.walk_packages(intarsia.__path__, "intarsia."):
        # The kernel's library lies beside its modules and is none.
        if not module.name.rpartition(".")[2].startswith(("__main__", "kernel-")):
            importlib.import_module(module.name)
    for name in ("AutoConfig", "AutoModelForCausalLM", "LlamaForCausalLM", "PreTrainedModel"):
        getattr(importlib.import_module("transformers"), name)
    importlib.import_module("torch.distributed.checkpoint")


def _work(type_: Type, folder: Path) -> None:
    warnings.simplefilter("ignore")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    with (folder / "outcome").open("a") as file:
        for outcome in check(type_, folder):
            file.write(json.dumps(outcome) + "\n")
            file.flush()


def _word(results: Results, type_: Type) -> str:
    return "; ".join(f"{k}: {v[:160]}" for k, v in results.faults(type_).items()) or "ok"
