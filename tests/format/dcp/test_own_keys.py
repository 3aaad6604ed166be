"""A state dict that is carried whole goes under the keys that it had, unless one of them is taken."""

from __future__ import annotations

import pytest

from intarsia.dtypes import BY_NAME
from intarsia.errors import FormatError
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.dcp.own_keys import with_own_keys
from intarsia.layout import Layout
from intarsia.planning.manifest import Manifest, SavedStateDict, Stored

F32 = BY_NAME["F32"]
WRITTEN = "model.w", "optimizer.state.w.exp_avg"


def metadata(*names: str) -> Metadata:
    return Metadata({name: TensorRecord(name, F32, (), ()) for name in names}, {})


def source(key: str) -> Manifest:
    named = {"model.w": "model._orig_mod.w", "optimizer.exp_avg.w": key}
    stored = {n: Stored(n, F32, Layout.of(n, ()), (), key=on_disk) for n, on_disk in named.items()}
    saved = SavedStateDict({}, {"model._orig_mod.w": ("model", "_orig_mod.w")})
    return Manifest("dcp", "here", stored, {}, {}, saved=saved)


def test_every_tensor_gets_the_key_and_the_path_that_it_had() -> None:
    moved = with_own_keys(source("optim.state.0.exp_avg"), metadata(*WRITTEN))
    keys = ["model._orig_mod.w", "optim.state.0.exp_avg"]
    assert [*moved.tensors] == [x.name for x in moved.tensors.values()] == keys
    assert moved.paths == {keys[0]: ("model", "_orig_mod.w"), keys[1]: (keys[1],)}


def test_a_key_that_is_taken_is_refused() -> None:
    with pytest.raises(FormatError, match=r"`state\.w\.exp_avg` would be the key of two things"):
        with_own_keys(source("state.w.exp_avg"), metadata(*WRITTEN, "state.w.exp_avg"))
