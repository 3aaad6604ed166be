"""Whatever needs the numbers of quantised weights is refused, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import intarsia
from intarsia.errors import UsageError
from tests.checkpoints import assert_same, read_hf, write_hf
from tests.quantised.models import llama, mixtral, stranger
from tests.quantised.schemes import SCHEMES

MODELS = {"llama": llama, "mixtral": mixtral, "stranger": stranger}


def written(folder: Path, scheme: str, kind: str = "mixtral") -> Path:
    make, said = SCHEMES[scheme]
    tensors, config = MODELS[kind]()
    return write_hf(folder, make(tensors), config | {"quantization_config": said})


@pytest.mark.parametrize("kind", ["mixtral", "stranger"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.one_in(3)
def test_numbers_are_refused_on_every_road(tmp_path: Path, scheme: str, kind: str) -> None:
    src = written(tmp_path / "hf", scheme, kind)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="fsdp=2")
    requests = [
        *({"to": to, "dtype": "bf16"} for to in ("hf", "dcp")),
        *({"to": to} for to in ("torch_dist", "fsdp_dtensor")),
        *({"to": to, "dialect": d} for to in ("hf", "dcp") for d in ("hf-fused", "hf-module")),
    ]
    for path in (src, tmp_path / "dcp"):
        for request in requests:
            with pytest.raises(UsageError, match="is quantised") as error:
                intarsia.convert(path, tmp_path / "out", **request)
            assert "dequantise" in (error.value.hint or "")
            assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_dialect_that_has_the_very_same_tensors_is_written(tmp_path: Path, scheme: str) -> None:
    src = written(tmp_path / "src", scheme, "llama")
    for dialect in ("hf", "hf-module"):
        intarsia.convert(src, tmp_path / dialect, to="hf", dialect=dialect)
        assert_same(read_hf(tmp_path / dialect), read_hf(src))
    mixed = written(tmp_path / "moe", scheme)
    intarsia.convert(mixed, tmp_path / "moe-hf", to="hf", dialect="hf")
    assert_same(read_hf(tmp_path / "moe-hf"), read_hf(mixed))
