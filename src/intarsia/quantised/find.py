"""Finding quantised weights: by the names and element types of tensors, helped by the configuration.

A tensor is a part of a weight where its name is the weight's with a word that a scheme adds, and the
weight itself is stored in an element type of quantised numbers.  Schemes that are declared and not
known here are taken by module: every tensor beside codes belongs to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from intarsia.quantised.lacking import faults_of_modules, faults_of_parts
from intarsia.quantised.scheme import Scheme, scheme_of
from intarsia.quantised.weight import (
    UNKNOWN,
    AlikeWeights,
    PartRole,
    QuantisedWeight,
    QuantisedWeights,
    Typed,
    WeightPart,
    weight_part,
)
from intarsia.quantised.words import (
    FOUR_BITS,
    INNER,
    KNOWN,
    PACKED,
    LastWord,
    by_last_word,
    claims_of,
    end_of,
    is_sure_of,
)

Tensors = Mapping[str, Typed]
_FORMS = {"_packed": "packed", "_blocks": "mxfp4", "._data": "quanto"}
_OF_MODULE = {"scale": PartRole.SCALE, "scales": PartRole.SCALE, "zero": PartRole.ZERO, "zeros": PartRole.ZERO}  # fmt: skip
_INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "F4")


def find_quantised(
    tensors: Tensors, config: Mapping[str, Any] | None, modelopt: Mapping[str, Any] | None = None
) -> QuantisedWeights:
    """The quantised weights among stored tensors, and what is wrong with their scales."""
    scheme = scheme_of(config, modelopt)
    words = by_last_word(tensors.values())
    places = cache(lambda: {name: k for k, name in enumerate(tensors)})
    claimed = [(group, claim, group.parts(claim)) for group in words for claim in group.claims]
    four_bits = {of for _, claim, parts in claimed if claim.word in FOUR_BITS for of in parts}
    mains = _mains(words, [parts for *_, parts in claimed], four_bits, places)
    own = {main.name for main, _ in mains.values()}
    taken = {*own}
    columns = [(claim, group.left(claim, parts, mains, own)) for group, claim, parts in claimed]
    kinds: dict[Hashable, int] = {}
    found, order, bare = list[AlikeWeights](), list[int](), list[WeightPart]()
    for of, (main, word) in mains.items():
        others = [(parts[of], claim) for claim, parts in columns if of in parts]
        if not others:
            bare.append(weight_part(main, word, PartRole.WEIGHT))
            continue
        if len(others) > 1:
            others.sort(key=lambda part: places()[part[0].name])
        names: tuple[str, ...] = (main.name,)
        template: tuple[Hashable, ...] = word, main.dtype.name, main.shape
        for s, claim in others:
            template += claim.word, s.dtype.name, s.shape
            names += (s.name,)
            taken.add(s.name)
        kind = kinds.get(template)
        if kind is None:
            kind = kinds[template] = len(found)
            beside = tuple(weight_part(s, claim.word, claim.role) for s, claim in others)
            weight = _weight(of, weight_part(main, word, PartRole.WEIGHT), beside, scheme)
            found.append(AlikeWeights(weight, []))
        found[kind].names.append((of, names))
        order.append(kind)
    doubtful = [
        s.name for group in words if group.claims for s in group.tensors
        if s.name not in own and (s.name not in taken or group.claims[1:])
    ]  # fmt: skip
    loose = [
        claim
        for name in sorted(doubtful, key=lambda x: places()[x])
        for claim in takewhile(lambda claim: claim.of not in mains, claims_of(name))
        if claim.sure or is_sure_of(claim, scheme)
    ]
    weights = QuantisedWeights(tuple(found), order=tuple(order))
    faults = [*faults_of_parts(tensors, weights, bare, loose, scheme)]
    faulty = {name for fault in faults for name in fault.tensors}
    lone = [p for p in bare if p.name not in faulty]
    if scheme is not None and scheme.method not in KNOWN:
        taken -= {p.name for p in lone}
    modules = QuantisedWeights.of(_by_module(tensors, taken, scheme))
    faults += faults_of_modules(modules)
    lone = [p for p in lone if p.name not in modules.by_part]
    alike = (*weights.alike, *modules.alike)
    more = (len(weights.alike) + kind for kind in modules.order)
    return QuantisedWeights(
        alike, tuple(faults), tuple(_notes(alike, lone, scheme)), (*order, *more)
    )


def _mains(
    words: Iterable[LastWord],
    claimed: Sequence[Mapping[str, Typed]],
    four_bits: Collection[str],
    places: Callable[[], Mapping[str, int]],
) -> dict[str, tuple[Typed, str]]:
    """The stored weights in element types of quantised numbers, by the name of the plain weight.

    Each with the word that its name adds to that; `claimed` have the names that others claim to be parts
    of, `four_bits` those that words of bitsandbytes claim.
    """
    listed: list[tuple[str, tuple[Typed, str]]] = []
    ended = 0
    for group in words:
        codes = {x for x in {s.dtype.name for s in group.tensors} if _holds_codes(x)}
        coded = [s for s in group.tensors if s.dtype.name in codes] if codes else []
        if four_bits:
            column = (s for s in group.tensors if s.name in four_bits and s.shape[1:] == (1,))
            coded += [s for s in column if s.dtype.name not in codes]
        ended += bool(coded)
        if group.word == ".weight":
            listed += [(s.name, (s, "")) for s in coded]
            continue
        for s in coded:
            name, of, word = s.name, s.name, ""
            if name.endswith(".weight"):
                pass
            elif name.endswith(".qweight"):
                of, word = name.removesuffix("qweight") + "weight", "qweight"
            elif name.endswith("qdata") and (x := INNER.match(name)) and x["word"] == "qdata":
                of, word = x["module"] + x["name"], "qdata"
            elif name.endswith(PACKED) and name not in PACKED:
                word = end_of(name)
                # quanto keeps 2 and 4 bits packed in a tensor inside of the weight's
                of = name.removesuffix(word).removesuffix("._data")
            elif group.claims or (
                (s.dtype.name in _INTEGERS or len(s.shape) < 2)
                and not any(name in parts for parts in claimed)
            ):
                continue
            listed.append((of, (s, word)))
    if ended < 2:
        return dict(listed)
    found: dict[str, tuple[Typed, str]] = {}
    for of, main in sorted(listed, key=lambda x: places()[x[1][0].name]):
        if of not in found or main[1]:
            found[of] = main
    return found


def _holds_codes(dtype: str) -> bool:
    """Whether quantised numbers are stored in an element type."""
    return (dtype.startswith("F8") and dtype != "F8_E8M0") or dtype in _INTEGERS


def _weight(of: str, main: WeightPart, others: tuple[WeightPart, ...], scheme: Scheme | None) -> QuantisedWeight:  # fmt: skip
    form = _FORMS.get(main.word, main.word)
    if not form:
        form = "nf4" if any(part.word in FOUR_BITS for part in others) else "scaled"
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
    """Weights for which a declared scheme leaves no known word: all tensors of modules with codes.

    Where the scheme is known, only modules that have no weight at all.
    """
    if scheme is None:
        return
    known = scheme.method in KNOWN
    modules: dict[str, list[str]] = {}
    for name in tensors:
        if name not in taken:
            module, _, leaf = name.rpartition(".")
            if module and leaf != "bias":
                modules.setdefault(module, []).append(name)
    types = {x for x in {t.dtype.name for t in tensors.values()} if _holds_codes(x)}
    codes = {
        m: [n for n in names if tensors[n].dtype.name in types] for m, names in modules.items()
    }
    if known and any(codes.values()):
        weights = (name for name in tensors if name in taken or name.endswith("weight"))
        weighted = {name.rpartition(".")[0] for name in weights}
        codes = {m: found for m, found in codes.items() if m not in weighted}
    for module, found in codes.items():
        names = modules[module]
        if found and (not known or len(names) > 1):
            parts = [_part_of_module(tensors[n], is_main=n == found[0]) for n in names]
            main = next(p for p in parts if p.role is PartRole.WEIGHT)
            rest = tuple(p for p in parts if p is not main)
            yield QuantisedWeight(f"{module}.weight", UNKNOWN, main, rest, True, scheme)


def _part_of_module(s: Typed, *, is_main: bool) -> WeightPart:
    """A part of a weight in a scheme that is not known, which has scales and zero points of the usual names."""
    word = s.name.rpartition(".")[2]
    role = _OF_MODULE.get(word, PartRole.OTHER) if s.dtype.floating else PartRole.OTHER
    return weight_part(s, word, PartRole.WEIGHT if is_main else role)


def _notes(
    alike: Iterable[AlikeWeights], lone: list[WeightPart], scheme: Scheme | None
) -> Iterator[str]:
    counts: dict[str, int] = {}
    for kind in alike:
        counts[kind.first.label] = counts.get(kind.first.label, 0) + len(kind.names)
    for label, n in counts.items():
        yield f"{n:,} weights are quantised ({label}): each moves bit for bit with its scales"
    unknown = sum(len(kind.names) for kind in alike if kind.first.form == UNKNOWN)
    if unknown:
        yield f"the scheme {scheme} is not known: {unknown:,} modules are carried name by name, and no mesh cuts them"
    plain = [part for part in lone if part.dtype.name.startswith("F8")]
    if plain:
        types = " or ".join(sorted({str(part.dtype) for part in plain}))
        yield (
            f"{len(plain):,} tensors are {types} without scales, and no configuration says that"
            f" they are quantised: they are read as numbers of that type, `{plain[0].name}` among them"
        )
    if scheme is not None and not counts:
        yield f"the configuration says {scheme}, and no tensor is quantised"
