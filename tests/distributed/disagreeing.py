"""What each rank of a `torchrun` job does in `test_ranks_agree.py`, one case after another.

    torchrun … tests/distributed/disagreeing.py ROOT

Each rank writes how each case ended for it into a file of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

import intarsia
from intarsia.errors import IntarsiaError

ROOT = Path(sys.argv[1])
RANK = int(os.environ["RANK"])
WORK = ROOT / f"rank{RANK}"
"""The working folder of this rank, with a source of its own under the same name."""


def relative_source() -> None:
    intarsia.convert("hf", ROOT / "relative", to="dcp")


def local_copy() -> None:
    """One node's copy of the source, of the same length, is another one."""
    intarsia.convert(ROOT / f"rank{RANK}" / "hf", ROOT / "local", to="dcp")


def relative_destination() -> None:
    intarsia.convert(ROOT / "hf", "out", to="dcp")


def other_mesh() -> None:
    intarsia.convert(ROOT / "hf", ROOT / "mesh", to="dcp", mesh=f"tp={1 + RANK}")


def other_memory() -> None:
    """Windows of another size cut the work into other steps."""
    intarsia.convert(ROOT / "hf", ROOT / "memory", to="dcp", memory=f"{16 << RANK}MiB")


def other_config() -> None:
    config = json.loads((ROOT / "hf" / "config.json").read_text())
    intarsia.convert(
        ROOT / "hf",
        ROOT / "config",
        to="dcp",
        config=config | {"transformers_version": f"5.{RANK}"},
    )


def other_digests() -> None:
    intarsia.digest(ROOT / f"rank{RANK}" / "hf")


def first_only() -> None:
    if RANK == 0:
        intarsia.convert(ROOT / "hf", ROOT / "first", to="dcp")
    else:
        time.sleep(3)


def first_alone() -> None:
    if RANK == 0:
        intarsia.convert(ROOT / "hf", ROOT / "alone", to="dcp", alone=True)
        assert intarsia.verify(ROOT / "hf", ROOT / "alone")


def all_together() -> None:
    intarsia.convert(ROOT / "hf", ROOT / "together", to="dcp")
    assert not dist.is_initialized(), "a group was left behind"


def several_machines() -> None:
    """Ranks of which not all are on this machine meet through torch."""
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    try:
        intarsia.convert(ROOT / "hf", ROOT / "several", to="dcp")
        assert not dist.is_initialized(), "a group was left behind"
    finally:
        os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]


def own_group() -> None:
    """A script's own group works after a conversion, and is used by the next."""
    dist.init_process_group("gloo")
    found: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(found, RANK)
    assert found == [*range(dist.get_world_size())]
    intarsia.convert(ROOT / "hf", ROOT / "own", to="dcp")
    dist.barrier()
    assert dist.is_initialized()
    dist.destroy_process_group()


CASES: list[Callable[[], None]] = [
    relative_source, local_copy, relative_destination, other_mesh, other_memory, other_config,
    other_digests, first_only, first_alone, all_together, several_machines,
    own_group,
]  # fmt: skip


def main() -> None:
    WORK.mkdir()
    shutil.copytree(ROOT / "hf", WORK / "hf")
    weights = WORK / "hf" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"%04d" % RANK)
    os.chdir(WORK)
    ended = {}
    for case in CASES:
        try:
            case()
            ended[case.__name__] = "done"
        except IntarsiaError as error:
            ended[case.__name__] = str(error)
    (ROOT / f"{RANK}.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    main()
