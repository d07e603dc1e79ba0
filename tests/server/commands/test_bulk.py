"""`stepwell batch`: a file of calls, sent once each, however often the command is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepwell.cli import app
from stepwell.sched.request import MAX_PRIORITY
from tests.server.batches.test_batches import lines
from tests.server.harness import Running


def run(server: Running | None, *arguments: str) -> tuple[int, str]:
    url = [] if server is None else ["--url", server.url]
    done = CliRunner().invoke(app, ["batch", *arguments, *url])
    return done.exit_code, " ".join(done.output.split())


def test_answers_are_added_and_what_has_one_is_not_sent_again(server: Running, tmp_path: Path) -> None:
    source, target = tmp_path / "calls.jsonl", tmp_path / "calls.jsonl.out"
    source.write_bytes(lines(6))
    before = len(server.loop.seen)
    assert run(server, str(source))[0] == 0
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == [f"call-{i}" for i in range(6)]
    assert all(answer["response"]["body"]["usage"]["completion_tokens"] == 2 for answer in answers)
    assert len(server.loop.seen) == before + 6 and server.loop.seen[-1].priority == MAX_PRIORITY
    target.write_text("".join(f"{json.dumps(a)}\n" for a in answers[:4]) + '{"custom_id": "ca')  # stopped while writing
    assert run(server, str(source))[0] == 0
    again = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(server.loop.seen) == before + 8 and again[:4] == answers[:4] and len(again) == 6


def test_call_at_fault_is_told_in_its_place(server: Running, tmp_path: Path) -> None:
    source, target = tmp_path / "calls.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(1, top_p=7))
    assert run(server, str(source), "--output", str(target))[0] == 1
    assert json.loads(target.read_text())["response"]["status_code"] == 400


@pytest.mark.parametrize("text", ["{", "[1]", "{}", lines(1).decode() * 2])
def test_file_that_is_none_is_told(server: Running, tmp_path: Path, text: str) -> None:
    source = tmp_path / "calls.jsonl"
    source.write_text(text)
    status, said = run(server, str(source))
    assert status == 2 and "calls.jsonl" in said


def test_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    source = tmp_path / "calls.jsonl"
    source.write_bytes(lines(1))
    status, said = run(None, str(source), "--url", "http://127.0.0.1:9")
    assert status == 2 and "no server answers" in said
