"""Kinds of checkpoints that are recognised and not read: what each is, and the step that leads here.

A kind is recognised by bytes or file names that no other kind has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from intarsia.format.hf.weight_sets import stem_of_index
from intarsia.frozen import frozen
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import is_file, is_folder, names_like

_LOOKED_BYTES = 64 << 10
_LOOKED_FILES = 200


@frozen
class Foreign:
    """A kind of checkpoint, and what makes one that is read of it; `{path}` stands for the path, `{folder}` for its folder."""

    name: str
    remedy: str

    def next_step(self, path: PurePath) -> str:
        folder = path if is_folder(path) else path.parent
        inside = {"folder": folder, "parent": folder.parent, "name": folder.name}
        return self.remedy.format(path=path, file=path.name, **inside)


_TORCH_LOAD = 'intarsia.save("OUT", torch.load("{path}", weights_only=True)'
_NUMPY = "and write its arrays with safetensors.numpy.save_file under the names of the Transformers model"

PICKLED_MODEL = Foreign(
    "weights of Transformers in a pickle (pytorch_model.bin)",
    'AutoModelForCausalLM.from_pretrained("{path}").save_pretrained("OUT"), or the same of the'
    " model's own class, writes safetensors",
)
PICKLED_WEIGHTS = Foreign(
    "weights in a pickle, without a model configuration",
    'intarsia.save("OUT", torch.load("{path}/FILE", weights_only=True)), where FILE is the .bin file'
    ' of the weights; with the optimizer\'s, {{**torch.load(…), "optimizer": torch.load(…)}}',
)
PICKLED_SHARDS = Foreign(
    "weights in several pickles, each with a part of the model",
    'intarsia.save("OUT", {{name: x for file in glob.glob("{folder}/*-of-*.bin") for name, x in'
    " torch.load(file, weights_only=True).items()}}) puts them together",
)
TORCH_PICKLE = Foreign(
    "a pickle that torch.save wrote",
    _TORCH_LOAD + ") makes a checkpoint of a file that holds a state dict; of one section of a"
    ' larger file: …["model"]), or as its key is called (Lightning: ["state_dict"])',
)
PICKLE = Foreign(
    "a Python pickle",
    "load it in the program that wrote it, and save the tensors with intarsia.save",
)
TORCH_SCRIPT = Foreign(
    "a TorchScript program", 'intarsia.save("OUT", torch.jit.load("{path}").state_dict())'
)
GGUF = Foreign(
    "a GGUF file (llama.cpp)",
    'take the checkpoint that it was made from; else AutoModelForCausalLM.from_pretrained("{folder}",'
    ' gguf_file="{file}").save_pretrained("OUT") in Transformers, which dequantises it',
)
HDF5 = Foreign("an HDF5 file, as Keras writes it", f"read it with keras or h5py, {_NUMPY}")
NUMPY = Foreign("NumPy arrays", f'read it with numpy.load("{{path}}"), {_NUMPY}')
FLAX = Foreign(
    "Flax weights in msgpack",
    'with Transformers 4: AutoModelForCausalLM.from_pretrained("{folder}", from_flax=True).save_pretrained("OUT")',
)
ONNX = Foreign("an ONNX program", "take the checkpoint that it was exported from")
NEMO_1 = Foreign(
    "a NeMo archive (.nemo)",
    "convert it with the script of its family in NeMo's scripts/checkpoint_converters"
    " (convert_*_nemo_to_hf.py)",
)
NEMO_2 = Foreign(
    "a NeMo 2 checkpoint (weights/ and context/)",
    'nemo.collections.llm.export_ckpt(path="{path}", target="hf", output_path="OUT")',
)
LFS = Foreign("a Git LFS pointer, not the file itself", "run `git lfs pull` in {folder}")
INDEX = Foreign("an index of safetensors files", "give the folder that it lies in: {folder}")
DATA_FILE = Foreign(
    "one data file of a torch.distributed.checkpoint", "give the folder with .metadata: {folder}"
)
NO_METADATA = Foreign(
    "a torch.distributed.checkpoint without .metadata, which says what lies where",
    "restore .metadata from where it was saved; a save that was cut off never had one",
)
RANKS_METADATA = Foreign(
    "a torch.distributed.checkpoint with metadata of each rank's own (use_collectives=False)",
    "load it with dcp.load on as many ranks as saved it, and save it again without use_collectives=False",
)
ZERO = Foreign(
    "a DeepSpeed ZeRO checkpoint",
    "`python -m deepspeed.utils.zero_to_fp32 {parent} OUT --tag {name} --safe_serialization` (or the"
    " zero_to_fp32.py that DeepSpeed leaves there) writes fp32 safetensors; of a model with tied weights,"
    ' which that refuses, intarsia.save("OUT", get_fp32_state_dict_from_zero_checkpoint("{parent}", "{name}"))'
    " with a function of the same module makes a checkpoint; optimizer state stays behind",
)
DEEPSPEED = Foreign(
    "a DeepSpeed checkpoint without ZeRO",
    'intarsia.save("OUT", torch.load("{folder}/mp_rank_00_model_states.pt", weights_only=False)["module"]),'
    " where you trust the file",
)
DEEPSPEED_UNIVERSAL = Foreign(
    "a DeepSpeed universal checkpoint",
    "make one that is read of the checkpoint that ds_to_universal made it of: `python -m"
    " deepspeed.utils.zero_to_fp32 RUN OUT --tag STEP --safe_serialization`, which refuses tied weights;"
    ' with these, intarsia.save("OUT", get_fp32_state_dict_from_zero_checkpoint("RUN", "STEP")) of that module',
)
DEEPSPEED_PARTS = Foreign(
    "a DeepSpeed checkpoint whose model is in several files (of experts, stages or model-parallel ranks)",
    "load it in the program that saved it, and save the whole model with intarsia.save: no one file"
    " holds it, and zero_to_fp32 does not join them",
)
VERL = Foreign(
    "a verl checkpoint with one pickle for each rank",
    "`python -m verl.model_merger merge --backend fsdp --local_dir {folder} --target_dir OUT`",
)
ACCELERATE_RANKS = Foreign(
    "an accelerate FSDP checkpoint with one pickle for each rank (use_dcp=False, LOCAL_STATE_DICT)",
    "load it with accelerator.load_state on the same ranks, and save it with"
    " fsdp_state_dict_type SHARDED_STATE_DICT and use_dcp=True, which is read",
)
MEGATRON = Foreign(
    "a Megatron-LM checkpoint with one pickle for each model-parallel rank (format `torch`)",
    "load and save it once with Megatron's --ckpt-convert-format torch_dist",
)
MEGATRON_RANK = Foreign(
    "one model-parallel rank's pickle of a Megatron-LM checkpoint (format `torch`)", MEGATRON.remedy
)
MEGATRON_LOCAL = Foreign(
    "Megatron-LM's local checkpoint, one pickle for each rank (--non-persistent-ckpt-type local)",
    "resume from it on the same ranks, and save with --save and --ckpt-format torch_dist, which is read",
)
MEGATRON_ZARR = Foreign(
    "a Megatron-LM checkpoint of the backend zarr, with one folder for each tensor",
    "load it with a Megatron-LM that has this backend still, and save with --ckpt-format torch_dist",
)
MEGATRON_COMMON = Foreign(
    "the common state of a Megatron-LM checkpoint (common.pt) without its tensors",
    "restore .metadata and the *.distcp files from where they were saved",
)
META = Foreign(
    "Meta's own Llama files (consolidated.*.pth)",
    "take the Transformers files of the model from the hub, or convert with Transformers 4: python -m"
    " transformers.models.llama.convert_llama_weights_to_hf --input_dir {folder} --output_dir OUT",
)
ORBAX = Foreign(
    "an Orbax checkpoint (JAX)",
    f'restore it with orbax.checkpoint.PyTreeCheckpointer().restore("{{folder}}"), {_NUMPY}',
)
TENSORFLOW = Foreign(
    "a TensorFlow checkpoint", f'read it with tf.train.load_checkpoint("{{path}}"), {_NUMPY}'
)
SAVED_MODEL = Foreign(
    "a TensorFlow SavedModel", f'read it with tf.saved_model.load("{{folder}}"), {_NUMPY}'
)
NO_WEIGHTS = Foreign(
    "a model's configuration and no weights",
    "give the folder that holds the *.safetensors files too; a download may be unfinished",
)

_BY_NAMES = (
    (r"(layer_\d+_)?expert_\d+_mp_rank_\d+_model_states\.pt|expp_rank_\d+_mp_rank_\d+_optim_states\.pt", DEEPSPEED_PARTS),
    (r"layer_\d+-model_\d+-model_states\.pt|((bf16_)?zero_pp_rank_\d+_)?mp_rank_(?!00_)\d+_(optim|model)_states\.pt", DEEPSPEED_PARTS),
    (r"(bf16_)?zero_pp_rank_\d+_mp_rank_\d+_(optim|model)_states\.pt", ZERO),
    (r"mp_rank_\d+_model_states\.pt", DEEPSPEED),
    (r"model_world_size_\d+_rank_\d+\.pt", VERL),
    (r"pytorch_model_fsdp(_\d+)?_rank\d+\.bin", ACCELERATE_RANKS),
    (r"iter_\d{7,}_\d+_local\.pt", MEGATRON_LOCAL),
    (r"model_(optim_)?rng\.pt|distrib_optim\.pt", MEGATRON_RANK),
    (r"__\d+\.metadata", RANKS_METADATA),
    (r"_CHECKPOINT_METADATA|manifest\.ocdbt|ocdbt\.process_\d+", ORBAX),
    (r"pytorch_model(\.[^.]+)?\.bin|pytorch_model.*\.bin\.index(\..+)?\.json|pytorch_model-\d+-of-\d+\.bin", PICKLED_MODEL),
    (r"pytorch_model_fsdp(_\d+)?\.bin", PICKLED_WEIGHTS),
    (r"adapter_model\.bin", Foreign("a PEFT adapter in a pickle (adapter_model.bin)",
        'PeftModel.from_pretrained(base, "{folder}").save_pretrained("OUT") in PEFT writes safetensors')),
    (r"consolidated\.\d+\.pth", META),
    (r"flax_model.*\.msgpack", FLAX),
    (r"saved_model\.pb", SAVED_MODEL),
    (r".+\.data-\d{5}-of-\d{5}", TENSORFLOW),
)  # fmt: skip
"""File names that one framework alone writes."""

_SHARD = re.compile(r"pytorch_model-\d+-of-\d+\.bin")
_PICKLED = (PICKLED_MODEL, PICKLED_WEIGHTS)
_BY_FOLDER = (ZERO, DEEPSPEED, DEEPSPEED_PARTS)
"""Kinds that a file alone does not tell: what lies beside it does."""

_HEADS = (
    (b"GGUF", GGUF),
    (b"\x89HDF\r\n\x1a\n", HDF5),
    (b"\x93NUMPY", NUMPY),
    (b"version https://git-lfs", LFS),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", TORCH_PICKLE),
)
"""How files of one kind alone begin."""


def recognise(path: PurePath) -> tuple[PurePath, Foreign] | None:
    """What a path is that is not read, and the path that it is; None where that is not known."""
    if is_file(path):
        found = _of_file(path)
        return (path, found) if found else None
    names = [p.name for p in names_like(path)]
    if found := _of_names(path, names):
        return path, found
    held = [p for p in names_like(path) if is_file(p) and not p.name.startswith(".")]
    kinds = [(p, kind) for p in held[:_LOOKED_FILES] if (kind := _of_file(p)) is not None]
    if kinds:
        return kinds[0]
    for below in names_like(path):
        if is_folder(below) and (found := _of_names(below, [p.name for p in names_like(below)])):
            return below, found
    return (path, NO_WEIGHTS) if "config.json" in names else None


def is_megatron_rank(folder: PurePath) -> bool:
    """Whether a folder is one model-parallel rank's of Megatron's format `torch`."""
    names = ("model_optim_rng.pt", "model_rng.pt", "distrib_optim.pt")
    return any(is_file(folder / name) for name in names)


def _of_names(folder: PurePath, names: Iterable[str]) -> Foreign | None:
    """What a folder is by the names in it."""
    present = list(names)
    if "zero" in present and any(is_file(p / "fp32.pt") for p in names_like(folder / "zero")):
        return DEEPSPEED_UNIVERSAL
    for pattern, kind in _BY_NAMES:
        if any(re.fullmatch(pattern, name) for name in present):
            if kind is PICKLED_MODEL and "config.json" not in present:
                return PICKLED_SHARDS if any(map(_SHARD.fullmatch, present)) else PICKLED_WEIGHTS
            return kind
    if ".metadata" not in present and any(n.endswith(".distcp") for n in present):
        return NO_METADATA
    if {"common.pt", "metadata.json"} <= set(present):
        arrays = any(is_file(p / ".zarray") for p in names_like(folder))
        return MEGATRON_ZARR if arrays else MEGATRON_COMMON
    if {"weights", "context"} <= set(present) and is_folder(folder / "weights"):
        return NEMO_2
    if any(n.startswith("mp_rank_") and is_megatron_rank(folder / n) for n in present):
        return MEGATRON
    return None


def _of_file(path: PurePath) -> Foreign | None:
    """What a file is by its bytes, or by a name that one framework alone writes."""
    for pattern, kind in _BY_NAMES:
        if kind not in _PICKLED and re.fullmatch(pattern, path.name):
            beside = [p.name for p in names_like(path.parent)] if kind in _BY_FOLDER else []
            return _of_names(path.parent, beside or [path.name])
    if _SHARD.fullmatch(path.name):
        return PICKLED_SHARDS
    if stem_of_index(path.name):
        return INDEX
    if path.suffix == ".distcp":
        return DATA_FILE
    with Folder(path.parent) as folder:
        size = folder.size(path.name)
        looked = min(size, _LOOKED_BYTES)
        head = folder.read(path.name, 0, looked)
        tail = folder.read(path.name, size - looked, looked)
    for start, kind in _HEADS:
        if head.startswith(start):
            return kind
    if head.startswith(b"PK\x03\x04"):
        return _of_archive(head + tail)
    if path.suffix == ".nemo" or (head[257:262] == b"ustar" and b"model_config.yaml" in head):
        return NEMO_1
    if len(head) > 2 and head[0] == 0x80 and head[1] in (2, 3, 4, 5) and tail.endswith(b"."):
        return PICKLE
    return {".onnx": ONNX, ".msgpack": FLAX}.get(path.suffix)


def _of_archive(seen: bytes) -> Foreign | None:
    """What a zip archive is by the names in it."""
    if b"/code/__torch__" in seen or b"constants.pkl" in seen:
        return TORCH_SCRIPT
    if b"data.pkl" in seen:
        return TORCH_PICKLE
    if b"model.weights.h5" in seen:
        return HDF5
    return NUMPY if b".npy" in seen else None
