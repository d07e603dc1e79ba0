"""Moves, the disk's bookkeeping and reports as bytes (msgpack); see `stepwell.engine.wire.steps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Divide, Extent, Forget, LiveState, Move, Name, Report, Task, Tier, Touch


class MoveMessage(msgspec.Struct, tag="move", array_like=True):
    """A `Move`; slots are int32. `target` is a tier and slots in it, or a live slot."""

    ticket: int
    what: Literal["kv", "image"]
    source: tuple[int, bytes]
    target: tuple[int, bytes] | int
    tokens: int
    names: list[tuple[bytes, bytes, bytes, int, int]]


class ForgetMessage(msgspec.Struct, tag="forget", array_like=True):
    slots: bytes


class TouchMessage(msgspec.Struct, tag="touch", array_like=True):
    slots: bytes


class DivideMessage(msgspec.Struct, tag="divide", array_like=True):
    last: int
    first: int
    at: int
    digest: bytes


TaskMessage: TypeAlias = MoveMessage | ForgetMessage | TouchMessage | DivideMessage
ReportMessage: TypeAlias = tuple[int, bool, str, float]

_ENCODER = msgspec.msgpack.Encoder()
_TASKS = msgspec.msgpack.Decoder(list[TaskMessage])
_REPORTS = msgspec.msgpack.Decoder(list[ReportMessage])


def write_tasks(tasks: Sequence[Task]) -> bytes:
    return _ENCODER.encode([_message(task) for task in tasks])


def read_tasks(data: bytes) -> list[Task]:
    """In the order in which they were written. Raises msgspec.DecodeError where bytes are no tasks."""
    return [_task(message) for message in _TASKS.decode(data)]


def write_reports(reports: Sequence[Report]) -> bytes:
    return _ENCODER.encode([(r.ticket, r.ok, r.error, r.seconds) for r in reports])


def read_reports(data: bytes) -> list[Report]:
    """Raises msgspec.DecodeError where bytes are no reports."""
    return [Report(*message) for message in _REPORTS.decode(data)]


def _message(task: Task) -> TaskMessage:
    match task:
        case Move(ticket, what, source, target, tokens, names):
            to = target.slot if isinstance(target, LiveState) else _extent(target)
            named = [(n.root, n.parent, n.digest, n.start, n.end) for n in names]
            return MoveMessage(ticket, what, _extent(source), to, tokens, named)
        case Forget(slots):
            return ForgetMessage(slots.tobytes())
        case Touch(slots):
            return TouchMessage(slots.tobytes())
        case Divide(last, first, at, digest):
            return DivideMessage(last, first, at, digest)


def _task(message: TaskMessage) -> Task:
    match message:
        case MoveMessage(ticket, what, source, target, tokens, names):
            to = LiveState(target) if isinstance(target, int) else Extent(Tier(target[0]), _ints(target[1]))
            read = Extent(Tier(source[0]), _ints(source[1]))
            return Move(ticket, what, read, to, tokens, tuple([Name(*name) for name in names]))
        case ForgetMessage(slots):
            return Forget(_ints(slots))
        case TouchMessage(slots):
            return Touch(_ints(slots))
        case DivideMessage(last, first, at, digest):
            return Divide(last, first, at, digest)


def _extent(extent: Extent) -> tuple[int, bytes]:
    return int(extent.tier), extent.slots.tobytes()


def _ints(data: bytes) -> Ints:
    return np.frombuffer(data, np.int32)
