"""Layers and experts stacked into one tensor on disk: which are, and where each of them lies in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.format.megatron.keys import Key
from intarsia.format.megatron.optimizer.state_tensors import state_of, stored_key
from intarsia.frozen import frozen
from intarsia.mesh import Box, Shape
from intarsia.planning.manifest import Target


@frozen
class StackPart:
    """Where a target lies in a stored tensor: `leading` axes of that tensor are fixed for it."""

    name: str
    shape: Shape
    offsets: Shape
    leading: int

    def stored(self, box: Box) -> Box:
        """A box of the target, as one of the stored tensor."""
        offsets = zip(self.offsets[self.leading :], box.offsets, strict=True)
        at = (*self.offsets[: self.leading], *(a + b for a, b in offsets))
        return Box(at, (1,) * self.leading + box.shape)


def alike_layers(targets: Sequence[Target], args: Mapping[str, Any]) -> dict[str, int]:
    """The stacks of layers that are alike, and their heights; only those are one tensor on disk.

    Layers that predict further tokens are never stacked, nor are those of a vision tower, which keeps
    the names it came with, nor any where `args` make Megatron ask for each layer by its number.
    """
    if _numbered(args):
        return {}
    forms: dict[str, dict[int, set[tuple[Key, Shape]]]] = {}
    for target in targets:
        key = Key.parse(stored_key(target.name))
        if key.layer is not None and key.head.endswith("decoder.layers"):
            form = forms.setdefault(key.head, {}).setdefault(key.layer, set())
            form.add((Key(key.rest, "", None, key.expert, key.half), target.shape))
    alike = {
        head: len(layers)
        for head, layers in forms.items()
        if sorted(layers) == [*range(len(layers))]
        and all(form == layers[0] for form in layers.values())
    }
    # Optimizer state is stored as its model is.
    uneven = {_model_head(head) for head in forms if head not in alike}
    return {head: n for head, n in alike.items() if _model_head(head) not in uneven}


def _numbered(args: Mapping[str, Any]) -> bool:
    """Whether a run of these arguments may have layers of several kinds, as Megatron sees it: not whether it has."""
    kinds = (args.get("moe_layer_freq"), args.get("linear_attention_freq"))
    told = ("hetereogenous_dist_checkpoint", "heterogeneous_layers_config_path")
    return any(isinstance(x, list) or (isinstance(x, int) and x > 1) for x in kinds) or any(
        args.get(name) for name in told
    )


def _model_head(head: str) -> str:
    found = state_of(head)
    return found[1] if found else head


def stack_part(target: Target, stacks: Mapping[str, int]) -> StackPart:
    """The place of a target in the tensor that is stored."""
    key = Key.parse(stored_key(target.name))
    leading: list[tuple[int, int]] = []
    layer = key.layer
    if layer is not None and key.head in stacks:
        leading.append((layer, stacks[key.head]))
        layer = None
    if key.expert is not None:
        assert target.rule.expert is not None, "an expert's rule says of how many it is one"
        leading.append((key.expert, target.rule.expert[1]))
    shape, offsets = list(target.shape), [0] * len(target.shape)
    if key.half is not None:
        offsets[0], shape[0] = shape[0] * key.half, shape[0] * 2
    places, sizes = [i for i, _ in leading], [n for _, n in leading]
    name = str(Key(key.rest, key.head, layer))
    return StackPart(name, (*sizes, *shape), (*places, *offsets), len(leading))
