"""Every file of a checkpoint's folder: read, copied as it is, or left out for a reason.

Roles come from names that only one framework writes.  State of a trainer lies in pickles that
number the parameters of the model, so it is copied whole, and only where these stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import PurePath, PurePosixPath

from intarsia.format.base import Format
from intarsia.format.folder.side_files import DIGESTS, HEADERS, MAX_SIDE_BYTES
from intarsia.format.hf.files import OPTIMIZER
from intarsia.format.hf.weight_sets import ADAPTER, index_of, stem_of_file, stem_of_index
from intarsia.format.megatron.frame import COMMON_FILE, home_of
from intarsia.frozen import frozen
from intarsia.planning.inventory import Fate, InventoryItem, Role
from intarsia.planning.manifest import Manifest, SideFile
from intarsia.quantity import human
from intarsia.store.address import named
from intarsia.store.reading.lookup import (
    everything_in,
    is_file,
    is_folder,
    is_link,
    names_like,
    size_of,
)


@frozen
class _Kind:
    """Files whose name says what they are; without a reason they are copied."""

    pattern: re.Pattern[str]
    role: Role
    why: str = ""


def _kind(pattern: str, role: Role, why: str = "") -> _Kind:
    return _Kind(re.compile(pattern), role, why)


TRAINING = (
    _kind(r"optimizer(_\d+)?\.(pt|bin)", Role.OPTIMIZER),
    _kind(r"(scheduler|sampler|dl_state_dict)(_\d+)?\.(pt|bin)", Role.TRAINING),
    _kind(r"scaler\.pt", Role.TRAINING),
    _kind(r"rng_state(_\d+)?\.pth", Role.TRAINING),
    _kind(r"random_states_\d+\.pkl", Role.TRAINING),
    _kind(r"custom_checkpoint_\d+\.pkl", Role.TRAINING),
    _kind(r"trainer_state\.json", Role.TRAINING),
    _kind(r"training_args\.bin", Role.TRAINING),
    # FSDP goes on from these weights, not from those of model.safetensors beside them.
    _kind(r"pytorch_model_fsdp(_\d+)?\.bin", Role.TRAINING),
)
"""What Trainer and accelerate keep beside a model, to go on with its training."""

_MADE_ANEW = {
    DIGESTS: "digests of these files; the result gets its own",
    HEADERS: "what headers of safetensors files say; read, and written with the result",
}

_FILES = (
    _kind(r"latest|latest_universal|latest_checkpointed_iteration\.txt", Role.TRAINING,
          "names a checkpoint of the run that it lies in"),
    _kind(r"zero_to_(fp32|torch)\.py", Role.TRAINING, "a script for DeepSpeed's files, which are not carried"),
    _kind(r"pytorch_model.*\.bin(\.index(\..+)?\.json)?", Role.OTHER_MODEL,
          "weights in a pickle, beside the files that were read"),
    _kind(r".*\.(tmp|lock|partial|incomplete)", Role.UNKNOWN, "a temporary file"),
    _kind(r".*\.(gguf|onnx|onnx_data|h5|keras|msgpack|tflite|mlmodel|ot|nemo|engine)", Role.OTHER_MODEL,
          "weights of another kind, beside the files that were read"),
    _kind(r".*\.(pt|pth|bin|ckpt|pkl|pickle|npy|npz|distcp)", Role.UNKNOWN,
          "tensors or a pickle that no part of the checkpoint names"),
    _kind(r"\..*", Role.UNKNOWN, "a hidden file"),
)  # fmt: skip

_FOLDERS = (
    _kind(r"(checkpoint|step|epoch)[-_]?\d+|iter_\d+|global_step_\d+|release", Role.OTHER_MODEL,
          "another checkpoint; give its folder to take it"),
    _kind(r"global_step\d+", Role.OPTIMIZER, "DeepSpeed's own state, which is not read"),
    _kind(r"optimizer_\d+", Role.OPTIMIZER, "accelerate's sharded state, which no model beside it is of"),
    _kind(r"original", Role.OTHER_MODEL, "the weights as their maker published them, beside the files that were read"),
    _kind(r"(onnx|openvino|coreml|gguf|metal|tensorrt).*", Role.OTHER_MODEL,
          "weights of another kind, beside the files that were read"),
    _kind(r"\..*", Role.UNKNOWN, "a hidden folder"),
)  # fmt: skip

_TEMPLATES = "additional_chat_templates"
CARRIED_WHERE_EQUAL = "with the weights, where names, shapes and element types stay (hf to hf)"
NOT_CARRIED = "state of the trainer that wrote the folder, kept from hf to hf alone"


def with_files(manifest: Manifest, given: PurePath, format: Format) -> Manifest:
    """The manifest with every file of its folder in the inventory, and what is copied as its sides.

    `given` is what the user named: the checkpoint, or the folder of a run that it lies in.
    """
    root = named(manifest.path)
    if not is_folder(root):
        item = InventoryItem("file", root.name, Role.MODEL, Fate.READ, nbytes=size_of(root))
        return replace(manifest, inventory=(*manifest.inventory, item))
    said = {item.name for item in manifest.inventory if item.kind == "file"}
    found = items_in(root, said | _read_names(manifest, format), trains=format.trainer_files)
    items = [item for item in found if item.name not in said]
    sides = {side.name: side for side in _sides(root, items)}
    above: list[InventoryItem] = []
    if format.one_below and home_of(root) == root.parent:
        # The checkpoints of a run share what lies beside them.
        above = [i for i in items_in(root.parent, (), trains=False) if i.name != root.name]
        above = [i for i in above if not format.is_frame(i.name)]
        sides |= {side.name: side for side in _sides(root.parent, above)}
        if given != root.parent:
            above = [i for i in above if i.fate is Fate.COPIED]
    elif given == root.parent:
        above = [_beside(i) for i in items_in(given, (), trains=False) if i.name != root.name]
    items += [replace(item, name=f"../{item.name}") for item in above]
    if not (format.header_metadata and format.sharded):
        why = "what headers of safetensors files said, which is read beside sharded tensors alone"
        unread = {HEADERS, f"../{HEADERS}"}
        items = [replace(x, fate=Fate.LEFT_OUT, why=why) if x.name in unread else x for x in items]
    return replace(manifest, inventory=(*manifest.inventory, *items), sides=tuple(sides.values()))


def with_header_metadata(manifest: Manifest, writer: Format) -> Manifest:
    """The manifest with what headers of safetensors files say in the inventory, where a format does not keep it."""
    if writer.header_metadata:
        return manifest
    why = f"said by headers of safetensors files, for which {writer.name} has no place"
    keys = (
        InventoryItem("metadata", key, Role.SIDE, Fate.LEFT_OUT, why) for key in manifest.metadata
    )
    return replace(manifest, inventory=(*manifest.inventory, *keys))


def _read_names(manifest: Manifest, format: Format) -> set[str]:
    """The files that a checkpoint was read from, headers included."""
    held = (path.name for path in names_like(named(manifest.path)))
    entries = (entry.file for entry in manifest.entries.values())
    return {*manifest.files, *entries, *filter(format.is_frame, held)}


def _beside(item: InventoryItem) -> InventoryItem:
    """A part of a run's folder, where one checkpoint of the folder was taken."""
    if item.fate is not Fate.COPIED:
        return item
    return replace(item, fate=Fate.LEFT_OUT, why="in the folder of the run, beside the checkpoint")


def items_in(root: PurePath, read: Collection[str], *, trains: bool) -> Iterator[InventoryItem]:
    """The files and subfolders of a folder, those of `read` among them.

    `trains` says that state of Trainer's or accelerate's may be copied with the weights.
    """
    inside = {PurePosixPath(file).parts[0] for file in read}
    present = {path.name for path in names_like(root)}
    for path in names_like(root):
        if path.name in inside and is_folder(path):
            yield from _in_read_folder(root, path, read)
        elif path.name == _TEMPLATES and is_folder(path):
            yield from _templates(root, path)
        elif path.name in read:
            role = Role.TRAINING if path.name == COMMON_FILE else Role.MODEL
            yield InventoryItem("file", path.name, role, Fate.READ, nbytes=size_of(path))
        else:
            yield _item(path, present, read, trains=trains)


def _templates(root: PurePath, folder: PurePath) -> Iterator[InventoryItem]:
    """The chat templates of a folder, which are copied, and what else lies there."""
    for path in everything_in(folder):
        copied = path.parent == folder and path.name.endswith(".jinja")
        fate, why = (Fate.COPIED, "") if copied else (Fate.LEFT_OUT, "no chat template")
        if not is_folder(path):
            name = str(PurePosixPath(path.relative_to(root)))
            yield InventoryItem("file", name, Role.SIDE, fate, why, _size(path))


def _in_read_folder(
    root: PurePath, folder: PurePath, read: Collection[str]
) -> Iterator[InventoryItem]:
    role = Role.OPTIMIZER if folder.name.startswith(OPTIMIZER) else Role.MODEL
    for path in everything_in(folder):
        name = str(PurePosixPath(path.relative_to(root)))
        if name in read or _heads(name, read):
            yield InventoryItem("file", name, role, Fate.READ, nbytes=size_of(path))
        elif not is_folder(path):
            why = "beside the files that were read"
            yield InventoryItem("file", name, Role.UNKNOWN, Fate.LEFT_OUT, why, _size(path))


def _heads(name: str, read: Collection[str]) -> bool:
    """Whether a file says what others hold that were read beside it."""
    path = PurePosixPath(name)
    stem = stem_of_index(path.name)
    if stem is None and path.name != ".metadata":
        return False
    beside = [f.name for f in map(PurePosixPath, read) if f.parent == path.parent]
    if stem is None:
        return any(file.endswith(".distcp") for file in beside)
    return stem in map(stem_of_file, beside)


def _item(
    path: PurePath, present: Collection[str], read: Collection[str], *, trains: bool
) -> InventoryItem:
    """What becomes of something in the folder that was not read."""
    name = path.name
    if is_folder(path):
        kind = next((k for k in _FOLDERS if k.pattern.fullmatch(name)), None)
        kind = kind or _kind("", Role.UNKNOWN, "a subfolder, not looked into")
        return InventoryItem("folder", name, kind.role, Fate.LEFT_OUT, kind.why)
    nbytes = _size(path)
    if not is_file(path):
        what, why = ("link", "leads to nothing") if is_link(path) else ("file", "no file on disk")
        return InventoryItem(what, name, Role.UNKNOWN, Fate.LEFT_OUT, why)
    if why := _MADE_ANEW.get(name, ""):
        return InventoryItem("file", name, Role.SIDE, Fate.MADE_ANEW, why, nbytes)
    if kind := next((k for k in TRAINING if k.pattern.fullmatch(name)), None):
        fate, why = (Fate.COPIED, CARRIED_WHERE_EQUAL) if trains else (Fate.LEFT_OUT, NOT_CARRIED)
        return InventoryItem("file", name, kind.role, fate, why, nbytes)
    if why := _of_other_weights(name, present, read):
        return InventoryItem("file", name, Role.OTHER_MODEL, Fate.LEFT_OUT, why, nbytes)
    kind = next((k for k in _FILES if k.pattern.fullmatch(name)), None)
    if kind is not None:
        return InventoryItem("file", name, kind.role, Fate.LEFT_OUT, kind.why, nbytes)
    if nbytes > MAX_SIDE_BYTES:
        why = f"more than {human(MAX_SIDE_BYTES)}, which no configuration or tokenizer has"
        return InventoryItem("file", name, Role.UNKNOWN, Fate.LEFT_OUT, why, nbytes)
    return InventoryItem("file", name, Role.SIDE, Fate.COPIED, nbytes=nbytes)


def _of_other_weights(name: str, present: Collection[str], read: Collection[str]) -> str:
    """Why a file with weights, or one that describes them, is left out; "" where it is neither."""
    files = sorted(file for file in read if file.endswith(".safetensors") and "/" not in file)
    stem = stem_of_file(files[0]) if files else ""
    shown = f"{stem}.safetensors" if len(files) < 2 else f"{stem}-*.safetensors"
    if name.endswith(".safetensors") and stem_of_file(name) == stem and index_of(stem) in read:
        return f"{index_of(stem)} does not name it"
    if name.endswith(".safetensors") or stem_of_index(name) is not None:
        read_ones = f"not of the weights that were read ({shown})"
        return read_ones if files else "weights that were not read"
    if name == "adapter_config.json" and stem != ADAPTER and _has(present, ADAPTER):
        return f"describes {ADAPTER}.safetensors, which is left out"
    if name == "params.json" and stem != "consolidated" and _has(present, "consolidated"):
        return "describes the consolidated weights, which are left out"
    return ""


def _has(present: Iterable[str], stem: str) -> bool:
    return any(n.endswith((".safetensors", ".bin", ".pth")) and n.startswith(stem) for n in present)


def _size(path: PurePath) -> int:
    return size_of(path) if is_file(path) else 0


def is_training(item: InventoryItem) -> bool:
    """Whether a file holds, or refers to, the state of a trainer."""
    return item.kind == "file" and any(k.pattern.fullmatch(item.name) for k in TRAINING)


def _sides(root: PurePath, items: Iterable[InventoryItem]) -> tuple[SideFile, ...]:
    """The files that are copied as they are."""
    copied = (item.name for item in items if item.fate is Fate.COPIED)
    return tuple(SideFile(name, str(root / name)) for name in copied)
