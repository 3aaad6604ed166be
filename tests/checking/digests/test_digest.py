"""Digests of logical tensors, and the file of them that lies in every checkpoint that we write."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import intarsia
from intarsia.checking.digests import digest_steps
from intarsia.checking.digests.digest import mismatches, stored_digests
from intarsia.format.folder.side_files import DIGESTS
from intarsia.run.budget import Budget
from tests import fixtures
from tests.checkpoints import (
    assert_same,
    bits,
    fixture,
    leftovers,
    llama_config,
    model,
    normal_tensor,
    python,
    random_tensor,
    read_dcp,
    read_hf,
    write_hf,
)
from tests.checkpoints import intarsia as command
from tests.distributed.ranks import on_ranks

CONFIG = llama_config()
ROADS = (
    ("hf", "", {"dialect": "hf", "max_shard_size": "40kB"}),
    ("hf", "", {"dialect": "hf-fused"}),
    ("hf", "", {"dialect": "hf-module", "workers": 3}),
    ("dcp", "tp=2,fsdp=3", {}),
    ("dcp", "ep=4", {"workers": 1}),
    ("torch_dist", "tp=2,ep=2", {}),
    ("torch_dist", "", {"megatron_spec": "local"}),
    ("fsdp_dtensor", "fsdp=3", {}),
)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "src", model(CONFIG), CONFIG, files=2)


def check(path: Path) -> list:
    """Every tensor that is not what the checkpoint's own digests say; none where it has none."""
    stored = digests_in(path)
    return mismatches(stored.digests.tensors, intarsia.digest(path).tensors) if stored else []


def digests_in(path: Path):
    with intarsia.open(path) as checkpoint:
        return stored_digests(checkpoint.manifest)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
@pytest.mark.one_in(2)
def test_every_format_mesh_and_dialect_of_the_same_weights_has_the_same_digests(
    family: str, tmp_path: Path
) -> None:
    start = fixture(family)
    here = intarsia.digest(start)
    secure = intarsia.digest(start, secure=True)
    for k, (to, mesh, options) in enumerate(ROADS):
        out = tmp_path / f"{k}-{to}"
        intarsia.convert(start, out, to=to, mesh=mesh, **options)
        assert intarsia.digest(out).root == here.root, (to, mesh, options)
        assert digests_in(out).digests == intarsia.digest(out)
        assert not check(out)
    assert intarsia.digest(out, secure=True) == secure


def test_windows_and_workers_make_no_difference(src: Path, monkeypatch) -> None:
    whole = intarsia.digest(src)
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: 67))
    for workers in (1, 3):
        assert intarsia.digest(src, workers=workers) == whole


def test_the_secure_digest_is_sha256_of_type_shape_and_bytes(tmp_path: Path) -> None:
    x = random_tensor((5, 3), torch.bfloat16)
    path = write_hf(tmp_path / "a", {"w": x})
    expected = hashlib.sha256(b"BF16[5,3]\0" + bits(x)).hexdigest()
    assert intarsia.digest(path, secure=True).tensors == {"w": f"sha256:{expected}"}


def test_names_types_and_shapes_belong_to_the_digests(tmp_path: Path) -> None:
    x = torch.zeros(4, 6, dtype=torch.float16)
    same_bytes = {
        "plain": {"w": x},
        "named": {"v": x},
        "shaped": {"w": x.reshape(6, 4)},
        "typed": {"w": x.to(torch.bfloat16)},
        "more": {"w": x, "empty": torch.zeros(0)},
        "longer": {"w": torch.zeros(5, 6, dtype=torch.float16)},
    }
    for secure in (False, True):
        roots = {
            intarsia.digest(write_hf(tmp_path / name, tensors), secure=secure).root
            for name, tensors in same_bytes.items()
        }
        assert len(roots) == len(same_bytes)


def test_empty_and_scalar_tensors_have_digests(tmp_path: Path) -> None:
    tensors = {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), "flag": torch.tensor(True)}
    a = write_hf(tmp_path / "a", tensors)
    b = write_hf(tmp_path / "b", tensors | {"scalar": torch.tensor(3.0)})
    one, other = intarsia.digest(a).tensors, intarsia.digest(b).tensors
    assert one["scalar"] != other["scalar"]
    assert one["empty"] == other["empty"] != one["flag"]


def save_columns_first(folder: Path, x: torch.Tensor) -> None:
    mesh = init_device_mesh("cpu", (2,))
    mine = x.chunk(2)[dist.get_rank()].t().contiguous().t()
    dcp.save({"w": DTensor.from_local(mine, mesh, [Shard(0)])}, checkpoint_id=folder)


@pytest.mark.parametrize("window_bytes", [67, 8 << 20])
@pytest.mark.one_in(2)
def test_elements_stored_in_another_order_are_put_in_order_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: window_bytes))
    x = normal_tensor((26, 31), torch.float32)
    on_ranks(2, save_columns_first, tmp_path / "a", x)
    b = write_hf(tmp_path / "b", {"w": x})
    assert intarsia.digest(tmp_path / "a").tensors == intarsia.digest(b).tensors


def test_a_cast_changes_the_digests_and_the_file_tells_those_of_what_was_written(
    src: Path, tmp_path: Path
) -> None:
    intarsia.convert(src, tmp_path / "b", to="dcp", dtype="fp32")
    assert digests_in(tmp_path / "b").digests == intarsia.digest(tmp_path / "b")
    assert intarsia.digest(src).root != intarsia.digest(tmp_path / "b").root


def test_the_file_says_what_it_was_made_from(src: Path, tmp_path: Path) -> None:
    intarsia.convert(src, tmp_path / "b", to="dcp", mesh="tp=2")
    intarsia.convert(tmp_path / "b", tmp_path / "c", to="torch_dist", dtype="fp32")
    assert digests_in(src) is None
    first, second = digests_in(tmp_path / "b"), digests_in(tmp_path / "c")
    assert first.source is None
    assert first.digests.root == intarsia.digest(src).root
    assert second.source == first.digests.root


@pytest.mark.parametrize("case", ["fd_dense_tp2_fsdp2", "fd_moe_ep2_fsdp2"])
@pytest.mark.one_in(2)
def test_optimizer_state_is_attested_too(case: str, tmp_path: Path) -> None:
    start = fixtures.fixture("megatron", case)
    here, config = start, start / "hf_truth" / "config.json"
    for k, to in enumerate(("fsdp_dtensor", "torch_dist", "fsdp_dtensor", "dcp", "hf")):
        out = tmp_path / f"{k}-{to}"
        intarsia.convert(here, out, to=to, config=config if k == 0 else None)
        found = digests_in(out).digests
        assert found == intarsia.digest(out)
        assert any(name.startswith("optimizer.exp_avg.") for name in found.tensors)
        here = out


def test_a_tied_weight_that_is_written_twice_has_its_digest_twice(tmp_path: Path) -> None:
    config = llama_config(tie_word_embeddings=True)
    start = write_hf(tmp_path / "a", model(config), config)
    intarsia.convert(start, tmp_path / "b", to="hf", dialect="hf-module")
    found = digests_in(tmp_path / "b").digests
    assert found == intarsia.digest(tmp_path / "b")
    assert found.tensors["lm_head.weight"] == found.tensors["model.embed_tokens.weight"]


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 16
    path.write_bytes(raw)


def test_a_flipped_bit_is_found_and_stops_a_conversion(src: Path, tmp_path: Path) -> None:
    once = tmp_path / "once"
    intarsia.convert(src, once, to="hf")
    flip(once / "model.safetensors", -5000)
    (wrong,) = check(once)
    assert wrong.expected != wrong.found
    with pytest.raises(intarsia.CoverageError, match=wrong.name) as caught:
        intarsia.convert(once, tmp_path / "twice", to="dcp", mesh="tp=2")
    assert DIGESTS in str(caught.value)
    assert not (tmp_path / "twice").exists()
    assert not leftovers(tmp_path)
    (once / DIGESTS).unlink()
    intarsia.convert(once, tmp_path / "twice", to="dcp", mesh="tp=2")


def test_a_tensor_that_is_gone_or_new_is_named(src: Path, tmp_path: Path) -> None:
    once = tmp_path / "once"
    intarsia.convert(src, once, to="hf")
    (once / "config.json").unlink()
    tensors = load_file(once / "model.safetensors")
    tensors["stranger"] = tensors.pop("model.norm.weight")
    save_file(tensors, once / "model.safetensors", {"format": "pt"})
    wrong = {m.name: m for m in check(once)}
    assert wrong.keys() == {"stranger", "model.norm.weight"}
    assert wrong["model.norm.weight"].found == "" == wrong["stranger"].expected


@pytest.mark.parametrize("text", ["", "[]", '{"root": 1}', '{"tensors": {}}'])
def test_a_file_of_digests_that_is_none_is_refused(src: Path, text: str) -> None:
    (src / DIGESTS).write_text(text)
    with pytest.raises(intarsia.FormatError, match=DIGESTS):
        check(src)


def test_digests_of_a_kind_that_is_not_known_are_refused(src: Path, tmp_path: Path) -> None:
    intarsia.convert(src, tmp_path / "out", to="dcp")
    path = tmp_path / "out" / DIGESTS
    path.write_text(path.read_text().replace("pages", "leaves"))
    with pytest.raises(
        intarsia.FormatError, match="kind `leaves`; this version reads kind `pages`"
    ):
        check(tmp_path / "out")


def test_a_file_of_digests_that_contradicts_itself_is_refused(src: Path, tmp_path: Path) -> None:
    intarsia.convert(src, tmp_path / "b", to="hf")
    said = json.loads((tmp_path / "b" / DIGESTS).read_text())
    said["tensors"].pop("model.norm.weight")
    (tmp_path / "b" / DIGESTS).write_text(json.dumps(said))
    with pytest.raises(intarsia.FormatError, match="contradicts itself"):
        check(tmp_path / "b")


def test_a_checkpoint_without_digests_has_nothing_to_check(src: Path) -> None:
    assert check(src) == []


def test_a_truncated_file_is_an_error_not_a_signal(src: Path) -> None:
    with intarsia.open(src) as checkpoint:
        (file, *_) = checkpoint.manifest.files
        with (src / file).open("r+b") as weights:
            weights.truncate(5000)
        with pytest.raises(intarsia.FormatError, match="truncated"):
            check_without_headers(checkpoint)


def check_without_headers(checkpoint) -> None:
    from intarsia.checking.digests.digest import digests_of

    digests_of(checkpoint, Budget.of())


def test_a_shift_that_rounds_is_no_damage(tmp_path: Path) -> None:
    """Its digest is that of the norm which a reader of the destination finds."""
    first = "model.layers.0.linear_attn.norm.weight"
    start = tmp_path / "a"
    intarsia.convert(fixture("qwen3_next"), start, to="hf")
    file = start / "model.safetensors"
    tensors = load_file(file)
    tensors[first] = torch.full_like(tensors[first], 0.1)
    save_file(tensors, file, {"format": "pt"})
    (start / DIGESTS).unlink()
    intarsia.convert(start, tmp_path / "b", to="hf")
    report = intarsia.convert(tmp_path / "b", tmp_path / "c", to="torch_dist")
    assert any("rounded" in note for note in report.notes)
    found = digests_in(tmp_path / "c")
    assert found.source == digests_in(tmp_path / "b").digests.root
    assert found.digests == intarsia.digest(tmp_path / "c")
    assert found.digests.tensors[first] != digests_in(tmp_path / "b").digests.tensors[first]


def test_transformers_and_torch_read_past_the_file(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    start = fixture("llama")
    intarsia.convert(start, tmp_path / "hf", to="hf")
    intarsia.convert(start, tmp_path / "dcp", to="dcp", mesh="tp=2")
    assert (tmp_path / "hf" / DIGESTS).is_file()
    assert (tmp_path / "dcp" / DIGESTS).is_file()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    truth = AutoModelForCausalLM.from_pretrained(start)
    assert_same(loaded.state_dict(), truth.state_dict())
    assert_same(read_dcp(tmp_path / "dcp"), read_hf(start))


def test_the_command_prints_the_root_and_every_tensor(src: Path) -> None:
    said = command("digest", src, "--json").json
    found = intarsia.digest(src)
    assert said["root"] == found.root
    assert said["tensors"] == found.tensors
    text = command("digest", src, "--secure").out
    assert f"{intarsia.digest(src, secure=True)}\n" in text
    assert f"{intarsia.digest(src, secure=True).root}  root of {len(found.tensors)} tensors" in text


def test_the_command_says_what_the_root_is_over_and_what_is_not_read(tmp_path: Path) -> None:
    x = torch.ones(3)
    names = "model.w", "optimizer.master.model.w", "optimizer.exp_avg.model.w"
    held = {name: x.clone() for name in names}
    said = command("digest", write_hf(tmp_path / "a", held))
    assert "without --config no table has, such as `model.w`" in said.err
    last = said.out.splitlines()[-1]
    assert last.endswith(
        "of 2 tensors; 1 main weights that are the weights themselves are not in it"
    )
    dcp.save({"model": {"w": x}, "ema": {"w": x + 1}}, checkpoint_id=tmp_path / "b")
    said = command("digest", tmp_path / "b", "--json").json
    assert any("ema" in note for note in said["notes"])


@pytest.mark.slow
def test_ranks_share_the_work_and_agree(src: Path) -> None:
    done = python(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
        "-m", "intarsia", "digest", src, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["root"] == intarsia.digest(src).root


def test_digests_are_left_out_where_they_are_not_wanted(tmp_path: Path) -> None:
    save_file({"w": torch.arange(6.0)}, tmp_path / "model.safetensors")
    for wanted in (True, False):
        out = tmp_path / f"digests-{wanted}"
        intarsia.convert(tmp_path / "model.safetensors", out, to="dcp", digests=wanted)
        assert (out / "intarsia-digests.json").is_file() == wanted
        assert intarsia.verify(tmp_path / "model.safetensors", out)


@pytest.mark.parametrize("memory", ["16MiB", "2GB"])
@pytest.mark.parametrize("to", ["hf", "dcp", "torch_dist", "fsdp_dtensor"])
def test_small_tensors_have_the_same_digest_together_and_alone(
    to: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(
        source,
        tmp_path / "out",
        to=to,
        **({} if to == "hf" else {"mesh": "fsdp=2" if to != "torch_dist" else "tp=2"}),
    )
    together = [intarsia.digest(tmp_path / "out", memory=memory, workers=n) for n in (1, 4)]
    monkeypatch.setattr(digest_steps, "in_steps", lambda steps, *_: ([step] for step in steps))
    assert together == [intarsia.digest(tmp_path / "out", workers=1)] * 2
