"""An agent trace of some hours squeezed to minutes: played against a running server, and the same requests simulated. How far apart?

    python bench/gpu_replay.py TRACE --url http://127.0.0.1:8000 --model DIR --device-memory 14GiB --host-memory 32GiB
    python bench/gpu_replay.py TRACE --model DIR --device-memory 14GiB --host-memory 32GiB --profile FILE        only simulated

Lengths are divided by --squeeze and times multiplied by --time-scale; blocks become smaller with them, so that prompts part where they
parted. Each lane plays one conversation from its first turn to its last: both runs are asked for the same. TRACE may be `synthetic`.

First the server is calibrated over HTTP (`load/calibrate.py`): compute, what a step takes longer in which prompts and decodes meet, and the
front end, alone and with as many calls at once as there are lanes. The simulation builds its steps ahead, as an engine on a GPU does, and
its calls pass such a front end. Ends with one line of JSON:

    live, simulated      requests, share of prompt tokens by tier, p50 and p90 of the time to the first token
    points_apart         between the hits over all tiers, in points
    tiers_apart          the largest of the same by tier
    ttft_p50_over        simulated over live less one, as a number above 0
    calibrated           the cost model, and the front end
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from load.calibrate import Calibrated, Sizes, calibrate
from load.client import Client
from rich.console import Console

from stepwell.base.shapes import ModelShape
from stepwell.base.units import parse_size
from stepwell.replay.cost import CostModel
from stepwell.replay.formats import read_trace
from stepwell.replay.front import Front
from stepwell.replay.lanes import LaneRules, Lanes
from stepwell.replay.live import LiveReplay, play_live
from stepwell.replay.machine import MachineSizes
from stepwell.replay.report import Summary, quantiles
from stepwell.replay.simulate import Phases
from stepwell.replay.simulated import Setting, simulated
from stepwell.replay.synthetic import synthetic
from stepwell.replay.text import Text
from stepwell.replay.trace import Conversation, Stream, Trace, Turn
from stepwell.replay.wire import Server

BLOCK = 16
TIERS = ("device", "host", "disk")


@dataclass(frozen=True, slots=True)
class Squeeze:
    """How a conversation is made smaller and faster."""

    tokens: int
    time: float

    def conversation(self, one: Conversation) -> Conversation:
        streams = tuple(self._stream(stream) for stream in one.streams)
        return replace(one, block=one.block // self.tokens, streams=streams)

    def _stream(self, one: Stream) -> Stream:
        return replace(one, start=one.start * self.time, turns=tuple(self._turn(turn) for turn in one.turns))

    def _turn(self, one: Turn) -> Turn:
        prompt, output = max(1, one.prompt // self.tokens), max(1, one.output // self.tokens)
        return replace(one, time=one.time * self.time, think=one.think * self.time, prompt=prompt, output=output)


def chosen(trace: Trace, options: argparse.Namespace) -> Trace:
    """As many conversations as lanes, none of them with more or fewer requests than asked, squeezed."""
    squeeze = Squeeze(options.squeeze, options.time_scale)
    low, high = options.requests
    found = [squeeze.conversation(one) for one in trace.conversations if low <= one.requests <= high]
    if len(found) < options.lanes:
        raise SystemExit(
            f"{len(found)} conversations have {low} to {high} requests, {options.lanes} are wanted: widen --requests"
        )
    return Trace(tuple(found[: options.lanes]))


def rules_of(options: argparse.Namespace) -> LaneRules:
    """Whole conversations, once; think times are cut where `stepwell replay` cuts them."""
    cap = LaneRules().think_cap * options.time_scale
    return LaneRules(options.lanes, (0.0, 0.0), cap, options.longest, once=True)


def sizes_of(options: argparse.Namespace, costs: CostModel) -> MachineSizes:
    """The server's memory in tokens of KV."""
    shape = ModelShape.from_config(json.loads((options.model / "config.json").read_text()))
    geometry = shape.geometry(BLOCK)
    assert geometry.page_bytes == BLOCK * costs.kv_bytes_per_token
    pages, slots = (parse_size(size) // geometry.page_bytes for size in (options.device_memory, options.host_memory))
    return MachineSizes(
        device_tokens=pages * BLOCK,
        host_tokens=slots * BLOCK,
        rung_tokens=geometry.image_pages * BLOCK,
        block=BLOCK,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        ahead=True,
    )


def told(summary: Summary) -> dict[str, Any]:
    """Figures of a run."""
    shares = {name: summary.share(tokens) for name, tokens in summary.sources()}
    return {
        "requests": summary.requests,
        "failed": summary.failed,
        "seconds": round(summary.course.end_s, 1),
        "bound": round(summary.share(summary.bound), 5),
        **{name: round(share, 5) for name, share in shares.items()},
        "ttft_s": quantiles([row.ttft for row in summary.rows if row.ttft is not None]),
        "itl_s": quantiles(summary.itl),
    }


def note(folder: Path | None, name: str, summary: Summary) -> None:
    """One line for each request, in the order of ending."""
    if folder is not None:
        rows = (json.dumps(asdict(row)) + "\n" for row in summary.rows)
        (folder / f"{name}.jsonl").write_text("".join(rows))


def compared(live: dict[str, Any], foretold: dict[str, Any]) -> dict[str, float]:
    tiers = {name: 100 * abs(live[name] - foretold[name]) for name in TIERS}
    hits = [sum(one[name] for name in TIERS) for one in (live, foretold)]
    return {
        "points_apart": round(100 * abs(hits[0] - hits[1]), 3),
        "tiers_apart": round(max(tiers.values()), 3),
        "ttft_p50_over": round(abs(foretold["ttft_s"]["p50"] / live["ttft_s"]["p50"] - 1), 4),
    }


def main() -> None:
    options, errors = parse_arguments(), Console(stderr=True)
    trace = synthetic(8 * options.lanes, 0) if options.trace == "synthetic" else read_trace(Path(options.trace))
    trace, rules = chosen(trace, options), rules_of(options)
    shape = ModelShape.from_config(json.loads((options.model / "config.json").read_text()))
    base = replace(CostModel(), kv_bytes_per_token=shape.geometry(BLOCK).page_bytes // BLOCK)
    found: dict[str, Any] = {}
    calibrated = Calibrated(base, Front()) if options.profile is None else read(options.profile)
    if options.url is not None:
        if options.profile is None:
            calibrated = asyncio.run(_calibrated(options, base))
            print(json.dumps(asdict(calibrated)))
        text, phases = Text(0, options.vocab), Phases(0.0, options.most)
        server = Server(options.url, timeout=options.most)
        played = play_live(LiveReplay(Lanes(trace.conversations, rules), server, text, phases), (), errors)
        found["live"] = told(played)
        print(json.dumps({"live": found["live"]}))
        note(options.rows, "live", played)
    machine = sizes_of(options, calibrated.costs)
    setting = Setting(trace, rules, Phases(0.0, 1e6), calibrated.costs, front=calibrated.front)
    foretold = simulated(setting, machine, errors)
    found["simulated"] = told(foretold)
    note(options.rows, "simulated", foretold)
    found["calibrated"] = asdict(calibrated)
    if "live" in found:
        found |= compared(found["live"], found["simulated"])
    print(json.dumps(found))


def read(file: Path) -> Calibrated:
    """`calibrated` of an earlier run."""
    known = json.loads(file.read_text())
    return Calibrated(CostModel(**known["costs"]), Front(**known["front"]))


async def _calibrated(options: argparse.Namespace, base: CostModel) -> Calibrated:
    async with Client(options.url, options.served, options.most) as client:
        machine = sizes_of(options, base)
        room = machine.device_tokens, machine.rung_tokens
        sizes = Sizes(options.calibrate, options.max_num_seqs, options.lanes, options.vocab, *room)
        return await calibrate(client, Server(options.url, timeout=options.most), base, sizes)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", metavar="TRACE")
    parser.add_argument("--url", help="of a server; without it nothing is played live")
    parser.add_argument("--served", default="m", help="the model's name there (default m)")
    parser.add_argument("--model", type=Path, required=True, help="folder with the model's config.json")
    parser.add_argument("--device-memory", required=True)
    parser.add_argument("--host-memory", required=True)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-num-batched-tokens", type=int, default=16_384)
    parser.add_argument("--profile", type=Path, help="`calibrated` of an earlier run, as JSON, in place of calibrating")
    parser.add_argument("--calibrate", type=int, default=65_536, help="tokens of the longest prompt to calibrate with")
    parser.add_argument(
        "--rows", type=Path, help="folder for live.jsonl and simulated.jsonl: what became of each request"
    )
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--requests", type=int, nargs=2, default=(20, 40), help="fewest and most of a conversation")
    parser.add_argument("--squeeze", type=int, default=8, help="divides lengths; 64 has to be a multiple")
    parser.add_argument("--time-scale", type=float, default=0.01, help="multiplies think times")
    parser.add_argument("--longest", type=int, default=120_000, help="leave out turns with longer prompts, squeezed")
    parser.add_argument("--vocab", type=int, default=200_000)
    parser.add_argument("--most", type=float, default=150.0, help="real seconds after which it stops")
    return parser.parse_args()


if __name__ == "__main__":
    main()
