"""What holds for every model type: conversions, verdicts, loads and names, against Transformers itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import intarsia
from tests.sweep.types import CannotBuildError, Type, build, class_of

OK = "ok"
MESH = "tp=2,fsdp=3"
OTHERS = ("fsdp=3", "tp=2", "tp=2,ep=2", "pp=2", "tp=2,pp=2", "ep=2,fsdp=2", "tp=4", "")
"""Meshes for random variants."""


class NotApplicableError(Exception):
    """Transformers itself cannot do what would be compared with."""


@dataclass
class Subject:
    """A tiny model of a type, saved by Transformers and loaded by Transformers."""

    type: Type
    folder: Path

    @cached_property
    def saved(self) -> Path:
        path = self.folder / "saved"
        self.model.save_pretrained(path)
        return path

    @cached_property
    def model(self) -> Any:
        return build(self.type)

    @cached_property
    def reloaded(self) -> Any:
        """What `from_pretrained` makes of what `save_pretrained` wrote."""
        try:
            model = class_of(self.type).from_pretrained(self.saved).eval()
        except Exception as error:
            raise NotApplicableError(
                f"Transformers cannot reload its own save: {_brief(error)}"
            ) from error
        wanted = self.model.state_dict()
        unlike = _unlike(model.state_dict(), wanted)
        if unlike:
            raise NotApplicableError(f"Transformers does not reload what it saved: {unlike}")
        return model

    @cached_property
    def loaded(self) -> Any:
        """What `intarsia.load` makes of a model on `meta`."""
        import torch
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self.saved)
        with torch.device("meta"):
            model = class_of(self.type)(config)
        intarsia.load(self.saved, into=model)
        return model.eval()


def round_trip(s: Subject) -> None:
    """hf → dcp on an uneven mesh → hf, bit for bit."""
    there, back = s.folder / "dcp", s.folder / "back"
    intarsia.convert(s.saved, there, to="dcp", mesh=MESH if s.type.seed is None else "ep=2,fsdp=3")
    intarsia.convert(there, back, to="hf")
    _same(_files(back), _files(s.saved))


def verified(s: Subject) -> None:
    """`verify` finds no fault."""
    report = intarsia.verify(s.saved)
    if not report:
        raise AssertionError(
            "; ".join(f"{f.kind}: {', '.join(f.tensors[:2])}" for f in report.faults)
        )


def loads(s: Subject) -> None:
    """`load` from `meta` gives the state dict that Transformers gives."""
    wanted = s.reloaded.state_dict()
    _same(s.loaded.state_dict(), wanted)


def nothing_on_meta(s: Subject) -> None:
    """No parameter and no buffer is left without memory, and buffers are Transformers' own."""
    wanted = dict(s.reloaded.named_buffers())
    named = (*s.loaded.named_parameters(), *s.loaded.named_buffers())
    left = [name for name, x in named if x.is_meta]
    if left:
        raise AssertionError(f"{len(left)} on meta: {', '.join(left[:3])}")
    _same(dict(s.loaded.named_buffers()), wanted)


def logits(s: Subject) -> None:
    """The loaded model computes what Transformers' does."""
    wanted = _logits(s.reloaded, s.reloaded)
    found = _logits(s.loaded, s.reloaded)
    _same({"logits": found}, {"logits": wanted})


def module_names(s: Subject) -> None:
    """`--dialect hf-module` writes the module's own state dict."""
    out, wanted = s.folder / "module", s.reloaded.state_dict()
    intarsia.convert(s.saved, out, to="hf", dialect="hf-module")
    found = _files(out)
    tied = dict(getattr(s.reloaded, "all_tied_weights_keys", None) or {})
    found |= {n: found[to] for n, to in tied.items() if n not in found and to in found}
    _same(found, wanted)


def through_megatron(s: Subject) -> None:
    """hf → torch_dist or fsdp_dtensor → hf, bit for bit, where Megatron has the family."""
    random = Random(str(s.type))
    to, mesh = random.choice(("torch_dist", "fsdp_dtensor")), random.choice(OTHERS)
    there, back = s.folder / "megatron", s.folder / "from-megatron"
    try:
        intarsia.convert(s.saved, there, to=to, mesh=mesh)
    except intarsia.IntarsiaError as error:
        raise NotApplicableError(f"{to} on {mesh or 'one rank'}: {_brief(error)}") from error
    intarsia.convert(there, back, to="hf")
    if (
        s.type.kind == "base"
    ):  # Transformers takes the names of an inner model with the outer one's word, too
        _same(class_of(s.type).from_pretrained(back).state_dict(), s.reloaded.state_dict())
    else:
        _same(_files(back), _files(s.saved))


def trained_and_saved(s: Subject) -> None:
    """A model and its optimizer, saved live after a step, come back whole, and as a folder of the hub."""
    import torch
    from transformers import AutoConfig

    wanted = s.reloaded and class_of(s.type).from_pretrained(s.saved)
    optimizer = torch.optim.AdamW(wanted.parameters(), lr=1e-3)
    for param in wanted.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    there, hub = s.folder / "trained", s.folder / "trained-hub"
    intarsia.save(there, wanted, optimizer)
    with torch.device("meta"):
        model = class_of(s.type)(AutoConfig.from_pretrained(s.saved))
    intarsia.load(there, into=model)
    again = torch.optim.AdamW(model.parameters(), lr=1.0)
    intarsia.load(there, into=model, optimizer=again)
    _same(model.state_dict(), wanted.state_dict())
    _same(_state(model, again), _state(wanted, optimizer))
    intarsia.convert(there, hub, to="hf", dialect="hf", optimizer="drop")
    _same(class_of(s.type).from_pretrained(hub).state_dict(), wanted.state_dict())


def _state(model: Any, optimizer: Any) -> dict[str, Any]:
    """The state of an optimizer by the names of the parameters."""
    held = ((name, optimizer.state[param]) for name, param in model.named_parameters())
    return {f"{name} {key}": x for name, state in held for key, x in state.items()}


CHECKS: dict[str, Callable[[Subject], None]] = {
    "round trip": round_trip,
    "verify": verified,
    "load": loads,
    "meta": nothing_on_meta,
    "logits": logits,
    "hf-module": module_names,
}
VARIED = {**CHECKS, "megatron": through_megatron, "trained": trained_and_saved}


def check(type_: Type, folder: Path) -> Iterator[tuple[str, str]]:
    """Each check with its outcome: ok, or why not."""
    subject = Subject(type_, folder)
    try:
        _ = subject.model
    except CannotBuildError as error:
        yield "build", f"n/a: no small model could be made: {_brief(error)}"
        return
    if type_.seed is not None:
        try:
            _logits(subject.model, subject.model)
        except NotApplicableError as error:
            yield "build", f"n/a: {error}"
            return
    yield "build", OK
    try:
        _ = subject.saved
    except Exception as error:
        yield "save", f"n/a: Transformers cannot save it: {_brief(error)}"
        return
    for name, holds in (CHECKS if type_.seed is None else VARIED).items():
        try:
            holds(subject)
        except NotApplicableError as error:
            yield name, f"n/a: {error}"
        except intarsia.IntarsiaError as error:
            known = "an operation that Intarsia does not know" in str(error)
            yield name, f"n/a: refused: {_brief(error)}" if known else _brief(error)
        except Exception as error:
            yield name, _brief(error)
        else:
            yield name, OK


def _files(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def _same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if unlike := _unlike(found, wanted):
        raise AssertionError(unlike)


def _unlike(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Where two sets of tensors differ; empty where they do not."""
    import torch

    more, less = sorted(found.keys() - wanted.keys()), sorted(wanted.keys() - found.keys())
    said = [f"{len(more)} too many: {', '.join(more[:3])}"] if more else []
    said += [f"{len(less)} too few: {', '.join(less[:3])}"] if less else []
    unlike = [
        name
        for name in sorted(found.keys() & wanted.keys())
        if found[name].dtype != wanted[name].dtype
        or found[name].shape != wanted[name].shape
        or not torch.equal(_bits(found[name]), _bits(wanted[name]))
    ]
    said += [f"{len(unlike)} differ: {', '.join(unlike[:3])}"] if unlike else []
    return "; ".join(said)


def _bits(x: Any) -> Any:
    import torch

    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def _logits(model: Any, reference: Any) -> Any:
    """Logits of one short prompt; with an image where the model needs one."""
    import torch

    ids = torch.arange(9, 21).reshape(1, -1)
    given: dict[str, Any] = {"input_ids": ids}
    accepted = inspect.signature(reference.forward).parameters
    if "use_cache" in accepted:
        given["use_cache"] = False
    size = getattr(getattr(reference.config, "vision_config", None), "image_size", 32)
    size = size if isinstance(size, int) else 32
    more: list[dict[str, Any]] = [{}]
    if "decoder_input_ids" in accepted:
        more.append({"decoder_input_ids": ids})
    if "pixel_values" in accepted:
        more += [e | {"pixel_values": torch.ones(1, 3, size, size)} for e in list(more)]
    first = None
    for extra in more:
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                out = model(**given, **extra)
            found = out.logits if hasattr(out, "logits") else out[0]
            return found[0] if isinstance(found, tuple) else found
        except Exception as error:
            first = first or error
    assert first is not None
    if model is reference:
        raise NotApplicableError(
            f"the small model does not run in Transformers itself: {_brief(first)}"
        )
    raise first


def _brief(error: BaseException) -> str:
    text = " ".join(str(error).split())
    known = isinstance(error, intarsia.IntarsiaError | AssertionError | CannotBuildError)
    return text[:400] if known else f"{type(error).__name__}: {text[:300]}"
