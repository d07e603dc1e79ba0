"""Other engines' own schedulers and trees on the same trace, by scripts that are not part of this repository."""

from __future__ import annotations

import ast
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from directory.requests import CASES, Played

PEERS = ("vllm", "sglang")
TIMEOUT = 1800
ON_THE_PROCESSOR = """
import runpy, sys, time
time.perf_counter = time.thread_time
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""The scripts time with `perf_counter`: here it is the clock that stands still while other work has the processor."""


@dataclass(frozen=True, slots=True)
class Harness:
    """The folder with the trace and the scripts, and that of their environments."""

    scripts: Path
    environments: Path


def play_peer(name: str, case: str, harness: Harness, most: int) -> Played | str:
    """One run of a peer's script, or what went wrong."""
    device, host = CASES[case]
    environments = harness.environments
    if name == "vllm":
        python, script, path = "venv-vllm", "vllm_replay.py", f"{environments / 'src' / 'vllm'}:{harness.scripts}"
        words = ["--gib", f"{device:g}"] + (["--cpu-gib", f"{host:g}"] if host else [])
    else:
        python, script, path = "venv-sgl", "sgl_replay.py", str(harness.scripts)
        words = ["--gib", f"{device:g}", "--core", "rust"] + (["--host-ratio", f"{host / device:g}"] if host else [])
    start = [str(environments / python / "bin" / "python"), "-c", ON_THE_PROCESSOR, str(harness.scripts / script)]
    surroundings = {
        **os.environ,
        "PEERS": str(environments),
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",  # what other threads did would not be counted
    }
    try:
        done = subprocess.run(
            [*start, *words, "--n", str(most)],
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return _told(done.stdout) or (done.stderr.strip() or done.stdout.strip() or "it printed nothing")[-400:]


def _told(output: str) -> Played | None:
    """What a script said last of its times and hits."""
    lines = [line for line in output.splitlines() if line.startswith("{") and "token_hit" in line]
    if not lines:
        return None
    told = ast.literal_eval(lines[-1])
    return Played(told["admission_us"] + told.get("insert_us_per_req", 0.0), told["token_hit"])
