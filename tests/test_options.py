"""One set of options serves Python and the command line; `intarsia` shows its public names, and no others."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, FrozenInstanceError, fields
from pathlib import Path
from typing import get_type_hints

import pytest
import typer

import intarsia
from intarsia.cli.typer_app import app
from intarsia.errors import UsageError
from intarsia.format.registry import FORMATS
from intarsia.options import Options
from tests.checkpoints import llama_config, model, python, write_hf

FIELDS = {field.name: field for field in fields(Options)}
COMMANDS = typer.main.get_command(app()).commands  # type: ignore[attr-defined]
both = pytest.mark.parametrize("name", ["plan", "convert"])


@both
def test_each_option_is_an_argument_of_python_with_its_type_and_default(name: str) -> None:
    call = getattr(intarsia, name)
    found, hints = inspect.signature(call).parameters, get_type_hints(call)
    for field in FIELDS.values():
        argument = found[field.name]
        assert argument.kind is inspect.Parameter.KEYWORD_ONLY
        wanted = inspect.Parameter.empty if field.default is MISSING else field.default
        assert argument.default == wanted, field.name
        assert hints[field.name] == get_type_hints(Options)[field.name]


@both
def test_each_option_is_one_of_the_command_line_with_its_default(name: str) -> None:
    found = {option.name: option for option in COMMANDS[name].params}
    for field in FIELDS.values():
        option = found[field.name]
        assert option.opts == [f"--{field.name.replace('_', '-')}"]
        assert option.required == (field.default is MISSING)
        assert option.help == field.metadata["help"]
        if field.default is not MISSING:
            assert option.default == field.default, field.name


@both
def test_what_python_takes_beside_the_options_the_command_line_takes(name: str) -> None:
    own = inspect.signature(getattr(intarsia, name)).parameters.keys()
    words = {option.name for option in COMMANDS[name].params}
    assert own - {"progress"} == words - {"dry_run"}


@both
def test_options_reach_the_job_from_both_sides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class ReachedError(Exception):
        pass

    asked: list[Options] = []

    def job(src: object, options: Options) -> None:
        asked.append(options)
        raise ReachedError

    monkeypatch.setattr("intarsia.converting.job", job)
    other = {
        "to": "hf", "mesh": "tp=2", "dialect": "same", "megatron_spec": "local", "megatron_lr": "1e-3",
        "dtype": "fp32", "memory": "1GiB", "workers": 3, "max_shard_size": "1GB", "optimizer": "drop", "config": "c.json", "section": "s", "digests": False,
    }  # fmt: skip
    assert other.keys() == FIELDS.keys()
    assert not any(other[name] == field.default for name, field in FIELDS.items())
    places = ["a"] if name == "plan" else ["a", "b"]
    flags = [
        word
        for key, value in other.items()
        for word in (["--no-digests"] if key == "digests" else [f"--{key.replace('_', '-')}", str(value)])
    ]  # fmt: skip
    with pytest.raises(ReachedError):
        getattr(intarsia, name)(*places, **other)
    with pytest.raises(ReachedError):
        app()([name, *places, *flags], standalone_mode=False)
    assert asked == [Options(**other)] * 2


@both
def test_the_help_of_python_explains_each_option(name: str) -> None:
    told = " ".join(inspect.getdoc(getattr(intarsia, name)).split())
    for field in FIELDS.values():
        assert f"{field.name}: {field.metadata['help']}" in told


def test_no_function_hides_its_arguments() -> None:
    for name in intarsia.__all__:
        if inspect.isfunction(call := getattr(intarsia, name)):
            kinds = {p.kind for p in inspect.signature(call).parameters.values()}
            assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
            assert inspect.signature(call).return_annotation is not inspect.Signature.empty
            assert call.__doc__


def test_words_that_a_shell_completes_are_those_that_are_taken() -> None:
    assert set(FIELDS["to"].metadata["words"]) == FORMATS.keys()
    dialects = {dialect for each in FORMATS.values() for dialect in each.dialects}
    assert set(FIELDS["dialect"].metadata["words"]) == dialects


def test_options_are_a_value() -> None:
    options = Options(to="dcp")
    with pytest.raises(FrozenInstanceError):
        options.to = "hf"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Options()  # type: ignore[call-arg]


def test_the_package_shows_its_public_names_and_nothing_else() -> None:
    """In a fresh interpreter, before and after a part of it is imported."""
    code = (
        "import intarsia; a = dir(intarsia); import intarsia.layout, intarsia.errors;"
        "print(a == dir(intarsia) == sorted(intarsia.__all__))"
    )
    assert python("-c", code).stdout == "True\n"
    for name in intarsia.__all__:
        assert getattr(intarsia, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        intarsia.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("option", "value"),
    [("section", ""), ("section", "model,"), ("section", ["model", " "]), ("dtype", ""), ("megatron_lr", "")],
)  # fmt: skip
def test_an_empty_word_does_not_count_as_an_option_that_is_not_given(
    option: str, value: str | list[str], tmp_path: Path
) -> None:
    src = write_hf(tmp_path / "hf", model(llama_config()), llama_config())
    with pytest.raises(UsageError, match=r"''|' '|'model,'"):
        intarsia.convert(src, tmp_path / "out", to="torch_dist", **{option: value})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    if option == "section":
        for call in (intarsia.open, intarsia.verify, intarsia.digest):
            with pytest.raises(UsageError, match="section without a name"):
                call(src, section=value)  # type: ignore[operator]


def test_sections_that_are_named_wrongly_are_no_fault_of_the_checkpoint(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", model(llama_config()), llama_config())
    with pytest.raises(UsageError, match="2 sections are named"):
        intarsia.verify(src, section="model,ema")
