"""The frame of a Megatron-LM checkpoint: the state that is not sharded.

    SAVE/latest_checkpointed_iteration.txt      "10", or "release"
    SAVE/iter_0000010/metadata.json             {"sharded_backend": "torch_dist", ...}
    SAVE/iter_0000010/common.pt                 arguments and counters, up to Megatron-core 0.16
    SAVE/iter_0000010/.metadata                 ... which later are the object `common_state/shard_0_1`

What is written has both homes of the common state, so that every Megatron reads it.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from zipfile import ZipFile, ZipInfo

from intarsia.errors import FormatError
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.megatron.frame import COMMON_FILE, COMMON_OBJECT
from intarsia.format.megatron.hybrid import gpt_arguments
from intarsia.format.torch_file.inert import Inert
from intarsia.format.torch_file.plain import number_in
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.planning.problem import FILE_LOST, Problem
from intarsia.store.reading.folder import Folder

RUN_CONFIG = "run_config.yaml"


def read_common(folder: Folder, metadata: Metadata) -> dict[str, Any]:
    """The state that is not sharded, as inert values."""
    if folder.has(COMMON_FILE):
        data, where = folder.read_all(COMMON_FILE), f"{folder.root / COMMON_FILE}"
    elif COMMON_OBJECT in metadata.objects:
        found = metadata.objects[COMMON_OBJECT]
        data = folder.read_small(*found.place)
        where = f"{folder.root / found.file} (`{COMMON_OBJECT}`)"
    else:
        raise FormatError(
            f"{folder.root} lacks {COMMON_FILE}, and its metadata holds no `{COMMON_OBJECT}`:"
            " arguments, iteration and parameter groups are lost",
            hint=f"restore {COMMON_FILE} from the save",
            kind=FILE_LOST,
        )
    state = read_state(data, where)
    if not isinstance(state, dict):
        raise FormatError("the common state is not a dictionary", at=where)
    return state


def lost_file(folder: Folder, metadata: Metadata) -> Iterator[Problem]:
    """The common file of a checkpoint that we wrote, which always has it, where only the same object is left."""
    found = metadata.objects.get(COMMON_OBJECT)
    if found is None or folder.has(COMMON_FILE):
        return
    if _OF_TORCH not in folder.read_small(*found.place):
        text = (
            f"{COMMON_FILE} is lost, which was written with this checkpoint: its state is read from"
            f" `{COMMON_OBJECT}` in {found.file}, which Megatron-core up to 0.16 does not read"
        )
        yield Problem(FILE_LOST, (COMMON_OBJECT,), (COMMON_FILE,), text)


_OF_TORCH = b"/.data/serialization_id"
"""A member of each archive that the torch of Megatron's later versions writes, and `archive` does not."""


def common_in(entries: Mapping[str, bytes]) -> dict[str, Any]:
    """The common state of `torch_dist` among entries, as inert values; empty where there is none."""
    data = entries.get(COMMON_OBJECT)
    state = None if data is None else read_state(data, COMMON_OBJECT)
    return state if isinstance(state, dict) else {}


def read_state(data: bytes, where: str) -> Any:
    """What an archive of the common state holds: a sharded object is saved as a list of one."""
    state = read_object(data, where)
    return state[0] if isinstance(state, list) and len(state) == 1 else state


def arguments_of(common: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of the run that saved a checkpoint, as plain fields: a HybridModel's as its GPTModel's."""
    args = common.get("args")
    return gpt_arguments(
        args.fields if isinstance(args, Inert) else args if isinstance(args, dict) else {}
    )


def counters_of(entries: Mapping[str, bytes]) -> dict[str, int | float]:
    """The counters in Megatron-Bridge's `train_state.pt`, under the names that Megatron-LM gives them."""
    state = read_object(entries[TRAIN_STATE], TRAIN_STATE) if TRAIN_STATE in entries else {}
    found: dict[str, int | float] = {}
    for name, value in state.items() if isinstance(state, dict) else ():
        if name in _COUNTERS and type(number := number_in(value)) in (int, float):
            found[_COUNTERS[name]] = number
    return found


TRAIN_STATE = "train_state.pt"
_COUNTERS = {
    "step": "iteration",
    "consumed_train_samples": "consumed_train_samples",
    "consumed_valid_samples": "consumed_valid_samples",
    "skipped_train_samples": "skipped_train_samples",
    "floating_point_operations_so_far": "num_floating_point_operations_so_far",
}


def read_run_config(folder: Folder) -> dict[str, Any]:
    """The model's settings in the `run_config.yaml` that Megatron-Bridge leaves behind: plain ones, lists
    of them, and functions by their names.
    """
    if not folder.has(RUN_CONFIG):
        return {}
    text = folder.read_all(RUN_CONFIG).decode("utf-8", "replace")
    section = re.search(r"^model:\n((?:[ -].*\n?|\n)*)", text, re.MULTILINE)
    found: dict[str, Any] = {}
    name = ""
    for line in section[1].splitlines() if section else ():
        if field := re.match(r"^  (\w+):(?: (\S.*))?$", line):
            name = field[1]
            if field[2] is not None:
                found[name] = _scalar(field[2])
        elif item := re.match(r"^  - (\S.*)$", line):
            found.setdefault(name, [])
            if isinstance(found[name], list):
                found[name].append(_scalar(item[1]))
        elif target := re.match(r"^    _target_: (\S+)$", line):
            found.setdefault(name, target[1])
    return found


def _scalar(word: str) -> Any:
    if word in _WORDS:
        return _WORDS[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word.strip("'\"")


_WORDS = {"null": None, "true": True, "false": False}


def whole_argument(args: Mapping[str, Any], name: str) -> int | None:
    """An argument that is a whole number, at least one."""
    value = args.get(name)
    return value if type(value) is int and value > 0 else None


def iteration_to_resume(said: Any) -> int:
    """The iteration that a common state or an entry says; Megatron takes zero for a damaged tracker."""
    return said if type(said) is int and 0 < said < 1 << 60 else 1


def common_state(
    args: Mapping[str, Any], iteration: int, optimizer: Mapping[Any, Any] | None
) -> dict[str, Any]:
    """The common state of a checkpoint that is written."""
    content: dict[str, Any] = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    state: dict[str, Any] = {
        "args": Namespace(**args),
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "num_floating_point_operations_so_far": 0,
        "content_metadata": content,
    }
    if optimizer is not None:
        content["distrib_optim_sharding_type"] = "fully_reshardable"
        state["optimizer"] = dict(optimizer)
    return state


def archive(state: Any) -> bytes:
    """A `torch.save` archive of plain values, namespaces and `tensor_of_one`, equal for equal states."""
    numbers: list[bytes] = []

    def tensor(found: re.Match[bytes]) -> bytes:
        key = str(len(numbers)).encode()
        numbers.append(struct.pack("<f", float(found[1])))
        return _TENSOR % (len(key).to_bytes(4, "little") + key)

    members = [("data.pkl", _NUMBER.sub(tensor, pickle.dumps(state, 2)))]
    members += [(f"data/{k}", data) for k, data in enumerate(numbers)]
    out = io.BytesIO()
    with ZipFile(out, "w") as file:
        for name, data in (*members, ("byteorder", b"little"), ("version", b"3\n")):
            file.writestr(ZipInfo(f"archive/{name}"), data)
    return out.getvalue()


def tensor_of_one(number: float) -> str:
    """What `archive` writes as torch's tensor of one fp32 number: torch itself need not be there."""
    return f"\0tensor of {number!r}\0"


_NUMBER = re.compile(rb"X.{4}\0tensor of ([-+.\dainfe]+)\0", re.DOTALL)
"""The text of `tensor_of_one` in a pickle."""

_TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX%bX\3\0\0\0cpuK\1tQ"
    b"K\0K\1\x85K\1\x85\x89ccollections\nOrderedDict\n)RtR"
)
"""The same place in the pickle that torch reads a tensor from."""


def note_on_loading(entries: Iterable[str], trained: bool = True) -> Iterator[str]:
    """The options without which Megatron-LM asks a checkpoint for what it does not hold, and stops."""
    lacking = {} if trained else {"no optimizer state": "--no-load-optim"}
    if not any(name.startswith("rng_state") for name in entries):
        lacking["no random states of this mesh"] = "--no-load-rng"
    if lacking:
        yield f"it holds {' and '.join(lacking)}: load it in Megatron-LM with {' '.join(lacking.values())}"


def note_on_queries(names: Iterable[str]) -> Iterator[str]:
    """A note where queries of latent attention have no norm, which later versions ask for with that of keys and values."""
    ends = {".".join(name.rsplit(".", 2)[-2:]) for name in names}
    if "linear_q_proj.weight" in ends and ends & _NORMS_OF_LATENTS:
        yield (
            "queries of this model have no norm (q_lora_rank is null), and its keys and values have one, of which"
            " Megatron-core 0.19 and later builds both or neither: with --qk-layernorm it asks TransformerEngine's"
            " layers for `linear_q_proj.layer_norm_weight` too, and refuses its own (--transformer-impl local); without"
            " it, it leaves out the norm that the model has; train it with an earlier Megatron-core"
        )


_NORMS_OF_LATENTS = {"linear_kv_up_proj.layer_norm_weight", "kv_layernorm.weight"}
