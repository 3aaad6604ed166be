"""TransformerEngine's modules: their parameters as DTensors whose placements are true, and their state."""

from __future__ import annotations

from intarsia.live.transformer_engine.placing import placement_of, set_device_mesh
from intarsia.live.transformer_engine.state import model_state, optimizer_state, set_state

__all__ = ["model_state", "optimizer_state", "placement_of", "set_device_mesh", "set_state"]
