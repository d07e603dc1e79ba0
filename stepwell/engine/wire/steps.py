"""Steps, results, moves and reports as bytes (msgpack): what control and a worker say to each other.

Both sides remember the same of each live slot, so that a decode says little: who decodes there, the block table, the tokens so far of
whoever looks back on them. A step names what is new.

    Step ─▶ StepWriter.write ─▶ bytes ─▶ StepReader.read ─▶ Step          64 decodes: below 1 KiB, most of it positions and slots

A writer's steps go to a reader in the order in which they were written, each once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepwell.base.geometry import Ints
from stepwell.sched.request import SamplingParams, Scored
from stepwell.sched.step import (
    LAST_DRAW,
    Carry,
    Cut,
    Decodes,
    Fresh,
    FromImage,
    Sample,
    Score,
    StateStart,
    Step,
    StepResult,
    Work,
)

Who: TypeAlias = tuple[str, int, SamplingParams, int]
"""Of a sequence that decodes: request id, root, params, length of its prompt."""

_FRESH, _CARRY = 0, 1
_ENCODER = msgspec.msgpack.Encoder()


class Piece(msgspec.Struct, array_like=True):
    """int32 values that stand from `first` on in a row's array, of which the reader has what comes before."""

    row: int
    first: int
    values: bytes


class Began(msgspec.Struct, array_like=True):
    """The sequence of this row has not been decoded in its slot before."""

    row: int
    who: Who


class Part(msgspec.Struct, array_like=True):
    """A `Work`. `state` is 0 for a fresh one, 1 for one that is carried on, or the pages of its image."""

    name: str
    slot: int
    root: int
    start: int
    tokens: bytes
    pages: Piece
    write_from: int
    state: int | bytes
    cuts: list[tuple[int, bytes]]
    sample: tuple[SamplingParams, int, bytes | None, bool] | None
    score: tuple[bytes, int] | None
    drafts: int


class StepMessage(msgspec.Struct, array_like=True):
    """Arrays are int32. `tokens` is empty where each is the slot's last draw."""

    slots: bytes
    starts: bytes
    tokens: bytes
    began: list[Began]
    pages: list[Piece]
    histories: list[Piece]
    cuts: list[Piece]
    parts: list[Part]
    drafting: bool


class ResultMessage(msgspec.Struct, array_like=True):
    """A `StepResult`; logits are float32."""

    sampled: tuple[tuple[int, ...], ...]
    errors: tuple[tuple[int, str], ...]
    scores: tuple[tuple[int, tuple[Scored, ...]], ...]
    target_scores: tuple[tuple[int, tuple[Scored, ...]], ...]
    logits: tuple[tuple[int, bytes], ...]


_STEPS = msgspec.msgpack.Decoder(StepMessage)
_RESULTS = msgspec.msgpack.Decoder(ResultMessage)


class StepWriter:
    """Control's side."""

    def __init__(self) -> None:
        self._who: dict[int, Who] = {}
        self._told: dict[int, int] = {}  # by slot: tokens of the history that the reader has
        self._rows: tuple[object, ...] = ()

    def write(self, step: Step) -> bytes:
        """Some 10 µs, and 0.1 for each row that goes on as in the step before."""
        decodes = step.decodes
        slots, known, counts = decodes.slots.tolist(), decodes.known.tolist(), list(map(len, decodes.tables))
        all_drawn = bool((decodes.tokens == LAST_DRAW).all())
        began = self._began(decodes, slots, known)
        for work in step.parts:
            self._who.pop(work.slot, None)  # whoever decodes there next is another, or one who has just been admitted
        pages = []
        if counts != known:
            pages = [
                Piece(row, first, decodes.tables[row][first:].tobytes())
                for row, (count, first) in enumerate(zip(counts, known, strict=True))
                if first < count
            ]
        message = StepMessage(
            decodes.slots.tobytes(),
            decodes.starts.tobytes(),
            b"" if all_drawn else decodes.tokens.tobytes(),
            began,
            pages,
            [self._history(row, slots[row], history) for row, history in decodes.histories],
            [Piece(row, cut.position, cut.pages.tobytes()) for row, cut in decodes.cuts],
            [_part(work) for work in step.parts],
            step.drafting,
        )
        return _ENCODER.encode(message)

    def _began(self, decodes: Decodes, slots: list[int], known: list[int]) -> list[Began]:
        """The rows whose sequence the reader does not know in their slot."""
        lengths = decodes.starts + 1 - decodes.indices
        rows = (
            decodes.slots.tobytes(), decodes.roots.tobytes(), lengths.tobytes(), decodes.names, decodes.params
        )  # fmt: skip
        if rows == self._rows and 0 not in known:
            return []
        self._rows = rows
        began = []
        every = zip(decodes.names, decodes.roots.tolist(), decodes.params, lengths.tolist(), strict=True)
        for row, who in enumerate(every):
            if known[row] == 0 or self._who.get(slots[row]) != who:
                self._who[slots[row]] = who
                self._told[slots[row]] = 0
                began.append(Began(row, who))
        return began

    def _history(self, row: int, slot: int, history: Ints) -> Piece:
        first, self._told[slot] = self._told[slot], len(history)
        return Piece(row, first, history[first:].tobytes())


@dataclass(slots=True, eq=False)
class _Rows:
    """What the rows of a step have in common with those of the next one, if the same sequences go on in the same slots.

    sent     slots, as they came; `slots` and `column`: as numbers and as an array
    counts   pages of each table by now, int32; a step that was read has it, too, so it is replaced and never changed
    """

    sent: bytes
    slots: list[int]
    column: Ints
    names: tuple[str, ...]
    roots: NDArray[np.int64]
    params: tuple[SamplingParams, ...]
    lengths: Ints
    tables: list[Ints]
    counts: Ints


class StepReader:
    """A worker's side. Raises msgspec.DecodeError where bytes are no step."""

    def __init__(self) -> None:
        self._who: dict[int, Who] = {}
        self._tables: dict[int, _Array] = {}
        self._histories: dict[int, _Array] = {}
        self._rows = self._lined_up(b"", [])

    def read(self, data: bytes) -> Step:
        """Some 10 µs, and 0.1 for each row that goes on as in the step before."""
        message = _STEPS.decode(data)
        if message.began or message.slots != self._rows.sent:
            self._rows = self._lined_up(message.slots, message.began)
        rows, starts = self._rows, _ints(message.starts)
        known = self._extended(rows, message.pages)
        for piece in message.histories:
            self._histories.setdefault(rows.slots[piece.row], _Array()).put(piece)
        decodes = Decodes(
            names=rows.names,
            slots=rows.column,  # the same object from step to step, as names and params are
            roots=rows.roots,
            starts=starts,
            tokens=_ints(message.tokens) if message.tokens else np.full(len(starts), LAST_DRAW, np.int32),
            tables=tuple(rows.tables),
            known=known,
            params=rows.params,
            indices=starts + 1 - rows.lengths,
            histories=tuple((piece.row, self._histories[rows.slots[piece.row]].values) for piece in message.histories),
            cuts=tuple((piece.row, Cut(piece.first, _ints(piece.values))) for piece in message.cuts),
        )
        return Step(tuple([self._work(part) for part in message.parts]), decodes, message.drafting)

    def _lined_up(self, sent: bytes, news: list[Began]) -> _Rows:
        """The rows of these slots, after some of which there is news."""
        column = _ints(sent)
        slots = column.tolist()
        for began in news:
            self._who[slots[began.row]] = began.who
        who = [self._who[slot] for slot in slots]
        tables = [self._tables.setdefault(slot, _Array()).values for slot in slots]
        return _Rows(
            sent,
            slots,
            column,
            tuple([name for name, _, _, _ in who]),
            np.array([root for _, root, _, _ in who], np.int64),
            tuple([params for _, _, params, _ in who]),
            np.array([length for _, _, _, length in who], np.int32),
            tables,
            np.array(list(map(len, tables)), np.int32),
        )

    def _extended(self, rows: _Rows, pages: list[Piece]) -> Ints:
        """Add pages to the tables of rows. Returns what was known of each table before, int32."""
        if not pages:
            return rows.counts
        known, counts = rows.counts.copy(), rows.counts.copy()
        for piece in pages:
            table = self._tables[rows.slots[piece.row]]
            table.put(piece)
            known[piece.row], counts[piece.row] = piece.first, len(table)
            rows.tables[piece.row] = table.values
        rows.counts = counts
        return known

    def _work(self, part: Part) -> Work:
        table = self._tables.setdefault(part.slot, _Array())
        table.put(part.pages)
        sample = None
        if part.sample is not None:
            params, index, history, keep_logits = part.sample
            sample = Sample(params, index, None if history is None else _ints(history).copy(), keep_logits)
        return Work(
            part.name,
            part.slot,
            part.root,
            part.start,
            _ints(part.tokens),
            table.values,
            part.write_from,
            _state(part.state),
            tuple([Cut(position, _ints(pages)) for position, pages in part.cuts]),
            sample,
            None if part.score is None else Score(_ints(part.score[0]), part.score[1]),
            part.pages.first,
            part.drafts,
        )


class _Array:
    """int32 values that grow at the end, or change from somewhere on; what was handed out never changes."""

    __slots__ = ("_buffer", "_count")

    def __init__(self) -> None:
        self._buffer: Ints = np.empty(64, np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Ints:
        return self._buffer[: self._count]

    def put(self, piece: Piece) -> None:
        values = _ints(piece.values)
        end = piece.first + len(values)
        if piece.first > self._count:
            raise msgspec.DecodeError(f"values from {piece.first} on, where only {self._count} are known")
        if piece.first < self._count or end > len(self._buffer):
            room = np.empty(max(end, len(self._buffer) if end <= len(self._buffer) else 2 * end), np.int32)
            room[: piece.first] = self._buffer[: piece.first]
            self._buffer = room
        self._buffer[piece.first : end] = values
        self._count = end


def write_result(result: StepResult) -> bytes:
    logits = tuple((i, row.tobytes()) for i, row in result.logits)
    return _ENCODER.encode(ResultMessage(result.sampled, result.errors, result.scores, result.target_scores, logits))


def read_result(data: bytes) -> StepResult:
    """Raises msgspec.DecodeError where bytes are no result."""
    m = _RESULTS.decode(data)
    logits = tuple((i, np.frombuffer(row, np.float32)) for i, row in m.logits)
    return StepResult(m.sampled, m.errors, m.scores, m.target_scores, logits)


def _part(work: Work) -> Part:
    sample, score = work.sample, work.score
    history = None if sample is None or sample.history is None else sample.history.tobytes()
    return Part(
        work.request_id,
        work.slot,
        work.root,
        work.start,
        work.tokens.tobytes(),
        Piece(0, work.known, work.pages[work.known :].tobytes()),
        work.write_from,
        work.state.pages.tobytes() if isinstance(work.state, FromImage) else int(isinstance(work.state, Carry)),
        [(cut.position, cut.pages.tobytes()) for cut in work.cuts],
        None if sample is None else (sample.params, sample.index, history, sample.keep_logits),
        None if score is None else (score.targets.tobytes(), score.top),
        work.drafts,
    )


def _state(state: int | bytes) -> StateStart:
    if isinstance(state, bytes):
        return FromImage(_ints(state))
    return Carry() if state == _CARRY else Fresh()


def _ints(data: bytes) -> Ints:
    return np.frombuffer(data, np.int32)
