"""What both of Megatron's formats have in common, beside the names of their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from intarsia.errors import CoverageError, FamilyError, UsageError, few
from intarsia.family import Table, decoder, table_for
from intarsia.format.base import Located, ReadEntries, Recorded
from intarsia.format.complaint import Complain, Complaint, going_on
from intarsia.format.dcp.archives import Archives
from intarsia.format.dcp.metadata import METADATA
from intarsia.format.megatron.common import TRAIN_STATE
from intarsia.format.megatron.configuration.argument_table import LATENT_NORMS
from intarsia.format.megatron.configuration.config_to_arguments import arguments_of_config
from intarsia.format.megatron.configuration.written_arguments import norms_are_centered
from intarsia.format.megatron.detection import BACKEND
from intarsia.format.megatron.frame import COMMON_FILE, COMMON_OBJECT, FRAME, INTEGRITY, TRACKER
from intarsia.format.megatron.fsdp_dtensor.entries import arguments_among
from intarsia.format.megatron.integrity import recorded_in
from intarsia.format.megatron.iteration import ITERATION, misplaced_iteration, untracked
from intarsia.format.megatron.optimizer.groups import STEPS
from intarsia.format.request import Request
from intarsia.planning.manifest import Chunk, Manifest, Stored
from intarsia.state.names import MASTER, STEP, StateName, state_among
from intarsia.store.reading.folder import Folder

ARGS = "args"
_SAMPLES = ("consumed_train_samples", "consumed_valid_samples", "skipped_train_samples")
_OF_RUNS = ("torch_dist", "fsdp_dtensor")
_COUNTED = (COMMON_OBJECT, ITERATION, TRAIN_STATE)


class MegatronFormat(Archives):
    """A format that Megatron-LM writes: iterations in folders of their own, arguments, padding."""

    dialects = ("megatron",)
    header_files = (METADATA, BACKEND, COMMON_FILE, TRACKER)
    one_below = True
    pads_vocabulary = True
    keeps_arguments = True
    kinds_of_values: tuple[str, ...] = ()
    """Kinds of a parameter's state that may be plain values, beside the tensors."""

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        if chunk.file == STEPS:
            return Located(chunk.start_bytes)
        return super().locate(folder, stored, chunk)

    def is_frame(self, name: str) -> bool:
        return FRAME.match(name) is not None or name == METADATA

    def unfinished(self, path: PurePath) -> Complaint | None:
        return untracked(path)

    def contradictions(self, src: Manifest, folder: Folder) -> Iterator[Complaint]:
        return misplaced_iteration(src, folder)

    def recorded(self, folder: Folder, complain: Complain) -> Recorded | None:
        with going_on(complain, INTEGRITY):
            return recorded_in(folder)
        return None

    def table(self, src: Manifest) -> Table | None:
        """The family's table; norms stay centred as Megatron's source has them, since the run that goes on says so itself."""
        table = super().table(src)
        if table is None or src.format not in _OF_RUNS:
            return table
        return table_for(src.config, zero_centered=norms_are_centered(table, src.stored.values()))

    def check_model(self, src: Manifest, table: Table, request: Request) -> None:
        """Megatron's models have a head, where a bare model of Transformers has none."""
        if table.headless and table.head not in src.logical:
            kinds = src.config.get("architectures") if src.config else None
            raise FamilyError(
                f"{src.path} has no `{table.head}` ({', '.join(kinds or ())}), and {self.name}"
                " holds only models with a head",
                hint="convert to hf or dcp, which can hold a model without one",
            )
        if table.whole:  # Transformers' rules know of no layers and experts
            return
        if max(request.mesh.ep, request.mesh.etp) > 1 and not decoder.experts_in(table):
            raise UsageError(
                f"the mesh is {request.mesh}, but this {table.family} has no experts for ep and etp"
                " to shard: Megatron does not run such a mesh",
                hint="leave ep and etp out",
            )

    def check_state(self, src: Manifest) -> None:
        """Raise where a parameter's state is a value, or some lack the main weight or step that others have."""
        self._check_values(src)
        held: dict[str, set[str]] = {}
        for name in state_among(src.logical):
            if state := StateName.of(name):
                known = state.kind if state.kind in (MASTER, STEP) else ""
                held.setdefault(known, set()).add(state.parameter)
        trained, masters, steps = (held.get(kind, set()) for kind in ("", MASTER, STEP))
        narrow = {n for n in trained if n in src.logical and src.logical[n].dtype.itemsize < 4}
        lacking = {"fp32 main weight": (narrow, masters), "step": (trained, steps)}
        for what, (needing, having) in lacking.items():
            lost = sorted(needing - having)
            # Megatron's steps are its groups', and those are carried as they are.
            if having and lost and not (what == "step" and src.format == "torch_dist"):
                raise CoverageError(
                    f"{len(lost)} of {len(trained)} parameters with optimizer state have no {what}, the"
                    f" other {len(having)} have one: {few(lost, 4)}",
                    at=src.path,
                    hint="use a checkpoint that has all of them, or only the weights with --optimizer drop",
                )

    def _check_values(self, src: Manifest) -> None:
        """Raise where state of a parameter is a value: under the parameter's name here, Megatron finds no such."""
        for name in src.entries:
            state = StateName.of_torch(name)
            if state is None or state.kind in self.kinds_of_values or src.format == self.name:
                continue
            of = state.parameter
            if of.isdecimal() or of in src.logical or of in src.stored:
                raise UsageError(
                    f"`{name}` of {src.path} is optimizer state that {self.name} cannot hold: a value, no tensor",
                    hint="convert to dcp or hf, which keep it; or load it into the model and an optimizer of"
                    " torch and save these, where steps are tensors; or leave it out with --optimizer drop",
                )

    def remarks(self, src: Manifest, request: Request) -> Iterator[str]:
        """What Megatron's arguments and counters cannot say of a source."""
        table = table_for(src.config)
        if src.config is None or table is None:
            return
        unsaid = arguments_of_config(src.config).unsaid
        if src.format in _OF_RUNS:  # whose own note says what it computes
            unsaid.pop(LATENT_NORMS, None)
        if unsaid:
            listed = ", ".join(f"{name}={value}" for name, value in unsaid.items())
            yield (
                f"Megatron's arguments cannot express {listed}: config.json keeps it, and"
                " Megatron's model must be built with it"
            )
        into, out, inner = (
            any(name.endswith(end) for name in src.logical)
            for end in ("q_proj.bias", "o_proj.bias", "down_proj.bias")
        )
        if out and inner and not into:
            yield (
                "Megatron's arguments cannot express biases of attention's output and the MLP without those of"
                " queries, keys and values: a model that is built from them asks for these, so Megatron's"
                " model must be built for them"
            )
        if out != inner:
            yield (
                "Megatron's arguments cannot express biases of"
                f" {'attention' if out else 'the MLP'} alone: a model that is built from them loses these"
                " or asks for others, so Megatron's model must be built for them"
            )
        normed = {x.size for n, x in src.logical.items() if n.endswith(".self_attn.q_norm.weight")}
        heads, _, width = decoder.heads_of(table) if normed and not table.whole else (1, 1, 0)
        if heads > 1 and heads * width in normed:
            yield (
                f"the norms of queries and keys span all heads, and Megatron-core's own span one ({width}"
                " elements): Megatron-LM refuses to load them with --qk-layernorm, and without it leaves them"
                " out unnoticed, and another model runs; its model must be built with such attention, as"
                " Megatron-Bridge's OLMoE is"
            )
        if src.config_doubts:
            yield (
                "no config.json is written: the stored arguments leave the model's own configuration in"
                " doubt; --config gives it"
            )
        if request.optimizer == "drop" or not any(name in src.entries for name in _COUNTED):
            yield (
                "iteration and consumed samples are unknown: the checkpoint starts at iteration"
                " 1, and a run that continues from it reads its data from the start"
            )


def arguments_alone(src: Manifest, read: ReadEntries) -> Mapping[str, Any]:
    """The arguments that say what the model is, without the run's counters: training starts from the beginning."""
    held = [name for name in (COMMON_OBJECT, ARGS) if name in src.entries]
    args = arguments_among(read(held) if held else {})
    return {k: v for k, v in args.items() if k not in ("iteration", *_SAMPLES)}
