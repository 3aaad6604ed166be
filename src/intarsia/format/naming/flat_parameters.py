"""Flat parameters: all parameters of an FSDP 1 unit one after another, as `LOCAL_STATE_DICT` saves them.

Names, shapes and padding of what is inside are in no file, so nothing but the wrapped model reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from intarsia.errors import ForeignNamesError
from intarsia.format.naming.section import TensorHeader

SAVE_AGAIN = (
    "load them into the FSDP model that saved them, on as many ranks, and save again with"
    " StateDictType.SHARDED_STATE_DICT or FULL_STATE_DICT (torch's get_model_state_dict)"
)
AS_SAVED = "; --to dcp carries them as they are"
_NAME = re.compile(r"(?:^|\.)_?flat_param\Z")


def flat_parameters(tensors: Mapping[str, TensorHeader]) -> list[str]:
    """The names of tensors that are flat parameters."""
    if "flat_param" not in "\n".join(tensors):
        return []
    return [n for n, x in tensors.items() if _NAME.search(n) and len(x.shape) == 1]


def what_they_are(flat: Iterable[str]) -> str:
    """What is to be known of flat parameters."""
    first, *more = flat
    others = f" and {len(more)} more" if more else ""
    return (
        f"`{first}`{others} are flat parameters of FSDP 1 (StateDictType.LOCAL_STATE_DICT): which"
        " parameters of the model they hold is not stored"
    )


def refuse_flat(flat: Iterable[str], where: str, instead: str = "") -> None:
    """Raise where parameters of a model are asked for and there are flat ones."""
    if held := tuple(flat):
        raise ForeignNamesError(what_they_are(held), at=where, hint=SAVE_AGAIN + instead)
