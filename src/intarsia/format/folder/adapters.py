"""Whether a checkpoint holds a PEFT adapter and no model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from intarsia.errors import UsageError
from intarsia.format.base import Format
from intarsia.format.hf.weight_sets import ADAPTER, stem_of_file
from intarsia.format.naming.foreign_names import foreign_names
from intarsia.planning.manifest import Manifest
from intarsia.state.names import is_state

CONFIG = "adapter_config.json"
FACTOR = re.compile(
    r"^(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<which>[AB])"
    r"(?P<adapter>\.(?!weight$)[^.]+)?(?:\.weight)?$"
)
"""The name of a factor of LoRA; a model that has the adapter inside names that, too."""

_BASE = ".base_layer."
"""What PEFT puts into the name of a weight that it adapts."""
_MERGE = "the model is inside of PEFT: load it with PEFT, merge the adapter (merge_and_unload), and save that"


def is_adapter(src: Manifest) -> bool:
    """Whether a checkpoint holds an adapter and no model, in its own files or converted."""
    if any(f.endswith(".safetensors") and stem_of_file(f) == ADAPTER for f in src.files):
        return True
    sides = {side.name for side in src.sides}
    return CONFIG in sides and "config.json" not in sides


def how_to_load(src: Manifest) -> str:
    """What loads a checkpoint of an adapter alone, if it is one; the factors of one may have no word of PEFT's beside."""
    found = [FACTOR.match(name) for name in src.stored if not is_state(name)]
    if not is_adapter(src) and not (found and all(found)):
        return ""
    inside = any(f["adapter"] for f in found if f)
    into = "{n: x for n, x in model.state_dict().items() if '.lora_' in n}"
    own = "" if src.format != "hf" or inside else "with PEFT's own load_adapter(), or "
    into = into if inside else "peft.get_peft_model_state_dict(model)"
    return f"it is a PEFT adapter: load the model, and the adapter {own}into={into}"


def inside_peft(src: Manifest) -> list[str]:
    """The weights that a family needs and that stand under the names of PEFT's layers around them."""
    held = {name.replace(_BASE, "."): name for name in src.stored if _BASE in name}
    return [held[x.name] for x in src.absent if x.name in held]


def refuse_inside_peft(src: Manifest) -> None:
    """Raise where the adapter of a whole model has not been merged, and the names are not the model's."""
    if wrapped := inside_peft(src):
        weights = sum(not is_state(name) for name in src.stored)
        raise foreign_names(wrapped, f"{src.family}", src.path, step=_MERGE, of=weights)


def refuse_adapter(src: Manifest, writer: Format) -> None:
    """Raise where an adapter is to become a whole model's checkpoint."""
    if writer.keeps_names or not is_adapter(src):
        return
    raise UsageError(
        f"{src.path} is a PEFT adapter, which {writer.name} cannot hold",
        hint="merge it into its model first: AutoPeftModelForCausalLM.from_pretrained(PATH)"
        ".merge_and_unload().save_pretrained(OUT), and convert OUT",
    )


def note_on_factors(src: Manifest) -> Iterator[str]:
    """That factors of LoRA are written as a model's tensors, where nothing says that they are an adapter."""
    if ".lora_" not in "\n".join(src.stored) or is_adapter(src):
        return
    weights = [name for name in src.stored if not is_state(name)]
    found = {name: factor for name in weights if (factor := FACTOR.match(name))}
    if found:
        alone = len(found) == len(weights) and not any(f["adapter"] for f in found.values())
        yield (
            f"{len(found):,} tensors are factors of LoRA (`{next(iter(found))}` among them), and are"
            f" written as a model's: PEFT loads an adapter by its {CONFIG}"
            + (f"; put it into {src.path} and convert again" if alone else "")
        )
