"""A Transformers model built without storage, to be asked for its shapes and its rules.

A configuration comes with a checkpoint, from anyone: it chooses among the models of the installed
Transformers, and leads to no code or weights of elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.config.fields import MAX_TENSORS, Config
from intarsia.family.config.special_floats import with_special_floats
from intarsia.mesh import Shape


@dataclass(frozen=True)
class Skeleton:
    """A model without storage: its shapes, its ties, and its rules in order.

    `kind` is its class; `trained` are its parameters, without those that Transformers does not miss.
    """

    config: Any
    kind: str
    base: str
    shapes: dict[str, Shape]
    trained: frozenset[str]
    tied: dict[str, str]
    rules: list[Any]
    saving: list[Any]
    loading: Any
    fits_type: bool
    """Whether its class is one for the configuration's model_type, as Transformers' own choice would be."""
    unread: tuple[re.Pattern[str], ...]
    """Names that may be stored and that Transformers does not load, by its own word."""

    @staticmethod
    def of(config: Config, *, base: bool = False) -> Skeleton:
        """The model that a configuration describes, or the `base` model inside of it, built on `meta`."""
        try:
            import torch
            import transformers
            from transformers import conversion_mapping, core_model_loading
        except Exception as error:  # of any package that Transformers brings in
            absent = getattr(error, "name", None) in ("torch", "transformers")
            why = "is not installed" if absent else "cannot be imported"
            raise FamilyError(
                f"Intarsia has no table for model_type {config.get('model_type')!r}, and"
                f" Transformers v5, whose rules it would use, {why} ({error})",
                hint="pip install 'intarsia[transformers]'"
                if absent
                else "repair or uninstall what it does not find: `import transformers` shows more",
            ) from error
        model_type = str(config.get("model_type"))
        if model_type not in transformers.CONFIG_MAPPING:
            raise FamilyError(
                f"model_type {model_type!r} is unknown to Transformers {transformers.__version__}"
            )
        given = {k: v for k, v in _inert(config).items() if k != "model_type"}
        try:
            with _quiet(transformers.logging), _counted(torch.nn.modules.module):
                whole = transformers.AutoConfig.for_model(model_type, **given)
                kind = _model_class(transformers, config, whole, base)
                with torch.device("meta"):
                    model = kind(whole)
        except (FamilyError, MemoryError):
            raise
        except Exception as error:  # whatever a strange configuration makes of a model's code
            raise FamilyError(
                f"Transformers {transformers.__version__} cannot build a model of model_type"
                f" {model_type!r} from this configuration: {type(error).__name__}: {error}"
            ) from error
        unmissed = [*map(re.compile, getattr(model, "_keys_to_ignore_on_load_missing", None) or ())]
        names = [name for name, _ in model.named_parameters()]
        return Skeleton(
            whole,
            kind.__name__,
            model.base_model_prefix,
            {name: tuple(x.shape) for name, x in model.state_dict().items()},
            frozenset(n for n in names if not any(pattern.search(n) for pattern in unmissed)),
            dict(getattr(model, "all_tied_weights_keys", None) or {}),
            conversion_mapping.get_model_conversion_mapping(model),
            conversion_mapping.get_model_conversion_mapping(model, add_legacy=False),
            core_model_loading,
            isinstance(whole, kind.config_class or ()),
            tuple(
                map(re.compile, getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
            ),
        )

    def passes_over(self, name: str) -> bool:
        """Whether Transformers knows that a tensor may be stored, and does not load it."""
        return any(pattern.search(name) for pattern in self.unread)


_LOADING = {
    "attn_implementation", "auto_map", "backbone", "backbone_config", "experts_implementation",
    "kernel_config", "quantization_config", "trust_remote_code", "use_pretrained_backbone",
    "use_timm_backbone",
}  # fmt: skip
"""Fields by which a configuration has Transformers fetch code or weights from elsewhere."""


_SHAPING = {"auto_map", "backbone", "backbone_config", "use_timm_backbone"}


def leads_out(config: Mapping[str, Any]) -> str | None:
    """A field, the configuration's own or a nested one's, without which the model may be another."""
    for name, value in config.items():
        if value and name in _SHAPING and not _is_backbone(name, value):
            return str(name)
        if isinstance(value, Mapping) and (inner := leads_out(value)):
            return inner
    return None


def _inert(config: Config) -> dict[str, Any]:
    """A configuration without the fields, its own or nested, that lead out of Transformers.

    A name with a leading underscore is Transformers' own, unless the model's type declares it.
    """
    return {
        name: _inert(value) if isinstance(value, Mapping) else value
        for name, value in with_special_floats(config).items()
        if (name not in _LOADING or _is_backbone(name, value))
        and (not str(name).startswith("_") or name in _declared(config))
    }


def _declared(config: Config) -> Set[str]:
    """The fields that the class of a configuration has beside those of all configurations."""
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    kind = str(config.get("model_type"))
    if kind not in CONFIG_MAPPING:
        return set()
    common = signature(PreTrainedConfig).parameters.keys() | {f"_{name}" for name in config}
    return signature(CONFIG_MAPPING[kind]).parameters.keys() - common


def _is_backbone(name: str, value: Any) -> bool:
    """Whether a field describes a backbone that Transformers builds itself, with no code and no weights of timm."""
    if name != "backbone_config" or not isinstance(value, Mapping):
        return False
    from transformers import CONFIG_MAPPING

    kind = value.get("model_type")
    return isinstance(kind, str) and kind in CONFIG_MAPPING and not kind.startswith("timm")


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Keep Transformers from advising whoever builds a model to train or to run it."""
    was = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(was)


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


def _model_class(transformers: Any, config: Config, whole: Any, base: bool) -> Any:
    named = None if base else config.get("architectures")
    for name in named if isinstance(named, list) else ():
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        # The name is the file's: of all that Transformers exports it may choose a model alone.
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    autos = ["AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModel"]
    if "text_config" in config:  # a wrapper's causal model would be its text part alone
        autos[:2] = autos[1::-1]
    for auto in autos[2:] if base else autos:
        mapping = getattr(transformers, auto)._model_mapping
        if type(whole) in mapping:
            found = mapping[type(whole)]
            return found[0] if isinstance(found, tuple) else found
    raise FamilyError(
        f"Transformers has no model for model_type {config.get('model_type')!r}",
        hint="name one under `architectures` in config.json",
    )
