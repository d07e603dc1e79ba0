"""Trace files: reading three forms, writing one.

* **run-length** (ours, and what `write_trace` writes): JSON lines, one conversation a line; a prompt's ids as `runs`;
* **source**: one conversation a JSON file (or line), a prompt's ids written out as `hash_ids`; a folder holds one
  file each;
* **Mooncake**: JSON lines of single requests with `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of
  512-token blocks.

Plain or gzipped. A file is input like any other: lines, counts and numbers are bounded, and an error names file, line
and field.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from stepwell.base.errors import ConfigError
from stepwell.base.units import ceil_div
from stepwell.replay.trace import Conversation, Run, Stream, Trace, Turn

MAX_LINE = 256 * 2**20
"""Bytes of one line, or of one JSON file."""
MAX_TOKENS = 2**26
"""Tokens of one prompt or answer."""
MAX_BLOCK_ID = 2**24
MAX_BLOCK = 2**16
MAX_SECONDS = 1e9
MAX_REQUESTS = 5_000_000
MAX_DEPTH = 8
"""Sub-agents within sub-agents."""
_MOONCAKE_BLOCK = 512
_JSON = (".json", ".json.gz")
_LINES = (".jsonl", ".jsonl.gz")


def read_trace(path: Path) -> Trace:
    """The trace at `path`: a file in any of the forms, or a folder of them. Raises ConfigError."""
    if not path.exists():
        raise ConfigError(
            f"there is no trace at {path}: give a .json or .jsonl file (or .gz), a folder of them, or `synthetic`"
        )
    files = _files_in(path) if path.is_dir() else [path]
    conversations: list[Conversation] = []
    for file in files:
        trace = _read_file(file)
        if trace.open_loop and len(files) > 1:
            raise ConfigError(
                f"{file} holds single requests with times of their own: replay it by itself, not in a folder"
            )
        if trace.open_loop:
            return trace
        conversations += trace.conversations
        if sum(c.requests for c in conversations) > MAX_REQUESTS:
            raise ConfigError(f"{path} holds more than {MAX_REQUESTS:,} requests: split it")
    if not conversations:
        raise ConfigError(f"{path} holds no conversation")
    return Trace(tuple(conversations))


def write_trace(conversations: Iterable[Conversation], path: Path) -> None:
    """Write the run-length form; gzipped where `path` ends in .gz. The same conversations give the same bytes."""
    text = "".join(json.dumps(_conversation_out(c), separators=(",", ":")) + "\n" for c in conversations).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


@dataclass(frozen=True, slots=True)
class _Record:
    """A JSON object and where it stands, for messages."""

    fields: dict[str, Any]
    where: str

    def fail(self, name: str, wanted: str) -> ConfigError:
        found = "missing" if name not in self.fields else f"not {str(self.fields[name])[:40]}"
        return ConfigError(f"{self.where}: `{name}` must be {wanted}, {found}")

    def number(self, name: str, high: float, default: float | None = None) -> float:
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
            raise self.fail(name, f"a number from 0 to {high:g}")
        return float(value)

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(name, f"a whole number from {low} to {high}")
        return value

    def records(self, name: str) -> list[_Record]:
        value = self.fields.get(name)
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_REQUESTS:
            raise self.fail(name, "a list of at least one request")
        return [_record(item, f"{self.where}, {name}[{i}]") for i, item in enumerate(value)]


def _record(value: object, where: str) -> _Record:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a JSON object, not {str(value)[:40]}")
    return _Record(value, where)


def _files_in(folder: Path) -> list[Path]:
    files = sorted(f for f in folder.iterdir() if f.name.endswith(_JSON + _LINES))
    if not files:
        raise ConfigError(f"{folder} holds no .json or .jsonl file (or .gz)")
    return files


def _read_file(path: Path) -> Trace:
    if path.name.endswith(_JSON):
        with _opened(path) as file:
            return Trace((_conversation(_parse(_bounded(file.read(MAX_LINE + 1), str(path)), str(path))),))
    conversations: list[Conversation] = []
    singles: list[Stream] = []
    for record in _lines(path):
        if "input_length" in record.fields:
            singles.append(_single(record))
        else:
            conversations.append(_conversation(record))
        if singles and conversations:
            raise ConfigError(f"{record.where}: conversations and single requests in one file; split it")
        if len(singles) + len(conversations) > MAX_REQUESTS:
            raise ConfigError(f"{record.where}: more than {MAX_REQUESTS:,} lines: split the file")
    if singles:
        singles.sort(key=lambda stream: stream.start)
        return Trace((Conversation(path.name, _MOONCAKE_BLOCK, tuple(singles)),), open_loop=True)
    return Trace(tuple(conversations))


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked; trouble in reading is the file's fault."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _lines(path: Path) -> Iterator[_Record]:
    with _opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if line.strip():
                where = f"{path} line {number}"
                yield _parse(_bounded(line, where), where)


def _bounded(data: bytes, where: str) -> bytes:
    if len(data) > MAX_LINE:
        raise ConfigError(f"{where}: longer than {MAX_LINE // 2**20} MiB; one conversation must fit in that")
    return data


def _parse(data: bytes, where: str) -> _Record:
    try:
        return _record(json.loads(data), where)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error


def _single(record: _Record) -> Stream:
    prompt = record.whole("input_length", 1, MAX_TOKENS)
    runs = _from_ids(record, prompt, _MOONCAKE_BLOCK)
    turn = Turn(0.0, prompt, record.whole("output_length", 0, MAX_TOKENS), 0.0, runs)
    return Stream(record.number("timestamp", 1000 * MAX_SECONDS) / 1000, (turn,))


def _conversation(record: _Record) -> Conversation:
    name = record.fields.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= 512:
        raise record.fail("id", "a text of 1 to 512 characters")
    block = record.whole("block_size", 1, MAX_BLOCK, 64)
    streams: list[Stream] = []
    _collect(record, block, 0.0, None, streams, 0)
    return Conversation(name, block, tuple(streams))


def _collect(record: _Record, block: int, start: float, parent: int | None, out: list[Stream], depth: int) -> None:
    """Append the stream of `record` to `out`, then its sub-agents; their times are told from their own start."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"{record.where}: sub-agents nested deeper than {MAX_DEPTH}")
    items = record.records("requests")
    agents = [item for item in items if item.fields.get("subagent") is True or item.fields.get("type") == "subagent"]
    nested = {id(agent) for agent in agents}
    turns = _turns([item for item in items if id(item) not in nested], block)
    tools, system = record.whole("tool_tokens", 0, MAX_TOKENS, 0), record.whole("system_tokens", 0, MAX_TOKENS, 0)
    index = len(out)
    out.append(Stream(start, turns, tools, system, parent))
    for agent in agents:
        _collect(agent, block, start + agent.number("t", MAX_SECONDS), index, out, depth + 1)


def _turns(records: list[_Record], block: int) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    answered = 0.0
    for time, record in sorted(((r.number("t", MAX_SECONDS), r) for r in records), key=lambda pair: pair[0]):
        prompt = record.whole("in", 1, MAX_TOKENS)
        think = record.number("think_time", MAX_SECONDS, max(0.0, time - answered) if turns else 0.0)
        output = record.whole("out", 0, MAX_TOKENS)
        turns.append(Turn(time, prompt, output, think, _runs(record, prompt, block)))
        answered = time + record.number("api_time", MAX_SECONDS, 0.0)
    return tuple(turns)


def _runs(record: _Record, prompt: int, block: int) -> tuple[Run, ...]:
    if "runs" not in record.fields:
        return _from_ids(record, prompt, block)
    value = record.fields["runs"]
    if not isinstance(value, list) or not all(_is_run(run) for run in value):
        raise record.fail("runs", f"a list of [first_id, count] pairs, ids below {MAX_BLOCK_ID}")
    runs = tuple((first, count) for first, count in value)
    return _covering(record, "runs", runs, prompt, block)


def _is_run(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int or type(value[1]) is not int:
        return False
    first, count = value
    return bool(first >= 0 and count >= 1 and first + count <= MAX_BLOCK_ID)


def _from_ids(record: _Record, prompt: int, block: int) -> tuple[Run, ...]:
    value = record.fields.get("hash_ids")
    if not isinstance(value, list) or not all(type(x) is int and 0 <= x < MAX_BLOCK_ID for x in value):
        raise record.fail("hash_ids", f"a list of whole numbers from 0 to {MAX_BLOCK_ID - 1}")
    ids = np.asarray(value, np.int64)
    starts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
    counts = np.diff(starts, append=len(ids))
    runs = tuple(zip(ids[starts].tolist(), counts.tolist(), strict=True))
    return _covering(record, "hash_ids", runs, prompt, block)


def _covering(record: _Record, name: str, runs: tuple[Run, ...], prompt: int, block: int) -> tuple[Run, ...]:
    blocks = sum(count for _, count in runs)
    if not prompt // block <= blocks <= ceil_div(prompt, block):
        raise ConfigError(
            f"{record.where}: `{name}` names {blocks} blocks, but a prompt of {prompt} tokens has {prompt // block}"
            f" whole ones of {block} tokens: check `block_size`"
        )
    return runs


def _conversation_out(conversation: Conversation) -> dict[str, object]:
    return {"id": conversation.id, "block_size": conversation.block, **_stream_out(conversation, 0)}


def _stream_out(conversation: Conversation, index: int) -> dict[str, object]:
    stream = conversation.streams[index]
    items: list[tuple[float, dict[str, object]]] = [
        (t.time, {"t": t.time, "in": t.prompt, "out": t.output, "think_time": t.think, "runs": t.runs})
        for t in stream.turns
    ]
    for i, child in enumerate(conversation.streams):
        if child.parent == index:
            offset = child.start - stream.start
            items.append((offset, {"t": offset, "subagent": True, **_stream_out(conversation, i)}))
    requests = [item for _, item in sorted(items, key=lambda pair: pair[0])]
    return {"tool_tokens": stream.tool_tokens, "system_tokens": stream.system_tokens, "requests": requests}
