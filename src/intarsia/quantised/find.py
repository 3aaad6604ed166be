"""Finding quantised weights: by the names and element types of tensors, helped by the configuration.

A tensor is a part of a weight where its name is the weight's with a word that a scheme adds, and the
weight itself is stored in an element type of quantised numbers.  Schemes that are declared and not
known here are taken by module: every tensor beside integers belongs to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from intarsia.dtypes import DType
from intarsia.mesh import Shape
from intarsia.quantised.scheme import Scheme, scheme_of
from intarsia.quantised.shapes import misshaped
from intarsia.quantised.weight import Part, Quantised, QuantisedWeight, Role, ScaleFault

Tensors = Mapping[str, tuple[DType, Shape]]

KNOWN = {
    "fp8", "mxfp8", "fbgemm-fp8", "mxfp4", "compressed-tensors", "modelopt", "awq", "gptq",
    "bitsandbytes", "torchao", "eetq", "quanto", "bitnet",
}  # fmt: skip
"""Methods whose parts are found by their words."""


def _by_word(words: Mapping[Role, str]) -> dict[str, Role]:
    return {word: role for role, listed in words.items() for word in listed.split()}


_AFTER = _by_word({
    Role.SCALE: "_scale_inv _scale _scales .absmax .nested_absmax ._scale",
    Role.WHOLE_SCALE: "_scale_2 _global_scale",
    Role.ACTIVATION: "_input_scale _activation_scale",
    Role.ZERO: "_zero_point ._shift",
    Role.ORDER: "_g_idx",
    Role.OTHER: "_shape .quant_map .nested_quant_map",
})  # fmt: skip
"""Words that follow the weight's own name."""

_BESIDE = _by_word({
    Role.SCALE: "SCB qscale_weight scale scales",
    Role.ACTIVATION: "input_scale output_scale activation_scale input_scale_ub input_global_scale"
    " pre_quant_scale qscale_act",
    Role.ZERO: "qzeros input_zero_point output_zero_point",
    Role.ORDER: "g_idx",
    Role.OTHER: "weight_format",
})  # fmt: skip
"""Names of tensors that belong to the `weight` of the same module."""

_TORCHAO = _by_word({
    Role.SCALE: "scale scale_and_zero",
    Role.WHOLE_SCALE: "per_tensor_scale",
    Role.ACTIVATION: "act_pre_scale act_per_tensor_scale",
    Role.ZERO: "zero_point",
})  # fmt: skip
"""Words between which torchao puts the weight's name: `_weight_scale`."""

_PACKED = ("_packed", "_blocks", "._data")
"""What follows the name of a weight whose stored form has a name of its own."""

_FORMS = {"_packed": "packed", "_blocks": "mxfp4", "._data": "quanto"}
_STATE = re.compile(r"^(?P<of>.+)\.quant_state\.\w+$")
_INNER = re.compile(
    r"^(?P<module>.+\.)_(?P<name>[a-z]\w*?)_(?P<word>qdata|" + "|".join(_TORCHAO) + r")$"
)
_ENDS = sorted([*_AFTER, *_PACKED], key=len, reverse=True)
_WORDS = (*_AFTER, *_BESIDE, *_TORCHAO)
_INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "F4")


class _Claim(NamedTuple):
    """What the name of a tensor says: part of which weight, by which word; `sure` where no other
    tensor is called so."""

    name: str
    of: str
    word: str
    role: Role
    sure: bool


def find_quantised(
    tensors: Tensors, config: Mapping[str, Any] | None, modelopt: Mapping[str, Any] | None = None
) -> Quantised:
    """The quantised weights among stored tensors, and what is wrong with their scales."""
    scheme = scheme_of(config, modelopt)
    named = (n for n in tensors if _ends_in_word(_tail(n)) or ".quant_state." in n)
    claims = [claim for name in named for claim in _claims(name)]
    mains = _mains(tensors, claims)
    held: dict[str, list[Part]] = {}
    loose: list[_Claim] = []
    taken = {part.name for part in mains.values()}
    for claim in claims:
        name, of, word, role, _ = claim
        if name in taken:
            continue
        if of in mains:
            held.setdefault(of, []).append(Part(name, word, role, *tensors[name]))
            taken.add(name)
        elif claim.sure or _is_sure_of(claim, scheme):
            loose.append(claim)
    weights = [
        _weight(of, main, tuple(held[of]), scheme) for of, main in mains.items() if of in held
    ]
    alike = _alike(weights)
    bare = [main for of, main in mains.items() if of not in held]
    others = [*_by_module(tensors, taken, scheme)]
    words = {part.word for w in weights for part in w.others}
    faults = [
        *_faults(weights, alike, _lacking),
        *_missing(weights, bare, scheme),
        *_orphaned(tensors, loose, words, scheme),
        *_faults(weights, alike, misshaped),
    ]
    faulty = {name for fault in faults for name in fault.tensors}
    lone = [p for p in bare if p.name not in faulty]
    notes = _notes([*alike, *_alike(others)], lone, scheme)
    return Quantised((*weights, *others), tuple(faults), tuple(notes))


def _alike(weights: Iterable[QuantisedWeight]) -> list[list[QuantisedWeight]]:
    """The weights in groups that differ by name alone."""
    found: dict[Hashable, list[QuantisedWeight]] = {}
    for w in weights:
        found.setdefault(w.template, []).append(w)
    return [*found.values()]


def _faults(
    weights: Iterable[QuantisedWeight],
    alike: Iterable[Sequence[QuantisedWeight]],
    faults_of: Callable[[QuantisedWeight], Iterator[ScaleFault]],
) -> Iterator[ScaleFault]:
    """The faults of all weights; where one of each kind is sound, all are."""
    if any(next(faults_of(group[0]), None) for group in alike):
        yield from (fault for w in weights for fault in faults_of(w))


def _claims(name: str) -> Iterator[_Claim]:
    """What a name may say, the surest first."""
    if ".quant_state." in name and (found := _STATE.match(name)):
        yield _Claim(name, found["of"], ".quant_state", Role.OTHER, True)
        return
    if "._" in name and (found := _INNER.match(name)) and found["word"] != "qdata":
        yield _Claim(name, found["module"] + found["name"], found["word"], _TORCHAO[found["word"]], True)  # fmt: skip
    if (word := _end_of(name)) in _AFTER:
        of = name.removesuffix(word)
        sure = of.endswith(".weight") or word == "_scale_inv"
        yield _Claim(name, of, word, _AFTER[word], sure)
    leaf = _tail(name).removeprefix(".")
    if leaf in _BESIDE:
        module = name.rpartition(".")[0]
        sure = leaf in ("SCB", "qzeros", "qscale_weight")
        yield _Claim(name, f"{module}.weight", leaf, _BESIDE[leaf], sure)


def _tail(name: str) -> str:
    """The last word of a name with the dot before it: thousands of tensors share one."""
    return name[max(name.rfind("."), 0) :]


@lru_cache(maxsize=4096)
def _ends_in_word(tail: str) -> bool:
    return tail.endswith(_WORDS)


def _end_of(name: str) -> str:
    """The longest word that follows the name of a weight in this one."""
    tail = _tail(name)
    return _end_of_tail(tail) if tail != name else _end_of_tail(name, alone=True)


@lru_cache(maxsize=4096)
def _end_of_tail(tail: str, alone: bool = False) -> str:
    ends = (word for word in _ENDS if tail.endswith(word) and not (alone and tail == word))
    return next(ends, "")


def _is_sure_of(claim: _Claim, scheme: Scheme | None) -> bool:
    """Whether the declared scheme uses the word, so that a tensor called so is a part."""
    words = {"mxfp4": ("_scales",), "awq": ("scales",), "gptq": ("scales", "g_idx")}
    return scheme is not None and claim.word in words.get(scheme.method, ())


def _mains(tensors: Tensors, claims: Iterable[_Claim]) -> dict[str, Part]:
    """The stored weights in element types of quantised numbers, by the name of the plain weight."""
    found: dict[str, Part] = {}
    claims = list(claims)
    claimed, claiming = {claim.of for claim in claims}, {claim.name for claim in claims}
    for name, (dtype, shape) in tensors.items():
        if not _holds_codes(dtype.name):
            continue
        of, word = name, ""
        if name.endswith(".weight"):
            pass
        elif name.endswith(".qweight"):
            of, word = name.removesuffix("qweight") + "weight", "qweight"
        elif name.endswith("qdata") and (inner := _INNER.match(name)) and inner["word"] == "qdata":
            of, word = inner["module"] + inner["name"], "qdata"
        elif name.endswith(_PACKED) and name not in _PACKED:
            word = _end_of(name)
            of = name.removesuffix(word)
        elif (
            name not in claimed and (dtype.name in _INTEGERS or len(shape) < 2)
        ) or name in claiming:
            continue
        if of not in found or word:
            found[of] = Part(name, word, Role.WEIGHT, dtype, shape)
    return found


@lru_cache
def _holds_codes(dtype: str) -> bool:
    """Whether quantised numbers are stored in an element type."""
    return (dtype.startswith("F8") and dtype != "F8_E8M0") or dtype in _INTEGERS


def _weight(of: str, main: Part, others: tuple[Part, ...], scheme: Scheme | None) -> QuantisedWeight:  # fmt: skip
    form = _FORMS.get(main.word, main.word)
    if not form:
        form = "nf4" if ".absmax" in [part.word for part in others] else "scaled"
    method = scheme.method if scheme else ""
    whole = main.dtype.name.startswith("F8") or (
        main.dtype.name == "I8"
        and method in ("compressed-tensors", "bitsandbytes", "eetq", "modelopt", "quanto")
    )
    packed = bool(main.word) or not whole
    return QuantisedWeight(of, form, main, others, packed, scheme)


def _by_module(
    tensors: Tensors, taken: set[str], scheme: Scheme | None
) -> Iterator[QuantisedWeight]:
    """Weights of which a declared scheme leaves no known word: all tensors of modules with integers.

    Where the scheme is known, only modules that have no weight at all.
    """
    if scheme is None:
        return
    known = scheme.method in KNOWN and not scheme.several
    modules: dict[str, list[str]] = {}
    for name in tensors:
        if name not in taken:
            module, _, leaf = name.rpartition(".")
            if module and leaf != "bias":
                modules.setdefault(module, []).append(name)
    types = (*_INTEGERS, "F8_E4M3", "F8_E5M2")
    codes = {m: [n for n in names if tensors[n][0].name in types] for m, names in modules.items()}
    if known and any(codes.values()):
        weights = (name for name in tensors if name in taken or name.endswith("weight"))
        weighted = {name.rpartition(".")[0] for name in weights}
        codes = {m: found for m, found in codes.items() if m not in weighted}
    for module, found in codes.items():
        names = modules[module]
        if found and (not known or len(names) > 1):
            parts = [
                Part(n, n.rpartition(".")[2], Role.WEIGHT if n == found[0] else Role.OTHER, *tensors[n])
                for n in names
            ]  # fmt: skip
            main = next(p for p in parts if p.role is Role.WEIGHT)
            rest = tuple(p for p in parts if p is not main)
            yield QuantisedWeight(f"{module}.weight", "unknown", main, rest, True, scheme)


def _missing(
    weights: Iterable[QuantisedWeight], bare: Iterable[Part], scheme: Scheme | None
) -> Iterator[ScaleFault]:
    """Quantised weights without any scale that makes numbers of them."""
    like = {(w.main.word, w.main.dtype.name) for w in weights}
    for main in bare:
        known = scheme is not None and (scheme.method in KNOWN or bool(main.word))
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
    return ["|".join(["_scale_inv", "_scale", "_scales", "SCB", "scale", "qscale_weight"]), *more]


def _orphaned(
    tensors: Tensors, loose: Iterable[_Claim], words: set[str], scheme: Scheme | None
) -> Iterator[ScaleFault]:
    """Scales whose weight is not there, or not quantised."""
    if scheme is not None and scheme.loose:
        return
    for claim in loose:
        if scheme is None and claim.word not in words:
            continue  # a model may call a parameter so
        if claim.of in tensors:
            text = f"`{claim.name}` is there, and `{claim.of}` is {tensors[claim.of][0]}, which needs no scale"
        else:
            text = f"`{claim.name}` is there, and no weight that it belongs to"
        yield ScaleFault("scale-orphaned", (claim.name,), text)


def _notes(
    alike: Iterable[Sequence[QuantisedWeight]], lone: list[Part], scheme: Scheme | None
) -> Iterator[str]:
    counts: dict[str, int] = {}
    for group in alike:
        counts[group[0].label] = counts.get(group[0].label, 0) + len(group)
    for label, n in counts.items():
        yield f"{n:,} weights are quantised ({label}): each moves bit for bit with its scales"
    unknown = sum(len(group) for group in alike if group[0].form == "unknown")
    if unknown:
        yield f"the scheme {scheme} is not known: {unknown:,} modules are carried name by name, and no mesh cuts them"
    plain = [part for part in lone if part.dtype.name.startswith("F8")]
    if plain:
        yield (
            f"{len(plain):,} tensors are {plain[0].dtype} without scales, and no configuration"
            " says that they"
            f" are quantised: they are read as numbers of that type, `{plain[0].name}` among them"
        )
    if scheme is not None and not counts:
        yield f"the configuration says {scheme}, and no tensor is quantised"
