"""What a front end and its engine process say to each other: msgpack, typed, bounded by what the receiver declares.

front end ──Submit · Abort · Explain · Expect · Reset · Pin · Prefetch · Stop──▶ engine
front end ◀──Starting · Ready · Alive · Batch · Explained · Expected · WasReset · Pinned · Fetched · Dead─── engine

Batch = [Accepted | Rejected | Loads | Admitted | Tokens | Finished …] + Stats
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np

from stepwell.base.errors import CapacityError, RequestError, StepwellError
from stepwell.cache.reuse.explain import Explanation, Ladder
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.engine.config import EngineConfig, EngineFacts
from stepwell.sched import request as sched
from stepwell.sched.outlook import Outlook
from stepwell.sched.retention import Prefetched, Subject


class Start(msgspec.Struct):
    """The first line that an engine process reads. `factory` is "module:function"; `directory` holds the sockets."""

    config: EngineConfig
    factory: str
    directory: str
    log_level: int
    log_format: str = "text"


class Submit(msgspec.Struct, tag="submit", array_like=True):
    """A request; the prompt is int32 in native order."""

    id: str
    prompt: bytes
    params: sched.SamplingParams
    salt: str
    read_cache: bool
    write_cache: bool
    session: str | None
    priority: int = 0
    places: tuple[int, ...] = ()


class Abort(msgspec.Struct, tag="abort", array_like=True):
    """Forget these requests."""

    ids: list[str]


class Explain(msgspec.Struct, tag="explain", array_like=True):
    """Tell what this prompt would get if it came now; the answer carries the same number."""

    number: int
    prompt: bytes
    salt: str
    read_cache: bool


class Expect(msgspec.Struct, tag="expect", array_like=True):
    """Tell how soon this prompt would have its first token if it came now; the answer carries the same number."""

    number: int
    prompt: bytes
    salt: str
    read_cache: bool


class Reset(msgspec.Struct, tag="reset", array_like=True):
    """Drop what nobody holds, under one salt or (None) under all; the answer carries the same number."""

    number: int
    salt: str | None


class About(msgspec.Struct, array_like=True):
    """A prompt, int32 in native order."""

    salt: str
    prompt: bytes


class Pin(msgspec.Struct, tag="pin", array_like=True):
    """Let what is cached of this go last for so many seconds; None: no longer."""

    number: int
    about: About
    seconds: float | None


class Prefetch(msgspec.Struct, tag="prefetch", array_like=True):
    """Bring this to the device."""

    number: int
    about: About


class Watch(msgspec.Struct, tag="watch", array_like=True):
    """Show the ladders of so many paths that were used last, of one owner's salts or ("") of all."""

    number: int
    count: int
    owner: str


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """End the process. What is worth it may be written to disk first, for so many seconds."""

    seconds: float = 0.0


Command: TypeAlias = Submit | Abort | Explain | Expect | Reset | Pin | Prefetch | Watch | Stop


class Accepted(msgspec.Struct, tag="accepted", array_like=True):
    """The loop has taken the request: events will follow."""

    id: str


class Rejected(msgspec.Struct, tag="rejected", array_like=True):
    """The loop has refused the request: nothing will follow. `needed` is set where it can never fit."""

    id: str
    message: str
    param: str | None = None
    needed: int | None = None
    available: int = 0


class Loads(msgspec.Struct, tag="loads", array_like=True):
    """`at` here and below: seconds of the machine's monotonic clock, which both processes read."""

    id: str
    at: float = 0.0


class Admitted(msgspec.Struct, tag="admitted", array_like=True):
    id: str
    outcome: AdmissionOutcome
    at: float = 0.0


class Tokens(msgspec.Struct, tag="tokens", array_like=True, omit_defaults=True, gc=False):
    """`scores` and `prompt_scores` are empty unless they were asked for. So many, and in no cycles: not for the collector."""

    id: str
    tokens: list[int]
    scores: list[sched.Scored] = []
    prompt_scores: list[sched.Scored] = []
    prompt_from: int = 0


class Finished(msgspec.Struct, tag="finished", array_like=True):
    id: str
    reason: sched.FinishReason
    message: str


WireEvent: TypeAlias = Accepted | Rejected | Loads | Admitted | Tokens | Finished


class Stats(msgspec.Struct, frozen=True):
    """The engine at one moment.

    queues    requests by phase
    pages     by tier, then state
    gauges    other numbers that go up and down
    counters  numbers that only grow
    copied    bytes by source and target, in the order of `stepwell.engine.process.stats.COPIES`
    joint     how joint loads went, on one line
    prefetches  that have ended, by what became of them
    drafts    computed, and accepted, for the first position behind a drawn token, the second …
    compiled  kernels by when: `start` or `serving`
    event_batches  of cache events: sent, dropped
    device_bytes  of a GPU's memory: `planned` and `peak`; empty without one
    disk      what the disk store counts, by name; empty without one
    problems  what has stopped it from writing, and how often
    prefill   prompt tokens a second, and seconds that each pair of tokens adds in attention; zeros where nothing is known
    ranks     what is counted of each process that shares the model, by name; empty where there is one
    """

    queues: dict[str, int] = {}
    pages: dict[str, dict[str, int]] = {}
    gauges: dict[str, int] = {}
    counters: dict[str, float] = {}
    copied: list[int] = []
    joint: str = ""
    prefetches: dict[str, int] = {}
    drafts: list[tuple[int, int]] = []
    compiled: dict[str, int] = {}
    event_batches: dict[str, int] = {}
    device_bytes: dict[str, int] = {}
    disk: dict[str, float] = {}
    problems: dict[str, int] = {}
    prefill: tuple[float, float] = (0.0, 0.0)
    ranks: list[dict[str, float]] = []


class Starting(msgspec.Struct, tag="starting", array_like=True):
    """What the start has come to."""

    phase: str


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """The engine is built and serves."""

    facts: EngineFacts


class Alive(msgspec.Struct, tag="alive", array_like=True, gc=False):
    """The process runs; its loop has been in one turn for so many seconds, 0 while it waits."""

    turn_s: float = 0.0


class Batch(msgspec.Struct, tag="batch", array_like=True):
    """Everything that one turn of the loop had to say, in order."""

    events: list[WireEvent]
    stats: Stats | None = None


class Explained(msgspec.Struct, tag="explained", array_like=True):
    number: int
    explanation: Explanation


class Expected(msgspec.Struct, tag="expected", array_like=True):
    number: int
    outlook: Outlook


class WasReset(msgspec.Struct, tag="was_reset", array_like=True):
    """`freed` pages by tier."""

    number: int
    freed: dict[str, int]


class Pinned(msgspec.Struct, tag="pinned", array_like=True):
    """`tokens` are pinned, or were until now."""

    number: int
    tokens: int


class Fetched(msgspec.Struct, tag="fetched", array_like=True):
    number: int
    done: Prefetched


class Watched(msgspec.Struct, tag="watched", array_like=True):
    number: int
    ladders: tuple[Ladder, ...]


class Dead(msgspec.Struct, tag="dead", array_like=True):
    """The loop has ended; nothing will follow."""

    reason: str


Answer: TypeAlias = (
    Starting | Ready | Alive | Batch | Explained | Expected | WasReset | Pinned | Fetched | Watched | Dead
)

_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command)
_answers = msgspec.msgpack.Decoder(Answer)


def encode(message: Command | Answer) -> bytes:
    return _encoder.encode(message)


def decode_command(data: bytes) -> Command:
    """Raises msgspec.DecodeError where `data` is no command."""
    return _commands.decode(data)


def decode_answer(data: bytes) -> Answer:
    """Raises msgspec.DecodeError where `data` is no answer."""
    return _answers.decode(data)


def submit_of(request: sched.Request) -> Submit:
    prompt = np.ascontiguousarray(request.prompt, dtype=np.int32).tobytes()
    return Submit(
        request.id,
        prompt,
        request.params,
        request.salt,
        request.read_cache,
        request.write_cache,
        request.session,
        request.priority,
        request.places,
    )


def request_of(message: Submit) -> sched.Request:
    prompt = np.frombuffer(message.prompt, dtype=np.int32)
    return sched.Request(
        message.id,
        prompt,
        message.params,
        message.salt,
        message.read_cache,
        message.write_cache,
        message.session,
        priority=message.priority,
        places=message.places,
    )


def about(subject: Subject) -> About:
    return About(subject.salt, np.ascontiguousarray(subject.prompt, dtype=np.int32).tobytes())


def wire_event(event: sched.Event) -> WireEvent:
    match event:
        case sched.Tokens():  # for every token: no field is looked up twice, no list made for nothing
            if not event.scores and not event.prompt_scores:
                return Tokens(event.request_id, list(event.tokens))
            scores, prompt_scores = list(event.scores), list(event.prompt_scores)
            return Tokens(event.request_id, list(event.tokens), scores, prompt_scores, event.prompt_from)
        case sched.Loads(request_id, at):
            return Loads(request_id, at)
        case sched.Admitted(request_id, outcome, at):
            return Admitted(request_id, outcome, at)
        case sched.Finished(request_id, reason, message):
            return Finished(request_id, reason, message)


def rejection(request_id: str, error: StepwellError) -> Rejected:
    match error:
        case RequestError():
            return Rejected(request_id, str(error), error.param)
        case CapacityError():
            return Rejected(request_id, str(error), None, error.needed, error.available)
        case _:
            return Rejected(request_id, str(error))


def rejection_error(message: Rejected) -> StepwellError:
    """The error that `rejection` was made from."""
    if message.needed is not None:
        return CapacityError(message.message, message.needed, message.available)
    return RequestError(message.message, message.param)
