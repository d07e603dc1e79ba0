"""Messages between control and one rank: a pair of connected Unix sockets, without a thread or a broker in between.

A message is a kind and two byte strings, sent by one call of the system where it fits the socket's buffer. Control must never wait for a
rank, which may have gone or hang, so it posts: what does not fit is kept and goes out as the socket takes it. A rank waits, since control
always reads.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from stepwell.base.errors import RankError

MOST = 1 << 28
"""Bytes of the longest message that is read: many times that of a step with masks for all of its rows."""
_HEAD = struct.Struct("<BII")
_PIECE = 1 << 16


class Message(NamedTuple):
    """`kind` is one of those in `stepwell.engine.ranks.wire`."""

    kind: int
    data: bytes
    more: bytes


class Channel:
    """One end. Any thread may send; only one receives, and only one posts."""

    def __init__(self, end: socket.socket) -> None:
        """The socket belongs to the channel from now on."""
        self._socket = end
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._read = bytearray()
        self._whole: deque[Message] = deque()
        self._readable = select.poll()
        self._readable.register(end, select.POLLIN)
        self.ended = False
        """Whether the other end has gone: nothing more can come once all that has been received is taken."""

    @classmethod
    def of(cls, number: int) -> Channel:
        """The channel over an inherited descriptor."""
        return cls(socket.socket(fileno=number))

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether `flush` has something to send."""
        return bool(self._unsent)

    def send(self, kind: int, data: bytes = b"", more: bytes = b"") -> None:
        """Wait until the system has taken all of it. Nothing happens where the other end has gone."""
        with self._lock:
            try:
                self._socket.sendall(_HEAD.pack(kind, len(data), len(more)) + data + more)
            except (BrokenPipeError, ConnectionResetError):
                self.ended = True

    def post(self, kind: int, data: bytes = b"", more: bytes = b"") -> None:
        """Send without waiting; what the system does not take goes with the next `post` or `flush`."""
        parts = (_HEAD.pack(kind, len(data), len(more)), data, more)
        if not self._unsent:
            sent = self._give(parts)
            if sent == sum(map(len, parts)):
                return
            self._unsent += memoryview(b"".join(parts))[sent:]
        else:
            for part in parts:
                self._unsent += part
            self.flush()

    def flush(self) -> None:
        """Send what is left over from `post`, as far as the system takes it now."""
        while self._unsent and (sent := self._give((bytes(self._unsent[:_PIECE]),))):
            del self._unsent[:sent]

    def receive(self, seconds: float) -> Message | None:
        """The next message, waiting at most so long for each piece of it; None where none has come. Raises RankError."""
        while not (self._whole or self.ended) and self._readable.poll(1000 * seconds):
            self.take()
        return self._whole.popleft() if self._whole else None

    def take(self) -> None:
        """Read what has come, without waiting. Raises RankError where it is no message."""
        try:
            data = self._socket.recv(_PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.ended = True
            return
        self._read += data
        self._cut()

    def messages(self) -> list[Message]:
        """All that have been read and not been received."""
        found = list(self._whole)
        self._whole.clear()
        return found

    def close(self) -> None:
        """Twice does no harm."""
        self._socket.close()

    def _give(self, parts: Sequence[bytes]) -> int:
        """How many bytes the system takes now; all of them where the other end has gone."""
        try:
            return self._socket.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            self.ended = True
            return sum(map(len, parts))

    def _cut(self) -> None:
        """Take whole messages from what has been read."""
        read, at = self._read, 0
        while len(read) - at >= _HEAD.size:
            kind, data, more = _HEAD.unpack_from(read, at)
            if data + more > MOST:
                raise RankError(f"a rank was sent, or sent, a message of {data + more:,} bytes, more than {MOST:,}")
            start, end = at + _HEAD.size, at + _HEAD.size + data + more
            if end > len(read):
                break
            self._whole.append(Message(kind, bytes(read[start : start + data]), bytes(read[start + data : end])))
            at = end
        del read[:at]


def pair() -> tuple[Channel, socket.socket]:
    """A channel, and the other end, which a process is to inherit."""
    here, there = socket.socketpair()
    return Channel(here), there
