"""Ranks of one machine, which meet at a socket of the first, so that none of them has to import torch.

The socket's name is Linux's own and not a file's: it goes with the process that holds it, so a job that
died leaves nothing in the way.  It is made of what `torchrun` gave all ranks of one job, and only
processes of the same user are let in.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from errno import EADDRINUSE
from hashlib import blake2b
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from intarsia.errors import IntarsiaError
from intarsia.run.ranks.apart import message_of, value_of_message
from intarsia.run.ranks.waiting import Waiting, in_words, wait_seconds

_JOB = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE",
)  # fmt: skip
"""The variables by which the ranks of one job know each other."""
_LENGTH, _CREDENTIALS = struct.Struct("=Q"), struct.Struct("=3i")
_AT_ONCE_BYTES = 1 << 20
_PAUSE_SECONDS = 0.02
_GREETING_SECONDS = 5.0
"""How long a rank may take to say which it is, once it is connected: it does so at once."""


def on_one_machine() -> bool:
    """Whether all ranks of this job are on this machine, and it can let them meet here."""
    here, everywhere = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    return sys.platform == "linux" and here is not None and here == everywhere


class OneMachine:
    """Ranks that exchange values through the first: each sends one message, and gets one back.

    That a rank is gone ends the exchange at once, on the first and so on all.
    """

    def __init__(self, links: Mapping[int, socket.socket], size: int, seconds: float) -> None:
        self._links = links  # from the first rank to all others, from these to the first
        self._size = size
        self._seconds = seconds
        for link in links.values():
            link.settimeout(seconds)

    def all_gather(self, value: Any) -> list[Any]:
        """What every rank brought, by rank."""
        return _values(self._exchange(value, lambda rows: [message_of(rows)] * self._size))

    def gather(self, value: Any, rank: int) -> list[Any]:
        """What every rank brought, on the first rank; nothing on the others."""
        nothing = [message_of([])] * (self._size - 1)
        return _values(self._exchange(value, lambda rows: [message_of(rows), *nothing]))

    def scatter(self, values: Sequence[Any], rank: int) -> Any:
        """What the first rank has for this one."""
        return value_of_message(
            self._exchange(None, lambda _: [message_of(value) for value in values])
        )

    def broadcast(self, value: Any, rank: int) -> Any:
        """What the first rank says to all."""
        return value_of_message(self._exchange(None, lambda _: [message_of(value)] * self._size))

    def close(self) -> None:
        """Leave; ranks that wait for this one notice at once."""
        for link in self._links.values():
            link.close()

    def _exchange(self, value: Any, answers: Callable[[list[bytes]], Sequence[bytes]]) -> bytes:
        """What the first rank answers this one: one of `answers` to what all of them sent."""
        data = b"" if value is None else message_of(value)
        try:
            if 0 in self._links:
                _send(self._links[0], data)
                return _receive(self._links[0])
            mine, *others = answers([data, *self._received()])
            for rank, message in enumerate(others, 1):
                _send(self._links[rank], message)
            return mine
        except OSError:
            self.close()
            raise

    def _received(self) -> list[bytes]:
        """One message of each other rank; all are watched until the last has come."""
        coming = {rank: bytearray() for rank in self._links}
        waiting = set(coming)
        with DefaultSelector() as ready:
            for rank, link in self._links.items():
                ready.register(link, EVENT_READ, rank)
            while waiting:
                seen = [key.data for key, _ in ready.select(self._seconds)]
                if not seen:
                    raise TimeoutError("they are silent")
                for rank in seen:
                    _take(self._links[rank], coming[rank])
                    if not _missing(coming[rank]):
                        waiting.discard(rank)
        return [bytes(coming[rank][_LENGTH.size :]) for rank in sorted(coming)]


def meet_ranks(waiting: Waiting, number: int, patience_seconds: float) -> OneMachine:
    """The ranks of this job, once all of them have made the call of this number."""
    name = _name(number)
    links = _others(name, waiting) if waiting.rank == 0 else {0: _first(name, waiting)}
    return OneMachine(links, waiting.size, patience_seconds)


def _name(number: int) -> bytes:
    """The name of the first rank's socket for one call; no other job that is alive has it."""
    known = [str(os.getuid()), *(os.environ.get(name, "") for name in _JOB), str(number)]
    mark = blake2b("\0".join(known).encode(errors="surrogateescape"), digest_size=24).hexdigest()
    return b"\0intarsia-" + mark.encode()


def _others(name: bytes, waiting: Waiting) -> dict[int, socket.socket]:
    """Connections of the first rank to all others, which it informs when the last of them has come."""
    links: dict[int, socket.socket] = {}
    with _new_socket() as door, DefaultSelector() as ready:
        while not _bound(door, name):
            waiting.on("another process to leave its place")
            time.sleep(_PAUSE_SECONDS)
        door.listen(waiting.size)
        ready.register(door, EVENT_READ)
        try:
            while absent := [rank for rank in range(1, waiting.size) if rank not in links]:
                waiting.on(in_words(absent))
                for key, _ in ready.select(_PAUSE_SECONDS):
                    if key.fileobj is not door:  # nobody speaks before the first does: it has left
                        ready.unregister(key.fileobj)
                        links.pop(key.data).close()
                    elif (come := _let_in(door)) is not None:
                        rank, link = come
                        if rank in links or not 0 < rank < waiting.size:
                            link.close()
                            continue
                        links[rank] = link
                        ready.register(link, EVENT_READ, rank)
            for link in links.values():
                with suppress(OSError):  # one that has left since is missed in the first exchange
                    _send(link, b"")
        except BaseException as error:
            for link in links.values():
                with suppress(OSError):
                    if isinstance(error, IntarsiaError):
                        _send(link, in_words(absent).encode())
                link.close()
            raise
    return links


def _let_in(door: socket.socket) -> tuple[int, socket.socket] | None:
    """The next rank at the door and the connection to it; None where it is none of ours."""
    link, _ = door.accept()
    link.settimeout(_GREETING_SECONDS)
    with suppress(OSError, ValueError):
        if _is_mine(link):
            return int(_receive(link)), link
    link.close()
    return None


def _first(name: bytes, waiting: Waiting) -> socket.socket:
    """The connection of another rank to the first, as soon as that says that all have come."""
    while True:
        link = _new_socket()
        link.settimeout(2 * wait_seconds())  # the first gives up before
        try:
            link.connect(name)
            if _is_mine(link):
                _send(link, str(waiting.rank).encode())
                with waiting.aloud(f"{in_words([0])}, which waits for others"):
                    absent = _receive(link)
                if not absent:
                    return link
                raise waiting.in_vain(absent.decode())
        except OSError:  # it is not there yet, or no longer
            pass
        except BaseException:
            link.close()
            raise
        link.close()
        waiting.on(in_words([0]))
        time.sleep(_PAUSE_SECONDS)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _bound(door: socket.socket, name: bytes) -> bool:
    """Whether the name was free, and is the socket's now."""
    try:
        door.bind(name)
    except OSError as error:
        if error.errno != EADDRINUSE:
            raise
        return False
    return True


def _is_mine(link: socket.socket) -> bool:
    """Whether a process of the same user is at the other end."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(user == os.getuid())


def _values(message: bytes) -> list[Any]:
    return [value_of_message(row) if row else None for row in value_of_message(message)]


def _send(link: socket.socket, message: bytes) -> None:
    link.sendall(_LENGTH.pack(len(message)) + message)


def _receive(link: socket.socket) -> bytes:
    data = bytearray()
    while _missing(data):
        _take(link, data)
    return bytes(data[_LENGTH.size :])


def _take(link: socket.socket, data: bytearray) -> None:
    """Add what has come of a message; raise where the other end has left, or speaks out of turn."""
    missing = _missing(data)
    found = link.recv(min(missing, _AT_ONCE_BYTES) or 1)
    if not found or not missing:
        raise ConnectionResetError("the connection was closed")
    data += found


def _missing(data: bytearray) -> int:
    """How many bytes of a message are missing, as far as is known."""
    if len(data) < _LENGTH.size:
        return _LENGTH.size - len(data)
    (length,) = _LENGTH.unpack_from(data)
    return int(length) + _LENGTH.size - len(data)
