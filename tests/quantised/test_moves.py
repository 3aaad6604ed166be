"""Quantised checkpoints move bit for bit between hf and dcp, on any mesh, and are sound."""

from __future__ import annotations

from pathlib import Path

import pytest

import intarsia
from tests.checkpoints import assert_same, read_dcp, read_hf, write_hf
from tests.quantised.models import mixtral, stranger
from tests.quantised.schemes import SCHEMES

MODELS = {"mixtral": mixtral, "stranger": stranger}


def written(tmp_path: Path, scheme: str, kind: str) -> Path:
    make, said = SCHEMES[scheme]
    tensors, config = MODELS[kind]()
    return write_hf(tmp_path / "hf", make(tensors), config | {"quantization_config": said})


@pytest.mark.parametrize("kind", ["mixtral", "stranger"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.one_in(6)
def test_every_scheme_moves_bit_for_bit_and_is_sound(
    tmp_path: Path, scheme: str, kind: str
) -> None:
    src = written(tmp_path, scheme, kind)
    expected = read_hf(src)
    for path, to, mesh in ((tmp_path / "dcp", "dcp", "tp=2,fsdp=3,ep=2"), (tmp_path / "back", "hf", None)):  # fmt: skip
        intarsia.convert(src, path, to=to, mesh=mesh)
        assert_same(read_dcp(path) if to == "dcp" else read_hf(path), expected)
        report = intarsia.verify(path)
        assert report, str(report)
        assert intarsia.verify(path, src)
        src = path
    with intarsia.open(src) as checkpoint:
        assert not checkpoint.manifest.absent
        assert checkpoint.manifest.quantised.weights
        assert any("quantised" in note for note in checkpoint.manifest.notes)
