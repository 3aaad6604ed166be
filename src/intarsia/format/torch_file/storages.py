"""The storages that a pickle of torch refers to, and tensors, which are views of them."""

from __future__ import annotations

from typing import Any

from intarsia.dtypes import BY_TORCH
from intarsia.errors import FormatError
from intarsia.format.torch_file.inert import Inert, InertTensor, Storage, brief
from intarsia.format.torch_file.tensor_bounds import bytes_of
from intarsia.format.torch_file.unpickle import load_inert

_KEPT_BYTES = 1024
_REPEATED_BYTES = 64 << 10
_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
}  # fmt: skip
STORAGE_OF = {torch: name for name, torch in _STORAGES.items()}


def storage_of(pid: Any) -> Storage:
    """The storage that a persistent id of a pickle names, without its bytes."""
    if not (isinstance(pid, tuple) and len(pid) == 5 and type(pid[2]) is str):
        raise FormatError("a reference to something that is no storage")
    _, kind, key, _, numel = pid
    if type(numel) is not int or numel < 0:
        raise FormatError(f"a storage of {brief(numel)} elements")
    name = getattr(kind, "__qualname__", "?")
    if name == "UntypedStorage":
        return Storage(key, numel, None)
    if name not in _STORAGES:
        raise FormatError(f"a storage of class {brief(kind)}, which has no known element type")
    return Storage(key, numel, BY_TORCH[_STORAGES[name]])


def storage_bytes(storage: Storage) -> int:
    """How many bytes a storage has."""
    return storage.numel * (storage.dtype.itemsize if storage.dtype else 1)


_seen: dict[bytes, InertTensor] = {}


def tensor_in_pickle(data: bytes, where: str) -> InertTensor:
    """The tensor that data.pkl describes; equal tensors of other blobs have equal pickles."""
    found = _seen.get(data)
    if found is None:
        found = load_inert(data, where, storage_of)
        if not isinstance(found, InertTensor):
            args = found.args if isinstance(found, Inert) else ()
            kinds = [brief(a) for a in args if isinstance(a, type)]
            kind = kinds[-1] if kinds else brief(found)
            raise FormatError(
                f"a plain tensor is expected, found {kind}",
                at=where,
                hint="save full or sharded plain tensors, dequantized, not a tensor subclass",
            )
        shape, stride = found.shape, found.stride
        size = found.dtype.itemsize
        reach = sum((n - 1) * s for n, s in zip(shape, stride, strict=False)) + 1
        reach = (found.storage_offset + reach) * size if 0 not in shape else 0
        elements = bytes_of(shape, size, where)
        low = min((*shape, *stride, found.storage_offset), default=0)
        stored = storage_bytes(found.storage)
        # A view that repeats its elements is small, or a blob of a few bytes would fill a disk.
        elements = 0 if elements <= _REPEATED_BYTES else elements
        if len(shape) != len(stride) or low < 0 or max(reach, elements) > stored:
            raise FormatError(
                f"a view of shape {shape}, stride {stride}, offset {found.storage_offset} ends at "
                f"byte {max(reach, elements)} of the {stored} stored",
                at=where,
            )
        if len(_seen) < 4096 and len(data) <= _KEPT_BYTES:
            _seen[data] = found
    return found
