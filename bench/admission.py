"""What the directory costs a request, alone and beside the cache managers of other engines on the same trace.

    python bench/admission.py --quick                                     a few sizes: a minute
    python bench/admission.py --nodes 1000 10000 100000 1000000           our own side: the last size takes 4 GiB
    python bench/admission.py --quick --harness DIR --peers DIR           the peers too

`--harness` is a folder with `trace.py` (a generator `gen()` of requests: `sid`, `turn`, `prompt`, `out`) and a replay script for
each peer; `--peers` holds their environments. Without a harness our side replays a trace of the same shape that it makes up.

**Alone**: prompts of 1,000 to 500,000 tokens, half to all of them cached, in trees of 10³ to 10⁶ nodes, the directory called as the
scheduler calls it: admission is survey, plan and commit, then publish of the rest and a rung, then release. **Memory**: what a fresh
process grows by. **On the trace**: one request after another in the geometry of Qwen3-Next-80B (24,576 B of KV a token, 36 × 1.05 MiB
of state).

What is timed on the trace, for each request:

    ours_us        the directory's calls from admission to the end: survey, plan, commit, pages, publish of the prompt and of the
                   answer with their rungs, eviction, release
    ours_loop_us   the whole engine loop, every step from submit to the last token's events, with a runner that computes nothing and
                   whose time is left out
    vllm           its request made (its blocks hashed), queued, and the first `schedule()`: lookup, eviction, allocation. Not the later
                   steps, nor the end of the request
    sglang         lookup, lock, eviction, allocation, and the insertions into its tree. No scheduler, nor the end of the request

So ours counts the end of a request and the cache's side of its answer, which theirs leave out or have in part; vLLM's counts a queue
and a schedule, which ours has in `ours_loop_us` alone.
Peers take prompts as lists, and vLLM's hashing and SGLang's keys include reading them; ours takes int32 arrays, and `to_array_us` is
what making one of a list costs. Times are of the processor, of the thread that decides, the least of
`--repeat` rounds in which everyone takes a turn. `over_best_peer` is ours_us over the smallest of the peers', `loop_over_best_peer`
ours_loop_us.

Ends with one line of JSON, which has `step_us_256` and `step_us_1024` of `bench/step.py` too: one decode step of scheduling.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import step
from directory.alone import Case, Times, alone_table, measure_alone
from directory.memory import Memory, measure_memory, memory_table
from directory.ours import play, span, to_array
from directory.peers import PEERS, Harness, play_peer
from directory.requests import CASES, Pair, Played, trace_of
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

LENGTHS = (1_000, 10_000, 50_000, 200_000, 500_000)
OURS = "ours"
STEP_ROUNDS = 8


def main() -> None:
    options = parse_arguments()
    console = Console()
    lengths = (1_000, 200_000) if options.quick else LENGTHS
    with Progress(console=Console(stderr=True), transient=True) as progress:
        alone = measure_alone(lengths, options.nodes, options.rounds, progress)
        console.print(alone_table(alone, options.rounds))
        memory = measure_memory(options.nodes, progress)
        console.print(memory_table(memory))
        requests = trace_of(options.harness, options.requests)
        played = play_all(requests, options, progress)
    console.print(trace_table(played))
    spans = [span(requests, CASES[options.cases[0]][0]) for _ in range(options.repeat)]
    told = figures(alone, memory, played, min(spans), to_array(requests))
    told |= {f"step_us_{seqs}": round(step.measure(seqs, STEP_ROUNDS), 1) for seqs in (256, 1024)}
    print(json.dumps(told))


def play_all(requests: Sequence[Pair], options: argparse.Namespace, progress: Progress) -> dict[str, dict[str, Played]]:
    """By name and case. Everyone takes turns at the first case, whose times are compared; what fails is left out and said."""
    harness = Harness(options.harness, options.peers) if options.peers is not None else None
    names = (OURS, *PEERS) if harness is not None else (OURS,)
    turns = [options.cases[0]] * (options.repeat - 1) + options.cases
    found: dict[str, dict[str, Played]] = {name: {} for name in names}
    task = progress.add_task("the trace", total=len(turns) * len(names))
    for case in turns:
        for name in names:
            if name == OURS or harness is None:
                told: Played | str = play(requests, *CASES[case])
            else:
                told = play_peer(name, case, harness, options.requests)
            if isinstance(told, str):
                progress.console.print(f"{name} at {case} GiB: {told}", markup=False, highlight=False)
            elif case not in found[name] or told.us < found[name][case].us:
                found[name][case] = told
            progress.advance(task)
    return found


def figures(
    alone: dict[Case, Times],
    memory: Sequence[Memory],
    played: dict[str, dict[str, Played]],
    span_us: float,
    to_array_us: float,
) -> dict[str, Any]:
    """The line for machines. Times are those at the first size of memory that was asked for."""
    ours = played[OURS]
    case = next(iter(ours))
    peers_us = {name: found[case].us for name, found in played.items() if name != OURS and case in found}
    best = min(peers_us.values(), default=None)
    resumes = [times.admit for at, times in alone.items() if at.tokens == 200_000 and at.hit == 0.99]
    hits = {name: {at: round(p.hit, 4) for at, p in found.items()} for name, found in played.items()}
    return {
        "ours_us": round(span_us, 1),
        "peers_us": {name: round(us, 1) for name, us in peers_us.items()},
        "over_best_peer": round(span_us / best, 3) if best else None,
        "ours_loop_us": round(ours[case].us, 1),
        "loop_over_best_peer": round(ours[case].us / best, 3) if best else None,
        "to_array_us": round(to_array_us, 1),
        "resume_200k_ms": round(max(resumes) / 1000, 3) if resumes else None,
        "mib_per_million_nodes": round(memory[0].mib_per_million_nodes),
        "mib_per_million_blocks": round(memory[-1].mib_per_million_blocks, 1),
        "token_hit": hits.pop(OURS),
        "peers_hit": hits,
    }


def trace_table(played: dict[str, dict[str, Played]]) -> Table:
    table = Table("GiB", title="On the trace: µs of processor time a request · share reused")
    for name in played:
        table.add_column(name, justify="right")
    for case in played[OURS]:
        cells = (f"{p[case].us:,.0f} · {p[case].hit:.4f}" if case in p else "–" for p in played.values())
        table.add_row(case, *cells)
    return table


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="prompts of 1,000 and 200,000 tokens only")
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[1_000, 10_000], help="sizes of trees (default 1000 10000)"
    )
    parser.add_argument("--rounds", type=int, default=15, help="prompts of each kind, alone (default 15)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds on the trace, at the first case (default 3)")
    parser.add_argument("--requests", type=int, default=1000, help="requests of the trace (default 1000)")
    parser.add_argument(
        "--cases", nargs="+", choices=list(CASES), default=list(CASES), help="GiB of device [+ host] memory"
    )
    parser.add_argument("--harness", type=Path, help="folder with trace.py and the peers' scripts")
    parser.add_argument("--peers", type=Path, help="folder with the peers' environments")
    options = parser.parse_args()
    if options.peers is not None and options.harness is None:
        parser.error("--peers needs --harness, the folder with the peers' scripts")
    if min(options.rounds, options.repeat, options.requests, *options.nodes) < 1:
        parser.error("--nodes, --rounds, --repeat and --requests must be at least 1")
    return options


if __name__ == "__main__":
    main()
