"""What modules keep beside their parameters, which Megatron stores as an object of each layer and expert.

    decoder.layers.mlp.linear_fc1._extra_state/shard_3_4      of the fourth of four layers

TransformerEngine keeps the history of FP8 there; with other modules, or without FP8, it is empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

from intarsia.errors import IntarsiaError
from intarsia.format.complaint import reported_elsewhere
from intarsia.format.megatron.common import read_state
from intarsia.format.torch_file.inert import InertTensor
from intarsia.format.torch_file.torch_frame import write_object
from intarsia.planning.manifest import Entry
from intarsia.store.reading.folder import Folder

_EMPTY = write_object([None])


def is_extra_state(name: str) -> bool:
    """Whether an entry of this name is what a module keeps beside its parameters."""
    return "._extra_state" in name


def empty_states(folder: Folder, objects: Mapping[str, Entry]) -> set[str]:
    """The extra states that hold None; many a small value takes as many bytes, so each is read."""
    files: dict[str, list[Entry]] = {}
    for o in objects.values():
        if is_extra_state(o.name) and o.length_bytes == len(_EMPTY):
            files.setdefault(o.file, []).append(o)
    found: set[str] = set()
    for file, held in files.items():
        wanted = [(o.start_bytes, memoryview(bytearray(o.length_bytes))) for o in held]
        with reported_elsewhere():
            folder.read_each(file, wanted)
        found |= {o.name for o, (_, data) in zip(held, wanted, strict=True) if data == _EMPTY}
    return found


def says_nothing(name: str, data: bytes) -> bool:
    """Whether an extra state is None, or the empty tensor that TransformerEngine gives without FP8."""
    try:
        value = read_state(data, name)
    except IntarsiaError:
        return False
    return value is None or (isinstance(value, InertTensor) and 0 in value.shape)


def extra_states(leading: Mapping[str, tuple[int, ...]]) -> dict[str, bytes]:
    """Empty objects for the modules that Megatron asks for an `_extra_state`.

    TransformerEngine's modules keep their FP8 history there, Megatron's own keep None, and a
    load fails where one is absent.  Stacked layers and experts have one each: `leading` gives
    the axes of them that the tensors of a checkpoint have.
    """
    found: dict[str, bytes] = {}
    for name, axes in leading.items():
        module, _, leaf = name.rpartition(".")
        if leaf not in ("weight", "layer_norm_weight") or _STATELESS.search(module):
            continue
        modules = [module]
        if _ATTENDING.search(module):
            modules.append(f"{module.rpartition('.')[0]}.core_attention")
        counts = axes or (1,)
        whole_ = ".".join(map(str, counts))
        for index in product(*map(range, counts)):
            for each in modules:
                found[f"{each}._extra_state/shard_{'.'.join(map(str, index))}_{whole_}"] = _EMPTY
    return found


_STATELESS = re.compile(r"(^|\.)(word_embeddings|position_embeddings|output_layer|router|conv1d)$")
_ATTENDING = re.compile(r"\.(linear_qkv|linear_kv_up_proj)$")
