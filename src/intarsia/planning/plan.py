"""A plan: what would move, the proof that it is everything, and what it costs.

A plan is a value: it prints as a table, goes to JSON, and moves nothing.
"""

from __future__ import annotations

from typing import Any

from intarsia.document import Document, in_json
from intarsia.frozen import frozen_open
from intarsia.mesh import Mesh
from intarsia.planning.inventory import LeftOut, lines, tensor_lines
from intarsia.planning.manifest import Manifest, Target
from intarsia.planning.proof import Gap, Proven, prover_of
from intarsia.quantity import human


@frozen_open
class Plan(Document):
    """How a checkpoint becomes another."""

    src: Manifest
    targets: tuple[Target, ...]
    to: str
    mesh: Mesh
    copies: int
    read_bytes: int
    needed_bytes: int
    write_bytes: int
    peak_memory_bytes: int
    proofs: tuple[Proven, ...] = ()
    gaps: tuple[Gap, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Every destination element is written exactly once; every source element is used or named."""
        return not self.gaps

    @property
    def read_amplification(self) -> float:
        """Bytes read for each byte needed."""
        return self.read_bytes / self.needed_bytes if self.needed_bytes else 1.0

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(gap.text for gap in self.gaps)

    def check(self) -> tuple[Proven, ...]:
        """The proof of each target; raise where the plan is not proven."""
        if not self.proven:
            prover_of(self.src).refuse(self.gaps)
        return self.proofs

    def as_json(self) -> dict[str, Any]:
        return {
            "proven": self.proven,
            "src": self.src.path,
            "format": self.src.format,
            "to": self.to,
            "mesh": str(self.mesh),
            "family": self.src.family,
            "tensors": len(self.targets),
            "copies": self.copies,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "read_amplification": round(self.read_amplification, 4),
            "problems": list(self.problems),
            "left_out": in_json(self.left_out),
            "inventory": in_json(self.src.inventory),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        elements, ranks = sum(t.layout.mapped for t in self.targets), self.mesh.size
        rows = [
            ("from", f"{self.src.path} ({self.src.format}, {self.src.family or 'unknown family'})"),
            ("to", f"{self.to}, {self.mesh}" + (f", {ranks} ranks" if ranks > 1 else "")),
            ("tensors", f"{len(self.targets):,} ({elements:,} elements)"),
            ("copies", f"{self.copies:,}"),
            ("reads", f"{human(self.read_bytes)} ({self.read_amplification:.3f} x what is needed)"),
            ("writes", human(self.write_bytes)),
            ("memory", f"at most {human(self.peak_memory_bytes)}"),
            ("proof", "every element arrives exactly once" if self.proven else "NOT PROVEN"),
        ]
        rows += [("problem", text) for text in self.problems[:8]]
        rows += [("left out", text) for text in tensor_lines(self.left_out)]
        rows += [("left out", text) for text in lines(self.src.inventory)]
        rows += [("note", text) for text in self.notes]
        return "\n".join(f"{name:<9}{text}" for name, text in rows)
