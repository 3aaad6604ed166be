"""What each dimension of a device mesh is for.

    replicate   the same shards again, on other data (HSDP)
    fsdp        dense parameters are cut; experts too, where asked; other data
    ep          experts are dealt out; dense parameters are cut here as well; other data
    tp          layers are cut; the same data

So a rank's data are its own along every dimension but `tp`, dense parameters are cut over `fsdp`
and `ep` together, and no dimension is left on which ranks would drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch.distributed.device_mesh import DeviceMesh

from intarsia.errors import UsageError

ORDER = ("replicate", "fsdp", "ep", "tp")


class Usual(str):
    """The name of a dimension that is used where the mesh has it, and was not asked for."""

    __slots__ = ()


TP, EP, FSDP = Usual("tp"), Usual("ep"), Usual("dp")


@dataclass(frozen=True)
class Roles:
    """A mesh, and the name of the dimension that plays each role; `None`: nobody does."""

    mesh: DeviceMesh
    replicate: str | None
    fsdp: str | None
    ep: str | None
    tp: str | None

    @classmethod
    def of(
        cls,
        mesh: DeviceMesh,
        *,
        tp: str | None = TP,
        ep: str | None = EP,
        fsdp: str | None = FSDP,
        replicate: str | None = None,
    ) -> Roles:
        """The roles on this mesh; a dimension of one rank plays none.

        Refuses a name that the mesh lacks, a dimension without a role, and another order.
        """
        names = mesh.mesh_dim_names
        if not names:
            raise UsageError(
                "the dimensions of the mesh have no names",
                hint='init_device_mesh(..., mesh_dim_names=("dp", "ep"))',
            )
        asked = {"replicate": replicate, "fsdp": fsdp, "ep": ep, "tp": tp}
        for role, name in asked.items():
            if name is not None and name not in names and not isinstance(name, Usual):
                raise UsageError(f"{role}={name!r}: the mesh has the dimensions {list(names)}")
        sizes = dict(zip(names, mesh.mesh.shape, strict=True))
        found = {r: str(n) for r, n in asked.items() if n is not None and sizes.get(n, 1) > 1}
        if len(set(found.values())) < len(found):
            raise UsageError(f"one dimension of the mesh plays two roles: {found}")
        for name in names:
            if sizes[name] > 1 and name not in found.values():
                raise UsageError(
                    f"the mesh dimension {name!r} of {sizes[name]} ranks has no role",
                    hint="name it (fsdp=, ep=, tp=, replicate=), or pass a part of the mesh",
                )
        ordered = [found[role] for role in ORDER if role in found]
        if ordered != [name for name in names if name in ordered]:
            raise UsageError(
                f"the mesh has the dimensions {list(names)}, which play {found}",
                hint=f"put them in the order {', '.join(ordered)}",
            )
        if "replicate" in found and not found.keys() & {"fsdp", "ep"}:
            raise UsageError(
                f"replicate={replicate!r} copies shards, and no dimension of the mesh shards",
                hint=f"name {replicate!r} as fsdp",
            )
        return cls(mesh, *(found.get(role) for role in ORDER))

    def size(self, *names: str | None) -> int:
        """How many ranks these dimensions span."""
        dims = self.mesh.mesh_dim_names or ()
        return prod(self.mesh.size(dims.index(name)) for name in names if name)

    def over(self, *names: str | None) -> DeviceMesh | None:
        """The part of the mesh with these dimensions, or None where none of them is used."""
        used = tuple(name for name in names if name)
        return self.mesh[used] if used else None

    @property
    def dense(self) -> DeviceMesh | None:
        """Where FSDP cuts dense parameters: `fsdp` and `ep` as one dimension."""
        cut = self.over(self.fsdp, self.ep)
        if cut is not None and cut.ndim > 1:
            cut = cut._flatten("_".join(cut.mesh_dim_names or ()))
        return self._replicated(cut)

    @property
    def expert(self) -> DeviceMesh | None:
        """Where FSDP cuts experts further; None where `ep` is all there is."""
        return self._replicated(self.over(self.fsdp))

    def _replicated(self, cut: DeviceMesh | None) -> DeviceMesh | None:
        if cut is None or self.replicate is None:
            return cut
        return DeviceMesh._concatenate([self.mesh[self.replicate], cut])


_tp_on: dict[DeviceMesh, set[str | None]] = {}
"""The dimension of each mesh that models were cut along by `parallelize`."""


def remember(roles: Roles) -> None:
    """Keep in mind which dimension of a mesh is `tp`, for `batch_place`."""
    _tp_on.setdefault(roles.mesh, set()).add(roles.tp)


def _used_tp(mesh: DeviceMesh, usual: str) -> str | None:
    """The dimension along which ranks share their data; raise where nothing says which one it is."""
    names = mesh.mesh_dim_names or ()
    used = _tp_on.get(mesh, set())
    if len(used) == 1:
        return next(iter(used))
    known = (TP, EP, FSDP, *ORDER)
    strange = [n for k, n in enumerate(names) if n not in known and mesh.size(k) > 1]
    if used or (usual not in names and strange):
        raise UsageError(
            f"nothing says whether ranks along {strange or list(names)} of the mesh share their data",
            hint=f"name the dimension of tensor parallelism, tp={(strange or list(names))[0]!r}, or tp=None",
        )
    return usual


def batch_place(mesh: DeviceMesh, *, tp: str | None = TP) -> tuple[int, int]:
    """Which of how many batches this rank trains on; ranks of one `tp` group share theirs.

    On a mesh of dp=2, ep=2, tp=2, ranks 0 and 1 are at (0, 4), ranks 6 and 7 at (3, 4).  `tp` is
    the dimension that a model was parallelized with on this mesh, unless another is named.
    """
    if isinstance(tp, Usual):
        tp = _used_tp(mesh, tp)
    place, count = 0, 1
    for at, name in enumerate(mesh.mesh_dim_names or ()):
        if name != tp:
            place = place * mesh.size(at) + mesh.get_local_rank(at)
            count *= mesh.size(at)
    return place, count
