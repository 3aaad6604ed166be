"""Whether a checkpoint holds a PEFT adapter and no model."""

from __future__ import annotations

from intarsia.errors import UsageError
from intarsia.format.base import Format
from intarsia.format.hf.weight_sets import ADAPTER, stem_of_file
from intarsia.planning.manifest import Manifest

CONFIG = "adapter_config.json"


def is_adapter(src: Manifest) -> bool:
    """Whether a checkpoint holds an adapter and no model, in its own files or converted."""
    if any(f.endswith(".safetensors") and stem_of_file(f) == ADAPTER for f in src.files):
        return True
    sides = {side.name for side in src.sides}
    return CONFIG in sides and "config.json" not in sides


def refuse_adapter(src: Manifest, writer: Format) -> None:
    """Raise where an adapter is to become a whole model's checkpoint."""
    if writer.keeps_names or not is_adapter(src):
        return
    raise UsageError(
        f"{src.path} is a PEFT adapter, which {writer.name} cannot hold",
        hint="merge it into its model first: AutoPeftModelForCausalLM.from_pretrained(PATH)"
        ".merge_and_unload().save_pretrained(OUT), and convert OUT",
    )
