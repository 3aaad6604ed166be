"""Tensors that must be equal, as only one of them is written: they are compared before a byte moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError
from intarsia.format.registry import names_of
from intarsia.opened.equal import equal
from intarsia.state.names import is_state


def check_equal(checkpoint: Checkpoint, groups: Iterable[Sequence[str]], window_bytes: int) -> None:
    """Raise where only the first of some tensors is written and the others are not equal to it."""
    for first, *others in groups:
        for name in others:
            if not equal(checkpoint, first, name, window_bytes):
                numbers = is_state(name) and not checkpoint.manifest.logical[name].shape
                raise _numbers(first, name) if numbers else _tied(first, name)


def _tied(first: str, name: str) -> CoverageError:
    keepers = names_of(lambda format: format.keeps_names)
    hint = f"convert to {keepers}, which keep both, or remove the stale one from the checkpoint"
    if name.endswith("lm_head.weight"):
        hint = (
            "set tie_word_embeddings to false in config.json if the model has a head of its own;"
            " otherwise remove the stale one from the checkpoint"
        )
    return CoverageError(
        f"`{name}` is tied to `{first}`, both are stored, and they differ: one would be lost",
        hint=hint,
    )


def _numbers(first: str, name: str) -> CoverageError:
    return CoverageError(
        f"`{first}` and `{name}` differ, and the destination has one number for both",
        hint="the parameters were not trained together; leave the state out with --optimizer drop",
    )
