"""Who may import whom: the arrows of the design, read from the source."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from intarsia.format.built_in import BUILT_IN

SOURCE = Path(__file__).resolve().parent.parent / "src" / "intarsia"

ARROWS = {
    "errors": set(),
    "dtypes": {"errors", "frozen"},
    "quantity": {"errors"},
    "collector": set(),
    "document": set(),
    "kernel": set(),
    "frozen": set(),
    "layout": {"errors", "frozen"},
    "mesh": {"errors", "frozen", "layout"},
    "placement": {"errors", "layout", "mesh"},
    "state": set(),
    "value": {"errors", "dtypes", "frozen"},
    "family": {"errors", "frozen", "layout", "mesh", "state", "value"},
    "quantised": {"errors", "dtypes", "frozen", "mesh"},
    "planning": {"errors", "document", "dtypes", "frozen", "quantity", "layout", "mesh", "quantised.weight", "value"},
    "entry_point": {"errors"},
    "store": {"errors", "frozen", "quantity", "entry_point", "kernel"},
    "format": {
        "errors", "entry_point", "dtypes", "frozen", "quantity", "collector", "layout", "mesh", "family", "planning.chunks", "planning.inventory", "planning.made_when_asked",
        "planning.manifest", "planning.problem", "planning.whole_tensor",
        "quantised", "state", "store", "value",
    },
    "run": {
        "errors", "document", "dtypes", "frozen", "quantity", "layout", "mesh", "planning", "store", "format.base", "format.arrangement", "value", "kernel",
    },
    "options": {"format.built_in", "mesh"},
    "checkpoint": {
        "errors", "dtypes", "kernel", "layout", "mesh", "planning", "store", "format", "run", "opened.lazy_tensor", "value",
    },
    "opened": {
        "errors", "document", "dtypes", "frozen", "quantity", "layout", "mesh", "family", "planning", "store", "format", "run", "checkpoint",
        "options", "quantised", "state", "value",
    },
    "checking": {
        "errors", "document", "kernel", "dtypes", "frozen", "layout", "mesh", "family", "quantised", "planning", "store", "format", "run",
        "checkpoint", "opened", "state", "value",
    },
    "conversion": {
        "errors", "document", "frozen", "quantity", "collector", "layout", "mesh", "family", "quantised", "planning", "store", "format",
        "run", "checkpoint", "opened", "checking.digests", "state", "value",
    },
    "live": {
        "errors", "dtypes", "collector", "layout", "mesh", "placement", "family", "quantised", "planning", "store", "format", "run",
        "checkpoint", "opened", "checking.digests", "conversion.replacing", "state", "value",
    },
    "report": {"errors", "quantity", "collector", "layout", "planning.manifest", "format.registry", "opened.lacking", "opened.parameters", "checking", "state"},
}  # fmt: skip
"""What each part of the house may import, itself aside."""

TOP = {"__init__", "__main__", "api", "converting", "cli"}
"""The parts above all others, which may import any of them."""

ARROWS_OF_RUN = {
    "sums": set(),
    "windows": {"losses", "room", "source", "sums"},
    "journal": {"execute", "losses", "sharing", "sums", "windows"},
    "ranks": {"execute", "stopping"},
}
"""What each room of `run` may import of the rest of `run`."""

PURE = ("errors", "layout", "mesh", "state", "value", "family", "quantised", "planning")
"""Parts that compute and touch neither torch nor a file."""

EXEMPT = {"family/from_transformers/skeleton.py", "value/cast.py"}
"""They ask the installed Transformers for its rules, and torch for its casts, when a function is called."""

FILES = {"io", "mmap", "os", "pathlib", "shutil", "subprocess", "tempfile", "fcntl", "socket"}
ARRAYS = {"numpy"}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Every imported module, and whether only a type checker imports it."""
    return list(_imports(tree_of(path), path))


_OPENED = ("intarsia", "intarsia.format")
"""Packages from which modules are imported by name."""


def _imports(tree: ast.Module, path: Path) -> Iterator[tuple[str, bool]]:
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            base = node.module or ""
            names = [f"{base}.{a.name}" if base in _OPENED else base for a in node.names]
        for name in names:
            yield name, _for_types_only(node)


def _for_types_only(node: ast.AST) -> bool:
    while node := getattr(node, "parent", None):  # type: ignore[assignment]
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return True
    return False


def ours(path: Path) -> set[str]:
    """The parts of Intarsia that a file imports, with the file where it names one."""
    found = {
        name.removeprefix("intarsia.") for name, _ in imports(path) if name.startswith("intarsia.")
    }
    return {name for name in found if not name.startswith("__")}


def allowed(part: str, name: str) -> bool:
    if name.split(".")[0] == part:
        return True
    return any(name == a or name.startswith(a + ".") for a in ARROWS[part])


@pytest.mark.parametrize("part", ARROWS)
def test_a_part_imports_what_its_arrows_allow(part: str) -> None:
    held = [path for path in files() if part_of(path) == part]
    assert held, f"{part} is gone"
    for path in held:
        wrong = sorted(name for name in ours(path) if not allowed(part, name))
        assert not wrong, f"{path.relative_to(SOURCE)} imports {wrong}"


def test_every_part_states_its_arrows_and_follows_each() -> None:
    assert {part_of(path) for path in files()} == ARROWS.keys() | TOP
    for part, arrows in ARROWS.items():
        found = {name for path in files() if part_of(path) == part for name in ours(path)}
        stale = [a for a in arrows if not any(f"{name}.".startswith(f"{a}.") for name in found)]
        assert not stale, f"{part} imports nothing of {stale}"


@pytest.mark.parametrize("room", ARROWS_OF_RUN)
def test_a_room_of_run_imports_what_its_arrows_allow(room: str) -> None:
    held = [path for path in files() if path.parent == SOURCE / "run" / room]
    assert held, f"run/{room} is gone"
    for path in held:
        found = {name.split(".")[1] for name in ours(path) if name.startswith("run.")}
        assert found <= ARROWS_OF_RUN[room] | {room}, path


def test_only_the_command_line_imports_the_command_line() -> None:
    for path in files():
        if part_of(path) not in ("cli", "__main__"):
            wrong = [name for name in ours(path) if name.split(".")[0] == "cli"]
            assert not wrong, f"{path.relative_to(SOURCE)} imports {wrong}"


@pytest.mark.parametrize("part", PURE)
def test_pure_parts_import_neither_torch_nor_what_opens_files(part: str) -> None:
    for path in files():
        if part_of(path) != part or str(path.relative_to(SOURCE)) in EXEMPT:
            continue
        roots = {name.split(".")[0] for name, types in imports(path) if not types}
        outside = roots - set(sys.stdlib_module_names) - {"intarsia"}
        assert outside <= (ARRAYS if part in ("planning", "value") else set()), path
        assert not roots & FILES, path


@pytest.mark.parametrize("part", PURE)
def test_pure_parts_call_nothing_that_opens_files(part: str) -> None:
    for path in files():
        if part_of(path) != part:
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "print", "input", "exec", "eval"), path


def test_torch_and_other_heavy_libraries_are_imported_inside_functions() -> None:
    """Beside the parts for live models, which are about torch."""
    for path in files():
        if part_of(path) in ("live", "collector") or path.name == "demo_model.py":
            continue
        tree = tree_of(path)
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = (
                    [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
                )
                roots = {str(name).split(".")[0] for name in names}
                assert not roots & {"torch", "transformers", "safetensors"}, path


def test_no_pickle_is_executed() -> None:
    """Pickles may be written; reading them is the business of our own reader."""
    for path in files():
        roots = {name.split(".")[0] for name, _ in imports(path)}
        assert not roots & {"marshal", "shelve", "dill", "cloudpickle"}, path
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = f"{node.value.id}.{node.attr}"
                forbidden = {"pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"}
                if path.name == "unpickle.py":
                    forbidden.remove("pickle.Unpickler")  # the one reader, which runs nothing
                if path.name == "apart.py":
                    forbidden.remove("pickle.loads")  # what the ranks of one job tell each other
                assert called not in forbidden, f"{path}: {called}"


PARSING = {
    "format/strict_json.py": "the one reader of JSON that others wrote",
    "family/__init__.py": "reads what it spelled itself",
    "run/journal/records.py": "reads lines of ours, each with its checksum",
}
"""Who may parse JSON: Python's parser ends in errors that nobody expects where a stranger wrote it."""


def test_json_of_others_is_read_in_one_place() -> None:
    calls = {
        str(path.relative_to(SOURCE))
        for path in files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.load", "json.loads")
    }
    assert calls == PARSING.keys()


ON_DISK = {
    "store/local": "the store of local files",
    "report/write.py": "writes the page that a user asked for",
    "kernel": "loads the compiled library that lies beside it",
    "cli": "the demo's new folder, and the terminal",
}
"""Who may touch the file system, and why; all others read and write through a store."""

HARMLESS = {
    "PathLike", "_exit", "cpu_count", "environ", "fsencode", "fspath", "getpid", "getuid", "kill", "register_at_fork", "sched_getaffinity",
    "stat_result", "sysconf",
}  # fmt: skip
"""What `os` has beside the file system."""

TOUCHING = {"fcntl", "glob", "mmap", "shutil", "tempfile"}


def touches(path: Path) -> Iterator[str]:
    """What of a file could touch the file system."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name in TOUCHING)
            case ast.ImportFrom(module="os", names=names):
                yield from (f"os.{name.name}" for name in names if name.name not in HARMLESS)
            case ast.ImportFrom(module="pathlib", names=names):
                yield from (name.name for name in names if not name.name.startswith("Pure"))
            case ast.ImportFrom(module="io", names=names):
                yield from (name.name for name in names if name.name in ("open", "FileIO"))
            case ast.ImportFrom(module=module) if module in TOUCHING:
                yield module
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name not in HARMLESS:
                yield f"os.{name}"
            case ast.Attribute(value=ast.Name(id="io"), attr="open" | "FileIO" as name):
                yield f"io.{name}"
            case ast.Attribute(value=ast.Name(id="pathlib"), attr="Path" | "PosixPath" as name):
                yield name
            case ast.Call(func=ast.Name(id="open")) if path.name != "api.py":  # it has its own
                yield "open()"


def on_disk(path: Path) -> bool:
    name = str(path.relative_to(SOURCE))
    return any(name == each or name.startswith(f"{each}/") for each in ON_DISK)


def test_only_the_store_of_local_files_touches_the_disk() -> None:
    """A name is a `PurePath`, which has no way to the disk; a checkpoint may lie in any store."""
    for path in files():
        if not on_disk(path):
            assert not list(touches(path)), (
                f"{path.relative_to(SOURCE)} does not go through a store"
            )


def test_no_one_is_allowed_to_touch_the_disk_who_does_not() -> None:
    for name in ON_DISK:
        held = [path for path in files() if str(path.relative_to(SOURCE)).startswith(name)]
        assert any(any(touches(path)) for path in held), f"{name} needs no exception"


KNOW_LOCAL = {"cli/demo.py"}
"""Who may import the local store: the demo, for its new folder; all others read and write through any store."""


def test_those_who_read_or_write_a_checkpoint_do_not_know_the_local_store() -> None:
    knowing = {
        str(path.relative_to(SOURCE))
        for path in files()
        if part_of(path) != "store" and any(n.startswith("store.local") for n in ours(path))
    }
    assert knowing == KNOW_LOCAL


ASKING = {"exists", "is_file", "is_dir", "is_symlink", "iterdir", "glob", "rglob"}
"""Methods of `Path` that answer "no" where the disk gives no answer, from Python 3.13 on."""


def test_what_is_there_is_asked_of_the_one_file_that_tells_a_no_from_an_error() -> None:
    for path in files():
        if part_of(path) in ("cli", "report"):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                where = f"{path.relative_to(SOURCE)}:{node.lineno}"
                assert node.func.attr not in ASKING, (
                    f"{where} asks Path, not store/reading/lookup.py"
                )


ACTING = {
    "chmod", "lstat", "mkdir", "mkstemp", "open", "read_bytes", "read_text", "resolve", "rmdir",
    "rmtree", "samefile", "stat", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
"""Methods of `Path`, and functions of `os` and `shutil`, that raise an `OSError` of the disk's."""


def unguarded(node: ast.AST, guarded: bool = False) -> Iterator[ast.Call]:
    """Calls to the file system that neither `errors_naming` nor an `except OSError` stands around."""
    if isinstance(node, ast.Call):
        base, _, name = ast.unparse(node.func).rpartition(".")
        ours = base == "api" or (not base and name != "open")  # functions of the same name
        if name in ACTING and not ours and not guarded:
            yield node
    inside = guarded
    if isinstance(node, ast.With):
        held = [ast.unparse(item.context_expr) for item in node.items]
        inside = guarded or any(
            h.startswith("errors_naming(") or "suppress(OSError" in h for h in held
        )
    if isinstance(node, ast.Try):
        caught = " ".join(ast.unparse(h.type) if h.type else "OSError" for h in node.handlers)
        inside = guarded or "OSError" in caught
    for name, value in ast.iter_fields(node):
        held_by = inside if name in ("body", "items") else guarded
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from unguarded(child, held_by)


def test_no_call_to_the_disk_can_raise_an_error_that_names_no_file() -> None:
    """Beside the store, whose callers name the file, and what is read out of the package itself."""
    for path in files():
        written = ("page.py", "output.py", "demo_model.py")
        if part_of(path) in ("store", "api", "kernel") or path.name in written:
            continue
        tree = tree_of(path)
        wrong = [f"{node.lineno}: {ast.unparse(node)}" for node in unguarded(tree)]
        assert not wrong, f"{path.relative_to(SOURCE)} {wrong}"


OTHER_SPELLINGS = {
    "format/megatron/optimizer/state_tensors.py": "Megatron's keys: the kind before the key of a model's tensor",
    "format/megatron/fsdp_dtensor/entries.py": "Megatron-FSDP's keys",
    "format/megatron/fsdp_dtensor/keys.py": "Megatron-FSDP's keys",
    "format/megatron/fsdp_dtensor/checkpoint.py": "Megatron-FSDP's keys",
    "format/folder/trainer_files.py": "a file of Trainer's",
    "format/optimizer_state/optimizer_names.py": "the roots that say of any state dict what its state is",
    "format/optimizer_state/parameter_groups.py": "the groups of Megatron-FSDP",
}
"""Files with names that begin like ours and are others'."""


def test_names_of_optimizer_state_are_put_together_and_taken_apart_in_one_file() -> None:
    for path in files():
        name = str(path.relative_to(SOURCE))
        if part_of(path) == "state" or name in OTHER_SPELLINGS:
            continue
        texts = [
            node.value
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        wrong = [t for t in texts if re.match(r"\^?optimizer\\?\.\S*$", t)]
        assert not wrong, f"{name} spells {wrong}: use state/names.py"


@pytest.mark.parametrize("name", OTHER_SPELLINGS)
def test_files_with_other_spellings_still_need_to_be_named(name: str) -> None:
    assert re.search(r"[\"^]optimizer\\?\.", (SOURCE / name).read_text())


GENERAL = (
    "api", "checking", "checkpoint", "cli", "conversion", "converting", "live", "opened", "options", "planning", "report",
    "run", "state", "store", "value",
)  # fmt: skip
"""Parts that serve every format, and know none."""

NAMING = {
    "cli/demo.py": "lists the route that the demonstration takes",
    "cli/demo_model.py": "writes the demonstration's model",
}
"""Files of general parts that may name a format, and why."""

MEGATRON = ("live/megatron/", "live/megatron_load.py")
"""Megatron's models are live containers: these may ask how Megatron names its tensors."""

ROOMS = {line.module.split(".")[0] for line in BUILT_IN.values()}


def is_general(path: Path) -> bool:
    return part_of(path) in GENERAL and not str(path.relative_to(SOURCE)).startswith(MEGATRON)


def test_general_parts_import_no_module_of_a_format() -> None:
    for path in filter(is_general, files()):
        names = (name.split(".") for name in ours(path))
        wrong = [".".join(n) for n in names if n[0] == "format" and ROOMS & {*n[1:2]}]
        assert not wrong, f"{path.relative_to(SOURCE)} imports {wrong}: ask the Format"


def test_general_parts_name_no_format() -> None:
    """Beside sentences in help and hints: a name that stands alone is a decision, which is the format's."""
    named = {str(path.relative_to(SOURCE)): [*_names_of_formats(path)] for path in files()}
    found = {file: said for file, said in named.items() if said and is_general(SOURCE / file)}
    assert found.keys() == NAMING.keys(), found


_FILE = re.compile(r"\.(distcp|safetensors|metadata)\b")


def _names_of_formats(path: Path) -> Iterator[str]:
    """Names of formats, and how the names of their files end; a text with spaces is a sentence."""
    for node in ast.walk(tree_of(path)):
        said = node.value if isinstance(node, ast.Constant) else None
        if isinstance(said, str) and " " not in said and (said in BUILT_IN or _FILE.search(said)):
            yield f"{node.lineno}: {said}"


def test_the_page_of_a_report_names_no_format() -> None:
    for path in (p for p in SOURCE.rglob("*") if p.suffix in (".js", ".html", ".css")):
        text = path.read_text()
        named = [*_FILE.findall(text), *re.findall(rf"\b({'|'.join(BUILT_IN)})\b", text)]
        assert not named, f"{path.relative_to(SOURCE)} names {named}: ask the Format"


SENTENCES = {"brief", "diagnosis", "hint", "means", "message", "text", "title", "what"}
"""Attributes that are words for people."""

CUTS = {
    "endswith", "find", "findall", "finditer", "fullmatch", "index", "match", "partition", "removeprefix", "removesuffix",
    "rfind", "rpartition", "rsplit", "search", "split", "startswith",
}  # fmt: skip
"""Methods of texts and of patterns, and functions of `re`, that take a text apart."""


def test_no_code_takes_a_sentence_apart() -> None:
    """What a sentence says is a value beside it, the place of an error too; only lines are told apart."""
    for path in files():
        found = [f"{node.lineno}: {ast.unparse(node)}" for node in _taking_apart(tree_of(path))]
        assert not found, f"{path.relative_to(SOURCE)} {found}"


def _taking_apart(tree: ast.Module) -> Iterator[ast.expr]:
    caught = {n.name for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=cut, attr=name), args=given) if name in CUTS:
                by_line = any(ast.unparse(x) in ("'\\n'", "chr(10)") for x in given)
                said = any(_is_sentence(x, caught) for x in (cut, *given))
                if said and not by_line:
                    yield node


def _is_sentence(node: ast.expr, caught: set[str | None]) -> bool:
    match node:
        case ast.Attribute(attr=name):
            return name in SENTENCES
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
            return name in caught
    return False


def test_an_error_is_given_its_place_beside_its_sentence() -> None:
    joining = {"errors.py", "checking/fault.py"}
    for path in files():
        texts = (n.value for n in ast.walk(tree_of(path)) if isinstance(n, ast.Constant))
        if str(path.relative_to(SOURCE)) not in joining:
            wrong = [text for text in texts if isinstance(text, str) and " - at " in text]
            assert not wrong, f"{path.relative_to(SOURCE)}: {wrong}: give at="
