"""PEFT's adapters: `adapter_model.safetensors`, which is nothing without its `adapter_config.json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from intarsia.errors import FamilyError, ForeignNamesError, few
from intarsia.format.complaint import Complain, Complaint
from intarsia.format.folder.adapters import CONFIG, FACTOR, is_adapter
from intarsia.format.folder.side_files import read_config
from intarsia.format.hf.adapter_parts import holes, lost_beside, lost_parts, modules_of, unsaved
from intarsia.format.hf.adapter_sizes import ROOT, adapter_misfits, ranks_of
from intarsia.format.hf.weight_sets import ADAPTER, MODEL, is_own, stem_of_file, stem_of_index
from intarsia.planning.inventory import Fate
from intarsia.planning.manifest import Manifest
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.store.address import named
from intarsia.store.reading.lookup import is_file, is_folder

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_ASKED_FOR = {
    ".lora_magnitude_vector": "use_dora",
    ".lora_B.bias": "lora_bias",
    ".trainable_tokens_delta": "trainable_token_indices",
}
"""How names end that PEFT looks for only where the setting is there."""


def stem_for(src: Manifest | None) -> str:
    """How the names of files with weights begin in an `hf` folder that is made of a source.

    What reads the source by those names finds the copy by them.
    """
    if src is not None and is_adapter(src):
        return ADAPTER
    if src is None or src.format != "hf":
        return MODEL
    read = (item.name for item in src.inventory if item.fate is Fate.READ)
    indexes = [stem for name in read if "/" not in name and (stem := stem_of_index(name))]
    stems = {stem_of_file(file) for file in src.files if "/" not in file}
    if indexes or len(stems) != 1:
        return indexes[0] if indexes else MODEL
    stem = stems.pop()
    return stem if is_folder(named(src.path)) or is_own(stem) else MODEL


def check_adapter(
    root: PurePath, stored: Iterable[WholeTensor], complain: Complain
) -> tuple[str, ...]:
    """Complain where the factors of an adapter are not what its configuration says; what it may lack."""
    if not is_file(root / CONFIG):
        error = FamilyError(
            f"{root} holds an adapter and no {CONFIG}",
            hint="PEFT cannot load it: restore the file that was saved with it",
        )
        complain(Complaint(error, (CONFIG,)))
        return ()
    config, shapes = read_config(root / CONFIG), {s.key: s.shape for s in stored}
    modules = {found["module"] for name in shapes if (found := FACTOR.match(name))}
    kind = str(config.get("peft_type"))
    is_lora = kind == "LORA"
    parts = modules_of(config, shapes)
    faults = [*adapter_misfits(config, shapes), *(_faults(config, shapes) if is_lora else ())]
    faults += [*lost_parts(config, parts), *lost_beside(config, shapes)]
    if not is_lora and modules and "LORA" not in kind:
        faults.append((f"{kind} is configured, and the tensors are factors of LoRA", ()))
    if is_lora and (astray := sorted(module for module in modules if not module.startswith(ROOT))):
        complain(Complaint(_without_root(astray, len(modules), root)))
    for text, names in faults:
        error = FamilyError(
            text,
            at=root / CONFIG,
            hint="the configuration and the weights belong to different adapters: restore the"
            " one that is wrong",
        )
        complain(Complaint(error, (CONFIG,), names))
    lora = holes(modules, "factors of LoRA", " that change nothing")
    return (*(lora if is_lora else holes(parts, f"tensors of {kind}")), *unsaved(config, shapes))


def _without_root(astray: list[str], of: int, root: PurePath) -> ForeignNamesError:
    return ForeignNamesError(
        f"the factors of {len(astray)} of {of} modules do not have names that begin with {ROOT!r}:"
        f" {few([f'`{module}`' for module in astray], 3)}",
        at=root,
        hint=f"PEFT loads the model without them: save with PEFT's save_pretrained, or put {ROOT!r}"
        " before these names",
    )


def _faults(
    config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What contradicts the rank and the modules of a LoRA configuration."""
    factors: dict[tuple[str, str], dict[str, str]] = {}
    for name in shapes:
        if (found := FACTOR.match(name)) and not found["adapter"]:
            key = found["module"], found["embedding"] or ""
            factors.setdefault(key, {})[found["which"]] = name
    if not factors:
        yield "LoRA is configured, but no tensor is a LoRA factor", ()
    whole = {name.removesuffix(".weight") for name in shapes}
    for (module, _), pair in factors.items():
        if len(pair) < 2:
            name = next(iter(pair.values()))
            lost = "B" if "A" in pair else "A"
            yield f"`{name}` has no matching factor {lost}", (name,)
            continue
        a, b = shapes[pair["A"]], shapes[pair["B"]]
        if len(a) < 2 or len(b) < 2:
            text = f"the factors of `{module}` have shapes {list(a)} and {list(b)}"
            yield f"{text}, which are no matrices'", tuple(pair.values())
        elif a[0] != b[1]:
            yield f"the factors of `{module}` have ranks {a[0]} and {b[1]}", tuple(pair.values())
        elif not config.get("target_parameters") and a[0] not in (
            ranks := ranks_of(config, module)
        ):
            yield f"`{pair['A']}` has rank {a[0]}, the configuration says {ranks[0]}", (pair["A"],)
        if config.get("use_dora") and f"{module}.lora_magnitude_vector" not in whole:
            # PEFT makes a new one, of the base model's weights.
            yield f"DoRA is configured, and `{module}` has no lora_magnitude_vector", ()
        if config.get("lora_bias") and f"{module}.lora_B.bias" not in shapes:
            yield f"lora_bias is configured, and `{module}` has no lora_B.bias", ()
    yield from _left_out(config, {module for module, _ in factors}, shapes)
    targets = config.get("target_modules")
    if isinstance(targets, list) and targets:
        ends, listed = tuple(f".{x}" for x in targets), ", ".join(sorted(map(str, targets)))
        for module, _ in factors:
            if not f".{module}".endswith(ends) and not config.get("target_parameters"):
                yield f"`{module}` is no target of the configuration ({listed})", ()


def _left_out(
    config: Mapping[str, Any], modules: set[str], names: Iterable[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is stored, and PEFT leaves out without a word, as the configuration does not ask for it."""
    layers, excluded = config.get("layers_to_transform"), config.get("exclude_modules")
    chosen = layers if isinstance(layers, list) else [layers] if type(layers) is int else []
    ends = tuple(f".{x}" for x in excluded) if isinstance(excluded, list) else ()
    for module in sorted(modules) if not config.get("target_parameters") else ():
        if chosen and not any(int(n) in chosen for n in _NUMBER.findall(module)):
            yield f"`{module}` is in no layer of layers_to_transform ({layers})", ()
        if ends and f".{module.removeprefix(ROOT)}".endswith(ends):
            yield f"`{module}` is among the exclude_modules of the configuration", ()
    for end, key in _ASKED_FOR.items():
        found = tuple(name for name in names if name.endswith(end))
        if found and not config.get(key):
            yield f"`{found[0]}` is stored, and {key} is not configured", found
