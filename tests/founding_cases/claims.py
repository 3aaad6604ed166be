"""What is claimed of each founding case, and the tests that show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MEGATRON = "megatron-core"
ENGINE = "transformer-engine"
TRANSFORMERS = "transformers"

CPU = "gloo for NCCL; `torch.cuda` is answered for by the CPU"
KERNELS = "gloo for NCCL; TransformerEngine's compiled extension"
GLOO = "gloo for NCCL"
NONE = "nothing"


@dataclass(frozen=True)
class Claim:
    """One sentence, what was done with which framework, what was compared, and what is not the real thing."""

    says: str
    done: str
    compared: str
    stand_in: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A founding case, and the framework whose versions are the columns of its table."""

    letter: str
    title: str
    framework: str
    beside: tuple[str, ...]
    claims: tuple[Claim, ...]

    @property
    def tests(self) -> Iterator[str]:
        """Every test once, in order."""
        return iter(dict.fromkeys(test for claim in self.claims for test in claim.tests))


LIVE = "tests/distributed/test_megatron_live.py::test_"
SLICES = "tests/distributed/test_megatron_fsdp_live.py::test_"
ITEMS = "tests/live/test_megatron_fsdp.py::test_"
FAULTS = "tests/format/megatron/fsdp_dtensor/test_fsdp_dtensor_faults.py::test_"
FILES = "tests/format/megatron/fsdp_dtensor/test_fsdp_dtensor.py::test_"
LOADS = "tests/live/test_megatron_load.py::test_"
RESUMES = "tests/parity/test_megatron_core_resumes.py::test_"
SPLITS = "tests/parity/test_megatron_fsdp_loads.py::test_weights_and_optimizer_load_on_another_mesh"
MODULES = "tests/live/test_transformer_engine.py::test_"
MESHES = "tests/distributed/test_transformer_engine.py::test_"
PLACED = "tests/distributed/test_parallelize.py::test_"
PLACES = "tests/live/test_parallelize.py::test_"
PREPARED = "tests/journeys/test_prepared.py::test_"
THEIRS = "tests/distributed/test_failures_of_transformers.py::test_"

A = Case(
    "A", "Hugging Face weights into Megatron-FSDP models under tensor parallelism",
    MEGATRON, ("torch", "transformers"),
    (
        Claim(
            "Weights go into live Megatron-FSDP parameters and back without losing a bit.",
            "Qwen3 dense and MoE, `load` into and `save` from Megatron-FSDP at (TP, CP, EP) = (2,1,4), (1,1,8), (2,1,1),"
            " (4,1,2), (2,2,2)",
            "every tensor of the hub's folder and `config.json`, bit by bit", CPU,
            (f"{LIVE}models_go_through_megatron_fsdp",),
        ),
        Claim(
            "Each rank receives its own slice: a global shape is never taken for a local one.",
            "`load` into Megatron-FSDP on two ranks of context and of expert parallelism",
            "every rank's fp32 main weights and its bf16 weights with closed formulas of column, row, gated and expert"
            " cuts", CPU,
            (f"{SLICES}each_rank_has_its_own_slice_of_the_main_weights_and_computes_with_them",),
        ),
        Claim(
            "The loaded model computes what Transformers does.",
            "forward of live Megatron-FSDP (bf16) and of Megatron-core (fp32, the five meshes)",
            "logits: fp32 within 2e-6; bf16 as near to fp32 as Transformers' own bf16", CPU,
            (f"{SLICES}a_live_megatron_fsdp_model_computes_what_transformers_does",
             f"{LIVE}models_go_through_megatron_core"),
        ),
        Claim(
            "Ranks exchange the same number of messages however many parameters there are.",
            "`load` of 1 and of 4 layers into Megatron-FSDP on two ranks, recorded by torch's profiler",
            "the collectives of both loads", CPU,
            (f"{SLICES}a_load_exchanges_as_often_for_many_parameters_as_for_few",),
        ),
        Claim(
            "Settings that a mesh implies come with the load.",
            "`load` with and without context parallelism; the code of the how-to page",
            "`calculate_per_token_loss` of the report and of the model's configuration", CPU,
            (f"{LIVE}models_go_through_megatron_core",
             f"{LIVE}the_page_about_live_megatron_models_works_as_it_shows"),
        ),
        Claim(
            "A script loads on a mesh and generates the text of one process.",
            "`examples/load_and_generate.py` under torchrun on four ranks, from `torch_dist`",
            "the text, with one process and with `generate` of Transformers", GLOO,
            ("tests/test_examples.py::test_ranks_generate_the_text_of_one_process",),
        ),
    ),
)  # fmt: skip

B = Case(
    "B", "Fused parameters and optimizer states that are plain tensors", MEGATRON, ("torch",),
    (
        Claim(
            "SwiGLU's halves are split where Megatron splits them, for DTensors and for plain tensors.",
            "checkpoints of ours loaded by Megatron-core's own `fsdp_dtensor` code and torch's DCP, and by ours, on other"
            " meshes; some ranks hold nothing of some parameters",
            "weights, halves, both moments and the step, bit by bit", f"{CPU}; the optimizer's state is made by hand",
            (SPLITS,),
        ),
        Claim(
            "The six parts of a GDN projection are cut each by itself.",
            "`load` into and `save` from Megatron-core's `GatedDeltaNet` in Megatron-FSDP, TP 2 × FSDP 2",
            "every rank's slice with closed formulas; the folder that comes back, bit by bit",
            f"{CPU}; the kernels of `fla`, so that nothing is computed; `partition_dim` of three parameters, which Megatron-core"
            " 0.16 leaves unsaid, is set",
            (f"{SLICES}linear_attention_goes_through_live_megatron_fsdp_and_back",),
        ),
        Claim(
            "Boundaries are those of the parameter, whatever the state is.",
            "splits of random parameters and slices (Hypothesis), and the formula that divided by a local count",
            "with NumPy's split of the whole; the slices of all ranks tile each part",
            "DTensors are objects with their shape and local part",
            (f"{ITEMS}a_split_is_numpys_split_of_the_whole",
             f"{ITEMS}the_slices_of_all_ranks_tile_every_component",
             f"{ITEMS}plain_moments_split_by_their_local_count_are_wrong_and_ours_are_right"),
        ),
        Claim(
            "A shape that contradicts the parameter's is refused.",
            "states scaled by TP twice, of another size, of an odd projection, not divisible by TP",
            "the error names both sizes", "DTensors are objects with their shape and local part",
            (f"{ITEMS}a_dtensor_whose_shape_was_scaled_by_tp_twice_is_refused",
             f"{ITEMS}a_plain_state_of_another_size_is_refused",
             f"{ITEMS}an_odd_projection_is_refused",
             f"{ITEMS}components_that_tp_does_not_divide_are_refused"),
        ),
        Claim(
            "What Megatron-FSDP wrote is read, weights and moments.",
            "checkpoints that Megatron-core 0.16.1 saved (dense on HSDP, TP × FSDP; GDN; MoE on EP × FSDP)",
            "every weight and moment with the model that they were made from", "written earlier, with the stand-ins above",
            (f"{FILES}megatrons_checkpoints_hold_their_truth",),
        ),
    ),
)  # fmt: skip

C = Case(
    "C", "Resuming Megatron-FSDP from a converted checkpoint", MEGATRON, ("torch",),
    (
        Claim(
            "Main weights arrive in fp32 precision, and the bf16 weights are refreshed from them.",
            "`load` of masters that are not bf16 numbers into Megatron-FSDP, TP 2 × EP 4, without the optimizer",
            "main weights bit by bit; bf16 weights with the main weights rounded", CPU,
            (f"{LIVE}main_weights_have_the_precision_of_the_checkpoints",
             f"{SLICES}each_rank_has_its_own_slice_of_the_main_weights_and_computes_with_them"),
        ),
        Claim(
            "Main weights that are only rounded weights are detected.",
            "masters copied back from bf16, on files and on live states", "the report names them", NONE,
            (f"{FAULTS}masters_that_are_only_rounded_weights_are_detected",
             f"{ITEMS}masters_that_are_rounded_to_bf16_are_detected"),
        ),
        Claim(
            "A GDN tensor that is TP-local already is not divided by TP again.",
            "global and local component sizes; GDN saved fused on one and on two ranks",
            "the parts, with the ranks that saved them", "DTensors are objects with their shape and local part",
            (f"{ITEMS}component_sizes_that_are_tp_local_already_are_not_divided_again",
             f"{ITEMS}a_tp_local_dtensor_is_taken_as_it_is",
             f"{FAULTS}gdn_that_was_saved_fused_is_read_by_the_ranks_that_saved_it"),
        ),
        Claim(
            "Entries that a converted checkpoint lacks stay the caller's, and are reported.",
            "`fsdp_dtensor` without `args` and `iteration`, written by torch's DCP", "the tensors; the list of entries kept",
            NONE,
            (f"{FAULTS}missing_args_and_iteration_do_not_matter",
             f"{LOADS}entries_that_a_checkpoint_lacks_stay_the_callers"),
        ),
        Claim(
            "Prefixes of wrappers mean nothing.", "keys with none, one and two `module.`", "every tensor, bit by bit", NONE,
            (f"{FAULTS}wrappers_prefixes_mean_nothing",),
        ),
        Claim(
            "Gated and ungated layers of one model are split each as it is.",
            "a GELU tower beside a SwiGLU decoder, in files and in a live model", "names and tensors", NONE,
            (f"{FAULTS}layers_that_are_not_gated_stay_whole_beside_gated_ones",
             f"{ITEMS}layers_that_are_not_gated_stay_whole_beside_gated_ones"),
        ),
        Claim(
            "A converted checkpoint resumes in Megatron-core's own optimizer.",
            "state that torch trained, and that Megatron saved on another mesh, as `torch_dist` into the distributed"
            " optimizer",
            "weights, main weights, moments, step and groups", CPU,
            (f"{RESUMES}what_torch_trained_resumes_in_megatron",
             f"{RESUMES}what_megatron_saved_resumes_on_another_mesh"),
        ),
    ),
)  # fmt: skip

D = Case(
    "D", "FSDP2 and tensor parallelism with DCP for TransformerEngine's modules", ENGINE, ("torch",),
    (
        Claim(
            "Parameters become DTensors by rule.",
            "`set_device_mesh` on `Linear`, `LayerNormLinear`, `LayerNormMLP`, norms",
            "placements; the whole parameter put together from every rank's boxes, FSDP2 on top",
            f"{KERNELS}; ranks one after the other in one process",
            (f"{MODULES}a_column_parallel_layer_is_cut_by_rows",
             f"{MODULES}a_row_parallel_layer_is_cut_by_columns_and_its_bias_is_whole",
             f"{MODULES}norms_are_whole_and_torchs_own_layers_stay_as_they_are",
             f"{MODULES}a_gated_mlp_is_whole_whatever_the_mesh",
             f"{MODULES}fused_query_key_and_value_are_whole_whatever_the_mesh"),
        ),
        Claim(
            "The shard axis of a grouped weight moves by one.",
            "`GroupedLinear` with one 3-D `GroupedTensor`, column and row mode, FSDP2 on top",
            "placements; the whole weight; the axis taken verbatim corrupts it",
            f"{KERNELS}; ranks one after the other in one process",
            (f"{MODULES}the_axis_of_a_stacked_weight_moves_by_one",
             f"{MODULES}a_stacked_weight_is_whole_whatever_the_mesh",
             f"{MODULES}the_axis_taken_verbatim_corrupts_a_stacked_weight"),
        ),
        Claim(
            "A disabled bias never becomes a parameter, and has no optimizer state.",
            "layers without bias; two steps of Adam on four ranks", "parameters; keys of the saved state", KERNELS,
            (f"{MODULES}a_disabled_bias_never_becomes_a_parameter",
             f"{MESHES}every_parameter_but_the_empty_one_has_its_moments"),
        ),
        Claim(
            "DCP saves and loads model and optimizer on every layer type, from mesh to mesh.",
            "trained on FSDP 2 × TP 2, saved by torch's DCP, loaded on 2 × 2, 1 × 4 and 4 × 1, trained on",
            "every tensor and moment, bit by bit, between meshes; with one process within rounding", KERNELS,
            (f"{MESHES}whole_tensors_are_those_of_one_process",
             f"{MESHES}another_mesh_gets_the_same_bits",
             f"{MESHES}training_goes_on_as_in_one_process"),
        ),
        Claim(
            "`_extra_state` is left out or kept, by choice, and its absence is no error.",
            "saved with and without, loaded from both", "keys and the values of the extra state", KERNELS,
            (f"{MESHES}extra_state_is_kept_by_choice",),
        ),
        Claim(
            "A mesh for quantisation statistics can be named; where it means nothing, only a given one warns.",
            "`set_device_mesh` with and without it, and with no mesh at all", "the group of each layer; warnings", KERNELS,
            (f"{MODULES}the_mesh_of_statistics_is_named_on_layers_with_weights",
             f"{MODULES}a_weight_that_is_quantised_already_gets_the_group_of_its_statistics",
             f"{MODULES}no_mesh_at_all_is_no_change"),
        ),
    ),
)  # fmt: skip

E = Case(
    "E", "Expert parallelism and FSDP2 in Transformers", TRANSFORMERS, ("torch", "accelerate"),
    (
        Claim(
            "Expert parallel and FSDP2 train as one process does, step by step.",
            "Qwen3-MoE, `parallelize`, AdamW, on 2, 4 and 8 ranks (dp, ep, tp and their products)",
            "losses within 1e-5, gradient norms, every weight and moment", GLOO,
            (f"{PLACED}a_mesh_trains_as_one_process",
             f"{PLACED}eight_ranks_train_as_one_process"),
        ),
        Claim(
            "Nothing is broadcast that is not replicated.",
            "the broadcast of rank 0 as accelerate 1.13 did it, and `load` of the same file; a rank with other weights",
            "the experts of every rank; the refusal on all ranks", GLOO,
            (f"{PLACED}a_broadcast_of_rank_0_loses_experts_and_ours_keeps_them",
             f"{PLACED}a_rank_with_other_weights_is_refused_by_all",
             f"{PLACED}each_rank_holds_the_part_that_its_parameters_say"),
        ),
        Claim(
            "Experts are DTensors on the expert mesh, the rest on FSDP's.",
            "Qwen3-30B-A3B (128 experts) on meshes of 32 ranks, on `meta`", "the placements of each parameter",
            "torch's fake process group",
            (f"{PLACES}qwen3_30b_a3b_on_32_ranks",
             f"{PLACES}experts_are_not_cut_by_fsdp_where_ep_is_all_there_is"),
        ),
        Claim(
            "accelerate and Trainer take a placed model as it is.",
            "`accelerator.prepare(model, optimizer)` and `Trainer.train` on two ranks; mixed precision that would not reach"
            " the model",
            "parameters and their memory before and after; losses with one process; the refusal", GLOO,
            (f"{PREPARED}accelerate_takes_a_placed_model_as_it_is",
             f"{PREPARED}trainer_takes_a_placed_model_as_it_is",
             f"{PREPARED}a_precision_that_does_not_reach_the_model_is_refused"),
        ),
        Claim(
            "What Transformers' own sharded load reorders, zeroes or does not finish is loaded right.",
            "`from_pretrained` with `DistributedConfig`, and `load` into the same layout, on two and five ranks",
            "every tensor, whole again, with the saved one", GLOO,
            (f"{THEIRS}rows_that_transformers_reorders_in_silence_stay_in_order",
             f"{THEIRS}the_ram_efficient_switch_zeroes_no_shard",
             f"{THEIRS}a_rank_without_an_expert_loads_like_the_others"),
        ),
    ),
)  # fmt: skip

CASES = (A, B, C, D, E)
