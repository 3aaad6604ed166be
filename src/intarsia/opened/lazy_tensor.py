"""A tensor of an opened checkpoint: it behaves like an array that is read when it is indexed.

What it cannot do as an array does, it refuses: an answer that looks like an array's and is none
(`==` by identity, a mask taken for an index) would be a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType
from intarsia.errors import OutsideError, UsageError, needing_torch
from intarsia.mesh import Box, Shape
from intarsia.planning.manifest import Logical
from intarsia.run.room import Bytes
from intarsia.value.bits import as_float64, bits_dtype

if TYPE_CHECKING:
    import torch

_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
    "I64": "<i8", "U64": "<u8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
"""The element types that NumPy has."""

Axis = tuple[int, int]
"""The step of a slice and how many elements it takes."""


class Tensor:
    """A logical tensor that reads what it is indexed with.

    `ck["model.norm.weight"][2:4]` reads two elements; `[...]` or `[:]` reads all.
    """

    __array_priority__ = 1000

    def __init__(self, logical: Logical, read: Callable[[Box], Bytes]) -> None:
        self._logical = logical
        self._read = read

    @property
    def name(self) -> str:
        return self._logical.name

    @property
    def shape(self) -> Shape:
        return self._logical.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self._logical.size

    def numel(self) -> int:
        """How many elements it has."""
        return self._logical.size

    @property
    def nbytes(self) -> int:
        return self._logical.nbytes

    def get_shape(self) -> list[int]:
        """The shape, as a slice of `safetensors.safe_open` gives it."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """The element type by its safetensors name, such as `BF16`: no torch is imported for it."""
        return self._logical.dtype.name

    @property
    def dtype(self) -> torch.dtype:
        """The element type as torch has it."""
        with needing_torch(f"the dtype of `{self.name}`", "get_dtype() names it without torch"):
            import torch

        found = getattr(torch, self._logical.dtype.torch)
        assert isinstance(found, torch.dtype)
        return found

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"`{self.name}` has no axes, and so no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: Any) -> torch.Tensor:
        box, kept, steps = box_of_index(index, self.shape, self.name)
        raw, dtype = self._read(box), self._logical.dtype
        if any(step != 1 for step, _ in steps):
            # Torch does not turn around every element type; bits know none.
            bits = raw.view(bits_dtype(dtype)).reshape(kept)
            every = bits[tuple(slice(None, None, step) for step, _ in steps)]
            kept, raw = every.shape, np.ascontiguousarray(every).reshape(-1).view(np.uint8)
        return as_torch(raw, dtype, kept)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All elements as a NumPy array; refused where NumPy lacks their type."""
        kind = _NUMPY.get(self._logical.dtype.name)
        if kind is None:
            raise UsageError(
                f"`{self.name}` is {self._logical.dtype}, which NumPy does not have",
                hint="index it, which gives a torch tensor, and cast that: tensor[...].float().numpy()",
            )
        if copy is False:
            raise ValueError(f"`{self.name}` is in a file: an array of it is always a copy")
        raw = self._read(Box.whole(self.shape)).view(kind).reshape(self.shape)
        return raw if dtype is None else raw.astype(dtype, copy=False)

    def __dlpack__(self, **asked: Any) -> Any:
        """All elements for `torch.as_tensor` and others that take DLPack; else they would go row by row."""
        return self[...].__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU, by DLPack's numbers

    def tobytes(self) -> bytes:
        """The bytes of all elements, in row-major order."""
        return self._read(Box.whole(self.shape)).tobytes()

    def number(self) -> float:
        """The value of a tensor without axes, a counter say."""
        dtype = self._logical.dtype
        bits = np.frombuffer(self.tobytes(), bits_dtype(dtype))
        return float(as_float64(bits, dtype)[0])

    def _compare(self, other: object) -> NoReturn:
        raise UsageError(
            f"`{self.name}` has not been read, so it cannot be compared",
            hint="compare what is read: torch.equal(a[...], b[...]); `intarsia verify A B` compares"
            " checkpoints",
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compare
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise UsageError(
            f"`{self.name}` has not been read, so it is neither true nor false",
            hint="ask for its `size`, or read it: tensor[...]",
        )

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {list(self.shape)} {self._logical.dtype}>"


def box_of_index(index: Any, shape: Shape, name: str) -> tuple[Box, Shape, list[Axis]]:
    """The box that an index selects, its shape without the axes of integers, and their steps."""
    items = index if isinstance(index, tuple) else (index,)
    dots = [at for at, item in enumerate(items) if item is ...]
    if len(dots) > 1:
        raise UsageError(f"`{name}`: an index has at most one ellipsis", hint="leave one of them")
    if dots:
        free = [slice(None)] * (len(shape) - len(items) + 1)
        items = (*items[: dots[0]], *free, *items[dots[0] + 1 :])
    if len(items) > len(shape):
        raise UsageError(
            f"`{name}` has {len(shape)} axes, the index has {len(items)}",
            hint=f"its shape is {list(shape)}",
        )
    offsets, sizes, kept, steps = [], [], [], []
    for axis, n in enumerate(shape):
        item = items[axis] if axis < len(items) else slice(None)
        if isinstance(item, slice):
            taken = range(*item.indices(n))
            lo = min(taken[0], taken[-1]) if taken else 0
            hi = max(taken[0], taken[-1]) + 1 if taken else 0
            kept.append(hi - lo)
            steps.append((taken.step, len(taken)))
        elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            lo = int(item) + (n if item < 0 else 0)
            if not 0 <= lo < n:
                raise OutsideError(f"{name}: index {item} is outside axis {axis} of {list(shape)}")
            hi = lo + 1
        else:
            raise UsageError(
                f"`{name}`: axis {axis} is indexed with {type(item).__name__}; integers and slices are"
                " read",
                hint="read a slice first and index that: tensor[lo:hi][index]",
            )
        offsets.append(lo)
        sizes.append(hi - lo)
    return Box(tuple(offsets), tuple(sizes)), tuple(kept), steps


def as_torch(buffer: Bytes, dtype: DType, shape: Shape) -> torch.Tensor:
    """The bytes of a tensor as a torch tensor, without a copy."""
    with needing_torch(
        "a tensor that is read", "np.asarray(tensor) is a NumPy array, of types that NumPy has"
    ):
        import torch

    kind = getattr(torch, dtype.torch)
    if not len(buffer):
        return torch.empty(shape, dtype=kind, device="cpu")
    return torch.from_numpy(buffer).view(kind).reshape(shape)
