"""Hugging Face folders: every element type and layout is read, bad ones are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import intarsia
from intarsia.errors import CoverageError, FamilyError, FormatError, UsageError
from intarsia.format.registry import read_manifest
from intarsia.planning.inventory import items_left_out
from tests.checkpoints import (
    assert_same,
    bits,
    fixture,
    leftovers,
    llama_config,
    matrix,
    model,
    random_tensor,
    read_dcp,
    read_hf,
    shapes,
    write_hf,
)
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("mesh", "files"),
    [("", 1), ("tp=2,fsdp=3", 3), ("fsdp=8", 1), ("pp=2,ep=2,replicate=2", 3)],
)
def test_every_element_type_and_shape_goes_to_dcp_and_back(
    tmp_path: Path, mesh: str, files: int
) -> None:
    tensors = matrix()
    src = write_hf(tmp_path / "hf", tensors, files=files)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh=mesh)
    assert_same(read_dcp(tmp_path / "dcp"), tensors)
    intarsia.convert(tmp_path / "dcp", tmp_path / "back", to="hf")
    assert_same(read_hf(tmp_path / "back"), tensors)
    assert intarsia.verify(src, tmp_path / "dcp")


def test_a_non_contiguous_tensor_is_read_as_safetensors_stored_it(tmp_path: Path) -> None:
    tensors = {
        "w": torch.randn(5, 7).t().contiguous(),
        "v": torch.randn(4, 6)[::2, 1:].contiguous(),
    }
    src = write_hf(tmp_path / "hf", tensors)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2")
    assert_same(read_dcp(tmp_path / "dcp"), tensors)


def test_the_bytes_of_each_tensor_begin_at_a_multiple_of_its_element(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", matrix())
    intarsia.convert(src, tmp_path / "copy", to="hf")
    for stored in read_manifest(tmp_path / "copy").stored.values():
        assert stored.chunks[0].start_bytes % stored.dtype.itemsize == 0


def test_one_file_is_a_checkpoint(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    renamed = tmp_path / "weights.anything"
    (src / "model.safetensors").rename(renamed)
    (src / "config.json").rename(tmp_path / "config.json")
    intarsia.convert(renamed, tmp_path / "dcp", to="dcp", mesh="tp=2")
    assert_same(read_dcp(tmp_path / "dcp"), model(CONFIG))
    assert read_manifest(tmp_path / "dcp").family == "llama"


def test_numbered_files_need_no_index(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG, files=3)
    assert "no model.safetensors.index.json" not in "".join(intarsia.verify(src).notes)
    (src / INDEX).unlink()
    assert sorted(intarsia.open(src)) == sorted(shapes(CONFIG))
    for notes in (intarsia.verify(src).notes, intarsia.plan(src, to="dcp").notes):
        (note,) = (note for note in notes if INDEX in note)
        assert note.startswith(f"there is no {INDEX}, without which Transformers does not find")
    part = src / "model-00002-of-00003.safetensors"
    assert not any(INDEX in note for note in intarsia.verify(part).notes)
    (src / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FormatError, match="2 of 3 files; absent: model-00002-of-00003"):
        intarsia.open(src)


@pytest.mark.parametrize("names", [("1-of-00000",), ("1-of-00001", "2-of-00001"), ("0-of-00001",)])
def test_a_number_beyond_the_count_of_its_set_is_refused(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        save_file({name: torch.ones(2)}, tmp_path / f"model-0000{name}.safetensors")
    with pytest.raises(FormatError, match=r"holds \d safetensors files and no index: model-0000"):
        intarsia.open(tmp_path)


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({name: torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(FormatError, match=r"holds 2 safetensors files and no index: a.safetensors"):
        intarsia.open(tmp_path)


def test_one_file_of_any_name_needs_no_index(tmp_path: Path) -> None:
    save_file({"a": torch.arange(3)}, tmp_path / "adapter.safetensors")
    assert intarsia.open(tmp_path)["a"][:].tolist() == [0, 1, 2]


def change_index(src: Path, change) -> None:
    index = json.loads((src / INDEX).read_text())
    change(index["weight_map"])
    (src / INDEX).write_text(json.dumps(index))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", model(CONFIG), CONFIG, files=3)


def test_a_missing_file_of_the_index_is_named_with_what_it_held(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    answer = cli("convert", sharded, sharded.parent / "out", "--to", "dcp")
    assert answer.status == 2
    assert "names 3 files, 1 is absent with 10 tensors: model-00002-of-00003" in answer.err
    assert not (sharded.parent / "out").exists()


@pytest.mark.parametrize(
    "where", ["../evil.safetensors", "/etc/passwd", "sub/../../file", "..", "."]
)
def test_an_index_that_points_outside_its_folder_is_refused(sharded: Path, where: str) -> None:
    change_index(sharded, lambda held: held.update({"model.norm.weight": where}))
    with pytest.raises(FormatError, match=r"names .*, which is outside of its folder"):
        intarsia.open(sharded)


@pytest.mark.parametrize("what", ["lacks", "adds", "moves"])
def test_an_index_and_a_file_that_disagree_are_refused(sharded: Path, what: str) -> None:
    def change(held: dict[str, str]) -> None:
        if what == "lacks":
            del held["model.norm.weight"]
        elif what == "adds":
            held["model.extra.weight"] = "model-00001-of-00003.safetensors"
        else:
            name = "model.norm.weight"
            names = sorted(set(held.values()))
            held[name] = next(n for n in names if n != held[name])

    change_index(sharded, change)
    said = {"lacks": "the file alone holds model.norm.weight", "adds": "the index alone names model.extra.weight",
            "moves": r"(the index alone names|the file alone holds) model\.norm\.weight"}  # fmt: skip
    with pytest.raises(FormatError, match=f"and the index disagree: {said[what]}\n"):
        intarsia.open(sharded)


def test_an_index_that_counts_other_bytes_than_its_tensors_have_is_noted(sharded: Path) -> None:
    said = json.loads((sharded / INDEX).read_text())
    total = said["metadata"]["total_size"]
    assert "total_size" not in "".join(intarsia.verify(sharded).notes)
    (sharded / INDEX).write_text(json.dumps(said | {"metadata": {"total_size": total + 2}}))
    for notes in (intarsia.verify(sharded).notes, intarsia.plan(sharded, to="dcp").notes):
        (note,) = (note for note in notes if "total_size" in note)
        assert note.startswith(f"{INDEX} gives {total + 2:,} bytes")
        assert note.endswith(f"have {total:,}")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "not json", '{"weight_map": []}', "null", '{"weight_map": 3}']
)
def test_an_index_without_a_map_is_refused(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    with pytest.raises(FormatError, match=r"weight_map|not JSON"):
        intarsia.open(sharded)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for k in (1, 2):
        save_file({"a": torch.zeros(2)}, tmp_path / f"model-{k:05d}-of-00002.safetensors")
    with pytest.raises(FormatError, match=r"'a' is in model-00001-of-00002.safetensors and in"):
        intarsia.open(tmp_path)


def test_a_truncated_file_is_refused_by_every_command(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    whole = write_hf(tmp_path / "whole", model(CONFIG), CONFIG)
    file = src / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    for words in (
        ["inspect", src],
        ["plan", src, "--to", "dcp"],
        ["convert", src, tmp_path / "out", "--to", "dcp"],
        ["verify", src, whole],
        ["verify", whole, src],
        ["diff", whole, src],
        ["explain", src, "model.norm.weight"],
    ):
        answer = cli(*words)
        assert answer.status == 2, words
        assert "model.safetensors: tensors end at byte" in answer.err
        assert "Traceback" not in answer.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["{", "[]", "nonsense", ""])
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    (src / "config.json").write_text(text)
    answer = cli("inspect", src)
    assert answer.status == 2
    assert "config.json" in answer.err


def test_a_configuration_of_another_shape_is_refused(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), llama_config(intermediate_size=34))
    with pytest.raises(FamilyError, match=r"down_proj.weight` has shape \[20, 33\].*\[20, 34\]"):
        intarsia.open(src)
    assert cli("convert", src, tmp_path / "out", "--to", "dcp").status == 2


def test_a_configuration_without_a_needed_number_is_refused(tmp_path: Path) -> None:
    config = {k: v for k, v in CONFIG.items() if k != "hidden_size"}
    src = write_hf(tmp_path / "hf", model(CONFIG), config)
    answer = cli("inspect", src)
    assert answer.status == 2
    assert "hidden_size" in answer.err


def test_a_missing_tensor_of_a_known_family_forbids_the_conversion(tmp_path: Path) -> None:
    tensors = model(CONFIG)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    src = write_hf(tmp_path / "hf", tensors, CONFIG)
    with pytest.raises(CoverageError, match=r"660 of 660 elements of `model.layers.1.mlp.up_proj"):
        intarsia.convert(src, tmp_path / "out", to="dcp", mesh="tp=2")
    answer = cli("convert", src, tmp_path / "out", "--to", "dcp")
    assert answer.status == 1
    assert "model.layers.1.mlp.up_proj.weight" in answer.err
    assert not (tmp_path / "out").exists()
    assert not leftovers(tmp_path)
    shown = cli("inspect", src, "--json").json
    assert shown["complete"] is False
    assert "`model.layers.1.mlp.up_proj.weight` [33, 20] is absent" in shown["problems"]


def test_files_without_any_tensor_are_no_checkpoint(tmp_path: Path) -> None:
    write_hf(tmp_path, {}, CONFIG)
    with pytest.raises(FormatError, match=r"holds no tensor: model\.safetensors"):
        intarsia.convert(tmp_path, tmp_path / "out", to="dcp")
    (fault,) = intarsia.verify(tmp_path).faults
    assert fault.kind == "tensor-missing"
    (tmp_path / "config.json").unlink()
    save_file({"w": torch.zeros(0, 4)}, tmp_path / "model.safetensors")
    assert intarsia.verify(tmp_path)


def test_a_tensor_that_the_family_does_not_know_is_carried_and_said(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.arange(3.0)}
    tensors = model(CONFIG) | extra
    src = write_hf(tmp_path / "hf", tensors, CONFIG)
    report = intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2")
    assert any("rotary_emb.inv_freq" in note for note in report.plan.notes)
    assert_same(read_dcp(tmp_path / "dcp"), tensors)


def test_training_state_goes_to_a_side_folder(tmp_path: Path) -> None:
    name = "model.norm.weight"
    state = {f"optimizer.{kind}.{name}": torch.randn(20) for kind in ("exp_avg", "exp_avg_sq")}
    state[f"optimizer.step.{name}"] = torch.tensor(7.0)
    src = write_hf(tmp_path / "src", model(CONFIG) | state, CONFIG)
    intarsia.convert(src, tmp_path / "hf", to="hf")
    assert_same(load_file(tmp_path / "hf" / "model.safetensors"), model(CONFIG))
    assert_same(load_file(tmp_path / "hf" / "optimizer" / "model.safetensors"), state)
    assert intarsia.verify(src, tmp_path / "hf")
    intarsia.convert(tmp_path / "hf", tmp_path / "dcp", to="dcp", mesh="fsdp=3")
    found = read_dcp(tmp_path / "dcp")
    moved = found["optimizer.state.model.norm.weight.exp_avg"]
    assert bits(moved) == bits(state[f"optimizer.exp_avg.{name}"])
    intarsia.convert(tmp_path / "dcp", tmp_path / "bare", to="hf", optimizer="drop")
    assert not (tmp_path / "bare" / "optimizer").exists()
    assert_same(read_hf(tmp_path / "bare"), model(CONFIG))


def test_a_weight_that_is_named_as_state_is_said_to_be_in_the_side_folder(tmp_path: Path) -> None:
    tensors = {"weight": torch.ones(3), "optimizer.weight": torch.ones(3)}
    src = write_hf(tmp_path / "src", tensors)
    report = intarsia.convert(src, tmp_path / "out", to="hf")
    assert (tmp_path / "out" / "optimizer" / "model.safetensors").exists()
    assert [note for note in report.notes if "optimizer.weight begin as" in note]
    assert intarsia.verify(src, tmp_path / "out")


def test_a_folder_that_holds_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(FormatError, match="is not a checkpoint that Intarsia can read"):
        intarsia.open(tmp_path)
    with pytest.raises(FormatError, match="does not exist"):
        intarsia.open(tmp_path / "absent")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(FormatError, match="is not a checkpoint"):
        intarsia.open(tmp_path / "empty")


def test_a_shard_that_torch_left_unconsolidated_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors", {"DCP_SHARDING_INFO": "{}"})
    with pytest.raises(FormatError, match="unconsolidated"):
        intarsia.open(tmp_path)


@pytest.mark.parametrize("files", [1, 2])
def test_whole_tensors_of_torchs_distributed_writer_are_read(tmp_path: Path, files: int) -> None:
    """It says of them where they begin, as of shards; its index counts what all ranks wrote."""
    held = {f"w{k}": torch.randn(4, 3) for k in range(3)} | {"scale": torch.tensor(2.0)}
    mapping = {name: 1 + k % files for k, name in enumerate(held)}
    writer = dcp.HuggingFaceStorageWriter(str(tmp_path / "hf"), mapping)
    dcp.save(dict(held), storage_writer=writer, no_dist=True)
    assert intarsia.verify(tmp_path / "hf").sound
    intarsia.convert(tmp_path / "hf", tmp_path / "out", to="hf")
    intarsia.convert(tmp_path / "hf", tmp_path / "dcp", to="dcp", mesh="fsdp=2")
    assert_same(read_hf(tmp_path / "out"), held)
    assert_same(read_dcp(tmp_path / "dcp"), held)
    for file in (tmp_path / "out").glob("*.safetensors"):
        assert b"DCP_" not in file.read_bytes()
    index = json.loads((tmp_path / "hf" / INDEX).read_text())
    index["metadata"]["total_size"] *= 2  # as where a second rank wrote the file before
    (tmp_path / "hf" / INDEX).write_text(json.dumps(index))
    with pytest.raises(FormatError, match="unconsolidated"):
        intarsia.open(tmp_path / "hf")
    assert {fault.kind for fault in intarsia.verify(tmp_path / "hf").faults} == {"malformed"}


def test_a_shard_that_does_not_begin_its_tensors_is_refused_with_an_index_too(
    tmp_path: Path,
) -> None:
    said = {"DCP_SHARDING_INFO": json.dumps({"a": {"saved_offsets": [2]}})}
    file = "model-00001-of-00001.safetensors"
    save_file({"a": torch.zeros(2)}, tmp_path / file, said)
    index = {"metadata": {"total_size": 8}, "weight_map": {"a": file}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(FormatError, match="unconsolidated"):
        intarsia.open(tmp_path)


def test_a_checkpoint_of_transformers_is_read_by_slices(tmp_path: Path) -> None:
    src = fixture("llama")
    truth = load_file(src / "model.safetensors")
    with intarsia.open(src) as opened:
        assert opened.format == "hf"
        assert opened.family == "llama"
        assert set(truth) <= set(opened)
        name = "model.layers.0.mlp.gate_proj.weight"
        found = opened[name][3:5, -7:]
        assert found.equal(truth[name][3:5, -7:])
        assert opened.read_bytes <= 4 * truth[name].shape[1] * truth[name].element_size()
        assert opened[name].shape == tuple(truth[name].shape)
        assert opened[name].dtype == truth[name].dtype


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory):
    tensor = random_tensor((5, 4, 6), torch.bfloat16)
    src = write_hf(tmp_path_factory.mktemp("small") / "hf", {"w": tensor})
    with intarsia.open(src) as opened:
        yield opened["w"], tensor


@st.composite
def indices(draw: st.DrawFn) -> tuple:
    """Any basic index with unit steps of a tensor of shape (5, 4, 6)."""
    items: list = []
    for n in (5, 4, 6)[: draw(st.integers(0, 3))]:
        ends = st.none() | st.integers(-n - 2, n + 2)
        items.append(draw(st.integers(-n, n - 1) | st.builds(slice, ends, ends)))
    if len(items) < 3 and draw(st.booleans()):
        return (*items, ...)
    return tuple(items)


@settings(max_examples=100, deadline=None)
@given(indices())
def test_an_index_gives_what_torch_gives(small, index: tuple) -> None:
    lazy, tensor = small
    assert_same({"": lazy[index]}, {"": tensor[index]})


def test_an_index_that_makes_no_sense_is_refused(small) -> None:
    lazy, _ = small
    for index in (5, -6, (0, 4)):
        with pytest.raises(IndexError, match="is outside axis"):
            lazy[index]
    for index in ((0, 0, 0, 0), (..., ...)):
        with pytest.raises(UsageError):
            lazy[index]


def test_two_numbered_sets_without_an_index_are_not_guessed_between(tmp_path: Path) -> None:
    for n in (2, 3):
        for k in range(1, n + 1):
            file = tmp_path / f"model-{k:05d}-of-{n:05d}.safetensors"
            save_file({f"w{n}{k}": torch.ones(2)}, file)
    with pytest.raises(FormatError, match="of-00002 and of-00003"):
        intarsia.open(tmp_path)


def test_files_beside_those_of_the_index_are_left_out_by_name(tmp_path: Path) -> None:
    src = write_hf(tmp_path, {"a": torch.ones(2), "b": torch.ones(3)}, files=2)
    assert not items_left_out(intarsia.open(src).manifest.inventory)
    save_file({"c": torch.ones(2)}, src / "adapter.safetensors")
    (item,) = items_left_out(intarsia.open(src).manifest.inventory)
    assert (item.name, item.role) == ("adapter.safetensors", "other model")
    assert item.why == "not of the weights that were read (model-*.safetensors)"
    (src / "adapter.safetensors").rename(src / "model-00003-of-00003.safetensors")
    (item,) = items_left_out(intarsia.open(src).manifest.inventory)
    assert item.why == "model.safetensors.index.json does not name it"


def test_tensors_of_the_side_folder_that_are_no_state_are_no_weights(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "m", model(CONFIG), CONFIG)
    (src / "optimizer").mkdir()
    save_file({"exp_avg.lm_head.weight": torch.ones(2)}, src / "optimizer" / "model.safetensors")
    with pytest.raises(FormatError, match=r"`exp_avg.lm_head.weight` in .*optimizer.* no name of"):
        intarsia.plan(src, to="hf")
    assert not intarsia.verify(src)


def test_a_file_that_is_read_from_two_folders_has_its_name_in_each(tmp_path: Path) -> None:
    write_hf(tmp_path / "m", {"a": torch.ones(2)})
    (tmp_path / "m" / "optimizer").mkdir()
    for name in ("x", "y"):
        save_file({name: torch.ones(2)}, tmp_path / "m" / "optimizer" / f"{name}.safetensors")
    found = read_manifest(tmp_path / "m", complain=lambda complaint: None)
    held = {chunk.file for s in found.stored.values() for chunk in s.chunks}
    assert held == {"model.safetensors", "optimizer/x.safetensors", "optimizer/y.safetensors"}
