"""One model in every format, a disk for each round, and what must hold after it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch

import intarsia
from tests.checkpoints import files_of, leftovers, llama_config, model, write_hf
from tests.checkpoints import intarsia as cli
from tests.faults.soak.child import CALM, CRASHED, Child, Ended, Trouble

Files = dict[str, bytes]
JOBS = {
    "hf to dcp": ("hf", "--to", "dcp", "--mesh", "fsdp=2"),
    "dcp to hf": ("dcp", "--to", "hf", "--max-shard-size", "9kB"),
    "hf to torch_dist": ("hf", "--to", "torch_dist", "--mesh", "tp=2"),
    "torch_dist to fsdp_dtensor": ("torch_dist", "--to", "fsdp_dtensor", "--mesh", "fsdp=2"),
    "fsdp_dtensor to hf": ("fsdp_dtensor", "--to", "hf"),
    "dcp to dcp": ("dcp", "--to", "dcp", "--mesh", "tp=2", "--no-digests"),
}


def command(words: list[str]) -> Callable[[], object]:
    """A command of Intarsia as the work of a child."""
    from intarsia.cli.main import main

    return lambda: main(words)


@dataclass
class Ground:
    """A folder with sources, the files that undisturbed runs make of them, and how many calls those make."""

    root: Path
    whole: dict[str, Files] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    sources: dict[str, Files] = field(default_factory=dict)

    @staticmethod
    def made(root: Path, jobs: list[str]) -> Ground:
        """A small model, another one of the same names, and each job run to its end."""
        torch.set_num_threads(1)
        ground = Ground(root)
        config = llama_config(num_hidden_layers=1)
        write_hf(root / "hf", model(config), config, files=2)
        write_hf(root / "other", model(config, seed=9), config, files=2)
        for format, mesh in (("dcp", "fsdp=2"), ("torch_dist", "tp=2"), ("fsdp_dtensor", "fsdp=2")):
            intarsia.convert(root / "hf", root / format, to=format, mesh=mesh)
        for job in jobs:
            assert cli("convert", *ground.words(job, root / "whole" / job)).status == 0
            ground.whole[job] = files_of(root / "whole" / job)
            assert cli("verify", root / JOBS[job][0], root / "whole" / job).status == 0
            counted = Child(
                root / "counted", command(["convert", *ground.words(job, root / "n" / job)])
            )
            ground.calls[job] = counted.wait().calls
        for name in ("hf", "other", "dcp", "torch_dist", "fsdp_dtensor"):
            ground.sources[name] = files_of(root / name)
        return ground

    def words(self, job: str, out: Path, source: Path | None = None) -> list[str]:
        src, *options = JOBS[job]
        return [str(source or self.root / src), str(out), *options]


def _says_left(found: Ended) -> bool:
    """Whether a run that was done says that something lies beside it."""
    return "could not be removed" in found.out or "interrupted after it was complete" in found.out


@dataclass
class Round:
    """One round: its own disk with neighbours, its chance, and what was seen."""

    ground: Ground
    number: int
    chance: Random
    seen: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        shutil.rmtree(self.disk, ignore_errors=True)
        (self.disk / "neighbour").mkdir(parents=True)
        (self.disk / "neighbour" / "model.safetensors").write_bytes(self.chance.randbytes(99))
        (self.disk / "out.txt").write_bytes(b"notes on out")
        self.job = self.chance.choice(list(self.ground.whole))
        self.whole = self.ground.whole[self.job]
        self.neighbours = self._neighbours()

    @property
    def disk(self) -> Path:
        return self.ground.root / "disk"

    @property
    def out(self) -> Path:
        return self.disk / "out"

    def _neighbours(self) -> Files:
        mine = (self.out.name, "src")
        return {
            name: data
            for name, data in files_of(self.disk).items()
            if ".intarsia-" not in name and name.split("/")[0] not in mine
        }

    def here(self) -> Files | None:
        """What lies at the destination."""
        return files_of(self.out) if self.out.exists() else None

    def put(self, source: str = "other") -> Files:
        """Lay an older checkpoint at the destination."""
        shutil.copytree(self.ground.root / source, self.out)
        return files_of(self.out)

    def own_source(self) -> Path:
        """A copy of the job's source, to be tampered with."""
        return Path(shutil.copytree(self.ground.root / JOBS[self.job][0], self.disk / "src"))

    def start(self, words: list[str], trouble: Trouble = CALM) -> Child:
        return Child(self.ground.root / "children" / str(self.number), command(words), trouble)

    def ended(self, child: Child, what: str) -> Ended:
        """The end of a child, which is one that a program may have."""
        found = child.wait()
        self.log.append(f"{what}: {found}")
        self.seen["kills"] += found.killed
        self.seen["refusals"] += found.status in (1, 2)
        self.seen["stopped"] += found.status > 128
        assert found.status != CRASHED, "it crashed"
        assert "Traceback" not in found.err, "a traceback"
        assert "INTARSIA_DEBUG" not in found.err, "an error that nobody planned"
        if found.status not in (0, 1) and not found.killed and found.status > 0:
            assert found.err.count("intarsia: ") == 1, "one message"
        if found.status in (0, 1, 2) and not _says_left(found):
            assert found.descriptors <= 0, "descriptors are left open"
        return found

    def convert(self, *more: str, trouble: Trouble = CALM, source: Path | None = None) -> Ended:
        words = ["convert", *self.ground.words(self.job, self.out, source), *more]
        return self.ended(self.start(words, trouble), " ".join(["convert", self.job, *more]))

    def judge(self, found: Ended, before: Files | None, *, dead_disk: bool = False) -> None:
        """What a run says is what happened, and nothing is half there."""
        now, left = self.here(), list(leftovers(self.disk))
        if found.status == 0:
            assert now == self.whole, "it said that it was done"
            assert not left or _says_left(found), left
        elif found.killed:
            assert now in (before, self.whole), "half-valid"
        else:
            whole = "in its place" in found.err
            assert now == (self.whole if whole else before), f"whole: {whole}"
            assert ".out.intarsia-lock" not in left or dead_disk, "a lock is left"
            kept = "run again with --resume" in found.err
            if not kept and not dead_disk:
                assert not left, f"{left} is left, and nothing was said of it"
            if "are kept in" in found.err:
                assert ".out.intarsia-partial" in left, "nothing is kept"
        self.settled()

    def settled(self) -> None:
        """Sources and neighbours are what they were."""
        for name, files in self.ground.sources.items():
            assert files_of(self.ground.root / name) == files, f"{name} was changed"
        assert self._neighbours() == self.neighbours, "a neighbour was changed"

    def finish(self, found: Ended, before: Files | None, source: Path | None = None) -> None:
        """The next run ends what this one left."""
        was_whole = self.here() == self.whole
        more = ("--resume",) if before is None else ("--resume", "--overwrite")
        if found.status != 0 or _says_left(found):
            again = self.convert(*more, source=source)
            if was_whole and before is None and again.status == 2:
                assert "exists, and there is nothing to resume" in again.err
            else:
                assert again.status == 0, "the run after it fails"
                resumed = "resumed: " in again.out
                self.seen["resumed"] += resumed
                if "are kept in" in found.err:
                    assert resumed, "kept, and not taken up"
        assert self.here() == self.whole
        assert not leftovers(self.disk), leftovers(self.disk)
        self.settled()
