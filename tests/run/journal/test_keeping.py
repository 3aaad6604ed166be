"""A journal is believed as far as its lines and the bytes that it speaks of bear it out."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from intarsia.dtypes import BY_NAME
from intarsia.errors import StoreError
from intarsia.format.base import Arrangement, Slot
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored, Target
from intarsia.planning.proof import prover_of
from intarsia.run.budget import Budget
from intarsia.run.execute import cut_steps
from intarsia.run.journal import keeping as subject
from intarsia.run.journal.keeping import Journal
from intarsia.run.journal.records import read_lines, to_line
from intarsia.run.losses import Effect
from intarsia.run.sums.checksum import crc32
from intarsia.run.windows.written import Written
from intarsia.store.local.store import LocalLog
from intarsia.store.writing.staging import Staging

U8 = BY_NAME["U8"]
ROWS = [bytes([k]) * 8 for k in range(1, 5)]
A = Target("a", U8, Layout.of("a", (4, 8)), (Box.whole((4, 8)),))
EMPTY = Target("empty", U8, Layout.of("empty", (0, 3)), (Box.whole((0, 3)),))
TARGETS = (A, EMPTY)
WHOLE = Arrangement({"f": 40}, {"a": (Slot(A.boxes[0], "f", 8),), "empty": ()})
FACTS = {"--to": "hf", "--mesh": "tp=1"}


def row(k: int) -> Written:
    """What writing one row of `a` leaves to be noted."""
    window = Box((k, 0), (1, 8))
    return Written(((A, window),), ((crc32(ROWS[k]),),), Counter({("a", Effect.ROUNDED): k}))


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    staging = Staging(tmp_path / "out")
    staging.begin()
    staging.create("f", 40)
    yield staging
    staging.abandon()


@pytest.fixture
def journal(staging: Staging) -> Journal:
    journal = Journal(staging, TARGETS)
    journal.begin(FACTS)
    return journal


def note(journal: Journal, *rows: int, rank: int = 0) -> None:
    """Write rows and note them, as a process that is then killed."""
    journal.join(rank)
    for k in rows:
        journal.staging.write("f", 8 + 8 * k, [ROWS[k]])
        journal.record(row(k))
    journal.staging.transaction.settle()


def proven(journal: Journal) -> list[Written]:
    fresh = Journal(journal.staging, TARGETS)
    found = fresh.find()
    assert found is not None
    return list(fresh.prove(found, WHOLE).records)


def test_what_was_noted_is_found_again(journal: Journal) -> None:
    note(journal, 2, 0)
    assert proven(journal) == [row(2), row(0)]


def test_what_is_left_to_do_is_what_was_not_noted(journal: Journal) -> None:
    note(journal, 2, 0)
    found = journal.find()
    assert found is not None
    done = journal.prove(found, WHOLE)
    assert done.nbytes == 16
    assert done.losses == {("a", Effect.ROUNDED): 2}
    stored = {
        x.name: Stored(x.name, x.dtype, x.layout, (Chunk(x.boxes[0], "f", 0, x.nbytes),))
        for x in TARGETS
    }
    logical = {x.name: Logical(x.name, x.shape, x.dtype) for x in TARGETS}
    prover = prover_of(Manifest("hf", "here", stored, logical, {}))
    steps = cut_steps(
        [prover.prove(x) for x in TARGETS], WHOLE, Budget(1 << 20, 1, share_bytes=8), done.ranges
    )
    left = [(proven.target.name, str(box)) for step in steps for proven, box in chain(*step)]
    assert left == [("a", "[1:2, 0:8]"), ("a", "[3:4, 0:8]"), ("empty", "[0:0, 0:3]")]


@pytest.mark.parametrize("keep", [0, 1, 20, -1, -2])  # -1: all but the line's end
def test_a_torn_last_line_is_left_out(journal: Journal, keep: int) -> None:
    note(journal, 0, 1)
    path = journal.folder / "0-0"
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(first + b"\n" + (second + b"\n")[:keep])
    assert proven(journal) == [row(0)]


def test_nothing_after_a_damaged_line_is_believed(journal: Journal) -> None:
    note(journal, 0, 1, 2)
    path = journal.folder / "0-0"
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"8", b"9", 1)
    path.write_bytes(b"\n".join(lines))
    assert proven(journal) == [row(0)]


ZEROS = crc32(bytes(8))
LINE = {"windows": [[0, [1, 0], [1, 8], [ZEROS]]], "losses": [], "sums": []}


def test_a_record_of_what_the_file_holds_is_believed(journal: Journal) -> None:
    note(journal, 0)
    path = journal.folder / "0-0"
    path.write_bytes(path.read_bytes() + to_line(LINE))
    noted = Written(((A, Box((1, 0), (1, 8))),), ((ZEROS,),), Counter())
    assert proven(journal) == [row(0), noted]


@pytest.mark.parametrize(
    "wrong",
    [
        [], {}, {"synced": "all"}, {"synced": -1},
        *({name: value for name, value in LINE.items() if name != left} for left in LINE),
        LINE | {"windows": [[2, [1, 0], [1, 8], [ZEROS]]]},
        LINE | {"windows": [[-1, [1, 0], [1, 8], [ZEROS]]]},
        LINE | {"windows": [[0, [1], [1], [ZEROS]]]},
        LINE | {"windows": [[0, [4, 0], [1, 8], [ZEROS]]]},
        LINE | {"windows": [[0, [1, 0], ["1", 8], [ZEROS]]]},
        LINE | {"windows": [[0, [1, 0], [2, 4], [ZEROS]]]},
        LINE | {"windows": [[1, [0, 0], [0, 3], [ZEROS]]]},
        LINE | {"windows": [[0, [1, 0], [1, 8]]]},
        LINE | {"windows": [[0, [1, 0], [1, 8], []]]},
        LINE | {"windows": [[0, [1, 0], [1, 8], [ZEROS, ZEROS]]]},
        LINE | {"windows": [[0, [1, 0], [1, 8], [ZEROS + 1]]]},
        LINE | {"windows": [[0, [1, 0], [1, 8], [str(ZEROS)]]]},
        LINE | {"windows": [[0, [1, 0], [1, 8], ZEROS]]},
        LINE | {"losses": [[0, "rounded", "much"]]},
        LINE | {"losses": [[0, "eaten", 1]]},
        LINE | {"sums": [[0, "a", 1, 2, "3"]]},
        LINE | {"sums": [[0, ["a"], 1, 2, 3]]},
    ],
)  # fmt: skip
def test_a_record_that_makes_no_sense_is_not_believed(journal: Journal, wrong: object) -> None:
    note(journal, 0)
    path = journal.folder / "0-0"
    path.write_bytes(path.read_bytes() + to_line(wrong))
    assert proven(journal) == [row(0)]


@pytest.mark.parametrize("head", [[], 1, {"facts": [], "folder": 1, "generation": 0},
    {"facts": {"a": 1}, "folder": 1, "generation": 0}, {"facts": {}, "folder": "1", "generation": 0},
    {"facts": {}, "folder": 1, "generation": "../*"}])  # fmt: skip
def test_a_head_that_makes_no_sense_is_no_journal(journal: Journal, head: object) -> None:
    (journal.folder / "job").write_bytes(to_line(head))
    assert journal.find() is None


def test_a_torn_head_is_no_journal(journal: Journal) -> None:
    path = journal.folder / "job"
    path.write_bytes(path.read_bytes()[:-1])
    assert journal.find() is None


def test_bytes_that_did_not_reach_the_disk_are_not_believed(journal: Journal) -> None:
    note(journal, 0, 1, 2)
    journal.staging.write("f", 8 + 8, [bytes(8)])
    assert proven(journal) == [row(0), row(2)]


def test_bytes_are_read_again_after_a_mark_too(journal: Journal, monkeypatch) -> None:
    monkeypatch.setattr(subject, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(subject, "REST", 0)
    note(journal, 0, 1, 2)
    marks = [line["synced"] for line in read_lines(journal.folder / "0-0") if "synced" in line]
    assert marks
    assert marks == sorted(marks)
    monkeypatch.setattr(subject, "_holds", lambda *_: False)
    assert proven(journal) == []


def test_a_mark_covers_what_was_noted_before_its_sync_began(journal: Journal, monkeypatch) -> None:
    monkeypatch.setattr(subject, "LEAST_SECONDS", 0.0)
    began, go_on = threading.Event(), threading.Event()
    honest = Staging.flush

    def slow(self: Staging) -> None:
        began.set()
        go_on.wait(10)
        honest(self)

    monkeypatch.setattr(Staging, "flush", slow)
    journal.join(0)
    journal.record(row(0))
    assert began.wait(10)
    journal.record(row(1))
    go_on.set()
    journal.staging.transaction.settle()
    lines = list(read_lines(journal.folder / "0-0"))
    assert [line.get("synced") for line in lines] == [None, None, 1]


def test_one_mark_follows_another(journal: Journal, monkeypatch) -> None:
    monkeypatch.setattr(subject, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(subject, "REST", 0)
    journal.join(0)
    for k in range(2):
        journal.record(row(k))
        journal.staging.transaction.settle()
    lines = list(read_lines(journal.folder / "0-0"))
    assert [line.get("synced") for line in lines] == [None, 1, None, 2]


@pytest.mark.parametrize("call", ["append", "sync"])
def test_nobody_waits_while_another_thread_writes_or_syncs_the_journal(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    began, go_on = threading.Event(), threading.Event()
    honest = getattr(LocalLog, call)

    def slow(self: LocalLog, *line: bytes) -> None:
        began.set()
        go_on.wait(5)
        go_on.set()
        honest(self, *line)

    # No mark comes after the lines and takes what was left lying.
    monkeypatch.setattr(subject, "LEAST_SECONDS", 0.0 if call == "sync" else 60.0)
    journal.join(0)
    for k in range(3):
        journal.staging.write("f", 8 + 8 * k, [ROWS[k]])
    with monkeypatch.context() as patch:
        patch.setattr(LocalLog, call, slow)
        first = threading.Thread(target=journal.record, args=[row(0)])
        first.start()
        assert began.wait(60)
        journal.record(row(1))
        journal.record(row(2))
        assert not go_on.is_set(), "nobody has let it go on"
        go_on.set()
        first.join()
        journal.staging.transaction.settle()
    assert proven(journal) == [row(0), row(1), row(2)]


def test_a_file_of_another_length_takes_its_records_with_it(journal: Journal, monkeypatch) -> None:
    monkeypatch.setattr(subject, "LEAST_SECONDS", 0.0)
    note(journal, 0)
    assert proven(journal) == [row(0)]
    os.truncate(journal.staging.folder / "f", 39)
    assert proven(journal) == []


def test_every_process_has_a_file_of_its_own(journal: Journal) -> None:
    note(journal, 0)
    note(Journal(journal.staging, TARGETS), 3, 1, rank=1)
    assert proven(journal) == [row(0), row(3), row(1)]


def test_a_resumed_run_begins_with_what_was_proven_and_forgets_the_rest(journal: Journal) -> None:
    note(journal, 0, 1)
    found = journal.find()
    assert found is not None
    done = journal.prove(found, WHOLE)
    again = Journal(journal.staging, TARGETS)
    again.begin(FACTS, done, found.generation + 1)
    assert sorted(p.name for p in journal.folder.iterdir()) == ["job"]
    note(again, 3)
    assert again.join(1).records == [row(0), row(1)]
    assert proven(again) == [row(0), row(1), row(3)]


def test_a_sync_that_fails_fails_the_run(journal: Journal, monkeypatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(subject, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(os, "fdatasync", broken)
    journal.join(0)
    journal.staging.write("f", 8, [ROWS[0]])
    journal.record(row(0))
    journal.staging.transaction.settle()
    with pytest.raises(StoreError, match="Input/output error"):
        journal.record(row(1))
    with pytest.raises(StoreError, match="Input/output error"), journal:
        pass
    assert journal.find() is None, "the kernel may show what the disk has lost, to every rank"


def test_a_full_disk_under_the_journal_fails_the_run(journal: Journal, monkeypatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal.join(0)
    journal.staging.write("f", 16, [ROWS[1]])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match="intarsia-journal: No space left on device"):
            journal.record(row(0))
    journal.record(row(1))  # by another thread, before all of them are stopped
    assert proven(journal) == [row(1)]


def test_jobs_differ_in_what_is_said_to_differ(journal: Journal) -> None:
    found = journal.find()
    assert found is not None
    assert found.differences(FACTS) == []
    assert found.differences({"--to": "dcp", "--dtype": "BF16"}) == [
        "--to: hf then, dcp now",
        "--mesh: tp=1 then, absent now",
        "--dtype: absent then, BF16 now",
    ]


def test_a_line_is_its_checksum_and_its_text(tmp_path: Path) -> None:
    assert to_line({"synced": 3}) == b'%08x {"synced":3}\n' % crc32(b'{"synced":3}')
    assert list(read_lines(tmp_path / "absent")) == []
