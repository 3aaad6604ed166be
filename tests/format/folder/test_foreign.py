"""Checkpoints of other kinds are recognised by what only they have, and the error says what to do."""

from __future__ import annotations

import glob
import io
import json
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from transformers import LlamaForCausalLM

import intarsia
from intarsia.errors import FormatError
from tests.checkpoints import assert_same, llama_config, model, read_dcp, write_hf
from tests.checkpoints import intarsia as cli
from tests.journeys.models import tiny

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


NAMES = [
    (("latest", "zero_to_fp32.py", "global_step10/zero_pp_rank_0_mp_rank_00_model_states.pt", "global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt"), "DeepSpeed ZeRO", "source OUT --tag global_step10"),
    (("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"), "DeepSpeed ZeRO", "zero_to_fp32"),
    (("mp_rank_00_model_states.pt",), "DeepSpeed checkpoint without ZeRO", '["module"]'),
    (("mp_rank_00_model_states.pt", "layer_0_expert_0_mp_rank_00_model_states.pt", "expp_rank_0_mp_rank_00_optim_states.pt"), "model is in several files", "intarsia.save"),
    (("mp_rank_00_model_states.pt", "layer_0_expert_0_mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"), "model is in several files", "intarsia.save"),
    (("mp_rank_00_model_states.pt", "layer_01-model_00-model_states.pt"), "model is in several files", "intarsia.save"),
    (("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"), "model is in several files", "intarsia.save"),
    (("mp_rank_00_model_states.pt", "zero/optimizer_state.pt", "zero/norm.weight/fp32.pt", "zero/norm.weight/exp_avg.pt"), "DeepSpeed universal", "RUN OUT --tag STEP"),
    (("model_world_size_4_rank_0.pt", "optim_world_size_4_rank_0.pt", "fsdp_config.json", "huggingface/config.json"), "verl", "verl.model_merger merge"),
    (("actor/model_world_size_2_rank_1.pt", "data.pt"), "actor holds a verl", "actor --target_dir"),
    (("pytorch_model_fsdp_0_rank0.bin", "pytorch_model_fsdp_0_rank1.bin"), "one pickle for each rank", "SHARDED_STATE_DICT"),
    (("mp_rank_00/model_optim_rng.pt",), "Megatron-LM checkpoint", "--ckpt-convert-format torch_dist"),
    (("iter_0000010/mp_rank_01_003/model_rng.pt", "latest_checkpointed_iteration.txt"), "Megatron-LM checkpoint", "torch_dist"),
    (("model_optim_rng.pt",), "one model-parallel rank's pickle", "--ckpt-convert-format torch_dist"),
    (("distrib_optim.pt", "model_rng.pt"), "one model-parallel rank's pickle", "torch_dist"),
    (("0/iter_0000010_0_local.pt", "1/iter_0000010_1_local.pt"), "0 holds Megatron-LM's local checkpoint", "--ckpt-format torch_dist"),
    (("iter_0000010_0_local.pt",), "local checkpoint, one pickle for each rank", "on the same ranks"),
    (("iter_0000010/common.pt", "iter_0000010/metadata.json", "iter_0000010/decoder.weight/.zarray", "latest_checkpointed_iteration.txt"), "backend zarr", "--ckpt-format torch_dist"),
    (("common.pt", "metadata.json"), "common.pt) without its tensors", "restore .metadata"),
    (("config.json", "pytorch_model.bin"), "Transformers in a pickle", "save_pretrained"),
    (("config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"), "Transformers in a pickle", "save_pretrained"),
    (("pytorch_model_fsdp.bin", "optimizer.bin"), "without a model configuration", "torch.load("),
    (("pytorch_model.bin", "optimizer.bin", "random_states_0.pkl"), "without a model configuration", "torch.load("),
    (("adapter_model.bin", "adapter_config.json"), "PEFT adapter in a pickle", "PeftModel"),
    (("consolidated.00.pth", "params.json"), "Meta's own Llama files", "convert_llama_weights_to_hf"),
    (("weights/.metadata", "context/model.yaml"), "NeMo 2", "export_ckpt"),
    (("__0.metadata", "__0_0.distcp", "__1.metadata", "__1_0.distcp"), "metadata of each rank's own", "without use_collectives=False"),
    (("_CHECKPOINT_METADATA", "d/abc", "manifest.ocdbt"), "Orbax", "PyTreeCheckpointer"),
    (("checkpoint", "model.ckpt-100.index", "model.ckpt-100.data-00000-of-00001"), "TensorFlow checkpoint", "tf.train.load_checkpoint"),
    (("saved_model.pb", "variables/x"), "SavedModel", "tf.saved_model.load"),
    (("flax_model.msgpack", "config.json"), "Flax weights", "from_flax=True"),
    (("config.json", "tokenizer.json"), "configuration and no weights", "unfinished"),
]  # fmt: skip


@pytest.mark.parametrize("inner", ["", "iter_0000010/"])
def test_data_files_without_their_metadata_are_called_that(tmp_path: Path, inner: str) -> None:
    folder = touch(tmp_path / "run", "config.json", f"{inner}__0_0.distcp", f"{inner}__1_0.distcp")
    for words in (("inspect", folder), ("convert", folder, tmp_path / "out", "--to", "hf")):
        answer = cli(*words)
        assert answer.status == 2
        assert "holds a torch.distributed.checkpoint without .metadata" in answer.err
        assert "restore .metadata" in answer.err


@pytest.mark.parametrize(("names", "kind", "remedy"), NAMES, ids=lambda x: str(x)[:40])
def test_a_folder_is_recognised_by_names_that_one_framework_writes(
    tmp_path: Path, names: tuple[str, ...], kind: str, remedy: str
) -> None:
    folder = touch(tmp_path / "source", *names)
    if (folder / "latest").exists():
        (folder / "latest").write_text("global_step10")
    if (folder / "latest_checkpointed_iteration.txt").exists():
        (folder / "latest_checkpointed_iteration.txt").write_text("10")
    convert = ("convert", folder, tmp_path / "out", "--to", "hf")
    for words in (("inspect", folder), ("verify", folder), convert):
        answer = cli(*words)
        assert answer.status == 2
        assert kind in answer.err.replace("\n", " ")
        assert remedy in answer.err
        assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("names", "kind", "remedy"),
    [
        (("mp_rank_00_model_states.pt",), "without ZeRO", 'load("{}/mp_rank_00_model_states.pt"'),
        (("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"), "a DeepSpeed ZeRO", " --tag step "),
        (("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"), "a DeepSpeed ZeRO", 'of a model with tied weights, which that refuses, intarsia.save("OUT", get_fp32_state_dict_from_zero_checkpoint('),
        (("mp_rank_00_model_states.pt", "layer_0_expert_1_mp_rank_00_model_states.pt"), "several files", "no one file"),
        (("model_world_size_4_rank_0.pt",), "verl", "--local_dir {} --target"),
        (("adapter_model.bin",), "PEFT", 'from_pretrained(base, "{}")'),
        (("consolidated.00.pth",), "Meta", "--input_dir {} --output"),
    ],
)  # fmt: skip
def test_one_file_of_a_kind_is_called_what_its_folder_is(
    tmp_path: Path, names: tuple[str, ...], kind: str, remedy: str
) -> None:
    folder = touch(tmp_path / "step", *names)
    with pytest.raises(FormatError) as caught:
        intarsia.open(folder / names[0])
    assert kind in caught.value.brief
    assert remedy.format(folder) in str(caught.value.hint)


def write_archive(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("model_config.yaml", "model_weights.ckpt"):
            archive.addfile(tarfile.TarInfo(f"./{name}"), io.BytesIO())


FILES = {
    "a.gguf": (lambda p: p.write_bytes(b"GGUF\x03\0\0\0" + bytes(64)), "GGUF", "gguf_file"),
    "anything": (lambda p: p.write_bytes(b"GGUF\x03\0\0\0" + bytes(64)), "GGUF", "gguf_file"),
    "a.pt": (lambda p: torch.save(STATE, p), "torch.save wrote", "weights_only=True"),
    "old.pth": (lambda p: torch.save(STATE, p, _use_new_zipfile_serialization=False), "torch.save wrote", "weights_only=True"),
    "a.pkl": (lambda p: p.write_bytes(pickle.dumps({"a": 1})), "a Python pickle", "intarsia.save"),
    "script.pt": (lambda p: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), p), "TorchScript", "torch.jit.load"),
    "a.npy": (lambda p: np.save(p, np.ones(3)), "NumPy", "safetensors.numpy.save_file"),
    "a.npz": (lambda p: np.savez(p, a=np.ones(3)), "NumPy", "safetensors.numpy.save_file"),
    "a.h5": (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64)), "HDF5", "keras"),
    "a.nemo": (write_archive, "NeMo archive", "nemo_to_hf"),
    "model.onnx": (lambda p: p.write_bytes(b"\x08\x07"), "ONNX", "exported from"),
    "model.safetensors.index.json": (lambda p: p.write_text("{}"), "an index", "give the folder"),
    "__0_0.distcp": (lambda p: p.write_bytes(b"x"), "one data file", ".metadata"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_recognised_by_its_bytes(tmp_path: Path, name: str) -> None:
    write, kind, remedy = FILES[name]
    path = tmp_path / name
    write(path)
    with pytest.raises(FormatError) as caught:
        intarsia.open(path)
    assert kind in caught.value.brief
    assert remedy in str(caught.value.hint)


def test_a_pickle_among_other_files_is_named(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "weights.pt")
    (tmp_path / "readme.md").write_text("hello")
    with pytest.raises(FormatError, match=r"weights\.pt is a pickle that torch\.save wrote"):
        intarsia.open(tmp_path)


def test_a_deepspeed_folder_beside_safetensors_is_left_out_by_name(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "checkpoint-10", model(llama_config()), llama_config())
    touch(src, "global_step10/mp_rank_00_model_states.pt", "zero_to_fp32.py", "latest")
    touch(src, "zero_to_torch.py")
    (src / "latest").write_text("global_step10")
    touch(src, "trainer_state.json", "scheduler.pt", "rng_state_0.pth")
    report = intarsia.convert(src, tmp_path / "out", to="hf")
    fates = {item.name: str(item.fate) for item in report.plan.src.inventory}
    scripts = ("zero_to_fp32.py", "zero_to_torch.py")
    lost = ("global_step10", "latest", *scripts, "trainer_state.json", "scheduler.pt")
    assert {fates[name] for name in lost} == {"left out"}
    assert not [name for name in lost if (tmp_path / "out" / name).exists()]
    assert any("global_step10 holds optimizer state" in note for note in report.plan.notes)


def test_the_step_for_a_pickled_state_dict_works(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "a.pt")
    intarsia.save(tmp_path / "OUT", torch.load(tmp_path / "a.pt", weights_only=True))
    assert_same(read_dcp(tmp_path / "OUT"), STATE)


def test_the_step_for_weights_of_transformers_in_a_pickle_works(tmp_path: Path) -> None:
    net = tiny()
    net.config.save_pretrained(tmp_path / "old")
    torch.save(net.state_dict(), tmp_path / "old" / "pytorch_model.bin")
    with pytest.raises(FormatError, match=r"from_pretrained\(.*\)\.save_pretrained"):
        intarsia.open(tmp_path / "old")
    LlamaForCausalLM.from_pretrained(tmp_path / "old").save_pretrained(tmp_path / "OUT")
    assert_same(load_file(tmp_path / "OUT" / "model.safetensors"), dict(net.state_dict()))
    intarsia.open(tmp_path / "OUT")


def test_the_step_for_weights_in_several_pickles_works(tmp_path: Path) -> None:
    for k, (name, x) in enumerate(STATE.items()):
        torch.save({name: x}, tmp_path / f"pytorch_model-{k + 1:05}-of-00002.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}")
    for path in (tmp_path, next(tmp_path.glob("*-of-*.bin"))):
        with pytest.raises(FormatError, match="several pickles, each with a part") as caught:
            intarsia.open(path)
        code = str(caught.value.hint).removesuffix(" puts them together")
        code = code.replace('"OUT"', repr(str(tmp_path / "OUT")))
        eval(code, {"glob": glob, "torch": torch, "intarsia": intarsia})
        assert_same(read_dcp(tmp_path / "OUT"), STATE)
        shutil.rmtree(tmp_path / "OUT")


@pytest.mark.parametrize("files", [1, 2])
def test_shards_that_were_not_consolidated_are_named_as_such(tmp_path: Path, files: int) -> None:
    mapping = {name: 1 + k % files for k, name in enumerate(STATE)}
    writer = HuggingFaceStorageWriter(str(tmp_path / "hf"), mapping, save_distributed=True)
    dcp.save(dict(STATE), storage_writer=writer, no_dist=True)
    assert any("shard-" in p.name for p in (tmp_path / "hf").iterdir())
    with pytest.raises(FormatError, match=r"left unconsolidated[\s\S]*HuggingFaceStorageReader"):
        intarsia.open(tmp_path / "hf")


def test_an_index_may_name_files_of_a_subfolder(tmp_path: Path) -> None:
    (tmp_path / "hf" / "part").mkdir(parents=True)
    save_file({"a": STATE["a.weight"]}, tmp_path / "hf" / "part" / "x.safetensors")
    save_file({"b": STATE["a.bias"]}, tmp_path / "hf" / "y.safetensors")
    index = {"weight_map": {"a": "part/x.safetensors", "b": "y.safetensors"}}
    (tmp_path / "hf" / "model.safetensors.index.json").write_text(json.dumps(index))
    report = intarsia.convert(tmp_path / "hf", tmp_path / "out", to="hf")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert_same(found, {"a": STATE["a.weight"], "b": STATE["a.bias"]})
    read = {i.name for i in report.plan.src.inventory if i.fate == "read"}
    assert read == {"part/x.safetensors", "y.safetensors", "model.safetensors.index.json"}


@pytest.mark.parametrize("lost", [False, True])
def test_numbered_files_may_lie_in_several_folders(tmp_path: Path, lost: bool) -> None:
    """The numbers of one set count across folders; one that the index does not name is missed."""
    files = ["a/model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"]
    files += [] if lost else ["b/model-00003-of-00003.safetensors"]
    for k, file in enumerate(files):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        save_file({f"x{k}": torch.full((2, 3), k + 1.0)}, tmp_path / file)
    index = {"weight_map": {f"x{k}": file for k, file in enumerate(files)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = intarsia.verify(tmp_path)
    assert [fault.kind for fault in found.faults] == ["file-missing"] * lost
    into = {f"x{k}": torch.zeros(2, 3) for k in range(len(files))}
    intarsia.load(tmp_path, into=into)
    assert [int(x[1, 2]) for x in into.values()] == [*range(1, len(files) + 1)]


def test_two_sets_of_one_name_in_two_folders_are_counted_apart(tmp_path: Path) -> None:
    files = [f"{at}/model-0000{k}-of-00002.safetensors" for at, k in (("a", 1), ("a", 2), ("b", 1))]
    for k, file in enumerate(files):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        save_file({f"x{k}": torch.full((2, 3), k + 1.0)}, tmp_path / file)
    index = {"weight_map": {f"x{k}": file for k, file in enumerate(files)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (fault,) = intarsia.verify(tmp_path).faults
    assert (fault.kind, fault.where) == ("file-missing", "b/model-00002-of-00002.safetensors")


@pytest.mark.parametrize("end", ["incomplete", "part", "aria2", "tmp"])
def test_a_file_that_is_half_downloaded_is_no_weights(tmp_path: Path, end: str) -> None:
    whole = write_hf(tmp_path / "whole", model(llama_config()), llama_config())
    file = whole / "model.safetensors"
    file.rename(f"{file}.{end}")
    for call in (intarsia.open, intarsia.verify):
        with pytest.raises(FormatError, match="a download may be unfinished"):
            call(whole)


def test_a_link_to_nothing_is_one_fault(tmp_path: Path) -> None:
    whole = write_hf(tmp_path / "whole", model(llama_config()), llama_config())
    (whole / "model.safetensors").unlink()
    (whole / "model.safetensors").symlink_to(tmp_path / "gone")
    (fault,) = intarsia.verify(whole).faults
    assert fault.kind == "file-missing"
