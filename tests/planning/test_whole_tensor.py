"""Tensors that lie whole in a file: values are made of the others alone."""

from __future__ import annotations

from intarsia.dtypes import BY_NAME
from intarsia.planning.made_when_asked import MadeWhenAsked
from intarsia.planning.manifest import Stored
from intarsia.planning.whole_tensor import WholeTensor, not_whole


def test_of_whole_tensors_no_value_is_made() -> None:
    whole = [WholeTensor(name, BY_NAME["F32"], (2,), 8, 8, "file") for name in ("a", "b", "c")]
    made: list[str] = []

    def make(x: WholeTensor | Stored) -> Stored:
        made.append(x.name)
        return x if isinstance(x, Stored) else x.stored()

    held = {"a": whole[0], "b": whole[1].stored(), "c": whole[2]}
    assert not_whole(MadeWhenAsked(held, make)) == [held["b"]]
    assert made == ["b"]
    assert not_whole({"a": whole[0].stored()}) == [whole[0].stored()]
