"""Transformers' own conversion rules, compiled into layouts, for families that have no table.

Transformers v5 loads a file into a module by rules: renamings on patterns, and converters that
stack, join, cut and permute tensors.  The rules of the installed version are taken as data: the
model is built without storage, its rules are asked for, and each operation becomes the layout
operation of the same name.  No weight is read and none of Transformers' tensor code runs.  An
operation that is not known here is refused by name, never guessed.

Transformers is imported when a function is called, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.spec import MAX_TENSORS, Config, Table
from intarsia.layout import Layout, chunk, concat, split, stack
from intarsia.mesh import Rule, Shape

Parts = dict[str, list[Layout]]


def table(config: Config, stored: Mapping[str, Shape] | None = None) -> Table:
    """A table of `hf` and `hf-module` rows by Transformers' rules.

    `stored` gives names and shapes on disk; without it they are what `save_pretrained` writes.
    """
    skeleton = _Skeleton.of(config)
    shapes = dict(stored) if stored is not None else _disk_shapes(skeleton)
    out = Table(str(config["model_type"]), config)
    for name, shape in shapes.items():
        rule = Rule(tp=0) if len(shape) > 1 else Rule()
        out.store(("hf", "hf-fused"), out.tensor(name, *shape), None, name, rule=rule)
    for name, layout in _module_rows(skeleton, shapes).items():
        rule = Rule(tp=0) if len(layout.shape) > 1 else Rule()
        names = layout.tensors
        if name in skeleton.tied and name not in shapes and len(names) == 1:
            out.tie(out.tensor(name, *layout.shape), to=names[0])
            out.store(("hf", "hf-fused", "hf-module"), name, None, name, rule=rule)
            continue
        out.store(("hf-module",), name, lambda *_, x=layout: x, *names, rule=rule)
    return out


def module_rows(config: Config, stored: Mapping[str, Shape]) -> dict[str, Layout]:
    """What `state_dict()` of the Transformers model holds, in terms of the tensors on disk.

    A stored tensor that no row names is one that Transformers ignores.
    """
    return _module_rows(_Skeleton.of(config), stored)


def disk_shapes(config: Config) -> dict[str, Shape]:
    """Names and shapes that `save_pretrained` gives a model that was not loaded from a file."""
    return _disk_shapes(_Skeleton.of(config))


@dataclass(frozen=True)
class _Skeleton:
    """A model without storage: its shapes, its ties, and its rules in order."""

    config: Any
    base: str
    shapes: dict[str, Shape]
    tied: dict[str, str]
    rules: list[Any]
    saving: list[Any]
    loading: Any

    @staticmethod
    def of(config: Config) -> _Skeleton:
        try:
            import torch
            import transformers
            from transformers import conversion_mapping, core_model_loading
        except ImportError as error:
            raise FamilyError(
                f"model_type {config.get('model_type')!r} has no table here, and Transformers v5,"
                f" whose rules could be taken, is not installed ({error})",
                hint="pip install 'intarsia[transformers]'",
            ) from error
        model_type = str(config.get("model_type"))
        if model_type not in transformers.CONFIG_MAPPING:
            raise FamilyError(
                f"model_type {model_type!r} is unknown to Transformers {transformers.__version__}"
            )
        given = {k: v for k, v in _inert(config).items() if k != "model_type"}
        try:
            whole = transformers.AutoConfig.for_model(model_type, **given)
            kind = _model_class(transformers, config, whole)
            with torch.device("meta"), _counted(torch.nn.modules.module):
                model = kind(whole)
        except FamilyError:
            raise
        except Exception as error:  # whatever a strange configuration makes of a model's code
            raise FamilyError(
                f"Transformers {transformers.__version__} cannot build a model of model_type"
                f" {model_type!r} from this configuration: {type(error).__name__}: {error}"
            ) from error
        return _Skeleton(
            whole,
            model.base_model_prefix,
            {name: tuple(x.shape) for name, x in model.state_dict().items()},
            dict(getattr(model, "all_tied_weights_keys", None) or {}),
            conversion_mapping.get_model_conversion_mapping(model),
            conversion_mapping.get_model_conversion_mapping(model, add_legacy=False),
            core_model_loading,
        )


_LOADING = {
    "attn_implementation", "auto_map", "backbone", "backbone_config", "experts_implementation",
    "kernel_config", "quantization_config", "trust_remote_code", "use_pretrained_backbone",
    "use_timm_backbone",
}  # fmt: skip
"""Fields by which a configuration has Transformers fetch code or weights from elsewhere."""


def _inert(config: Config) -> dict[str, Any]:
    """A configuration without the fields, its own or nested, that lead out of Transformers.

    A name with a leading underscore is Transformers' own, and sets the same.
    """
    return {
        name: _inert(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in _LOADING and not name.startswith("_")
    }


@contextmanager
def _counted(modules: Any) -> Iterator[None]:
    """Raise once a model that is being built has more modules than any real one."""
    left = iter(range(MAX_TENSORS))

    def count(*_: Any) -> None:
        if next(left, None) is None:
            raise FamilyError(f"config.json describes a model of more than {MAX_TENSORS:,} modules")

    hook = modules.register_module_module_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _model_class(transformers: Any, config: Config, whole: Any) -> Any:
    named = config.get("architectures")
    for name in named if isinstance(named, list) else ():
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        # The name is the file's: of all that Transformers exports it may choose a model alone.
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    autos = ["AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModel"]
    if "text_config" in config:  # a wrapper's causal model would be its text part alone
        autos[:2] = autos[1::-1]
    for auto in autos:
        mapping = getattr(transformers, auto)._model_mapping
        if type(whole) in mapping:
            found = mapping[type(whole)]
            return found[0] if isinstance(found, tuple) else found
    raise FamilyError(
        f"Transformers has no model for model_type {config.get('model_type')!r}",
        hint="config.json can name one under architectures",
    )


def _module_rows(s: _Skeleton, stored: Mapping[str, Shape]) -> dict[str, Layout]:
    renamings = [r for r in s.rules if not hasattr(r, "operations")]
    converters = [r for r in s.rules if hasattr(r, "operations")]
    rename = s.loading.rename_source_key
    jobs: dict[str, tuple[Any | None, Parts]] = {}
    for key in sorted(stored, key=s.loading.dot_natural_key):
        name, pattern = rename(key, renamings, converters, s.base, s.shapes)
        if name not in s.shapes and key in s.shapes:  # a pattern caught a name that was right
            name, pattern = rename(key, [], [], s.base, s.shapes)
        if name not in s.shapes:
            continue
        rule = next((c for c in converters if pattern in c.source_patterns), None)
        _, parts = jobs.setdefault(name, (rule, {}))
        parts.setdefault(pattern or key, []).append(Layout.of(key, stored[key]))
    out: dict[str, Layout] = {}
    for name, (rule, parts) in jobs.items():
        made = {name: next(iter(parts.values()))[0]} if rule is None else _run(s, rule, name, parts)
        out |= made
    for name, twin in s.tied.items():
        if name not in out and twin in out:
            out[name] = out[twin]
    for name, layout in out.items():
        if name in s.shapes and layout.shape != s.shapes[name]:
            raise FamilyError(
                f"Transformers' rules make `{name}` {list(layout.shape)} of the file's tensors, the"
                f" model has {list(s.shapes[name])}",
                hint="the configuration is another model's, or the file is damaged",
            )
    return {name: out[name] for name in s.shapes if name in out}


def _disk_shapes(s: _Skeleton) -> dict[str, Shape]:
    if not hasattr(s.loading, "apply_converters"):
        raise FamilyError(
            "the installed Transformers loads by rules and does not say how it saves by them",
            hint="install transformers 5.22 or later, or start from a checkpoint in the hub's dialect",
        )
    # A prefix that loading removes cannot be known to have been there: saving leaves it off.
    kept = [r for r in s.saving if type(r).__name__ != "PrefixChange"]
    rules = [r.reverse_transform() for r in reversed(kept)]
    renamings = [r for r in rules if not hasattr(r, "operations")]
    converters = [r for r in rules if hasattr(r, "operations")]
    jobs: dict[str, tuple[Any | None, Parts]] = {}
    for key in sorted(s.shapes, key=s.loading.dot_natural_key):
        if key in s.tied:
            continue
        name, pattern = s.loading.apply_converters(key, converters)
        rule = next((c for c in converters if pattern in c.source_patterns), None)
        _, parts = jobs.setdefault(name, (rule, {}))
        parts.setdefault(pattern or key, []).append(Layout.of(key, s.shapes[key]))
    out: dict[str, Shape] = {}
    for name, (rule, parts) in jobs.items():
        made = {name: next(iter(parts.values()))[0]} if rule is None else _run(s, rule, name, parts)
        for each, layout in made.items():
            out[s.loading.apply_renamings(each, renamings)] = layout.shape
    return out


def _run(s: _Skeleton, rule: Any, name: str, parts: Parts) -> dict[str, Layout]:
    """One converter's operations in order, then full names for what they made."""
    sources, targets = list(rule.source_patterns), list(rule.target_patterns)
    for op in rule.operations:
        known = OPERATIONS.get(type(op).__name__)
        if known is None:
            raise FamilyError(
                f"Transformers converts `{name}` by {type(op).__name__}, an operation that is not"
                " known here",
                hint="convert it with Transformers itself, or write a table for the family",
            )
        parts = known(op, parts, sources, targets, s, name)
    full = name.replace("*.", "0.")
    for pattern in parts:
        if pattern in full:
            before, _, after = full.partition(pattern)
            return {before + k + after: v[0] for k, v in parts.items()}
    return {k: v[0] for k, v in parts.items()}


def _one(parts: Parts, op: Any) -> Layout:
    if len(parts) != 1:
        raise FamilyError(f"{type(op).__name__} of {len(parts)} tensors, expected 1")
    return next(iter(parts.values()))[0]


def _target(sources: list[str], targets: list[str]) -> str:
    """Where a step in the middle of a chain puts its result: a chain's last step names targets."""
    return sources[0] if len(targets) > 1 else targets[0]


def _chunk(
    op: Any, parts: Parts, _: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    count = getattr(op, "num_shards_attribute", None)
    if count is not None:
        number = getattr(s.config.get_text_config(), count)
        targets = [targets[0].replace("*", str(i)) for i in range(number)]
    pieces = chunk(_one(parts, op), len(targets), op.dim)
    return {t: [x] for t, x in zip(targets, pieces, strict=True)}


def _split(
    op: Any, parts: Parts, _: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    sizes = [s.shapes[name.replace(targets[0], t)][op.dim] for t in targets]
    return {t: [x] for t, x in zip(targets, split(_one(parts, op), sizes, op.dim), strict=True)}


def _concatenate(
    op: Any, parts: Parts, sources: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    return {targets[0]: [concat([x for p in sources for x in parts.get(p, ())], op.dim)]}


def _merge(
    op: Any, parts: Parts, sources: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    alone = len(parts) == 1
    return {targets[0] if alone else p: [stack(xs, op.dim)] for p, xs in parts.items()}


def _unmerge(
    op: Any, parts: Parts, sources: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    out: Parts = {}
    for pattern, (x, *_) in parts.items():
        to = targets[0] if len(parts) == 1 else pattern
        shape = (*x.shape[: op.dim], *x.shape[op.dim + 1 :])
        for i in range(x.shape[op.dim]):
            out[to.replace("*", str(i))] = [x.narrow(op.dim, i, i + 1).reshape(*shape)]
    return out


def _interleave(
    op: Any, parts: Parts, sources: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    x = _one(parts, op)
    d, n = op.dim, x.shape[op.dim]
    pair = (2, n // 2) if op.inverse else (n // 2, 2)
    pulled = x.reshape(*x.shape[:d], *pair, *x.shape[d + 1 :]).transpose(d, d + 1)
    return {targets[0]: [pulled.reshape(*x.shape)]}


def _transpose(
    op: Any, parts: Parts, sources: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    x = _one(parts, op)
    if op.check_dims and x.shape[op.dim0] == x.shape[op.dim1]:
        raise FamilyError(
            f"`{name}` {list(x.shape)} may be stored transposed or not, and Transformers tells by"
            " the shape alone, which is square"
        )
    if not (op.check_dims and s.shapes.get(name) == x.shape):
        x = x.transpose(op.dim0, op.dim1)
    return {_target(sources, targets): [x]}


def _flatten(
    op: Any, parts: Parts, sources: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    x = _one(parts, op)
    return {_target(sources, targets): [x.reshape(x.shape[0], -1) if len(x.shape) == 5 else x]}


def _unflatten(
    op: Any, parts: Parts, sources: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    x = _one(parts, op)
    shape = (x.shape[0], op.in_channels, *op.kernel_size)
    return {_target(sources, targets): [x.reshape(*shape)]}


def _rope(
    op: Any, parts: Parts, sources: list[str], targets: list[str], s: _Skeleton, name: str
) -> Parts:
    config = getattr(s.config, op.subconfig_key, s.config) if op.subconfig_key else s.config
    heads, out = getattr(config, "num_attention_heads", 1), {}
    for pattern, (x, *_) in parts.items():
        names = op.permute_layer_names
        if names is None or any(n in pattern for n in names):
            half = x.shape[0] // heads // 2
            pair = (2, half) if op.inverse else (half, 2)
            x = x.reshape(heads, *pair, *x.shape[1:]).transpose(1, 2).reshape(*x.shape)
        chained = len(sources) != len(targets)
        out[pattern if chained else targets[0]] = [x]
    return out


Operation = Callable[[Any, Parts, list[str], list[str], _Skeleton, str], Parts]

OPERATIONS: dict[str, Operation] = {
    "Chunk": _chunk,
    "Concatenate": _concatenate,
    "Conv3dToLinear": _flatten,
    "Interleave": _interleave,
    "LinearToConv3d": _unflatten,
    "MergeModulelist": _merge,
    "PermuteForRope": _rope,
    "Split": _split,
    "SplitModulelist": _unmerge,
    "Transpose": _transpose,
}
"""The operations of Transformers' rules, by class name, on layouts instead of tensors."""
