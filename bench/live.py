"""A small trace against `stepwell serve` with a small random model, and the same simulated: how far apart are the hits?

    python bench/live.py                     one or two minutes on two cores

Every conversation is played once, from its first turn, so that both runs ask for the same. Ends with one line of JSON: shares of
prompt tokens of each run, and how many points lie between their hits.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console

from stepwell.base.geometry import Geometry
from stepwell.base.shapes import ModelShape, Widths
from stepwell.demo.server import Server, free_port, serve_command
from stepwell.replay import wire
from stepwell.replay.cost import CostModel
from stepwell.replay.lanes import LaneRules, Lanes
from stepwell.replay.live import LiveReplay, play_live
from stepwell.replay.machine import MachineSizes
from stepwell.replay.report import Summary
from stepwell.replay.simulate import Phases
from stepwell.replay.simulated import Setting, simulated
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.terminal import show
from stepwell.replay.text import Text
from stepwell.replay.trace import Trace
from stepwell.testing.checkpoint import write_checkpoint

VOCAB = 300
BLOCK = 16
MAX_SEQS, MAX_BATCH = 4, 1024


def main() -> None:
    options = parse_arguments()
    console, errors = Console(), Console(stderr=True)
    shape = Shape(scale=options.scale, turns=(10, 0.4), output=(300.0, 0.5))
    trace = synthetic(options.conversations, options.seed, shape)
    rules = LaneRules(lanes=options.lanes, start=(0.0, 0.0), seed=options.seed, once=True)
    with tempfile.TemporaryDirectory(prefix="stepwell-live-") as folder:
        live, geometry = play(options, trace, rules, Path(folder), errors)
    machine = MachineSizes(
        device_tokens=options.device_tokens,
        host_tokens=options.host_tokens,
        rung_tokens=geometry.image_pages * BLOCK,
        block=BLOCK,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=MAX_BATCH,
    )
    foretold = simulated(Setting(trace, rules, Phases(0.0, 1e6), CostModel()), machine, errors)
    for summary in (live, foretold):
        show(summary, console)
    apart = 100 * abs(reused(live) - reused(foretold))
    print(json.dumps({"live": live.figures(), "simulated": foretold.figures(), "points_apart": round(apart, 3)}))


def play(
    options: argparse.Namespace, trace: Trace, rules: LaneRules, folder: Path, console: Console
) -> tuple[Summary, Geometry]:
    """The trace against a server of its own, and the sizes of that server's pages and images."""
    model = write_checkpoint(folder / "model", arch="qwen3_5", seed=0)
    shape = ModelShape.from_config(json.loads((model / "config.json").read_text()))
    geometry = shape.geometry(BLOCK, widths=Widths(4, 4, 4))
    device, host = (tokens // BLOCK * geometry.page_bytes for tokens in (options.device_tokens, options.host_tokens))
    port = free_port()
    flags = [f"--device-memory={device}", f"--host-memory={host}", "--dtype=float32"]
    flags += [f"--max-num-seqs={MAX_SEQS}", f"--max-num-batched-tokens={MAX_BATCH}"]
    with Server(serve_command(model, port, flags), port, folder / "log") as server:
        server.wait_until_healthy(120)
        source, text = Lanes(trace.conversations, rules), Text(options.seed, VOCAB)
        phases = Phases(0.0, options.most)
        replay = LiveReplay(source, wire.Server(server.base_url), text, phases, options.time_scale)
        return play_live(replay, (), console), geometry


def reused(summary: Summary) -> float:
    """The hit over all tiers, as a share."""
    return 1 - summary.share(summary.admitted.recomputed)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=10)
    parser.add_argument("--scale", type=float, default=0.02, help="multiplies the trace's token counts (default 0.02)")
    parser.add_argument("--time-scale", type=float, default=0.1, help="multiplies think times (default 0.1)")
    parser.add_argument("--most", type=float, default=600.0, help="real seconds after which it stops (default 600)")
    parser.add_argument("--device-tokens", type=int, default=12_000)
    parser.add_argument("--host-tokens", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
