"""Trace files: three forms read, one written, bad input refused with its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.convert import write_trace
from stepwell.replay.formats import read_trace
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.trace import MAX_BLOCK_ID

TURN = {"t": 0.0, "in": 130, "out": 5, "think_time": 0.0, "api_time": 2.0, "stop": "tool_use", "runs": [[1, 2]]}


def conversation(**changed: Any) -> dict[str, Any]:
    record: dict[str, Any] = {"id": "a", "block_size": 64, "tool_tokens": 40, "system_tokens": 20, "requests": [TURN]}
    return record | changed


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_run_length_form(tmp_path: Path) -> None:
    agent = {"t": 3.5, "subagent": True, "tool_tokens": 7, "system_tokens": 1, "requests": [TURN | {"runs": [[9, 2]]}]}
    second = TURN | {"t": 10.0, "in": 320, "think_time": 4.0, "runs": [[1, 2], [5, 3]]}
    trace = read_trace(written(tmp_path / "t.jsonl", conversation(requests=[TURN, agent, second])))
    (found,) = trace.conversations
    root, child = found.streams
    assert (found.id, found.block, trace.open_loop, found.requests) == ("a", 64, False, 3)
    assert (root.tool_tokens, root.system_tokens, root.start, root.parent) == (40, 20, 0.0, None)
    assert (child.start, child.parent, child.turns[0].runs) == (3.5, 0, ((9, 2),))
    assert [(t.time, t.prompt, t.output, t.think) for t in root.turns] == [(0.0, 130, 5, 0.0), (10.0, 320, 5, 4.0)]
    assert root.turns[1].ids().tolist() == [1, 2, 5, 6, 7]
    assert found.in_time_order() == [(0, 0), (1, 0), (0, 1)]


def test_source_form_says_the_same_as_the_run_length_form(tmp_path: Path) -> None:
    runs = [[1, 3], [7, 1], [4, 2]]
    ids = [1, 2, 3, 7, 4, 5]
    told = {key: value for key, value in TURN.items() if key != "runs"} | {"in": 400, "type": "s", "model": "m"}
    agent = {"type": "subagent", "t": 1, "agent_id": "x", "status": "done", "requests": [told | {"hash_ids": ids}]}
    source = conversation(requests=[told | {"hash_ids": ids}, agent], models=["m"], hash_id_scope="local")
    ours = conversation(
        requests=[told | {"runs": runs}, {"subagent": True, "t": 1, "requests": [told | {"runs": runs}]}]
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "one.json").write_text(json.dumps(source, indent=1))
    (folder / "two.json.gz").write_bytes(gzip.compress(json.dumps(source | {"id": "b"}).encode()))
    (folder / "notes.txt").write_text("not a trace")
    one, two = read_trace(folder).conversations
    assert (one,) == read_trace(written(tmp_path / "ours.jsonl", ours)).conversations
    assert (one.id, two.id) == ("a", "b")
    assert one.streams == two.streams


def test_mooncake_form_is_one_open_loop_of_single_requests(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 2500, "input_length": 600, "output_length": 9, "hash_ids": [0, 7]},
        {"timestamp": 0, "input_length": 512, "output_length": 3, "hash_ids": [0]},
    ]
    trace = read_trace(written(tmp_path / "m.jsonl", *lines))
    (found,) = trace.conversations
    assert trace.open_loop
    assert found.block == 512
    assert [(s.start, s.turns[0].prompt, s.turns[0].output, s.turns[0].runs) for s in found.streams] == [
        (0.0, 512, 3, ((0, 1),)),
        (2.5, 600, 9, ((0, 1), (7, 1))),
    ]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_what_is_written_reads_back_equal(tmp_path: Path, name: str) -> None:
    made = synthetic(6, seed=3, shape=Shape(scale=0.05, agents=0.1))
    assert any(len(c.streams) > 2 for c in made.conversations)
    write_trace(made, tmp_path / name)
    assert read_trace(tmp_path / name) == made
    first = (tmp_path / name).read_bytes()
    write_trace(made, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_missing_think_time_is_what_the_times_leave(tmp_path: Path) -> None:
    second = {"t": 10.0, "in": 130, "out": 5, "runs": [[1, 2]]}
    trace = read_trace(written(tmp_path / "t.jsonl", conversation(requests=[TURN, second])))
    assert trace.conversations[0].streams[0].turns[1].think == 8.0


def test_turns_are_put_in_the_order_of_their_times(tmp_path: Path) -> None:
    late, early = TURN | {"t": 9.0, "out": 1}, TURN | {"t": 1.0, "out": 2}
    trace = read_trace(written(tmp_path / "t.jsonl", conversation(requests=[late, early])))
    assert [turn.output for turn in trace.conversations[0].streams[0].turns] == [2, 1]


BAD_TURNS = [
    ({"in": -1}, "`in`"),
    ({"in": 10**12}, "`in`"),
    ({"in": True}, "`in`"),
    ({"in": 130.5}, "`in`"),
    ({"out": None}, "`out`"),
    ({"out": "7"}, "`out`"),
    ({"t": float("nan")}, "`t`"),
    ({"t": -3}, "`t`"),
    ({"think_time": float("inf")}, "`think_time`"),
    ({"runs": [[1, 0]]}, "`runs`"),
    ({"runs": [[-1, 2]]}, "`runs`"),
    ({"runs": [[MAX_BLOCK_ID, 2]]}, "`runs`"),
    ({"runs": [[1, 2, 3]]}, "`runs`"),
    ({"runs": [["1", 2]]}, "`runs`"),
    ({"runs": "1-2"}, "`runs`"),
    ({"runs": [[1, 9]]}, "check `block_size`"),
    ({"runs": [[1, 1]]}, "check `block_size`"),
]


@pytest.mark.parametrize(("changed", "message"), BAD_TURNS, ids=str)
def test_a_bad_field_is_named_with_its_place(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "t.jsonl", conversation(), conversation(requests=[TURN, TURN | changed]))
    with pytest.raises(ConfigError, match=message) as error:
        read_trace(path)
    assert f"{path} line 2, requests[1]" in str(error.value)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (conversation(id=3), "`id`"),
        (conversation(block_size=0), "`block_size`"),
        (conversation(requests=[]), "`requests`"),
        (conversation(requests=[3]), "expected a JSON object"),
        ([1], "expected a JSON object"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0.5]}, "`hash_ids`"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [MAX_BLOCK_ID]}, "`hash_ids`"),
        ({"timestamp": 0, "input_length": 5000, "output_length": 1, "hash_ids": [1]}, "check `block_size`"),
    ],
)
def test_a_bad_line_is_refused(tmp_path: Path, record: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(written(tmp_path / "t.jsonl", record))


def test_sub_agents_may_not_nest_for_ever(tmp_path: Path) -> None:
    record: dict[str, Any] = {"t": 0, "subagent": True, "requests": [TURN]}
    for _ in range(20):
        record = {"t": 0, "subagent": True, "requests": [record]}
    with pytest.raises(ConfigError, match="nested deeper"):
        read_trace(written(tmp_path / "t.jsonl", conversation(requests=[record])))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.jsonl", b"{", "line 1: not JSON"),
        ("t.jsonl", b"\n\n" + b"[" * 100_000, "line 3: not JSON"),
        ("t.jsonl", b"\xff\xfe{}", "line 1: not JSON"),
        ("t.json", b"", "not JSON"),
        ("t.jsonl", b"", "holds no conversation"),
        ("t.jsonl.gz", gzip.compress(json.dumps(conversation()).encode())[:-20], "cannot read"),
        ("t.jsonl.gz", b"\x1f\x8b" + b"\xff" * 100, "cannot read"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        read_trace(tmp_path / name)


def test_a_line_may_not_be_endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.replay.records.MAX_LINE", 100)
    with pytest.raises(ConfigError, match="line 1: longer than"):
        read_trace(written(tmp_path / "t.jsonl", conversation()))


def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no trace at"):
        read_trace(tmp_path / "nowhere.jsonl")
    with pytest.raises(ConfigError, match=r"holds no \.json"):
        read_trace(tmp_path)


def test_single_requests_do_not_mix_with_conversations(tmp_path: Path) -> None:
    single = {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}
    with pytest.raises(ConfigError, match="split it"):
        read_trace(written(tmp_path / "t.jsonl", conversation(), single))
    written(tmp_path / "t.jsonl", conversation())
    written(tmp_path / "u.jsonl", single)
    with pytest.raises(ConfigError, match="replay it by itself"):
        read_trace(tmp_path)
