"""Which configuration a checkpoint is read by: the one given, the one stored, and both if they agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.config.meaning import contradictions
from intarsia.format.folder.side_files import CONFIG, config_in_folder, leaving_out, read_config
from intarsia.planning.manifest import Manifest
from intarsia.store.address import named

_SHOWN = 8


def choose_config(
    given: Mapping[str, Any] | None, home: PurePath | None
) -> Mapping[str, Any] | None:
    """The configuration to read a checkpoint by; raise where the given and the stored contradict."""
    if given is not None and not given.get("model_type"):
        return given
    stored = config_in_folder(home) if home is not None else None
    if not given or stored is None:
        return given or stored
    found = contradictions(given, stored)
    if found:
        listed = "; ".join(f"{c.field} is {c.first!r}, stored {c.second!r}" for c in found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} fields more" if len(found) > _SHOWN else ""
        raise FamilyError(
            f"the given configuration contradicts {home}/{CONFIG}: {listed}{more}",
            hint=f"leave --config out to use the stored one, or correct {CONFIG} where it is wrong",
        )
    return given


def with_config_used(manifest: Manifest) -> Manifest:
    """The manifest without the file of a configuration that it was not read by: that is not copied."""
    side = next((side for side in manifest.sides if side.name == CONFIG), None)
    if side is None or not (manifest.config or {}).get("model_type"):
        return manifest
    if read_config(named(side.path)) == manifest.config:
        return manifest
    why = "the configuration that was given is written in its place"
    return leaving_out(manifest, (CONFIG, f"../{CONFIG}"), why)
