"""Runs that kept their weights in fewer bits than a checkpoint stores them in.

Megatron stores such a weight as the bf16 numbers that its eight or four bits stand for.  These are not its main
weight rounded to bf16, and neither of the two is stale.  Vectors and norms it keeps in bf16.
"""

from __future__ import annotations

from intarsia.errors import IntarsiaError
from intarsia.format.folder.run_objects import is_settings, kept_in_fewer_bits
from intarsia.opened.entries import named_entries
from intarsia.planning.manifest import Logical, Manifest


def fewer_bits(src: Manifest) -> str:
    """The argument by which the run of a checkpoint kept its weights in fewer bits; empty where none says so."""
    names = [name for name in src.entries if is_settings(name)]
    try:
        held = named_entries(src, names) if names else {}
    except IntarsiaError:  # a fault of its own
        return ""
    said = (kept_in_fewer_bits(name, data) for name, data in held.items())
    return next(filter(None, said), "")


def may_have_fewer_bits(weight: Logical) -> bool:
    """Whether a weight is one of those that such a run keeps in fewer bits."""
    return len(weight.shape) > 1
