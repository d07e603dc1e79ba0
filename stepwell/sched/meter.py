"""Updates `Costs` by the measured times of steps and copies while the engine serves."""

from __future__ import annotations

from dataclasses import replace

from stepwell.cache.config import Costs
from stepwell.cache.moves import EXTERNAL, Tier
from stepwell.sched.step import Step

LEAST_TOKENS = 256
"""Fewest prompt tokens of a step that is measured: a shorter one mostly reads weights."""
LEAST_BYTES = 1 << 20
"""Fewest bytes of a copy that is measured."""

_WEIGHT = 0.1  # of the latest measurement, against all before
_FACTOR = 4.0  # one measurement counts as at most this many times faster or slower
_TELLING = 0.01  # least relative change of a step of decodes that replaces `costs`, since every step is measured


class Meter:
    """Holds `costs`. Each measurement moves them a tenth of the way to what it says; `frozen`: never.

    A step or a copy that seems to take no time (on a virtual clock) is ignored.
    """

    def __init__(self, costs: Costs, frozen: bool = False) -> None:
        self.costs = costs
        self._frozen = frozen

    @property
    def costs(self) -> Costs:
        """What is believed now. Whoever sets them has what was measured of decodes begin anew."""
        return self._costs

    @costs.setter
    def costs(self, costs: Costs) -> None:
        self._costs = costs
        self._decode_s = costs.decode_s

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
                self._costs = replace(costs, decode_s=self._decode_s)
            return
        if sum(len(work.tokens) for work in prompts) < LEAST_TOKENS:
            return
        seconds -= costs.decode_s if len(step) > len(prompts) else 0.0
        if seconds <= 0:  # decodes have become faster: this says nothing about prompts
            return
        tokens = sum(costs.prefill_seconds(work.start, work.start + len(work.tokens)) for work in prompts)
        slower = _drift(costs.prompt_step_s + tokens, seconds)
        self._costs = replace(
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
            self._costs = replace(self.costs, external_bytes_per_s=known / _drift(size / known, seconds))
            return
        speeds = list(self.costs.bytes_per_s)
        speeds[source] /= _drift(size / speeds[source], seconds)
        self._costs = replace(self.costs, bytes_per_s=(speeds[0], speeds[1], speeds[2]))


def _drift(expected: float, seen: float) -> float:
    """The factor for an estimate that was `expected` seconds, where `seen` were measured."""
    ratio = min(_FACTOR, max(1 / _FACTOR, seen / expected)) if expected > 0 else 1.0
    return 1 - _WEIGHT + _WEIGHT * float(ratio)
