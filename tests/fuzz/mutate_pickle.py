"""Edits of a pickle by its opcodes: each left out, repeated, exchanged, or given another argument."""

from __future__ import annotations

import pickle
import pickletools
import random
from collections.abc import Sequence
from functools import lru_cache

from tests.fuzz.values import NUMBERS, TEXTS

_INTEGERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")
_STRINGS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_SINGLE = [bytes([ord(op.code)]) for op in pickletools.opcodes if op.arg is None]
_NAMES = (
    b"ctorch\nSize\n", b"ctorch\nfloat32\n", b"ctorch\ndevice\n", b"cos\nsystem\n", b"cbuiltins\neval\n",
    b"ccollections\nOrderedDict\n", b"cbuiltins\nset\n", b"cbuiltins\ncomplex\n", b"cbuiltins\nbytearray\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n", b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cdatetime\ndatetime\n", b"cpathlib\nPosixPath\n", b"cargparse\nNamespace\n", b"ccopyreg\n_reconstructor\n",
    b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n", b"cmegatron.core\nX\n", b"c_codecs\nencode\n",
)  # fmt: skip


def pickle_edited(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes | None:
    """A pickle with one of its opcodes edited; its frames, which say lengths, are taken out."""
    ops = list(_opcodes(data))
    if not ops:
        return None
    at = chance.randrange(len(ops))
    span = slice(at, at + chance.choice((1, 1, 2, 5)))
    kind = chance.randrange(8)
    integers = [k for k, (name, _) in enumerate(ops) if name in _INTEGERS]
    texts = [k for k, (name, _) in enumerate(ops) if name in _STRINGS]
    if kind == 0:
        del ops[span]
    elif kind == 1:
        ops[at:at] = ops[span] * chance.choice((1, 2, 50))
    elif kind == 2:
        other = chance.randrange(len(ops))
        ops[at], ops[other] = ops[other], ops[at]
    elif kind == 3:
        ops.insert(at, ("", chance.choice(_SINGLE)))
    elif kind == 4:
        ops.insert(at, ("", chance.choice(_NAMES)))
    elif kind == 5 and texts:
        ops[chance.choice(texts)] = ("", _body(chance.choice(TEXTS)))
    elif kind == 6:
        values = (None, True, 1.5, b"bytes", (), [], {}, {"a": (1, 2)}, frozenset((1,)), 1j)
        ops[span] = [("", _body(chance.choice(values)))]
    elif integers:
        ops[chance.choice(integers)] = ("", _body(chance.choice(NUMBERS)))
    return b"".join(part for _, part in ops)


def _body(value: object) -> bytes:
    """The opcodes that push a value, without the memo, whose places are the file's own."""
    try:
        return pickletools.optimize(pickle.dumps(value, 3))[2:-1]
    except UnicodeEncodeError:
        return pickle.dumps("", 3)[2:-1]


@lru_cache(maxsize=512)
def _opcodes(data: bytes) -> tuple[tuple[str, bytes], ...]:
    """The opcodes of a pickle with their arguments; none where it is no pickle to begin with."""
    found: list[tuple[str, int]] = []
    try:
        for op, _, at in pickletools.genops(data):
            found.append((op.name, at or 0))
    except Exception:
        return ()
    ends = [at for _, at in found[1:]] + [len(data)]
    return tuple(
        (name, data[at:end]) for (name, at), end in zip(found, ends, strict=True) if name != "FRAME"
    )
