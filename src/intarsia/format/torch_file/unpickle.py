"""Pickles read as inert data: nothing is imported, nothing is run.

A pickle names classes and functions by `module name`. Here a name only ever selects one of
our own stand-ins: containers, paths, dates and element types become plain values, tensors
become `InertTensor`, classes of known frameworks become `Inert`, and every other name raises
`UnsafeError`.

Stand-ins are shared between loads, so none may be changed by a pickle (opcode BUILD): each is
immutable or answers `__setstate__` with an error.
"""

from __future__ import annotations

import datetime
import io
import pickle
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from intarsia.dtypes import BY_TORCH, DType
from intarsia.errors import FormatError, LimitError, StoreError, UnsafeError, UnsupportedError
from intarsia.format.torch_file.inert import (
    Array,
    Inert,
    InertTensor,
    Storage,
    axes_of,
    brief,
    inert_class,
)
from intarsia.format.torch_file.pickle_scan import MAX_KEYS, check_pickle
from intarsia.quantity import human

MAX_CLASSES = 10_000


class _Ordered(dict[Any, Any]):
    """A dict that drops the attributes hung on it (torch's `_metadata`)."""

    def __setstate__(self, state: object) -> None:
        pass


class _Call:
    """A function of ours that a pickle may call, and nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setstate__(self, state: object) -> NoReturn:
        raise FormatError("the pickle sets attributes of a function")


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> InertTensor:
    if not isinstance(storage, Storage) or type(offset) is not int:
        raise FormatError("a tensor without a storage beside the pickle")
    # A pickle can alter the copy of a DType that it was given, never the one of this name.
    named = rest[2] if len(rest) > 2 and isinstance(rest[2], DType) else storage.dtype
    dtype = BY_TORCH.get(named.torch) if named else None
    if dtype is None:
        raise FormatError("a tensor without an element type")
    if bits := [b for b in rest[2:] if b and not isinstance(b, DType)]:
        raise UnsupportedError(
            f"torch does not take these elements as they are stored, but by {reprlib.repr(bits[0])}",
            hint="save the tensor with resolve_conj().resolve_neg()",
        )
    return InertTensor(storage, dtype, axes_of(shape), axes_of(stride), offset)


def _path(*parts: str) -> str:
    if sum(map(len, parts)) > 4096:
        raise FormatError("a path that no file system allows")
    return "/".join(parts).replace("//", "/")


def _device(kind: str, *index: int) -> str:
    if len(kind) > 64 or len(index) > 1:
        raise FormatError("a device that no machine has")
    return ":".join([kind, *(f"{i:d}" for i in index)])


def _complex(real: float, imaginary: float) -> complex:
    if {type(real), type(imaginary)} - {int, float}:
        raise FormatError("a complex number that is not made of two others")
    return complex(real, imaginary)


def _first(value: Any, *_: Any) -> Any:
    if type(value) is tuple:
        raise FormatError("a tuple instead of a tensor")
    return value


def _rebuilt(cls: Any, *_: Any) -> Inert:
    if not (isinstance(cls, type) and issubclass(cls, Inert)):
        raise FormatError(f"the pickle rebuilds {brief(cls)}, which is not a known class")
    return cls()


_BUILTINS = ("int", "float", "bool", "str", "object", "range", "slice", "long", "xrange")
_RECORDS = (("argparse", "Namespace"), ("types", "SimpleNamespace"), ("signal", "Signals"))
_DATES = ("date", "datetime", "time", "timedelta", "timezone")
_PATHS = ("PurePath", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")
_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg", "pathlib._local": "pathlib"}
_FRAMEWORKS = {
    "torch", "torchao", "torchtitan", "numpy", "megatron", "transformer_engine", "transformers",
    "nvidia", "modelopt", "nemo", "apex", "accelerate", "deepspeed", "omegaconf",
}  # fmt: skip
# Refused even inside a framework: every one of them leads to code (`torch.os.system`).
_REFUSED = {
    "os", "nt", "posix", "sys", "subprocess", "builtins", "__builtins__", "importlib", "eval",
    "exec", "compile", "open", "system", "popen", "getattr", "__import__", "hub", "load",
    "cpp_extension", "jit", "package",
}  # fmt: skip
_KINDS: tuple[Any, ...] = (set, frozenset, list, tuple, dict, bytes, bytearray)
_GATHERED = {("builtins", k.__name__): k for k in _KINDS} | {("_codecs", "encode"): bytes}
_FIRST = _Call(_first)
_KNOWN: dict[tuple[str, str], Any] = {
    **{("pathlib", p): _Call(_path) for p in _PATHS},
    **{("datetime", n): getattr(datetime, n) for n in _DATES},
    **{("builtins", n): inert_class("builtins", n) for n in _BUILTINS},
    **{record: inert_class(*record) for record in _RECORDS},
    ("builtins", "complex"): _Call(_complex),
    ("collections", "OrderedDict"): _Ordered,
    ("collections", "defaultdict"): _Call(lambda *_: {}),
    ("collections", "deque"): _Call(lambda *_: []),
    ("copyreg", "_reconstructor"): _Call(_rebuilt),
    ("torch", "Size"): _Call(lambda axes=(): axes_of(axes)),
    ("torch", "device"): _Call(_device),
    ("torch.serialization", "_get_layout"): _FIRST,
    **{("torch._utils", f"_rebuild_tensor{v}"): _Call(_tensor) for v in ("", "_v2", "_v3")},
    **{("torch._utils", f"_rebuild_parameter{v}"): _FIRST for v in ("", "_with_state")},
    ("numpy.core.multiarray", "_reconstruct"): inert_class("numpy", "ndarray", Array),
    ("numpy._core.multiarray", "_reconstruct"): inert_class("numpy", "ndarray", Array),
}


class _Unpickler(pickle.Unpickler):
    where: str
    beside: Callable[[Any], Any] | None
    known: Mapping[tuple[str, str], Any]
    left: int
    classes: int = 0

    def find_class(self, module: str, name: str) -> Any:
        module = _MODULES.get(module, module)
        if found := self.known.get((module, name)) or _KNOWN.get((module, name)):
            return found
        if module == "torch" and name in BY_TORCH:
            return replace(BY_TORCH[name])
        if (module, name) == ("builtins", "getattr"):
            return _Call(self._member)
        if (module, name) in _GATHERED:
            return _Call(lambda *a: self._gather(_GATHERED[module, name], *a))
        top, *parts = *module.split("."), *name.split(".")
        if top not in _FRAMEWORKS or not _REFUSED.isdisjoint(parts):
            raise self._unsafe(f"{module}.{name}")
        self.classes += 1
        if self.classes > MAX_CLASSES or len(module) + len(name) > 512:
            raise FormatError(f"the pickle asks for more than {MAX_CLASSES} classes")
        return inert_class(module, name)

    def _member(self, cls: Any, name: Any) -> Any:
        """A member of an enumeration by its name, as Python 3.11.0 to 3.11.3 pickle it."""
        inert = isinstance(cls, type) and (issubclass(cls, Inert) or cls in self.known.values())
        if not inert or type(name) is not str or not name.isidentifier() or name in _REFUSED:
            raise self._unsafe("builtins.getattr")
        return cls(name)

    def _unsafe(self, what: str) -> UnsafeError:
        return UnsafeError(
            f"the pickle asks for `{what}`; nothing was run",
            at=self.where,
            hint="weights do not need it; do not open this file with tools that run pickles",
        )

    def persistent_load(self, pid: Any) -> Any:
        if self.beside is None:
            raise FormatError("the pickle refers to data outside of it, and there is none")
        return self.beside(pid)

    def _gather(self, kind: Any, items: Any = (), encoding: str = "latin1") -> Any:
        known = type(items) in (list, tuple, dict, str, bytes)
        if not known or encoding not in ("latin1", "latin-1"):
            raise FormatError(f"a {kind.__name__} made of a {type(items).__name__}")
        self.left -= len(items)
        if self.left < 0:
            raise FormatError("the pickle repeats its content beyond its own size")
        hashed = kind in (set, frozenset, tuple) and type(items) in (list, tuple)
        if hashed and not {*map(type, items)} <= {str, bytes, bool, int, float, type(None)}:
            raise FormatError(f"a {kind.__name__} made of more than texts and numbers")
        if hashed and sum(type(i) is int and i.bit_length() > 60 for i in items) > MAX_KEYS:
            raise FormatError(f"a {kind.__name__} of more than {MAX_KEYS} very large integers")
        return kind(items.encode("latin1") if type(items) is str else items)


def load_inert(
    data: bytes,
    where: str,
    persistent_load: Callable[[Any], Any] | None = None,
    *,
    known: Mapping[tuple[str, str], Any] | None = None,
    limit_bytes: int = 1 << 30,
) -> Any:
    """The content of a pickle as inert values; `known` adds the caller's stand-ins."""
    if len(data) > limit_bytes:
        raise FormatError(f"a pickle of {len(data)} bytes, at most {limit_bytes}", at=where)
    unpickler = _Unpickler(io.BytesIO(data))
    # What a pickle makes of its text and lists is no larger than itself, unless it repeats.
    unpickler.where, unpickler.left = where, len(data)
    unpickler.beside, unpickler.known = persistent_load, known or {}
    try:
        check_pickle(data)
        return unpickler.load()
    except (UnsafeError, StoreError):
        raise
    except UnsupportedError as error:
        raise UnsupportedError(error.message, at=where, hint=error.hint) from error
    except MemoryError as error:
        raise LimitError(
            f"not enough memory to read a pickle of {human(len(data))}",
            at=where,
            hint="free some memory",
        ) from error
    except Exception as error:  # a hostile pickle can raise any of them
        why = error.brief if isinstance(error, FormatError) else repr(error)
        raise FormatError(f"the pickle cannot be read ({why})", at=where) from error
