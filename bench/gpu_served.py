"""One GPU's parts over HTTP: a server for each setting, the runs made on it, and what it took of the card meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from load import runs
from load.client import Client, drawn
from load.models import write_model
from rich.console import Console

from stepwell.demo.server import Server, free_port, serve_command
from stepwell.replay.gauges import Counters, parse

HERE = Path(__file__).parent
START_S, CALL_S = 300.0, 240.0
NAMED = ("--served-model-name", "m")
COMMON = (*NAMED, "--load-format", "dummy", "--max-model-len", "131072", "--max-num-batched-tokens", "16384")
TRAINED = (*NAMED, "--max-model-len", "4096", "--max-num-batched-tokens", "4096")
DEVICE_MEMORY = "stepwell_device_memory_bytes"


@dataclass(frozen=True, slots=True)
class Setting:
    """A server: the shape that it serves (`TINY`: the trained model), its sizes, the runs that are made on it.

    fillers   other prompts that push one of 102,400 tokens out of the device
    exact     arguments of bench/exact.py, where that is among the runs
    """

    shape: str
    seqs: int
    device: str
    host: str
    more: tuple[str, ...] = ()
    runs: tuple[str, ...] = ("prefill", "decode", "resume", "agents")
    fillers: int = 0
    exact: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        sizes = ("--max-num-seqs", f"{self.seqs}", "--device-memory", self.device, "--host-memory", self.host)
        return (*(TRAINED if self.shape == TINY else COMMON), *sizes, *self.more)


TINY, TINY_MODEL = "tiny", HERE.parent / "tiny" / "model"
STEP = ("--max-step-ms", "80")
SAME = (
    "--prompts",
    "200",
    "--again",
    "0",
    "--most",
    "32000",
    "--new",
    "64",
    "--lag",
    "30",
    "--at-once",
    "24",
    "--seconds",
    "55",
)
# the model was trained on 2,048 tokens
GROWN = (*SAME, "--again", "100", "--least", "300", "--most", "1900", "--grown", "Question:")
SMALL = ("resume", "agents")
SETTINGS = {
    "M": Setting("M", 64, "50GiB", "8GiB", STEP),
    "D": Setting("D", 64, "50GiB", "8GiB", STEP),
    "M-FP8": Setting("M-FP8", 64, "50GiB", "8GiB", STEP, ("prefill", "decode")),
    # vLLM's pools of 5.2 and 8.25 GiB, in which live states lie too
    "M-small": Setting("M", 16, "4.2GiB", "40GiB", runs=SMALL, fillers=3),
    "D-small": Setting("D", 24, "7.1GiB", "40GiB", runs=SMALL, fillers=3),
    "D-deterministic": Setting("D", 24, "8GiB", "20GiB", ("--deterministic",), ("exact",), exact=SAME),
    "M-deterministic": Setting("M", 24, "7GiB", "20GiB", ("--deterministic",), ("exact",), exact=SAME),
    # step times unbounded, as those of the simulation are
    "replay": Setting("D", 32, "16GiB", "32GiB", ("--max-step-ms", "0"), ("replay",)),
    "trained": Setting(TINY, 24, "96MiB", "1GiB", runs=("exact",), exact=GROWN),
}


@dataclass(frozen=True, slots=True)
class Bench:
    """What every part needs: where logs and models lie, further flags of the server."""

    folder: Path
    flags: tuple[str, ...]
    trace: str
    runs: frozenset[str]
    console: Console

    def only(self, setting: Setting) -> tuple[str, ...]:
        """The runs of a setting that are wanted: all where none is named."""
        return tuple(name for name in setting.runs if name in self.runs or not self.runs)

    def serve(self, setting: Setting, part: str, found: dict[str, Any]) -> None:
        """All runs of a setting into `found`, one by one, with the seconds that the server took to start and the memory of the card.

        Raises ServerFailed, CallFailed, CalledProcessError; what was found before that stays.
        """
        model, port = self._model(setting), free_port()
        command = serve_command(model, port, [*setting.flags, *self.flags])
        began = time.monotonic()
        with Server(command, port, self.folder / f"server-{part}.log") as server:
            server.wait_until_healthy(START_S)
            found["start_s"] = time.monotonic() - began
            self.console.print(f"{part}: ready after {found['start_s']:.0f} s")
            if setting.fillers or "replay" in setting.runs:
                found["host_locked_s"] = until_locked(server, began)
            asyncio.run(self._drive(server.base_url, setting, found))
            if "exact" in self.only(setting):
                found["exact"] = self.command("exact.py", "--url", server.base_url, *setting.exact)
                self.console.print(found["exact"])
            if "replay" in self.only(setting):
                found |= self._replay(server.base_url, setting, model)
                self.console.print({name: value for name, value in found.items() if name != "calibrated"})
            found["memory"] = memory(parse(server.read("/metrics")))

    def _model(self, setting: Setting) -> Path:
        return TINY_MODEL if setting.shape == TINY else write_model(setting.shape, self.folder / setting.shape)

    def _replay(self, url: str, setting: Setting, model: Path) -> dict[str, Any]:
        sizes = ("--device-memory", setting.device, "--host-memory", setting.host, "--max-num-seqs", f"{setting.seqs}")
        return self.command("gpu_replay.py", self.trace, "--url", url, "--model", str(model), *sizes)

    def command(self, script: str, *arguments: str) -> dict[str, Any]:
        """The last line of another bench. Raises CalledProcessError."""
        command = [sys.executable, str(HERE / script), *arguments]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=CALL_S)
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))

    async def _drive(self, url: str, setting: Setting, found: dict[str, Any]) -> None:
        async with Client(url, "m", CALL_S) as client:
            rng = np.random.default_rng(0)
            if setting.shape != TINY:
                for size in (16_384, 20_000, 1_000):
                    await client.ask(drawn(rng, size), 8)
            works: dict[str, Callable[[], Awaitable[Any]]] = {
                "prefill": lambda: _each((16_384, 102_400), lambda size: runs.prefill(client, rng, size)),
                "decode": lambda: _each((1, 8, 64), lambda batch: runs.decode(client, rng, batch)),
                "resume": lambda: runs.resume(client, rng, fillers=setting.fillers),
                "agents": lambda: runs.agents(client, rng),
            }
            for name in (name for name in self.only(setting) if name in works):
                found[name] = await works[name]()
                self.console.print({name: found[name]})


async def _each(sizes: tuple[int, ...], run: Callable[[int], Awaitable[Any]]) -> dict[str, Any]:
    """One run after the other, by size."""
    return {str(size): await run(size) for size in sizes}


def until_locked(server: Server, began: float, most: float = 60.0) -> float:
    """Wait until no more of host is being page-locked, which holds up launches and copies; seconds since `began`."""
    counts = [-1.0]
    until = time.monotonic() + most
    while time.monotonic() < until:
        metrics = parse(server.read("/metrics"))
        counts.append(sum(metrics["stepwell_pages", (state, "host")] for state in ("free", "cached", "private")))
        if counts[-1] == counts[-2]:
            break
        time.sleep(1.0)
    return time.monotonic() - began


def memory(metrics: Counters) -> dict[str, float]:
    """Bytes of the card that tensors were meant to take and took at the peak, and kernels that were compiled while requests might wait.
    Nothing without a card."""
    if (DEVICE_MEMORY, ("planned",)) not in metrics:
        return {}
    planned, peak = (metrics[DEVICE_MEMORY, (kind,)] for kind in ("planned", "peak"))
    compiled = metrics["stepwell_kernels_compiled_total", ("serving",)]
    return {"planned": planned, "peak": peak, "over_plan": peak / planned, "compiled_serving": compiled}
