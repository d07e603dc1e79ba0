"""Trace files: the forms that are read. `docs/traces.md` describes them field by field.

* **own** (what `convert.write_trace` writes): JSON lines, one conversation a line, block ids as `runs`; sub-agents nested
  in `requests`, or all streams side by side in `streams`; a first line may say that requests have times of their own;
* **source**: one conversation a JSON file (or line), a prompt's ids written out as `hash_ids`; a folder holds one
  file each;
* **Mooncake**: JSON lines of single requests with `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of
  512-token blocks;
* **calls**: JSON lines of requests as clients of three APIs send them, see `stepwell.replay.calls`.

Plain or gzipped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepwell.base.errors import ConfigError
from stepwell.base.units import ceil_div
from stepwell.replay.calls import Calls, is_call
from stepwell.replay.records import MAX_REQUESTS, Record, read_lines, read_whole
from stepwell.replay.trace import (
    MAX_BLOCK,
    MAX_BLOCK_ID,
    MAX_SECONDS,
    MAX_TOKENS,
    Conversation,
    Run,
    Stream,
    Trace,
    Turn,
    runs_of,
)

VERSION = 1
"""Of our own form."""
HEADER = "stepwell_trace"
MAX_DEPTH = 8
"""Sub-agents within sub-agents."""
MOONCAKE_BLOCK = 512
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


def _files_in(folder: Path) -> list[Path]:
    files = sorted(f for f in folder.iterdir() if f.name.endswith(_JSON + _LINES))
    if not files:
        raise ConfigError(f"{folder} holds no .json or .jsonl file (or .gz)")
    return files


def _read_file(path: Path) -> Trace:
    if path.name.endswith(_JSON):
        return Trace((_conversation(read_whole(path)),))
    conversations: list[Conversation] = []
    singles: list[Stream] = []
    calls = Calls(path.name)
    open_loop = False
    for number, record in enumerate(read_lines(path)):
        if HEADER in record.fields and number == 0:
            open_loop = _header(record)
        elif "input_length" in record.fields:
            singles.append(_single(record))
        elif is_call(record):
            calls.add(record)
        else:
            conversations.append(_conversation(record))
        if bool(singles) + bool(calls) + bool(conversations) > 1:
            raise ConfigError(f"{record.where}: conversations and single requests in one file; split it")
        if number >= MAX_REQUESTS:
            raise ConfigError(f"{record.where}: more than {MAX_REQUESTS:,} lines: split the file")
    if singles:
        singles.sort(key=lambda stream: stream.start)
        return Trace((Conversation(path.name, MOONCAKE_BLOCK, tuple(singles)),), open_loop=True)
    return calls.trace() if calls else Trace(tuple(conversations), open_loop)


def _header(record: Record) -> bool:
    """Whether the requests of a file in our own form have times of their own."""
    record.whole(HEADER, VERSION, VERSION)
    open_loop = record.fields.get("open_loop", False)
    if not isinstance(open_loop, bool):
        raise record.fail("open_loop", "true or false")
    return open_loop


def _single(record: Record) -> Stream:
    prompt = record.whole("input_length", 1, MAX_TOKENS)
    runs = _from_ids(record, prompt, MOONCAKE_BLOCK)
    turn = Turn(0.0, prompt, record.whole("output_length", 0, MAX_TOKENS), 0.0, runs)
    return Stream(record.number("timestamp", 1000 * MAX_SECONDS) / 1000, (turn,))


def _conversation(record: Record) -> Conversation:
    name = record.fields.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= 512:
        raise record.fail("id", "a text of 1 to 512 characters")
    block = record.whole("block_size", 1, MAX_BLOCK, 64)
    if "streams" in record.fields:
        return Conversation(name, block, _side_by_side(record, block))
    streams: list[Stream] = []
    _collect(record, block, 0.0, None, streams, 0)
    return Conversation(name, block, tuple(streams))


def _side_by_side(record: Record, block: int) -> tuple[Stream, ...]:
    """Streams that name their parents by number."""
    streams: list[Stream] = []
    for told in record.records("streams", "stream"):
        parent = None
        if told.fields.get("parent") is not None:
            parent = told.whole("parent", 0, len(streams) - 1)
        turns = _turns(told.records("requests"), block)
        start = told.number("start", MAX_SECONDS, 0.0)
        streams.append(Stream(start, turns, *_head(told), parent))
    return tuple(streams)


def _collect(record: Record, block: int, start: float, parent: int | None, out: list[Stream], depth: int) -> None:
    """Append the stream of `record` to `out`, then its sub-agents; their times are told from their own start."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"{record.where}: sub-agents nested deeper than {MAX_DEPTH}")
    items = record.records("requests")
    agents = [item for item in items if item.fields.get("subagent") is True or item.fields.get("type") == "subagent"]
    nested = {id(agent) for agent in agents}
    turns = _turns([item for item in items if id(item) not in nested], block)
    index = len(out)
    out.append(Stream(start, turns, *_head(record), parent))
    for agent in agents:
        _collect(agent, block, start + agent.number("t", MAX_SECONDS), index, out, depth + 1)


def _head(record: Record) -> tuple[int, int]:
    return record.whole("tool_tokens", 0, MAX_TOKENS, 0), record.whole("system_tokens", 0, MAX_TOKENS, 0)


def _turns(records: list[Record], block: int) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    answered = 0.0
    for time, record in sorted(((r.number("t", MAX_SECONDS), r) for r in records), key=lambda pair: pair[0]):
        prompt = record.whole("in", 1, MAX_TOKENS)
        think = record.number("think_time", MAX_SECONDS, max(0.0, time - answered) if turns else 0.0)
        output = record.whole("out", 0, MAX_TOKENS)
        turns.append(Turn(time, prompt, output, think, _runs(record, prompt, block)))
        answered = time + record.number("api_time", MAX_SECONDS, 0.0)
    return tuple(turns)


def _runs(record: Record, prompt: int, block: int) -> tuple[Run, ...]:
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


def _from_ids(record: Record, prompt: int, block: int) -> tuple[Run, ...]:
    value = record.fields.get("hash_ids")
    if not isinstance(value, list) or not all(type(x) is int and 0 <= x < MAX_BLOCK_ID for x in value):
        raise record.fail("hash_ids", f"a list of whole numbers from 0 to {MAX_BLOCK_ID - 1}")
    return _covering(record, "hash_ids", runs_of(np.asarray(value, np.int64)), prompt, block)


def _covering(record: Record, name: str, runs: tuple[Run, ...], prompt: int, block: int) -> tuple[Run, ...]:
    blocks = sum(count for _, count in runs)
    if not prompt // block <= blocks <= ceil_div(prompt, block):
        raise ConfigError(
            f"{record.where}: `{name}` names {blocks} blocks, but a prompt of {prompt} tokens has {prompt // block}"
            f" whole ones of {block} tokens: check `block_size`"
        )
    return runs
