"""Opcodes that follow each other in the pickle of every checkpoint, each phrase of them matched at once, for speed."""

from __future__ import annotations

import re
from functools import cache

_INT = rb"(?:K.|M..|J....|\x8a\x05.{5})"
_GET = rb"(?:h.|j....)"
_FLAT = rb"(?:%b(?:\x85|%b(?:\x86|%b\x87))|\(%b{4,16}t)" % ((_INT,) * 4)
_SIZED, _BARE = rb"%b\x94\x85\x94R\x94" % _FLAT, rb"\(%b{0,16}t\x85R" % _INT
_PAIRS = rb"(?:%b(?:%b|N|%b(?=[hju]))){0,8}+" % (_GET, _INT, _GET)
_SIZE_PAIR = rb"%b%b%b%b" % (_GET, _GET, _SIZED, _PAIRS)
_STATE = rb"(?:%b|%b|[N\x88\x89]){0,16}+" % (_GET, _INT)
_RECORD = rb"%b\)\x81\x94\}\x94\(%b(?:%b(?:%b)?)?ub" % (_GET, _PAIRS, _SIZE_PAIR, _SIZE_PAIR)
_TEXT = rb"\x8c(?:%b)" % b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(256))
_NAMED = _RECORD.replace(rb"\}\x94\(", rb"\}\x94\((?:%b%b\x94)?" % (_GET, _TEXT))
_TENSOR = rb"%b\)\x81\x94\}\x94\(%b%b\)\x81\x94\((?P<state>%b)t\x94b%b%b%b%b\]\x94\(" % (
    (_GET, _GET, _GET, _STATE, _GET, _GET, _SIZED, _GET)
)
_BARE_RECORD = rb"%b\)\x81\}\((?:%b(?:%b|N|%b(?:(?=[hju])|%b))){0,8}+ub" % (
    (_GET, _GET, _INT, _GET, _BARE)
)
_BARE_TENSOR = (
    rb"%b\)\x81\}\((?:%b(?:%b|N|%b(?:(?=[hju])|%b|\)\x81\(%btb)|\]\((?:%b)*+e)){0,8}+ub"
    % (_GET, _GET, _INT, _GET, _BARE, _STATE, _BARE_RECORD)
)
_ONE = (
    rb"(?P<get>%b)|(?P<atom>%b|[N\x88\x89)]|G.{8})|(?P<close>ub)|(?P<memoize>\x94)"
    rb"|(?P<text>\x8c.|X....)" % (_GET, _INT)
)
OPCODES = re.compile(_ONE, re.DOTALL)
"""Single opcodes, the most frequent ones."""

_PHRASES = (
    rb"(?P<records>(?:%b){1,4096}+)|(?P<tensor>%b(?P<chunks>(?:%b)*+)eub)"
    % (_NAMED, _TENSOR, _RECORD)
    + rb"|(?P<bare>%b|\}\((?:%b%b)*+u)" % (_BARE_TENSOR, _BARE_RECORD, _BARE_RECORD)
    + rb"|(?P<size>%b)|(?P<bare_size>%b)|" % (_SIZED, _BARE)
    + _ONE
)
SHORT_BYTES = 32 << 10
"""Pickles up to here are walked in less time than it takes to compile the phrases."""

MATCHED_RIGHTLY = re.match(rb"(?:ab?c)++", b"aca")[0] == b"ac"  # type: ignore[index]
"""Whether Python goes back within what `++` repeats; before 3.11.5 it does not, and phrases would end in each other."""

EACH_OPERAND = re.compile(rb"%b|%b|." % (_GET, _INT), re.DOTALL)
MEMOIZED = {
    (b"\x94" * named, b"R" * (sizes > 0), b"R" * (sizes > 1)): bytes(2 + named) + b"\1" * 3 * sizes
    for named in (0, 1)
    for sizes in (0, 1, 2)
}
"""What each record adds to the memo: itself, its fields, a text of its own, and the three tuples of every size."""


@cache
def all_phrases() -> re.Pattern[bytes]:
    return re.compile(_PHRASES, re.DOTALL)


def phrases_for(data: bytes) -> re.Pattern[bytes]:
    """What a pickle is walked by: single opcodes where it is short, or where Python matches phrases wrongly."""
    return all_phrases() if MATCHED_RIGHTLY and len(data) > SHORT_BYTES else OPCODES


@cache
def each_record() -> re.Pattern[bytes]:
    return re.compile(_NAMED.replace(rb"\x94)?", rb"(\x94))?").replace(b"R", b"(R)"), re.DOTALL)
