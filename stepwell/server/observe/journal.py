"""What a server tells of its work in the log: a line when a sequence ends, and one every ten seconds while it has work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss
from stepwell.server.observe.phases import Course
from stepwell.server.observe.recent import Recent, Slice

log = logging.getLogger("stepwell.server")

EVERY_S = 10.0
"""Seconds between two lines about a server at work."""

_LOST: Mapping[Loss, str] = {
    Loss.NEW: "new",
    Loss.NO_RUNG: "behind the last state",
    Loss.EVICTED_RUNG: "whose state was evicted",
    Loss.EVICTED_KV: "whose KV was evicted",
    Loss.NO_ROOM: "for want of room",
    Loss.PARTIAL_CHUNK: "in a partial chunk",
    Loss.TOO_SMALL: "too few to load",
    Loss.FAILED_LEG: "whose load failed",
    Loss.NOT_READ: "with the cache not read",
}


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence at its end, `now` by the server's clock; `outcome` is None where it was never admitted."""

    request_id: str
    prompt: int
    outcome: AdmissionOutcome | None
    course: Course
    now: float
    tokens: int
    reason: str


def tell(ended: Ended) -> None:
    """One line: where the prompt came from and what was computed of it, the time to the first token, the speed of the answer, its end."""
    if not log.isEnabledFor(logging.INFO):
        return
    first = None if ended.course.first is None else ended.course.first - ended.course.arrived
    speed = _speed(ended)
    parts = [f"{ended.prompt:,} prompt tokens: {_sources(ended.outcome)}"]
    if first is not None:
        parts.append(f"first token after {first:.2f} s")
    parts.append(
        f"{ended.tokens:,} {'token' if ended.tokens == 1 else 'tokens'}"
        + ("" if speed is None else f" at {speed:.1f}/s")
    )
    parts.append(ended.reason)
    values = {
        "prompt": ended.prompt,
        **({} if ended.outcome is None else _counts(ended.outcome)),
        "first_token_s": None if first is None else round(first, 6),
        "answer": ended.tokens,
        "tokens_s": None if speed is None else round(speed, 3),
        "finish": ended.reason,
    }
    log.info("%s", "; ".join(parts), extra={"sequence": ended.request_id, "call": values})


def _speed(ended: Ended) -> float | None:
    """Tokens a second after the first one. None if there are none."""
    first = ended.course.first
    if first is None or ended.tokens < 2 or ended.now <= first:
        return None
    return (ended.tokens - 1) / (ended.now - first)


def _sources(outcome: AdmissionOutcome | None) -> str:
    if outcome is None:
        return "never admitted"
    tiers = (("device", outcome.device), ("host", outcome.host), ("disk", outcome.disk), ("external", outcome.external))
    found = [f"{tokens:,} from {tier}" for tier, tokens in tiers if tokens]
    lost = ", ".join(f"{tokens:,} {_LOST[loss]}" for loss, tokens in outcome.lost if tokens)
    computed = f"{outcome.recomputed:,} computed" + (f" ({lost})" if lost else "")
    return " + ".join([*found, computed])


def _counts(outcome: AdmissionOutcome) -> dict[str, Any]:
    return {
        "device": outcome.device,
        "host": outcome.host,
        "disk": outcome.disk,
        **({"external": outcome.external} if outcome.external else {}),
        "computed": outcome.recomputed,
        "lost_to": {loss.value: tokens for loss, tokens in outcome.lost if tokens},
        "reason": outcome.reason.value,
    }


def summary(lately: Slice, seconds: float) -> str | None:
    """What a server did in the last `seconds`, in one line; None where it did nothing."""
    if not (lately.running or lately.waiting or lately.admitted or lately.generated):
        return None
    cached = lately.device + lately.host + lately.disk + lately.external
    asked = cached + lately.recomputed
    prompts = f"prompts {asked / seconds:,.0f} tokens/s" + (f", {cached / asked:.0%} of them cached" if asked else "")
    parts = [f"{lately.running} running, {lately.waiting} waiting", prompts]
    parts.append(f"answers {lately.generated / seconds:,.1f} tokens/s")
    middle = lately.first.quantile(0.5)
    if middle is not None:
        parts.append(f"first token p50 {middle:.2f} s")
    if lately.used:
        parts.append("used: " + ", ".join(f"{tier} {share:.0%}" for tier, share in lately.used.items()))
    return "; ".join(parts)


async def report(recent: Recent, every: float = EVERY_S) -> None:
    """Log a line every so many seconds, and none about seconds in which nothing happened. Runs until it is cancelled."""
    while True:
        await asyncio.sleep(every)
        line = summary(recent.last(every), every)
        if line is not None:
            log.info("%s", line)
