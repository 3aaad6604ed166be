"""A pickle walked before it is loaded: what its opcodes would build, weighed and not built.

The C unpickler takes a memo index for a size of memory, and hashes whatever a pickle uses as a
key.  The hash of a tuple visits all that is nested in it, every time and to any depth: a tuple of
two references to a tuple of two references to ... takes forever, and a chain of a million tuples
ends the process.  So every opcode here moves weights on a stack.  A tuple weighs one more than
its content, nearly all else weighs one, and what grows too heavy is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from intarsia.errors import FormatError
from intarsia.format.torch_file.pickle_phrases import (
    EACH_OPERAND,
    MEMOIZED,
    OPCODES,
    each_record,
    phrases_for,
)

MAX_WEIGHT = 4096
"""The heaviest tuple; the state of Python's random generator weighs 629."""

MAX_KEYS = 10_000
"""How many keys may be of a kind that can be made to collide: tuples, and very large integers."""

_ATOM, _SHORT, _LONG = 0, 1, 2
_SIZE = 18  # what a tuple of sixteen integers, wrapped in the arguments of a call, weighs at most
_LIGHT = 64  # what a key in a phrase may weigh, so that hashing it stays in proportion to its bytes
_COUNTED = (
    dict.fromkeys(b"UC\x8c\x8a", 1)
    | dict.fromkeys(b"TBX\x8b", 4)
    | dict.fromkeys(b"\x8d\x8e\x96", 8)
)
_FIXED = {0x80: 1, 0x82: 1, 0x83: 2, 0x84: 4, 0x95: 8}
_LINES = dict.fromkeys(b"ILFSVP", 1) | dict.fromkeys(b"ci", 2)
_SILENT = (0x80, 0x95)  # PROTO and FRAME leave the stack as it is
_MEMO = tuple(b"qrpg")
_LARGE_BYTES, _LARGE_DIGITS = 8, 18  # from here on integers may be equal in their hash


def check_pickle(data: bytes) -> None:
    """Raise where loading a pickle would take memory or time beyond all proportion to its size."""
    try:
        _Walk(data).run()
    except (IndexError, ValueError) as error:
        raise FormatError("not a pickle: an opcode reads from an empty stack") from error


class _Walk:
    """The weights on the stack and in the memo while a pickle is walked.

    `kinds` are the places that the pickle does not number: an atom, a short tuple, or one whose
    weight is in `memo`.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[int] = []
        self.marks: list[int] = []
        self.kinds = bytearray()
        self.memo: dict[int, int] = {}
        self.phrase = phrases_for(data).match
        self.numbered = False
        self.keys = 0
        self.left = 64 * len(data) + (1 << 20)

    def run(self) -> None:
        data, stack, marks, kinds, at = self.data, self.stack, self.marks, self.kinds, 0
        while True:
            found = self.phrase(data, at)
            if found is None:
                if data[at : at + 1] == b".":
                    if self.numbered and kinds:
                        raise FormatError("the pickle numbers its memo in two ways")
                    return
                at = self._step(at)
                continue
            kind, end = found.lastgroup, found.end()
            if kind == "get":
                self._get(int.from_bytes(data[at + 1 : end], "little"))
            elif kind == "atom" or kind == "bare":
                stack.append(1)
            elif kind == "memoize":
                self._memoize()
            elif kind == "text":
                stack.append(1)
                end += int.from_bytes(data[at + 1 : end], "little")
            elif kind == "close":
                self._set(marks.pop())
                stack.pop()
            elif kind == "records":
                stack += [1] * self._records(at, end)
            elif kind == "tensor":
                end = self._tensor(found)
            else:
                stack[-1] = _SIZE
                if kind == "size":
                    kinds += b"\1\1\1"
            at = end

    def _records(self, at: int, end: int) -> int:
        """Number what records add to the memo; how many they are."""
        found = each_record().findall(self.data, at, end)
        self.kinds += b"".join(map(MEMOIZED.__getitem__, found))
        return len(found)

    def _tensor(self, found: re.Match[bytes]) -> int:
        """Number what a tensor with its chunks adds to the memo, and leave it on the stack.

        Returns where to walk on: from its start where its chunks could use a heavy key.
        """
        start = len(self.stack)
        for each in EACH_OPERAND.findall(found["state"]):
            if each[0] in b"hj":
                self._get(int.from_bytes(each[1:], "little"))
            else:
                self.stack.append(1)
        self._tuple(start)
        if self.stack[-1] > _LIGHT:
            self.stack.pop()
            self.phrase = OPCODES.match
            return found.start()
        self.kinds += bytes(3)  # the tensor, its fields, its properties
        self._memoize()
        self.kinds += b"\1\1\1\0"  # its shape, and the list of its chunks
        self._records(*found.span("chunks"))
        self.stack[-1] = 1
        return found.end()

    def _get(self, slot: int) -> None:
        kind = self.kinds[slot] if slot < len(self.kinds) else _LONG
        if kind == _ATOM:
            self.stack.append(1)
        else:
            self._push(_SIZE if kind == _SHORT else self.memo.get(slot, 1))

    def _push(self, weight: int) -> None:
        """Push what was built before; using it as a key costs its weight each time."""
        self.left -= weight
        if self.left < 0:
            raise FormatError("the pickle repeats its content beyond its own size")
        self.stack.append(weight)

    def _memoize(self) -> None:
        weight = self.stack[-1]
        self.kinds.append(_ATOM if weight == 1 else _SHORT if weight <= _SIZE else _LONG)
        if weight > _SIZE:
            self._remember(len(self.kinds) - 1)

    def _remember(self, slot: int) -> None:
        weight = self.memo[slot] = self.stack[-1]
        if weight > _LIGHT:
            # A record that is matched as a whole uses what it likes as a key.
            self.phrase = OPCODES.match

    def _tuple(self, start: int) -> None:
        weight = 1 + sum(self.stack[start:])
        if weight > MAX_WEIGHT:
            raise FormatError(f"tuples nested to {weight} values, at most {MAX_WEIGHT}")
        self.stack[start:] = [weight]

    def _set(self, start: int, step: int = 2, *pushed: int) -> None:
        """Take keys off the stack, with their values where `step` is two, and push what they are put into."""
        self.keys += sum(weight > 1 for weight in self.stack[start::step])
        if self.keys > MAX_KEYS:
            raise FormatError(f"more than {MAX_KEYS} keys are tuples or very large integers")
        self.stack[start:] = pushed

    def _step(self, at: int) -> int:
        """Walk one opcode that is part of no phrase; where the next one begins."""
        data = self.data
        op = data[at] if at < len(data) else -1
        if op in _ALONE:
            _ALONE[op](self)
            return at + 1
        if op in _COUNTED:
            width = _COUNTED[op]
            size = int.from_bytes(data[at + 1 : at + 1 + width], "little")
            self.stack.append(1 + (op in b"\x8a\x8b" and size >= _LARGE_BYTES))
            return at + 1 + width + size
        if op in _FIXED:
            if op not in _SILENT:
                self.stack.append(1)
            return at + 1 + _FIXED[op]
        if op in _LINES:
            return self._lines(op, at)
        if op in _MEMO:
            return self._numbered(op, at)
        if op < 0:
            raise FormatError(f"it has {len(data)} bytes and no end: the rest was cut off")
        raise FormatError(f"not a pickle from byte {at} of {len(data)} on ({data[at : at + 1]!r})")

    def _lines(self, op: int, at: int) -> int:
        end = at
        for _ in range(_LINES[op]):
            end = self.data.index(b"\n", end) + 1
        if op == ord("i"):
            self.stack[self.marks.pop() :] = [1]
        else:
            self.stack.append(1 + (op in b"IL" and end - at > _LARGE_DIGITS))
        return end

    def _numbered(self, op: int, at: int) -> int:
        """The opcodes that name a place in the memo; a large one takes memory in proportion."""
        data = self.data
        if op in b"qr":
            end = at + (2 if op == ord("q") else 5)
            slot = int.from_bytes(data[at + 1 : end], "little")
        else:
            end = data.index(b"\n", at) + 1
            word = data[at + 1 : end - 1]
            slot = int(word) if len(word) <= _LARGE_DIGITS else -1
        if op == ord("g"):
            self._push(self.memo.get(slot, 1))
            return end
        if not 0 <= slot <= len(data):
            raise FormatError(f"not a pickle from byte {at} of {len(data)} on (memo index {slot})")
        self.numbered = True
        self._remember(slot)
        return end

    # Opcodes without an argument.

    def _pop_or_mark(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def _top(self, count: int) -> int:
        """Where the last `count` values begin."""
        if len(self.stack) < count:
            raise IndexError(count)
        return len(self.stack) - count

    def _replace(self, start: int, *pushed: int) -> None:
        self.stack[start:] = pushed

    def _call(self) -> None:
        # No call gives back a nested tuple, but a complex number may collide as well.
        self.stack.pop()
        self.stack[-1] = 2

    def _make(self, count: int = 1) -> None:
        del self.stack[len(self.stack) - count :]
        self.stack[-1] = 1


_ALONE: dict[int, Callable[[_Walk], object]] = {
    **dict.fromkeys(b"]}\x8f\x97", lambda walk: walk.stack.append(1)),
    **dict.fromkeys(b"ab", lambda walk: walk.stack.pop()),
    **dict.fromkeys(b"e1", lambda walk: walk._replace(walk.marks.pop())),
    **dict.fromkeys(b"lo", lambda walk: walk._replace(walk.marks.pop(), 1)),
    **dict.fromkeys(b"\x81\x93", _Walk._make),
    ord("("): lambda walk: walk.marks.append(len(walk.stack)),
    ord("0"): _Walk._pop_or_mark,
    ord("2"): lambda walk: walk._push(walk.stack[-1]),
    ord("t"): lambda walk: walk._tuple(walk.marks.pop()),
    0x85: lambda walk: walk._tuple(walk._top(1)),
    0x86: lambda walk: walk._tuple(walk._top(2)),
    0x87: lambda walk: walk._tuple(walk._top(3)),
    ord("s"): lambda walk: walk._set(walk._top(2)),
    ord("u"): lambda walk: walk._set(walk.marks.pop()),
    ord("d"): lambda walk: walk._set(walk.marks.pop(), 2, 1),
    0x90: lambda walk: walk._set(walk.marks.pop(), 1),
    0x91: lambda walk: walk._set(walk.marks.pop(), 1, 1),
    ord("R"): _Walk._call,
    0x92: lambda walk: walk._make(2),
    ord("Q"): lambda walk: walk._make(0),
    0x98: lambda walk: None,
}
