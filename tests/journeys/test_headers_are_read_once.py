"""Whatever a job has to find out before it begins, it reads the headers of its source once, and takes them apart once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import intarsia
from intarsia.format.dcp import metadata
from intarsia.format.hf import safetensors_header
from intarsia.format.hf.checkpoint import Hf
from intarsia.store.local.reader import LocalReader
from tests.checkpoints import llama_config, model, write_dcp, write_hf

HEADERS = (".metadata", ".index.json")
"""Files that are headers as a whole; that of a safetensors file begins with its length.  Configurations and
common files are content, too: what is carried is read when it is carried."""


@pytest.fixture
def header_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the header of each file was read."""
    found: Counter[str] = Counter()
    read = LocalReader.read

    def reading(self, file, ranges):
        path = str(self.root / file)
        first = any(at == 0 and len(view) == 8 for at, view in ranges)
        if path.endswith(HEADERS) or (path.endswith(".safetensors") and first):
            found[path] += 1
        return read(self, file, ranges)

    monkeypatch.setattr(LocalReader, "read", reading)
    return found


@pytest.fixture
def taken_apart(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each header was taken apart."""
    found: Counter[str] = Counter()
    for module, name in ((metadata, "_read"), (safetensors_header, "_parse")):

        def counting(data, where, *rest, take=getattr(module, name)):
            found[where] += 1
            return take(data, where, *rest)

        monkeypatch.setattr(module, name, counting)
    return found


def hub(folder: Path) -> Path:
    return write_hf(folder, model(llama_config()), llama_config(), 2)


def live() -> LlamaForCausalLM:
    said = {k: v for k, v in llama_config().items() if k not in ("architectures", "model_type")}
    return LlamaForCausalLM(LlamaConfig(**said)).bfloat16()


def a_run(folder: Path) -> Path:
    """The newest checkpoint of a run is not whole."""
    for step in (1, 2, 3):
        hub(folder / f"checkpoint-{step}")
    (folder / "checkpoint-3" / "model-00002-of-00002.safetensors").unlink()
    return folder


def without_config(folder: Path) -> Path:
    return write_dcp(folder, model(llama_config()))


def without_table(folder: Path) -> Path:
    config = GPT2Config(n_embd=12, n_layer=2, n_head=2, vocab_size=33)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def megatron(folder: Path) -> Path:
    intarsia.convert(hub(folder.with_name("hub")), folder, to="torch_dist", mesh="tp=2")
    return folder


def converted(**options: object) -> Callable[[Path], None]:
    def job(src: Path) -> None:
        intarsia.convert(src, src.with_name("out"), digests=False, **{"to": "dcp", **options})

    return job


def loaded(src: Path) -> None:
    intarsia.load(src, live())


def loaded_from_a_dict(src: Path) -> None:
    intarsia.load(src, {"model": live(), "other": {}}, strict=False)


def loaded_without_table(src: Path) -> None:
    intarsia.load(src, GPT2LMHeadModel(GPT2Config(n_embd=12, n_layer=2, n_head=2, vocab_size=33)))


def compared(src: Path) -> None:
    assert intarsia.verify(src, hub(src.with_name("other")))


def examined(src: Path) -> None:
    assert intarsia.verify(src)


@pytest.mark.parametrize(("made", "job"), [
    (hub, converted()),
    (hub, converted(resume=True)),
    (hub, loaded),
    (hub, loaded_from_a_dict),
    (hub, examined),
    (a_run, converted()),
    (a_run, loaded),
    (a_run, examined),
    (without_config, converted(to="hf")),
    (without_config, loaded),
    (without_config, compared),
    (without_table, converted(dialect="hf-module")),
    (without_table, loaded_without_table),
    (megatron, converted(to="hf")),
    (megatron, loaded),
    (megatron, compared),
], ids=lambda x: x.__name__)  # fmt: skip
def test_a_job_reads_each_header_of_its_source_once(
    made, job, header_reads, taken_apart, tmp_path
) -> None:
    src = made(tmp_path / "src")
    header_reads.clear()
    taken_apart.clear()
    job(src)
    read = {path: n for path, n in header_reads.items() if path.startswith(f"{src}/")}
    assert any(path.endswith((".metadata", ".safetensors")) for path in read)
    assert {path: n for path, n in read.items() if n > 1} == {}
    apart = {path: n for path, n in taken_apart.items() if path.startswith(f"{src}/")}
    assert apart
    assert {path: n for path, n in apart.items() if n > 1} == {}


def test_the_newest_checkpoint_of_a_run_is_read_once(tmp_path: Path, monkeypatch) -> None:
    read = list[str]()
    reading = Hf.read
    monkeypatch.setattr(
        Hf,
        "read",
        lambda self, path, *more: (read.append(path.name), reading(self, path, *more))[1],
    )
    src = a_run(tmp_path / "src")
    assert intarsia.open(src).manifest.path.endswith("checkpoint-2")
    assert read == ["checkpoint-3", "checkpoint-3", "checkpoint-2"], (
        "once more for what is not whole"
    )
