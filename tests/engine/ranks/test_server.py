"""A served engine of two ranks loses one: what callers hear, and what is left on the machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

pytest.importorskip("torch")

from stepwell.base.children import command, environment
from stepwell.testing.checkpoint import write_checkpoint

PATIENCE = 120.0
PROMPT = {"model": "m", "prompt": [5] * 40, "max_tokens": 3000, "ignore_eos": True, "stream": True}


def descendants(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextmanager
def served(model: Path, place: Path, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of two ranks, with its address; all files it makes for a time lie in `place`, and it logs to `log`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    memory = "--device cpu --device-memory 8MiB --host-memory 0 --max-model-len 4000"
    flags = f"--tensor-parallel-size 2 --worker-timeout 1 {memory} --port {port} --served-model-name m"
    started = command("stepwell", "serve", str(model), *flags.split())
    quiet = subprocess.DEVNULL
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            started, env=environment(TMPDIR=str(place)), stdin=quiet, stdout=errors, stderr=errors
        ) as process,
    ):
        address = f"http://127.0.0.1:{port}"
        try:
            _until(lambda: _status(address) == 200)
            yield address, process
        finally:
            every = descendants(process.pid)
            process.kill()
            for pid in every:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _status(address: str) -> int:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{address}/health", timeout=5).status_code
    return 0


def _until(happens: object, seconds: float = PATIENCE) -> float:
    """Wait until it happens; how long that took."""
    assert callable(happens)
    began = time.monotonic()
    while not happens():
        assert time.monotonic() - began < seconds, "it does not happen"
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_lost_rank_ends_calls_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", hidden=128, layers=4, vocab=513)
    log = tmp_path / "log"
    with tempfile.TemporaryDirectory() as place, served(model, Path(place), log) as (address, process):
        ranks = [
            pid
            for pid in descendants(process.pid)
            if b"stepwell.engine.ranks.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(ranks) == 2
        with httpx.stream("POST", f"{address}/v1/completions", json=PROMPT, timeout=PATIENCE) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data:")
            os.kill(ranks[1], number)
            rest = list(lines)
        assert any('"error"' in line and "rank 1" in line for line in rest)
        _until(lambda: _status(address) in (0, 503), 20)
        _until(lambda: not any(map(runs, ranks)), 20)
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert not list(Path(place).iterdir())
    said = log.read_text()
    assert "ERROR stepwell.engine.ranks.watch: rank 1 " in said and "Traceback" not in said
    assert said.count("reading weights …") == said.count("meeting the other ranks …") == 1
