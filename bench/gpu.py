"""One GPU, measured whole: the card's own limits, the engine over HTTP on two shapes, then whether resumed answers are right.

    python bench/gpu.py --out docs/numbers/gpu.json
    python bench/gpu.py --parts limits M --out …            one part at a time; the file keeps what the others found

Parts: `limits` (device copy, products, pinned copies), `M` and `D` (ample memory: prefill, decode, resume, agents, exactness from the
device), `M-small` and `D-small` (a device pool that holds a third, 40 GiB of host: resume and agents out of host, exactness from host),
`D-deterministic` and `M-deterministic` (exactness under that flag), `copies`, `profile` and `truth` (benches of those names).
M is the shape of Qwen3.5-35B-A3B, D that of Qwen3.5-4B: random weights, bfloat16.
A part that fails is named under `failed` and the next goes on. Some 20 minutes for all; M wants 130 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from load import runs
from load.client import CallFailed, Client, drawn
from load.models import write_model
from rich.console import Console
from rich.table import Table

from stepwell.demo.server import Server, ServerFailed, free_port, serve_command

HERE = Path(__file__).parent
START_S, CALL_S = 400.0, 300.0
COMMON = [
    "--load-format",
    "dummy",
    "--served-model-name",
    "m",
    "--max-model-len",
    "131072",
    "--max-num-batched-tokens",
    "16384",
]


@dataclass(frozen=True, slots=True)
class Setting:
    """A server: the shape it serves, its flags, the runs that are made on it, and how many other prompts push one out of the device."""

    shape: str
    flags: tuple[str, ...]
    runs: tuple[str, ...] = ("prefill", "decode", "resume", "agents", "exact")
    fillers: int = 0


AMPLE = ("--max-num-seqs", "64", "--device-memory", "50GiB", "--host-memory", "8GiB", "--max-step-ms", "90")
HOST = ("--host-memory", "40GiB")
SMALL, EXACT = ("resume", "agents", "exact"), ("exact",)
COPIES = ["--device", "cuda", "--bytes", "1GiB", "--rounds", "2", "--many", "64", "--beside", "D", "--rows", "8"]
SETTINGS = {
    "M": Setting("M", AMPLE),
    "D": Setting("D", AMPLE),
    "M-small": Setting("M", ("--max-num-seqs", "16", "--device-memory", "5.2GiB", *HOST), SMALL, 4),
    "D-small": Setting("D", ("--max-num-seqs", "24", "--device-memory", "8.25GiB", *HOST), SMALL, 4),
    "D-deterministic": Setting("D", (*AMPLE, "--deterministic"), EXACT),
    "M-deterministic": Setting("M", (*AMPLE, "--deterministic"), EXACT),
}


@dataclass(frozen=True, slots=True)
class Bench:
    """What every part needs: where logs and models lie, further flags of the server, prompts of the exactness run."""

    folder: Path
    flags: tuple[str, ...]
    exact: int
    console: Console

    def serve(self, part: str, found: dict[str, Any]) -> None:
        """All runs of a setting into `found`, one by one, with the seconds that the server took to start.

        Raises ServerFailed, CallFailed, CalledProcessError; what was found before that stays.
        """
        setting = SETTINGS[part]
        model = write_model(setting.shape, self.folder / setting.shape)
        port = free_port()
        command = serve_command(model, port, [*COMMON, *setting.flags, *self.flags])
        began = time.monotonic()
        with Server(command, port, self.folder / f"server-{part}.log") as server:
            server.wait_until_healthy(START_S)
            found["start_s"] = time.monotonic() - began
            self.console.print(f"{part}: ready after {found['start_s']:.0f} s")
            asyncio.run(self._drive(server.base_url, setting, found))
            if self.exact and "exact" in setting.runs:
                asked = ["--url", server.base_url, "--prompts", str(self.exact), "--fillers", str(setting.fillers)]
                found["exact"] = self.command("exact.py", *asked)
                self.console.print(found["exact"])

    def command(self, script: str, *arguments: str) -> dict[str, Any]:
        """The last line of another bench. Raises CalledProcessError."""
        command = [sys.executable, str(HERE / script), *arguments]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=CALL_S)
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))

    async def _drive(self, url: str, setting: Setting, found: dict[str, Any]) -> None:
        async with Client(url, "m", CALL_S) as client:
            rng = np.random.default_rng(0)
            for size in (16_384, 20_000, 1_000):
                await client.ask(drawn(rng, size), 8)
            works: dict[str, Callable[[], Awaitable[Any]]] = {
                "prefill": lambda: _each((16_384, 102_400), lambda size: runs.prefill(client, rng, size)),
                "decode": lambda: _each((1, 8, 64), lambda batch: runs.decode(client, rng, batch)),
                "resume": lambda: runs.resume(client, rng, fillers=setting.fillers),
                "agents": lambda: runs.agents(client, rng),
            }
            for name in (name for name in setting.runs if name in works):
                found[name] = await works[name]()
                self.console.print({name: found[name]})


async def _each(sizes: tuple[int, ...], run: Callable[[int], Awaitable[Any]]) -> dict[str, Any]:
    """One run after the other, by size."""
    return {str(size): await run(size) for size in sizes}


def limits() -> dict[str, float]:
    """What the card gives without an engine: GB/s read and written by a device copy, TFLOP/s, GiB/s over the link."""
    import torch  # the engine's own; nothing else here needs it

    def ms(work: Callable[[], object], count: int = 10) -> float:
        found = []
        for at in range(count + 3):
            began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            began.record()
            work()
            ended.record()
            ended.synchronize()
            found += [began.elapsed_time(ended)] if at >= 3 else []
        return float(np.median(found))

    one = torch.empty(4 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
    two = torch.empty_like(one)
    found = {"copy_gb_s": 2 * one.numel() / ms(lambda: two.copy_(one)) / 1e6}
    for rows, deep, wide in ((16384, 2048, 8192), (16384, 2560, 18432), (8192, 8192, 8192)):
        a = torch.randn(rows, deep, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(wide, deep, device="cuda", dtype=torch.bfloat16).t()
        found[f"tflop_s_{rows}x{deep}x{wide}"] = 2e-9 * rows * deep * wide / ms(lambda a=a, b=b: a @ b)
    host = torch.empty(2 << 30, dtype=torch.uint8, pin_memory=True)
    part, gib = one[: host.numel()], host.numel() / 2**30
    found["to_device_gib_s"] = 1e3 * gib / ms(lambda: part.copy_(host, non_blocking=True), 5)
    found["to_host_gib_s"] = 1e3 * gib / ms(lambda: host.copy_(part, non_blocking=True), 5)
    return found


def summary(parts: dict[str, Any]) -> dict[str, Any]:
    """The figures that are compared from run to run, under the names that they have always had."""

    def at(*path: str) -> Any:
        value: Any = parts
        for name in path:
            value = value.get(name, {})
        return value if value != {} else None

    out: dict[str, Any] = {"decode_ms": {}, "prefill_tok_s": {}, "resume_s": {}, "agents": {}}
    for shape in ("M", "D"):
        out["decode_ms"][shape] = {n: at(shape, "decode", n, "itl_ms_p50") for n in ("1", "8", "64")}
        out["prefill_tok_s"][shape] = {n: at(shape, "prefill", n, "tok_s") for n in ("16384", "102400")}
        host = at(f"{shape}-small", "resume", "pushed_out", "ttft_s")
        out["resume_s"][shape] = {n: at(shape, "resume", n, "ttft_s") for n in ("cold", "device")} | {"host": host}
        for part, name in ((shape, f"{shape}_ample"), (f"{shape}-small", f"{shape}_small")):
            out["agents"][name] = at(part, "agents")
    for name in ("restore_over_link", "demote_over_link"):
        out[name] = at("copies", name)
    for name, ending in (("flip_share", False), ("flips_deterministic", True)):
        exact = [p["exact"] for n, p in parts.items() if "exact" in p and n.endswith("deterministic") == ending]
        differ, asked = sum(e["differ"] for e in exact), sum(e["differ"] + e["identical"] for e in exact)
        out[name] = (differ if ending else differ / asked) if asked else None
    return out


def head() -> str:
    """The commit of this working tree, "" where git does not know."""
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    return told.stdout.strip()


def rows(value: dict[str, Any], path: str = "") -> Iterable[tuple[str, str]]:
    """Every number of a nested value with where it stands."""
    for name, inner in value.items():
        here = f"{path} {name}".strip()
        if isinstance(inner, dict):
            yield from rows(inner, here)
        elif isinstance(inner, int | float):
            yield here, f"{inner:,.4g}" if inner < 1000 else f"{inner:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ["limits", "truth", "copies", *SETTINGS, "profile"]
    parser.add_argument("--parts", nargs="+", default=every, choices=every)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; what it holds of other parts stays")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/stepwell-gpu"), help="models and logs of servers")
    parser.add_argument("--exact", type=int, default=50, help="prompts asked cold and again, 0 for none (default 50)")
    parser.add_argument("--commit", default="", help="what was measured (default: as git says)")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of `stepwell serve`; last")
    options = parser.parse_args()
    bench = Bench(options.folder, tuple(options.flags), options.exact, Console(width=120))
    kept: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    parts: dict[str, Any] = kept.get("parts", {})
    failed: dict[str, str] = {}
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "limits": limits,
        "copies": lambda: bench.command("copies.py", *COPIES),
        "truth": lambda: bench.command("gpu_truth.py"),
        "profile": lambda: bench.command("gpu_profile.py"),
    }
    commit = options.commit or head()
    for name in options.parts:
        try:
            if name in works:
                parts[name] = works[name]()
            else:
                parts[name] = {}
                bench.serve(name, parts[name])
        except (ServerFailed, CallFailed, subprocess.SubprocessError, OSError, ValueError) as error:
            failed[name] = str(error)
            bench.console.print(f"[red]{name}: {error}")
            if isinstance(error, ServerFailed):
                bench.console.print(error.log, markup=False)
        if name in parts:
            parts[name]["commit"] = commit
        told = {**summary(parts), "commit": commit, "date": datetime.date.today().isoformat(), "failed": failed}
        options.out.write_text(json.dumps({**told, "parts": parts}, indent=1) + "\n")
    table = Table("figure", "value")
    for where, text in rows(told):
        table.add_row(where, text)
    bench.console.print(table)


if __name__ == "__main__":
    main()
