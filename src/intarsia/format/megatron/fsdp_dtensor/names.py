"""From Megatron-FSDP's tensors to logical ones: weights, main weights, and optimizer state.

A state has its parameter's layout, so its shape must be the parameter's too.  Where it is not,
some rank saved its own part of a plain tensor as if it were the whole, and the rest is lost: the
state is then known by name, has no chunks, and no plan that needs it can be proven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from intarsia.dtypes import BY_NAME
from intarsia.errors import FamilyError, FormatError, IntarsiaError, few
from intarsia.family import Param, Table
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.dcp.archives import stored_record
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.megatron.fsdp_dtensor.keys import (
    FsdpRows,
    KeySection,
    TensorParallel,
    is_numbered,
    section_of,
)
from intarsia.format.megatron.keys import Key
from intarsia.format.megatron.named_tensors import BY_THEIR_NAMES, MegatronTensors
from intarsia.format.megatron.optimizer.state_tensors import state_row
from intarsia.layout import Layout
from intarsia.mesh import Rule
from intarsia.planning.problem import Problem
from intarsia.state.names import MASTER, STEP, StateName, step_of

_FLOAT = BY_NAME["F32"]
_BUFFERS = ("expert_bias",)


def name_tensors(
    records: Sequence[TensorRecord],
    table: Table | None,
    tp: TensorParallel,
    config: Mapping[str, Any] | None,
    numbers: Mapping[str, str] | None = None,
    complain: Complain = refuse,
) -> MegatronTensors:
    """Give every tensor the layout that its name stands for; `numbers` are names of numbered parameters."""
    found = MegatronTensors()
    if table is None:
        for record in records:
            found.add(stored_record(record))
        why = "no model configuration, and the stored arguments do not determine the family"
        if config:
            why = f"model_type {config.get('model_type')!r} has no table"
        found.notes.append(f"{why}: {BY_THEIR_NAMES}")
        return found
    reader = _TensorReader(table, tp, found, complain)
    sections = [(record, _named(section_of(record.name), numbers or {})) for record in records]
    states = [(r, s) for r, s in sections if s is not None and s.kind]
    trained = any(s.kind != MASTER for _, s in states)
    apart = {s.name for _, s in states if s.kind == MASTER}
    for record, section in sections:
        if section is None or not section.kind:
            reader.weight(
                record, section, trained and section is not None and section.name not in apart
            )
    for record, section in states:
        reader.state(record, section)
    reader.close(len(states))
    return found


def _named(section: KeySection | None, numbers: Mapping[str, str]) -> KeySection | None:
    if section is None or not is_numbered(section):
        return section
    return section._replace(name=numbers.get(section.name, section.name))


class _TensorReader:
    """The tensors of one checkpoint as they are read: the model's first, then their states."""

    def __init__(
        self, table: Table, tp: TensorParallel, found: MegatronTensors, complain: Complain
    ) -> None:
        self.table, self.tp, self.found, self.complain = table, tp, found, complain
        self.rows = FsdpRows(table)
        self.params: dict[str, Param] = {}
        self.unknown: list[str] = []
        self.cut: list[Problem] = []

    def weight(self, record: TensorRecord, section: KeySection | None, master: bool) -> None:
        name = section.name if section else record.name
        try:
            row = self.rows.find(name, record.shape, self.tp)
        except IntarsiaError as error:
            whole = self.rows.rows.row(Key.parse(name))
            self._complain(error, record, whole.layout.tensors if whole else (name,))
            row = Param(name, Layout.of(name, record.shape), Rule())
        if row is None:
            self.unknown.append(record.name)
            row = Param(name, Layout.of(name, record.shape), Rule())
        self.params[name] = row
        self._add(record, row)
        if master and record.dtype == _FLOAT and not name.endswith(_BUFFERS):
            self._add(record, state_row(row, MASTER))

    def state(self, record: TensorRecord, section: KeySection) -> None:
        numbered = is_numbered(section)
        row = None if numbered else self.params.get(section.name)
        if row is None and not numbered:
            error = FormatError(
                f"`{record.name}` is the state of a parameter that is not in the model section",
                hint="the checkpoint is incomplete: use one that is whole",
                kind="tensor-missing",
                tensors=(record.name,),
            )
            self._complain(error, record, (section.name,))
        if row is None:
            name = str(StateName(section.kind, section.name))
            self._add(record, Param(name, Layout.of(name, record.shape), Rule()))
            return
        if section.kind == STEP:
            self._step(record, row)
            return
        twin = state_row(row, section.kind)
        if record.shape == row.layout.shape:
            self._add(record, twin)
            return
        text = f"`{record.name}` has shape {list(record.shape)}, its parameter {list(row.layout.shape)}"
        self.cut.append(Problem("elements-missing", (record.name,), record.files, text))
        self._add(replace(record, chunks=()), twin)

    def _step(self, record: TensorRecord, row: Param) -> None:
        """One counter stands for every logical tensor of its parameter."""
        plain = stored_record(record)
        for of in row.layout.tensors:
            name = step_of(of)
            stored = replace(plain, name=name, layout=Layout.of(name, record.shape))
            if name in self.found.stored:
                self.found.repeated.append((self.found.stored[name], stored))
            else:
                self.found.add(stored)

    def _complain(self, error: IntarsiaError, record: TensorRecord, names: tuple[str, ...]) -> None:
        self.complain(Complaint(error, record.files, names))

    def _add(self, record: TensorRecord, row: Param) -> None:
        stored = replace(
            stored_record(record), name=row.name, layout=row.layout, rule=row.rule, value=row.value
        )
        self.found.add(stored, self.table.logical)

    def close(self, states: int) -> None:
        """Say what is missing, what is broken, and what no row explains."""
        found, table = self.found, self.table
        if self.unknown and len(self.unknown) == len(self.params):
            error = FamilyError(
                f"none of {len(self.unknown)} tensors is in the Megatron table of {table.family}:"
                f" {few(self.unknown, 4)}",
                hint="the configuration is another model's",
            )
            self.complain(Complaint(error, names=tuple(self.unknown)))
        if self.unknown:
            found.notes.append(
                f"not in the table of {table.family}, carried name by name: {few(self.unknown, 4)}"
            )
        if self.cut:
            found.problems += self.cut
            found.notes.append(
                f"{len(self.cut)} of {states} optimizer tensors do not have the shapes of their"
                " parameters: a plain tensor's local part was saved as the whole, and the rest"
                " is lost; --optimizer drop takes only the weights"
            )
        found.miss(table, found.floating or _FLOAT)


def as_torch_dist(metadata: Metadata) -> Metadata:
    """The model's tensors under the names and with the shapes that `torch_dist` would give them."""
    shapes: dict[str, TensorRecord] = {}
    experts: dict[str, set[int]] = {}
    for record in metadata.tensors.values():
        section = section_of(record.name)
        if section is None or section.kind:
            continue
        key, shape = Key.parse(section.name), record.shape
        if key.half is not None and shape:
            shape = (2 * shape[0], *shape[1:])
        whole = str(replace(key, expert=None, half=None))
        if key.expert is not None:
            experts.setdefault(whole, set()).add(key.expert)
        shapes[whole] = replace(record, name=whole, shape=shape)
    for whole, held in experts.items():
        shapes[whole] = replace(shapes[whole], shape=(len(held), *shapes[whole].shape))
    return Metadata(shapes, {})
