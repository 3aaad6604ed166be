"""JSON is read only where every program would read the same."""

from __future__ import annotations

import pytest

from intarsia.errors import FormatError
from intarsia.format.strict_json import MAX_DEPTH, parse_json


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2.5, null, true, "ü"]}', "[]", "0", '"\\ud83d\\ude00"', " {} "]
)
def test_sound_json_is_read(text: str) -> None:
    import json

    assert parse_json(text.encode(), "here") == json.loads(text)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{} {}", b"{'a': 1}", b"[1,]", b'"\xff"', b"\xef\xbb\xbf{}", b"\x00", b"[" * 100_000, b"9" * 5000],
)  # fmt: skip
def test_what_is_no_json_is_refused_with_its_place(data: bytes) -> None:
    with pytest.raises(FormatError, match="here is not JSON"):
        parse_json(data, "here")


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\udc00": 1}', '["\\uD800\\u0041"]'])
def test_half_a_character_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="here is not JSON"):
        parse_json(text.encode(), "here")


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]', '{"a": 1, "\\u0061": 2}']
)
def test_a_key_that_comes_twice_is_named(text: str) -> None:
    with pytest.raises(FormatError, match="here names 'a' twice"):
        parse_json(text.encode(), "here")


def test_a_key_may_come_twice_where_the_last_one_is_everybodys() -> None:
    assert parse_json(b'{"a": 1, "a": 2}', "here", unique=False) == {"a": 2}


def test_nesting_has_a_limit() -> None:
    parse_json(nested(MAX_DEPTH), "here")
    with pytest.raises(FormatError, match="deeper than 64"):
        parse_json(nested(MAX_DEPTH + 1), "here")
    with pytest.raises(FormatError, match="deeper than 64"):
        parse_json(b'{"a":' * 65 + b"1" + b"}" * 65, "here")


def test_the_hint_is_the_callers() -> None:
    with pytest.raises(FormatError, match="hint: copy it again"):
        parse_json(b"{", "here", hint="copy it again")
