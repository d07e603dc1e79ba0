"""Real coding agents on the real server: Claude Code, Codex, opencode, aider, Cline and Continue, headless, over turns of several steps.

bench/real_agents.sh runs it in a network namespace with loopback alone. The model is scripted (`bench/scripted_engine.py`); HTTP, chat
template, tokens, scheduler and cache are the real ones. A step is listed with the tokens of its prompt that had been computed
before and were computed again. Prints a table for each program, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from agent_scripts import PROGRAMS, Program
from recorder import Recorder
from rich.console import Console
from rich.table import Table

from stepwell.testing.agents import TEMPLATE, forgetful, thoughtless, write_agent_tokenizer

HERE = Path(__file__).parent
_SERVER = """
import sys
from pathlib import Path
from rich.console import Console
from stepwell.engine.config import EngineConfig
from stepwell.server.read.names import ServedNames
from stepwell.server.commands.options import ServeOptions
from stepwell.server.commands.serve import serve
model, port, longest = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = EngineConfig(model, served_model_name="q35", max_model_len=longest, max_num_seqs=8)
names = ServedNames("q35", any_name=True)
sys.exit(serve(ServeOptions(config, port=port, names=names, factory="scripted_engine:build"), Console()))
"""
_UPSTREAM, _PORT = 8124, 8123


async def play(program: Program, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run one program's turns against a server of its own; the records of its calls."""
    template = forgetful(TEMPLATE) if options.forgetful else TEMPLATE
    model = write_agent_tokenizer(
        _made(folder / "model"), template=thoughtless(template) if options.no_thinking else template
    )
    environment = os.environ | {"PYTHONPATH": f"{HERE.parent}:{HERE}", "HOME": str(_made(folder / "home"))}
    command = [sys.executable, "-c", _SERVER, str(model), str(_UPSTREAM), str(program.context)]
    log = (folder / "server.log").open("w")
    recorder = Recorder(
        f"http://127.0.0.1:{_UPSTREAM}", model, program.script(), _made(folder / "raw"), options.no_thinking
    )
    config = uvicorn.Config(recorder, port=_PORT, lifespan="off", log_config=None, access_log=False)  # type: ignore[arg-type]
    front = uvicorn.Server(config)
    serving = asyncio.create_task(front.serve())
    with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server:
        try:
            await _ready(_UPSTREAM)
            await _run_turns(program, options, folder, environment, recorder)
        finally:
            front.should_exit = True
            await serving
            server.terminate()
    return _with_ledger(recorder.asked, model / "ledger.jsonl")


async def _run_turns(
    program: Program, options: argparse.Namespace, folder: Path, environment: dict[str, str], recorder: Recorder
) -> None:
    work = _made(folder / "work")
    program.prepare(work, folder / "home", f"http://127.0.0.1:{_PORT}")
    for turn, command in enumerate(program.turns(Path(options.programs), work), 1):
        before = len(recorder.asked)
        out = (folder / f"turn{turn}.log").open("w")
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=work,
            env=environment | {"PWD": str(work)} | program.environment(f"http://127.0.0.1:{_PORT}", folder / "home"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        try:
            status = await asyncio.wait_for(process.wait(), options.limit)
        except TimeoutError:
            process.kill()
            status = await process.wait()
        for record in recorder.asked[before:]:
            record["turn"], record["exit"] = turn, status


async def _ready(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(600):
            try:
                if (await client.get("/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
    raise RuntimeError("the server did not start: see server.log")


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _with_ledger(asked: list[dict[str, Any]], ledger: Path) -> list[dict[str, Any]]:
    """Each call with what the engine says of its admission."""
    lines = [json.loads(line) for line in ledger.read_text("utf-8").splitlines()] if ledger.exists() else []
    admitted = {line["id"].rpartition("-")[0]: line for line in lines}
    return [record | {"admitted": admitted.get(record["id"])} for record in asked]


def again(record: dict[str, Any]) -> int:
    """Tokens of a prompt that had been computed before, and were computed again."""
    admitted = record["admitted"]
    return 0 if admitted is None else max(0, admitted["known"] - admitted["cached"])


def show(name: str, records: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(
        "turn", "s", "call", "kind", "status", "prompt", "cached", "new", "again", "why", title=name, box=None
    )
    for record in records:
        told = record["admitted"] or {"prompt": 0, "cached": 0, "known": 0, "why": record["error"]}
        table.add_row(
            str(record["turn"]),
            f"{record['t']:.1f}",
            f"{record['method']} {record['path']}",
            record["kind"],
            str(record["status"]),
            f"{told['prompt']:,}",
            f"{told['cached']:,}",
            f"{told['prompt'] - told['known']:,}",
            f"{again(record):,}",
            told["why"].rpartition("; ")[2],
        )
    console.print(table)


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`errors`: answers other than 200, but for prompts that were meant to be too long; `repeats`: calls sent once more as they were."""
    calls = [record for record in records if record["kind"]]
    main = [record for record in calls if record["kind"] == "main"]
    in_turn = [
        now for before, now in itertools.pairwise(main) if before["turn"] == now["turn"] and before["status"] == 200
    ]
    return {
        "calls": len(calls),
        "errors": sum(record["status"] != 200 and not record["overflow"] for record in calls),
        "overflows": sum(record["overflow"] for record in calls),
        "repeats": len(calls) - len({record["hash"] for record in calls}),
        "again_in_turn_max": max(map(again, in_turn), default=0),
        "again_max": max(map(again, calls), default=0),
    }


def write_fixture(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """What a program sent, call by call: method, path, names of headers, body with the lengths of its texts."""
    kept = ("method", "path", "kind", "headers", "body")
    lines = [json.dumps({name: record[name] for name in kept}) for record in records]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", help="folder with node_modules of the npm programs and aider's environment")
    parser.add_argument("--only", choices=sorted(PROGRAMS), action="append", help="leave out the others")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a turn may take")
    parser.add_argument("--keep", help="folder for logs, bodies and records, kept afterwards")
    parser.add_argument("--fixtures", help="folder for what each program sent, with lengths for texts")
    parser.add_argument("--forgetful", action="store_true", help="a template without preserve_thinking")
    parser.add_argument("--no-thinking", action="store_true", help="a template of a model that never thinks")
    options = parser.parse_args()
    console, line = Console(width=160), {}
    root = Path(options.keep or tempfile.mkdtemp(prefix="agents-"))
    for name in options.only or PROGRAMS:
        shutil.rmtree(root / name, ignore_errors=True)
        records = asyncio.run(play(PROGRAMS[name], options, _made(root / name)))
        (root / name / "records.json").write_text(json.dumps(records, indent=1))
        show(name, records, console)
        line[name] = summary(records)
        if options.fixtures:
            write_fixture(Path(options.fixtures) / f"{name}.json", records)
    if not options.keep:
        shutil.rmtree(root)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
