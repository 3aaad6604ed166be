"""Refusals of whatever needs the numbers of quantised weights, or weights whose scales are wrong."""

from __future__ import annotations

from intarsia.errors import FormatError, UsageError
from intarsia.quantised.scheme import Scheme
from intarsia.quantised.weight import QuantisedWeights

DEQUANTISE = "take the weights as they are (hf or dcp, no --dtype, no --dialect), or {how}"
DIFF = "`intarsia verify A B` compares their bits; for numbers {how}"
_SAVE = "`save_pretrained(…, save_original_format=False)`"
_AT_LOADING = ("fp8", "mxfp8", "mxfp4", "compressed-tensors")
_NEVER = ("awq", "gptq", "torchao", "fbgemm-fp8", "eetq", "quanto", "bitnet")


def how_to_dequantise(scheme: Scheme | None) -> str:
    """What gives numbers for weights that are quantised so: Transformers dequantises some schemes alone."""
    method = scheme.method if scheme else ""
    if method in _AT_LOADING:
        return f"dequantise them first: load them with Transformers (`dequantize=True` in its quantisation config) and {_SAVE}"
    if method == "bitsandbytes":
        return f"dequantise them first: load them with Transformers, call `model.dequantize()` and {_SAVE}"
    if method not in _NEVER:
        return "dequantise them with the library that quantised them, or take the checkpoint that was quantised"
    own = "; each loaded weight's own `.dequantize()` gives its numbers, where its class has one"
    why = f"Transformers cannot dequantise {method}{own if method == 'torchao' else ''}"
    return f"take the checkpoint that was quantised ({why})"


def refuse_faults(quantised: QuantisedWeights, path: str) -> None:
    """Raise where headers show that a weight's numbers are lost."""
    if not quantised.faults:
        return
    first, more = quantised.faults[0], len(quantised.faults) - 1
    raise FormatError(
        f"{first.text}{f'; and {more:,} more faults of scales' if more else ''}",
        at=path,
        hint="restore the tensors from the source; `intarsia verify` lists every one",
        kind=first.kind,
    )


def refuse_numbers(
    quantised: QuantisedWeights, path: str, what: str, *, hint: str = DEQUANTISE
) -> None:
    """Raise where `what` needs the numbers of weights that are quantised."""
    if quantised.weights:
        first = quantised.weights[0].main.name
        raise UsageError(
            f"{path} is quantised ({quantised}; {len(quantised.weights):,} weights, `{first}` among"
            f" them): {what}",
            hint=hint.format(how=how_to_dequantise(quantised.alike[0].first.scheme)),
        )
