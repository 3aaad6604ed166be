"""Words that wrappers put into the names of parameters, taken out in one place for files and live models.

`_orig_mod` (torch.compile), `_fsdp_wrapped_module` and `_checkpoint_wrapped_module` belong to nobody but
their wrapper.  `module` (DDP) is also a fair name for a submodule: it goes only where that leads to a
name that is known.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import combinations

from intarsia.errors import FamilyError

WORDS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
MODULE = "module"
_MANY = 4
"""More words `module` than this in one name are taken out together."""


def bare(name: str) -> str:
    """A name without the words that only wrappers use.

    >>> bare("model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight")
    'model.layers.0.mlp.up_proj.weight'
    """
    if "._" not in name and name[:1] != "_":
        return name
    return ".".join(word for word in name.split(".") if word not in WORDS)


def without_wrappers(name: str, known: Container[str]) -> str | None:
    """The known name that a bare one is with some, all or none of its words `module` left out.

    >>> without_wrappers("encoder.module.weight", {"encoder.weight"})
    'encoder.weight'
    """
    if name in known:
        return name
    words = name.split(".")
    at = [k for k, word in enumerate(words) if word == MODULE]
    if not at:
        return None
    counts = range(1, len(at) + 1) if len(at) <= _MANY else (len(at),)
    ways = (way for count in counts for way in combinations(at, count))
    spelled = (".".join(w for k, w in enumerate(words) if k not in way) for way in ways)
    found = list(dict.fromkeys(each for each in spelled if each in known))
    if len(found) > 1:
        raise FamilyError(
            f"`{name}` is `{found[0]}` or `{found[1]}`, depending on which `module` in it"
            " belongs to a wrapper",
            hint="save the model without its wrapper (ddp.module.state_dict())",
            tensors=(name,),
        )
    return found[0] if found else None
