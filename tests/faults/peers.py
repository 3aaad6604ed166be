"""What other loaders say of a checkpoint: torch's DCP, safetensors, Transformers."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

SILENT, TELLS, REFUSES = "silent", "warns", "refuses"


def dcp_says(folder: Path) -> str:
    """torch's own loader of sharded checkpoints, reading everything that the metadata names."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    root = next(iter(sorted(folder.rglob(".metadata"))), folder / ".metadata").parent
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            _load_state_dict(
                {},
                storage_reader=FileSystemReader(root),
                planner=_EmptyStateDictLoadPlanner(),
                no_dist=True,
            )
    except BaseException:
        return REFUSES
    return TELLS if any("corrupt" in str(w.message).lower() for w in told) else SILENT


def safetensors_says(folder: Path) -> str:
    """safetensors, reading every file of the folder."""
    from safetensors.torch import load_file

    try:
        files = sorted(folder.glob("*.safetensors"))
        for file in files:
            load_file(file)
    except BaseException:
        return REFUSES
    return SILENT if files else REFUSES


def transformers_says(folder: Path) -> str:
    """Transformers, building the model; missing or unexpected weights are a printed report."""
    from transformers import AutoModelForCausalLM

    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    try:
        _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    except BaseException:
        return REFUSES
    return TELLS if any(info.values()) else SILENT


def peers_say(folder: Path, format: str) -> dict[str, str]:
    """Each loader that reads such a checkpoint, and what it says."""
    if format == "hf":
        return {"safetensors": safetensors_says(folder), "Transformers": transformers_says(folder)}
    return {"torch DCP": dcp_says(folder)}
