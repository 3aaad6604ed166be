"""The places that a page shows are where the bytes are."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import intarsia
from intarsia.format.hf.checkpoint import Hf
from intarsia.format.registry import read_manifest
from intarsia.planning.manifest import Manifest
from intarsia.report import storage as module
from intarsia.report.storage import Texts, storage_map
from tests.checkpoints import model, write_hf
from tests.report.made import CONFIG, HOSTILE, Q, hostile


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("where")
    write_hf(root / "hf", model(CONFIG), CONFIG, files=2)
    intarsia.convert(root / "hf", root / "dcp", to="dcp", mesh="tp=2,fsdp=2")
    intarsia.convert(root / "hf", root / "megatron", to="torch_dist", mesh="tp=2")
    return root


def numbers(manifest: Manifest) -> dict[str, int]:
    return {name: k for k, name in enumerate(manifest.logical)}


def text(side: dict, given: list[int]) -> str:
    """A text of the data, put together as the script does."""
    first, *words = side["texts"][given[0]]
    return first + "".join(f"{n}{word}" for n, word in zip(given[1:], words, strict=True))


@given(st.text(st.sampled_from("ab.019-é٣²\n"), max_size=30))
def test_texts_come_back_as_they_were(written: str) -> None:
    texts = Texts()
    found = texts.add(written)
    assert text({"texts": list(texts.words)}, found) == written


def test_names_and_drawings_that_differ_in_numbers_are_kept_once(root: Path) -> None:
    manifest = read_manifest(root / "megatron")
    side = storage_map(manifest, numbers(manifest))
    names = [text(side, s[0]) for s in side["stored"] if s[0]]
    assert "decoder.layers.2.self_attention.linear_qkv.weight" in " ".join(names)
    assert len(side["texts"]) < len(names)


def test_the_bytes_at_a_tensors_place_are_the_tensors(root: Path) -> None:
    manifest = read_manifest(root / "hf")
    side = storage_map(manifest, numbers(manifest))
    stored = side["stored"][[*manifest.stored].index(Q)]
    name, _, shape, [[file, start, length]], count, tensors, drawing = stored
    assert (name, count, tensors, drawing) == (0, 1, [numbers(manifest)[Q]], 0)
    data = (root / "hf" / side["files"][file][0]).read_bytes()
    expected = model(CONFIG)[Q]
    assert shape == list(expected.shape)
    assert data[start : start + length] == expected.view(torch.uint8).numpy().tobytes()
    assert side["files"][file][1] == len(data)


def test_the_chunks_of_a_sharded_tensor_are_boxes_that_hold_it_whole(root: Path) -> None:
    manifest = read_manifest(root / "dcp")
    side = storage_map(manifest, numbers(manifest))
    stored = side["stored"][[s.key or s.name for s in manifest.stored.values()].index(Q)]
    chunks = stored[3]
    assert len(chunks) == stored[4] == 4
    files = [side["files"][c[0]] for c in chunks]
    assert {(file, rank) for file, _, rank in files} == {(f"__{k}_0.distcp", k) for k in range(4)}
    assert sum(prod(box[1]) for _, _, _, box in chunks) == prod(stored[2])


def test_only_the_format_knows_which_rank_wrote_a_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = read_manifest(root / "hf")
    assert {rank for *_, rank in storage_map(plain, numbers(plain))["files"]} == {None}
    monkeypatch.setattr(Hf, "rank_of", lambda self, file: int(file[6:11]))
    assert {rank for *_, rank in storage_map(plain, numbers(plain))["files"]} == {1, 2}


def test_a_fused_tensor_counts_the_elements_of_each_that_it_holds(root: Path) -> None:
    manifest = read_manifest(root / "megatron")
    number = numbers(manifest)
    side = storage_map(manifest, number)
    held = dict.fromkeys(number.values(), 0)
    for row, s in zip(side["stored"], manifest.stored.values(), strict=True):
        chunks, tensors = row[3], row[5]
        for chunk in chunks:
            own = chunk[4] if len(chunk) > 4 else []
            for t, n in zip(own[::2], own[1::2], strict=True):
                held[t] += n
        if len(tensors) > 1 and all(len(c) > 4 for c in chunks):
            expected = {number[name]: manifest.logical[name].size for name in s.layout.tensors}
            assert {t: held[t] for t in tensors} == expected
    assert held[number[Q]] == manifest.logical[Q].size


def test_only_what_is_fused_or_permuted_is_drawn(root: Path) -> None:
    manifest = read_manifest(root / "megatron")
    side = storage_map(manifest, numbers(manifest))
    drawn = {text(side, s[0]): text(side, s[6]) for s in side["stored"] if s[6]}
    fused = next(name for name in drawn if "linear_qkv" in name)
    assert "q_proj" in drawn[fused]
    assert "v_proj" in drawn[fused]


def test_where_there_are_too_many_chunks_each_tensor_shows_its_first(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(root / "dcp")
    monkeypatch.setattr(module, "CHUNKS", len(manifest.stored))
    side = storage_map(manifest, numbers(manifest))
    assert all(len(s[3]) == 1 for s in side["stored"])
    assert max(s[4] for s in side["stored"]) == 4


def test_no_character_that_cannot_be_seen_is_left_in_a_name() -> None:
    manifest = hostile()
    side = storage_map(manifest, {name: k for k, name in enumerate(HOSTILE)})
    assert all(text.isprintable() for text, *_ in side["files"])
    assert side["path"].isprintable()
