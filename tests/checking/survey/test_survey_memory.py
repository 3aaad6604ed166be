"""`--memory` holds for tensors with more rows or columns than it has room for sums."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import intarsia
from intarsia.checking.alone.headers import read_headers
from intarsia.checking.survey.blockwise import survey
from intarsia.run.budget import Budget
from tests.checkpoints import python

MEMORY_MIB = 32
SLACK_MIB = 16
"""What modules and allocators take beside the buffers."""

CODE = """
import sys
if len(sys.argv) > 3:
    import torch  # which casts to types of eight bits
import intarsia
import intarsia.checking.pair.compare, intarsia.checking.alone.soundness

def most():
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) // 1024

before = most()
found = intarsia.verify(*sys.argv[2:], memory=sys.argv[1], workers=2)
print(bool(found), most() - before)
"""


def write(folder: Path, shape: tuple[int, ...], name: str = "model.w") -> Path:
    """One large tensor of numbers such as weights are, in bf16."""
    folder.mkdir()
    size = int(np.prod(shape))
    entry = {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, 2 * size]}
    header = json.dumps({name: entry}).encode()
    header += b" " * (-len(header) % 8)
    random = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for at in range(0, size, 1 << 22):
            bits = 0x3C00 + random.integers(0, 0x300, min(1 << 22, size - at), np.uint16)
            file.write(bits.astype("<u2").tobytes())
    return folder


def grown(*paths: Path) -> tuple[bool, int]:
    """What `verify` says in a process of its own, and by how many MiB that grew."""
    said = python("-c", CODE, f"{MEMORY_MIB}MiB", *paths, check=True).stdout.split()
    return said[0] == "True", int(said[1])


@pytest.mark.parametrize(
    "shape",
    [
        (40_000_000,),
        pytest.param((4, 10_000_000), marks=pytest.mark.slow),
        pytest.param((10_000_000, 1), marks=pytest.mark.slow),
    ],
)
def test_one_checkpoint_with_a_long_axis_stays_within_its_memory(shape, tmp_path: Path) -> None:
    sound, mib = grown(write(tmp_path / "a", shape))
    assert sound
    assert mib <= MEMORY_MIB + SLACK_MIB


@pytest.mark.slow
def test_two_checkpoints_with_a_long_axis_stay_within_their_memory(tmp_path: Path) -> None:
    a = write(tmp_path / "a", (40_000_000,))
    b = shutil.copytree(a, tmp_path / "b")
    with (b / "model.safetensors").open("r+b") as file:
        file.seek(40_000_001)
        file.write(bytes(range(1, 200)))
    equal, mib = grown(a, b)
    assert not equal
    assert mib <= MEMORY_MIB + SLACK_MIB


def test_faults_of_a_long_axis_are_found_under_little_memory(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", (4, 2_000_000), "model.w.weight")
    path = folder / "model.safetensors"
    data = np.memmap(path, "<u2", "r+", offset=path.stat().st_size - 16_000_000)
    rows = data.reshape(4, -1)
    rows[:, 1_000_000:1_500_000] = 0
    data.flush()
    (fault,) = intarsia.verify(folder, memory="16MiB", workers=8).faults
    assert fault.kind == "zero-block"
    lo, hi = map(int, fault.where.removeprefix("columns [").removesuffix(")").split(":"))
    assert 1_000_000 <= lo < 1_001_000
    assert 1_499_000 < hi <= 1_500_000
    rows[:, 1_000_000:] = rows[:, :1_000_000]
    data.flush()
    (fault,) = intarsia.verify(folder, memory="16MiB", workers=8).faults
    assert fault.kind == "shards-repeated"
    assert fault.where == "columns [1000000:2000000)"


def test_zeros_of_either_sign_are_alike_under_little_memory(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", (4, 2_000_000), "model.w.weight")
    path = folder / "model.safetensors"
    data = np.memmap(path, "<u2", "r+", offset=path.stat().st_size - 16_000_000)
    for bits, one, alike, zero in ((0, 0, True, True), (0, 1, False, False), (7, 7, True, False)):
        data[:] = bits
        if not bits:
            data[3_000_000:5_000_000] = 0x8000
        for at in (0, -1):
            data[at] = one
            assert facts_of(folder, data) == (alike, zero)
            data[at] = bits
    data[0] = 3
    assert facts_of(folder, data) == (False, False)


def facts_of(folder: Path, data: np.memmap) -> tuple[bool, bool]:
    """Whether all elements are alike, and zero."""
    data.flush()
    manifest = read_headers(folder, None).manifest
    assert manifest is not None
    ((matrix,),) = [stats.matrices for stats in survey(manifest, Budget.of("16MiB", 8))]
    return matrix.constant, matrix.zero
