"""Several sets of weights in one folder: the one that the framework reads, or a refusal with all of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import intarsia
from intarsia.errors import FormatError, UsageError
from intarsia.planning.inventory import items_left_out
from tests.checkpoints import assert_same, llama_config, model, read_hf, write_dcp, write_hf
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()


def other(path: Path) -> None:
    save_file({"x": torch.ones(2)}, path)


def test_the_model_is_read_and_what_lies_beside_it_is_named(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "src", model(CONFIG), CONFIG, files=2)
    for name in ("consolidated", "model.fp16", "extra", "adapter_model"):
        other(src / f"{name}.safetensors")
    for name in ("params.json", "adapter_config.json"):
        (src / name).write_text("{}")
    for name in ("pytorch_model.bin", "model.gguf", ".gitattributes", "flax_model.msgpack"):
        (src / name).write_bytes(b"x")
    for name in ("original", "onnx", "runs"):
        (src / name).mkdir()
    report = intarsia.convert(src, tmp_path / "out", to="hf")
    assert_same(read_hf(tmp_path / "out"), model(CONFIG))
    lost = {item.name: item.why for item in items_left_out(report.plan.src.inventory)}
    assert set(lost) == {
        "consolidated.safetensors", "model.fp16.safetensors", "extra.safetensors", "params.json",
        "adapter_model.safetensors", "adapter_config.json", "pytorch_model.bin", "model.gguf",
        ".gitattributes", "flax_model.msgpack", "original", "onnx", "runs",
    }  # fmt: skip
    assert all(lost.values())
    for name in lost:
        assert name in str(report), name
        assert not (tmp_path / "out" / name).exists(), name


@pytest.mark.parametrize("stem", ["diffusion_pytorch_model", "consolidated", "model.fp16", "diffusion_pytorch_model.bf16"])  # fmt: skip
@pytest.mark.parametrize("size", ["1GB", "100"])
def test_the_only_set_keeps_the_name_that_its_framework_looks_for(
    tmp_path: Path, stem: str, size: str
) -> None:
    tensors = {"a": torch.rand(20), "b": torch.rand(10)}
    (tmp_path / "src").mkdir()
    save_file(tensors, tmp_path / "src" / f"{stem}.safetensors")
    intarsia.convert(tmp_path / "src", tmp_path / "out", to="hf", max_shard_size=size)
    files = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    expected = [f"{stem}.safetensors"]
    if size == "100":
        expected = [f"{stem}-0000{k}-of-00002.safetensors" for k in (1, 2)]
        base, _, variant = stem.partition(".")
        index = f"{base}.safetensors.index{f'.{variant}' if variant else ''}.json"
        assert (tmp_path / "out" / index).is_file()
    assert files == expected
    found = {k: v for file in files for k, v in load_file(tmp_path / "out" / file).items()}
    assert_same(found, tensors)
    assert intarsia.verify(tmp_path / "src", tmp_path / "out")


@pytest.mark.parametrize("names", [("model.fp16", "model.bf16"), ("adapter_model", "consolidated"), ("unet", "vae")])  # fmt: skip
def test_equal_candidates_are_refused_with_their_names(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for name in names:
        other(tmp_path / f"{name}.safetensors")
    with pytest.raises(FormatError) as caught:
        intarsia.open(tmp_path)
    assert all(f"{name}.safetensors" in caught.value.brief for name in names)
    assert "give the path of one file" in str(caught.value.hint)


def test_a_variant_beside_its_plain_set_is_left_out(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "diffusion_pytorch_model.safetensors")
    save_file({"a": torch.ones(2)}, tmp_path / "diffusion_pytorch_model.fp16.safetensors")
    found = intarsia.open(tmp_path)
    assert found["a"][:].tolist() == [0, 0]
    assert [i.name for i in items_left_out(found.manifest.inventory)] == [
        "diffusion_pytorch_model.fp16.safetensors"
    ]


def test_a_configuration_may_be_given_as_its_folder(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "src", model(CONFIG), CONFIG)
    (tmp_path / "config").mkdir()
    (src / "config.json").rename(tmp_path / "config" / "config.json")
    assert intarsia.open(src).family is None
    assert intarsia.open(src, tmp_path / "config").family == "llama"


def test_chat_templates_in_their_folder_go_along(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "src", model(CONFIG), CONFIG)
    (src / "additional_chat_templates").mkdir()
    (src / "additional_chat_templates" / "tools.jinja").write_text("{{ x }}")
    (src / "additional_chat_templates" / "old").mkdir()
    for name in ("README.md", "old/tools.jinja"):
        (src / "additional_chat_templates" / name).write_text("")
    report = intarsia.convert(src, tmp_path / "out", to="hf")
    kept = tmp_path / "out" / "additional_chat_templates" / "tools.jinja"
    assert kept.read_text() == "{{ x }}"
    assert [item.name for item in items_left_out(report.plan.src.inventory)] == [
        "additional_chat_templates/README.md", "additional_chat_templates/old/tools.jinja",
    ]  # fmt: skip


def test_a_file_of_any_name_keeps_it_and_an_index_names_its_set(tmp_path: Path) -> None:
    (tmp_path / "lora").mkdir()
    other(tmp_path / "lora" / "pytorch_lora_weights.safetensors")
    intarsia.convert(tmp_path / "lora", tmp_path / "copy", to="hf")
    assert (tmp_path / "copy" / "pytorch_lora_weights.safetensors").is_file()
    src = write_hf(tmp_path / "src", model(CONFIG), CONFIG, files=2)
    index = src / "model.safetensors.index.json"
    for k in (1, 2):
        name = f"-0000{k}-of-00002.safetensors"
        (src / f"model{name}").rename(src / f"pytorch_model{name}")
    index.write_text(index.read_text().replace('"model-', '"pytorch_model-'))
    report = intarsia.convert(src, tmp_path / "out", to="hf")
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert not items_left_out(report.plan.src.inventory)


def test_two_checkpoints_in_one_folder_are_refused(tmp_path: Path) -> None:
    src = write_dcp(tmp_path / "src", {"x": torch.zeros(2)})
    other(src / "model.safetensors")
    with pytest.raises(FormatError, match=r"two checkpoints, dcp and model\.safetensors"):
        intarsia.open(src)


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "src", model(CONFIG), CONFIG)
    (src / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )
    with pytest.raises(FormatError, match=r"Git LFS pointer[\s\S]*git lfs pull"):
        intarsia.open(src)


def test_large_files_links_to_nothing_and_odd_names_are_named(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "src", model(CONFIG), CONFIG)
    with (src / "corpus.txt").open("wb") as file:
        file.truncate((256 << 20) + 1)
    (src / "gone.json").symlink_to("nowhere.json")
    odd = os.fsdecode(b"odd-\xff.pt")
    (src / odd).write_bytes(b"x")
    answer = cli("plan", src, "--to", "dcp", "--json")
    lost = {i["name"]: i["why"] for i in answer.json["inventory"] if i["fate"] == "left out"}
    assert lost.keys() == {"corpus.txt", "gone.json", odd}
    assert "more than 256" in lost["corpus.txt"]
    assert lost["gone.json"] == "leads to nothing"
    assert "links to files that are not there: gone.json" in intarsia.verify(src).notes
    assert cli("plan", src, "--to", "dcp").status == 0
    assert cli("inspect", src).status == 0


def test_one_file_of_several_is_looked_at_and_not_converted(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "src", {"a": torch.ones(2), "b": torch.ones(3)}, files=2)
    part = src / "model-00001-of-00002.safetensors"
    assert cli("inspect", part).status == 0
    with pytest.raises(
        UsageError, match=r"is one of 2 files of a checkpoint[\s\S]*give the folder"
    ):
        intarsia.convert(part, tmp_path / "out", to="hf")


@pytest.mark.parametrize("count", ["00002", "000002"])  # DeepSeek's are of 000163
def test_files_that_the_index_does_not_name_are_missed_by_the_numbers_of_others(
    tmp_path: Path, count: str
) -> None:
    first, second = (f"model-0000{k}-of-{count}.safetensors" for k in (1, 2))
    save_file({"a": torch.randn(4)}, tmp_path / first)
    index = {"metadata": {}, "weight_map": {"a": first}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (fault,) = intarsia.verify(tmp_path).faults
    assert (fault.kind, fault.where) == ("file-missing", second)
    assert fault.text == f"the files' names count 2, 1 are there; absent: {second}"


def test_a_name_that_claims_more_files_than_memory_holds_is_answered_by_their_count(
    tmp_path: Path,
) -> None:
    other(tmp_path / "model-0000000002-of-9999999999.safetensors")
    said = (
        "1 of 9999999999 files; absent: model-0000000001-of-.*-0000000005-of-.* and 9999999994 more"
    )
    with pytest.raises(FormatError, match=said):
        intarsia.open(tmp_path)
    (fault,) = intarsia.verify(tmp_path).faults
    assert fault.kind == "file-missing"
    assert len(fault.files) == 4
