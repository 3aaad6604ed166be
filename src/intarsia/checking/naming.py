"""What a tensor's name says, whatever the family: its layer, its expert, its part in training."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from math import prod

from intarsia.errors import few
from intarsia.frozen import frozen
from intarsia.layout import clip
from intarsia.planning.manifest import Stored
from intarsia.state.names import MASTER, kind_of, parameter_of

_LAYER = re.compile(r"(?<![^.])(?:layers|layer|h|blocks|block)\.(?P<k>\d+)(?=\.)")
_NUMBERED = re.compile(r"(?<![^.])(?:(?!experts\.|local_experts\.)\w+)\.(?P<k>\d+)(?=\.)")
"""Any other list of modules: `resblocks.3.`, `stages.0.`."""
_EXPERT = re.compile(r"(?<![^.])(?P<word>experts|local_experts)\.(?P<k>\d+)(?=\.)")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_STACK = re.compile(r"(?:^|\.)layers\.(?!\d)")
_RARE = re.compile(r"expert|position|relative|wpe|embed")
_VOCABULARY = re.compile(
    r"(embed_tokens|word_embeddings|lm_head|output_layer|wte|embed_out|tok_embeddings)\.(weight|bias)$"
)


@frozen
class ModelPlace:
    """Where a name stands in a model; names that differ in nothing but their place have one template."""

    template: str
    kind: str = ""
    layer: int | None = None
    expert: int | None = None

    @property
    def stack(self) -> str:
        """The list of layers that it is in: what precedes the number."""
        return self.template.partition("*")[0]

    @property
    def layer_of_stack(self) -> tuple[str, int | None]:
        """Its layer, which several stacks may have a number for."""
        return self.stack, self.layer

    @property
    def is_vocabulary(self) -> bool:
        """Whether it is a matrix whose rows are tokens."""
        return self.template.endswith(".weight") and is_of_tokens(self.template)

    @property
    def is_rare(self) -> bool:
        """Whether a step may leave rows of it out: tokens, positions, experts that did not come."""
        rare = self.expert is not None or self.is_vocabulary
        return rare or _RARE.search(self.template) is not None

    @property
    def is_moment(self) -> bool:
        return self.kind not in ("", MASTER)


@lru_cache(maxsize=1 << 18)
def place_of(name: str) -> ModelPlace:
    """The place that a name gives.

    >>> place_of("optimizer.exp_avg.model.layers.3.mlp.experts.7.up_proj.weight")
    ModelPlace(template='model.layers.*.mlp.experts.*.up_proj.weight', kind='exp_avg', layer=3, expert=7)
    """
    kind, name = kind_of(name), parameter_of(name)
    layer, expert = layer_in(name), expert_in(name)
    template = without_expert(without_layer(name))
    return ModelPlace(template, kind, layer and int(layer["k"]), expert and int(expert["k"]))


def is_of_tokens(name: str) -> bool:
    """Whether a name is that of a vocabulary's weight or bias."""
    return _VOCABULARY.search(name) is not None


def layer_in(name: str) -> re.Match[str] | None:
    """Where a name has the number of its layer: `k` is it."""
    return _LAYER.search(name) or _NUMBERED.search(name)


def expert_in(name: str) -> re.Match[str] | None:
    """Where a name has the number of its expert: `k` is it."""
    return _EXPERT.search(name)


@frozen
class StackedMatrix:
    """One matrix of a stored tensor, which may stack those of layers and experts."""

    place: ModelPlace
    first_row: int
    rows: int
    columns: int


def units_of(stored: Stored) -> list[StackedMatrix]:
    """The matrices that a stored tensor is made of, in the order of its rows."""
    place, shape = place_of(stored.name), stored.shape
    columns = shape[-1] if shape else 1
    stacked: list[str] = []
    if place.layer is None and _STACK.search(stored.name) and len(shape) > 1:
        stacked.append("layer")
    if place.expert is None and ".experts." in stored.name and len(shape) - len(stacked) > 2:
        stacked.append("expert")
    counts = shape[: len(stacked)]
    rows = prod(shape[len(stacked) : -1])
    if not stacked:
        return [StackedMatrix(place, 0, rows, columns)]
    units = []
    for k in range(prod(counts)):
        at = {"layer": place.layer, "expert": place.expert}
        rest = k
        for word, n in reversed(list(zip(stacked, counts, strict=True))):
            rest, at[word] = divmod(rest, n)
        here = ModelPlace(place.template, place.kind, at["layer"], at["expert"])
        units.append(StackedMatrix(here, k * rows, rows, columns))
    return units


def tensors_in(
    stored: Stored, unit: StackedMatrix, lo: int = 0, hi: int | None = None
) -> tuple[str, ...]:
    """The logical tensors that have elements in rows `[lo, hi)` of a unit."""
    hi = unit.rows if hi is None else hi
    start = (unit.first_row + lo) * unit.columns
    end = (unit.first_row + hi) * unit.columns
    pieces = stored.layout.pieces
    if len(pieces) == 1 and pieces[0].at <= start < end <= pieces[0].at + pieces[0].run:
        return (pieces[0].tensor,)
    near = (p for p in pieces if p.at < end and p.at + p.span >= start)
    held = [p.tensor for p in near if any(clip(p, start, end))]
    return tuple(dict.fromkeys(held)) or (stored.on_disk,)


def layer_of(name: str) -> int | None:
    return place_of(name).layer


def expert_of(name: str) -> int | None:
    return place_of(name).expert


def without_layer(name: str) -> str:
    found = layer_in(name)
    return f"{name[: found.start('k')]}*{name[found.end('k') :]}" if found else name


def without_expert(name: str) -> str:
    return _EXPERT.sub(r"\g<word>.*", name)


def few_numbers(numbers: Iterable[int | None]) -> str:
    """The numbers of layers or experts, the first few of them."""
    return few([str(k) for k in sorted({k for k in numbers if k is not None})], 6)


def pattern(name: str) -> str:
    """A name without its numbers: `model.layers.*.mlp.up_proj.weight`."""
    return _NUMBER.sub("*", name)


def numbers_of_name(name: str) -> tuple[int, ...]:
    """The numbers of a name: layer, then expert."""
    return tuple(int(n) for n in _NUMBER.findall(name))
