"""Damaged files are refused, never more: a bounded run of the fuzzer, and its whole corpus."""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import mutated
from tests.fuzz.parsers import Parser, parsers_at
from tests.fuzz.worker import harm

PLACE = tempfile.mkdtemp(prefix="intarsia-fuzz-")
atexit.register(shutil.rmtree, PLACE, ignore_errors=True)
PARSERS = parsers_at(Path(PLACE))
EVERYTHING = [data for parser in PARSERS for data in parser.corpus()]
each_parser = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)


@each_parser
def test_the_corpus_does_no_harm(parser: Parser) -> None:
    for data in parser.corpus():
        assert harm(parser, data) is None


@each_parser
def test_sound_files_are_read(parser: Parser) -> None:
    parser.read(parser.seeds[0])


@each_parser
@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.data())
@pytest.mark.one_in(2)
def test_damaged_files_are_refused(
    parser: Parser, chance: random.Random, data: st.DataObject
) -> None:
    sound = data.draw(st.sampled_from(parser.seeds))
    assert harm(parser, mutated(sound, EVERYTHING, chance)) is None


@each_parser
@settings(max_examples=15, deadline=None)
@given(st.binary(max_size=200))
@pytest.mark.one_in(2)
def test_noise_is_refused(parser: Parser, data: bytes) -> None:
    assert harm(parser, data) is None


@pytest.mark.slow
@each_parser
def test_thousands_of_damaged_files_are_refused(parser: Parser) -> None:
    chance, kept = random.Random(parser.name), parser.corpus()
    for _ in range(2000):
        assert harm(parser, mutated(chance.choice(kept), EVERYTHING, chance)) is None
