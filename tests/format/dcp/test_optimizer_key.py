"""The optimizer goes under another key with all of its names, unless one of them is taken."""

from __future__ import annotations

import pytest

from intarsia.dtypes import BY_NAME
from intarsia.errors import FormatError
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.dcp.optimizer_key import with_optimizer_at

NAMES = "model.w", "optimizer.state.w.exp_avg"


def metadata(*names: str) -> Metadata:
    return Metadata({name: TensorRecord(name, BY_NAME["F32"], (), ()) for name in names}, {})


def test_the_names_of_the_optimizer_alone_are_moved() -> None:
    moved = with_optimizer_at("optim.", metadata(*NAMES))
    assert {n: x.name for n, x in moved.tensors.items()} == {
        n: n for n in ("model.w", "optim.state.w.exp_avg")
    }


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(FormatError, match=r"`state\.w\.exp_avg` would be a name of the optimizer"):
        with_optimizer_at("", metadata(*NAMES, "state.w.exp_avg"))
