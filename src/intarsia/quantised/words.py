"""The words by which a tensor's name says that it is a part of a quantised weight, and of which."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from intarsia.quantised.scheme import Scheme
from intarsia.quantised.weight import PartRole, Typed

KNOWN = {
    "fp8", "mxfp8", "fbgemm-fp8", "mxfp4", "compressed-tensors", "modelopt", "awq", "gptq",
    "bitsandbytes", "torchao", "eetq", "quanto", "bitnet",
}  # fmt: skip
"""Methods whose parts are found by their words."""


def _by_word(words: Mapping[PartRole, str]) -> dict[str, PartRole]:
    return {word: role for role, listed in words.items() for word in listed.split()}


_AFTER = _by_word({
    PartRole.SCALE: "_scale_inv _scale _scales .absmax .nested_absmax ._scale",
    PartRole.WHOLE_SCALE: "_scale_2 _global_scale",
    PartRole.ACTIVATION: "_input_scale _activation_scale",
    PartRole.ZERO: "_zero_point ._shift",
    PartRole.ORDER: "_g_idx",
    PartRole.OTHER: "_shape .quant_map .nested_quant_map",
})  # fmt: skip
"""Words that follow the weight's own name."""

_BESIDE = _by_word({
    PartRole.SCALE: "SCB qscale_weight scale scales",
    PartRole.ACTIVATION: "input_scale output_scale activation_scale input_scale_ub input_global_scale"
    " pre_quant_scale qscale_act",
    PartRole.ZERO: "qzeros input_zero_point output_zero_point",
    PartRole.ORDER: "g_idx",
    PartRole.OTHER: "weight_format",
})  # fmt: skip
"""Names of tensors that belong to the `weight` of the same module."""

_TORCHAO = _by_word({
    PartRole.SCALE: "scale scale_and_zero",
    PartRole.WHOLE_SCALE: "per_tensor_scale",
    PartRole.ACTIVATION: "act_pre_scale act_per_tensor_scale",
    PartRole.ZERO: "zero_point",
})  # fmt: skip
"""Words between which torchao puts the weight's name: `_weight_scale`."""

PACKED = ("_packed", "_blocks", "._data")
"""What follows the name of a weight whose stored form has a name of its own."""

FOUR_BITS = (".absmax", ".quant_map", ".quant_state")
"""What bitsandbytes adds to a weight of four bits, whose bytes are a column of any element type."""

_STATE = re.compile(r"^(?P<of>.+)\.quant_state\.\w+$", re.DOTALL)
INNER = re.compile(
    r"^(?P<module>.+\.)_(?P<name>[a-z]\w*?)_(?P<word>qdata|" + "|".join(_TORCHAO) + r")$", re.DOTALL
)
_ENDS = sorted([*_AFTER, *PACKED], key=len, reverse=True)


class Claim(NamedTuple):
    """What the name of a tensor says: part of which weight, by which word; `sure` where no other
    tensor is called so."""

    name: str
    of: str
    word: str
    role: PartRole
    sure: bool


def claims_of(name: str) -> Iterator[Claim]:
    """What a name may say, the surest first."""
    if ".quant_state." in name and (found := _STATE.match(name)):
        yield Claim(name, found["of"], ".quant_state", PartRole.OTHER, True)
        return
    if "._" in name and (found := INNER.match(name)) and found["word"] != "qdata":
        yield Claim(name, found["module"] + found["name"], found["word"], _TORCHAO[found["word"]], True)  # fmt: skip
    if (word := end_of(name)) in _AFTER:
        of = name.removesuffix(word)
        sure = of.endswith(".weight") or word == "_scale_inv"
        yield Claim(name, of, word, _AFTER[word], sure)
    leaf = tail_of(name).removeprefix(".")
    if leaf in _BESIDE:
        module = name.rpartition(".")[0]
        sure = leaf in ("SCB", "qzeros", "qscale_weight")
        yield Claim(name, f"{module}.weight", leaf, _BESIDE[leaf], sure)


class LastWord(NamedTuple):
    """Tensors whose names end in the same word, and what such a name says.

    `claims` are about a name that is `stem` and the word; what it says depends on more of the name where
    that is empty: then the word is the name of one tensor.
    """

    word: str
    stem: str
    tensors: list[Typed]
    claims: list[Claim]

    def parts(self, claim: Claim) -> dict[str, Typed]:
        """The tensors by the weight that each is a part of by one of the claims."""
        cut, end = len(self.word), claim.of[len(self.stem) :]
        return {s.name[:-cut] + end: s for s in self.tensors}

    def left(
        self, claim: Claim, parts: dict[str, Typed], weights: Container[str], taken: Container[str]
    ) -> dict[str, Typed]:
        """Those of the parts that are not taken, and that no claim before makes a part of one of the weights."""
        before = [x.of[len(self.stem) :] for x in self.claims[: self.claims.index(claim)]]
        if self.stem and not before:
            return parts
        cut = len(self.word)
        return {
            of: s
            for of, s in parts.items()
            if s.name not in taken and not any(s.name[:-cut] + end in weights for end in before)
        }


def by_last_word(tensors: Iterable[Typed]) -> list[LastWord]:
    """The tensors, grouped by what their names say before the last word."""
    alike: dict[str, list[Typed]] = defaultdict(list)
    alone: list[LastWord] = []
    for s in tensors:
        name = s.name
        dot = name.rfind(".")
        if dot < 1 or ".quant_state." in name:
            alone.append(LastWord(name, "", [s], [*claims_of(name)]))
        else:
            alike[name[dot:]].append(s)
    return [*(LastWord(k, "x", v, [*claims_of(f"x{k}")]) for k, v in alike.items()), *alone]


def tail_of(name: str) -> str:
    """The last word of a name with the dot before it: thousands of tensors share one."""
    return name[max(name.rfind("."), 0) :]


def end_of(name: str) -> str:
    """The longest word that follows the name of a weight in this one."""
    tail = tail_of(name)
    return _end_of_tail(tail) if tail != name else _end_of_tail(name, alone=True)


@lru_cache(maxsize=4096)
def _end_of_tail(tail: str, alone: bool = False) -> str:
    ends = (word for word in _ENDS if tail.endswith(word) and not (alone and tail == word))
    return next(ends, "")


def is_sure_of(claim: Claim, scheme: Scheme | None) -> bool:
    """Whether the declared scheme uses the word, so that a tensor called so is a part."""
    words = {"mxfp4": ("_scales",), "awq": ("scales",), "gptq": ("scales", "g_idx")}
    return scheme is not None and claim.word in words.get(scheme.method, ())
