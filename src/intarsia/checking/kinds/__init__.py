"""The registry of fault kinds: what `verify A`, `verify A B`, the page and the documents say of each."""

from __future__ import annotations

from intarsia.checking.kinds.alone import ALONE
from intarsia.checking.kinds.kind import FaultKind
from intarsia.checking.kinds.pair import PAIR

KINDS = {kind.name: kind for kind in (*ALONE, *PAIR)}

__all__ = ["ALONE", "KINDS", "PAIR", "FaultKind"]
