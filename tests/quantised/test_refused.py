"""Whatever needs the numbers of quantised weights is refused, with the reason."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as CONFIGS
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING as QUANTISERS
from transformers.quantizers.base import HfQuantizer

import intarsia
from intarsia.errors import UsageError
from intarsia.quantised.refusing import how_to_dequantise
from intarsia.quantised.scheme import Scheme, scheme_of
from intarsia.quantised.words import KNOWN
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
@pytest.mark.one_in(6)
def test_numbers_are_refused_on_every_road(tmp_path: Path, scheme: str, kind: str) -> None:
    src = written(tmp_path / "hf", scheme, kind)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="fsdp=2")
    requests = [
        *({"to": to, "dtype": "bf16"} for to in ("hf", "dcp")),
        *({"to": to} for to in ("torch_dist", "fsdp_dtensor")),
        *({"to": to, "dialect": d} for to in ("hf", "dcp") for d in ("hf-fused", "hf-module")),
    ]
    how = how_to_dequantise(scheme_of({"quantization_config": SCHEMES[scheme][1]}))
    for path in (src, tmp_path / "dcp"):
        for request in requests:
            with pytest.raises(UsageError, match="is quantised") as error:
                intarsia.convert(path, tmp_path / "out", **request)
            assert how in (error.value.hint or "")
            assert not (tmp_path / "out").exists()


def test_a_way_through_transformers_is_named_where_transformers_has_one() -> None:
    """Of the methods that are known; those of NVIDIA's ModelOpt are not Transformers' at all."""
    for method in KNOWN:
        of = method.replace("-", "_") if method == "fbgemm-fp8" else method
        names = ("bitsandbytes_4bit", "bitsandbytes_8bit") if of == "bitsandbytes" else (of,)
        for quantiser, config in ((QUANTISERS.get(n), CONFIGS.get(n)) for n in names):
            hint = how_to_dequantise(Scheme(method))
            at_loading = config and "dequantize" in signature(config).parameters
            after = quantiser and quantiser._dequantize is not HfQuantizer._dequantize
            assert ("`dequantize=True`" in hint) == bool(at_loading), method
            assert ("`model.dequantize()`" in hint) == bool(after), method
            assert ("Transformers cannot" in hint) == (
                not at_loading and not after and bool(config)
            )
    assert "library that quantised them" in how_to_dequantise(None)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.one_in(3)
def test_a_dialect_that_has_the_very_same_tensors_is_written(tmp_path: Path, scheme: str) -> None:
    src = written(tmp_path / "src", scheme, "llama")
    for dialect in ("hf", "hf-module"):
        intarsia.convert(src, tmp_path / dialect, to="hf", dialect=dialect)
        assert_same(read_hf(tmp_path / dialect), read_hf(src))
    mixed = written(tmp_path / "moe", scheme)
    intarsia.convert(mixed, tmp_path / "moe-hf", to="hf", dialect="hf")
    assert_same(read_hf(tmp_path / "moe-hf"), read_hf(mixed))
