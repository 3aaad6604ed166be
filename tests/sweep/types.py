"""The model types of the installed Transformers, and a tiny model of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.sweep.tiny import tiny_configs
from tests.sweep.varied import variants

KINDS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "image-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
}
MORE_KINDS = {
    "base": "MODEL_MAPPING_NAMES",
    "classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "tokens": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "speech": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
}
"""What else is made of the types: reward models, encoders, translators."""
MOST_PARAMETERS = 1 << 31
"""Of a model that can be built and run in a minute or two."""


@dataclass(frozen=True, order=True)
class Type:
    """A model type and the kind of model that is built of it; with a seed, a random variant of its configuration."""

    name: str
    kind: str
    seed: int | None = None

    def __str__(self) -> str:
        return f"{self.name}/{self.kind}" + ("" if self.seed is None else f"#{self.seed}")


class CannotBuildError(Exception):
    """Transformers builds no model of this type here."""


def all_types(kinds: Iterable[str] = KINDS) -> list[Type]:
    """Every causal language model and every image-text model, or the models of other kinds."""
    from transformers.models.auto import modeling_auto

    mappings = {kind: getattr(modeling_auto, (KINDS | MORE_KINDS)[kind]) for kind in kinds}
    return sorted(Type(name, kind) for kind, names in mappings.items() for name in names)


def class_of(type_: Type) -> Any:
    """The class that Transformers' automatic class takes for a type."""
    import transformers
    from transformers.models.auto import modeling_auto

    name = getattr(modeling_auto, (KINDS | MORE_KINDS)[type_.kind])[type_.name]
    name = name if isinstance(name, str) else name[0]
    if not hasattr(transformers, name):
        raise CannotBuildError(f"Transformers does not export {name}")
    return getattr(transformers, name)


def _check_tiny(kind: Any, config: Any) -> None:
    """Raise where no model can be built, or one whose parts have sizes that no rule made small."""
    import torch

    with torch.device("meta"):
        count = sum(param.numel() for param in kind(config).parameters())
    if count > MOST_PARAMETERS:
        raise CannotBuildError(f"its smallest configuration has {count:,} parameters")


def tiny_config(type_: Type) -> Any:
    """A small configuration of which a model can be built."""
    from transformers import AutoConfig

    if type_.seed is not None:
        return _variant(type_, Random(f"{type_}"))
    kind, first = class_of(type_), None
    try:
        defaults = AutoConfig.for_model(type_.name).to_dict()
    except Exception:
        defaults = {"model_type": type_.name}
    for given in tiny_configs(defaults):
        fields = {k: v for k, v in given.items() if k != "model_type"}
        try:
            config = _fitting(AutoConfig.for_model(type_.name, **fields), kind)
            _check_tiny(kind, config)
            return config
        except Exception as error:
            first = first or error
    raise CannotBuildError(f"{type(first).__name__}: {first}") from first


def _variant(type_: Type, random: Random) -> Any:
    """The first of random variants of which a model can be built."""
    kind, tiny = class_of(type_), tiny_config(Type(type_.name, type_.kind))
    for given in variants(tiny.to_dict(), random):
        try:
            config = type(tiny).from_dict(given)
            _check_tiny(kind, config)
            return config
        except Exception:
            continue
    raise CannotBuildError("no variant of its small configuration could be built")


def _fitting(config: Any, kind: Any) -> Any:
    """A wrapper's configuration, or that of its text part where the model is the text part alone."""
    wanted = kind.config_class
    if not isinstance(config, wanted) and isinstance(config.get_text_config(), wanted):
        return config.get_text_config()
    return config


def build(type_: Type) -> Any:
    """A tiny model whose parameters are all random, and no two alike."""
    import torch

    config = tiny_config(type_)
    torch.manual_seed(type_.seed or 0)
    try:
        model = class_of(type_)(config).eval()
    except Exception as error:
        raise CannotBuildError(f"{type(error).__name__}: {error}") from error
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn_like(param), alpha=0.02)
    return model
