"""Where differences lie that nothing explains: rows, ranks, files, bytes, pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import intarsia
from intarsia.checking.pair.comparison import Comparison
from intarsia.run.budget import Budget
from tests.checkpoints import intarsia as command
from tests.checkpoints import llama_config, model, normal_tensor, write_dcp, write_hf

CONFIG = llama_config(
    hidden_size=256, intermediate_size=640, num_attention_heads=8, num_key_value_heads=4,
    head_dim=32, vocab_size=64, num_hidden_layers=1,
)  # fmt: skip
DOWN = "model.layers.0.mlp.down_proj.weight"
UP = "model.layers.0.mlp.up_proj.weight"
MESHES = {"dcp": "tp=2,fsdp=2", "torch_dist": "tp=2", "fsdp_dtensor": "fsdp=2"}
EVERY = ("hf", *MESHES)


class Spot(NamedTuple):
    """The bytes of the last chunk of a tensor in a checkpoint."""

    path: Path
    file: str
    start: int
    elements: int
    width: int

    def byte(self, element: int) -> int:
        return self.start + 2 * element

    def overwrite(self, at: int, data: bytes) -> None:
        held = bytearray(self.path.read_bytes())
        held[at : at + len(data)] = data
        self.path.write_bytes(held)

    def page(self, size: int = 4096) -> int:
        """The first page that begins in the second third of the chunk."""
        return -(-(self.start + 2 * self.elements // 3) // size) * size


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sound")
    made = {"hf": write_hf(root / "hf", model(CONFIG), CONFIG, files=2)}
    for to, mesh in MESHES.items():
        made[to] = root / to
        intarsia.convert(made["hf"], root / to, to=to, mesh=mesh)
    return made


def copied(source: Path, to: Path, tensor: str = DOWN) -> Spot:
    shutil.copytree(source, to)
    with intarsia.open(to) as found:
        stored = found.manifest.sources[tensor][0]
        chunk = max(stored.chunks, key=lambda c: c.box.offsets)
        start = found.start_of(stored, chunk)
        assert start is not None
        root = Path(found.manifest.path)
        return Spot(root / chunk.file, chunk.file, start, chunk.box.size, chunk.box.shape[-1])


def noise(n: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, n, np.uint8).tobytes()


def numbers(n: int) -> bytes:
    """Numbers such as weights are, in bf16."""
    return (0x3C00 + np.random.default_rng(1).integers(0, 0x300, n)).astype("<u2").tobytes()


def told(found: Comparison) -> dict[str, Any]:
    (difference,) = found.as_json()["different"]
    return difference


def of_b(found: Comparison) -> list[dict[str, Any]]:
    return told(found)["where"]["b"]["chunks"]


@pytest.mark.parametrize("to", EVERY)
def test_a_run_is_told_to_the_byte(to: str, sound, tmp_path: Path) -> None:
    spot = copied(sound[to], tmp_path / "b")
    first = spot.elements // spot.width // 2 * spot.width + 10
    spot.overwrite(spot.byte(first), numbers(100))
    found = intarsia.verify(sound[to], tmp_path / "b")
    (chunk,) = of_b(found)
    assert told(found)["kind"] == "unexplained"
    assert chunk["file"] == spot.file
    assert chunk["bytes"] == [spot.byte(first), spot.byte(first + 100)]
    assert chunk["runs"] == [chunk["bytes"]]
    assert chunk["elements"] == told(found)["elements"] == 100
    assert told(found)["where"]["a"] == told(found)["where"]["b"]
    assert f"{spot.file}" in found.different[0].diagnosis
    assert f"bytes [{chunk['bytes'][0]:,}:{chunk['bytes'][1]:,})" in found.different[0].diagnosis


@pytest.mark.parametrize("to", MESHES)
def test_the_rank_that_saved_the_differences_is_named(to: str, sound, tmp_path: Path) -> None:
    spot = copied(sound[to], tmp_path / "b")
    spot.overwrite(spot.byte(7), numbers(20))
    found = intarsia.verify(sound[to], tmp_path / "b")
    (chunk,) = of_b(found)
    rank = int(spot.file.removeprefix("__").partition("_")[0])
    assert chunk["rank"] == rank
    assert all(b["index"] == b["of"] - 1 > 0 for b in chunk["blocks"])
    assert chunk["blocks"]
    assert f"rank {rank}, block 1 of 2 on axis" in found.different[0].diagnosis


def test_rows_and_columns_are_ranges_where_they_are_few(sound, tmp_path: Path) -> None:
    spot = copied(sound["hf"], tmp_path / "b")
    for row in (3, 4, 90):
        spot.overwrite(spot.byte(row * 640 + 100), numbers(10))
    found = intarsia.verify(sound["hf"], tmp_path / "b")
    where = told(found)["where"]
    rows, columns = where["axes"]
    assert rows == {"first": 3, "last": 90, "count": 3, "ranges": [[3, 5], [90, 91]]}
    assert columns == {"first": 100, "last": 109, "count": 10, "ranges": [[100, 110]]}
    assert "rows 3 to 4 and 90, columns 100 to 109" in found.different[0].diagnosis
    assert where["first"] == [3, 100]
    assert where["last"] == [90, 109]


def test_scattered_elements_are_counted_within_bounds(sound, tmp_path: Path) -> None:
    spot = copied(sound["hf"], tmp_path / "b")
    for k in range(40):
        spot.overwrite(spot.byte(2003 * k + 11), b"\x12\x34")
    found = intarsia.verify(sound["hf"], tmp_path / "b")
    (chunk,) = of_b(found)
    assert chunk["run_count"] == 40
    assert chunk["bytes"] == [spot.byte(11), spot.byte(2003 * 39 + 12)]
    assert chunk["runs"] == []
    rows, _ = told(found)["where"]["axes"]
    assert rows["ranges"] == []
    assert (rows["first"], rows["last"], rows["count"]) == (0, 2003 * 39 // 640, 40)
    assert "40 of rows 0 to 122" in found.different[0].diagnosis
    assert "40 runs within bytes" in found.different[0].diagnosis


@pytest.mark.parametrize("to", EVERY)
@pytest.mark.parametrize("size", [4096, 512])
def test_whole_pages_of_noise_are_the_disks(to: str, size: int, sound, tmp_path: Path) -> None:
    spot = copied(sound[to], tmp_path / "b")
    spot.overwrite(spot.page(size), noise(size))
    found = intarsia.verify(sound[to], tmp_path / "b")
    assert told(found)["kind"] == "damaged-pages"
    (fault,) = found.faults
    unit = "4 KiB page" if size == 4096 else "512-byte sector"
    assert unit in fault.text
    assert spot.file in fault.text
    (chunk,) = of_b(found)
    assert chunk["page"] == size
    lo, hi = chunk["bytes"]
    assert spot.page(size) <= lo < hi <= spot.page(size) + size


@pytest.mark.parametrize("to", EVERY)
def test_a_page_of_zeros_gives_its_side_away(to: str, sound, tmp_path: Path) -> None:
    spot = copied(sound[to], tmp_path / "b")
    spot.overwrite(spot.page(), bytes(4096))
    found = intarsia.verify(sound[to], tmp_path / "b")
    assert told(found)["kind"] == "damaged-pages"
    assert f"{spot.file} of B are zero" in found.faults[0].text
    turned = intarsia.verify(tmp_path / "b", sound[to])
    assert f"{spot.file} of A are zero" in turned.faults[0].text


def test_zeros_between_pages_are_not_the_disks(sound, tmp_path: Path) -> None:
    spot = copied(sound["hf"], tmp_path / "b")
    spot.overwrite(spot.page() + 2 * 501, bytes(4096))
    found = intarsia.verify(sound["hf"], tmp_path / "b")
    assert told(found)["kind"] == "rank-zero"
    assert "the flat range of elements" in told(found)["diagnosis"]
    assert of_b(found)[0]["page"] == 0
    assert of_b(found)[0]["bytes"] == [spot.page() + 1002, spot.page() + 1002 + 4096]


def test_two_pages_apart_are_pages_too(sound, tmp_path: Path) -> None:
    spot = copied(sound["hf"], tmp_path / "b")
    for k in (0, 3):
        spot.overwrite(spot.page() + k * 4096, noise(4096, k))
    assert told(intarsia.verify(sound["hf"], tmp_path / "b"))["kind"] == "damaged-pages"


def test_a_page_that_two_tensors_share_is_damaged_in_both(sound, tmp_path: Path) -> None:
    shutil.copytree(sound["hf"], tmp_path / "b")
    with intarsia.open(tmp_path / "b") as found:
        for stored in found.manifest.stored.values():
            start = stored.chunks[0].start_bytes
            page = start // 4096 * 4096
            if 400 < start - page < 3600 and stored.nbytes > 2 * 4096 and page > 8 * 4096:
                path = Path(found.manifest.path) / stored.chunks[0].file
                break
    held = bytearray(path.read_bytes())
    held[page : page + 4096] = noise(4096)
    path.write_bytes(held)
    seen = intarsia.verify(sound["hf"], tmp_path / "b")
    assert len(seen.different) > 1
    assert {f.kind for f in seen.faults} <= {"damaged-pages", "unexplained"}
    assert seen.faults[0].kind == "damaged-pages"


@pytest.mark.parametrize("cut", [(slice(64, 128), slice(None)), (slice(None), slice(2048, 4096))])
def test_a_ranks_block_on_page_boundaries_stays_a_ranks(tmp_path: Path, cut) -> None:
    w = normal_tensor((256, 4096), torch.bfloat16)
    other = w.clone()
    other[cut] = normal_tensor(tuple(other[cut].shape), torch.bfloat16, 5)
    pad = {"a": torch.zeros(1, dtype=torch.bfloat16)}
    a, b = write_dcp(tmp_path / "a", {"w": w} | pad), write_dcp(tmp_path / "b", {"w": other} | pad)
    assert told(intarsia.verify(a, b))["kind"] == "rank-stale"


def test_a_fused_tensor_is_told_by_the_bytes_of_its_own_rows(sound, tmp_path: Path) -> None:
    """Megatron's fc1 holds gate and up: the bytes are those of up's rows."""
    spot = copied(sound["torch_dist"], tmp_path / "b", UP)
    with intarsia.open(sound["torch_dist"]) as found:
        before = found[UP][...]
    spot.overwrite(spot.byte(40 * 256 + 3), numbers(50))
    with intarsia.open(tmp_path / "b") as found:
        after = found[UP][...]
    row = int((before != after).any(1).nonzero()[0])
    seen = intarsia.verify(sound["hf"], tmp_path / "b")
    (difference,) = seen.as_json()["different"]
    assert difference["tensor"] == UP
    assert difference["where"]["first"] == [row, 3]
    (b,), (a,) = (difference["where"][side]["chunks"] for side in "ba")
    assert b["bytes"] == [spot.byte(40 * 256 + 3), spot.byte(40 * 256 + 53)]
    assert b["tensor"] != UP
    assert a["tensor"] == UP
    assert a["bytes"][1] - a["bytes"][0] == 100


def test_small_windows_tell_the_same(sound, tmp_path: Path, monkeypatch) -> None:
    spot = copied(sound["hf"], tmp_path / "b")
    spot.overwrite(spot.page(), noise(8192))
    whole = intarsia.verify(sound["hf"], tmp_path / "b").as_json()
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: 5000))
    assert intarsia.verify(sound["hf"], tmp_path / "b").as_json() == whole


def test_an_explained_difference_has_no_whereabouts(tmp_path: Path) -> None:
    w = normal_tensor((40, 40), torch.float32)
    found = intarsia.verify(write_hf(tmp_path / "a", {"w": w}), write_hf(tmp_path / "b", {"w": -w}))
    assert told(found)["where"] is None


def test_the_command_line_tells_the_bytes(sound, tmp_path: Path) -> None:
    spot = copied(sound["hf"], tmp_path / "b")
    spot.overwrite(spot.byte(700), numbers(30))
    answer = command("verify", sound["hf"], tmp_path / "b")
    assert f"bytes [{spot.byte(700):,}:{spot.byte(730):,})" in answer.out
    answer = command("verify", sound["hf"], tmp_path / "b", "--json")
    assert answer.json["different"][0]["where"]["b"]["chunks"][0]["bytes"] == [
        spot.byte(700),
        spot.byte(730),
    ]


def each_chunk(where: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for side in "ab":
        yield from where[side]["chunks"]


def test_tensors_that_are_not_searched_are_located_too(tmp_path: Path) -> None:
    names = [f"model.layers.{k}.mlp.down_proj.weight" for k in range(6)]
    a = {n: normal_tensor((9, 7), torch.float32, k) for k, n in enumerate(names)}
    b = {n: normal_tensor((9, 7), torch.float32, 50 + k) for k, n in enumerate(names)}
    found = intarsia.verify(write_hf(tmp_path / "a", a), write_hf(tmp_path / "b", b))
    for difference in found.as_json()["different"]:
        chunks = list(each_chunk(difference["where"]))
        assert len(chunks) == 2
        assert all(c["bytes"][1] - c["bytes"][0] == 9 * 7 * 4 for c in chunks)
        assert all(c["page"] == 0 for c in chunks)


def test_a_chunk_in_another_order_is_told_by_the_bytes_around(tmp_path: Path) -> None:
    w = normal_tensor((30, 20), torch.bfloat16)
    other = w.clone()
    other[7, 5:19] = normal_tensor((14,), torch.bfloat16, 3)
    a, b = (write_dcp(tmp_path / n, {"w": x.T}) for n, x in (("a", w), ("b", other)))
    (chunk,) = of_b(intarsia.verify(a, b))
    files = [(x / chunk["file"]).read_bytes() for x in (a, b)]
    differ = np.flatnonzero(np.frombuffer(files[0], np.uint8) != np.frombuffer(files[1], np.uint8))
    lo, hi = chunk["bytes"]
    assert hi - lo == 2 * 14
    assert {lo, lo + 1} & {*differ.tolist()}
    assert chunk["run_count"] is None
