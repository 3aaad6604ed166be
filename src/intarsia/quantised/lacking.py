"""What headers show to be wrong with the parts of quantised weights: absent, orphaned, or of another shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from intarsia.quantised.scheme import Scheme
from intarsia.quantised.shapes import misshaped
from intarsia.quantised.weight import (
    UNKNOWN,
    AlikeWeights,
    PartRole,
    QuantisedWeight,
    QuantisedWeights,
    ScaleFault,
    Typed,
    WeightPart,
)
from intarsia.quantised.words import KNOWN, Claim

_DIGITS = re.compile(r"\d+")
_DECIDING = (PartRole.SCALE, PartRole.WHOLE_SCALE, PartRole.ZERO, PartRole.ORDER)


def faults_of_parts(
    tensors: Mapping[str, Typed],
    weights: QuantisedWeights,
    bare: Iterable[WeightPart],
    loose: Iterable[Claim],
    scheme: Scheme | None,
) -> Iterator[ScaleFault]:
    """All that is wrong; `bare` are weights without any part, `loose` parts without a weight."""
    yield from _faults(weights, _lacking)
    yield from _unlike(weights, scheme)
    yield from _missing(weights, bare, scheme)
    yield from _orphaned(tensors, loose, weights, scheme)
    yield from _faults(weights, misshaped)


def faults_of_modules(weights: QuantisedWeights) -> Iterator[ScaleFault]:
    """Weights in a scheme that is not known without codes, a scale or a zero point that the same ones of other layers have."""
    yield from _unlike(weights, None)
    codes: dict[str, set[str]] = {}
    for w in weights.weights:
        codes.setdefault(_DIGITS.sub("", w.of), set()).update(_matrices_of_codes(w))
    for w in weights.weights:
        lost = codes[_DIGITS.sub("", w.of)]
        if lost and not _matrices_of_codes(w):
            module, words = w.of.removesuffix(".weight"), " or ".join(sorted(lost))
            text = f"`{module}` ({w.label}) lacks its {words}, which the same weights of other layers have"
            yield ScaleFault("scale-orphaned", tuple(part.name for part in w.parts), text)


def _matrices_of_codes(w: QuantisedWeight) -> set[str]:
    """The parts that may be codes: integers on two axes or more."""
    return {part.word for part in w.parts if len(part.shape) > 1 and not part.dtype.floating}


def _faults(
    weights: QuantisedWeights, faults_of: Callable[[QuantisedWeight], Iterator[ScaleFault]]
) -> Iterator[ScaleFault]:
    """The faults of all weights; where one of each kind is sound, all are."""
    if any(next(faults_of(kind.first), None) for kind in weights.alike):
        yield from (fault for w in weights.weights for fault in faults_of(w))


def _missing(
    weights: QuantisedWeights, bare: Iterable[WeightPart], scheme: Scheme | None
) -> Iterator[ScaleFault]:
    """Quantised weights without any scale that makes numbers of them."""
    like = {(kind.first.main.word, kind.first.main.dtype.name) for kind in weights.alike}
    for main in bare:
        known = scheme is not None and scheme.method in KNOWN
        if main.word or known or (main.word, main.dtype.name) in like:
            said = f" and the configuration says {scheme}" if scheme else ""
            text = f"`{main.name}` is {main.dtype}{said}: no scale of it is stored"
            yield ScaleFault("scale-missing", (main.name,), text)


def _lacking(w: QuantisedWeight) -> Iterator[ScaleFault]:
    """The scales that a quantised weight should have, and has not."""
    words = {part.word for part in w.others}
    lost = [word for word in _needed(w) if not words & set(word.split("|"))]
    if lost:
        shown = ", ".join(x.partition("|")[0].strip("_.") for x in lost)
        text = f"`{w.main.name}` ({w.label}) lacks its {shown}"
        yield ScaleFault("scale-missing", (w.main.name,), text)


def _unlike(weights: QuantisedWeights, scheme: Scheme | None) -> Iterator[ScaleFault]:
    """Weights without a part that nearly all of their like have, the same weight of another layer among them.

    Not where the parts of compressed-tensors' groups, which need not be alike, are declared.
    """
    if scheme is not None and scheme.method == "compressed-tensors":
        return
    classes: dict[Hashable, list[AlikeWeights]] = {}
    for kind in weights.alike:
        w = kind.first
        classes.setdefault((w.form, w.main.word, w.main.dtype.name), []).append(kind)
    for like in classes.values():
        words = [{p.word for p in kind.first.others if p.role in _DECIDING} for kind in like]
        total = sum(len(kind.names) for kind in like)
        for word in sorted({w for has in words for w in has}):
            lack = [kind for kind, has in zip(like, words, strict=True) if word not in has]
            if not lack or 4 * sum(len(kind.names) for kind in lack) >= total:
                continue
            have = {
                _DIGITS.sub("", of) for kind in like if kind not in lack for of, _ in kind.names
            }
            for w in (w for kind in lack for w in kind.weights if _DIGITS.sub("", w.of) in have):
                if w.form == UNKNOWN or not any(_lacking(w)):
                    name = w.of.removesuffix(".weight") if w.form == UNKNOWN else w.main.name
                    text = f"`{name}` ({w.label}) lacks its {word.strip('_.')}, which the same weights of other layers have"
                    yield ScaleFault("scale-missing", (w.main.name,), text)


def _needed(w: QuantisedWeight) -> list[str]:
    """The words that a form must have, alternatives between bars."""
    scheme = w.scheme
    method, format = (scheme.method, scheme.format) if scheme else ("", "")
    if w.form == "qweight":
        return ["scales", "qzeros"] if method in ("awq", "gptq") else ["scales"]
    if w.form == "packed":
        more = ["_shape"] if format == "pack-quantized" else []
        more += ["_global_scale"] if format == "nvfp4-pack-quantized" else []
        more += ["_zero_point"] if scheme and not scheme.symmetric else []
        return ["_scale", *more]
    if w.form == "nf4":
        nested = any(p.word.startswith(".nested") for p in w.others)
        more = [".nested_absmax", ".nested_quant_map"] if nested else []
        return [".absmax", ".quant_map", ".quant_state", *more]
    if w.form == "mxfp4":
        return ["_scales"]
    if w.form == "qdata":
        return ["scale|scale_and_zero"]
    if w.form == "quanto":
        return ["._scale"]
    more = ["_scale_2"] if method == "modelopt" and format == "nvfp4" else []
    words = ["_scale_inv", "_scale", "_scales", "SCB", "scale", "qscale_weight"]
    first = {"bitsandbytes": "SCB", "compressed-tensors": "_scale", "modelopt": "_scale"}
    return ["|".join([first.get(method, words[0]), *words]), *more]


def _orphaned(
    tensors: Mapping[str, Typed],
    loose: Iterable[Claim],
    weights: QuantisedWeights,
    scheme: Scheme | None,
) -> Iterator[ScaleFault]:
    """Scales whose weight is not there, or not quantised."""
    if scheme is not None and scheme.loose:
        return
    words = {part.word for kind in weights.alike for part in kind.first.others}
    for claim in loose:
        if scheme is None and claim.word not in words:
            continue  # a model may call a parameter so
        if claim.of in tensors:
            text = f"`{claim.name}` is there, and `{claim.of}` is {tensors[claim.of].dtype}, which needs no scale"
        else:
            text = f"`{claim.name}` is there, and no weight that it belongs to"
        yield ScaleFault("scale-orphaned", (claim.name,), text)
