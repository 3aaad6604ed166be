"""Small random Transformers models, as their files and as their modules."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Saved:
    """What `save_pretrained` wrote, and the module's own `state_dict()`."""

    config: dict[str, Any]
    disk: Arrays
    module: Arrays


def build(config: dict[str, Any]) -> Any:
    """A model of this configuration, every parameter and buffer random."""
    given = {k: v for k, v in config.items() if k != "model_type"}
    whole = transformers.AutoConfig.for_model(config["model_type"], **given)
    kind = "AutoModelForImageTextToText" if "vision_config" in config else "AutoModelForCausalLM"
    torch.manual_seed(0)
    model = getattr(transformers, kind).from_config(whole)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.normal_()
    return model


def save(config: dict[str, Any], folder: Path) -> Saved:
    """Build a model, save it, and read back every name and value."""
    model = build(config)
    model.save_pretrained(folder)
    disk: Arrays = {}
    for file in folder.glob("*.safetensors"):
        disk |= load_file(file)
    module = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return Saved(json.loads((folder / "config.json").read_text()), disk, module)
