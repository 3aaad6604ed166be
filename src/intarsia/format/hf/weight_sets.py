"""Sets of safetensors files: `model.safetensors`, `adapter_model-00001-of-00002.safetensors`, and the like.

The files of a set share a stem, the name that a framework gives to what they hold.  Transformers
reads `model`, PEFT `adapter_model`, diffusers `diffusion_pytorch_model`, Mistral's own code
`consolidated`; `model.fp16` is a variant of `model`, read where a user asks for it by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

MODEL = "model"
ADAPTER = "adapter_model"
INDEX = "model.safetensors.index.json"
_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<k>\d{5,})-of-(?P<n>\d{5,})\.safetensors$")
_INDEX = re.compile(r"^(?P<stem>.+)\.safetensors\.index(?:\.(?P<variant>[^.]+))?\.json$")
_MOST_ABSENT = 100_000
_OWN = (MODEL, ADAPTER, "diffusion_pytorch_model", "consolidated")


def stem_of_file(file: str) -> str:
    """The stem of a file with weights.

    >>> stem_of_file("model.fp16-00001-of-00002.safetensors"), stem_of_file("a.safetensors")
    ('model.fp16', 'a')
    """
    found = _NUMBERED.match(file)
    return found["stem"] if found else file.removesuffix(".safetensors")


def stem_of_index(file: str) -> str | None:
    """The stem that an index is of; None where the file is no index.

    >>> stem_of_index("model.safetensors.index.fp16.json"), stem_of_index("config.json")
    ('model.fp16', None)
    """
    found = _INDEX.match(file)
    if found is None:
        return None
    return f"{found['stem']}.{found['variant']}" if found["variant"] else found["stem"]


def index_of(stem: str) -> str:
    """The name of the index of a stem.

    >>> index_of("model"), index_of("model.fp16")
    ('model.safetensors.index.json', 'model.safetensors.index.fp16.json')
    """
    base, _, variant = stem.rpartition(".")
    if base in _OWN:
        return f"{base}.safetensors.index.{variant}.json"
    return f"{stem}.safetensors.index.json"


def set_size(file: str) -> str:
    """How many files the set has that a numbered file is of, as its name writes it; "" for another.

    >>> set_size("model-00001-of-00002.safetensors")
    '00002'
    """
    found = _NUMBERED.match(file)
    return found["n"] if found else ""


class NumberedSet(NamedTuple):
    """The files of a numbered set that are there, how many it has, and the first of those that are absent."""

    held: list[str]
    total: int
    absent: list[str]


def numbered_set(files: Iterable[str]) -> NumberedSet | None:
    """The one numbered set that these files are of; None where one is of none, or of another.

    >>> numbered_set(["m-00002-of-00002.safetensors"])
    NumberedSet(held=['m-00002-of-00002.safetensors'], total=2, absent=['m-00001-of-00002.safetensors'])
    """
    found = [_NUMBERED.match(file) for file in files]
    sets = {(m["stem"], m["n"], len(m["k"])) if m else None for m in found}
    if len(sets) != 1 or (one := sets.pop()) is None:
        return None
    stem, n, width = one
    held, numbers = {int(m["k"]): m[0] for m in found if m}, range(1, int(n) + 1)
    if not all(k in numbers for k in held):
        return None
    lost = (f"{stem}-{k:0{width}d}-of-{n}.safetensors" for k in numbers if k not in held)
    # A name can claim more files than memory holds names of.
    return NumberedSet([held[k] for k in sorted(held)], int(n), [*islice(lost, _MOST_ABSENT)])


def choose(stems: Iterable[str]) -> str | None:
    """The set that a framework reads: `model`, else the only one that is no variant of another.

    >>> choose(["model", "adapter_model", "consolidated"]), choose(["a", "a.fp16"]), choose(["a", "b"])
    ('model', 'a', None)
    """
    found = set(stems)
    if MODEL in found:
        return MODEL
    plain = [stem for stem in found if stem.rpartition(".")[0] not in found]
    return plain[0] if len(plain) == 1 else None


def is_own(stem: str) -> bool:
    """Whether a framework looks for files of this stem.

    >>> is_own("adapter_model"), is_own("model.fp16"), is_own("weights")
    (True, True, False)
    """
    return stem in _OWN or stem.rpartition(".")[0] in _OWN


def files_by_stem(files: Iterable[str]) -> Mapping[str, list[str]]:
    """The files of each stem."""
    found: dict[str, list[str]] = {}
    for file in files:
        found.setdefault(stem_of_file(file), []).append(file)
    return found
