"""One registry of fault kinds: each is found by some code, explained in a document, and says what to do."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia import errors
from intarsia.checking.fault import Fault
from intarsia.checking.kinds import ALONE, KINDS, PAIR
from tests.checkpoints import intarsia as command
from tests.checkpoints import normal_tensor, write_hf
from tests.fault_kinds import PAGES, TWO, sections, written

SOURCE = Path(intarsia.__file__).parent
MAKERS = {"Fault": 0, "Hypothesis": 0, "Order": 0, "ScaleFault": 0, "Finding": 1}
"""What is made of a kind, and which argument that is."""


def trees() -> list[ast.Module]:
    paths = [p for p in SOURCE.rglob("*.py") if "kinds" not in p.parts]
    return [ast.parse(path.read_text()) for path in paths]


def kinds_given(tree: ast.Module) -> set[str]:
    """The literal kinds that faults, hypotheses and errors are made of."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        at = MAKERS.get(ast.unparse(node.func).rpartition(".")[2])
        given = [node.args[at]] if at is not None and len(node.args) > at else []
        name = ast.unparse(node.func)
        given += [k.value for k in node.keywords if k.arg == "kind" and name.endswith("Error")]
        for each in given:
            for part in ast.walk(each):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
                    found.add(part.value)
    return found


def test_a_fault_of_no_registered_kind_cannot_be_made() -> None:
    with pytest.raises(KeyError, match="elements-mislaid"):
        Fault("elements-mislaid", (), "", "")


def test_every_kind_that_code_gives_is_registered() -> None:
    given = set().union(*map(kinds_given, trees()))
    assert len(given) > 40
    assert given <= KINDS.keys(), sorted(given - KINDS.keys())


def test_every_error_has_the_kind_of_a_fault() -> None:
    raised = [x for x in vars(errors).values() if isinstance(x, type)]
    kinds = {x.kind for x in raised if issubclass(x, errors.IntarsiaError)}
    assert kinds <= KINDS.keys()


def test_every_registered_kind_is_named_by_some_code() -> None:
    told = {
        node.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert KINDS.keys() <= told, sorted(KINDS.keys() - told)


def test_no_kind_is_registered_twice() -> None:
    names = Counter(kind.name for kind in (*ALONE, *PAIR))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_says_what_it_means_and_what_to_do_and_has_its_row(name: str) -> None:
    kind = KINDS[name]
    fault = Fault(name, (), "", "").as_json()
    assert fault["means"] == kind.means
    assert fault["next"] == kind.next
    assert all((kind.means, kind.next, kind.section or kind.between))
    assert any(f"\n| `{name}` | " in page.read_text() for page in PAGES)


def test_the_documents_have_the_tables_of_the_registry() -> None:
    pages = [page.read_text() for page in PAGES]
    assert set().union(*map(sections, pages)) == {TWO, *(k.section for k in ALONE)}
    for page in pages:
        assert written(page) == page, "run `python -m tests.fault_kinds`"


def test_a_comparison_says_what_each_fault_means_and_what_to_do_next(tmp_path: Path) -> None:
    tensors = {"a.up_proj.weight": normal_tensor((8, 8), torch.float32)}
    a = write_hf(tmp_path / "a", tensors)
    b = write_hf(tmp_path / "b", {n: x.t().contiguous() for n, x in tensors.items()})
    (fault,) = command("verify", a, b, "--json").json["faults"]
    kind = KINDS["transposed"]
    assert (fault["kind"], fault["means"], fault["next"]) == (kind.name, kind.means, kind.next)
    assert f"next: {kind.next}" in command("verify", a, b).out


def test_an_error_s_own_advice_comes_before_that_of_its_kind() -> None:
    assert Fault("malformed", (), "", "", hint="look here").next == "look here"
