"""PEFT's adapters: `adapter_model.safetensors`, which is nothing without its `adapter_config.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from intarsia.errors import FamilyError
from intarsia.format.complaint import Complain, Complaint
from intarsia.format.folder.adapters import CONFIG, FACTOR, is_adapter
from intarsia.format.folder.side_files import read_config
from intarsia.format.hf.weight_sets import ADAPTER, MODEL, is_own, stem_of_file, stem_of_index
from intarsia.planning.inventory import Fate
from intarsia.planning.manifest import Manifest
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.store.address import named
from intarsia.store.reading.lookup import is_file, is_folder


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


def check_adapter(root: PurePath, stored: Iterable[WholeTensor], complain: Complain) -> None:
    """Complain where the factors of an adapter are not what its configuration says."""
    if not is_file(root / CONFIG):
        error = FamilyError(
            f"{root} holds an adapter and no {CONFIG}",
            hint="PEFT cannot load it: restore the file that was saved with it",
        )
        complain(Complaint(error, (CONFIG,)))
        return
    config = read_config(root / CONFIG)
    if config.get("peft_type") != "LORA":
        return
    for text, names in _faults(config, {s.key: s.shape for s in stored}):
        error = FamilyError(
            f"{text} - at {root / CONFIG}",
            hint="the configuration and the weights belong to different adapters: restore the"
            " one that is wrong",
        )
        complain(Complaint(error, (CONFIG,), names))


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
    patterns = config.get("rank_pattern")
    ranks = {config.get("r"), *(patterns.values() if isinstance(patterns, dict) else ())}
    for (module, _), pair in factors.items():
        if len(pair) < 2:
            name = next(iter(pair.values()))
            lost = "B" if "A" in pair else "A"
            yield f"`{name}` has no matching factor {lost}", (name,)
            continue
        a, b = shapes[pair["A"]][0], shapes[pair["B"]][1]
        if a != b:
            yield f"the factors of `{module}` have ranks {a} and {b}", tuple(pair.values())
        elif not config.get("target_parameters") and a not in ranks:
            text = f"`{pair['A']}` has rank {a}, the configuration says {config.get('r')}"
            yield text, (pair["A"],)
        if config.get("use_dora") and f"{module}.lora_magnitude_vector" not in whole:
            # PEFT makes a new one, of the base model's weights.
            yield f"DoRA is configured, and `{module}` has no lora_magnitude_vector", ()
    targets = config.get("target_modules")
    if isinstance(targets, list) and targets:
        ends, listed = tuple(f".{target}" for target in targets), ", ".join(sorted(targets))
        for module, _ in factors:
            if not f".{module}".endswith(ends) and not config.get("target_parameters"):
                yield f"`{module}` is no target of the configuration ({listed})", ()
