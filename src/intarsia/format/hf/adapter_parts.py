"""What an adapter should hold: PEFT makes new what it does not find, with a warning at most."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from intarsia.errors import few

_PARTS: Mapping[str, tuple[str, ...]] = {
    "ADALORA": ("lora_A", "lora_B", "lora_E"),
    "BOFT": ("boft_R", "boft_s"),
    "C3A": ("c3a_kernel",),
    "DELORA": ("delora_A", "delora_B", "delora_lambda", "delora_w_norm"),
    "FOURIERFT": ("fourierft_spectrum",),
    "GRALORA": ("gralora_A", "gralora_B"),
    "HRA": ("hra_u",),
    "IA3": ("ia3_l",),
    "LOHA": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    "MISS": ("miss_block",),
    "OFT": ("oft_R",),
    "OSF": ("osf_svd_params.S_low", "osf_svd_params.U_low", "osf_svd_params.V_low"),
    "RANDLORA": ("randlora_gamma", "randlora_lambda"),
    "ROAD": ("road_alpha", "road_theta"),
    "SHIRA": ("shira_indices", "shira_weight"),
    "VERA": ("vera_lambda_b", "vera_lambda_d"),
    "WAVEFT": ("waveft_spectrum",),
}
"""By the kind of adapter, how the names of the tensors end that each of its modules has."""

_LOKR = tuple(f"lokr_w{k}{half}" for k in (1, 2) for half in ("", "_a", "_b"))
_HEADS = ("classifier", "score", "qa_outputs")
"""What PEFT puts among the modules to save itself, whichever of them a model has."""

_LAYER = re.compile(r"(.*?\.)(\d+)(\..*)")


def modules_of(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, set[str]]:
    """The modules of an adapter of another kind than LoRA, each with the parts of it that are stored."""
    kind = str(config.get("peft_type"))
    ends = _LOKR if kind == "LOKR" else _PARTS.get(kind, ())
    found: dict[str, set[str]] = {}
    for name in names if ends else ():
        bare = name.removesuffix(".weight")
        for end in ends:
            if bare.endswith(f".{end}"):
                found.setdefault(bare.removesuffix(f".{end}"), set()).add(end)
    return found


def lost_parts(
    config: Mapping[str, Any], modules: Mapping[str, set[str]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What modules lack, where other parts of them are stored."""
    kind = str(config.get("peft_type"))
    for module, held in modules.items():
        wanted = _PARTS.get(kind, ())
        if kind == "LOKR":
            whole = [k for k in (1, 2) if f"lokr_w{k}" in held]
            halves = tuple(f"lokr_w{k}_{x}" for k in (1, 2) if k not in whole for x in "ab")
            wanted = tuple(f"lokr_w{k}" for k in whole) + halves
        lost = [part for part in wanted if part not in held]
        if lost:
            yield f"`{module}` has {', '.join(sorted(held))} and no {', '.join(lost)}", ()


def lost_beside(
    config: Mapping[str, Any], names: Iterable[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What the configuration says is stored whole beside the modules, and nothing of it is."""
    if config.get("trainable_token_indices") and not any(
        name.endswith(".trainable_tokens_delta") for name in names
    ):
        yield "trainable_token_indices are configured, and no trainable_tokens_delta is stored", ()
    saved, lacking = _to_save(config), _not_saved(config, names)
    if saved and len(lacking) == len(saved):
        yield f"modules_to_save are configured ({', '.join(saved)}), and none is stored", ()


def unsaved(config: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """That some of the modules to save are not stored, which a model may lack, too."""
    names = [*names]
    lacking = [x for x in _not_saved(config, names) if x not in _HEADS]
    tokens = config.get("trainable_token_indices")
    for of in tokens if isinstance(tokens, Mapping) else ():
        if not any(
            f".{name}".endswith(f".{of}.token_adapter.trainable_tokens_delta") for name in names
        ):
            yield f"nothing is stored of the trainable tokens of {of}, which is so where it is tied alone"
    if lacking:
        yield (
            f"nothing is stored of {few(lacking, 4)}, named in modules_to_save: if the model has such a"
            " module, PEFT leaves it as it is in the base model"
        )


def _to_save(config: Mapping[str, Any]) -> list[str]:
    saved = config.get("modules_to_save")
    return [str(x) for x in saved] if isinstance(saved, list) else []


def _not_saved(config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The modules to save that have no stored tensor; PEFT takes those whose names end so."""
    saved = _to_save(config)
    joined = "\n".join(names) if saved else ""
    return [x for x in saved if f"{x}." not in joined]


def holes(modules: Iterable[str], what: str, new: str = "") -> Iterator[str]:
    """Modules without a stored tensor, where the same ones of most other layers have some."""
    stacks: dict[str, dict[str, set[int]]] = {}
    for module in modules:
        if found := _LAYER.fullmatch(module):
            before, number, after = found.groups()
            stacks.setdefault(before, {}).setdefault(after, set()).add(int(number))
    for before, held in sorted(stacks.items()):
        layers = set().union(*held.values())
        most = {after: at for after, at in held.items() if 2 * len(at) > len(layers)}
        lost = [f"`{before}{k}{after}`" for after, at in most.items() for k in sorted(layers - at)]
        if lost:
            yield (
                f"no {what} for {few(sorted(lost), 4)}, which most layers have: if they were"
                f" lost, PEFT makes new ones{new}"
            )
