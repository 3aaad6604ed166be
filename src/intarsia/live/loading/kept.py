"""What a load leaves as it was, and why: it is reported, and refused where everything was asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from intarsia.errors import CoverageError, few
from intarsia.live.model.contents import ModelContents
from intarsia.live.values import Values

ON_META = "it is on `meta`, and neither the checkpoint nor the model says what it holds"
NOT_HANDED = "the state_dict() of its module does not return it"
ADAPTER = "PEFT added it to the model, and the checkpoint holds no adapter"
OF_WEIGHTS = (
    "PEFT added it to the model, made from the weights that the model had before"
    " this load; it still holds those, and the checkpoint holds no adapter"
)
_OF_WEIGHTS = {"modules_to_save", "lora_magnitude_vector"}
"""What PEFT calls copies of the model's own modules, and DoRA's norms of its weights."""
NO_STATE = "the checkpoint has none, and nothing in it says that the parameter was never updated"
NO_SETTINGS = "the checkpoint has none"


def kept_of(
    contents: ModelContents, values: Values, on_meta: Sequence[str], adapters: Collection[str]
) -> dict[str, str]:
    """The names of everything that a load does not fill, each with the reason."""
    found = dict.fromkeys(contents.left_out, NOT_HANDED)
    found |= dict.fromkeys(on_meta, ON_META)
    for name in sorted(adapters):
        found[name] = ADAPTER if _OF_WEIGHTS.isdisjoint(name.split(".")) else OF_WEIGHTS
    return found | dict(values.lost)


def check_kept(kept: Mapping[str, str], where: str) -> None:
    """Raise where something of the model would be left as it was."""
    if not kept:
        return
    name, why = next(iter(kept.items()))
    hint = "load with strict=False, which leaves them as they are"
    if not {ADAPTER, OF_WEIGHTS}.isdisjoint(kept.values()):
        hint += "; or load the model before PEFT wraps it"
    if ON_META in kept.values():
        hint = f"build them on a device, because only the model can compute them; or {hint}"
    raise CoverageError(
        f"{len(kept)} tensors or values of the model are not filled from {where}:"
        f" {few([*kept], 4)}; `{name}`: {why}",
        hint=hint,
    )


def check_handed(contents: ModelContents, on_meta: Mapping[int, Sequence[str]], where: str) -> None:
    """Raise where a tensor that no state dict holds was on `meta`: its memory would hold what lay there before."""
    names = {
        p + h.clean(n) for p, h in contents.modules.items() for n in on_meta.get(id(h.module), ())
    }
    if lost := [name for name in contents.left_out if name in names]:
        raise CoverageError(
            f"{len(lost)} tensors of the model were on `meta`, and its state_dict() does not return them, so"
            f" that nothing of {where} fills them: {few(lost, 4)}",
            hint="build the model on a device",
        )


def check_adapters(left: Collection[str], empty: Sequence[str], where: str) -> None:
    """Raise where adapters that nothing fills are on `meta`, so that there is nothing to leave as it was."""
    if left and empty:
        raise CoverageError(
            f"{len(empty)} tensors of PEFT adapters hold nothing (they were on `meta`), and {where} has none of them:"
            f" {few(empty, 4)}",
            hint="load the model first and add the adapters afterwards (get_peft_model), or load"
            " a checkpoint that was saved with them",
        )
