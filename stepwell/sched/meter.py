"""Costs as they turn out: what steps and copies take while the engine serves becomes what the next turns weigh."""

from __future__ import annotations

from dataclasses import replace

from stepwell.cache.config import Costs
from stepwell.cache.moves import EXTERNAL, Tier
from stepwell.sched.step import Step

LEAST_TOKENS = 256
"""Prompt tokens of a step that says something about prefill: in a shorter one the weights are most of it."""
LEAST_BYTES = 1 << 20
"""Of a copy that says something about a tier's speed."""

_WEIGHT = 0.1  # of what was just seen, against all before
_FACTOR = 4.0  # one look changes what is believed by no more than its share of this
_TELLING = 0.01  # a step of decodes has to take so much more or less than `costs` say before these are replaced: it is looked at each step


class Meter:
    """Keeps `costs`, which each look moves a tenth of the way to what was seen; `frozen`: never.

    A step or a copy that seems to take no time (a virtual clock) says nothing.
    """

    def __init__(self, costs: Costs, frozen: bool = False) -> None:
        self.costs = costs
        self._decode_s = costs.decode_s
        self._frozen = frozen

    def computed(self, step: Step, seconds: float) -> None:
        """A step took `seconds`, with nothing else before it on the device."""
        costs = self.costs
        if self._frozen or seconds <= 0:
            return
        prompts = [work for work in step.parts if not work.drafts]
        if not prompts:
            known = self._decode_s or seconds
            self._decode_s = known * _drift(known, seconds)
            if abs(self._decode_s - costs.decode_s) > _TELLING * costs.decode_s:
                self.costs = replace(costs, decode_s=self._decode_s)
            return
        if sum(len(work.tokens) for work in prompts) < LEAST_TOKENS:
            return
        seconds -= costs.decode_s if len(step) > len(prompts) else 0.0
        if seconds <= 0:  # the decodes are not what they were: this says nothing of prompts
            return
        tokens = sum(costs.prefill_seconds(work.start, work.start + len(work.tokens)) for work in prompts)
        slower = _drift(costs.prompt_step_s + tokens, seconds)
        self.costs = replace(
            costs,
            prefill_tokens_per_s=costs.prefill_tokens_per_s / slower,
            attention_s_per_pair=costs.attention_s_per_pair * slower,
            prompt_step_s=costs.prompt_step_s * slower,
        )

    def copied(self, source: Tier, size: int, seconds: float) -> None:
        """A copy of `size` bytes from `source` to the device, or the tier above, took `seconds`."""
        if self._frozen or seconds <= 0 or size < LEAST_BYTES:
            return
        if source == EXTERNAL:
            known = self.costs.external_bytes_per_s
            self.costs = replace(self.costs, external_bytes_per_s=known / _drift(size / known, seconds))
            return
        speeds = list(self.costs.bytes_per_s)
        speeds[source] /= _drift(size / speeds[source], seconds)
        self.costs = replace(self.costs, bytes_per_s=(speeds[0], speeds[1], speeds[2]))


def _drift(expected: float, seen: float) -> float:
    """What to multiply a time by that was expected to be this and was seen to be that."""
    ratio = min(_FACTOR, max(1 / _FACTOR, seen / expected)) if expected > 0 else 1.0
    return 1 - _WEIGHT + _WEIGHT * float(ratio)
