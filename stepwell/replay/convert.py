"""Writing traces: our own form, the source form that other tools load, and Mooncake's.

All three tell prompts as block ids; no text gets into them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from stepwell.base.errors import ConfigError
from stepwell.base.units import ceil_div
from stepwell.replay.formats import HEADER, MOONCAKE_BLOCK, VERSION
from stepwell.replay.trace import MAX_BLOCK_ID, Conversation, Stream, Trace, Turn

FORMS = ("own", "source", "mooncake")
_Told: TypeAlias = dict[str, object]
_TurnOut: TypeAlias = Callable[[Turn], _Told]


def convert(trace: Trace, path: Path, form: str) -> str:
    """Write `trace` to `path` in one of `FORMS`; says what was written. Raises ConfigError."""
    if form not in FORMS:
        raise ConfigError(f"--convert-to {form!r} is unknown: use one of {', '.join(FORMS)}")
    try:
        if form == "source":
            write_source(trace.conversations, path)
        elif form == "mooncake":
            write_mooncake(trace, path)
        else:
            write_trace(trace, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
    return f"{trace.requests:,} requests of {len(trace.conversations):,} conversations written to {path}"


def write_trace(trace: Trace, path: Path) -> None:
    """Write our own form; gzipped where `path` ends in .gz. The same trace gives the same bytes."""
    header: _Told = {HEADER: VERSION, "open_loop": trace.open_loop}
    _write_lines([header, *(_conversation(c) for c in trace.conversations)], path)


def write_source(conversations: Iterable[Conversation], folder: Path) -> None:
    """Write one JSON file a conversation into `folder`, ids written out. Raises ConfigError where one is no tree."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, conversation in enumerate(conversations):
        if not _is_tree(conversation):
            raise ConfigError(f"{conversation.id} is not one conversation: the source form cannot hold it; use own")
        streams = tuple(_within_first_prompt(stream, conversation.block) for stream in conversation.streams)
        told = _nested(replace(conversation, streams=streams), 0, _written_out, {"models": ["unknown"]})
        record = {"id": conversation.id, "block_size": conversation.block}
        record |= {"hash_id_scope": "local", **told}
        (folder / f"conversation_{number:05d}.json").write_text(json.dumps(record, separators=(",", ":")))


def write_mooncake(trace: Trace, path: Path) -> None:
    """Write single requests at their recorded times, in blocks of 512 tokens whose ids are global.

    Raises ConfigError where 512 is not a multiple of the trace's block.
    """
    ids: dict[tuple[str, int, tuple[int, ...]], int] = {}
    lines: list[tuple[float, _Told]] = []
    for conversation in trace.conversations:
        if MOONCAKE_BLOCK % conversation.block:
            raise ConfigError(f"blocks of {conversation.block} tokens do not make up Mooncake's {MOONCAKE_BLOCK}")
        for stream in conversation.streams:
            for turn in stream.turns:
                when = round(1000 * (stream.start + turn.time))
                told = {"input_length": turn.prompt, "output_length": turn.output}
                blocks = _global_blocks(conversation, turn, ids, len(lines))
                lines.append((when, {"timestamp": when, **told, "hash_ids": blocks}))
    if len(ids) > MAX_BLOCK_ID:
        raise ConfigError(f"the trace has more than {MAX_BLOCK_ID:,} different blocks: convert a part of it")
    _write_lines([line for _, line in sorted(lines, key=lambda pair: pair[0])], path)


def _global_blocks(
    conversation: Conversation, turn: Turn, ids: dict[tuple[str, int, tuple[int, ...]], int], number: int
) -> list[int]:
    """Global ids of the 512-token blocks of a prompt; a last one that is not whole is this request's own."""
    told, per = turn.ids().tolist(), MOONCAKE_BLOCK // conversation.block
    out: list[int] = []
    for i in range(ceil_div(turn.prompt, MOONCAKE_BLOCK)):
        part = tuple(told[i * per : (i + 1) * per])
        whole = (i + 1) * MOONCAKE_BLOCK <= turn.prompt and len(part) == per
        key = (conversation.id, out[-1] if out else -1, part if whole else (-1, number))
        out.append(ids.setdefault(key, len(ids)))
    return out


def _write_lines(records: Sequence[_Told], path: Path) -> None:
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _is_tree(conversation: Conversation) -> bool:
    """One root that starts at 0, and nothing else without a parent."""
    parents = [stream.parent for stream in conversation.streams]
    return parents[0] is None and conversation.streams[0].start == 0 and None not in parents[1:]


def _conversation(conversation: Conversation) -> _Told:
    head: _Told = {"id": conversation.id, "block_size": conversation.block}
    if _is_tree(conversation):
        return head | _nested(conversation, 0, _run_length, {})
    return head | {"streams": [_flat(stream) for stream in conversation.streams]}


def _within_first_prompt(stream: Stream, block: int) -> Stream:
    """`stream` with no more tools and system prompt than its first prompt has whole blocks before its last token.

    Who replays the source form makes them up from those blocks, and refuses a folder in which one falls short.
    """
    if not stream.turns:
        return stream
    room = (stream.turns[0].prompt - 1) // block * block
    tools = min(stream.tool_tokens, room)
    return replace(stream, tool_tokens=tools, system_tokens=min(stream.system_tokens, room - tools))


def _flat(stream: Stream) -> _Told:
    return {
        "start": stream.start,
        "parent": stream.parent,
        "tool_tokens": stream.tool_tokens,
        "system_tokens": stream.system_tokens,
        "requests": [_run_length(turn) for turn in stream.turns],
    }


def _nested(conversation: Conversation, index: int, turn_out: _TurnOut, more: _Told) -> _Told:
    """A stream with its sub-agents inside; `more` goes with each of them."""
    stream = conversation.streams[index]
    items: list[tuple[float, _Told]] = [(t.time, turn_out(t)) for t in stream.turns]
    for i, child in enumerate(conversation.streams):
        if child.parent == index:
            offset = child.start - stream.start
            agent: _Told = {"t": offset, "type": "subagent", "agent_id": f"agent_{i}", "subagent_type": "agent"}
            agent["status"] = "completed"
            items.append((offset, agent | _nested(conversation, i, turn_out, more)))
    requests = [item for _, item in sorted(items, key=lambda pair: pair[0])]
    return {"tool_tokens": stream.tool_tokens, "system_tokens": stream.system_tokens, **more, "requests": requests}


def _run_length(turn: Turn) -> _Told:
    return {"t": turn.time, "in": turn.prompt, "out": turn.output, "think_time": turn.think, "runs": turn.runs}


def _written_out(turn: Turn) -> _Told:
    ids: list[int] = np.asarray(turn.ids()).tolist()
    told = {"t": turn.time, "type": "n", "model": "unknown", "in": turn.prompt, "out": turn.output, "hash_ids": ids}
    return told | {"input_types": ["text"], "output_types": ["text"], "stop": "end_turn", "think_time": turn.think}
