"""Moves of whole tensors, told together only as far as each of them goes."""

from __future__ import annotations

from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.diagnosis.hypotheses.faults_of_moves import (
    SWAPPED,
    faults_of_moves,
    half_swapped,
)
from intarsia.checking.diagnosis.hypotheses.moves import Move
from intarsia.checking.diagnosis.hypothesis import Score
from intarsia.checking.diagnosis.summary import missing

GATE, UP = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"


def moved(to: str, source: str, side: str) -> Finding:
    score = Score(8, 8, 0)
    return Finding(to, "tensors-swapped", "", move=Move(to, source, score, side))


def texts(*findings: Finding, names: tuple[str, ...] = (GATE, UP)) -> list[str]:
    return [f.text.partition(": explains")[0] for f in faults_of_moves(findings, names, ())]


def test_two_names_of_one_side_that_hold_each_other_are_swapped() -> None:
    assert texts(moved(GATE, UP, "B"), moved(UP, GATE, "B")) == ["gate and up swapped"]


def test_names_of_two_sides_are_told_one_by_one() -> None:
    assert texts(moved(UP, GATE, "A"), moved(GATE, UP, "B")) == [
        "up_proj holds the values of gate_proj in A",
        "gate_proj holds the values of up_proj in B",
    ]


def test_tensors_that_no_module_tells_apart_go_by_their_own_words() -> None:
    scale, offset = "stack.layers.0.scale", "stack.layers.0.offset"
    assert texts(moved(scale, offset, "B"), names=(scale, offset)) == [
        "scale holds the values of offset in B"
    ]
    weight, bias = "head.norm.weight", "head.norm.bias"
    assert texts(moved(weight, bias, "A"), names=(weight, bias)) == [
        "weight holds the values of bias in A"
    ]


def test_modules_of_one_name_go_by_the_words_that_tell_them_apart() -> None:
    own, cross, encoder = (
        f"model.{stack}.layers.0.{word}.{{}}.weight"
        for stack, word in (("decoder", "self_attn"), ("decoder", "encoder_attn"), ("encoder", "self_attn"))
    )  # fmt: skip
    both = ("q_proj", "k_proj")
    names = tuple(x.format(role) for x in (own, cross, encoder) for role in both)

    def told(to: str, source: str) -> list[str]:
        return texts(*(moved(to.format(x), source.format(x), "B") for x in both), names=names)

    assert told(cross, own) == ["encoder_attn holds the values of self_attn in B"]
    assert told(own, encoder) == ["decoder holds the values of encoder in B"]
    tower = "visual.merger.norm.weight", "visual.blocks.1.attn.norm.weight"
    assert texts(moved(*tower, "B"), names=tower) == [
        "visual.merger.norm.weight holds the values of visual.blocks.*.attn.norm.weight in B"
    ]


def test_experts_of_other_layers_are_told_with_their_layers() -> None:
    up = "model.layers.{}.mlp.experts.{}.up_proj.weight"
    found = [moved(up.format(k, 0), up.format(k - 1, 7), "B") for k in (1, 2)]
    assert texts(*found, names=tuple(up.format(k, e) for k in range(3) for e in range(8))) == [
        "experts hold those of other layers in B: 0 of layer 1 holds 7 of layer 0, 0 of layer 2 holds 7 of layer 1"
    ]


def test_experts_that_go_with_their_layers_are_of_one_fault_with_them() -> None:
    norm, up = "model.layers.{}.norm.weight", "model.layers.{}.mlp.experts.{}.up_proj.weight"
    names = *(norm.format(k) for k in range(3)), *(up.format(k, e) for k in range(3) for e in range(4))  # fmt: skip

    def told(experts: int) -> list[str]:
        ways = [norm.format("{}"), *(up.format("{}", e) for e in range(experts))]
        return texts(*(moved(x.format(k), x.format(1 - k), "B") for x in ways for k in (0, 1)), names=names)  # fmt: skip

    assert told(4) == ["layers permuted in B: 0 holds 1, 1 holds 0"]
    assert len(told(3)) == 2


def test_what_a_side_lacks_is_told_by_the_stack_and_the_layer_that_it_is_of() -> None:
    expert = "model.layers.{}.mlp.experts.{}.up_proj.weight"
    held = [expert.format(k, e) for k in range(3) for e in range(2)] + ["visual.blocks.0.up.weight"]

    def told(*lost: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        present = [name for name in held if name not in lost]
        return {f.kind: (f.text, f.tensors) for f in missing("B", lost, present)}

    tower = "visual.blocks.1.up.weight"
    assert told(tower) == {"layers-missing": ("missing in B: layers 1", (tower,))}
    one = expert.format(2, 1)
    assert told(one) == {"experts-missing": ("missing in B: experts 1", (one,))}
    layer = expert.format(1, 0), expert.format(1, 1)
    assert told(*layer, one, "model.norm.weight") == {
        "layers-missing": ("missing in B: layers 1", layer),
        "experts-missing": ("missing in B: experts 1", (one,)),
        "tensors-missing": ("missing in B: 1 tensor", ("model.norm.weight",)),
    }
    assert told("other.layers.0.up.weight").keys() == {"tensors-missing"}, "a stack of another name"


def test_moments_under_each_other_s_names_go_by_their_kinds() -> None:
    mean, square = (f"optimizer.{kind}.{{}}" for kind in ("exp_avg", "exp_avg_sq"))
    both = [(square.format(x), mean.format(x)) for x in (GATE, UP)]
    found = [moved(a, b, "B") for pair in both for a, b in (pair, pair[::-1])]
    names = tuple(name for pair in both for name in pair)
    assert texts(*found, names=names) == ["exp_avg and exp_avg_sq hold each other's values in B"]
    assert texts(moved(UP, mean.format(UP), "A"), names=(UP, mean.format(UP))) == [
        "the weight holds the values of exp_avg in A"
    ]
    assert texts(moved(mean.format(UP), mean.format(GATE), "A")) == [
        "up_proj holds the values of gate_proj in A"
    ]


def test_a_swap_in_one_layer_and_half_of_one_in_another_are_two_faults() -> None:
    gate, up = GATE.replace("0", "1"), UP.replace("0", "1")
    assert texts(moved(GATE, UP, "B"), moved(UP, GATE, "B"), moved(gate, up, "B")) == [
        "gate and up swapped",
        "gate_proj holds the values of up_proj in B",
    ]


def test_half_of_a_swap_is_part_of_it_on_its_own_side_alone() -> None:
    for side in ("A", "B"):
        half = Finding(UP, SWAPPED, "", "gate and up swapped", "key", side=side)
        same, other = (
            half_swapped([moved(GATE, UP, side), half])[0],
            moved(GATE, UP, "AB"["BA".index(side)]),
        )
        assert (same.kind, same.move) == (SWAPPED, None)
        assert half_swapped([other, half])[0] == other


def test_experts_that_hold_one_which_is_lost_are_not_permuted() -> None:
    name = "model.layers.0.mlp.experts.{}.up_proj.weight"
    found = [moved(name.format(to), name.format(s), "A") for to, s in ((0, 3), (1, 0), (2, 1))]
    names = tuple(name.format(e) for e in range(3))
    (text,) = texts(*found, names=names)
    assert text == "experts hold others in A in 1 layer: 0 holds 3, 1 holds 0, 2 holds 1"
