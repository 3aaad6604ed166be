"""The proof that each element of what is wanted has exactly one source, for every path that reads."""

from intarsia.planning.proof.links import Gap
from intarsia.planning.proof.prover import (
    AlikeTensors,
    Proofs,
    Proven,
    Prover,
    prover_of,
)
from intarsia.planning.proof.tiling import check_tiling

__all__ = [
    "AlikeTensors",
    "Gap",
    "Proofs",
    "Proven",
    "Prover",
    "check_tiling",
    "prover_of",
]
