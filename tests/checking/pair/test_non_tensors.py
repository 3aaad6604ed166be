"""What lies beside the tensors is equal, different, or said not to be compared, from either side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.format.folder.side_files import DIGESTS
from tests.checkpoints import intarsia as command
from tests.checkpoints import llama_config, model, write_dcp, write_hf
from tests.fixtures import fixture

CONFIG = llama_config()


def saved(folder: Path, **changes: Any) -> Path:
    """A training run as DCP saves it, by name."""
    groups = {"lr": 1e-3, "weight_decay": 0.1} | changes.get("group", {})
    weights = model(CONFIG)
    state = {
        n: {"exp_avg": x.float(), "exp_avg_sq": x.float() ** 2, "step": torch.tensor(4.0)}
        for n, x in weights.items()
    }
    held = {
        "model": weights,
        "optimizer": {"state": state, "param_groups": [{"params": list(weights), **groups}]},
        "lr_scheduler": {"last_epoch": 4, "base_lrs": [1e-3]} | changes.get("scheduler", {}),
        "train_state": {"step": 4},
    }
    for name in changes.get("without", ()):
        del held[name]
    write_dcp(folder, held)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"group": {"lr": 2e-3}}, "lr"),
        ({"scheduler": {"last_epoch": 9}}, "lr_scheduler.last_epoch"),
        ({"without": ("lr_scheduler",)}, "lr_scheduler.last_epoch"),
        ({"scheduler": {"last_epoch": None}}, "lr_scheduler.last_epoch"),
    ],
)
def test_the_state_of_a_run_that_differs_is_a_difference(
    changes: dict[str, Any], name: str, tmp_path: Path
) -> None:
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b", **changes)
    for x, y in ((a, b), (b, a)):
        found = intarsia.verify(x, y)
        assert not found.equal
        assert not found.different
        assert any(name in each.name and each.counts for each in found.beside), found.beside
        answer = command("verify", x, y)
        assert answer.status == 1
        assert name in answer.out
    assert intarsia.verify(a, a).equal


def test_settings_are_compared_between_formats(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b", group={"lr": 0.5})
    for src, equal in ((a, True), (b, False)):
        out = tmp_path / f"{src.name}-hf"
        intarsia.convert(src, out, to="hf")
        for x, y in ((a, out), (out, a)):
            found = intarsia.verify(x, y)
            assert found.equal is equal, [str(each) for each in found.beside]


def test_configuration_and_small_files_are_reported(tmp_path: Path) -> None:
    a = write_hf(tmp_path / "a", model(CONFIG), CONFIG)
    b = write_hf(tmp_path / "b", model(CONFIG), CONFIG | {"rms_norm_eps": 0.5})
    (b / "tokenizer_config.json").write_text("{}")
    (b / "generation_config.json").write_text("{}")
    for x, y, only in ((a, b, "only in B"), (b, a, "only in A")):
        found = intarsia.verify(x, y)
        told = {each.name: each.verdict for each in found.beside}
        assert found.equal
        assert told["config.json: rms_norm_eps"] == "different"
        assert told["tokenizer_config.json"] == "different"
        assert told["generation_config.json"] == only
        assert told["merges.txt"] == "equal"
        out = command("verify", x, y).out
        assert "config.json: rms_norm_eps" in out
        assert "tokenizer_config.json" in out


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_tied_or_stored_is_one_model_to_verify_and_digest(
    tied: bool, tmp_path: Path
) -> None:
    weights = model(CONFIG | {"tie_word_embeddings": True})
    a = write_hf(tmp_path / "a", weights, CONFIG | {"tie_word_embeddings": True})
    head = weights["model.embed_tokens.weight"].clone()
    stored = weights | {"lm_head.weight": head}
    b = write_hf(tmp_path / "b", stored, CONFIG | {"tie_word_embeddings": tied})
    assert intarsia.verify(a, b).equal
    assert intarsia.verify(b, a).equal
    assert intarsia.digest(a).root == intarsia.digest(b).root
    head[3, 4] += 1
    c = write_hf(tmp_path / "c", stored, CONFIG | {"tie_word_embeddings": tied})
    assert not intarsia.verify(a, c).equal
    assert not intarsia.verify(c, a).equal
    assert intarsia.digest(a).root != intarsia.digest(c).root


def test_a_head_that_is_lost_is_missing_from_either_side(tmp_path: Path) -> None:
    weights = model(CONFIG)
    a = write_hf(tmp_path / "a", weights, CONFIG)
    del weights["lm_head.weight"]
    b = write_hf(tmp_path / "b", weights)
    assert intarsia.verify(a, b).only_in_a == ("lm_head.weight",)
    assert intarsia.verify(b, a).only_in_b == ("lm_head.weight",)


@pytest.mark.parametrize("said", ["", "{}", '{"sharded_backend": "zarr"}', None])
def test_megatron_s_folder_without_its_backend_is_malformed(
    said: str | None, tmp_path: Path
) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, tmp_path / "out", to="torch_dist", mesh="tp=2")
    assert intarsia.verify(tmp_path / "out").sound
    home = next((tmp_path / "out").glob("iter_*"))
    if said is None:
        (home / "metadata.json").unlink()
    else:
        (home / "metadata.json").write_text(said)
    for path in (home, tmp_path / "out"):
        report = intarsia.verify(path)
        assert (report.format, [f.kind for f in report.faults]) == ("torch_dist", ["malformed"])
        with pytest.raises(intarsia.IntarsiaError, match=r"metadata\.json"):
            intarsia.open(path)


def test_objects_that_changed_since_are_not_those_of_the_digests(tmp_path: Path) -> None:
    intarsia.convert(saved(tmp_path / "a"), tmp_path / "hf", to="hf")
    assert intarsia.verify(tmp_path / "hf").sound
    where = tmp_path / "hf" / "optimizer" / "entries.json"
    entries = json.loads(where.read_text())
    name = next(n for n in entries if "last_epoch" in n)
    for changed in ({n: d for n, d in entries.items() if n != name}, entries | {name: ""}, {}):
        where.write_text(json.dumps(changed))
        faults = intarsia.verify(tmp_path / "hf").faults
        assert [f.kind for f in faults] == ["digest-differs"]
        assert name in faults[0].tensors


def test_a_file_of_no_digests_is_no_file_of_digests(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, tmp_path / "out", to="hf")
    empty = intarsia.digest(src).__class__("pages", {})
    text = {"root": empty.root, "from": None, "kind": "pages", "tensors": {}}
    (tmp_path / "out" / DIGESTS).write_text(json.dumps(text))
    assert [f.kind for f in intarsia.verify(tmp_path / "out").faults] == ["malformed"]


MEGATRON = fixture("megatron")


@pytest.mark.parametrize("which", ["copy", "padding", "extra state"])
def test_what_no_tensor_holds_is_checked_too(which: str, tmp_path: Path) -> None:
    """Optimizer state in Megatron's buckets has copies and gaps, and modules have empty states."""
    src = MEGATRON / ("td_dense_tp2" if which == "extra state" else "td_dense_tp2pp2_dpresh")
    src /= "iter_0000010"
    shutil.copytree(src, tmp_path / "out", dirs_exist_ok=True, copy_function=shutil.copyfile)
    manifest = intarsia.open(tmp_path / "out").manifest
    home = Path(manifest.path)
    file, start, length = _unmapped(manifest, home, which)
    with (home / file).open("r+b") as held:
        held.seek(start + length // 2)
        byte = held.read(1)[0]
        held.seek(start + length // 2)
        held.write(bytes([byte ^ 0x10]))
    kinds = {fault.kind for fault in intarsia.verify(tmp_path / "out").faults}
    assert kinds & {"checksum-wrong", "entry-damaged", "malformed", "copies-differ"}
    for x, y in ((src, tmp_path / "out"), (tmp_path / "out", src)):
        assert not intarsia.verify(x, y).equal


def _unmapped(manifest: Any, home: Path, which: str) -> tuple[str, int, int]:
    from intarsia.format.dcp.archives import recorded_checksum
    from intarsia.format.dcp.data_files import open_metadata
    from intarsia.store.folder import Folder

    metadata, _ = open_metadata(Folder(home))
    held = {(c.file, c.start_bytes) for s in manifest.stored.values() for c in s.chunks}
    twins = {(c.file, c.start_bytes) for s in manifest.copies for c in s.chunks}
    if which == "extra state":
        o = next(o for o in metadata.objects.values() if "_extra_state" in o.name)
        data = Folder(home).read(o.file, o.start_bytes, o.length_bytes)
        at = data.index(b"data.pkl") + len("data.pkl")
        pickled = data.index(b"\x80\x02", at)
        return o.file, o.start_bytes + pickled, 4
    chunks = (c for t in metadata.tensors.values() for c in t.chunks)
    for c in chunks:
        at = (c.file, c.start_bytes)
        if at not in held and (at in twins) == (which == "copy"):
            return c.file, *recorded_checksum(Folder(home), c)[:2]
    raise AssertionError(f"no {which}")


def test_copies_that_were_saved_unequal_are_found(tmp_path: Path) -> None:
    """Though every checksum is right."""
    src = MEGATRON / "td_dense_tp2pp2_dpresh" / "iter_0000010"
    from dataclasses import replace

    from intarsia.checking.alone.unmapped import copies_that_differ
    from intarsia.run.budget import Budget

    manifest = intarsia.open(src).manifest
    budget = Budget.of(None, None)
    assert not list(copies_that_differ(manifest, budget))
    one, other, *_ = (c for c in manifest.copies if "k_layernorm" in c.name and "exp_avg" in c.name)
    wrong = replace(one, chunks=other.chunks)
    (fault,) = copies_that_differ(replace(manifest, copies=(wrong,)), budget)
    assert fault.kind == "copies-differ"


@pytest.mark.parametrize("to", ["dcp", "fsdp_dtensor", "hf"])
def test_what_was_made_of_megatron_s_checkpoint_is_of_its_own_format(
    to: str, tmp_path: Path
) -> None:
    """Though it carries Megatron's common state along."""
    src = MEGATRON / "td_dense_tp2"
    config = src / "hf_truth" / "config.json"
    intarsia.convert(src / "iter_0000010", tmp_path / "out", to=to, config=config)
    assert intarsia.open(tmp_path / "out").format == to
    assert intarsia.verify(tmp_path / "out").sound
