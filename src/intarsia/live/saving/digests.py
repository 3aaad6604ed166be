"""Digests of what ranks save: each sums the boxes that it writes, and the sums are added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from intarsia.checking.digests.digest import QUICK, Attested, Digests, digest_of
from intarsia.dtypes import DType
from intarsia.errors import FamilyError, SectionError
from intarsia.format.naming.logical_names import divided, name_tensors
from intarsia.format.naming.section import TOP
from intarsia.format.optimizer_state.optimizer_names import is_numbered_name
from intarsia.layout import Layout
from intarsia.mesh import Box, Shape
from intarsia.planning.copy import layout_of_box
from intarsia.planning.manifest import Logical, Stored
from intarsia.run.room import Bytes
from intarsia.run.sums.hashing import Sum, merged_sums, sum_buffer

Sums = Mapping[str, Sum]


@dataclass(frozen=True)
class SaveDigests:
    """What the tensors of a save are made of, as a reader of it will find."""

    layouts: Mapping[str, tuple[Layout, ...]]
    logical: Mapping[str, Logical]
    section: tuple[str, ...] = ()

    @staticmethod
    def of(
        tensors: Iterable[tuple[str, DType, Shape]],
        config: Mapping[str, Any] | None,
        paths: Mapping[str, tuple[str, ...]],
    ) -> SaveDigests | None:
        """Those of the model where a reader leaves nothing out, else of all sections.

        None where the configuration contradicts the tensors, and where state is numbered, whose
        parameters a reader finds by what lies beside.
        """
        held = {n: Stored(n, dtype, Layout.of(n, shape), (), key=n) for n, dtype, shape in tensors}
        ways = map(partial(SaveDigests._of, held, config, paths), [(), (TOP,)] if paths else [()])
        return next((found for found in ways if found is not None), None)

    @staticmethod
    def _of(
        held: Mapping[str, Stored],
        config: Mapping[str, Any] | None,
        paths: Mapping[str, tuple[str, ...]],
        section: tuple[str, ...],
    ) -> SaveDigests | None:
        stored, nested = [*held.values()], {n: paths.get(n, (n,)) for n in held}
        try:
            sections = divided(held, config, "the model", section, paths=nested)
            named = name_tensors(held, config, "the model", sections=sections)
        except (FamilyError, SectionError):
            return None
        if any(map(is_numbered_name, named.stored)):
            return None
        layouts: dict[str, tuple[Layout, ...]] = {}
        for s in named.stored.values():
            layouts[s.key] = (*layouts.get(s.key, ()), s.layout)
        if any(s.key not in layouts for s in stored):
            return None
        return SaveDigests(layouts, named.logical, section)

    def sums(self, name: str, box: Box, data: Bytes, dtype: DType) -> tuple[Sums, int]:
        """The sums of a box of a tensor, by the logical tensors in it, and its CRC-32."""
        found = []
        for layout in self.layouts[name]:
            sizes = {n: self.logical[n].size for n in layout.tensors}
            found.append(sum_buffer(layout_of_box(layout, box), data, dtype.itemsize, sizes))
        return merged_sums(sums for sums, _ in found), found[0][1]

    def attested(self, sums: Iterable[Sums]) -> Attested:
        """The digests of everything, from what all ranks summed."""
        total = merged_sums(sums)
        found = {n: digest_of(x, total.get(n, Sum())) for n, x in self.logical.items()}
        return Attested(Digests(QUICK, found), section=self.section)
