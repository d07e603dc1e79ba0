"""One GPU, measured whole: the card's own limits, the engine over HTTP on two shapes, then whether resumed answers are right.

    python bench/gpu.py --out docs/numbers/gpu.json                         everything, some twelve minutes
    python bench/gpu.py --out … --seconds 450                               no part is begun that would probably not end by then
    python bench/gpu.py --out … --parts M copies                            these parts; the file keeps what the others found
    python bench/gpu.py --out … --parts M-small --runs resume               this run of it alone, in the same way
    python bench/gpu.py --out … --table                                     what the file holds beside what it must be; measures nothing

The file keeps each part with its commit and the seconds that it took; `--missing` leaves out what it holds of this commit already, so that
a run that was cut off goes on. Parts, in the order in which they are worth their time:

    M, D                ample memory: prefill, decode, resume, agents
    M-FP8               M with weights in FP8: prefill and decode
    M-small, D-small    a pool that holds a part of the agents, 40 GiB of host: resume and agents out of host
    copies, loop, profile, limits, truth    benches of these names (host time of a decode step, kernel time by operation)
    D-deterministic, M-deterministic    200 prompts of up to 32,000 tokens under that flag: cold, from the device, from host
    trained             200 prompts that the model in tiny/model, if it is there, has written itself: the same without the flag
    replay              an agent trace at 32 lanes, live beside simulated (bench/gpu_replay.py; --trace names it)

M is the shape of Qwen3.5-35B-A3B, D that of Qwen3.5-4B: random weights, bfloat16. M wants 130 GB. A part that fails is named under
`failed`, and the next goes on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from aiohttp import ClientError
from gpu_served import HERE, SETTINGS, TINY_MODEL, Bench
from gpu_summary import summary, table
from load.client import CallFailed
from rich.console import Console

from stepwell.demo.server import ServerFailed

COPIES = ("--device", "cuda", "--bytes", "1GiB", "--rounds", "3", "--many", "64", "--beside", "D", "--rows", "8")
SECONDS = {
    "D": 65, "M": 85, "M-small": 66, "D-small": 54, "M-FP8": 60, "copies": 40, "D-deterministic": 65, "trained": 45, "loop": 60,
    "replay": 125, "M-deterministic": 80, "profile": 75, "limits": 12, "truth": 65,
}  # fmt: skip
"""What each part takes with compiled kernels, about; its order is that of its worth."""


def head() -> str:
    """The commit of this working tree, "" where git does not know."""
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    return told.stdout.strip()


def main() -> None:
    options = parse_arguments()
    bench = Bench(options.folder, tuple(options.flags), options.trace, frozenset(options.runs), Console(width=120))
    told: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    if not options.table:
        measure(bench, options, told)
    bench.console.print(table({**summary(told.get("parts", {})), "parts": told.get("parts", {})}))


def measure(bench: Bench, options: argparse.Namespace, told: dict[str, Any]) -> None:
    """Each part that was asked for, written to the file as soon as it has ended, well or badly."""
    parts, commit, began = told.setdefault("parts", {}), options.commit or head(), time.monotonic()
    told["failed"] = {}
    for name in options.parts:
        if options.missing and parts.get(name, {}).get("commit") == commit:
            continue
        if name == "trained" and not TINY_MODEL.exists():
            bench.console.print(f"{name}: left out, there is no {TINY_MODEL}: train it first")
            continue
        if time.monotonic() - began + SECONDS[name] > options.seconds:
            bench.console.print(f"{name}: left out, {SECONDS[name]} s more would be too late")
            continue
        if error := attempt(bench, name, options, parts):
            told["failed"][name] = error
        if name in parts:
            parts[name] |= {"commit": commit, "runs": options.runs or "all"}
        head_of = {**summary(parts), "commit": commit, "date": datetime.date.today().isoformat()}
        told = {**head_of, "failed": told["failed"], "parts": parts}
        options.out.write_text(json.dumps(told, indent=1) + "\n")


def attempt(bench: Bench, name: str, options: argparse.Namespace, parts: dict[str, Any]) -> str:
    """Measure a part into `parts`. What went wrong, "" if nothing."""
    scripts: dict[str, tuple[str, ...]] = {
        "limits": ("gpu_limits.py",),
        "copies": ("copies.py", *COPIES),
        "loop": ("gpu_loop.py",),
        "truth": ("gpu_truth.py",),
        "profile": ("gpu_profile.py",),
    }
    began = time.monotonic()
    try:
        if name in scripts:
            parts[name] = bench.command(*scripts[name])
        else:
            parts[name] = dict(parts.get(name, {})) if options.runs else {}
            bench.serve(SETTINGS[name], name, parts[name])
    except (ServerFailed, CallFailed, ClientError, subprocess.SubprocessError, OSError, ValueError) as error:
        bench.console.print(f"[red]{name}: {error}")
        if isinstance(error, ServerFailed):
            bench.console.print(error.log, markup=False)
        return str(error)
    finally:
        if name in parts:
            parts[name]["took_s"] = round(time.monotonic() - began, 1)
    return ""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = list(SECONDS)
    parser.add_argument("--parts", nargs="+", default=every, choices=every, metavar="PART")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; what it holds of other parts stays")
    parser.add_argument(
        "--runs", nargs="+", default=[], help="of parts over HTTP only these; the file keeps the others"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no part that would probably end later"
    )
    parser.add_argument("--missing", action="store_true", help="leave out parts that the file holds of this commit")
    parser.add_argument("--table", action="store_true", help="measure nothing, show the file")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/stepwell-gpu"), help="models and logs of servers")
    parser.add_argument("--trace", default="synthetic", help="for the part `replay`: a trace file")
    parser.add_argument("--commit", default="", help="what was measured (default: as git says)")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of `stepwell serve`; last")
    return parser.parse_args()


if __name__ == "__main__":
    main()
