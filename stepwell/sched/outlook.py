"""What an engine expects of a prompt before it arrives: where it would resume and why, and when it would have its first token.
A router asks several engines for the latter. Nothing here changes any state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from stepwell.base.geometry import Ints
from stepwell.cache.config import Costs
from stepwell.cache.directory import Directory
from stepwell.cache.moves import DEVICE, Tier
from stepwell.cache.reuse.explain import Explanation, explain
from stepwell.cache.reuse.plan import Plan, Wait, expected_seconds
from stepwell.sched.coalesce import Coalescing
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Waiting
from stepwell.sched.queues import Queues

LOOKED_AT = 8
"""Number of waiting requests whose prompts are looked up; the others count as the mean of these."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one engine expects of one prompt.

    boundary   token at which it would resume, of `tokens`        tier       slowest tier that it loads from; device: no load
    load_s     seconds of its loads                               prefill_s  seconds of computing the other tokens
    queue_s    seconds of prompts that are computed before it     requests   number of requests that wait, load or run
    """

    tokens: int
    boundary: int
    tier: Tier
    load_s: float
    prefill_s: float
    queue_s: float
    requests: int

    @property
    def work_s(self) -> float:
        """Seconds of loading and computing the prompt itself."""
        return self.load_s + self.prefill_s

    @property
    def first_token_s(self) -> float:
        """Expected seconds to the first token."""
        return self.queue_s + self.work_s


def outlook(
    queues: Queues, directory: Directory, config: SchedConfig, costs: Costs, salt: str, prompt: Ints, read: bool = True
) -> Outlook:
    """The outlook of `prompt` under `salt` now. Costs one plan, and a lookup for each of up to `LOOKED_AT` waiting requests."""
    read = config.cache and read
    answer = directory.plan(salt, prompt, costs, read)
    boundary, tier, load = 0, DEVICE, 0.0
    if isinstance(answer, Plan):
        aim, boundary = answer.aim, answer.aim.boundary
        tiers = [source.tier for source in aim.leg] + ([aim.resume_point.tier] if aim.resume_point is not None else [])
        tier = max(tiers, default=DEVICE)
        alone = costs.prefill_seconds(boundary, len(prompt))
        load = expected_seconds(aim, len(prompt), directory.config, costs) - alone
    elif read and (
        deepest := directory.survey(salt, prompt).resume_points[-1:]
    ):  # no room now: it would wait, then load this
        boundary, _, tier = deepest[0]
        load = costs.latency_s if tier != DEVICE else 0.0
    prefill = costs.prefill_seconds(boundary, len(prompt)) + costs.prompt_step_s
    requests = len(queues.waiting) + len(queues.parked) + len(queues.running)
    return Outlook(
        len(prompt), boundary, tier, load, prefill, queue_seconds(queues, directory, config, costs), requests
    )


def explained(
    queues: Queues,
    directory: Directory,
    config: SchedConfig,
    costs: Costs,
    now: float,
    salt: str,
    prompt: Ints,
    read: bool,
) -> Explanation:
    """Why `prompt` would be resumed where it would, and whether it would wait for what another request computes. Costs one plan."""
    read = config.cache and read
    answer = directory.plan(salt, prompt, costs, read)
    explanation = explain(directory, salt, prompt, answer)
    if not read or isinstance(answer, Wait):
        return explanation
    lead = Coalescing(queues, directory.config, config, costs, now).find(salt, prompt, (inf, 0), answer)
    return explanation if lead is None else replace(explanation, waits_for=lead.position)


def queue_seconds(queues: Queues, directory: Directory, config: SchedConfig, costs: Costs) -> float:
    """Seconds until a prompt that comes now is computed: the prompts before it, and answers that must end first where all of
    `config.max_num_seqs` are taken."""
    seconds = sum(costs.prefill_seconds(r.launched, r.given) for r in queues.running if r.remaining > 1)
    for parked in queues.parked.values():
        seconds += costs.prefill_seconds(parked.loading.option.boundary, parked.job.tokens.count)
    waiting = [_waiting_seconds(waiting, directory, config, costs) for waiting in queues.waiting[:LOOKED_AT]]
    if waiting:
        seconds += sum(waiting) * len(queues.waiting) / len(waiting)
    seats = len(queues.waiting) + len(queues.parked) + len(queues.running) + 1 - config.max_num_seqs
    if seats > 0 and queues.running:
        left = sum(r.job.limit - r.job.tokens.count for r in queues.running) / len(queues.running)
        seconds += seats * left / len(queues.running) * max(costs.decode_s, costs.prompt_step_s)
    return seconds


def _waiting_seconds(waiting: Waiting, directory: Directory, config: SchedConfig, costs: Costs) -> float:
    request, tokens = waiting.job.request, waiting.job.tokens.view
    reads = config.cache and request.read_cache
    return costs.prefill_seconds(_reach(directory, request.salt, tokens) if reads else 0, len(tokens))


def _reach(directory: Directory, salt: str, tokens: Ints) -> int:
    """The deepest boundary with a rung in any tier. Loads are left out: they are short beside computing."""
    found = directory.survey(salt, tokens).resume_points
    return found[-1].position if found else 0
