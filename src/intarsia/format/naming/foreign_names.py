"""Names of another dialect than the table's: recognised, and refused with the step that leads on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from intarsia.errors import ForeignNamesError, few
from intarsia.family import Table

_DIALECTS = (
    (
        r"(?:^|\.)layers\.\d+\.attention\.w[qkvo]\.|(?:^|\.)tok_embeddings\.",
        "the names of Meta's original checkpoints, which torchtitan uses too (their rotary q and k rows"
        " have another order)",
        "write the hub's names first: torchtitan's scripts/checkpoint_conversion/convert_to_hf.py, or"
        " Transformers' convert_llama_weights_to_hf.py",
    ),
    (
        r"(?:^|\.)h\.\d+\.(?:attn\.c_attn|attn\.c_proj|mlp\.c_fc)\.",
        "the names of GPT-2 and nanoGPT",
        "give this model's own configuration (model_type gpt2)",
    ),
    (
        r"(?:^|\.)(?:decoder|encoder)\.layers\.\d+\.(?:self_attention|mlp)\.linear_",
        "Megatron's names, outside of a Megatron checkpoint",
        "give the Megatron checkpoint itself, with its metadata.json or common.pt",
    ),
    (
        r"(?:^|\.)gpt_neox\.|(?:^|\.)attention\.query_key_value\.",
        "the names of GPT-NeoX",
        "give this model's own configuration (model_type gpt_neox)",
    ),
    (
        r"\.lora_[AB]\.|\.lora_embedding_[AB]",
        "the names of an adapter (LoRA)",
        "merge the adapter into its model with PEFT (merge_and_unload), and save that",
    ),
)
_BY_NAME = (
    "leave the configuration out: the tensors are then carried name by name between hf and dcp"
)


def refuse_foreign(names: Iterable[str], table: Table, where: str) -> None:
    """Raise where a model has names, and the table of its family knows none of them."""
    held = list(names)
    known = table.known
    if held and not any(name in known for name in held):
        raise foreign_names(held, table.family, where, table=table)


def foreign_names(
    names: Sequence[str],
    family: str,
    where: str,
    *,
    table: Table | None = None,
    step: str = "",
    of: int = 0,
) -> ForeignNamesError:
    """None of the names is the model's, `of` how many if not of all; `step` is what to do, where the caller knows it."""
    kind, usual = ("", "") if step else _dialect(names, table)
    shown = few([f"`{name}`" for name in names], 3)
    homes = ", in Transformers or in Megatron" if table else " or in Transformers"
    count = f"none of the {len(names)} tensors has"
    if of:
        count = f"{len(names)} of {of} tensors do not have"
    step = step or usual or "if the configuration is another model's, give the right one"
    return ForeignNamesError(
        f"{count} a name that {family} has on the hub{homes}{kind}: {shown}",
        at=where,
        hint=f"{step}; or {_BY_NAME}",
    )


def _dialect(names: Sequence[str], table: Table | None) -> tuple[str, str]:
    """Whose names these are, if that is known, and what to do."""
    for pattern, whose, step in _DIALECTS:
        if any(re.search(pattern, name) for name in names):
            return f"; these are {whose}", step
    if table is not None and any(table.hf + name in table.known for name in names):
        whose = f"the names of a base model, which begin with {table.hf!r} in the whole model"
        return f"; these are {whose}", "save the model with its head (AutoModelForCausalLM)"
    return "", ""
