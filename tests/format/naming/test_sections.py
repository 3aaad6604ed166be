"""Sections of a state dict: the model by its own name or the user's word, never by length or count."""

from __future__ import annotations

from itertools import permutations
from typing import Any, NamedTuple

import pytest

from intarsia.dtypes import BY_NAME, DType
from intarsia.errors import FamilyError, SectionError, UsageError
from intarsia.format.naming.sections import Sections, divide
from intarsia.format.naming.wrappers import bare, without_wrappers
from intarsia.format.optimizer_state.optimizer_names import owner, roots_of, state_in
from intarsia.planning.inventory import Fate, Role
from intarsia.state.names import StateName

NAMES = (
    "model.embed.weight",
    "model.layers.0.up.weight",
    "model.layers.0.down.weight",
    "head.weight",
)
KNOWN = frozenset(NAMES)


class Tensor(NamedTuple):
    shape: tuple[int, ...]
    nbytes: int
    dtype: DType = BY_NAME["F32"]


def tensors(*prefixes: str) -> dict[str, Tensor]:
    return {p + name: Tensor((4, k + 1), 16) for p in prefixes for k, name in enumerate(NAMES)}


def nested(*keys: str) -> dict[str, tuple[str, ...]]:
    """The paths that torch records for a dict of state dicts."""
    return {f"{key}.{n}": (*key.split("."), n) for key in keys for n in NAMES}


def read(found: Sections) -> set[str]:
    return {key for key, name in found.names.items() if name in KNOWN}


@pytest.mark.parametrize(
    "prefix", ["", "model.", "module.", "_orig_mod.", "app.state_dict.", "net."]
)
def test_one_model_is_found_under_any_key(prefix: str) -> None:
    found = divide(tensors(prefix) | {"noise": Tensor((3,), 3)}, KNOWN, "x")
    assert set(found.names.values()) == KNOWN | {"noise"}


@pytest.mark.parametrize(
    "other", ["ema", "e", "reference_model_of_the_first_run", "model_2", "z.y.x"]
)
@pytest.mark.parametrize("own", ["", "model.", "app.model.", "module.", "model_state_dict."])
def test_a_frameworks_own_name_wins_whatever_the_lengths_and_the_order(
    own: str, other: str
) -> None:
    both = (own, f"{other}.")
    for order in permutations(both):
        found = divide(tensors(*order), KNOWN, "x")
        assert read(found) == set(tensors(own))
        left = [item for item in found.inventory if item.fate is Fate.LEFT_OUT]
        assert [(item.name, item.role, item.nbytes) for item in left] == [
            (other, Role.OTHER_MODEL, 64)
        ]


def test_the_whole_is_offered_only_where_that_name_is_not_one_part_of_it() -> None:
    paths, both = nested("student", "teacher"), tensors("student.", "teacher.")
    noise, third = {"noise": Tensor((3,), 3)}, {"head.weight": Tensor((3,), 3)}
    for held, whole in ((both, True), (both | noise, True), (both | third, False)):
        with pytest.raises(SectionError) as refused:
            divide(held, None, "x", paths=paths)
        assert ("carry all" in (refused.value.hint or "")) is whole
        found = divide(held, None, "x", paths=paths, chosen=["."])
        assert set(found.names) == set(held if whole else third)
        assert {x.fate for x in found.inventory} <= ({Fate.READ} if whole else set(Fate))


def test_single_numbers_beside_sections_are_a_model_where_a_section_has_their_names() -> None:
    one = {"weight": Tensor((3,), 12), "bias": Tensor((3,), 12)}
    paths = {f"ema.{name}": ("ema", name) for name in one}
    held = one | {f"ema.{name}": x for name, x in one.items()}
    assert set(divide(held, None, "x", paths=paths, chosen=["."]).names) == set(one)


@pytest.mark.parametrize("with_table", [True, False])
def test_two_candidates_are_refused_and_listed(with_table: bool) -> None:
    known: Any = KNOWN if with_table else None
    paths = nested("student", "teacher")
    with pytest.raises(SectionError, match=r"(?s)student \(4 tensors, 64 B\).*teacher \(4 "):
        divide(tensors("student.", "teacher."), known, "x", paths=paths)
    found = divide(tensors("student.", "teacher."), known, "x", paths=paths, chosen=["teacher"])
    assert set(found.names) == set(tensors("teacher."))
    with pytest.raises(SectionError, match="no section 'model'"):
        divide(tensors("student.", "teacher."), known, "x", paths=paths, chosen=["model"])
    with pytest.raises(UsageError, match="2 sections are named"):
        divide(tensors("a."), known, "x", paths=nested("a"), chosen=["a", "b"])


def test_two_of_the_frameworks_own_names_are_refused() -> None:
    with pytest.raises(SectionError):
        divide(tensors("model.", "state_dict."), KNOWN, "x")
    with pytest.raises(SectionError):
        divide(tensors("", "model."), KNOWN, "x")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_larger_of_two_sections_is_not_taken_for_the_model(count: int) -> None:
    part = dict([*tensors("policy.").items()][:count])
    with pytest.raises(SectionError, match=r"(?s)2 sections.*ema \(4 .*policy"):
        divide(tensors("ema.") | part, KNOWN, "x")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_frameworks_own_name_wins_over_a_larger_section(count: int) -> None:
    part = dict([*tensors("model.").items()][:count])
    assert read(divide(tensors("ema.") | part, KNOWN, "x")) == set(part)


def test_a_tower_inside_the_model_is_no_rival_of_it() -> None:
    tower = {"net.vision.head.weight": Tensor((4, 4), 16)}
    found = divide(tensors("net.") | tower, KNOWN, "x")
    assert read(found) == set(tensors("net."))
    assert found.names["net.vision.head.weight"] == "vision.head.weight"


def test_two_models_of_unlike_sizes_are_refused_and_may_be_carried_whole() -> None:
    wide = {name: Tensor((9, 9), 81) for name in tensors("draft.")}
    both, paths = wide | tensors("goal."), nested("draft", "goal")
    with pytest.raises(SectionError, match=r"(?s)2 sections.*draft.*goal"):
        divide(both, None, "x", paths=paths)
    assert {*divide(both, None, "x", paths=paths, chosen=["."]).names.values()} == {*both}


@pytest.mark.parametrize("with_table", [True, False])
def test_an_average_in_its_wrapper_is_another_model_with_all_that_is_its(with_table: bool) -> None:
    counted = {"swa.n_averaged": Tensor((), 8)}
    wrapped = {f"swa.{n}": ("swa", n) for n in (*(f"module.{n}" for n in NAMES), "n_averaged")}
    known = KNOWN if with_table else None
    held = tensors("model.", "swa.module.") | counted
    found = divide(held, known, "x", paths=nested("model") | wrapped)
    assert set(found.names) == set(tensors("model."))
    assert [item.nbytes for item in found.inventory if item.fate is Fate.LEFT_OUT] == [72]
    held = tensors("net.", "swa.module.") | counted
    with pytest.raises(SectionError, match=r"(?s)2 sections.*net.*swa"):
        divide(held, known, "x", paths=nested("net") | wrapped)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_holds_some_of_the_models_names_is_carried_however_many(count: int) -> None:
    """A tower with the names of the text part: its layers may be more than those."""
    part = dict([*tensors("vision.").items()][:count])
    found = divide(tensors("model.") | part, KNOWN, "x")
    assert {key: found.names[key] for key in part} == {key: key for key in part}
    assert not [item for item in found.inventory if item.fate is Fate.LEFT_OUT]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_key_of_a_nested_dict_that_says_average_is_another_model_however_small(
    count: int,
) -> None:
    part = dict([*tensors("app.ema.").items()][:count])
    for known in (KNOWN, None):
        found = divide(
            tensors("app.model.") | part, known, "x", paths=nested("app.model", "app.ema")
        )
        assert not part.keys() & found.names.keys()
        assert [item.name for item in found.inventory if item.fate is Fate.LEFT_OUT] == ["app.ema"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_a_table_a_section_of_some_of_the_models_names_is_refused(count: int) -> None:
    part = dict([*tensors("second.").items()][:count])
    both, paths = tensors("model.") | part, nested("model", "second")
    with pytest.raises(SectionError, match=r"(?s)2 sections.*model \(4 .*second"):
        divide(both, None, "x", paths=paths)
    assert {*divide(both, None, "x", paths=paths, chosen=["model"]).names.values()} == KNOWN
    assert {*divide(both, None, "x", paths=paths, chosen=["."]).names.values()} == {*both}


def test_sections_that_share_no_name_are_not_chosen_from_by_size() -> None:
    held = [*tensors("first.").items()][:3] + [*tensors("second.").items()][3:]
    with pytest.raises(SectionError, match=r"(?s)2 sections.*first \(3 .*second \(1 "):
        divide(dict(held), KNOWN, "x")


def test_part_of_a_model_is_no_other_model_and_is_carried() -> None:
    found = divide(tensors("model.") | {"probe.head.weight": Tensor((4, 4), 16)}, KNOWN, "x")
    assert found.names["probe.head.weight"] == "probe.head.weight"


def test_what_belongs_to_a_section_that_is_left_out_goes_with_it() -> None:
    found = divide(tensors("model.", "ema.") | {"ema.decay": Tensor((), 4)}, KNOWN, "x")
    assert "ema.decay" not in found.names
    assert found.entry("ema.updates") is None
    assert found.entry("epoch") == "epoch"


def test_without_a_table_torchs_nesting_tells_where_a_section_ends() -> None:
    found = divide(tensors("model."), None, "x", paths=nested("model"))
    assert set(found.names.values()) == KNOWN
    flat = {name: (name,) for name in tensors("model.")}
    assert set(divide(tensors("model."), None, "x", paths=flat).names.values()) == set(flat)
    both = divide(
        tensors("app.model.", "app.ema."), None, "x", paths=nested("app.model", "app.ema")
    )
    assert set(both.names) == set(tensors("app.model."))
    deep = {
        "model.layers.0.w": ("model", "layers", "0", "w"),
        "ema.layers.0.w": ("ema", "layers", "0", "w"),
    }
    both = divide({name: Tensor((2,), 2) for name in deep}, None, "x", paths=deep)
    assert both.names == {"model.layers.0.w": "layers.0.w"}
    unlike = {"vision.a.b": Tensor((2,), 2), "text.c.d": Tensor((3,), 3)}
    paths = {"vision.a.b": ("vision", "a.b"), "text.c.d": ("text", "c.d")}
    assert set(divide(unlike, None, "x", paths=paths).names.values()) == set(unlike)


def test_names_alone_are_carried_unless_they_call_one_of_them_another_model() -> None:
    twins = divide(tensors("left.", "right."), None, "x")
    assert set(twins.names.values()) == set(tensors("left.", "right."))
    with pytest.raises(SectionError):
        divide(tensors("net.", "net_ema."), None, "x")
    told = divide(tensors("net.", "net_ema."), None, "x", configured=True)
    assert len(told.names) == 8


STATE = {"model.w": (2, 3), "model.b": (3,)}


@pytest.mark.parametrize(
    "root", ["optimizer.", "optim.", "app.optim.", "optimizer_0.", "a.b.opt.", ""]
)
@pytest.mark.parametrize("objects", [True, False])
def test_an_optimizer_is_known_by_its_form(root: str, objects: bool) -> None:
    held = {f"{root}state.model.w.exp_avg": (2, 3), f"{root}state.model.w.step": ()}
    entries = [f"{root}param_groups.0.lr"] if objects else []
    assert roots_of(STATE | held, entries) == (root,)
    assert state_in(f"{root}state.model.w.exp_avg", root) == StateName("exp_avg", "model.w")
    assert owner([root])("model.w") is None


def test_a_module_called_state_is_no_optimizer() -> None:
    names = {
        "model.state.proj.weight": (2, 3),
        "model.state.0.bias": (3,),
        "model.state.0.step": (),
    }
    assert roots_of(STATE | names, []) == ()


def test_the_optimizer_beside_or_inside_a_chosen_section_is_its_own() -> None:
    state = {
        f"{who}.optim.state.model.embed.weight.exp_avg": Tensor((4, 1), 16)
        for who in ("actor", "critic")
    }
    both = tensors("actor.model.", "critic.model.") | state
    found = divide(both, KNOWN, "x", chosen=["actor"])
    assert (found.label, found.optimizer) == ("actor.model", "actor.optim.")
    alone = tensors("actor.", "critic.") | {
        "optim.state.model.embed.weight.exp_avg": Tensor((4, 1), 16)
    }
    found = divide(alone, KNOWN, "x", chosen=["actor"])
    assert found.optimizer is None
    assert "nothing says which optimizer" in str(found.unclear)
    assert divide(alone, KNOWN, "x", chosen=["actor", "optim"]).optimizer == "optim."


def test_words_of_wrappers_are_taken_out_anywhere_and_module_only_where_that_leads_somewhere() -> (
    None
):
    assert bare("_orig_mod.layers.0._fsdp_wrapped_module.w") == "layers.0.w"
    assert without_wrappers("module.layers.0.module.w", {"layers.0.w"}) == "layers.0.w"
    assert without_wrappers("module.w", {"module.w", "w"}) == "module.w"
    assert without_wrappers("module.w", {"v"}) is None
    with pytest.raises(FamilyError, match=r"is `a.module.w` or `a.w`"):
        without_wrappers("a.module.module.w", {"a.module.w", "a.w"})


def test_a_wrappers_word_goes_from_names_that_no_table_has() -> None:
    noise = {"extra._orig_mod.shift": Tensor((3,), 3), "_orig_mod.gain": Tensor((3,), 3)}
    found = divide(tensors("") | noise, KNOWN, "x")
    assert {*found.names.values()} == KNOWN | {"extra.shift", "gain"}
