"""What a decision of the fleet's router costs, and what it remembers: many conversations over many replicas, without engines.

    python bench/router.py                         10⁵ conversations, 64 replicas, 300,000 decisions
    python bench/router.py --sessions 1000000 --replicas 1024

Outlooks are drawn by chance: a session's replica has most of the prompt, others have nothing. One in twenty does not answer. Prints one
line of JSON: µs of processor time a decision (whom to ask, what was heard, the choice) at the median and the 99th percentile, and bytes
that are kept of a session.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import tracemalloc

from stepwell.cache.moves import Tier
from stepwell.fleet.router import Router, View
from stepwell.sched.outlook import Outlook


class Replicas:
    """What each would say of a prompt, by chance."""

    def __init__(self, count: int, seed: int) -> None:
        self.names = [f"{i:04d}" for i in range(count)]
        self._dice = random.Random(seed)

    def loads(self) -> dict[str, int]:
        return {name: self._dice.randrange(40) for name in self.names}

    def outlooks(self, names: tuple[str, ...], tokens: int, home: str | None) -> dict[str, Outlook]:
        told = {}
        for name in names:
            if self._dice.random() > 0.05:
                boundary = tokens * 9 // 10 if name == home else 0
                work, queue = (tokens - boundary) / 20_000, 4 * self._dice.random()
                told[name] = Outlook(tokens, boundary, Tier.DEVICE, 0.0, work, queue, 3)
        return told


def decide(router: Router, replicas: Replicas, session: str, tokens: int, now: float) -> float:
    """Seconds of processor time that the router itself took."""
    loads, known = replicas.loads(), router.session(session)
    home = known.homes[0] if known is not None else None
    began = time.thread_time()
    asked = router.whom_to_ask(session, loads)
    took = time.thread_time() - began
    told = replicas.outlooks(asked[:1], tokens, home)
    began = time.thread_time()
    more = router.whom_to_ask_next(session, asked, told)
    took += time.thread_time() - began
    told |= replicas.outlooks(more, tokens, home)
    views = [View(name, load, told.get(name)) for name, load in loads.items()]
    began = time.thread_time()
    router.heard((asked[0], *more), told)
    router.choose(session, tokens, views, now)
    return took + time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--decisions", type=int, default=300_000)
    options = parser.parse_args()
    dice, router, replicas = random.Random(0), Router(), Replicas(options.replicas, 1)
    tracemalloc.start()
    for i in range(options.sessions):
        router.choose(f"{i:032x}", 1000, [View(name, 0) for name in replicas.names[i % options.replicas :][:1]], 0.0)
    kept = tracemalloc.get_traced_memory()[0] / options.sessions
    tracemalloc.stop()
    took = []
    for turn in range(options.decisions):
        session = f"{dice.randrange(options.sessions):032x}"
        took.append(decide(router, replicas, session, dice.randrange(1000, 100_000), turn / 100))
    took.sort()
    told = {"sessions": options.sessions, "replicas": options.replicas, "decisions": options.decisions}
    figures = {
        "median_us": round(1e6 * statistics.median(took), 1),
        "p99_us": round(1e6 * took[len(took) * 99 // 100], 1),
        "bytes_a_session": round(kept),
    }
    print(json.dumps(told | figures))


if __name__ == "__main__":
    main()
