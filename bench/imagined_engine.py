"""A server whose card is imagined: real HTTP, scheduler and cache, and steps and copies that take as long as a cost model says.

    python bench/imagined_engine.py MODEL --costs FILE --port 8000 --device-memory 16GiB --host-memory 32GiB

Nothing is computed and no memory taken, so a machine without a card can tell how far a simulation lies from a server of that card's
speed (`bench/gpu_replay.py`), apart from what the card itself does otherwise. MODEL is a folder with config and tokenizer
(`load/models.py`), FILE holds the fields of a `CostModel` as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from stepwell.base.shapes import ModelShape
from stepwell.base.units import parse_size
from stepwell.engine.config import EngineConfig, EngineFacts, Report
from stepwell.engine.owned import OwnedLoop
from stepwell.replay.cost import CostModel
from stepwell.replay.machine import MachineSizes
from stepwell.replay.runner import CostRunner, Links, VirtualMover
from stepwell.server.commands.options import ServeOptions
from stepwell.server.commands.serve import serve
from stepwell.server.read.names import ServedNames

BLOCK = 16
COSTS = "STEPWELL_IMAGINED_COSTS"


class RealClock:
    """Seconds of this process; to advance is to sleep."""

    def now(self) -> float:
        return time.monotonic()

    def advance_to(self, when: float) -> None:
        time.sleep(max(0.0, when - time.monotonic()))


def build(config: EngineConfig, report: Report) -> OwnedLoop:
    """A factory as `stepwell.engine.process.spawn` names it."""
    costs = CostModel(**json.loads(Path(os.environ[COSTS]).read_text()))
    told = json.loads((Path(config.model) / "config.json").read_text())
    geometry = ModelShape.from_config(told).geometry(BLOCK)
    assert config.device_memory is not None and geometry.page_bytes == BLOCK * costs.kv_bytes_per_token
    sizes = MachineSizes(
        device_tokens=config.device_memory // geometry.page_bytes * BLOCK,
        host_tokens=config.host_memory // geometry.page_bytes * BLOCK,
        rung_tokens=geometry.image_pages * BLOCK,
        block=BLOCK,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        ahead=config.async_scheduling == "on",
    )
    clock, cache = RealClock(), sizes.cache(costs.kv_bytes_per_token)
    mover = VirtualMover(clock, Links(clock, costs), geometry.page_bytes)
    loop = OwnedLoop(cache, sizes.rules(), CostRunner(clock, costs), mover, clock, costs.weighed(), scores=False)
    report(EngineFacts(config.name, loop.longest, told["vocab_size"]))
    return loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device-memory", type=parse_size, required=True)
    parser.add_argument("--host-memory", type=parse_size, required=True)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-num-batched-tokens", type=int, default=16_384)
    parser.add_argument("--max-model-len", type=int, default=131_072)
    parser.add_argument("--async-scheduling", choices=("on", "off"), default="on")
    options = vars(parser.parse_args())
    here, port, costs = Path(__file__).parent, options.pop("port"), options.pop("costs")
    os.environ |= {COSTS: str(costs.resolve()), "PYTHONPATH": f"{here.parent}:{here}"}
    config = EngineConfig(served_model_name="m", **options)
    told = ServeOptions(config, port=port, names=ServedNames("m"), factory="imagined_engine:build")
    sys.exit(serve(told, Console()))


if __name__ == "__main__":
    main()
