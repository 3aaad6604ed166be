"""Folders that hold several checkpoints, and checkpoints of kinds that are not read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import intarsia
from tests.checkpoints import write_dcp, write_hf
from tests.refusals.case import refusal

TENSORS = {"a": torch.ones(2)}


def named(folder: Path, *names: str) -> Path:
    """A folder of empty files."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


def adapter(folder: Path, rank: int = 4, **config: object) -> Path:
    """A LoRA adapter as PEFT saves it."""
    folder.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {f"{name}.lora_A.weight": torch.ones(4, 8), f"{name}.lora_B.weight": torch.ones(8, 4)}
    save_file(factors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder


@refusal("An adapter's configuration in place of a model's", area="folders")
def adapters_configuration(tmp: Path) -> None:
    source = write_dcp(tmp / "saved", TENSORS)
    intarsia.open(source, adapter(tmp / "adapter") / "adapter_config.json")


@refusal("A run with two series of checkpoints", area="folders")
def two_series(tmp: Path) -> None:
    for name in ("step-100", "step-200", "ema-200"):
        write_dcp(tmp / "run" / name, TENSORS)
    intarsia.open(tmp / "run")


@refusal("Numbered folders that count no time", area="folders")
def folds(tmp: Path) -> None:
    for name in ("fold_1", "fold_2"):
        write_dcp(tmp / "run" / name, TENSORS)
    intarsia.open(tmp / "run")


@refusal("One file of several", area="folders")
def one_file(tmp: Path) -> None:
    src = write_hf(tmp / "model", {"a": torch.ones(2), "b": torch.ones(2)}, files=2)
    intarsia.convert(src / "model-00001-of-00002.safetensors", tmp / "out", to="dcp")


@refusal("A run without a whole checkpoint", area="folders")
def none_whole(tmp: Path) -> None:
    for name in ("step-100", "step-200"):
        data = next(write_dcp(tmp / "run" / name, TENSORS).glob("*.distcp"))
        data.unlink()
    intarsia.open(tmp / "run")


@refusal("A folder with checkpoints below it", area="folders")
def below(tmp: Path) -> None:
    for name in ("best", "last"):
        write_dcp(tmp / "run" / name, TENSORS)
    intarsia.open(tmp / "run")


@refusal("A checkpoint whose tracker names another", area="folders")
def tracker_contradicts(tmp: Path) -> None:
    write_hf(tmp / "run", TENSORS)
    write_dcp(tmp / "run" / "step-5", TENSORS)
    (tmp / "run" / "latest").write_text("step-5")
    intarsia.open(tmp / "run")


@refusal("A tracker that names a checkpoint that is gone", area="folders")
def latest_is_gone(tmp: Path) -> None:
    write_dcp(tmp / "run" / "step-5", TENSORS)
    (tmp / "run" / "latest").write_text("step-6")
    intarsia.open(tmp / "run")


@refusal("Megatron's tracker names an iteration that is gone", area="folders")
def iteration_is_gone(tmp: Path) -> None:
    write_dcp(tmp / "run" / "iter_0000010", TENSORS)
    (tmp / "run" / "latest_checkpointed_iteration.txt").write_text("20")
    intarsia.open(tmp / "run")


@refusal("A model of the hub's cache with several snapshots", area="folders")
def snapshots(tmp: Path) -> None:
    for name in ("0a1b", "2c3d"):
        write_hf(tmp / "models--a--b" / "snapshots" / name, TENSORS)
    (tmp / "models--a--b" / "blobs").mkdir()
    intarsia.open(tmp / "models--a--b")


@refusal("Several sets of weights in one folder", area="folders")
def several_sets(tmp: Path) -> None:
    for name in ("model.fp16", "model.bf16"):
        save_file(TENSORS, tmp / f"{name}.safetensors")
    intarsia.open(tmp)


@refusal("Two checkpoints in one folder", area="folders")
def two_checkpoints(tmp: Path) -> None:
    write_dcp(tmp / "model", TENSORS)
    save_file(TENSORS, tmp / "model" / "model.safetensors")
    intarsia.open(tmp / "model")


@refusal("A Git LFS pointer", area="folders")
def lfs_pointer(tmp: Path) -> None:
    write_hf(tmp / "model", TENSORS)
    (tmp / "model" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    intarsia.open(tmp / "model")


@refusal("An archive whose header is damaged", area="folders")
def damaged_header(tmp: Path) -> None:
    src = write_dcp(tmp / "model", TENSORS)
    file = next(src.glob("*.distcp"))
    data = bytearray(file.read_bytes())
    data[data.index(b"archive/data/0") - 2] ^= 1  # the length of what lies before the elements
    file.write_bytes(data)
    intarsia.convert(src, tmp / "out", to="hf")


@refusal("accelerate's state of two models", area="folders")
def two_models(tmp: Path) -> None:
    for k in (0, 1):
        write_dcp(tmp / "state" / f"pytorch_model_fsdp_{k}", {"model": TENSORS})
    intarsia.open(tmp / "state")


@refusal("accelerate's state whose optimizer was not finished", area="folders")
def unfinished_optimizer(tmp: Path) -> None:
    write_dcp(tmp / "state" / "pytorch_model_fsdp_0", {"model": TENSORS})
    named(tmp / "state" / "optimizer_0", "__0_0.distcp")
    intarsia.open(tmp / "state")


@refusal("A PEFT adapter as a model of Megatron's", area="adapters")
def adapter_to_megatron(tmp: Path) -> None:
    intarsia.convert(adapter(tmp / "adapter"), tmp / "out", to="torch_dist")


@refusal("A PEFT adapter of another rank than its configuration", area="adapters")
def adapter_rank(tmp: Path) -> None:
    intarsia.open(adapter(tmp / "adapter", rank=16))


@refusal("A PEFT adapter under names that PEFT does not look for", area="adapters")
def adapter_names(tmp: Path) -> None:
    file = adapter(tmp / "adapter") / "adapter_model.safetensors"
    save_file({name.split(".", 2)[2]: x for name, x in load_file(file).items()}, file)
    intarsia.open(tmp / "adapter")


@refusal("A PEFT adapter without its configuration", area="adapters")
def adapter_alone(tmp: Path) -> None:
    (adapter(tmp / "adapter") / "adapter_config.json").unlink()
    intarsia.open(tmp / "adapter")


@refusal("DeepSpeed ZeRO", area="other kinds")
def deepspeed(tmp: Path) -> None:
    names = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    named(tmp / "run", "zero_to_fp32.py", *(f"global_step10/{name}" for name in names))
    (tmp / "run" / "latest").write_text("global_step10")
    intarsia.open(tmp / "run")


@refusal("DeepSpeed without ZeRO", area="other kinds")
def deepspeed_plain(tmp: Path) -> None:
    intarsia.open(named(tmp / "global_step10", "mp_rank_00_model_states.pt"))


@refusal("verl", area="other kinds")
def verl(tmp: Path) -> None:
    intarsia.open(named(tmp / "actor", "model_world_size_2_rank_0.pt", "fsdp_config.json"))


@refusal("accelerate FSDP with one pickle for each rank", area="other kinds")
def accelerate_ranks(tmp: Path) -> None:
    intarsia.open(named(tmp / "state", "pytorch_model_fsdp_0_rank0.bin"))


@refusal("Megatron-LM's format `torch`", area="other kinds")
def megatron(tmp: Path) -> None:
    intarsia.open(named(tmp / "iter_0000010", "mp_rank_00/model_optim_rng.pt"))


@refusal("NeMo 2", area="other kinds")
def nemo_2(tmp: Path) -> None:
    intarsia.open(named(tmp / "model", "weights/.metadata", "context/model.yaml"))


@refusal("NeMo 1", area="other kinds")
def nemo_1(tmp: Path) -> None:
    intarsia.open(named(tmp, "model.nemo") / "model.nemo")


@refusal("GGUF", area="other kinds")
def gguf(tmp: Path) -> None:
    (tmp / "model.gguf").write_bytes(b"GGUF\x03\0\0\0")
    intarsia.open(tmp / "model.gguf")


@refusal("pytorch_model.bin", area="other kinds")
def pickled_model(tmp: Path) -> None:
    intarsia.open(named(tmp / "model", "config.json", "pytorch_model.bin"))


@refusal("A file that torch.save wrote", area="other kinds")
def torch_pickle(tmp: Path) -> None:
    torch.save(TENSORS, tmp / "model.pt")
    intarsia.open(tmp / "model.pt")


@refusal("A Python pickle", area="other kinds")
def plain_pickle(tmp: Path) -> None:
    (tmp / "model.pkl").write_bytes(pickle.dumps({"a": 1}))
    intarsia.open(tmp / "model.pkl")


@refusal("Meta's Llama files", area="other kinds")
def meta(tmp: Path) -> None:
    intarsia.open(named(tmp / "original", "consolidated.00.pth", "params.json"))


@refusal("Orbax", area="other kinds")
def orbax(tmp: Path) -> None:
    intarsia.open(named(tmp / "checkpoint", "_CHECKPOINT_METADATA", "manifest.ocdbt"))


@refusal("TensorFlow", area="other kinds")
def tensorflow(tmp: Path) -> None:
    intarsia.open(named(tmp / "model", "checkpoint", "a.index", "a.data-00000-of-00001"))


@refusal("Flax", area="other kinds")
def flax(tmp: Path) -> None:
    intarsia.open(named(tmp / "model", "config.json", "flax_model.msgpack"))


@refusal("Keras, HDF5", area="other kinds")
def keras(tmp: Path) -> None:
    (tmp / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    intarsia.open(tmp / "model.h5")


@refusal("NumPy", area="other kinds")
def numpy(tmp: Path) -> None:
    np.save(tmp / "a.npy", np.ones(2))
    intarsia.open(tmp / "a.npy")


@refusal("A configuration without weights", area="other kinds")
def no_weights(tmp: Path) -> None:
    intarsia.open(named(tmp / "model", "config.json", "tokenizer.json"))


@refusal("Safetensors of an element type that torch does not have", area="folders")
def six_bits(tmp: Path) -> None:
    header = json.dumps({"x": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    (tmp / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    intarsia.open(tmp)
