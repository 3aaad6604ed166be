"""Which format the headers of a folder are of, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

import intarsia
from tests.checkpoints import llama_config, model, write_hf
from tests.fixtures import fixture

CONFIG = llama_config()
MEGATRON = fixture("megatron")


@pytest.mark.parametrize("said", ["", "{}", '{"sharded_backend": "zarr"}', None])
def test_megatron_s_folder_without_its_backend_is_malformed(
    said: str | None, tmp_path: Path
) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, tmp_path / "out", to="torch_dist", mesh="tp=2")
    assert intarsia.verify(tmp_path / "out").sound
    home = next((tmp_path / "out").glob("iter_*"))
    if said is None:
        (home / "metadata.json").unlink()
    else:
        (home / "metadata.json").write_text(said)
    for path in (home, tmp_path / "out"):
        report = intarsia.verify(path)
        assert (report.format, [f.kind for f in report.faults]) == ("torch_dist", ["malformed"])
        with pytest.raises(intarsia.IntarsiaError, match=r"metadata\.json"):
            intarsia.open(path)


@pytest.mark.parametrize("to", ["dcp", "fsdp_dtensor", "hf"])
@pytest.mark.one_in(3)
def test_what_was_made_of_megatron_s_checkpoint_is_of_its_own_format(
    to: str, tmp_path: Path
) -> None:
    """Though it carries Megatron's common state along."""
    src = MEGATRON / "td_dense_tp2"
    config = src / "hf_truth" / "config.json"
    intarsia.convert(src / "iter_0000010", tmp_path / "out", to=to, config=config)
    assert intarsia.open(tmp_path / "out").format == to
    assert intarsia.verify(tmp_path / "out").sound
