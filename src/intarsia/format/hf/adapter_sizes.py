"""The sizes that the configuration of an adapter gives its tensors, as PEFT makes them.

Axes whose size depends on the model are free, and so are those that PEFT adjusts to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import isqrt
from typing import Any

ROOT = "base_model.model."
"""What PEFT looks for a factor under; it leaves a module out of whose names it finds none."""

_PLAIN = re.compile(r"[\w.^$\\]*")
"""Expressions that repeat nothing, so that a name is matched in a moment whoever wrote them."""

Config = Mapping[str, Any]
Shape = tuple[int, ...]
Size = Callable[[Config, str], int | None]


def adapter_misfits(
    config: Config, shapes: Mapping[str, Shape]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What has other sizes than the configuration gives, in words, and the tensor."""
    leaves = _LEAVES.get(str(config.get("peft_type")), {})
    for name, shape in shapes.items() if leaves else ():
        module, _, leaf = name.removesuffix(".weight").rpartition(".")
        axes = leaves.get(leaf, ())
        want = [axis(config, module) for axis in axes]
        if len(axes) == len(shape) and any(n not in (None, m) for n, m in zip(want, shape, strict=True)):  # fmt: skip
            sizes = ", ".join("…" if n is None else str(n) for n in want)
            yield f"`{name}` has shape {list(shape)}, the configuration gives [{sizes}]", (name,)
        elif leaf == "oft_R" and (text := _wrong_blocks(config, shape)):
            yield f"`{name}` has shape {list(shape)}, which {text}", (name,)


def ranks_of(config: Config, module: str) -> list[Any]:
    """The ranks that a module's factors of LoRA may have: one, or all that are said where it is in doubt.

    PEFT takes the first key of `rank_pattern` that its name ends with, and `r` where none fits.
    """
    said, patterns = config.get("r"), config.get("rank_pattern")
    patterns = patterns if isinstance(patterns, Mapping) else {}
    in_doubt = [said, *patterns.values()]
    for key, rank in patterns.items():
        if not _PLAIN.fullmatch(key):
            return in_doubt
        try:
            fits = re.match(rf"(.*\.)?({key})$", module.removeprefix(ROOT))
        except re.error:
            return in_doubt
        if fits:
            return [rank]
    return [said]


def _any(_config: Config, _module: str) -> None:
    return None


def _one(_config: Config, _module: str) -> int:
    return 1


def _of(setting: str) -> Size:
    """A size that a setting states; 0 states none."""

    def size(config: Config, _: str) -> int | None:
        said = config.get(setting)
        return said if type(said) is int and said else None

    return size


def _times(*settings: str, by: int = 1) -> Size:
    """The product of what several settings state."""

    def size(config: Config, module: str) -> int | None:
        product = by
        for setting in settings:
            if (said := _of(setting)(config, module)) is None:
                return None
            product *= said
        return product

    return size


def _rank(config: Config, module: str) -> int | None:
    """The one rank of all modules, where there is one, and convolutions do not turn its axes."""
    alike = not config.get("rank_pattern") and not config.get("use_effective_conv2d")
    return _of("r")(config, module) if alike else None


def _ranks_left(config: Config, module: str) -> int | None:
    """The ranks that AdaLoRA left a module: all that it began with, or those that its pattern marks."""
    patterns = config.get("rank_pattern")
    if not isinstance(patterns, Mapping):
        return _of("init_r")(config, module)
    kept = patterns.get(f"{module.removeprefix(ROOT)}.lora_E")
    return sum(map(bool, kept)) if isinstance(kept, list) else None


def _frequencies(config: Config, module: str) -> int | None:
    return None if config.get("n_frequency_pattern") else _of("n_frequency")(config, module)


def _tokens(setting: str) -> Size:
    """As many rows as tokens are listed: for all modules, or for each by how its name ends."""

    def size(config: Config, module: str) -> int | None:
        said = config.get(setting)
        if isinstance(said, Mapping):
            of = f".{module.removesuffix('.token_adapter')}"
            said = next((x for name, x in said.items() if of.endswith(f".{name}")), None)
        return len(said) if isinstance(said, list) else None

    return size


def _wrong_blocks(config: Config, shape: Shape) -> str:
    """Blocks of OFT, each the triangle above a diagonal; PEFT takes others where those asked for do not divide."""
    if len(shape) != 2:
        return ""
    blocks, block = shape[0], (1 + isqrt(1 + 8 * shape[1])) // 2
    if block * (block - 1) // 2 != shape[1]:
        return "is no block's triangle"
    if config.get("block_share"):
        return "" if blocks == 1 else "is several blocks, and block_share is configured"
    for setting, found in (("oft_block_size", block), ("r", blocks)):
        said = _of(setting)(config, "")
        if said and found != said and blocks * block % said == 0:
            return f"is {blocks} blocks of {block}, and the configuration says {setting} {said}"
    return ""


_PROMPT = {"prompt_embeddings": (_times("num_virtual_tokens", "num_transformer_submodules"), _of("token_dim"))}  # fmt: skip

_LEAVES: Mapping[str, Mapping[str, tuple[Size, ...]]] = {
    "LORA": {"trainable_tokens_delta": (_tokens("trainable_token_indices"), _any)},
    "TRAINABLE_TOKENS": {"trainable_tokens_delta": (_tokens("token_indices"), _any)},
    "ADALORA": {"lora_A": (_ranks_left, _any), "lora_B": (_any, _ranks_left), "lora_E": (_ranks_left, _one)},
    "LOHA": {f"hada_w{k}_{x}": (_any, _rank) if x == "a" else (_rank, _any) for k in (1, 2) for x in "ab"},
    "LOKR": {f"lokr_w{k}_{x}": (_any, _rank) if x == "a" else (_rank, _any) for k in (1, 2) for x in "ab"},
    "VERA": {"vera_lambda_d": (_of("r"),), "vera_A": (_of("r"), _any), "vera_B": (_any, _of("r"))},
    "HRA": {"hra_u": (_any, _of("r"))},
    "OFT": {"oft_R": ()},
    "BOFT": {"boft_R": (_any, _of("boft_block_num"), _of("boft_block_size"), _of("boft_block_size"))},
    "FOURIERFT": {"fourierft_spectrum": (_frequencies,)},
    "VBLORA": {"vblora_vector_bank": (_of("num_vectors"), _of("vector_length"))},
    "ADAPTION_PROMPT": {"adaption_prompt": (_one, _of("adapter_len"), _any)},
    "PROMPT_TUNING": _PROMPT,
    "P_TUNING": _PROMPT,
    "PREFIX_TUNING": {"prompt_embeddings": (_of("num_virtual_tokens"), _times("num_layers", "token_dim", by=2))},
}  # fmt: skip
"""By the kind of adapter and the last word of a name, the size of each axis."""
