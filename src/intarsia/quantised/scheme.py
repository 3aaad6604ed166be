"""What a configuration says about how weights are quantised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from intarsia.frozen import frozen

Config = Mapping[str, Any]

_KEYS = ("quantization_config", "compression_config")
_LOOSE = ("dense", "fake-quantized")
"""Formats of compressed-tensors whose weights may be stored as they were before."""


@frozen
class Scheme:
    """A way to quantise, as the configuration declares it.

    `per` is what one scale is for: "tensor", "channel", "group", "block", or "" where nothing
    says; `block` are the rows and columns of a block.  `loose` says that weights may be stored
    in full precision beside their scales.  `ways` are the ways of some weights each, in words,
    where they are not all quantised alike.
    """

    method: str
    format: str = ""
    per: str = ""
    block: tuple[int, int] | None = None
    group: int = 0
    bits: int = 0
    symmetric: bool = True
    loose: bool = False
    ways: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [self.method or "quantised"]
        if self.format and self.format != self.method:
            words.append(self.format)
        if self.bits and self.method not in ("fp8", "mxfp4"):
            words.append(f"{self.bits} bits")
        if self.block is not None:
            words.append(f"block {self.block[0]}x{self.block[1]}")
        elif self.group:
            words.append(f"group {self.group}")
        elif self.per:
            words.append(f"per {self.per}")
        return " ".join(words)


def scheme_of(config: Config | None, modelopt: Config | None = None) -> Scheme | None:
    """The scheme that a model's configuration declares; `modelopt` is what `hf_quant_config.json` says."""
    found = list(dict.fromkeys(map(_scheme, _declared(config or {}))))
    if not found and modelopt is not None:
        inner = modelopt.get("quantization", modelopt)
        if isinstance(inner, Mapping) and inner.get("quant_algo"):
            found = [_modelopt(inner)]
    if len(found) > 1:
        return Scheme(" and ".join(s.method for s in found))
    return found[0] if found else None


def _declared(config: Config) -> Iterator[Config]:
    """The declarations of a configuration and of the text model inside it."""
    inner: tuple[Any, ...] = (config.get("text_config"), config.get("llm_config"))
    for holder in (config, *inner):
        for key in _KEYS if isinstance(holder, Mapping) else ():
            if isinstance(said := holder.get(key), Mapping) and said:
                yield said


def _scheme(said: Config) -> Scheme:
    method = str(said.get("quant_method") or "").lower().replace("_", "-")
    if method == "compressed-tensors" or "config_groups" in said:
        return _compressed(said) if method != "modelopt" else _modelopt(said)
    if method == "modelopt":
        return _modelopt(said)
    if method in ("bitsandbytes", "") and (said.get("load_in_4bit") or said.get("load_in_8bit")):
        bits = 4 if said.get("load_in_4bit") else 8
        code = said.get("bnb_4bit_quant_type") if bits == 4 else ""  # Transformers names one always
        return Scheme("bitsandbytes", str(code or ""), bits=bits)
    block = said.get("weight_block_size", ())
    if method in ("fp8", "mxfp8") or block:
        pair = _block(block)
        per = "block" if pair else "" if "weight_block_size" not in said else "tensor or channel"
        return Scheme(method or "fp8", per=per, block=pair)
    group = _whole(said.get("group_size", said.get("q_group_size", 0)))
    if method in ("awq", "gptq"):
        format = str(said.get("checkpoint_format") or said.get("version") or "").lower()
        format = format or ("gptq" if method == "gptq" else "")  # zero points less one, as ever
        bits = _whole(said.get("bits", said.get("w_bit", 4)))
        symmetric = not said.get("zero_point", True) if method == "awq" else bool(said.get("sym"))
        if exceptions := _exceptions(said.get("dynamic")):
            ways = (f"{bits} bits group {group}", *exceptions)
            return Scheme(method, format, symmetric=symmetric, ways=ways)
        per = "group" if group >= 0 else "channel"  # -1 is one group for all inputs of an output
        return Scheme(method, format, per, None, max(group, 0), bits, symmetric)
    return Scheme(method, group=max(group, 0))


def _exceptions(dynamic: Any) -> list[str]:
    """How GPTQModel quantised some modules otherwise; patterns that begin with "-:" are of those that it left alone."""
    patterns = dynamic if isinstance(dynamic, Mapping) else {}
    ways = (x for pattern, x in patterns.items() if x and not f"{pattern}".startswith("-:"))
    deciding = ("bits", "group_size", "sym")
    said = (
        ", ".join(f"{k} {x[k]}" for k in deciding if k in x) for x in ways if isinstance(x, Mapping)
    )
    return sorted({*filter(None, said)})


def _compressed(said: Config) -> Scheme:
    """compressed-tensors; groups that are quantised in different ways declare nothing together."""
    format = str(said.get("format") or "")
    loose = format in _LOOSE or str(said.get("quantization_status") or "compressed") != "compressed"
    groups = said.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = [g.get("weights") or {} for g in groups if isinstance(g, Mapping)]
    formats = {str(g.get("format") or format) for g in groups if isinstance(g, Mapping)}
    if len(formats) == 1:
        format = next(iter(formats))
    ways = []
    for w in weights:
        if isinstance(w, Mapping):
            per, block = str(w.get("strategy") or ""), _block(w.get("block_structure"))
            group, bits = max(_whole(w.get("group_size")), 0), _whole(w.get("num_bits"))
            numbers = per, block, group, bits, bool(w.get("symmetric", True))
            ways.append(Scheme("compressed-tensors", format, *numbers, loose))
    alike = len(set(ways)) == 1 and len(formats) == 1
    if alike:
        return ways[0]
    words = {f"{way}{'' if way.symmetric else ' asymmetric'}" for way in ways}
    return Scheme("compressed-tensors", format, loose=loose, ways=tuple(sorted(words)))


def _modelopt(said: Config) -> Scheme:
    algorithm = str(said.get("quant_algo") or "").lower().replace("_", "-")
    group = _whole(said.get("group_size", 16 if algorithm == "nvfp4" else 0))
    return Scheme("modelopt", algorithm, group=max(group, 0))


def _block(said: Any) -> tuple[int, int] | None:
    if isinstance(said, str):
        said = [int(x) for x in said.split("x") if x.isdecimal()]
    if isinstance(said, (list, tuple)) and len(said) == 2 and all(_whole(x) > 0 for x in said):
        return int(said[0]), int(said[1])
    return None


def _whole(value: Any) -> int:
    return value if type(value) is int else 0
