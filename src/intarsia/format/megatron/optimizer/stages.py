"""Which parameters each stage of a pipeline holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from intarsia.format.megatron.keys import Key
from intarsia.format.megatron.optimizer.parameter_order import Parameter
from intarsia.frozen import frozen

_NORM = "decoder.final_layernorm.weight"


@frozen
class NumberedParameters:
    """Parameters, each with the decoder's layer that it is of, and whether some predict further tokens."""

    params: tuple[Parameter, ...]
    numbers: tuple[int | None, ...]
    ahead: bool

    @classmethod
    def of(cls, params: Sequence[Parameter]) -> NumberedParameters:
        """The same, each name parsed once for all the stages that are tried."""
        keys = [Key.parse(p.name) for p in params]
        numbers = tuple(None if "mtp" in key.head else key.layer for key in keys)
        return cls(tuple(params), numbers, any(p.name.startswith("mtp.") for p in params))

    def of_stage(self, start: int, end: int, stage: int, last: bool) -> list[Parameter]:
        """Those of a stage that has the layers from `start` to before `end`."""
        layers = 1 + max((n for n in self.numbers if n is not None), default=-1)

        def belongs(p: Parameter, number: int | None) -> bool:
            if number is not None:
                return start <= number < end
            if self.ahead and p.name == _NORM:
                # where the last layer is, were the others in a stage of their own
                return start < end == layers
            return stage == 0 if "embedding" in p.name else last

        held = [p for p, n in zip(self.params, self.numbers, strict=True) if belongs(p, n)]
        if not last or not stage:
            return held
        # The last stage has its own copy of the embedding where it predicts further tokens, and of a tied head.
        words = [p for p in self.params if p.name.endswith("word_embeddings.weight")]
        if not any("output_layer" in p.name for p in held):
            held += [replace(p, name="output_layer.weight", copied=True) for p in words]
        if self.ahead:
            held = [replace(p, name=f"mtp.{p.name}", copied=True) for p in words] + held
        return held
