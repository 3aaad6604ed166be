"""The tensors of a Megatron checkpoint as one layer has them: what a model's family and sizes are taken from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.errors import FormatError
from intarsia.family import MAX_LAYERS, table_for
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.megatron.fsdp_dtensor.keys import spellings
from intarsia.format.megatron.keys import DIALECTS, Key, is_megatron_name
from intarsia.format.megatron.optimizer.buffers import is_bucket
from intarsia.format.megatron.optimizer.state_tensors import state_of
from intarsia.mesh import Shape


class StoredModel:
    """The shapes of a checkpoint's tensors, one layer's each, and the layers that have them."""

    def __init__(self, metadata: Metadata) -> None:
        self.shapes: dict[str, Shape] = {}
        self.layers: dict[str, set[int]] = {}
        self.names: dict[str, str] = {}
        self.predicting: set[int] = set()
        """The layers that predict further tokens, which are no layers of the decoder."""
        self.dtype = next(
            (t.dtype.torch for t in metadata.tensors.values() if t.dtype.floating), ""
        )
        experts: dict[str, int] = {}
        for record in metadata.tensors.values():
            if state_of(record.name) is not None or is_bucket(record.name):
                continue
            key = Key.parse(record.name)
            self.names.setdefault(key.kind, record.name)
            if key.head.endswith("mtp.layers"):
                self.predicting.add(key.layer or 0)
                continue
            if key.layer is not None:
                self.layers.setdefault(key.rest, set()).add(key.layer)
            elif key.stacked:
                if not record.shape or record.shape[0] > MAX_LAYERS:
                    raise FormatError(
                        f"`{record.name}` {list(record.shape)} stacks no layers, or more than"
                        f" {MAX_LAYERS:,}",
                        tensors=(record.name,),
                    )
                self.layers.setdefault(key.rest, set()).update(range(record.shape[0]))
            self.shapes.setdefault(key.rest, _whole_shape(key, record.shape))
            if key.expert is not None:
                experts[key.rest] = max(experts.get(key.rest, 0), key.expert + 1)
        self.shapes |= {rest: (count, *self.shapes[rest]) for rest, count in experts.items()}

    def has(self, *words: str) -> bool:
        return any(word in kind for kind in self.names for word in words)

    def shape(self, ending: str) -> Shape:
        return next((s for rest, s in self.shapes.items() if rest.endswith(ending)), ())

    def strange_to(self, config: Mapping[str, Any]) -> list[str]:
        """The tensors of Megatron's language models that a model of this configuration does not have."""
        table = table_for(config)
        dialects = table.dialects if table else {}
        known = {Key.parse(name).kind for x in DIALECTS.values() for name in dialects.get(x, ())}
        return [
            name for kind, name in self.names.items()
            if known.isdisjoint(spellings(kind)) and (is_megatron_name(name) or Key.parse(name).head)
        ]  # fmt: skip

    @property
    def gated(self) -> bool:
        """Whether the first projection of an MLP or an expert has another width than the second takes."""
        names = [rest for rest in self.shapes if rest.endswith("linear_fc1.weight")]
        pairs = [(self.shapes[n], self.shapes.get(n.replace("fc1", "fc2"))) for n in names]
        return not any(one and two and one[-2:-1] == two[-1:] for one, two in pairs)


def _whole_shape(key: Key, shape: Shape) -> Shape:
    """The shape of one layer's tensor; a half is stored alone in some checkpoints."""
    shape = shape[1:] if key.stacked else shape
    axis = int(key.of_experts)
    return shape if key.half is None else (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
