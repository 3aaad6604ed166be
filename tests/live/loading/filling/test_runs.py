"""Tensors that are runs of files: every byte arrives once, by few reads and few copies to a GPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from intarsia.dtypes import BY_NAME
from intarsia.errors import IntarsiaError
from intarsia.format.registry import folder_of, format_named, read_manifest
from intarsia.layout import Layout, concat
from intarsia.live.loading.filling.fill import fill, prove
from intarsia.live.loading.filling.runs import run_steps
from intarsia.live.loading.filling.to_device import ALIGNED_BYTES, ToDevice
from intarsia.live.model.holding import Holding
from intarsia.mesh import Box
from intarsia.planning.made_when_asked import MadeWhenAsked
from intarsia.planning.manifest import Manifest, Target
from intarsia.planning.proof import prover_of
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.run.budget import Budget
from intarsia.run.source import Source
from intarsia.store.reading.folder import Folder
from tests.live.loading.gpu_stand_in import TensorStandIn, gpu_stand_in  # noqa: F401

U8 = BY_NAME["U8"]
EXPERTS, INNER, HIDDEN = 8, 3, 5


@given(st.data())
def test_every_byte_of_every_target_is_read_once_from_where_it_lies(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=9))
    whole, ends = {}, Counter[str]()
    for k, length in enumerate(lengths):
        file = data.draw(st.sampled_from(["b", "a"]))
        start = ends[file] + data.draw(st.sampled_from([0, 0, 3]))
        whole[str(k)] = WholeTensor(str(k), U8, (length,), start, length, file)
        ends[file] = start + length
    files = {
        file: bytes(k % 251 for k in range(seed, seed + ends[file]))
        for seed, file in enumerate("ab", 7)
    }
    stored = MadeWhenAsked(whole, WholeTensor.stored)
    src = Manifest("hf", "here", stored, MadeWhenAsked(whole, WholeTensor.logical), {})
    parts = data.draw(st.permutations([*whole]))
    cut = data.draw(st.integers(0, len(parts)))
    layouts = [
        concat([_part(data, x) for x in map(whole.__getitem__, some)])
        for some in (parts[:cut], parts[cut:])
        if some
    ]
    proofs = [prover_of(src).prove(Target("t", U8, x, (Box.whole(x.shape),))) for x in layouts]
    step_bytes = data.draw(st.integers(1, 100))
    memory = [np.full(x.size, -1) for x in layouts]
    for step in run_steps(proofs, step_bytes):
        assert step.nbytes <= step.room_bytes <= max(step_bytes, ALIGNED_BYTES)
        room = np.full(step.room_bytes, -1)
        assert all(x.at % ALIGNED_BYTES == 0 for x in step.stretches)
        for file, start, length, k, within in step.reads:
            stretch = step.stretches[k]
            assert within + length <= stretch.length
            place = room[stretch.at + within : stretch.at + within + length]
            assert (place == -1).all()
            place[:] = [*files[file][start : start + length]]
        for target, to, length, at in step.stretches:
            assert (memory[target][to : to + length] == -1).all()
            memory[target][to : to + length] = room[at : at + length]
    for layout, found in zip(layouts, memory, strict=True):
        held = [whole[p.tensor] for p in layout.pieces]
        each = zip(layout.pieces, held, strict=True)
        wanted = b"".join(
            files[x.file][x.start_bytes + p.to : x.start_bytes + p.to + p.run] for p, x in each
        )
        assert found.tolist() == [*wanted]


def _part(data: st.DataObject, x: WholeTensor) -> Layout:
    if data.draw(st.booleans()):
        return Layout.of(x.name, x.shape)
    lo = data.draw(st.integers(0, x.shape[0] - 1))
    return Layout.of(x.name, x.shape).narrow(0, lo, data.draw(st.integers(lo + 1, x.shape[0])))


@pytest.fixture
def experts(tmp_path: Path) -> dict[str, torch.Tensor]:
    """A checkpoint with experts, each of which has three tensors."""
    torch.manual_seed(3)
    shapes = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
    found = {
        f"experts.{k}.{name}": torch.randn(shape).bfloat16()
        for k in range(EXPERTS)
        for name, shape in shapes.items()
    }
    save_file(found, tmp_path / "model.safetensors")
    return found


def holdings(kind: type[Any]) -> dict[str, Holding]:
    """The experts as one tensor, in the ways that memory may be."""

    def memory(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Any:
        return torch.zeros(shape, dtype=dtype).as_subclass(kind)

    def of(name: str) -> list[Layout]:
        shape = (HIDDEN, INNER) if name == "down" else (INNER, HIDDEN)
        each = (Layout.of(f"experts.{k}.{name}", shape) for k in range(EXPERTS))
        return [x.reshape(1, *shape) for x in each]

    both = [concat([g, u], 1) for g, u in zip(of("gate"), of("up"), strict=True)]
    fused, down = concat(both), concat(of("down"))
    turned = down.permute(0, 2, 1)
    wide = memory(EXPERTS, 2 * INNER, HIDDEN, dtype=torch.float32)
    strided = memory(EXPERTS, 2 * INNER, HIDDEN + 2)[:, :, :HIDDEN]
    rank = fused.narrow(0, 2, 5)
    return {
        "fused": Holding("fused", fused, memory(EXPERTS, 2 * INNER, HIDDEN)),
        "down": Holding("down", down, memory(EXPERTS, HIDDEN, INNER)),
        "turned": Holding("turned", turned, memory(EXPERTS, INNER, HIDDEN)),
        "wide": Holding("wide", fused, wide),
        "strided": Holding("strided", fused, strided),
        "rank": Holding("rank", rank, memory(3, 2 * INNER, HIDDEN)),
    }


def check_filled(held: dict[str, Holding], truth: dict[str, torch.Tensor]) -> None:
    gate, up, down = (
        torch.stack([truth[f"experts.{k}.{name}"] for k in range(EXPERTS)])
        for name in ("gate", "up", "down")
    )
    fused = torch.cat([gate, up], 1)
    wanted = {
        "fused": fused,
        "down": down,
        "turned": down.transpose(1, 2),
        "wide": fused.float(),
        "strided": fused,
        "rank": fused[2:5],
    }
    for name, each in held.items():
        assert torch.equal(each.tensor.as_subclass(torch.Tensor), wanted[name]), name


@pytest.mark.parametrize("step_bytes", [16, 48, 500, 1 << 20])
@pytest.mark.parametrize("kind", [torch.Tensor, TensorStandIn])
@pytest.mark.usefixtures("gpu_stand_in")
def test_memory_of_every_form_is_filled(
    experts: dict[str, torch.Tensor], tmp_path: Path, kind: Any, step_bytes: int
) -> None:
    held = holdings(kind)
    manifest = read_manifest(tmp_path)
    seen: list[int] = []
    with folder_of(manifest) as folder:
        source = Source(manifest, format_named("hf"), folder)
        budget = Budget(1 << 30, 3, step_bytes)
        fill(source, prove(held.values(), manifest), budget, seen.append)
    check_filled(held, experts)
    assert sum(seen) == sum(each.nbytes for each in held.values())


@pytest.mark.usefixtures("gpu_stand_in")
def test_experts_go_to_a_gpu_by_one_copy_for_each_tensor_of_a_step(
    experts: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {n: x for n, x in holdings(TensorStandIn).items() if n in ("fused", "down")}
    manifest = read_manifest(tmp_path)
    sent: list[int] = []
    read: list[int] = []
    send, read_each = ToDevice.send, Folder.read_each
    monkeypatch.setattr(
        ToDevice, "send", lambda self, copies: (sent.append(len(copies)), send(self, copies))
    )
    monkeypatch.setattr(
        Folder, "read_each", lambda self, f, w: (read.append(len(w)), read_each(self, f, w))
    )
    with folder_of(manifest) as folder:
        source = Source(manifest, format_named("hf"), folder)
        fill(source, prove(held.values(), manifest), Budget(1 << 30, 1))
    check_filled(held, experts)
    assert sent == [2]
    # The file holds down, gate and up of each expert: the last two lie beside each other in memory, too.
    assert read == [2 * EXPERTS]


def test_no_value_is_made_of_a_tensor_that_is_read_as_it_is(
    experts: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    held = {n: x for n, x in holdings(torch.Tensor).items() if n in ("fused", "down", "rank")}
    manifest = read_manifest(tmp_path)
    with folder_of(manifest) as folder:
        source = Source(manifest, format_named("hf"), folder)
        fill(source, prove(held.values(), manifest), Budget.of())
    check_filled(held, experts)
    assert isinstance(manifest.stored, MadeWhenAsked)
    assert not manifest.stored._made


def test_a_file_that_ends_early_is_named(experts: dict[str, torch.Tensor], tmp_path: Path) -> None:
    manifest = read_manifest(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-2])
    proofs = prove(holdings(torch.Tensor).values(), manifest)
    with folder_of(manifest) as folder, pytest.raises(IntarsiaError, match=r"model\.safetensors"):
        fill(Source(manifest, format_named("hf"), folder), proofs, Budget.of())


def test_a_proof_of_another_checkpoint_fills_nothing(
    experts: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    one, other = read_manifest(tmp_path), read_manifest(tmp_path)
    held = holdings(torch.Tensor)["fused"]
    with folder_of(one) as folder, pytest.raises(IntarsiaError, match="is proven of"):
        fill(Source(one, format_named("hf"), folder), prove([held], other), Budget.of())
    assert not held.tensor.any()


def test_memory_of_another_size_than_its_layout_is_not_written(
    experts: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    manifest = read_manifest(tmp_path)
    held = holdings(torch.Tensor)["fused"]
    short = Holding("fused", held.layout, held.tensor[:-1])
    with folder_of(manifest) as folder, pytest.raises(IntarsiaError, match="is proven of"):
        fill(Source(manifest, format_named("hf"), folder), prove([short], manifest), Budget.of())
    assert not held.tensor.any()
