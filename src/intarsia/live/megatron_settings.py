"""Settings that a mesh asks of Megatron's configuration, as part of the one that a load returns.

A hub's configuration says nothing of meshes.  The one that a load returns has an entry more,
`megatron`, whose fields are those of `TransformerConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.live.megatron.model import pipeline_models, transformer_config

MEGATRON = "megatron"
"""Where a returned configuration keeps the settings of Megatron's own."""


def hub_config(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A returned configuration as `config.json` has it: without the settings of Megatron's own."""
    return config and {key: value for key, value in config.items() if key != MEGATRON}


def with_settings(config: Mapping[str, Any] | None, into: Any) -> dict[str, Any]:
    """A model's configuration with what its mesh asks of Megatron's, under `megatron`."""
    return {**(hub_config(config) or {}), MEGATRON: settings_of(into)}


def settings_of(into: Any) -> dict[str, Any]:
    """The settings of `TransformerConfig` that a model's mesh implies.

    Under context parallelism a rank sees a part of each sequence, so that the mean of the ranks'
    mean losses is not the mean over tokens: the loss has to be summed, and divided by all tokens.
    """
    config = transformer_config(pipeline_models(into)[0])
    cp = getattr(config, "context_parallel_size", 1) or 1
    return {"calculate_per_token_loss": True} if cp > 1 else {}


def unlike_settings(into: Any) -> list[str]:
    """What the live model's configuration has otherwise than its mesh implies, in words."""
    config = transformer_config(pipeline_models(into)[0])
    return [
        f"the mesh implies {name}={value}, the model's configuration has {getattr(config, name, None)}"
        for name, value in settings_of(into).items()
        if getattr(config, name, None) != value
    ]
