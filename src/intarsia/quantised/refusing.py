"""Refusals of whatever needs the numbers of quantised weights, or weights whose scales are wrong."""

from __future__ import annotations

from intarsia.errors import FormatError, UsageError
from intarsia.quantised.weight import Quantised

DEQUANTISE = (
    "take the weights as they are (hf or dcp, no --dtype, no --dialect), or dequantise them first:"
    " load them with Transformers (`dequantize=True` in its quantisation config, or `model.dequantize()` of bitsandbytes),"
    " `save_pretrained(…, save_original_format=False)`, and go on from there"
)
DIFF = (
    "`intarsia verify A B` compares their bits; for numbers dequantise both first: load them with Transformers"
    " (`dequantize=True` in its quantisation config, or `model.dequantize()` of bitsandbytes) and `save_pretrained(…, save_original_format=False)`"
)


def refuse_faults(quantised: Quantised, path: str) -> None:
    """Raise where headers show that a weight's numbers are lost."""
    if not quantised.faults:
        return
    first, more = quantised.faults[0], len(quantised.faults) - 1
    raise FormatError(
        f"{first.text}{f'; and {more:,} more faults of scales' if more else ''} - at {path}",
        hint="restore the tensors from the source; `intarsia verify` lists every one",
        kind=first.kind,
    )


def refuse_numbers(quantised: Quantised, path: str, what: str, *, hint: str = DEQUANTISE) -> None:
    """Raise where `what` needs the numbers of weights that are quantised."""
    if quantised.weights:
        first = quantised.weights[0].main.name
        raise UsageError(
            f"{path} is quantised ({quantised}; {len(quantised.weights):,} weights, `{first}` among"
            f" them): {what}",
            hint=hint,
        )
