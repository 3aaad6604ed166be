"""Slots in columns are as good as tuples of slots."""

from __future__ import annotations

import pytest

from intarsia.errors import CoverageError
from intarsia.format.arrangement import Arrangement, Slot, SlotColumns, in_columns, joined_places
from intarsia.mesh import Box

FIRST, SECOND = Box((0, 0), (2, 3)), Box((2, 0), (2, 3))
A = (Slot(FIRST, "f", 8), Slot(SECOND, "g", 0, None, 3))
B = (Slot(FIRST, "h", 80), Slot(SECOND, "f", 90))
C = (Slot(FIRST, "g", 200),)


def test_slots_come_out_of_columns_as_they_went_in() -> None:
    a, b, c, none = in_columns([A, B, C, ()])
    assert [a, b, c, none] == [A, B, C, ()]
    assert a.wrapped is b.wrapped
    assert a.wrapped is not c.wrapped
    arranged = Arrangement({}, {"a": A, "c": C})
    assert arranged.columns == arranged.slots


def test_columns_stay_as_they_are() -> None:
    a, b = in_columns([A, B])
    again = in_columns([C, b, a])
    assert again == [C, B, A]
    assert again[1] is b


@pytest.mark.parametrize("together", [True, False])
def test_places_of_several_targets_are_joined(together: bool) -> None:
    a, b, c = in_columns([A, B, C]) if together else (x for y in (A, B, C) for x in in_columns([y]))
    for some in ([a, b, c], [c, a], [b, b], [a], []):
        slots = [slot for each in some for slot in each]
        names, files, starts, gaps = joined_places(some)
        assert [names[k] for k in files] == [slot.file for slot in slots]
        assert starts.tolist() == [slot.start_bytes for slot in slots]
        assert gaps.tolist() == [slot.gap_bytes for slot in slots]


@pytest.mark.parametrize("start", [0.5, 1 << 63, "8"])
def test_a_place_is_a_whole_number(start: object) -> None:
    with pytest.raises(CoverageError, match="whole numbers of bytes"):
        in_columns([A, (Slot(FIRST, "f", start),)])  # type: ignore[arg-type]


def test_values_are_made_when_they_are_asked_for() -> None:
    (a,) = in_columns([A])
    assert isinstance(a, SlotColumns)
    assert len(a) == 2
    assert not hasattr(a, "_made")
    assert a[1] == A[1]
    assert a[1] is a[1]
