"""Faults of the scales of quantised weights, which decide every number and look like nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from intarsia.checking.content.scales.code_blocks import is_exponents
from intarsia.checking.fault import Fault, with_more
from intarsia.checking.naming import place_of
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.errors import few
from intarsia.planning.manifest import Manifest
from intarsia.quantised import PartRole, QuantisedWeight, QuantisedWeights, ScaleFault, WeightPart
from intarsia.quantised.scheme import Scheme
from intarsia.quantised.words import KNOWN

_NAN_EXPONENT = 255
"""The byte that is no exponent, where scales are powers of two."""
_OWNERS = {"qweight": ("gptq", "awq", "eetq"), "qdata": ("torchao",), "quanto": ("quanto",)}
"""The methods that store codes in a form that no other has."""


def scale_faults_of_headers(manifest: Manifest) -> Iterator[Fault]:
    """Scales that are absent, orphaned or misshaped; like ones as one."""
    kinds: dict[str, list[ScaleFault]] = {}
    for fault in manifest.quantised.faults:
        kinds.setdefault(fault.kind, []).append(fault)
    for kind, like in kinds.items():
        names = tuple(dict.fromkeys(name for fault in like for name in fault.tensors))
        files = {c.file for n in names if n in manifest.stored for c in manifest.stored[n].chunks}
        yield Fault(kind, names, few(sorted(files)), with_more(like[0].text, like))


def undeclared(manifest: Manifest) -> Iterator[Fault]:
    """Quantised weights whose configuration says nothing of it, under any name and in no file beside it."""
    quantised, config = manifest.quantised, manifest.config
    if not config or manifest.config_made or not quantised.alike:
        return
    texts = (config.get("text_config"), config.get("llm_config"))
    keys = {*config, *(k for text in texts if isinstance(text, Mapping) for k in text)}
    said = [*keys, *(side.name for side in manifest.sides)]
    if any(kind.first.scheme for kind in quantised.alike) or any("quant" in x for x in said):
        return
    text = (
        f"{len(quantised.weights):,} weights are quantised ({quantised}), `{quantised.weights[0].main.name}`"
        " among them, and the configuration does not say so: a loader takes codes for numbers, or makes new weights"
    )
    yield Fault("config-contradicts", (), "config.json", text)


def declared_otherwise(manifest: Manifest) -> Iterator[Fault]:
    """Quantised weights in codes that the declared scheme has not, such as four bits for eight."""
    wrong: dict[str, list[str]] = {}
    for kind in manifest.quantised.alike:
        scheme = kind.first.scheme
        if scheme and scheme.method in KNOWN and (held := _other_codes(kind.first, scheme)):
            text = f"codes of {held}, and the configuration says {scheme}"
            wrong.setdefault(text, []).extend(names[0] for _, names in kind.names)
    for text, names in wrong.items():
        shown = few([f"`{name}`" for name in names])
        yield Fault("config-contradicts", tuple(names), "config.json", f"{shown}: {text}")


def _other_codes(w: QuantisedWeight, scheme: Scheme) -> str:
    """What a weight is stored in, where the declared scheme has other codes."""
    words = {part.word: part.name for part in w.others}
    ours = scheme.method == "bitsandbytes"
    if w.form == "nf4":
        held = words.get(".quant_state", "").rpartition("__")[2]
        agrees = ours and scheme.bits in (0, 4) and (not held or scheme.format in ("", held))
        return "" if agrees else f"bitsandbytes {held or '4 bits'}"
    if "SCB" in words:
        return "" if ours and scheme.bits in (0, 8) else "bitsandbytes 8 bits"
    owners = _OWNERS.get(w.form, (scheme.method,))
    return "" if scheme.method in owners else " or ".join(owners)


def scale_faults(found: Sequence[ItemStats], quantised: QuantisedWeights) -> Iterator[Fault]:
    """Scales that are no numbers, or all zero, zero points that are none; and what was wrong with reading them."""
    held_by: dict[str, list[ItemStats]] = {}
    for stats in found:
        if _part_beside(stats, quantised) is not None:
            held_by.setdefault(stats.item.stored.name, []).append(stats)
    used = {place_of(name).template for name, each in held_by.items() if _any_used(each)}
    empty = _all_zero(found)
    for name, each in held_by.items():
        faults = [fault for stats in each for fault in stats.faults]
        yield from faults
        weight, part = quantised.by_part[name]
        if faults or not (part.role.is_scale or (part.role is PartRole.ZERO and part.dtype.floating)):  # fmt: skip
            continue
        size, files = each[0].item.stored.layout.size, each[0].item.files
        exponents = is_exponents(part)
        count = sum(stats.not_finite.count for stats in each)
        count = count or int(exponents and any(stats.most == _NAN_EXPONENT for stats in each))
        begins = weight.main.name in empty and place_of(name).template not in used
        scaled = "activation" if part.role is PartRole.ACTIVATION else "weight"
        if count:
            what = f"{count:,} of {size:,} elements" if not exponents else "elements"
            text = f"{what} of `{name}` are NaN or infinite: so is every {scaled} that they are for"
            yield Fault("scale-nan", (name,), files, text, count)
        elif not part.role.is_scale or not (part.dtype.floating or exponents):
            continue
        elif begins and scaled == "weight":
            continue  # of weights that begin with zeros in every layer nothing is lost
        elif not _any_used(each):
            text = f"`{name}` is all zero: so is every {scaled} that it scales"
            yield Fault("scale-zero", (name,), files, text, size)


def _any_used(each: Sequence[ItemStats]) -> bool:
    """Whether any scale of a tensor is not zero, or may be."""
    return any(stats.most or stats.lost for stats in each)


def _all_zero(found: Sequence[ItemStats]) -> set[str]:
    """The stored tensors of which every element is zero."""
    held: dict[str, bool] = {}
    for stats in found:
        name, zero = stats.item.stored.name, bool(stats.matrices) and not stats.lost
        held[name] = held.get(name, True) and zero and all(p.zero for p in stats.matrices)
    return {name for name, zero in held.items() if zero}


def weights_among(found: Sequence[ItemStats], quantised: QuantisedWeights) -> list[ItemStats]:
    """The weights among what was surveyed; scales are judged by rules of their own."""
    return [stats for stats in found if _part_beside(stats, quantised) is None]


def beside_scales_of_zero(
    found: Sequence[ItemStats], quantised: QuantisedWeights
) -> frozenset[str]:
    """The codes of weights that have scales of zero: codes of zero beside them are judged with the scales."""
    zero = (stats.item.stored.name for stats in found if any(p.zero for p in stats.matrices))
    parts = (quantised.by_part.get(name) for name in zero)
    return frozenset(w.main.name for w, part in filter(None, parts) if part.role.is_scale)


def _part_beside(
    stats: ItemStats, quantised: QuantisedWeights
) -> tuple[QuantisedWeight, WeightPart] | None:
    """The part that a tensor is of a quantised weight, unless its elements are the weight's own codes or numbers."""
    found = quantised.by_part.get(stats.item.stored.name)
    if found is None or (found[1].role is PartRole.WEIGHT and not found[0].is_bytes):
        return None
    return found
