"""Break the code in named ways, one at a time, and see that the quick tests notice.

    python -m tests.mutants            # all of them, some minutes; on a copy of the tree, never in place
    python -m tests.mutants refresh    # those whose name has the word

Each mutant is a text of one source file and what it becomes.  One that survives is a hole in the tests.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.checkpoints import ROOT
from tests.live import transformer_engine_on_cpu

ITEMS = "tests/live/test_megatron_fsdp.py"
LOADS = "tests/live/test_megatron_load.py::test_slices_are_filled_from_main_weights"
NUMBERS = "tests/live/megatron/test_megatron_model.py::test_local_numbers_of_layers_and_experts_lead_to_the_whole_models"
SLICES = "tests/distributed/test_megatron_fsdp_live.py::test_each_rank_has_its_own_slice_of_the_main_weights_and_computes_with_them"
FAULTS = "tests/format/megatron/fsdp_dtensor/test_fsdp_dtensor_faults.py"
ENGINE = "tests/live/test_transformer_engine.py"
EXPERTS = "tests/live/test_parallelize.py"
TOKENS = "tests/live/parallel/test_experts.py"
ALIKE = "tests/planning/proof/test_alike.py"
PROOF = "tests/planning/proof/test_proof.py"
TILING = "tests/planning/proof/test_tiling.py"


@dataclass(frozen=True)
class Mutant:
    """A way to break the code of one founding case, and the quick tests that must notice."""

    case: str
    name: str
    file: str
    text: str
    broken: str
    tests: tuple[str, ...]


def of(case: str, file: str, *mutants: tuple[str, str, str, Sequence[str]]) -> list[Mutant]:
    return [
        Mutant(case, name, f"src/intarsia/{file}", text, broken, tuple(tests))
        for name, text, broken, tests in mutants
    ]


MUTANTS = [
    # A. Weights of the hub in Megatron-FSDP models under tensor parallelism.
    *of("A", "live/megatron/rows.py", (
        "every rank reads the first slice",
        "narrow(0, item.start, item.stop).reshape(*shape)",
        "narrow(0, 0, item.stop - item.start).reshape(*shape)",
        [SLICES],
    )),
    *of("A", "live/megatron_settings.py", (
        "the loss per token is lost",
        'return {"calculate_per_token_loss": True} if cp > 1 else {}', "return {}",
        [SLICES],
    )),
    *of("A", "family/verbs.py",
        ("gate and up are exchanged", "return concat([gate, up])", "return concat([up, gate])",
         ["tests/family/test_verbs.py::test_gated"]),
        ("key and value of a group are exchanged", "for x in (q, k, v)]", "for x in (q, v, k)]",
         ["tests/family/test_verbs.py::test_by_group"]),
    ),
    *of("A", "live/megatron_fsdp.py", (
        "the shape of all ranks is taken for that of one",
        'shape[axis] = _share(shape[axis], tp, f"axis {axis} of {list(param.shape)}")', "pass",
        [LOADS],
    )),
    *of("A", "format/megatron/fsdp_dtensor/keys.py", (
        "every tensor-parallel rank reads the first one's half of gate and up",
        "concat([shard(_even(p, tp).layout, tp, rank) for p in parts])",
        "concat([shard(_even(p, tp).layout, tp, 0) for p in parts])",
        [LOADS],
    )),
    *of("A", "live/megatron/model.py",
        ("experts keep the numbers of their rank", "{experts[int(at[2])]}", "{at[2]}", [NUMBERS]),
        ("layers keep the numbers of their stage", "str(layer - 1)", "words[end - 1]", [NUMBERS]),
    ),
    # B. Fused parameters, and states that are plain tensors.
    *of("B", "live/megatron_fsdp.py",
        ("a component ends where the rank's own count says",
         "held = fused.reshape(-1).narrow(0, item.start, item.stop)",
         "held = fused.reshape(-1).narrow(0, 0, item.size)",
         [f"{ITEMS}::test_plain_moments_split_by_their_local_count_are_wrong_and_ours_are_right"]),
        ("up comes before gate", '{"_w": rows // 2, "_v": rows // 2}', '{"_v": rows // 2, "_w": rows // 2}',
         [f"{ITEMS}::test_states_are_split_with_their_counters"]),
        ("a DTensor of any shape is a state", "if tuple(state.shape) not in (item.whole, item.shape):", "if False:",
         [f"{ITEMS}::test_a_dtensor_whose_shape_was_scaled_by_tp_twice_is_refused"]),
        ("a plain state of any size is taken", "if flat.numel() != item.size:", "if False:",
         [f"{ITEMS}::test_a_plain_state_of_another_size_is_refused"]),
        ("an odd projection is halved", "    if rows % 2:", "    if False:",
         [f"{ITEMS}::test_an_odd_projection_is_refused"]),
        ("components are merged unseen", "if (part.item, part.at, size) != (own.item, own.at, own.item.size):",
         "if False:", [f"{ITEMS}::test_parts_that_were_exchanged_do_not_merge"]),
    ),
    *of("B", "live/megatron_fsdp.py", (
        "DCP truncates plain states", "and tuple(value.shape) != items[name].whole", "and False",
        [f"{ITEMS}::test_plain_parts_that_dcp_would_truncate_are_refused"],
    )),
    # C. Resuming Megatron-FSDP from a converted checkpoint.
    *of("C", "live/load.py", (
        "the refresh of what is computed with is forgotten",
        "        install(into)\n", "        pass\n", [SLICES],
    )),
    *of("C", "live/megatron_fsdp.py", (
        "components are divided by tensor parallelism twice", "if total == rows:", "if False:",
        [f"{ITEMS}::test_component_sizes_that_are_tp_local_already_are_not_divided_again"],
    )),
    *of("C", "live/megatron_load.py",
        ("main weights are filled from rounded ones",
         "if all(n in self.checkpoint for n in masters):", "if False:", [LOADS]),
    ),
    *of("C", "live/values.py", (
        "an entry that is absent erases the caller's", "if name in found and isinstance(held, MutableMapping):\n                held[key] = found[name]",
        "if isinstance(held, MutableMapping):\n                held[key] = found.get(name)",
        ["tests/live/test_megatron_load.py::test_entries_that_a_checkpoint_lacks_stay_the_callers"],
    )),
    *of("C", "live/megatron_fsdp.py",
        ("every layer is gated", 'if getattr(config, "gated_linear_unit", False):', "if True:",
         [f"{ITEMS}::test_layers_that_are_not_gated_stay_whole_beside_gated_ones"]),
        ("rounded main weights go unseen", "return not bool((local", "return bool((local",
         [f"{ITEMS}::test_masters_that_are_rounded_to_bf16_are_detected"]),
    ),
    *of("C", "format/megatron/fsdp_dtensor/keys.py", (
        "one wrapper is taken off, not all", r'^model\.(?:module\.)*(?P<name>.+)$', r'^model\.(?:module\.)?(?P<name>.+)$',
        [f"{FAULTS}::test_wrappers_prefixes_mean_nothing"],
    )),
    # D. TransformerEngine under FSDP2 and tensor parallelism.
    *of("D", "live/transformer_engine/rules.py",
        ("the axis of a stacked weight is taken verbatim", "Cut(axis + stacked, in_blocks)", "Cut(axis, in_blocks)",
         [f"{ENGINE}::test_the_axis_of_a_stacked_weight_moves_by_one"]),
        ("gate and up are one shard", "Cut(0, 2 if _is_gated(name, module, held) else 1)", "Cut(0)",
         [f"{ENGINE}::test_only_a_gated_activation_is_interleaved"]),
        ("the bias of a row-parallel layer is cut", "axis, axes = {COLUMN: 0}.get(", "axis, axes = {COLUMN: 0, ROW: 0}.get(",
         [f"{ENGINE}::test_a_row_parallel_layer_is_cut_by_columns_and_its_bias_is_whole"]),
    ),
    *of("D", "live/transformer_engine/placing.py", (
        "a rank's shape is taken for the whole", "shape[cut.axis] *= mesh.size()", "pass",
        [f"{ENGINE}::test_a_column_parallel_layer_is_cut_by_rows"],
    )),
    *of("D", "live/transformer_engine/grouped.py", (
        "the gradient of a stacked weight is lost", "return plain_memory(grad), None", "return plain_memory(grad) * 0, None",
        [f"{ENGINE}::test_a_stacked_weight_computes_as_it_did_and_its_gradient_arrives"],
    )),
    *of("D", "live/transformer_engine/state.py",
        ("extra state is always kept", "if not is_extra_state(name)\n", "if True\n",
         [f"{ENGINE}::test_a_state_that_lacks_a_weight_is_refused"]),
        ("a weight that is absent is skipped", "if lost or given - wanted:", "if False:",
         [f"{ENGINE}::test_a_state_that_lacks_a_weight_is_refused"]),
    ),
    # E. Expert parallelism with FSDP2 in Transformers.
    *of("E", "live/parallel/experts.py",
        ("every rank holds all experts", "[Shard(0)] * bool(roles.ep)", "[Replicate()] * bool(roles.ep)",
         [f"{EXPERTS}::test_qwen3_30b_a3b_on_32_ranks"]),
        ("the halves of a gate are cut as one", '"packed_colwise": _StridedShard(1, split_factor=2)', '"packed_colwise": Shard(1)',
         [f"{EXPERTS}::test_a_gate_and_its_twin_are_halved_apart_by_tensor_parallelism"]),
        ("experts that do not divide are dealt out", "    if count % size:\n", "    if False:\n",
         [f"{EXPERTS}::test_what_cannot_be_right_is_refused_before_any_collective"]),
        ("tokens come back in another's place", "placed = done[back]", "placed = done[order]", [TOKENS]),
    ),
    *of("E", "live/parallelizing.py", (
        "FSDP cuts the experts too", "left |= set() if further else own", "left |= set()",
        [f"{EXPERTS}::test_experts_are_not_cut_by_fsdp_where_ep_is_all_there_is"],
    )),
    *of("E", "mesh/mesh.py", (
        "uneven parts are off by one", "step = -(-n // parts)", "step = max(n // parts, 1)",
        ["tests/mesh/test_mesh.py::test_a_share_is_what_torch_chunk_gives"],
    )),
    # The prover.
    *of("proof", "planning/proof/tiling.py",
        ("parts may overlap", "if (both := first_overlap(filled)) is not None:", "if (both := None) is not None:", [TILING]),
        ("parts may leave a hole", "if covered == whole:", "if covered <= whole:", [TILING]),
    ),
    *of("proof", "planning/proof/links.py",
        ("a chunk may be too short", "if lengths[number] < count * size:", "if False:",
         [f"{PROOF}::test_a_stored_tensor_that_lies_proves_nothing"]),
        ("an element may have two sources", "if covered == size and not doubled and end <= size:", "if covered == size and end <= size:",
         [f"{PROOF}::test_two_stored_tensors_that_hold_one_element_prove_nothing"]),
        ("what is asked for need not be there",
         "if not known or any(end > logical[name].size for name, end in ends):", "if False:",
         [f"{PROOF}::test_what_is_asked_for_must_be_there_and_each_place_be_for_one_element"]),
        ("a place may be for two elements", "if wrong := known[1]:", "if wrong := 0:",
         [f"{PROOF}::test_what_is_asked_for_must_be_there_and_each_place_be_for_one_element"]),
    ),
    *of("proof", "planning/proof/alike.py",
        ("a faulty tensor is like a sound one", "if self._links.stored_fault(stored) is not None:", "if False:",
         [f"{ALIKE}::test_one_damaged_layer_of_many_is_refused_as_it_is_alone"]),
        ("tensors of other shapes are alike", "held = [places, order, shapes, ", "held = [places, order, ",
         [f"{ALIKE}::test_one_damaged_layer_of_many_is_refused_as_it_is_alone"]),
        ("parts in another order are alike", "held = [places, order, shapes, ", "held = [places, shapes, ",
         [f"{ALIKE}::test_parts_of_two_tensors_in_another_order_have_copies_of_their_own"]),
        ("tensors that are cut otherwise are alike", "(layout.shape, id(self._templates.boxes_of(stored)))", "layout.shape",
         [f"{ALIKE}::test_a_layer_that_is_otherwise_has_copies_of_its_own"]),
        ("other boxes are alike", "key: list[Hashable] = [kind, boxes, layout.shape]", "key: list[Hashable] = [kind, layout.shape]",
         [f"{ALIKE}::test_one_damaged_layer_of_many_is_refused_as_it_is_alone"]),
    ),
    *of("proof", "planning/proof/tiling.py", (
        "what is saved need not tile", "if (fault := tiling_fault(shape, boxes)) is not None:", "if (fault := None) is not None:",
        [f"{PROOF}::test_parts_that_are_saved_tile_their_tensor"],
    )),
    *of("proof", "planning/proof/prover.py",
        *(
            (f"anybody makes {what}", f"        if key is not _KEY:\n            raise TypeError(\"only `{who}` makes a proof\")\n{first}",
             f"        if False:\n            raise TypeError(\"only `{who}` makes a proof\")\n{first}", [f"{PROOF}::test_nothing_else_makes_a_proof"])
            for what, who, first in (
                ("a proof", "Prover", "        self.src: Final = src\n"),
                ("proofs", "Prover", "        self.src: Final = prover.src\n"),
                ("proofs of many that are alike", "Prover", "        self.first: Final = first\n"),
            )
        ),
    ),
]  # fmt: skip
"""Each has a text that occurs once in its file."""


def copy_tree(to: Path) -> None:
    """What the tests need, without what git ignores."""
    shutil.copytree(ROOT / "src", to / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", to / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "docs", "examples", "attacks"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name)
        else:
            shutil.copyfile(ROOT / name, to / name)


def preload() -> None:
    """Import what takes long, none of it ours, so that each run of tests is a fork that has it."""
    for name in ("hypothesis", "pytest", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp"):  # fmt: skip
        import_module(name)
    import_module("transformers.models.auto.modeling_auto")
    transformer_engine_on_cpu.load()


def tested(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """The status of pytest in a fork that imports the copy, and what it said."""
    said = tree / "said.txt"
    child = os.fork()
    if not child:
        status = 70
        try:
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            status = _in_copy(tree, tests)
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended), said.read_text(errors="replace")


def _in_copy(tree: Path, tests: Sequence[str]) -> int:
    for name in [n for n in sys.modules if n.partition(".")[0] in ("tests", "intarsia")]:
        del sys.modules[name]
    os.chdir(tree)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tree / "src"), str(tree)])
    ours = {str(ROOT), str(ROOT / "src"), ""}
    sys.path[:] = [str(tree / "src"), str(tree), *(p for p in sys.path if p not in ours)]
    sys.dont_write_bytecode = True
    pytest = import_module("pytest")
    return int(pytest.main(["-x", "-n", "0", "-p", "no:cacheprovider", *tests]))


def verdict(tree: Path, mutant: Mutant) -> str:
    """`dead`, `survives`, or what is wrong with the mutant itself."""
    file = tree / mutant.file
    sound = file.read_text()
    if sound.count(mutant.text) != 1:
        return f"occurs {sound.count(mutant.text)} times"
    file.write_text(sound.replace(mutant.text, mutant.broken))
    try:
        status, said = tested(tree, mutant.tests)
    finally:
        file.write_text(sound)
    if status == 1:
        return "dead"
    return "survives" if status == 0 else f"not tested: {said[-300:]}"


def main(words: Sequence[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(w in f"{m.case} {m.name}" for w in words)]
    left = []
    with TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        preload()
        status, said = tested(tree, sorted({test for m in chosen for test in m.tests}))
        if status:
            print(f"the tests fail on the code as it is:\n{said[-3000:]}")
            return 2
        for mutant in chosen:
            start = time.monotonic()
            found = verdict(tree, mutant)
            left += [mutant] if found != "dead" else []
            print(f"{mutant.case:6}{found:10}{time.monotonic() - start:5.0f} s  {mutant.name}", flush=True)  # fmt: skip
    dead = len(chosen) - len(left)
    print(
        f"{dead} of {len(chosen)} mutants are dead; survivors: {[m.name for m in left] or 'none'}"
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
